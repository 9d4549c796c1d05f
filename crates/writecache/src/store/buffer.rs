// SPDX-License-Identifier: Apache-2.0 OR MIT
//! Write buffer: a write is copied into memory and acknowledged; its data go to their slots of the
//! cache device in long runs.
//!
//! ```text
//!   write ─▶ place in a segment ─▶ map, journal ─▶ acknowledged
//!               │  segments of up to 1 MiB, a ring
//!               │    │ written │ being written │ being filled │ free │
//!               ▼
//!   a full segment, FLUSH, FUA, autocommit ─▶ a run: one write for each run of slots
//! ```
//!
//! The map has a buffered version in its slot at once (`map::buffered`): counts, epochs, commits
//! and writeback know nothing of the buffer. Only what reads a slot asks for the place of its data.
//! With a journal the data are in memory that outlives the process, too: in a frame for each place.
//!
//! Invariants, besides those of `map::buffered`
//! - WC-BF4 A commit ends only when the data of all versions that its records name are on the cache
//!   device, and flushed: it takes its batch, and then waits for all data buffered before.
//! - WC-BF5 The frame of a version has its data before the journal names the version, and until
//!   they are in the slot that the journal or the log names. So a version that moves to another
//!   slot leaves its frame and its old slot alone until the next commit is durable.
//! - WC-BF6 A slot that fails is no error of a client: its data get another slot. Where none takes
//!   them the cache fails stop (WC-I8), and reads find them in memory.
//!
//! Cost of a write: two copies of its data, without a request; and its part of a long write.
use std::cell::{Cell, RefCell};
use std::ops::Range;
use std::rc::{Rc, Weak};

use block::{Buf, Bufs, Class, Flags, Slice, Status};
use format::FrameTag;
use policy::Pacer;
use reactor::{BioFuture, WaitList};
use smallvec::SmallVec;

use super::Store;
use super::frames::{Frames, buffer_blocks, segment_blocks};
use crate::config::Config;
use crate::lifecycle::TaskGuard;
use crate::planted::Fault;

/// So much is written without waiting for a full segment, while nothing is being written: a FLUSH
/// finds little left to write.
const EAGER_BYTES: u32 = 128 << 10;
/// Writers are slowed when a part of this part of the buffer is not written (`policy::Pacer`): what
/// a FLUSH has to wait for.
const PACED_PART: u64 = 4;
/// The rate of the cache device until it is measured, in blocks a second.
const ASSUMED_BLOCKS_PER_S: u64 = 100_000;
/// Shorter delays are not slept: they add up to a longer one.
const DELAY_MIN_NS: u64 = 100_000;
/// Longer writes are not buffered: they are a run by themselves.
const LARGE_BYTES: usize = 64 << 10;
/// Other slots that are tried for data which a slot has refused.
const OTHER_SLOTS_MAX: u32 = 8;

/// A part of the ring.
#[derive(Default)]
struct Segment {
    /// Its data, while it is in use.
    data: Option<Buf>,
    /// Blocks that it has.
    len: u32,
    /// Those of them whose writes have begun.
    begun: u32,
    /// Groups of blocks that are not done with: their writes are in flight, or their frames are
    /// needed (WC-BF5).
    busy: u32,
    /// The number of its first block, counted since the cache was opened.
    first: u64,
}

#[derive(Default)]
struct Ring {
    segments: Vec<Segment>,
    /// The first segment in use, and how many there are in use. The last one is being filled.
    first: usize,
    used: usize,
    /// Blocks since the cache was opened.
    blocks: u64,
    /// The number of the first block of each group whose writes are in flight.
    in_flight: Vec<u64>,
}

impl Ring {
    fn index(&self, nth: usize) -> usize {
        (self.first + nth) % self.segments.len()
    }

    fn last(&self) -> Option<usize> {
        self.used.checked_sub(1).map(|nth| self.index(nth))
    }
}

