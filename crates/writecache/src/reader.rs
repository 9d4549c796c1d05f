// SPDX-License-Identifier: Apache-2.0 OR MIT
//! Reads: cached blocks from their slots, checked against their checksums; the rest from the
//! origin. Blocks that are read enter the cache only with `read_cache` (`admission`).
//!
//! Invariant
//! - WC-R1 Data that were read from the origin count only if the block is not in the cache when
//!   they arrive. Otherwise the block was written meanwhile, and perhaps written back during the
//!   read; an origin write that fails leaves its range undefined. A block whose origin write failed
//!   stays in the cache.
use std::ops::Range;
use std::rc::Rc;

use block::{Bio, BlockDevice, Bufs, Class, Opener, Sector, Status};
use policy::Room;
use reactor::BioFuture;
use smallvec::SmallVec;

use crate::admission::AdmittedRead;
use crate::map::{CurrentVersion, SlotRef, Slots, State};
use crate::planted::Fault;
use crate::store::Store;
use crate::writeback::Writeback;

/// A contiguous piece of a read.
struct Piece {
    /// Blocks of the bio, counted from its first.
    blocks: Range<usize>,
    /// The versions that it reads, one for each block; empty if it reads the origin.
    slot_ref: SmallVec<[(SlotRef, Option<u32>); 1]>,
    /// Some of its blocks are to enter the cache: it is read into memory of the cache.
    admitted: Option<Box<AdmittedRead>>,
    io: BioFuture,
}

/// How a read of one block has begun.
pub(crate) enum ReadStart {
    /// Its data were in the write buffer.
    Done,
    /// One request reads them.
    Request(BlockRead),
    /// Not at all: it needs a task.
    Task,
}

/// A read of one block by one request, without a task.
pub(crate) enum BlockRead {
    /// Of a version in its slot, and its checksum if it is known.
    Slot(SlotRef, Option<u32>),
    /// Of the origin, as of these values of `installs` and `Fills::failed`.
    Origin { installs: u64, failed_fills: u64 },
}

/// Reads of one cache.
pub(crate) struct Reader {
    store: Rc<Store>,
    writeback: Rc<Writeback>,
}

impl Reader {
    pub(crate) fn new(writeback: Rc<Writeback>) -> Reader {
        Reader { store: writeback.store.clone(), writeback }
    }

    #[inline]
    fn origin(&self) -> &dyn BlockDevice {
        &*self.writeback.origin.device
    }

    pub(crate) async fn read(&self, bio: &Bio) -> Result<(), Status> {
        let size = self.store.block_bytes();
        let first = bio.sector.0 / self.store.config.block_sectors();
        let count = bio.bufs.len_bytes() / size;
        self.store.stats.reads.add(count as u64);
        let mut pieces = SmallVec::<[Piece; 2]>::new();
        let mut done = 0;
        let mut outcome = Ok(());
        let (installs, failed_fills) =
            (self.writeback.pacing.installs.get(), self.writeback.fills.failed());
        let admits = self.admits(bio.opener, first..first + count as u64);
        while done < count {
            match self.next_piece(bio, first, done..count, admits) {
                Ok(piece) => {
                    done = piece.blocks.end;
                    pieces.push(piece);
                }
                Err(read) => {
                    outcome = outcome.and(read);
                    done += 1;
                }
            }
        }
        // By reference: a piece is large, and moving it out costs 70 instructions.
        for piece in &mut pieces {
            let read = (&mut piece.io).await;
            let of_origin = piece.slot_ref.is_empty();
            if let Some(admitted) = piece.admitted.as_ref().filter(|_| read.is_ok()) {
                let (data, from) = (admitted.data.all().into(), piece.blocks.start * size);
                bio.bufs.put_from(from, &data, 0, data.len_bytes());
            }
            let blocks = first + piece.blocks.start as u64..first + piece.blocks.end as u64;
            // WC-SP2
            let must_reread = of_origin
                && self.writeback.fills.must_reread(blocks, failed_fills, &self.store).await;
            if of_origin && !must_reread {
                outcome = outcome.and(read);
                if let Some(admitted) = piece.admitted.take().filter(|_| read.is_ok()) {
                    reactor::spawn(admitted.finish());
                }
            }
            // WC-R1. `installs` counts every block that has entered the cache meanwhile.
            if of_origin && (must_reread || self.writeback.pacing.installs.get() != installs) {
                for index in piece.blocks.clone() {
                    let block = first + index as u64;
                    if must_reread || self.store.slots.borrow().find(block).is_some() {
                        let data = bio.bufs.slice(index * size..(index + 1) * size);
                        outcome = outcome.and(self.reread(bio.class, block, data).await.map(drop));
                    }
                }
            }
            for (index, &(slot_ref, crc)) in piece.blocks.clone().zip(&piece.slot_ref) {
                self.store.stats.read_hits.add(1);
                let block = first + index as u64;
                let data = || bio.bufs.slice(index * size..(index + 1) * size);
                if read.is_err() || !self.store.slots.borrow().is_intact(slot_ref) {
                    // Perhaps only one of the blocks is unreadable; or a slot was reused meanwhile,
                    // and its block has a newer version: read each block by itself.
                    outcome = outcome.and(self.reread(bio.class, block, data()).await.map(drop));
                } else if !self.is_sound(&bio.bufs, index, crc) {
                    outcome = outcome.and(match self.drop_rotten(block, slot_ref).await {
                        Ok(()) => self.reread(bio.class, block, data()).await.map(drop),
                        Err(status) => Err(status),
                    });
                }
            }
        }
        outcome
    }

