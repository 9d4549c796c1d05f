// SPDX-License-Identifier: Apache-2.0 OR MIT
//! Several epochs in one phase, over an origin that keeps the order of writes (WC-E7).
//!
//! ```text
//!   begin ─▶ writes of epoch 7 ─▶ all completed ─▶ writes of 8 ─▶ … of 11 ─▶ one origin FLUSH
//! ```
//!
//! A client that flushes after each write has an epoch a write; before an object store a flush of
//! the origin for each of them would take tens of milliseconds.
use super::Slots;
use super::epoch_state::{Epochs, Phase, Steps};
use super::slot::State;
use crate::planted::Fault;

/// Blocks of a phase with several epochs. Chosen: 16 MiB in blocks of 4 KiB, some flushes of an
/// object store's segments.
const BLOCKS_MAX: u64 = 4096;

impl Slots {
    /// Adds to the phase, which has just begun, the epochs behind its own that WC-E7 allows.
    /// Returns how many.
    pub(crate) fn extend_phase(&mut self) -> u64 {
        let extended = self.with_epochs(|e, slots| {
            let Some(mut phase) = e.phase.take() else { return 0 };
            let is_small = phase.todo.len() < BLOCKS_MAX && phase.zeroes.is_empty();
            let added = if phase.closed && is_small { e.add_steps(slots, &mut phase) } else { 0 };
            e.phase = Some(phase);
            added
        });
        extended.unwrap_or(0)
    }

    /// The origin has completed the writes of these blocks. Returns whether the next epoch of the
    /// phase can be written now.
    pub(crate) fn sent_in_phase(&mut self, blocks: impl Iterator<Item = u64>) -> bool {
        let phase = self.epochs.as_mut().and_then(|e| e.phase.as_mut());
        let Some(steps) = phase.and_then(|phase| phase.steps.as_mut()) else { return false };
        for block in blocks {
            steps.unsent.remove(block);
        }
        steps.unsent.is_empty() && !steps.later.is_empty()
    }

    /// Makes the next epoch of the phase ready when all before it have been written.
    pub(crate) fn next_step(&mut self) {
        let Some(phase) = self.epochs.as_mut().and_then(|e| e.phase.as_mut()) else { return };
        let Some(steps) = &mut phase.steps else { return };
        while steps.unsent.is_empty()
            && let Some(blocks) = steps.later.pop_front()
        {
            for block in blocks.into_iter().filter(|block| phase.todo.contains(*block)) {
                steps.ready.insert(block);
                steps.unsent.insert(block);
            }
        }
    }
}

impl Epochs {
    fn add_steps(&mut self, slots: &mut Slots, phase: &mut Phase) -> u64 {
        let mut steps =
            Steps { ready: phase.todo.clone(), unsent: phase.todo.clone(), ..Steps::default() };
        let mut from = self.pending.lens().0;
        let mut added = 0;
        while let Some((epoch, len)) = self.pending.nth(added + 1) {
            let is_logged = self.unlogged.front().is_none_or(|f| f.epoch > epoch);
            let blocks = phase.todo.len() + u64::from(len);
            if epoch >= self.open || !is_logged || blocks > BLOCKS_MAX {
                break;
            }
            self.seal(slots, epoch);
            let Some((_, len)) = self.pending.nth(added + 1) else { break };
            let members = self.pending.members_at(from, len);
            let Some(step) = self.add_step(slots, phase, &members) else { break };
            if self.planted.is(Fault::StepsTogether) {
                steps.ready.extend(step.iter().copied());
                steps.unsent.extend(step.iter().copied());
            }
            steps.later.push_back(step);
            phase.epoch = epoch;
            from += len as usize;
            added += 1;
        }
        if added > 0 {
            phase.old_slots.sort_unstable_by_key(|&slot| slots.slots[slot as usize].block());
            phase.steps = Some(steps);
        }
        added as u64
    }

    /// Adds the versions of an epoch to the phase; returns their blocks. `None`, and nothing is
    /// done, if it has zeroes, or a block that is in the phase already.
    fn add_step(
        &mut self,
        slots: &mut Slots,
        phase: &mut Phase,
        members: &[u32],
    ) -> Option<Vec<u64>> {
        let mut blocks = Vec::with_capacity(members.len());
        for &slot in members {
            let s = &slots.slots[slot as usize];
            match s.state {
                State::Dirty | State::Old if !phase.todo.contains(s.block()) => {
                    blocks.push(s.block());
                }
                State::Dirty | State::Old if self.planted.is(Fault::StepsOverlap) => {
                    self.skip_older(slots, phase, s.block());
                    blocks.push(s.block());
                }
                State::Bad => {}
                State::Dirty
                | State::Old
                | State::Zero
                | State::Free
                | State::Writing
                | State::Clean
                | State::Limbo => return None,
            }
        }
        for &slot in members {
            let state = slots.slots[slot as usize].state;
            if state == State::Old {
                phase.old_slots.push(slot);
            } else if state == State::Bad {
                self.bad.insert(slot, true);
            }
        }
        phase.todo.extend(blocks.iter().copied());
        Some(blocks)
    }

    /// Planted fault: the older version of a block that is in two epochs is not written.
    fn skip_older(&mut self, slots: &Slots, phase: &mut Phase, block: u64) {
        let is_it = |slot: &u32| slots.slots[*slot as usize].block() == block;
        if let Some(at) = phase.old_slots.iter().position(is_it) {
            self.retired_old.push(phase.old_slots.swap_remove(at));
        }
        phase.todo.remove(block);
    }
}