/// The write buffer of one cache.
pub(crate) struct WriteBuffer {
    /// Blocks of a segment; 0: there is no buffer.
    segment_blocks: u32,
    block_bytes: usize,
    eager_blocks: u64,
    /// Blocks that writers may have in the buffer without being stopped.
    room_blocks: u64,
    pacer: RefCell<Pacer>,
    /// Blocks that are not on the device yet.
    unwritten: Cell<u64>,
    ring: RefCell<Ring>,
    frames: RefCell<Option<Frames>>,
    /// Versions that have moved to another slot since the last batch was taken.
    moved: RefCell<Vec<(u32, u32)>>,
    /// Waits for room.
    pub(crate) room: WaitList,
    /// Waits for writes to end.
    written: WaitList,
    store: Weak<Store>,
}

/// Blocks of one segment that are written together.
struct Group {
    segment: usize,
    /// Blocks of the segment.
    blocks: Range<u32>,
    first: u64,
    data: Buf,
}

/// Neighbours in the buffer whose slots are neighbours, too.
struct Piece {
    places: Range<u32>,
    data: Slice,
    io: BioFuture,
}

impl WriteBuffer {
    pub(crate) fn new(config: &Config, slots: u32, store: Weak<Store>) -> WriteBuffer {
        let blocks = buffer_blocks(config, slots);
        let segment_blocks = if blocks == 0 { 0 } else { segment_blocks(config, blocks) };
        // Where the number of blocks was cut off, a segment may have got no shorter.
        let segment_blocks = segment_blocks.min(blocks);
        let count = blocks.checked_div(segment_blocks).unwrap_or(0);
        let eager_blocks = u64::from((EAGER_BYTES / config.block_size).min(segment_blocks));
        let room_blocks = (u64::from(blocks) / PACED_PART).max(1);
        let segments = (0..count).map(|_| Segment::default()).collect();
        WriteBuffer {
            segment_blocks,
            block_bytes: config.block_size as usize,
            eager_blocks,
            room_blocks,
            pacer: RefCell::new(Pacer::new(room_blocks, ASSUMED_BLOCKS_PER_S)),
            unwritten: Cell::new(0),
            ring: RefCell::new(Ring { segments, ..Ring::default() }),
            frames: RefCell::new(None),
            moved: RefCell::default(),
            room: WaitList::new(),
            written: WaitList::new(),
            store,
        }
    }

    /// Whether a write of so many bytes is buffered.
    #[inline]
    pub(crate) fn takes(&self, bytes: usize) -> bool {
        self.segment_blocks > 0 && bytes <= LARGE_BYTES
    }

    /// From now on data are copied to these frames, too; or to none.
    pub(crate) fn set_frames(&self, frames: Option<Frames>) {
        *self.frames.borrow_mut() = frames;
    }

    /// Blocks that fit without waiting, into one segment.
    pub(crate) fn room(&self) -> u32 {
        let ring = self.ring.borrow();
        let left = ring.last().map_or(0, |last| self.segment_blocks - ring.segments[last].len);
        match left {
            0 if ring.used < ring.segments.len() => self.segment_blocks,
            left => left,
        }
    }

    /// Copies a block into the buffer; there is room. Returns its place and its checksum.
    pub(crate) fn append(&self, store: &Store, slot: u32, data: &Bufs, at: usize) -> (u32, u32) {
        let (index, nth, buf) = self.next_place();
        let size = self.block_bytes;
        let slice = buf.slice(nth as usize * size..(nth as usize + 1) * size);
        slice.write(|out| data.take_at(at, out));
        // Of the copy: a client may change its own buffer meanwhile.
        let crc = slice.read(|block| store.config.checksum(block));
        let segment = u32::try_from(index).expect("few segments");
        let place = segment * self.segment_blocks + nth;
        let stored = match &*self.frames.borrow() {
            Some(frames) if !store.has_fault(Fault::FrameNotStored) => {
                slice.read(|block| frames.store(place, FrameTag { slot, crc }, block))
            }
            _ => Ok(()),
        };
        if stored.is_err() {
            store.slots.borrow_mut().lose_journal();
        }
        (place, crc)
    }

