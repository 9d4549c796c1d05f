// SPDX-License-Identifier: Apache-2.0 OR MIT
//! Merge: a write of less than a block merges its sectors into the block's newest version.
//!
//! ```text
//!   read   |....rrrr|rrrrrrrr|rr......|   one read of the whole blocks; the edges go to scratch
//!   write  |....wwww|wwwwwwww|ww......|   the edges are merged, the middle is a plain write
//!
//!   merge: block's turn ─▶ free slot ─▶ read the version ─▶ put the sectors in ─▶ write the slot
//!            ▲                                                                       │
//!            └── another version now: again ◀──── compare ───▶ the same: into the map
//! ```
//!
//! A write around the cache needs no merge if the origin can write single sectors.
//!
//! Invariants
//! - WC-MG1 A merged version enters the map only if the version that it was made from is still the
//!   newest. A block that is not in the cache is locked against origin writes (WC-WB1) from before
//!   it is read until then; a block that has left the cache meanwhile is merged again.
//! - WC-MG2 One merge of a block runs at a time. If a write of the whole block enters the map
//!   meanwhile, it has overtaken the merge: both were in flight, so the merged write counts as the
//!   earlier one and ends. So other writes cannot make a merge repeat forever.
//! - WC-MG3 No merge of a block runs while the block is discarded or cleared: the other sectors of
//!   the merged version would bring back old data (`Writer::clear`).
//! - WC-MG4 A version that can't be read, or does not match its checksum, ends the merge in an
//!   error. The old version stays the newest one until the merged one is in the map.
//!
//! Cost of a merged write: one read of a block, besides the write of the block. A write of whole
//! blocks only tests one word.
use std::cell::{Cell, RefCell};
use std::collections::BTreeMap;
use std::ops::Range;

use block::{Bio, Buf, Bufs, Class, Edges, Flags, Op, SECTOR_SIZE, Sector, Status};
use reactor::WaitList;

use super::Writer;
use crate::planted::Fault;

/// Merges in progress, and ranges that are being cleared.
#[derive(Default)]
pub(crate) struct Merges {
    /// How many merges are in progress. Writes of whole blocks test it.
    count: Cell<u32>,
    /// Their blocks, and whether a write of the whole block has overtaken the merge.
    blocks: RefCell<BTreeMap<u64, bool>>,
    /// Ranges that are being cleared, or will be next (WC-MG3). There are at most as many as bios.
    clearing: RefCell<Vec<Range<u64>>>,
    wait: WaitList,
}

impl Merges {
    fn is_clearing(&self, block: u64) -> bool {
        self.clearing.borrow().iter().any(|range| range.contains(&block))
    }

    /// Waits for the block's turn (WC-MG2, WC-MG3).
    pub(super) async fn begin(&self, block: u64) -> MergeGuard<'_> {
        let ready = || !self.blocks.borrow().contains_key(&block) && !self.is_clearing(block);
        self.wait.wait_for(ready).await;
        self.blocks.borrow_mut().insert(block, false);
        self.count.set(self.count.get() + 1);
        MergeGuard { merges: self, block }
    }

    /// Whether any merge is in progress.
    #[inline]
    pub(crate) fn any(&self) -> bool {
        self.count.get() > 0
    }

    /// Writes of these whole blocks have entered the map (WC-MG2).
    #[cold]
    pub(crate) fn overtake(&self, blocks: Range<u64>) {
        for (_, overtaken) in self.blocks.borrow_mut().range_mut(blocks) {
            *overtaken = true;
        }
    }

    /// Waits for merges in a range to end; none begins while the guard lives (WC-MG3).
    pub(crate) async fn block_merges(&self, range: Range<u64>) -> ClearGuard<'_> {
        self.clearing.borrow_mut().push(range.clone());
        let kept = ClearGuard { merges: self, range: range.clone() };
        self.wait.wait_for(|| self.blocks.borrow().range(range.clone()).next().is_none()).await;
        kept
    }
}

/// A merge in progress.
pub(super) struct MergeGuard<'a> {
    merges: &'a Merges,
    block: u64,
}

impl MergeGuard<'_> {
    fn is_overtaken(&self) -> bool {
        self.merges.blocks.borrow()[&self.block]
    }
}

impl Drop for MergeGuard<'_> {
    fn drop(&mut self) {
        if !block::crashing() {
            self.merges.blocks.borrow_mut().remove(&self.block);
            self.merges.count.set(self.merges.count.get() - 1);
            self.merges.wait.wake_all();
        }
    }
}

/// No merge begins in the range while this lives.
pub(crate) struct ClearGuard<'a> {
    merges: &'a Merges,
    range: Range<u64>,
}

impl Drop for ClearGuard<'_> {
    fn drop(&mut self) {
        if !block::crashing() {
            let mut clearing = self.merges.clearing.borrow_mut();
            let mine = clearing.iter().position(|range| *range == self.range);
            clearing.swap_remove(mine.expect("pushed in block_merges"));
            drop(clearing);
            self.merges.wait.wake_all();
        }
    }
}

/// The outcome of one merge.
enum MergeOutcome {
    /// It is in the map.
    Installed,
    /// A later write of the whole block has ended (WC-MG2).
    Overtaken,
    /// The block has another version now (WC-MG1).
    Retry,
}

