// SPDX-License-Identifier: Apache-2.0 OR MIT
//! Clean blocks: how those that were read enter the map, and which leave it.
use policy::UseCounts;

use super::{SlotRef, Slots, State};

/// Slots that eviction looks at while uses of their blocks count, for each that it is to free and
/// in any case. Chosen: at most 3 ms for 16384 blocks.
const USES_STEPS: u64 = 32;
const USES_STEPS_MIN: u64 = 4096;

impl Slots {
    /// The data of a block that is not in the cache are on the cache device at `slot`, and on the
    /// origin: enters it as a clean one. The log does not name it before [`Slots::log_admitted`].
    pub(crate) fn admit(&mut self, block: u64, slot: u32, crc: u32) {
        assert_eq!(self.slots[slot as usize].state, State::Writing);
        let s = &mut self.slots[slot as usize];
        s.set_block(block);
        s.crc = crc;
        let slots = &self.slots;
        let old = self.index.replace(block, slot, |s| slots[s as usize].block());
        assert_eq!(old, None, "block {block} is in the cache");
        self.set_state(slot, State::Clean);
    }

    /// The data of an admitted block are durable on both devices: the log may name it, if it is
    /// still the newest version and clean.
    pub(crate) fn log_admitted(&mut self, block: u64, slot_ref: SlotRef) {
        let slot = self.newest_slot(block, slot_ref);
        if slot.is_some_and(|slot| self.slots[slot as usize].state == State::Clean) {
            self.mark_unlogged(block);
        }
    }

    /// Drops up to `max` clean blocks in slot order, so that the free slots are neighbours; the
    /// next call continues where this one ends. It passes over a slot once for each use that is
    /// counted, unless it would take too long. Returns how many it has dropped.
    pub(crate) fn evict(&mut self, max: u32, mut uses: Option<&mut UseCounts>) -> u32 {
        let room = u32::try_from(self.journal_room()).unwrap_or(u32::MAX);
        let (max, mut evicted) = (max.min(room), 0);
        let counted = match &uses {
            Some(_) => USES_STEPS_MIN + USES_STEPS * u64::from(max),
            None => 0,
        };
        for step in 0..u64::from(self.counts.slots) + counted {
            if evicted == max || self.counts.clean == 0 {
                break;
            }
            let slot = self.evict_cursor;
            self.evict_cursor = if slot + 1 == self.counts.slots { 0 } else { slot + 1 };
            if !self.may_drop(slot) {
                continue;
            }
            let is_used = uses.as_mut().is_some_and(|uses| uses.pass(slot));
            if !is_used || step >= counted {
                self.drop_if_clean(slot);
                evicted += 1;
            }
        }
        evicted
    }

    /// Whether the slot has a clean block. With epochs a block may leave only when the log has it
    /// as clean (WC-E5).
    fn may_drop(&self, slot: u32) -> bool {
        let s = &self.slots[slot as usize];
        s.state == State::Clean && !(self.epochs.is_some() && self.needs_logging(s.block()))
    }

    /// Drops the block of a slot if it may leave.
    fn drop_if_clean(&mut self, slot: u32) {
        let s = &self.slots[slot as usize];
        let (block, slot_ref) = (s.block(), SlotRef { slot, stamp: s.stamp });
        if self.may_drop(slot) {
            self.drop_block(block, slot_ref);
        }
    }
}