    /// Takes the next place: segment, block of it, and its data.
    fn next_place(&self) -> (usize, u32, Buf) {
        let mut ring = self.ring.borrow_mut();
        let last = ring.last().filter(|&last| ring.segments[last].len < self.segment_blocks);
        let index = last.unwrap_or_else(|| {
            assert!(ring.used < ring.segments.len(), "callers ask for room");
            let index = ring.index(ring.used);
            ring.used += 1;
            let (first, bytes) = (ring.blocks, self.segment_blocks as usize * self.block_bytes);
            let data = Some(Buf::alloc(bytes));
            ring.segments[index] = Segment { data, first, ..Segment::default() };
            index
        });
        ring.blocks += 1;
        self.unwritten.set(self.unwritten.get() + 1);
        let segment = &mut ring.segments[index];
        segment.len += 1;
        (index, segment.len - 1, segment.data.clone().expect("it is in use"))
    }

    /// The data at a place that is in use.
    pub(crate) fn data(&self, place: u32) -> Slice {
        let ring = self.ring.borrow();
        let segment = &ring.segments[(place / self.segment_blocks) as usize];
        let from = (place % self.segment_blocks) as usize * self.block_bytes;
        let data = segment.data.as_ref().expect("WC-BF3: it is in use");
        data.slice(from..from + self.block_bytes)
    }

    /// Whether the last segment is full, or long enough while nothing is being written.
    pub(crate) fn is_write_due(&self) -> bool {
        let ring = self.ring.borrow();
        let Some(last) = ring.last() else { return false };
        let segment = &ring.segments[last];
        let waiting = u64::from(segment.len - segment.begun);
        let is_full = segment.len == self.segment_blocks && waiting > 0;
        is_full || (ring.in_flight.is_empty() && waiting >= self.eager_blocks)
    }

    /// Whether a write may have to wait, so that the device keeps up.
    #[inline]
    pub(crate) fn slows_writers(&self) -> bool {
        self.free_blocks() < self.pacer.borrow().start()
    }

    /// Blocks that fit before writers are stopped.
    fn free_blocks(&self) -> u64 {
        self.room_blocks.saturating_sub(self.unwritten.get())
    }

    /// How long a write of so many blocks has to wait, so that the device keeps up.
    #[inline]
    pub(crate) fn delay_ns(&self, blocks: usize) -> u64 {
        let free = self.free_blocks();
        if free >= self.pacer.borrow().start() {
            return 0;
        }
        let now = reactor::now().0;
        let delay = self.pacer.borrow_mut().delay_ns(blocks as u64, free, 0, now);
        if delay < DELAY_MIN_NS { 0 } else { delay }
    }

    /// The next blocks whose writes have not begun.
    fn begin_group(&self) -> Option<Group> {
        let mut ring = self.ring.borrow_mut();
        let waits = |&index: &usize| ring.segments[index].begun < ring.segments[index].len;
        let segment = (0..ring.used).map(|nth| ring.index(nth)).find(waits)?;
        let found = &mut ring.segments[segment];
        let blocks = found.begun..found.len;
        found.begun = found.len;
        found.busy += 1;
        let data = found.data.clone().expect("it is in use");
        let first = found.first + u64::from(blocks.start);
        if ring.in_flight.is_empty() {
            self.pacer.borrow_mut().writeback_started(reactor::now().0);
        }
        ring.in_flight.push(first);
        Some(Group { segment, blocks, first, data })
    }

