// SPDX-License-Identifier: Apache-2.0 OR MIT
//! Read-ahead: of streams that miss the cache the origin is read in large requests, before clients
//! ask for it (`read_ahead`, with `read_cache`).
//!
//! ```text
//!   read ─▶ stream? ─▶ window ─▶ less what is cached, or in memory ─▶ requests of up to 1 MiB
//!                                                                         │
//!   later read of the origin ─▶ in a segment? ─▶ copied, or waits for it ◀┴─ segments, in memory
//!                                  └ no, changed, failed ─▶ the origin
//! ```
//!
//! Which reads are streams, and how windows grow, is as in the kernel's `ondemand_readahead`
//! (`policy::Streams`), but that reads may leave gaps; how waste makes them short and rare is in
//! `policy::ReadAheadTrust`. A segment leaves when all of it was used: a cache in memory of what is
//! read again is not the purpose. Nothing of it is on the cache device, and a read from a segment
//! is a miss, for admission too.
//!
//! Invariants
//! - WC-AH1 A read is served from a segment only while the segment holds what the origin holds:
//!   since before it was read nobody has locked any of its blocks, and everybody who changes blocks
//!   of the origin locks them (WC-WB1, WC-I4). So a read that is served from it is as one of the
//!   origin at that moment, and WC-R1 and WC-SP2 hold as for that one.
//! - WC-AH2 And only if no flush of the origin has failed since, nor the cache: what was read may
//!   be lost there.
//! - WC-AH3 An error of a read-ahead is nobody's: reads that wait for it go to the origin.
//! - WC-AH4 All segments, those being read included, take at most `read_ahead` bytes and are at
//!   most [`segments::SEGMENTS_MAX`].
//! - WC-AH5 After a suspend nothing of it is under way, and what was read ahead is gone: the origin
//!   may be used without the cache.
//!
//! A disk that spins would serve a stream alone: its next request is always the nearest. So while
//! others read from one, one short request at a time reads ahead, and theirs come between.
//!
//! Cost for random reads: a search among 16 streams, and no request.
mod segments;

use std::cell::{Cell, RefCell};
use std::collections::VecDeque;
use std::ops::Range;
use std::rc::Rc;

use block::{Bio, BlockDevice, Buf, Class, Limits, Op, Opener, Reservation, Status};
use policy::{ReadAheadTrust, Streams};
use smallvec::SmallVec;

use self::segments::{Found, SEGMENTS_MAX, Segment, Segments};
use crate::config::Tuning;
use crate::planted::Fault;
use crate::writeback::Writeback;

/// Largest window over an origin that rotates: it is read in the time of one way of the head, so
/// that reads of others wait for that and no longer.
const WINDOW_BYTES_ROTATES: u64 = 1 << 20;
/// Largest window over another one. Chosen: what a network of 10 Gbit/s carries in 3 ms, which is
/// more than a usual round trip.
const WINDOW_BYTES: u64 = 4 << 20;
/// Windows that fit into memory: two of a stream, and two of another.
const WINDOWS: u64 = 4;
/// Largest request.
const REQUEST_BYTES: u64 = 1 << 20;
/// Largest request while others read from an origin that rotates: of 65 random reads a second
/// beside a stream they lose 6 by it (`make bench-read-cache`).
const GIVING_WAY_BYTES: u64 = 256 << 10;
/// Others read from it if one did within this time. Chosen: ten ways of a head.
const OTHERS_NS: u64 = 100_000_000;
/// Cached blocks in a window are read, too, if they are not more in a row: a request of its own for
/// each piece would take longer. And streams may have gaps of as much.
const GAP_BYTES: u64 = 64 << 10;

/// The attribute `read_ahead_state` of one that works, and of one that is off.
const ON: &str = "on";
const OFF: &str = "off";

