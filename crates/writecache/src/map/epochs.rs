// SPDX-License-Identifier: Apache-2.0 OR MIT
//! Epochs: between which FLUSHes each version was written, and in which order the versions must
//! reach the origin (option `ordered`).
//!
//! ```text
//!   writes   a b │ a c │ b        epochs, closed by a FLUSH or a FUA write
//!   epoch     1     2    3, open
//!   map           c 2, a 2, b 3   current versions: the index
//!   kept     a 1, b 1             Old: superseded, but epoch 1 is not on the origin yet
//! ```
//!
//! At any moment the origin has all versions of the epochs before some epoch N, and any of the
//! versions of N. So the origin alone is in a state in which a disk may be after a power cut: it
//! has everything that was acknowledged before some FLUSH or FUA write.
//!
//! Invariants
//! - WC-E1 An epoch is closed between the submission of a FLUSH and its completion, and after a FUA
//!   write has entered the map and before it completes. Versions that enter the map later belong to
//!   a later epoch.
//! - WC-E2 A dirty version of an epoch that is not open is kept when it is superseded, until its
//!   epoch is retired. A version of the open epoch is not kept: a disk may skip a write that no
//!   flush covers, too.
//! - WC-E3 One epoch at a time is written back (but WC-E7): the phase. It begins when all earlier
//!   epochs are retired by a durable record. Otherwise recovery would write an earlier epoch again,
//!   over those parts of the new epoch that are on the origin.
//! - WC-E4 An epoch is retired when all its versions are durable on the origin, except unreadable
//!   ones.
//! - WC-E5 The log has every version of a pending epoch, with its epoch; each batch begins with the
//!   oldest epoch that is pending. A version that the log calls dirty in a pending epoch keeps its
//!   slot, even if the origin has it: recovery would read the slot.
//! - WC-E6 Epochs are merged in one case only: both are closed, each has a single block to write,
//!   and it is the same one. The first version is skipped: with the write of the second the origin
//!   goes from the state before both to the state after both. That write must not tear, so a block
//!   is no larger than what the origin writes atomically. With a second block in either epoch there
//!   would be a moment with one of them written and not the other.
//! - WC-E7 Over an origin that keeps the order of writes (`Limits::keeps_write_order`) a phase may
//!   have several epochs, if no block is in two of them and none has zeroes. They are written one
//!   after the other: the next one when the origin has completed all writes of the one before. So
//!   one flush of the origin covers them all. What recovery writes again changes nothing: an epoch
//!   that is on the origin has the only versions of its blocks in the phase.
//!
//! Memory, besides the map: 4 bytes for a pending version, 8 for an epoch, two bits for a slot; 16
//! bytes for an unlogged version (their number has a bound); 2 bytes for a block of the phase.
use std::collections::BTreeMap;

use block::Planted;
use roaring::RoaringTreemap;

use super::epoch_state::{Epochs, Phase, UnloggedVersion, is_pending};
use super::rebuild::add_blocks;
use super::{SlotRef, Slots, State};
use crate::planted::Fault;

/// Versions that were superseded before they were logged are removed from `unlogged` when there are
/// at least so many of them and they are half of the list.
const STALE_MIN: usize = 1024;

/// Blocks of a phase that are sorted at once. Sorting millions at once would take as much memory as
/// the map.
const MERGED_BLOCKS: usize = 1 << 18;

impl Epochs {
    fn old_in_phase(&self, slots: &Slots, block: u64) -> Option<u32> {
        let phase = self.phase.as_ref()?;
        let block_of = |slot: &u32| slots.slots[*slot as usize].block();
        let found = phase.old_slots.binary_search_by_key(&block, block_of);
        found.ok().map(|at| phase.old_slots[at]).or_else(|| phase.late.get(&block).copied())
    }

    /// Whether the phase's version of `block` is the newest one.
    fn todo_is_current(&self, slots: &Slots, block: u64) -> bool {
        self.is_todo(block) && self.old_in_phase(slots, block).is_none()
    }
}

/// Whether epochs may be merged.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(crate) enum MergeRule {
    /// The origin may tear the write of a block.
    Never,
    /// By the rule of WC-E6.
    Single,
    /// Planted fault: the second epoch may have any other blocks too.
    Planted,
}

