// SPDX-License-Identifier: Apache-2.0 OR MIT
//! Writes: to free slots of the cache device, in runs, or to the write buffer (`buffered`); then
//! the map; then, for FUA, a commit.
//!
//! Cost of a 4 KiB write past the buffer: one write of the cache device, shared with its neighbours
//! in a larger bio. FUA adds a commit: one record write and one flush, shared with concurrent
//! commits.
mod buffered;
mod merge;
mod one_block;
mod write_around;
mod write_through;

use std::cell::RefCell;
use std::ops::Range;
use std::rc::Rc;

use block::{Bio, Bufs, Class, Flags, Nanos, Op, Sector, Status};
use policy::Streams;
use reactor::BioFuture;
use smallvec::SmallVec;

use self::merge::Merges;
pub(crate) use self::one_block::{BlockStart, BlockWrite};
use crate::config::{Mode, ZEROES_CACHED_BYTES_MAX};
use crate::map::Replaced;
use crate::planted::Fault;
use crate::reader::Reader;
use crate::store::Store;
use crate::store::media::CHANGES_AT_ONCE_MAX;
use crate::writeback::Writeback;

/// Most runs of slots of one bio that are in flight at once.
const PIECES_MAX: usize = 32;

/// Most cached blocks that one range of zeroes replaces at once. Chosen: no other task of the core
/// runs meanwhile.
const ZEROED_TOGETHER: usize = 1 << 16;

/// A piece of a bio that is written to a run of slots.
struct WritePiece {
    /// Blocks of the bio, counted from its first.
    blocks: Range<usize>,
    slots: Range<u32>,
    io: BioFuture,
}

/// Handles the changes of one cache: writes, zeroes and discards.
pub(crate) struct Writer {
    store: Rc<Store>,
    writeback: Rc<Writeback>,
    pub(crate) reader: Reader,
    merges: Merges,
    /// Writes in order, of each opener.
    streams: RefCell<Streams>,
}

impl Writer {
    pub(crate) fn new(writeback: Rc<Writeback>) -> Writer {
        Writer {
            store: writeback.store.clone(),
            reader: Reader::new(writeback.clone()),
            writeback,
            merges: Merges::default(),
            streams: RefCell::default(),
        }
    }

    pub(crate) async fn write(&self, bio: &Bio) -> Result<(), Status> {
        let around = self.goes_around(bio.flags);
        self.write_data(bio.sector, &bio.bufs, bio.class, bio.flags, around).await
    }

    /// A write that goes around the cache as a part of a long stream.
    pub(crate) async fn write_stream(&self, bio: &Bio) -> Result<(), Status> {
        self.write_data(bio.sector, &bio.bufs, bio.class, bio.flags, true).await
    }

    async fn write_data(
        &self,
        sector: Sector,
        bufs: &Bufs,
        class: Class,
        flags: Flags,
        around: bool,
    ) -> Result<(), Status> {
        self.store.health()?;
        let first = sector.0 / self.store.config.block_sectors();
        let bytes = bufs.len_bytes();
        self.store.stats.writes.add((bytes / self.store.block_bytes()) as u64);
        let mut through_cache = true;
        if around {
            through_cache = self.write_around_or_through(first, bufs, class, flags).await?;
        } else if self.is_buffered(bytes, flags) {
            self.write_buffered(first, bufs, class).await?;
        } else {
            self.write_to_slots(first, bufs, class).await?;
        }
        if through_cache && flags.contains(Flags::FUA) && !self.store.has_fault(Fault::IgnoreFua) {
            self.commit_fua().await?;
        }
        Ok(())
    }

    /// Makes a FUA write durable that has entered the map.
    pub(crate) async fn commit_fua(&self) -> Result<(), Status> {
        if !self.store.has_fault(Fault::NoEpochAtFua) {
            self.store.slots.borrow_mut().close_epoch(); // WC-E1
        }
        self.store.commit().await
    }