/// See the module.
pub(crate) struct ReadAhead {
    /// Most bytes of memory (WC-AH4); 0: off.
    bytes_max: Cell<u64>,
    /// Blocks of the largest window.
    window_max: Cell<u32>,
    streams: RefCell<Streams>,
    trust: Cell<ReadAheadTrust>,
    segments: RefCell<Segments>,
    /// Segments that are not being read yet, and how many are.
    queue: RefCell<VecDeque<usize>>,
    reading: Cell<usize>,
    /// When a read last went to the origin itself while there were segments.
    other_read_ns: Cell<Option<u64>>,
    /// Whether there is any segment.
    has_any: Cell<bool>,
    memory: RefCell<Option<Reservation>>,
    state: RefCell<String>,
}

impl ReadAhead {
    pub(crate) fn new(block_size: u32) -> ReadAhead {
        ReadAhead {
            bytes_max: Cell::default(),
            window_max: Cell::default(),
            streams: RefCell::new(Streams::with_gaps(GAP_BYTES / u64::from(block_size))),
            trust: Cell::default(),
            segments: RefCell::default(),
            queue: RefCell::default(),
            reading: Cell::default(),
            other_read_ns: Cell::default(),
            has_any: Cell::default(),
            memory: RefCell::default(),
            state: RefCell::new(OFF.to_owned()),
        }
    }

    /// The attribute `read_ahead_state`.
    pub(crate) fn state(&self) -> String {
        self.state.borrow().clone()
    }

    /// Whether reads of the origin may find something here.
    #[inline]
    pub(crate) fn has_any(&self) -> bool {
        self.has_any.get()
    }

    fn is_on(&self) -> bool {
        self.bytes_max.get() > 0
    }

    /// Whether others have read from the origin lately.
    fn others_read(&self) -> bool {
        let now = reactor::now().0;
        self.other_read_ns.get().is_some_and(|at| now.saturating_sub(at) < OTHERS_NS)
    }

    /// `opener` reads `blocks`: what to read ahead now, of an origin of any length.
    fn window(&self, opener: Opener, blocks: &Range<u64>) -> Option<Range<u64>> {
        let trust = self.trust.get();
        let (run_min, max) = (trust.run_min(), trust.window_max(self.window_max.get()));
        self.streams.borrow_mut().on_read_after(run_min, opener.0, blocks.clone(), max)
    }
}

/// The origin of clients' reads while anything is read ahead.
pub(crate) struct AheadOrigin(pub(crate) Rc<Writeback>);

impl BlockDevice for AheadOrigin {
    fn name(&self) -> &str {
        self.0.origin.device.name()
    }

    fn limits(&self) -> Limits {
        self.0.origin.device.limits()
    }

    fn submit(&self, bio: Bio) {
        assert_eq!(bio.op, Op::Read, "changes go to the origin itself");
        self.0.serve_from_segments(bio);
    }
}

impl Writeback {
    /// Applies options.
    pub(crate) fn tune_read_ahead(&self, tuning: &Tuning) {
        let (ahead, block_size) = (&self.read_ahead, u64::from(self.store.config.block_size));
        let wanted = if self.read_cache.is_on() { tuning.reads.ahead_bytes } else { 0 };
        if wanted == ahead.bytes_max.get() {
            return;
        }
        self.drop_segments();
        *ahead.memory.borrow_mut() = None;
        *ahead.streams.borrow_mut() = Streams::with_gaps(GAP_BYTES / block_size);
        ahead.trust.take();
        ahead.bytes_max.set(0);
        OFF.clone_into(&mut ahead.state.borrow_mut());
        if wanted == 0 {
            return;
        }
        let longest = match self.origin.limits.rotational {
            true => WINDOW_BYTES_ROTATES,
            false => WINDOW_BYTES,
        };
        let window = longest.min(wanted / WINDOWS) / block_size;
        ahead.window_max.set(u32::try_from(window).expect("at most WINDOW_BYTES"));
        match reactor::memory().reserve(wanted, "read-ahead".to_owned()) {
            Ok(memory) => {
                *ahead.memory.borrow_mut() = Some(memory);
                ahead.bytes_max.set(wanted);
                ON.clone_into(&mut ahead.state.borrow_mut());
            }
            Err(e) => *ahead.state.borrow_mut() = format!("off: {}", e.chain()),
        }
    }

