// SPDX-License-Identifier: Apache-2.0 OR MIT
//! Writes around the cache: they go to the origin, and an origin flush makes them durable.
//!
//! ```text
//!   write ─┬─ the cache must keep the block ─▶ the cache, as usual
//!          └─ else: lock the range ─▶ drop clean copies ─▶ commit ─▶ one origin write ─▶ unlock
//!
//!   FLUSH ─▶ commit ─▶ one origin flush, if a write has gone around since the last
//! ```
//!
//! Invariants
//! - Of WC-I4: a block is written around only while its range is locked, the map has no entry of
//!   it, and the log neither. Otherwise a read, or recovery, would find that entry instead.
//! - WC-A1 A FLUSH that begins after a write around has completed ends after an origin flush that
//!   began after it. There is no other copy of the data: if a flush of the origin fails meanwhile
//!   they may be lost, and the cache fails stop (WC-I8). A write that is still in flight then ends
//!   with an error: it was not acknowledged.
//!
//! Cost of a write around: one write of the origin; a commit before it if the cache has a clean
//! copy, or a commit is in progress.
use std::ops::Range;

use block::{Bio, Bufs, Class, Flags, Sector, Status};

use super::Writer;
use crate::map::State;
use crate::planted::Fault;
use crate::store::media::CHANGES_AT_ONCE_MAX;

impl Writer {
    /// Whether a write with these flags goes around the cache. Not with `ordered`: a write around
    /// is not in the order of epochs.
    pub(crate) fn goes_around(&self, flags: Flags) -> bool {
        let t = self.store.tuning();
        let around =
            self.writeback.is_emptied() || (t.metadata_only && !flags.contains(Flags::META));
        around && !self.store.config.ordered
    }

    /// Whether a write of whole blocks goes on with a stream of writes in order that is longer than
    /// the cutoff. To be asked once about each write.
    pub(crate) fn is_long_stream(&self, bio: &Bio) -> bool {
        let cutoff = self.store.tuning().sequential_write_cutoff;
        cutoff > 0 && self.bytes_of_stream(bio) > cutoff
    }

    #[cold]
    fn bytes_of_stream(&self, bio: &Bio) -> u64 {
        let sectors = self.store.config.block_sectors();
        let blocks = bio.sector.0 / sectors..bio.end().0.div_ceil(sectors);
        let run = self.streams.borrow_mut().run_of(bio.opener.0, &blocks);
        run.saturating_mul(self.store.block_bytes() as u64)
    }

    /// Whether a write of this block must not go around the cache nevertheless: the block is dirty
    /// there. A clean copy is updated too, unless the cache is being emptied.
    pub(super) fn must_cache(&self, block: u64) -> bool {
        let Some(found) = self.store.slots.borrow().find(block) else { return false };
        match found.state {
            State::Dirty | State::Bad | State::Zero => {
                !self.store.has_fault(Fault::AroundBesideLive)
            }
            State::Clean => !self.writeback.is_emptied(),
            State::Free | State::Writing | State::Old | State::Limbo => {
                unreachable!("WC-M2: in the index")
            }
        }
    }

    /// The blocks from `range.start` on that may be written around the cache.
    fn uncached_part(&self, range: &Range<u64>) -> Range<u64> {
        let end = range.clone().find(|&b| self.must_cache(b)).unwrap_or(range.end);
        range.start..end
    }

    /// Writes blocks around the cache, except those that are dirty there: these are written in the
    /// cache, or on the origin too (`write_through`). Returns whether any was written in the cache.
    pub(crate) async fn write_around_or_through(
        &self,
        first: u64,
        bufs: &Bufs,
        class: Class,
        flags: Flags,
    ) -> Result<bool, Status> {
        let size = self.store.block_bytes();
        let end = first + (bufs.len_bytes() / size) as u64;
        let part_of = |range: &Range<u64>| {
            let at = |block: u64| usize::try_from(block - first).expect("within the bio") * size;
            bufs.slice(at(range.start)..at(range.end))
        };
        let mut through_cache = false;
        let mut at = first;
        while at < end {
            let around = self.uncached_part(&(at..end));
            if !around.is_empty() {
                let data = part_of(&around);
                at = self.write_around(around, Sector::ZERO, &data, class, flags).await?;
                continue;
            }
            let kept = (at..end).find(|&b| !self.must_cache(b)).unwrap_or(end);
            let over = at..kept.max(at + 1);
            if self.writes_through() {
                if self.write_over_dirty(&over, part_of(&over), class, flags).await? {
                    at = over.end;
                }
                continue;
            }
            self.write_to_slots(over.start, &part_of(&over), class).await?;
            through_cache = true;
            at = over.end;
        }
        Ok(through_cache)
    }

