// SPDX-License-Identifier: Apache-2.0 OR MIT
//! Planted faults of the map: see `Fault`. Nothing else calls these.
use format::{JournalChange, Op};

use super::journal::JournalWriter;
use super::{Batch, Slots};
use crate::planted::Fault;

impl Slots {
    /// Frees superseded slots without waiting for the record that supersedes them.
    pub(crate) fn free_limbo_at_once(&mut self) {
        for slot in std::mem::take(&mut self.limbo) {
            self.make_free(slot);
        }
    }

    /// The next commit leaves out this block.
    pub(crate) fn forget_unlogged(&mut self, block: u64) {
        if self.unlogged.remove(block) {
            self.counts.unlogged -= 1;
        }
    }

    /// The next commit leaves out blocks of a batch that have changed since they were added to it.
    pub(crate) fn forget_changes_of(&mut self, batch: &Batch) {
        batch.entries.iter().for_each(|entry| self.forget_unlogged(entry.block));
    }

    /// The next commit leaves out blocks that were dropped from the cache.
    pub(crate) fn forget_drops(&mut self) {
        let gone = |&block: &u64| self.slot_of(block).is_none();
        let gone: Vec<u64> = self.unlogged.iter().filter(gone).collect();
        gone.into_iter().for_each(|block| self.forget_unlogged(block));
    }

    /// Whether the log names a version of the block that was allocated after `slot`.
    pub(crate) fn is_overtaken(&self, block: u64, slot: u32) -> bool {
        let slot_ref = |slot: u32| self.slots[slot as usize];
        let newer = |old: u32| slot_ref(old).logged && slot_ref(old).stamp > slot_ref(slot).stamp;
        self.slot_of(block).is_some_and(newer)
    }

    /// Enters a clean block in place of a newer version.
    pub(crate) fn admit_over(&mut self, block: u64, slot: u32, crc: u32) {
        if let Some(found) = self.find(block) {
            self.drop_block(block, found.slot_ref);
        }
        self.admit(block, slot, crc);
    }

    /// Reads find no zeroes.
    pub(crate) fn forget_zero_ranges(&mut self) {
        self.zeroes = Default::default();
    }

    /// Drops a dirty block, if there is one.
    pub(crate) fn evict_dirty(&mut self) {
        if let Some(found) = self.next_dirty(0).and_then(|block| self.find(block)) {
            let block = self.slots[found.slot_ref.slot as usize].block();
            self.drop_block(block, found.slot_ref);
        }
    }
}

impl JournalWriter {
    /// What is stored when this change is made: the change, unless a fault is planted.
    #[inline]
    pub(super) fn change_to_store(&mut self, change: JournalChange) -> Option<JournalChange> {
        let is = |op, fault| change.entry.op == op && self.planted.is(fault);
        if is(Op::Drop, Fault::DropNotInJournal) || is(Op::Zero, Fault::ZeroesNotInJournal) {
            return None;
        }
        if is(Op::Write, Fault::EpochNotInJournal) {
            return Some(JournalChange { epoch: 0, oldest: 0, ..change });
        }
        if self.planted.is(Fault::EntryAfterRequest) {
            return self.late.replace(change);
        }
        Some(change)
    }
}
