// SPDX-License-Identifier: Apache-2.0 OR MIT
//! Writeback in the order of epochs (option `ordered`): one phase after the other.
//!
//! ```text
//!   begin ─▶ runs of this epoch ─▶ origin FLUSH ─▶ retired ─▶ commit logs that ─▶ begin the next
//!             └─▶ of the next one: only an origin that keeps the order of writes (WC-E7)
//! ```
//!
//! Cost: beside the flushes of the origin that settle its blocks (at least one) an epoch takes one
//! commit, which is often one that a client's FLUSH needs anyway.
use super::Writeback;
use crate::map::{MergeRule, PhaseState, next_in};
use crate::planted::Fault;

impl Writeback {
    /// Retires the epoch of the phase when it is written, and begins the next phase.
    pub(super) async fn next_phase(&self) {
        loop {
            let phase_state = self.store.slots.borrow().phase_state();
            match phase_state {
                PhaseState::Idle => return,
                PhaseState::Writing => return self.store.slots.borrow_mut().next_step(),
                PhaseState::Written => {
                    // A run of an earlier version may still be in flight.
                    if self.blocks() > 0 || self.in_flight_runs() > 0 {
                        return;
                    }
                    self.store.slots.borrow_mut().retire_phase();
                    self.store.waits.blocks_changed();
                    self.store.waits.jobs.wake_all();
                    if self.store.has_fault(Fault::EpochBeforeRetired) {
                        self.store.slots.borrow_mut().begin_phase(self.merge());
                    }
                }
                PhaseState::Due => {
                    // WC-E3: a commit logs that the epoch is retired, and all versions of the next
                    // one.
                    if self.store.commit().await.is_err() {
                        return;
                    }
                    if self.store.slots.borrow().phase_state() == PhaseState::Due {
                        self.store.slots.borrow_mut().begin_phase(self.merge());
                        self.extend_phase();
                    }
                }
            }
        }
    }

    /// WC-E7.
    fn extend_phase(&self) {
        let keeps_order = self.origin.device.limits().keeps_write_order;
        if keeps_order || self.store.has_fault(Fault::StepsUnordered) {
            let added = self.store.slots.borrow_mut().extend_phase();
            self.store.stats.epochs_together.add(added);
        }
    }

    fn merge(&self) -> MergeRule {
        if self.store.has_fault(Fault::UnsafeMerge) {
            MergeRule::Planted
        } else if self.origin.device.limits().atomic_write_unit_bytes
            >= self.store.config.block_size
        {
            MergeRule::Single
        } else {
            MergeRule::Never
        }
    }

    /// Whether there are epochs that are old enough to be written first (`age`).
    pub(super) fn is_epoch_aged(&self) -> bool {
        let before = self.picker.ages.marked_before();
        before > 0 && !self.store.slots.borrow().is_retired_before(before)
    }

    /// The first block at or after `from` that the phase has to write, and that is not busy.
    pub(super) fn next_in_phase(&self, mut from: u64) -> Option<u64> {
        let (slots, busy, awaited) =
            (self.store.slots.borrow(), self.locks.busy(), self.locks.awaited());
        let blocks = slots.phase_blocks()?;
        while let Some(ready) = self.retry.next_ready(from).filter(|&ready| !blocks.contains(ready))
        {
            self.retry.clear_ready(ready); // unreadable, or already written back
        }
        let only_failing = self.retry.is_full();
        loop {
            let block =
                if only_failing { self.retry.next_ready(from)? } else { next_in(blocks, from)? };
            let awake = self.retry.skip(block);
            if awake > block || !blocks.contains(block) {
                from = awake.max(block + 1);
            } else if let Some(end) = awaited.iter().find(|r| r.contains(&block)).map(|r| r.end) {
                from = end;
            } else if busy.contains(block) {
                from = block + 1;
            } else {
                return Some(block);
            }
        }
    }
}