    /// A client reads `blocks`, cached or not: reads ahead, if they go on with a stream. To be
    /// called once about each read, when its own requests are under way.
    pub(crate) fn read_ahead(self: &Rc<Self>, opener: Opener, blocks: &Range<u64>, class: Class) {
        if !self.read_ahead.is_on() {
            return;
        }
        let Some(window) = self.read_ahead.window(opener, blocks) else { return };
        if self.store.life.is_about_to_stop() || self.store.health().is_err() {
            return;
        }
        for run in self.runs_to_read(window) {
            if !self.add_segment(run) {
                break;
            }
        }
        self.read_queued(class);
    }

    /// What of a window must be read, in pieces of one request each.
    fn runs_to_read(&self, window: Range<u64>) -> SmallVec<[Range<u64>; 4]> {
        let block_size = u64::from(self.store.config.block_size);
        let (gap_max, request) = (GAP_BYTES / block_size, self.request_bytes() / block_size);
        let end = window.end.min(self.origin.blocks);
        let mut runs = SmallVec::<[Range<u64>; 4]>::new();
        let (slots, segments) = (self.store.slots.borrow(), self.read_ahead.segments.borrow());
        for block in window.start..end {
            if slots.find(block).is_some() || segments.contains(block) {
                continue;
            }
            match runs.last_mut() {
                Some(last) if block - last.end <= gap_max && block + 1 - last.start <= request => {
                    last.end = block + 1;
                }
                _ => runs.push(block..block + 1),
            }
        }
        runs
    }

    fn request_bytes(&self) -> u64 {
        let longest = if self.gives_way() { GIVING_WAY_BYTES } else { REQUEST_BYTES };
        longest.min(self.origin.limits.max_io_bytes.into())
    }

    /// Whether read-ahead leaves the head to others in between.
    fn gives_way(&self) -> bool {
        self.origin.limits.rotational && self.read_ahead.others_read()
    }

    /// A segment that is to be read. Returns false if there is no room for it.
    fn add_segment(&self, blocks: Range<u64>) -> bool {
        let bytes = (blocks.end - blocks.start) * u64::from(self.store.config.block_size);
        if !self.make_room(bytes) {
            return false;
        }
        // WC-AH1
        let Some(watch) = self.locks.watch(blocks.clone()) else { return true };
        let data = Buf::alloc(usize::try_from(bytes).expect("at most REQUEST_BYTES"));
        let guard = self.store.life.guard(); // WC-AH5
        let segment = Segment::new(blocks, data, watch, self.origin_flush_errors(), guard);
        let key = self.read_ahead.segments.borrow_mut().insert(segment);
        self.read_ahead.queue.borrow_mut().push_back(key);
        self.read_ahead.has_any.set(true);
        self.store.stats.read_ahead_bytes.add(bytes);
        true
    }

    /// Reads the segments of the queue, as many as may be read now.
    fn read_queued(self: &Rc<Self>, class: Class) {
        let ahead = &self.read_ahead;
        while ahead.reading.get() == 0 || !self.gives_way() {
            let Some(key) = ahead.queue.borrow_mut().pop_front() else { return };
            let segments = ahead.segments.borrow();
            let segment = segments.get(key);
            if !self.is_valid(segment) || self.store.life.is_about_to_stop() {
                drop(segments);
                self.end_segment(key, Err(Status::Io));
                continue;
            }
            let at = self.store.sector_of(segment.blocks.start);
            let data = segment.data().all();
            drop(segments);
            ahead.reading.set(ahead.reading.get() + 1);
            let io = reactor::read(&*self.origin.device, class, at, data.into());
            let this = self.clone();
            reactor::spawn(async move {
                let read = io.await;
                let reading = &this.read_ahead.reading;
                reading.set(reading.get() - 1);
                this.end_segment(key, read);
                this.read_queued(class);
            });
        }
    }