    /// Writes blocks to free slots, and then enters them into the map.
    async fn write_to_slots(&self, first: u64, bufs: &Bufs, class: Class) -> Result<(), Status> {
        let size = self.store.block_bytes();
        let count = bufs.len_bytes() / size;
        self.pace(count).await;
        let mut done = 0;
        while done < count {
            self.wait_for_slot().await?;
            let mut parts = SmallVec::<[WritePiece; 2]>::new();
            while done < count && parts.len() < PIECES_MAX {
                let max = u32::try_from(count - done).unwrap_or(u32::MAX);
                let Some(slots) = self.store.slots.borrow_mut().allocate(max) else { break };
                let blocks = done..done + slots.len();
                done = blocks.end;
                let data = bufs.slice(blocks.start * size..blocks.end * size);
                let at = self.store.slot_sector(slots.start);
                let io = reactor::write(&*self.store.device, Flags::empty(), class, at, data);
                parts.push(WritePiece { blocks, slots, io });
            }
            if self.store.has_fault(Fault::RecordBeforeData) {
                for part in &parts {
                    self.install(first, &part.blocks, &part.slots, bufs);
                }
            }
            let mut outcome = Ok(());
            let mut first_change = false;
            // By reference: a part is large to move.
            for part in &mut parts {
                let written = (&mut part.io).await;
                if self.store.has_fault(Fault::RecordBeforeData) {
                    continue;
                }
                if written.is_err() {
                    // No block refers to these slots: the blocks keep their old versions.
                    part.slots.clone().for_each(|slot| self.store.slots.borrow_mut().abandon(slot));
                    outcome = outcome.and(written);
                    continue;
                }
                for from in (0..part.blocks.len()).step_by(CHANGES_AT_ONCE_MAX) {
                    let to = (from + CHANGES_AT_ONCE_MAX).min(part.blocks.len());
                    let at = part.blocks.start;
                    let slot = |n: usize| part.slots.start + u32::try_from(n).expect("a part");
                    self.store.reserve_unlogged(to - from).await;
                    let c = self.store.counts();
                    first_change |= c.unlogged == 0 || c.dirty == 0;
                    self.install(first, &(at + from..at + to), &(slot(from)..slot(to)), bufs);
                    if self.merges.any() {
                        self.merges.overtake(first + (at + from) as u64..first + (at + to) as u64);
                    }
                }
            }
            if self.wake_after_changes(first_change, outcome) {
                let from = parts.first().map_or(done, |part| part.blocks.start);
                let begun = first + from as u64..first + done as u64;
                outcome = outcome.and(Box::pin(self.write_begun_through(begun, class)).await);
            }
            outcome?;
        }
        Ok(())
    }

    /// Wakes what waits for changes of the map. Returns whether blocks that were written in the
    /// cache must go to the origin, too: while the cache is emptied.
    #[inline]
    fn wake_after_changes(&self, first_change: bool, outcome: Result<(), Status>) -> bool {
        if outcome.is_err() || self.writeback.has_work() {
            self.store.waits.blocks_changed();
            // While the cache is emptied every dirty block is work.
            return self.writes_through();
        }
        if first_change {
            self.store.waits.first_change.wake_all();
        }
        false
    }

    /// Slows the writer down as the cache fills, to the rate at which writeback frees blocks.
    pub(crate) async fn pace(&self, blocks: usize) {
        // Without writeback, waiting would free no slot.
        if self.writeback.is_busy() {
            self.slow_down(blocks).await;
        }
    }

    async fn slow_down(&self, blocks: usize) {
        let (free, pending) = (u64::from(self.store.free_blocks()), self.writeback.pending());
        let now = reactor::now().0;
        let delay =
            self.writeback.pacing.pacer.borrow_mut().delay_ns(blocks as u64, free, pending, now);
        if delay > 0 {
            self.store.stats.throttled_ns.add(delay);
            reactor::sleep(Nanos(delay)).await;
        }
    }

    pub(crate) fn install(
        &self,
        first: u64,
        blocks: &Range<usize>,
        slots: &Range<u32>,
        bufs: &Bufs,
    ) {
        for (index, slot) in blocks.clone().zip(slots.clone()) {
            let block = first + index as u64;
            let crc = self.store.checksum_of(bufs, index);
            self.install_block(block, slot, crc);
        }
    }

    /// Enters a version of a block into the map.
    #[inline(always)]
    fn install_block(&self, block: u64, slot: u32, crc: u32) {
        let mut map = self.store.slots.borrow_mut();
        let forgotten =
            self.store.has_fault(Fault::CompletionOrder) && map.is_overtaken(block, slot);
        match map.install(block, slot, crc) {
            Replaced::Committed => {
                self.store.stats.write_hits_committed.add(1);
                // Counted like the kernel, whose mode s overwrites the block in place.
                let is_new = self.store.config.mode == Mode::Pmem;
                self.store.stats.writes_allocated.add(u64::from(is_new));
            }
            Replaced::Uncommitted => self.store.stats.write_hits_uncommitted.add(1),
            Replaced::Nothing => self.store.stats.writes_allocated.add(1),
        }
        map.mark_oldest(reactor::loop_time);
        if forgotten {
            map.forget_unlogged(block);
        }
        if self.store.has_fault(Fault::TwoWritesInFlight) {
            self.writeback.locks.unlock(&(block..block + 1), &self.store);
        }
        self.writeback.pacing.installs.set(self.writeback.pacing.installs.get() + 1);
        if self.store.has_fault(Fault::ReuseBeforeCommit) {
            map.free_limbo_at_once();
        }
    }