/// The state of writeback in order.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(crate) enum PhaseState {
    /// No epoch is being written back, and none has anything to write.
    Idle,
    /// No epoch is being written back, and one could be.
    Due,
    /// An epoch is being written back.
    Writing,
    /// An epoch has been written back completely, and is not retired yet.
    Written,
}

impl Slots {
    /// Calls `f` with the epochs taken out of the map, so that it can change both.
    pub(super) fn with_epochs<R>(
        &mut self,
        f: impl FnOnce(&mut Epochs, &mut Slots) -> R,
    ) -> Option<R> {
        let mut epochs = self.epochs.take()?;
        let result = f(&mut epochs, self);
        self.epochs = Some(epochs);
        Some(result)
    }

    /// Adds a version that has just entered the map to the open epoch, as unlogged.
    pub(super) fn enter_epoch(&mut self, slot: u32) {
        let stamp = self.slots[slot as usize].stamp;
        self.with_epochs(|e, slots| {
            if slots.slots[slot as usize].state == State::Zero {
                e.unlogged_kept += 1;
                slots.counts.unlogged += 1;
            } else if e.open_zeroes {
                e.close(slots); // WC-Z2
            }
            e.open_slots.insert(slot);
            let stale = e.unlogged.len() as u64 / 2 > slots.counts.unlogged;
            if stale && e.unlogged.len() >= STALE_MIN {
                let lives = |f: &UnloggedVersion| slots.is_unlogged(f);
                e.commit_target =
                    e.unlogged.iter().take(e.commit_target).filter(|f| lives(f)).count();
                e.unlogged.retain(lives);
            }
            e.unlogged.push_back(UnloggedVersion { epoch: e.open, slot, stamp });
        });
    }

    /// Whether this version is still in its slot and not logged.
    pub(super) fn is_unlogged(&self, f: &UnloggedVersion) -> bool {
        let s = &self.slots[f.slot as usize];
        let holds = matches!(s.state, State::Dirty | State::Old | State::Bad | State::Zero);
        s.stamp == f.stamp && holds && !s.logged
    }

    /// The version of `block` at `slot` is superseded: it is kept if an epoch needs it (WC-E2,
    /// WC-E5); otherwise its slot is released.
    #[inline(always)]
    pub(super) fn supersede(&mut self, block: u64, slot: u32) {
        let needed = self.epochs.as_ref().is_some_and(|e| {
            let of_older = !e.open_slots.contains(slot);
            match self.slots[slot as usize].state {
                State::Dirty => of_older && !e.planted.is(Fault::OldNotKept),
                State::Bad => of_older && e.bad.contains_key(&slot),
                // WC-E5: the log may still call it dirty in a pending epoch. In the open epoch that
                // does no harm: there a newer version replaces an older one.
                State::Clean => {
                    let named = self.slots[slot as usize].logged;
                    let unlogged = named && self.needs_logging(block);
                    unlogged && e.phase.as_ref().is_some_and(|p| p.epoch != e.open)
                }
                State::Free | State::Writing | State::Old | State::Zero | State::Limbo => {
                    unreachable!("WC-M2: slot {slot} was in the index")
                }
            }
        });
        self.keep_or_release(block, slot, needed);
    }

    /// The block leaves the cache. As [`Slots::supersede`], but without a newer version.
    pub(super) fn remove_version(&mut self, block: u64, slot: u32) {
        let s = &self.slots[slot as usize];
        let clean = s.state == State::Clean && s.logged;
        let in_phase = self.epochs.as_ref().is_some_and(|e| e.phase.is_some());
        let needed = clean && in_phase && self.needs_logging(block);
        self.keep_or_release(block, slot, needed);
    }

    fn keep_or_release(&mut self, block: u64, slot: u32, needed: bool) {
        if !needed {
            self.release(slot);
            return;
        }
        let state = self.slots[slot as usize].state;
        self.with_epochs(|e, slots| {
            e.open_slots.remove(slot);
            if !slots.slots[slot as usize].logged {
                e.unlogged_kept += 1;
                slots.counts.unlogged += 1;
            }
            if state == State::Dirty && e.todo_is_current(slots, block) {
                let phase = e.phase.as_mut().expect("its version was current");
                phase.late.insert(block, slot);
            }
            let bad_in_phase = e.bad.remove(&slot) == Some(true);
            if state == State::Clean || bad_in_phase {
                e.retired_old.push(slot);
            }
        });
        if state == State::Bad {
            self.bad.remove(block); // the block has a newer version
        }
        self.set_state(slot, State::Old);
    }