    /// WC-AH4: whether so many bytes more fit, after older segments have left.
    fn make_room(&self, bytes: u64) -> bool {
        loop {
            let segments = self.read_ahead.segments.borrow();
            let has_room = segments.bytes() + bytes <= self.read_ahead.bytes_max.get();
            if has_room && segments.len() < SEGMENTS_MAX {
                return true;
            }
            let Some(oldest) = segments.oldest() else { return false };
            drop(segments);
            self.remove_segment(oldest, true);
        }
    }

    /// The read of a segment has ended, or will not begin.
    fn end_segment(&self, key: usize, read: Result<(), Status>) {
        let waiting = self.read_ahead.segments.borrow_mut().end_read(key);
        let has_data = read.is_ok() || self.store.has_fault(Fault::AheadErrorKept);
        if !has_data || !self.is_valid(self.read_ahead.segments.borrow().get(key)) {
            self.remove_segment(key, false); // WC-AH3
        }
        // Some may have to wait for another segment.
        waiting.into_iter().for_each(|bio| self.serve_from_segments(bio));
    }

    /// Whether reads may be served from a segment.
    fn is_valid(&self, segment: &Segment) -> bool {
        let was_changed = self.locks.was_locked(segment.watch)
            && !self.store.has_fault(Fault::AheadOutlivesChange);
        let is_kept = (segment.flush_errors == self.origin_flush_errors()
            && self.store.health().is_ok())
            || self.store.has_fault(Fault::AheadOutlivesFlushError);
        !was_changed && is_kept && !segment.is_void
    }

    /// Serves a read of the origin from segments, or sends it on.
    fn serve_from_segments(&self, bio: Bio) {
        let sectors = self.store.config.block_sectors();
        let blocks = bio.sector.0 / sectors..bio.end().0 / sectors;
        assert!(bio.sector.0.is_multiple_of(sectors), "clients' reads are of whole blocks");
        assert!(bio.len.0.is_multiple_of(sectors), "clients' reads are of whole blocks");
        let mut segments = self.read_ahead.segments.borrow_mut();
        match segments.find(&blocks, |segment| self.is_valid(segment)) {
            Found::Nowhere => {
                drop(segments);
                self.read_ahead.other_read_ns.set(Some(reactor::now().0));
                self.origin.device.submit(bio);
            }
            Found::Reading(key) => segments.wait(key, bio),
            Found::Data => {
                let (size, mut done) = (self.store.block_bytes(), Vec::new());
                let is_valid = |segment: &Segment| self.is_valid(segment);
                let used = segments.copy(&blocks, size, &bio.bufs, is_valid, &mut done);
                drop(segments);
                self.store.stats.read_ahead_used_bytes.add(used * size as u64);
                done.into_iter().for_each(|key| self.remove_segment(key, true));
                bio.complete(Status::Ok);
            }
        }
    }

    /// Removes a segment that is not being read. It shows whether reading it was of use, unless it
    /// was lost.
    fn remove_segment(&self, key: usize, is_judged: bool) {
        let mut segments = self.read_ahead.segments.borrow_mut();
        let segment = segments.remove(key);
        self.read_ahead.has_any.set(segments.len() > 0);
        let (used, blocks) = (segment.used_blocks(), segment.block_count());
        if is_judged && self.is_valid(&segment) {
            let mut trust = self.read_ahead.trust.get();
            trust.judge(used, blocks);
            self.read_ahead.trust.set(trust);
        }
        let wasted = (blocks - used) * u64::from(self.store.config.block_size);
        self.store.stats.read_ahead_wasted_bytes.add(wasted);
        self.locks.unwatch(segment.watch);
    }

    /// Drops all that was read ahead; what is still being read serves nobody (WC-AH5).
    pub(crate) fn drop_segments(&self) {
        let keys = self.read_ahead.segments.borrow().keys();
        for key in keys {
            let is_read = self.read_ahead.segments.borrow_mut().make_void(key);
            if is_read {
                self.remove_segment(key, false);
            }
        }
    }
}