    /// Waits until there is a free slot, or the cache has failed.
    pub(crate) async fn wait_for_slot(&self) -> Result<(), Status> {
        if !self.store.changes_begun.get() {
            self.store.begin_changes().await?;
        }
        if self.store.counts().free == 0 {
            self.wait_starved().await?;
        }
        self.store.health()
    }

    /// Waits in a cache that has no free slot.
    async fn wait_starved(&self) -> Result<(), Status> {
        self.store.stats.writes_blocked.add(1);
        self.writeback.pacing.starved_writers.set(self.writeback.pacing.starved_writers.get() + 1);
        self.store.waits.blocks_changed();
        // No slot becomes free: the blocks are unreadable, or the origin refuses them.
        let stuck = || {
            let c = self.store.counts();
            let stuck = c.dirty + c.old + c.zero + c.bad == c.slots;
            // In order one block delays all others.
            let dirty = c.dirty + c.zero;
            let dirty = if self.store.config.ordered { dirty.min(1) } else { dirty };
            stuck && self.writeback.retry.is_stuck(u64::from(dirty))
        };
        // The origin may work again: blocks that wait for their next try are written now.
        if stuck() && self.writeback.retry.retry_now() {
            self.writeback.recheck();
        }
        let over = || self.store.health().is_err() || (stuck() && !self.writeback.is_retrying());
        self.store.waits.free_slots.wait_for(|| self.store.counts().free > 0 || over()).await;
        self.writeback.pacing.starved_writers.set(self.writeback.pacing.starved_writers.get() - 1);
        if self.store.counts().free == 0 && stuck() {
            let no_slot = self.store.counts().bad == self.store.counts().slots;
            return Err(if no_slot { Status::NoSpace } else { Status::Io });
        }
        Ok(())
    }

    /// Handles DISCARD, and WRITE_ZEROES of a long range: changes the origin first, durably; then
    /// the blocks leave the cache. After a crash in between they are still in the cache, with their
    /// old data.
    ///
    /// Cost: one request and one flush of the origin, and a commit if the log calls any of the
    /// blocks clean.
    pub(crate) async fn clear(&self, bio: &Bio) -> Result<(), Status> {
        self.store.health()?;
        if !self.store.changes_begun.get() {
            self.store.begin_changes().await?;
        }
        let sectors = self.store.config.block_sectors();
        let range = bio.sector.0 / sectors..bio.end().0 / sectors;
        // WC-I4: no origin write of these blocks is in flight, and none begins.
        let locks = !self.store.has_fault(Fault::ClearUnlocked);
        // WC-MG3, and before the lock, for which a merge may wait.
        let _no_merges = match self.store.has_fault(Fault::ClearBesideMerge) {
            true => None,
            false => Some(self.merges.block_merges(range.clone()).await),
        };
        if locks {
            self.writeback.locks.lock(range.clone(), &self.store).await?;
        }
        let cleared = self.clear_locked(bio, &range).await;
        if locks {
            self.writeback.locks.unlock(&range, &self.store);
        }
        self.writeback.forget_failures();
        self.store.waits.blocks_changed();
        match cleared {
            // An origin without discard is no error: a discard may do nothing.
            Err(Status::NotSupported) if bio.op == Op::Discard => return Ok(()),
            other => other?,
        }
        if bio.flags.contains(Flags::FUA) || self.writes_through() {
            self.store.commit().await?; // WC-T1
        }
        Ok(())
    }

    async fn clear_locked(&self, bio: &Bio, range: &Range<u64>) -> Result<(), Status> {
        let live = self.store.slots.borrow().live_in(range.clone());
        for part in live.chunks(CHANGES_AT_ONCE_MAX) {
            self.store.reserve_unlogged(part.len()).await;
            let mut slots = self.store.slots.borrow_mut();
            if !self.store.has_fault(Fault::StaleClean) {
                part.iter().for_each(|&(block, slot_ref)| slots.make_dirty(block, slot_ref));
            }
        }
        // As WC-WB3: while the log calls a block clean, the origin may not change.
        if self.store.commits.is_running() || self.store.slots.borrow().any_needs_logging(range) {
            self.store.commit().await?;
        }
        self.store.health()?; // a commit that has failed logs nothing any more
        self.clear_origin(bio).await?;
        for part in live.chunks(CHANGES_AT_ONCE_MAX) {
            self.store.reserve_unlogged(part.len()).await;
            let mut slots = self.store.slots.borrow_mut();
            for &(block, slot_ref) in part {
                slots.drop_block(block, slot_ref); // a newer version stays
            }
            if self.store.has_fault(Fault::DiscardUnlogged) {
                slots.forget_drops();
            }
        }
        if bio.op == Op::Discard {
            self.store.stats.discards.add(live.len() as u64);
        }
        Ok(())
    }