    /// A version has become unreadable: its epoch is written back without it.
    pub(super) fn bad_in_epoch(&mut self, block: u64, slot: u32) {
        self.with_epochs(|e, slots| {
            let in_phase = match &e.phase {
                Some(phase) if phase.closed => e.todo_is_current(slots, block),
                Some(_) => e.open_slots.contains(slot),
                None => false,
            };
            e.bad.insert(slot, in_phase);
            if in_phase {
                e.done(block);
            }
        });
    }

    /// A superseded version that an epoch needs has become unreadable: the epoch is written back
    /// without it.
    pub(crate) fn drop_unreadable_old(&mut self, block: u64, slot_ref: SlotRef) {
        if self.is_intact(slot_ref) {
            self.complete_in_phase(block, slot_ref);
        }
    }

    /// The origin has this version durably, or will never have it: the phase has nothing more to do
    /// for it.
    pub(super) fn complete_in_phase(&mut self, block: u64, slot_ref: SlotRef) {
        if !self.is_intact(slot_ref) {
            return;
        }
        let state = self.slots[slot_ref.slot as usize].state;
        self.with_epochs(|e, slots| {
            if !e.is_todo(block) {
                return;
            }
            let old = e.old_in_phase(slots, block);
            if state == State::Old && old == Some(slot_ref.slot) {
                e.retired_old.push(slot_ref.slot);
                e.done(block);
            } else if state == State::Clean && old.is_none() {
                e.done(block);
            }
        });
    }

    /// WC-E1: closes the open epoch, unless it is empty. Versions that enter the map from now on
    /// belong to a later epoch.
    pub(crate) fn close_epoch(&mut self) {
        self.with_epochs(|e, slots| {
            if !e.open_slots.is_empty() {
                e.close(slots);
            }
        });
    }

    /// Plants a fault of the order.
    pub(crate) fn plant(&mut self, fault: Planted<Fault>) {
        self.with_epochs(|e, _| e.planted = fault);
    }

    /// The epoch that is open.
    pub(crate) fn open_epoch(&self) -> u64 {
        self.epochs.as_ref().map_or(0, |e| e.open)
    }

    /// Whether the origin holds everything of the epochs before `epoch`.
    pub(crate) fn is_retired_before(&self, epoch: u64) -> bool {
        self.epochs.as_ref().is_none_or(|e| {
            let phase = e.phase.as_ref().map(|p| p.first);
            phase.into_iter().chain(e.first_pending()).all(|pending| pending >= epoch)
        })
    }

    /// Epochs that are closed and not retired.
    pub(crate) fn pending_epochs(&self) -> u64 {
        self.epochs.as_ref().map_or(0, |e| {
            let first = e.phase.as_ref().map(|p| p.first).or_else(|| e.first_pending());
            first.map_or(0, |first| e.open.saturating_sub(first))
        })
    }

    pub(crate) fn phase_state(&self) -> PhaseState {
        let Some(e) = &self.epochs else { return PhaseState::Idle };
        match &e.phase {
            // WC-Z3
            Some(p) if p.has_zeroes_written && e.pending.pinned => PhaseState::Writing,
            Some(p) if p.closed && p.todo.is_empty() && p.zeroes.is_empty() => PhaseState::Written,
            Some(_) => PhaseState::Writing,
            None => match e.first_pending() {
                Some(first) if first < e.open || e.open_zeroes => PhaseState::Due,
                Some(_) if !self.dirty.is_empty() => PhaseState::Due,
                _ => PhaseState::Idle,
            },
        }
    }