    /// The writes of a group have ended.
    fn end_group(&self, group: &Group) {
        let mut ring = self.ring.borrow_mut();
        let at = ring.in_flight.iter().position(|&first| first == group.first);
        ring.in_flight.swap_remove(at.expect("begun before"));
        let blocks = u64::from(group.blocks.end - group.blocks.start);
        self.unwritten.set(self.unwritten.get() - blocks);
        let mut pacer = self.pacer.borrow_mut();
        pacer.freed(blocks, reactor::now().0);
        if ring.in_flight.is_empty() {
            pacer.writeback_stopped();
        }
        drop((ring, pacer));
        self.written.wake_all();
    }

    /// The frames of a group are not needed any more.
    fn release_group(&self, group: &Group) {
        let mut ring = self.ring.borrow_mut();
        ring.segments[group.segment].busy -= 1;
        while ring.used > 0 {
            let first = ring.first;
            let segment = &mut ring.segments[first];
            let is_full = segment.len == self.segment_blocks && segment.begun == segment.len;
            if !is_full || segment.busy > 0 {
                break;
            }
            segment.data = None;
            ring.first = ring.index(1);
            ring.used -= 1;
        }
        drop(ring);
        self.room.wake_all();
    }

    /// Whether the writes of all blocks before this number have ended. They have begun.
    fn is_written_before(&self, number: u64) -> bool {
        self.ring.borrow().in_flight.iter().all(|&first| first >= number)
    }

    /// Whether no data are buffered that are not on the device.
    #[inline]
    pub(crate) fn is_written(&self) -> bool {
        self.unwritten.get() == 0
    }

    /// Wakes all that wait.
    pub(crate) fn wake_all(&self) {
        self.room.wake_all();
        self.written.wake_all();
    }

    /// The versions that have moved to another slot since the last call: from which, and to which.
    pub(crate) fn take_moves(&self) -> Vec<(u32, u32)> {
        self.moved.take()
    }
}

impl Store {
    /// The data of a slot, if they are in memory.
    #[inline]
    pub(crate) fn buffered(&self, slot: u32) -> Option<Slice> {
        let place = self.slots.borrow().place_of(slot)?;
        Some(self.buffer.data(place))
    }

    /// Begins to write all buffered data whose writes have not begun.
    pub(crate) fn write_out(&self) {
        if self.buffer.is_written() {
            return;
        }
        while let Some(group) = self.buffer.begin_group() {
            let Some(store) = self.buffer.store.upgrade() else { return };
            let pieces = self.begin_pieces(&group);
            reactor::spawn(store.end_pieces(group, pieces, self.life.guard()));
        }
    }

    fn begin_pieces(&self, group: &Group) -> Vec<Piece> {
        let mut found: SmallVec<[(Range<u32>, Range<u32>); 4]> = SmallVec::new();
        let base = u32::try_from(group.segment).expect("few") * self.buffer.segment_blocks;
        let mut slots = self.slots.borrow_mut();
        for place in base + group.blocks.start..base + group.blocks.end {
            let Some(slot) = slots.begin_buffer_write(place) else { continue };
            match found.last_mut() {
                Some((places, run)) if (places.end, run.end) == (place, slot) => {
                    (places.end, run.end) = (place + 1, slot + 1);
                }
                _ => found.push((place..place + 1, slot..slot + 1)),
            }
        }
        drop(slots);
        let size = self.block_bytes();
        let write = |(places, run): (Range<u32>, Range<u32>)| {
            let at = |place: u32| (place - base) as usize * size;
            let data = group.data.slice(at(places.start)..at(places.end));
            self.stats.buffer_runs.add(1);
            self.stats.buffer_run_bytes.add(data.len() as u64);
            let sector = self.slot_sector(run.start);
            let (flags, class) = (Flags::empty(), Class::Foreground);
            let bufs = data.clone().into();
            let io = reactor::write(&*self.device, flags, class, sector, bufs);
            Piece { places, data, io }
        };
        found.into_iter().map(write).collect()
    }

