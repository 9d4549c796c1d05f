// SPDX-License-Identifier: Apache-2.0 OR MIT
//! The state of ordered mode: open epoch, pending versions, and the epoch that is written back. The
//! operations on it, and their invariants, are in `epochs`.
use std::collections::{BTreeMap, VecDeque};

use block::Planted;
use roaring::{RoaringBitmap, RoaringTreemap};

use super::pending::PendingVersions;
use super::slot::State;
use crate::planted::Fault;

/// A version that is not logged yet.
#[derive(Clone, Copy)]
pub(super) struct UnloggedVersion {
    pub(super) epoch: u64,
    pub(super) slot: u32,
    pub(super) stamp: u32,
}

/// The epochs of a phase beyond the first, which are written one after the other (WC-E7).
#[derive(Default)]
pub(super) struct Steps {
    /// Blocks of the epochs whose turn has come.
    pub(super) ready: RoaringTreemap,
    /// Those of them that have not been written to the origin yet.
    pub(super) unsent: RoaringTreemap,
    /// The blocks of each later epoch.
    pub(super) later: VecDeque<Vec<u64>>,
}

/// The epoch that is written back (WC-E3), or several of them (WC-E7).
pub(super) struct Phase {
    pub(super) first: u64,
    /// The last one.
    pub(super) epoch: u64,
    /// With several epochs: which blocks may be written.
    pub(super) steps: Option<Steps>,
    /// Whether the epoch was closed when the phase began, or since. If so, the blocks of `todo` are
    /// left to write; otherwise every dirty block is.
    pub(super) closed: bool,
    pub(super) todo: RoaringTreemap,
    /// Slots of versions that were superseded before the phase began, sorted by block; `late` has
    /// those that were superseded since.
    pub(super) old_slots: Vec<u32>,
    /// Slots of its zeroes, which are written before its blocks.
    pub(super) zeroes: Vec<u32>,
    /// Zeroes of this epoch have been written.
    pub(super) has_zeroes_written: bool,
    pub(super) late: BTreeMap<u64, u32>,
}

/// See the module.
pub(super) struct Epochs {
    pub(super) open: u64,
    /// All epochs before `oldest` are retired. `oldest_logged` is the value in the durable log.
    pub(super) oldest: u64,
    pub(super) oldest_logged: u64,
    /// The running commit must log this epoch, or a later one, as the oldest.
    pub(super) commit_oldest: u64,
    /// Slots of the versions of the open epoch.
    pub(super) open_slots: RoaringBitmap,
    /// The open epoch has zeroes, and no blocks (WC-Z2).
    pub(super) open_zeroes: bool,
    /// Versions that are not logged yet, in the order of epochs. The running commit must log the
    /// first `commit_target` of them.
    pub(super) unlogged: VecDeque<UnloggedVersion>,
    pub(super) commit_target: usize,
    /// How many of `unlogged` are old versions or zeroes.
    pub(super) unlogged_kept: u64,
    /// Logged versions of pending epochs.
    pub(super) pending: PendingVersions,
    pub(super) phase: Option<Phase>,
    /// Slots of bad versions of pending epochs, and whether they belong to the phase.
    pub(super) bad: BTreeMap<u32, bool>,
    /// Slots of old versions that the origin has; they are released when the phase ends (WC-E5).
    pub(super) retired_old: Vec<u32>,
    /// Recovery has put versions without an epoch on the media into the oldest epoch.
    pub(super) repaired: bool,
    /// A planted fault.
    pub(super) planted: Planted<Fault>,
}

impl Epochs {
    /// The state with `oldest` as the first pending epoch.
    pub(super) fn new(oldest: u64, open: u64) -> Epochs {
        Epochs {
            open,
            oldest,
            oldest_logged: oldest,
            commit_oldest: oldest,
            open_slots: RoaringBitmap::new(),
            open_zeroes: false,
            unlogged: VecDeque::new(),
            commit_target: 0,
            unlogged_kept: 0,
            pending: PendingVersions::default(),
            phase: None,
            bad: BTreeMap::new(),
            retired_old: Vec::new(),
            repaired: false,
            planted: Planted::NONE,
        }
    }

    /// Whether the phase still has to write its version of `block`.
    pub(super) fn is_todo(&self, block: u64) -> bool {
        self.phase.as_ref().is_some_and(|p| p.closed && p.todo.contains(block))
    }

    /// The first epoch that may have versions to write back.
    pub(super) fn first_pending(&self) -> Option<u64> {
        let unlogged = self.unlogged.front().map(|f| f.epoch);
        unlogged.into_iter().chain(self.pending.first_epoch()).min()
    }

    /// Removes a slot from the open epoch and from the bad versions.
    pub(super) fn forget_slot(&mut self, slot: u32) {
        self.open_slots.remove(slot);
        self.bad.remove(&slot);
    }

    /// An unreadable version is readable again. Returns false if its epoch is written back without
    /// it, or was.
    pub(super) fn restore(&mut self, slot: u32) -> bool {
        let is_pending = self.bad.get(&slot) == Some(&false);
        if is_pending {
            self.bad.remove(&slot);
        }
        is_pending
    }

    /// A version has moved from one slot to another; slots with stamps. It may be in the phase: the
    /// open epoch is written back before it is logged, a closed one before its record is durable.
    pub(super) fn move_slot(&mut self, from: (u32, u32), to: (u32, u32)) {
        if self.open_slots.remove(from.0) {
            self.open_slots.insert(to.0);
        }
        let moved = |f: &&mut UnloggedVersion| (f.slot, f.stamp) == from;
        for version in self.unlogged.iter_mut().filter(moved) {
            (version.slot, version.stamp) = to;
        }
        if let Some(phase) = &mut self.phase {
            // One slot of the same block for another: `old_slots` stays sorted.
            let slots = phase.old_slots.iter_mut().chain(phase.late.values_mut());
            slots.filter(|slot| **slot == from.0).for_each(|slot| *slot = to.0);
        }
        let retired = self.retired_old.iter_mut().filter(|slot| **slot == from.0);
        retired.for_each(|slot| *slot = to.0);
        self.pending.rename(from.0, to.0);
    }

    /// Whether a slot of this state belongs to a pending epoch.
    pub(super) fn is_pending(&self, slot: u32, state: State) -> bool {
        is_pending(&self.bad, slot, state)
    }

    /// Removes `block` from what the phase has to write.
    pub(super) fn done(&mut self, block: u64) {
        if let Some(phase) = &mut self.phase {
            phase.todo.remove(block);
            if let Some(steps) = &mut phase.steps {
                steps.ready.remove(block);
                steps.unsent.remove(block);
            }
        }
    }
}

pub(super) fn is_pending(bad: &BTreeMap<u32, bool>, slot: u32, state: State) -> bool {
    match state {
        State::Dirty | State::Old | State::Zero => true,
        State::Bad => bad.contains_key(&slot),
        State::Free | State::Writing | State::Clean | State::Limbo => false,
    }
}