    /// WC-E3: begins to write back the oldest epoch, if all its versions are logged.
    pub(crate) fn begin_phase(&mut self, merge: MergeRule) {
        self.with_epochs(|e, slots| {
            assert!(e.phase.is_none(), "WC-E3: one at a time");
            let Some(mut epoch) = e.first_pending() else { return };
            if epoch == e.open && e.open_zeroes {
                e.close(slots);
            }
            let is_logged = |e: &Epochs, epoch| e.unlogged.front().is_none_or(|f| f.epoch > epoch);
            let mut phase = Phase {
                first: epoch,
                epoch,
                steps: None,
                closed: epoch < e.open,
                todo: RoaringTreemap::new(),
                old_slots: Vec::new(),
                zeroes: Vec::new(),
                has_zeroes_written: false,
                late: BTreeMap::new(),
            };
            if !phase.closed {
                for (slot, in_phase) in &mut e.bad {
                    *in_phase |= e.open_slots.contains(*slot);
                }
                e.oldest = epoch;
                e.phase = Some(phase);
                return;
            }
            if !is_logged(e, epoch) {
                return; // closed after the commit had begun
            }
            while let Some((next, 1, len)) =
                e.pending.second().filter(|_| merge != MergeRule::Never)
            {
                if next >= e.open || !is_logged(e, next) || (len > 1 && merge != MergeRule::Planted)
                {
                    break;
                }
                e.seal(slots, next);
                let block_of = |slot: u32| slots.slots[slot as usize].block();
                let mut members = e.pending.members(false);
                let Some(first) = members.next() else { break };
                let is_old = slots.slots[first as usize].state == State::Old;
                let is_zero = |slot: u32| slots.slots[slot as usize].state == State::Zero;
                let also = |slot| block_of(slot) == block_of(first) && !is_zero(slot);
                if !is_old || !e.pending.members(true).any(also) {
                    break;
                }
                drop(members);
                e.pending.pop_through(epoch);
                e.forget_slot(first);
                slots.release(first);
                epoch = next;
            }
            e.seal(slots, epoch);
            if e.pending.first_epoch() == Some(epoch) {
                phase.todo = e.current_of_first(slots);
                for slot in e.pending.members(false) {
                    let s = &slots.slots[slot as usize];
                    match s.state {
                        State::Dirty => {}
                        State::Old => {
                            assert!(phase.todo.insert(s.block()), "one version a block");
                            phase.old_slots.push(slot);
                        }
                        State::Zero => phase.zeroes.push(slot),
                        State::Bad => drop(e.bad.insert(slot, true)),
                        _ if e.planted.is(Fault::OldNotKept) => {}
                        State::Free | State::Writing | State::Clean | State::Limbo => {
                            unreachable!("WC-SD1: slot {slot} is pending")
                        }
                    }
                }
            }
            phase.old_slots.sort_unstable_by_key(|&slot| slots.slots[slot as usize].block());
            (phase.first, phase.epoch) = (epoch, epoch);
            e.oldest = epoch;
            e.phase = Some(phase);
        });
    }

    /// WC-E4: all versions of the phase are on the origin. The next phase may begin when a durable
    /// record retires this epoch.
    pub(crate) fn retire_phase(&mut self) {
        self.with_epochs(|e, slots| {
            let phase = e.phase.take().expect("it was written");
            assert!(phase.closed && phase.todo.is_empty() && phase.zeroes.is_empty(), "WC-E4");
            for slot in std::mem::take(&mut e.retired_old) {
                assert!(matches!(slots.slots[slot as usize].state, State::Old | State::Zero));
                if !slots.slots[slot as usize].logged {
                    e.unlogged_kept -= 1; // it need not be logged any more
                    slots.counts.unlogged -= 1;
                }
                slots.release(slot);
            }
            e.pending.pop_through(phase.epoch);
            e.bad.retain(|_, in_phase| !*in_phase);
            e.oldest = phase.epoch + 1;
        });
    }

    /// The blocks that the phase has to write; `None` without a phase, and while it has zeroes to
    /// write (WC-Z2).
    pub(crate) fn phase_blocks(&self) -> Option<&RoaringTreemap> {
        let phase = self.epochs.as_ref()?.phase.as_ref().filter(|p| p.zeroes.is_empty())?;
        Some(match &phase.steps {
            Some(steps) => &steps.ready,
            None if phase.closed => &phase.todo,
            None => &self.dirty,
        })
    }

    /// As [`Slots::to_write`]; most likely it is `expected`.
    pub(crate) fn to_write_most_likely(
        &self,
        block: u64,
        expected: SlotRef,
    ) -> Option<(SlotRef, Option<u32>)> {
        if self.epochs.is_none() && self.is_newest_and_dirty(block, expected) {
            return Some(self.version_in(expected.slot));
        }
        self.to_write(block)
    }

    /// The version in a slot, with its checksum.
    fn version_in(&self, slot: u32) -> (SlotRef, Option<u32>) {
        let s = &self.slots[slot as usize];
        let crc = (!self.unchecked.contains(slot)).then_some(s.crc);
        (SlotRef { slot, stamp: s.stamp }, crc)
    }