    /// Writes zeroes to a short range as data. After a crash each block is either zero or old.
    pub(crate) async fn write_zero_blocks(&self, bio: &Bio) -> Result<(), Status> {
        let bytes = usize::try_from(bio.len.bytes()).expect("at most ZEROES_CACHED_BYTES_MAX");
        let zero = block::Buf::zeroed(bytes);
        let around = self.goes_around(bio.flags);
        self.write_data(bio.sector, &zero.all().into(), bio.class, bio.flags, around).await
    }

    /// Handles WRITE_ZEROES with epochs. A long range enters the map as zeroes, and the origin gets
    /// it in the order of epochs. A short range is written as data, and so is a long one if the map
    /// has no room for another range.
    ///
    /// Cost of a long one: a slot, and an entry of the next commit.
    pub(crate) async fn write_zeroes_in_order(&self, bio: &Bio) -> Result<(), Status> {
        let mut at = bio.sector;
        if bio.len.bytes() > self.store.config.zeroes_as_data_max_bytes {
            let sectors = self.store.config.block_sectors();
            let range = bio.sector.0 / sectors..bio.end().0 / sectors;
            at = self.store.sector_of(self.keep_zeroes(range).await?);
            if at == bio.end() && bio.flags.contains(Flags::FUA) {
                self.commit_fua().await?;
            }
        }
        while at < bio.end() {
            let bytes = (bio.end() - at).bytes().min(ZEROES_CACHED_BYTES_MAX);
            let zero = block::Buf::zeroed(usize::try_from(bytes).expect("at most 64 KiB"));
            let next = at + Sector::from_bytes(bytes);
            // The last commit covers all pieces.
            let flags = if next < bio.end() { bio.flags - Flags::FUA } else { bio.flags };
            self.write_data(at, &zero.all().into(), bio.class, flags, false).await?;
            at = next;
        }
        Ok(())
    }

    /// Enters zeroes into the map. Returns the end of the range that it has entered: the map has
    /// room for a limited number of ranges.
    async fn keep_zeroes(&self, range: Range<u64>) -> Result<u64, Status> {
        self.store.health()?;
        let mut at = range.start;
        while at < range.end && self.store.slots.borrow().has_room_for_zeroes() {
            self.wait_for_slot().await?;
            let Some(slots) = self.store.slots.borrow_mut().allocate(1) else { continue };
            self.store.reserve_unlogged(1).await;
            let slot = slots.start;
            let longest = range.end.min(at + u64::from(u32::MAX));
            let Some(end) = self.install_zeroes(at..longest, slot) else { break };
            if self.store.has_fault(Fault::ZeroesAtOnce) {
                self.writeback
                    .zero_origin(self.store.sector_of(at), self.store.sector_of(end - at))
                    .await?;
            }
            self.store.stats.writes.add(end - at);
            self.store.stats.zeroes_installed.add(1);
            self.writeback.pacing.installs.set(self.writeback.pacing.installs.get() + 1);
            self.store.waits.blocks_changed();
            at = end;
        }
        self.store.waits.blocks_changed();
        Ok(at)
    }

    /// Returns the end of the zeroes; `None` if the map has no room for another range.
    fn install_zeroes(&self, range: Range<u64>, slot: u32) -> Option<u64> {
        let mut map = self.store.slots.borrow_mut();
        if !map.has_room_for_zeroes() {
            map.abandon(slot);
            return None;
        }
        let end = map.install_zeroes(range, slot, ZEROED_TOGETHER);
        if self.store.has_fault(Fault::ReadIgnoresZeroes) {
            map.forget_zero_ranges();
        }
        Some(end)
    }

    async fn clear_origin(&self, bio: &Bio) -> Result<(), Status> {
        let (at, len) = (bio.sector, bio.len);
        let origin = &*self.writeback.origin.device;
        let flush_errors = self.writeback.origin_flush_errors();
        let asked = match bio.op {
            Op::Discard => reactor::discard(origin, bio.class, at, len).await,
            Op::WriteZeroes => reactor::write_zeroes(origin, bio.flags, bio.class, at, len).await,
            Op::Read | Op::Write | Op::Flush => unreachable!("only called for these two"),
        };
        match asked {
            Err(Status::NotSupported) if bio.op == Op::WriteZeroes => {
                self.writeback.write_zeroes_by_hand(at, len, bio.class).await?;
            }
            outcome => outcome?,
        }
        self.writeback.flush_origin(bio.class, flush_errors).await
    }
}
