// SPDX-License-Identifier: Apache-2.0 OR MIT
//! Wait lists of one cache: a list for each condition that its tasks and clients wait for.
//!
//! Invariant
//! - WC-WL1 Code that makes a condition true wakes its list afterwards: each list names what its
//!   condition depends on. A failure, a suspend and changed options wake all lists.
use std::cell::Cell;

use reactor::WaitList;

/// See the module. A list without waiters costs one test when it is woken.
#[derive(Default)]
pub(crate) struct WaitLists {
    /// The first dirty or unlogged block is there: tasks then begin to count time.
    pub(crate) first_change: WaitList,
    /// Many blocks are unlogged: a commit is due.
    pub(crate) commit: WaitList,
    /// Half of the log is in use: a checkpoint is due.
    pub(crate) checkpoint: WaitList,
    /// Slots have become free, or a writer waits for one in vain: states of slots, and what the
    /// origin has refused.
    pub(crate) free_slots: WaitList,
    /// Few slots are free, and clean ones can be dropped.
    pub(crate) reclaim: WaitList,
    /// There is something to write back, and room in flight.
    pub(crate) pick: WaitList,
    /// Counts what may have made a block eligible for the picking task.
    eligible: Cell<u64>,
    /// Enough was written to the origin to be flushed, or nothing more comes.
    pub(crate) settle: WaitList,
    /// Writes to the origin have ended.
    pub(crate) writes_ended: WaitList,
    /// Blocks are not busy any more (WC-WB1).
    pub(crate) unlocked: WaitList,
    /// A `flush` or a `drain` may be done.
    pub(crate) jobs: WaitList,
    /// A block waits to be tried again.
    pub(crate) retry: WaitList,
    /// Filled writes have ended (WC-SP2).
    pub(crate) fills: WaitList,
}

impl WaitLists {
    /// Everything may have changed.
    pub(crate) fn wake_all(&self) {
        self.blocks_changed();
        self.checkpoint.wake_all();
        self.writes_ended.wake_all();
        self.unlocked.wake_all();
        self.jobs.wake_all();
        self.retry.wake_all();
        self.fills.wake_all();
    }

    /// Blocks have other states: dirty, clean, unlogged ones, or free slots.
    ///
    /// Writeback runs first and writers last: what ends in the same turn then shares one commit. In
    /// a cache with few free slots another order takes more commits.
    pub(crate) fn blocks_changed(&self) {
        self.first_change.wake_all();
        self.pick.wake_all();
        self.settle.wake_all();
        self.reclaim.wake_all();
        self.commit.wake_all();
        self.free_slots.wake_all();
    }

    /// A write to the origin, or a flush of it, has ended: it was in flight, and counted.
    pub(crate) fn write_ended(&self) {
        self.pick.wake_all();
        self.settle.wake_all();
        self.writes_ended.wake_all();
        self.free_slots.wake_all();
    }

    /// There may be new reasons to write something back: the picking task looks for blocks again.
    pub(crate) fn recheck(&self) {
        self.eligible.set(self.eligible.get() + 1);
        self.pick.wake_all();
    }

    /// Changes when blocks may have become eligible.
    pub(crate) fn eligible(&self) -> u64 {
        self.eligible.get()
    }
}