    /// The version of `block` that is to be written back, with its checksum.
    pub(crate) fn to_write(&self, block: u64) -> Option<(SlotRef, Option<u32>)> {
        let current = || {
            let slot = self.slot_of(block)?;
            (self.slots[slot as usize].state == State::Dirty).then(|| self.version_in(slot))
        };
        let Some(e) = &self.epochs else { return current() };
        match &e.phase {
            Some(phase) if phase.closed && !phase.todo.contains(block) => None,
            Some(_) => {
                let old = e.old_in_phase(self, block).map(|slot| self.version_in(slot));
                old.or_else(current)
            }
            None => None,
        }
    }

    /// Whether a version in the queue is still in its slot and has to be written back: for a dump.
    pub(super) fn is_pending_of(&self, epoch: u64, slot: u32) -> bool {
        let Some(e) = &self.epochs else { return false };
        let s = &self.slots[slot as usize];
        if !s.logged || !e.is_pending(slot, s.state) {
            return false;
        }
        let is_zero = s.state == State::Zero;
        if is_zero && e.planted.is(Fault::ZeroesNotInCheckpoint) {
            return false;
        }
        match &e.phase {
            // Every dirty block has to be written; superseded versions are on the origin (WC-E5).
            Some(phase) if !phase.closed => s.state != State::Old,
            // WC-Z3. The zeroes may belong to a later epoch, in a slot that a block of the phase
            // has left.
            Some(phase) if epoch <= phase.epoch && is_zero => {
                phase.zeroes.contains(&slot) || e.retired_old.contains(&slot)
            }
            Some(phase) if epoch <= phase.epoch => {
                let version = e.old_in_phase(self, s.block()).or_else(|| self.slot_of(s.block()));
                phase.todo.contains(s.block()) && version == Some(slot)
            }
            _ => true,
        }
    }
}

impl Epochs {
    /// The blocks whose newest version is dirty and belongs to the first logged epoch.
    fn current_of_first(&self, slots: &Slots) -> RoaringTreemap {
        let slot = |slot: u32| &slots.slots[slot as usize];
        let (of_first, later) = self.pending.lens();
        if later + self.unlogged.len() < of_first {
            // Most of the dirty blocks, perhaps millions: take all dirty blocks, less those of
            // later epochs.
            let mut blocks = slots.dirty.clone();
            let unlogged = self.unlogged.iter().filter(|f| slots.is_unlogged(f)).map(|f| f.slot);
            let later = self.pending.later().chain(unlogged).map(slot);
            for s in later.filter(|s| s.state == State::Dirty) {
                blocks.remove(s.block());
            }
            return blocks;
        }
        let (mut blocks, mut part, mut spare) = (RoaringTreemap::new(), Vec::new(), Vec::new());
        for s in self.pending.members(false).map(slot).filter(|s| s.state == State::Dirty) {
            part.push(s.block());
            if part.len() == MERGED_BLOCKS {
                add_blocks(&mut blocks, &mut part, &mut spare);
            }
        }
        add_blocks(&mut blocks, &mut part, &mut spare);
        blocks
    }

    /// Versions that come from now on belong to a later epoch.
    pub(super) fn close(&mut self, slots: &Slots) {
        if let Some(phase) = self.phase.as_mut().filter(|p| p.epoch == self.open) {
            assert!(!self.open_zeroes, "WC-Z2");
            // Every dirty block belongs to this epoch: all earlier ones are retired.
            phase.closed = true;
            phase.todo = slots.dirty.clone();
        }
        self.open += 1;
        self.open_slots.clear();
        self.open_zeroes = false;
    }

    /// Seals `epoch`, which is closed and fully logged.
    pub(super) fn seal(&mut self, slots: &Slots, epoch: u64) {
        if !self.pending.begins(epoch) {
            self.seal_last(slots);
        }
    }

    /// Seals the last logged epoch, before the log begins a later one.
    pub(super) fn seal_last(&mut self, slots: &Slots) {
        let Epochs { pending, bad, .. } = self;
        pending.seal(|slot| {
            let s = &slots.slots[slot as usize];
            is_pending(bad, slot, s.state) && s.logged
        });
    }
}

#[cfg(test)]
#[path = "epochs_tests.rs"]
mod tests;