    /// Begins a read of one block where `Store::plain_reads` is not set.
    #[cold]
    #[inline(never)]
    pub(crate) fn begin_counted(&self, block: u64, opener: Opener, data: &Bufs) -> ReadStart {
        if !self.store.changes_begun.get() || self.is_to_be_admitted(block, opener) {
            return ReadStart::Task;
        }
        self.begin_block(block, data)
    }

    /// Begins a read of one block.
    #[inline(always)]
    pub(crate) fn begin_block(&self, block: u64, data: &Bufs) -> ReadStart {
        let slots = self.store.slots.borrow();
        let Some(found) = slots.find(block) else {
            let (installs, fills) = (self.writeback.pacing.installs.get(), &self.writeback.fills);
            let failed_fills = fills.failed();
            return ReadStart::Request(BlockRead::Origin { installs, failed_fills });
        };
        if !Self::is_readable(found.state) {
            return ReadStart::Task;
        }
        if self.is_in_buffer(&slots, found.slot_ref.slot) {
            drop(slots);
            self.read_buffered(found.slot_ref.slot, data);
            self.count_block(true);
            return ReadStart::Done;
        }
        ReadStart::Request(BlockRead::Slot(found.slot_ref, found.crc))
    }

    /// Whether a read of one block needs a task, because the block is to enter the cache. Counts
    /// the use of a block that is there, and the miss of another one.
    fn is_to_be_admitted(&self, block: u64, opener: Opener) -> bool {
        let (read_cache, stats) = (&self.writeback.read_cache, &self.store.stats);
        let is_sequential = read_cache.is_sequential(opener, &(block..block + 1));
        let found = self.store.slots.borrow().find(block);
        match found {
            Some(found) => read_cache.count_use(found.slot_ref.slot),
            None if is_sequential => stats.read_refused_sequential.add(1),
            None if read_cache.is_wanted(block, || self.writeback.has_ample_room()) => return true,
            None => drop(read_cache.miss(block..block + 1, Room::None, stats)),
        }
        false
    }

    /// Whether misses of this read may enter the cache; `None` if there is no read cache. Of a long
    /// stream none may.
    #[inline]
    fn admits(&self, opener: Opener, blocks: Range<u64>) -> Option<bool> {
        let read_cache = &self.writeback.read_cache;
        read_cache.is_on().then(|| !read_cache.is_sequential(opener, &blocks))
    }

    /// The device that serves the read of `block`, and the sector.
    pub(crate) fn source_of(&self, read: &BlockRead, block: u64) -> (&dyn BlockDevice, Sector) {
        match read {
            BlockRead::Slot(slot_ref, _) => {
                (&*self.store.device, self.store.slot_sector(slot_ref.slot))
            }
            BlockRead::Origin { .. } => {
                self.writeback.origin.last_read_ns.set(Some(reactor::now().0));
                (self.origin(), self.store.sector_of(block))
            }
        }
    }

