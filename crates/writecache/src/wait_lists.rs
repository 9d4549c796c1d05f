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
    /// There is a first dirty or unlogged block: tasks begin to count time.
    pub(crate) first_change: WaitList,
    /// Many blocks are unlogged: a commit is due.
    pub(crate) commit: WaitList,
    /// Half of the log is in use: a checkpoint is due.
    pub(crate) checkpoint: WaitList,
    /// Slots have become free, or no slot can become free: depends on the states of slots and on
    /// blocks that the origin refuses.
    pub(crate) free_slots: WaitList,
    /// Few slots are free, and clean ones can be dropped.
    pub(crate) reclaim: WaitList,
    /// There are blocks to write back, and few enough writes are in flight.
    pub(crate) pick: WaitList,
    /// Counts events that may have made a block eligible for the picking task.
    eligible: Cell<u64>,
    /// An origin flush is due: enough blocks were written, or no more will be.
    pub(crate) settle: WaitList,
    /// Writes to the origin have ended.
    pub(crate) writes_ended: WaitList,
    /// Blocks are not busy any more (WC-WB1).
    pub(crate) unlocked: WaitList,
    /// A `flush` or a `drain` may be done.
    pub(crate) jobs: WaitList,
    /// A block waits for its next try.
    pub(crate) retry: WaitList,
    /// Filled writes have ended (WC-SP2).
    pub(crate) fills: WaitList,
    /// The reads of a span have ended.
    pub(crate) slot_reads: WaitList,
}

impl WaitLists {
    /// Wakes all lists.
    pub(crate) fn wake_all(&self) {
        self.blocks_changed();
        self.checkpoint.wake_all();
        self.writes_ended.wake_all();
        self.unlocked.wake_all();
        self.jobs.wake_all();
        self.retry.wake_all();
        self.fills.wake_all();
        self.slot_reads.wake_all();
    }

    /// Blocks have changed their state: dirty, clean, unlogged, free.
    ///
    /// Writeback is woken first and writers last: tasks that need a commit in the same turn of the
    /// loop then share one. With few free slots another order needs more commits.
    pub(crate) fn blocks_changed(&self) {
        self.first_change.wake_all();
        self.pick.wake_all();
        self.settle.wake_all();
        self.reclaim.wake_all();
        self.commit.wake_all();
        self.free_slots.wake_all();
    }

    /// A write or a flush of the origin has ended.
    pub(crate) fn write_ended(&self) {
        self.pick.wake_all();
        self.settle.wake_all();
        self.writes_ended.wake_all();
        self.free_slots.wake_all();
    }

    /// Blocks may have become eligible for writeback: the picking task looks for them again.
    pub(crate) fn recheck(&self) {
        self.eligible.set(self.eligible.get() + 1);
        self.pick.wake_all();
    }

    /// A counter that changes when blocks may have become eligible.
    pub(crate) fn eligible(&self) -> u64 {
        self.eligible.get()
    }
}