impl Writer {
    /// Reduces a bio to whole blocks. The edges of a write or of zeroes are merged first; those of
    /// a discard are ignored. Returns false if no whole block is left.
    pub(crate) async fn merge_edges(&self, bio: &mut Bio) -> Result<bool, Status> {
        let block_sectors = self.store.config.block_sectors();
        let Edges { head, whole, tail } = Edges::of(bio.sector..bio.end(), block_sectors);
        if bio.op != Op::Discard {
            for edge in [head, tail].into_iter().filter(|edge| !edge.is_empty()) {
                self.write_part_of(bio, edge).await?;
            }
        }
        let is_left = !whole.is_empty();
        bio.narrow(whole);
        Ok(is_left)
    }

    /// Writes the sectors `part` of a bio, which are some sectors of one block.
    async fn write_part_of(&self, bio: &Bio, part: Range<Sector>) -> Result<(), Status> {
        let data = if bio.op == Op::Write {
            bio.bufs.slice(bytes(part.start - bio.sector)..bytes(part.end - bio.sector))
        } else {
            Buf::zeroed(bytes(part.end - part.start)).into()
        };
        self.store.health()?;
        self.store.stats.writes.add(1);
        let block = part.start.0 / self.store.config.block_sectors();
        // An origin with larger blocks would merge in place: an error could damage the other
        // sectors.
        let takes_sectors = self.writeback.origin.limits.write_unit_bytes() as usize <= SECTOR_SIZE;
        if self.goes_around(bio.flags) && takes_sectors {
            if self.write_part_around(block, part.start, &data, bio.class, bio.flags).await? {
                return Ok(());
            }
        } else {
            self.merge_sectors(block, part.start, &data, bio.class).await?;
        }
        if self.writes_through() {
            self.write_begun_through(block..block + 1, bio.class).await?;
        }
        if bio.flags.contains(Flags::FUA) && !self.store.has_fault(Fault::MergeIgnoresFua) {
            self.commit_fua().await?;
        }
        Ok(())
    }

    /// Merges `data`, the sectors from `at` on, into their block.
    pub(crate) async fn merge_sectors(
        &self,
        block: u64,
        at: Sector,
        data: &Bufs,
        class: Class,
    ) -> Result<(), Status> {
        self.pace(1).await;
        let guard = self.merges.begin(block).await;
        let whole = Buf::alloc(self.store.block_bytes());
        loop {
            self.wait_for_slot().await?;
            let Some(slots) = self.store.slots.borrow_mut().allocate(1) else { continue };
            let slot = slots.start;
            // WC-MG1. The slot is allocated before the range is locked: perhaps only writeback can
            // free one.
            let (range, is_absent) =
                (block..block + 1, self.store.slots.borrow().find(block).is_none());
            let locked = if is_absent {
                self.writeback.locks.lock(range.clone(), &self.store).await
            } else {
                Ok(())
            };
            let merged = match locked {
                Ok(()) => self.merge_locked(&guard, is_absent, at, data, &whole, class, slot).await,
                Err(status) => Err(status),
            };
            if is_absent && locked.is_ok() {
                self.writeback.locks.unlock(&range, &self.store);
            }
            if !matches!(merged, Ok(MergeOutcome::Installed)) {
                self.store.slots.borrow_mut().abandon(slot);
                self.store.waits.blocks_changed();
            }
            match merged? {
                MergeOutcome::Installed | MergeOutcome::Overtaken => return Ok(()),
                MergeOutcome::Retry => {}
            }
        }
    }

    #[expect(
        clippy::too_many_arguments,
        reason = "one step of `merge_sectors`, which has them all"
    )]
    async fn merge_locked(
        &self,
        guard: &MergeGuard<'_>,
        is_locked: bool,
        at: Sector,
        data: &Bufs,
        whole: &Buf,
        class: Class,
        slot: u32,
    ) -> Result<MergeOutcome, Status> {
        let block = guard.block;
        let from = self.reader.reread(class, block, whole.all().into()).await?;
        let start = bytes(at - self.store.sector_of(block));
        whole.write(|b| data.take_at(0, &mut b[start..start + data.len_bytes()]));
        let bufs: Bufs = whole.all().into();
        let is_buffered = self.is_buffered(whole.len(), Flags::empty());
        if is_buffered {
            self.wait_for_room(1).await?;
        } else {
            let (none, sector) = (Flags::empty(), self.store.slot_sector(slot));
            reactor::write(&*self.store.device, none, class, sector, bufs.clone()).await?;
            self.store.reserve_unlogged(1).await;
        }
        if !self.store.has_fault(Fault::MergeUnchecked) {
            if guard.is_overtaken() {
                return Ok(MergeOutcome::Overtaken);
            }
            let newest = self.store.slots.borrow().find(block).map(|found| found.slot_ref);
            // WC-MG1. Data from the origin count only under the lock.
            if newest != from || (newest.is_none() && !is_locked) {
                return Ok(MergeOutcome::Retry);
            }
        }
        let c = self.store.counts();
        let first_change = c.unlogged == 0 || c.dirty == 0;
        if is_buffered {
            self.write_to_place(block, slot, &bufs, 0);
        } else {
            self.install(block, &(0..1), &(slot..slot + 1), &bufs);
        }
        if first_change || self.writeback.has_work() {
            self.store.waits.blocks_changed();
        }
        Ok(MergeOutcome::Installed)
    }
}

pub(super) fn bytes(len: Sector) -> usize {
    usize::try_from(len.bytes()).expect("a part of a request's data, or less than a block")
}