    /// Ends a read. Returns false if its outcome is not that of the block, and a task has to read
    /// it again.
    pub(crate) fn end_block(&self, read: &BlockRead, data: &Bufs, outcome: Status) -> bool {
        let is_valid = match *read {
            BlockRead::Slot(slot_ref, crc) => {
                outcome == Status::Ok
                    && self.store.slots.borrow().is_intact(slot_ref)
                    && self.is_sound(data, 0, crc)
            }
            // WC-R1, WC-SP2
            BlockRead::Origin { installs, failed_fills } => {
                self.writeback.pacing.installs.get() == installs
                    && self.writeback.fills.cannot_affect(failed_fills)
            }
        };
        if is_valid {
            self.count_block(matches!(read, BlockRead::Slot(..)));
        }
        is_valid
    }

    /// Counts a read of one block.
    fn count_block(&self, is_hit: bool) {
        self.store.stats.reads.add(1);
        self.store.stats.read_hits.add(u64::from(is_hit));
    }

    /// Whether block `index` of the data matches its checksum; true if none is known.
    fn is_sound(&self, data: &Bufs, index: usize, crc: Option<u32>) -> bool {
        crc.is_none_or(|crc| self.store.checksum_of(data, index) == crc)
    }

    /// The longest piece from `range.start` on that one request can read. `Err` with the outcome of
    /// the first block if it needs no request: it is unreadable, or zeroes, which are filled in.
    fn next_piece(
        &self,
        bio: &Bio,
        first: u64,
        range: Range<usize>,
        admits: Option<bool>,
    ) -> Result<Piece, Result<(), Status>> {
        let size = self.store.block_bytes();
        let slots = self.store.slots.borrow();
        let at = |index: usize| slots.find(first + index as u64);
        let mut end = range.start + 1;
        let mut slot_ref = SmallVec::<[(SlotRef, Option<u32>); 1]>::new();
        match at(range.start) {
            Some(CurrentVersion { state: State::Bad, .. }) => return Err(Err(Status::Checksum)),
            Some(CurrentVersion { state: State::Zero, .. }) => {
                bio.bufs.slice(range.start * size..(range.start + 1) * size).zero();
                return Err(Ok(()));
            }
            Some(hit) if self.is_in_buffer(&slots, hit.slot_ref.slot) => {
                drop(slots);
                let data = bio.bufs.slice(range.start * size..(range.start + 1) * size);
                self.read_buffered(hit.slot_ref.slot, &data);
                self.store.stats.read_hits.add(1);
                return Err(Ok(()));
            }
            Some(hit) => {
                slot_ref.push((hit.slot_ref, hit.crc));
                while end < range.end {
                    let Some(next) = at(end) else { break };
                    let adjacent = hit.slot_ref.slot as usize + (end - range.start);
                    if !Self::is_readable(next.state)
                        || next.slot_ref.slot as usize != adjacent
                        || self.is_in_buffer(&slots, next.slot_ref.slot)
                    {
                        break;
                    }
                    slot_ref.push((next.slot_ref, next.crc));
                    end += 1;
                }
            }
            None => {
                while end < range.end && at(end).is_none() {
                    end += 1;
                }
            }
        }
        // What a device completes inside `submit` may change the map.
        drop(slots);
        let blocks = range.start..end;
        let admitted = match admits {
            Some(admits) => self.begin_admission(first, &blocks, &slot_ref, admits),
            None => None,
        };
        let data = match &admitted {
            Some(admitted) => admitted.data.all().into(),
            None => bio.bufs.slice(blocks.start * size..blocks.end * size),
        };
        let io = match slot_ref.first() {
            Some((hit, _)) => reactor::read(
                &*self.store.device,
                bio.class,
                self.store.slot_sector(hit.slot),
                data,
            ),
            None => {
                let at = self.store.sector_of(first + blocks.start as u64);
                self.writeback.origin.last_read_ns.set(Some(reactor::now().0));
                reactor::read(self.origin(), bio.class, at, data)
            }
        };
        Ok(Piece { blocks, slot_ref, admitted, io })
    }

