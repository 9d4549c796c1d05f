// SPDX-License-Identifier: Apache-2.0 OR MIT
//! Writes through the cache (`cache_mode writethrough`): a write of a block that the cache still
//! holds goes to the origin, durably, before the block leaves the cache.
//!
//! ```text
//!   write ─┬─ the block is not dirty ─▶ around the cache (`write_around`)
//!          └─ it is: no merge ─▶ lock ─▶ commit, if the log calls the block clean
//!                     ─▶ origin write ─▶ origin flush ─▶ drop ─▶ unlock ─▶ commit
//! ```
//!
//! After an error of the origin, or a crash, the block is still in the cache with its old data,
//! which are written back as usual.
//!
//! Invariants
//! - WC-T1 When such a write ends neither the map nor the log has an older version of its blocks: a
//!   process that is killed afterwards finds the new data on the origin, and leaves them there.
//! - WC-T2 A dirty version is dropped only after an origin flush that began after the write of its
//!   successor had completed. Until then the version is the only one that is durable.
//! - WC-T3 The write of a part of a block drops exactly the version into which it was merged.
//!
//! Cost of a write over a dirty block: one write and one flush of the origin, and one commit; a
//! second one if the log calls an older version of the block clean. Each block costs this once at
//! most: afterwards writes of it go around the cache.
use std::ops::Range;

use block::{Buf, Bufs, Class, Flags, Sector, Status};

use super::Writer;
use crate::config::CacheMode;
use crate::map::SlotRef;
use crate::planted::Fault;
use crate::store::media::CHANGES_AT_ONCE_MAX;

impl Writer {
    /// Whether a write ends only when the origin has accepted it.
    pub(crate) fn writes_through(&self) -> bool {
        self.store.tuning().cache_mode == CacheMode::Writethrough && !self.store.config.ordered
    }

    /// Writes blocks over what the cache holds of them. Returns false, and writes nothing, if none
    /// of them is dirty any more.
    pub(super) async fn write_over_dirty(
        &self,
        range: &Range<u64>,
        data: Bufs,
        class: Class,
        flags: Flags,
    ) -> Result<bool, Status> {
        // As for a discard (WC-MG3): a merge would bring back the other sectors. Before the lock,
        // for which a merge may wait.
        let _no_merges = match self.store.has_fault(Fault::ThroughBesideMerge) {
            true => None,
            false => Some(self.merges.block_merges(range.clone()).await),
        };
        let locks = !self.store.has_fault(Fault::ThroughUnlocked);
        if locks {
            self.writeback.locks.lock(range.clone(), &self.store).await?;
        }
        let written = if range.clone().any(|block| self.must_cache(block)) {
            let live = self.store.slots.borrow().live_in(range.clone());
            self.supersede_on_origin(range, &live, data, class, flags).await.map(|()| true)
        } else {
            Ok(false)
        };
        if locks {
            self.writeback.locks.unlock(range, &self.store);
        }
        self.end_through(written).await
    }

    /// Writes sectors of one block over the version that the cache holds, and the rest of that
    /// version with them; without `part` the version as it is. Returns false, and writes nothing,
    /// if the block is not dirty any more.
    pub(super) async fn write_part_over_dirty(
        &self,
        block: u64,
        part: Option<(Sector, &Bufs)>,
        class: Class,
    ) -> Result<bool, Status> {
        let _turn = self.merges.begin(block).await;
        let range = block..block + 1;
        self.writeback.locks.lock(range.clone(), &self.store).await?;
        let written = self.write_version(block, part, class).await;
        self.writeback.locks.unlock(&range, &self.store);
        self.end_through(written).await
    }

    /// The block is locked, and no merge of it runs.
    async fn write_version(
        &self,
        block: u64,
        part: Option<(Sector, &Bufs)>,
        class: Class,
    ) -> Result<bool, Status> {
        let range = block..block + 1;
        let whole = Buf::alloc(self.store.block_bytes());
        while self.must_cache(block) {
            // An unreadable version ends the write in an error, as it does a merge (WC-MG4).
            let read = self.reader.reread(class, block, whole.all().into()).await?;
            let newest = self.store.slots.borrow().find(block).map(|found| found.slot_ref);
            let Some(version) = read.filter(|_| read == newest) else { continue };
            if let Some((at, data)) = part {
                let start = super::merge::bytes(at - self.store.sector_of(block));
                whole.write(|b| data.take_at(0, &mut b[start..start + data.len_bytes()]));
            }
            let (live, data) = ([(block, version)], whole.all().into());
            self.supersede_on_origin(&range, &live, data, class, Flags::empty()).await?;
            return Ok(true);
        }
        Ok(false)
    }

    /// Writes `data` to the origin in place of the versions `live`, durably, and then drops these.
    /// A newer version stays. The range is locked.
    async fn supersede_on_origin(
        &self,
        range: &Range<u64>,
        live: &[(u64, SlotRef)],
        data: Bufs,
        class: Class,
        flags: Flags,
    ) -> Result<(), Status> {
        let early = self.store.has_fault(Fault::ThroughBeforeCommit);
        for part in live.chunks(CHANGES_AT_ONCE_MAX) {
            self.store.reserve_unlogged(part.len()).await;
            let mut slots = self.store.slots.borrow_mut();
            // If the write fails they are what counts.
            part.iter().for_each(|&(block, slot_ref)| slots.make_dirty(block, slot_ref));
        }
        // As WC-WB3: while the log calls a block clean, the origin may not change.
        let is_logged = || {
            let slots = self.store.slots.borrow();
            !self.store.commits.is_running() && !slots.any_needs_logging(range)
        };
        if !is_logged() && !early {
            self.store.commit().await?;
        }
        self.store.health()?; // a commit that has failed logs nothing any more
        let flush_errors = self.writeback.origin_flush_errors();
        let at = self.store.sector_of(range.start);
        // The flush makes it durable.
        self.write_origin(at, data, class, flags - Flags::FUA).await?;
        if !self.store.has_fault(Fault::ThroughBeforeFlush) {
            self.writeback.flush_origin(class, flush_errors).await?; // WC-T2
        }
        for part in live.chunks(CHANGES_AT_ONCE_MAX) {
            self.store.reserve_unlogged(part.len()).await;
            let mut slots = self.store.slots.borrow_mut();
            for &(block, slot_ref) in part {
                let newest = || slots.find(block).map(|found| found.slot_ref);
                let any = self.store.has_fault(Fault::ThroughDropsNewer).then(newest).flatten();
                slots.drop_block(block, any.unwrap_or(slot_ref)); // WC-T3
            }
        }
        Ok(())
    }

    /// The range is unlocked.
    async fn end_through(&self, written: Result<bool, Status>) -> Result<bool, Status> {
        self.writeback.forget_failures();
        self.store.waits.blocks_changed();
        if written? && !self.store.has_fault(Fault::ThroughDropUnlogged) {
            self.store.commit().await?; // WC-T1
        }
        written
    }

    /// Blocks have entered the cache by a write that has begun before the switch to writethrough:
    /// brings them to the origin.
    #[cold]
    pub(super) async fn write_begun_through(
        &self,
        blocks: Range<u64>,
        class: Class,
    ) -> Result<(), Status> {
        if !self.store.has_fault(Fault::ThroughLeavesBegun) {
            for block in blocks {
                self.write_part_over_dirty(block, None, class).await?;
            }
        }
        Ok(())
    }
}