    /// Writes sectors of one block around the cache, if the block may be. Returns whether it did.
    pub(crate) async fn write_part_around(
        &self,
        block: u64,
        at: Sector,
        data: &Bufs,
        class: Class,
        flags: Flags,
    ) -> Result<bool, Status> {
        let range = block..block + 1;
        loop {
            while !self.must_cache(block) {
                let skip = at - self.store.sector_of(block);
                if self.write_around(range.clone(), skip, data, class, flags).await? == range.end {
                    return Ok(true);
                }
            }
            if !self.writes_through() {
                self.merge_sectors(block, at, data, class).await?;
                return Ok(false);
            }
            if self.write_part_over_dirty(block, Some((at, data)), class).await? {
                return Ok(true);
            }
        }
    }

    /// Writes `data` to the origin, from `skip` sectors after the beginning of `range` on. Returns
    /// the end of the blocks that it has written: it stops at a block that has entered the cache
    /// meanwhile.
    async fn write_around(
        &self,
        range: Range<u64>,
        skip: Sector,
        data: &Bufs,
        class: Class,
        flags: Flags,
    ) -> Result<u64, Status> {
        // WC-I4: no origin write of these blocks is in flight, and none begins.
        self.writeback.locks.lock(range.clone(), &self.store).await?;
        let written = self.write_locked(&range, skip, data, class, flags).await;
        self.writeback.locks.unlock(&range, &self.store);
        self.store.waits.blocks_changed();
        written
    }

    async fn write_locked(
        &self,
        range: &Range<u64>,
        skip: Sector,
        data: &Bufs,
        class: Class,
        flags: Flags,
    ) -> Result<u64, Status> {
        let part = self.uncached_part(range);
        self.retire_durably(&part).await?;
        // WC-I4. No block of a locked range becomes clean or leaves the cache. So a block that is
        // not in the cache now is not in the log either.
        let part = self.uncached_part(&part);
        if part.is_empty() {
            return Ok(part.end);
        }
        let blocks = usize::try_from(part.end - part.start).expect("within the bio");
        let data = data.slice(0..data.len_bytes().min(blocks * self.store.block_bytes()));
        let at = self.store.sector_of(part.start) + skip;
        let flush_errors = self.writeback.origin_flush_errors();
        // The cache does not fail: the writer gets the error.
        self.write_origin(at, data, class, flags).await?;
        // WC-RT2. A flush of the origin that failed meanwhile may have lost the data.
        if self.writeback.origin_flush_errors() != flush_errors
            && !self.store.has_fault(Fault::AroundBesideFlushError)
        {
            return Err(Status::Io);
        }
        let a = &self.writeback.origin.around;
        a.completed.set(a.completed.get() + 1);
        Ok(part.end)
    }

    /// One write of the origin for a client.
    pub(super) async fn write_origin(
        &self,
        at: Sector,
        data: Bufs,
        class: Class,
        flags: Flags,
    ) -> Result<(), Status> {
        let blocks = data.len_bytes().div_ceil(self.store.block_bytes());
        self.store.stats.writes_around.add(blocks as u64);
        let a = &self.writeback.origin.around;
        a.in_flight.set(a.in_flight.get() + 1);
        let outcome = reactor::write(&*self.writeback.origin.device, flags, class, at, data).await;
        a.in_flight.set(a.in_flight.get() - 1);
        a.last_ended.set(Some(reactor::now()));
        outcome
    }

    /// Drops clean copies of the range, and waits until the log has no block of it.
    async fn retire_durably(&self, range: &Range<u64>) -> Result<(), Status> {
        if range.is_empty() || self.store.has_fault(Fault::AroundBesideLive) {
            return Ok(());
        }
        let live = self.store.slots.borrow().live_in(range.clone());
        for part in live.chunks(CHANGES_AT_ONCE_MAX) {
            self.store.reserve_unlogged(part.len()).await;
            let mut slots = self.store.slots.borrow_mut();
            part.iter().for_each(|&(block, slot_ref)| {
                slots.drop_clean(block, slot_ref);
            });
        }
        let needs_logging = || self.store.slots.borrow().any_needs_logging(range);
        if (self.store.commits.is_running() || needs_logging())
            && !self.store.has_fault(Fault::AroundBeforeDrop)
        {
            self.store.commit().await?;
        }
        // After a commit that failed the log may still have a block that needs no logging here.
        self.store.health()
    }
}