    /// For the read cache: counts the uses of blocks that are in the cache, or begins the admission
    /// of others.
    #[cold]
    fn begin_admission(
        &self,
        first: u64,
        blocks: &Range<usize>,
        slot_ref: &[(SlotRef, Option<u32>)],
        admits: bool,
    ) -> Option<Box<AdmittedRead>> {
        let read_cache = &self.writeback.read_cache;
        if !slot_ref.is_empty() {
            slot_ref.iter().for_each(|(found, _)| read_cache.count_use(found.slot));
            return None;
        }
        if !admits {
            self.store.stats.read_refused_sequential.add(blocks.len() as u64);
            return None;
        }
        let blocks = first + blocks.start as u64..first + blocks.end as u64;
        self.writeback.begin_admission(blocks).map(Box::new)
    }

    /// Handles a version that does not match its checksum. A clean one is dropped, and the caller
    /// reads the block again. A dirty one is lost: reads of the block fail until it is written
    /// again.
    async fn drop_rotten(&self, block: u64, slot_ref: SlotRef) -> Result<(), Status> {
        self.store.reserve_unlogged(1).await;
        if self.writeback.drop_rotten(block, slot_ref) { Err(Status::Checksum) } else { Ok(()) }
    }

    /// Reads one block again, until its version stayed in its slot for the whole read, or the block
    /// stayed out of the cache (WC-R1) and no filled write over it failed (WC-SP2). It repeats only
    /// if meanwhile a newer version was written, an unreadable version was dropped or became bad,
    /// or a filled write has failed.
    ///
    /// Returns the version that it read; `None` if it was the origin's.
    pub(crate) async fn reread(
        &self,
        class: Class,
        block: u64,
        data: Bufs,
    ) -> Result<Option<SlotRef>, Status> {
        loop {
            let found = self.store.slots.borrow().find(block);
            let Some(found) = found else {
                let (at, failed_fills) =
                    (self.store.sector_of(block), self.writeback.fills.failed());
                let read = reactor::read(self.origin(), class, at, data.clone()).await;
                if self
                    .writeback
                    .fills
                    .must_reread(block..block + 1, failed_fills, &self.store)
                    .await
                {
                    continue;
                }
                read?;
                if self.store.slots.borrow().find(block).is_none() {
                    return Ok(None);
                }
                continue;
            };
            if found.state == State::Zero {
                data.zero();
                return Ok(Some(found.slot_ref));
            }
            if !Self::is_readable(found.state) {
                return Err(Status::Checksum);
            }
            if self.read_buffered(found.slot_ref.slot, &data) {
                return Ok(Some(found.slot_ref));
            }
            let at = self.store.slot_sector(found.slot_ref.slot);
            let read = reactor::read(&*self.store.device, class, at, data.clone()).await;
            if self.store.slots.borrow().is_intact(found.slot_ref) {
                if let Err(status) = read {
                    self.store.reserve_unlogged(1).await;
                    self.writeback.cache_read_failed(block, found.slot_ref, status);
                    continue;
                }
                if self.is_sound(&data, 0, found.crc) {
                    return Ok(Some(found.slot_ref));
                }
                self.drop_rotten(block, found.slot_ref).await?;
            }
        }
    }

    #[inline]
    fn is_in_buffer(&self, slots: &Slots, slot: u32) -> bool {
        slots.place_of(slot).is_some() && !self.store.has_fault(Fault::ReadPastBuffer)
    }

    /// Reads a block of the write buffer; returns false if it is not there.
    fn read_buffered(&self, slot: u32, data: &Bufs) -> bool {
        if self.store.has_fault(Fault::ReadPastBuffer) {
            return false;
        }
        let Some(buffered) = self.store.buffered(slot) else { return false };
        buffered.read(|block| data.put_at(0, block));
        true
    }

    /// Whether a found block can be served from the cache.
    fn is_readable(state: State) -> bool {
        matches!(state, State::Dirty | State::Clean)
    }
}