    /// A task: waits for the writes of a group.
    async fn end_pieces(self: Rc<Self>, group: Group, pieces: Vec<Piece>, _guard: TaskGuard) {
        let mut left = Vec::new();
        let mut outcome = Ok(());
        for Piece { places, data, io } in pieces {
            let written = io.await;
            let size = self.block_bytes();
            for (nth, place) in places.enumerate() {
                let moved = match written {
                    Ok(()) => Ok(None),
                    Err(status) => {
                        let data = data.slice(nth * size..(nth + 1) * size);
                        self.write_elsewhere(place, &data, status).await
                    }
                };
                match moved {
                    Ok(Some(slot)) => left.push(slot),
                    Ok(None) => {
                        self.slots.borrow_mut().end_buffer_write(place);
                    }
                    Err(status) => outcome = outcome.and(Err(status)),
                }
            }
        }
        if let Err(status) = outcome {
            self.fail_refused(status); // WC-BF6
        }
        self.buffer.end_group(&group);
        if self.buffer.is_write_due() {
            self.write_out();
        }
        self.waits.blocks_changed();
        if !left.is_empty() {
            let committed = match self.has_fault(Fault::FrameLeftEarly) {
                true => Ok(()),
                false => self.commit().await, // WC-BF5
            };
            let mut slots = self.slots.borrow_mut();
            left.into_iter().for_each(|slot| slots.abandon(slot));
            drop(slots);
            outcome = outcome.and(committed);
            self.waits.blocks_changed();
        }
        if outcome.is_ok() {
            self.buffer.release_group(&group);
        }
    }

    /// Writes data that their slot has refused to another slot. Returns the slot that the version
    /// has left; `None` if it is in its slot after all, or nobody needs the data any more.
    async fn write_elsewhere(
        &self,
        place: u32,
        data: &Slice,
        mut status: Status,
    ) -> Result<Option<u32>, Status> {
        self.stats.buffer_write_errors.add(1);
        if self.has_fault(Fault::BufferErrorSwallowed) {
            return Ok(None);
        }
        for _ in 0..OTHER_SLOTS_MAX {
            if !self.slots.borrow().is_needed(place) {
                return Ok(None);
            }
            self.health()?;
            let free = self.slots.borrow_mut().allocate(1);
            // Without a free slot the same one is tried again.
            let own = self.slots.borrow().slot_at(place);
            let slot = free.as_ref().map_or(own, |free| free.start);
            let (sector, bufs) = (self.slot_sector(slot), data.clone().into());
            let (flags, class) = (Flags::empty(), Class::Foreground);
            let written = reactor::write(&*self.device, flags, class, sector, bufs).await;
            let Some(free) = free else {
                match written {
                    Ok(()) => return Ok(None),
                    Err(again) => status = again,
                }
                continue;
            };
            let mut slots = self.slots.borrow_mut();
            if written.is_ok() && slots.is_needed(place) {
                let from = slots.move_version(place, free.start);
                self.buffer.moved.borrow_mut().push((from, free.start));
                return Ok(Some(from));
            }
            slots.abandon(free.start);
            if let Err(again) = written {
                status = again;
            }
        }
        Err(status)
    }

    /// WC-BF4: waits until all data that were buffered before this call are on the device.
    pub(crate) async fn write_out_all(&self) {
        let number = self.buffer.ring.borrow().blocks;
        if self.has_fault(Fault::FlushForgetsBuffer) {
            return;
        }
        self.write_out();
        let is_over = || self.buffer.is_written_before(number) || self.health().is_err();
        self.buffer.written.wait_for(is_over).await;
    }

    /// Waits until no write of the buffer is in flight, and no frame is needed. In a cache that has
    /// failed frames stay.
    pub(crate) async fn await_buffer(&self) {
        self.buffer.written.wait_for(|| self.buffer.ring.borrow().in_flight.is_empty()).await;
        let is_idle = || self.buffer.ring.borrow().segments.iter().all(|s| s.busy == 0);
        self.buffer.room.wait_for(|| is_idle() || self.health().is_err()).await;
    }
}
