// SPDX-License-Identifier: Apache-2.0 OR MIT
//! Zeroes: long WRITE_ZEROES of epochs that are not on the origin yet. Each range takes a slot
//! without data, which stands for it in the queue of epochs and in the log.
//!
//! ```text
//!   read of a block:  index ─none─▶ zeroes ─none─▶ origin
//!
//!   WRITE_ZEROES 4..9     before: index 3 5 6          after: index 3
//!                                                      kept   5 6 (dirty, of earlier epochs)
//!                                                      zeroes 4..9
//! ```
//!
//! Invariants
//! - WC-Z1 No version in the index is older than zeroes that cover its block: the zeroes replaced
//!   it. So a read asks the index first, then the zeroes, then the origin.
//! - WC-Z2 While an epoch is open it has either blocks or zeroes, so the order within an epoch
//!   never matters. Zeroes that follow each other share one epoch. (A recovery may find an
//!   unreadable block in the epoch of zeroes: the zeroes are written first.)
//! - WC-Z3 Zeroes end, for reads and for the log, when their epoch is retired, and not while a
//!   checkpoint is being written: it may have versions that only these zeroes end.
//! - WC-Z4 A block that zeroes took out of the index is not logged by itself: the entry of the
//!   zeroes ends what the log has of it. Until that entry is logged the block counts as unlogged
//!   (WC-M3).
use std::ops::Range;

use super::{CurrentVersion, SlotRef, Slots, State};

/// Most zero ranges of a cache of `slots` slots: a 64th of the slots, at least 16, and at most a
/// quarter of a tiny cache. So a checkpoint has room for an epoch entry before each range.
pub(crate) fn zeroes_max(slots: u32) -> u32 {
    (slots / 64).max(16).min(slots / 4)
}

impl Slots {
    /// WC-Z1: the zeroes that cover a block that is not in the index.
    #[cold]
    #[inline(never)]
    pub(super) fn find_zero(&self, block: u64) -> Option<CurrentVersion> {
        let slot = self.zeroes.slot_at(block)?;
        let slot_ref = SlotRef { slot, stamp: self.slots[slot as usize].stamp };
        Some(CurrentVersion { slot_ref, state: State::Zero, crc: None })
    }

    /// WC-Z4: whether unlogged zeroes cover the block.
    pub(super) fn is_zero_unlogged(&self, block: u64) -> bool {
        let unlogged = |slot: u32| !self.slots[slot as usize].logged;
        self.counts.zero > 0 && self.zeroes.slot_at(block).is_some_and(unlogged)
    }

    /// The blocks that a slot's zeroes cover.
    pub(super) fn zero_range(&self, slot: u32) -> Range<u64> {
        let s = &self.slots[slot as usize];
        s.block()..s.block() + u64::from(s.crc)
    }

    /// Whether another range may be added.
    pub(crate) fn has_room_for_zeroes(&self) -> bool {
        self.counts.zero < zeroes_max(self.counts.slots)
    }

    /// The blocks of zeroes that the origin may not have, ascending. The index may have newer
    /// versions of some of them.
    pub(crate) fn zero_ranges(&self) -> impl Iterator<Item = Range<u64>> {
        self.zeroes.ranges()
    }

    /// Enters zeroes over `range` (at most 2^32 - 1 blocks) into the map, in an epoch of their own;
    /// `slot` stands for them. Replaces at most `max` versions (at least one): if the range has
    /// more, the zeroes end earlier. Returns their end.
    pub(crate) fn install_zeroes(&mut self, range: Range<u64>, slot: u32, max: usize) -> u64 {
        let mut live = self.live_in(range.clone());
        let mut range = range;
        if live.len() > max {
            live.sort_unstable_by_key(|&(block, _)| block);
            range.end = live[max].0;
            live.truncate(max);
        }
        assert!(self.epochs.is_some(), "only with epochs is there an order to keep");
        assert_eq!(self.slots[slot as usize].state, State::Writing);
        self.begin_zeroes();
        let s = &mut self.slots[slot as usize];
        s.set_block(range.start);
        s.crc = u32::try_from(range.end - range.start).expect("as the caller says");
        for (block, slot_ref) in live {
            self.remove_index(block);
            self.remove_dirty(block, slot_ref.slot);
            self.supersede(block, slot_ref.slot);
        }
        // WC-Z4
        let unlogged = self.unlogged.remove_range(range.clone());
        let unlogged = unlogged + self.committing.remove_range(range.clone());
        self.counts.unlogged -= unlogged;
        self.set_state(slot, State::Zero);
        self.zeroes.insert(range.clone(), slot);
        self.enter_epoch(slot);
        self.note_zeroes(range.start, slot, self.slots[slot as usize].crc);
        range.end
    }

    /// Restores the pending zeroes that recovery has found.
    pub(super) fn restore_zero_ranges(&mut self) {
        if self.counts.zero == 0 {
            return;
        }
        let queue = self.epochs.as_ref().map(|e| e.pending.all()).unwrap_or_default();
        for slot in queue {
            if self.slots[slot as usize].state == State::Zero {
                let range = self.zero_range(slot);
                self.zeroes.insert(range, slot);
            }
        }
    }

    /// WC-Z2: makes sure that the open epoch has only zeroes and is not being written back.
    pub(super) fn begin_zeroes(&mut self) {
        self.with_epochs(|e, slots| {
            let in_phase = e.phase.as_ref().is_some_and(|p| p.epoch == e.open);
            if in_phase || !(e.open_zeroes || e.open_slots.is_empty()) {
                e.close(slots);
            }
            e.open_zeroes = true;
        });
    }

    /// The epoch of the phase, and the number of zero ranges that it has to write first.
    pub(crate) fn phase_zeroes(&self) -> Option<(u64, usize)> {
        let phase = self.epochs.as_ref()?.phase.as_ref()?;
        (!phase.zeroes.is_empty()).then_some((phase.epoch, phase.zeroes.len()))
    }

    /// The blocks of the `nth` zero range of the phase.
    pub(crate) fn phase_zero(&self, nth: usize) -> Option<Range<u64>> {
        let phase = self.epochs.as_ref()?.phase.as_ref()?;
        phase.zeroes.get(nth).map(|&slot| self.zero_range(slot))
    }

    /// Whether the phase has to write a version of this block, or zeroes that begin with it.
    pub(crate) fn is_in_phase(&self, block: u64) -> bool {
        let begins = |&slot: &u32| self.slots[slot as usize].block() == block;
        let phase = self.epochs.as_ref().and_then(|e| e.phase.as_ref());
        let zero = phase.is_some_and(|p| p.zeroes.iter().any(begins));
        zero || self.phase_blocks().is_some_and(|blocks| blocks.contains(block))
    }

    /// The origin holds the phase's zeroes durably.
    pub(crate) fn complete_phase_zeroes(&mut self) {
        self.with_epochs(|e, _| {
            let phase = e.phase.as_mut().expect("it has zeroes");
            e.retired_old.append(&mut phase.zeroes);
            phase.has_zeroes_written = true;
        });
    }

    /// Ordered mode was switched off, and the origin holds all zeroes durably.
    pub(crate) fn drop_zeroes(&mut self) {
        let is_zero = |&slot: &u32| self.slots[slot as usize].state == State::Zero;
        let all: Vec<u32> = (0..self.counts.slots).filter(is_zero).collect();
        all.into_iter().for_each(|slot| self.release(slot));
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn a_tiny_cache_keeps_most_slots_for_blocks() {
        assert_eq!([16, 64, 1024, 16384, 1 << 20].map(zeroes_max), [4, 16, 16, 256, 1 << 14]);
    }
}
