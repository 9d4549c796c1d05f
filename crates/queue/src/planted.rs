// SPDX-License-Identifier: Apache-2.0 OR MIT
//! Faults of this room that its tests plant, to prove that they would be found.

/// One fault.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(crate) enum Fault {
    /// The end of a throttled write wakes no waiter.
    LoseWakeUp,
    /// Another latency target, or none, wakes no waiter.
    NoWakeOnChange,
    /// Leaves of other cores on the same file are not woken.
    WakeNoPeer,
    /// The error of a failed piece is dropped.
    ForgetError,
    /// Pieces keep their tokens.
    LeakToken,
    /// The copy of the limits is never refreshed.
    StaleLimits,
    /// Reads of writeback go past the limits.
    ReadsPass,
    /// Merges of a block, and writes of it, do not wait for each other.
    NoRangeLock,
    /// A merge does not wait for changes that were in flight before it.
    IgnoreInFlight,
    /// A merged write is not FUA.
    IgnoreFua,
}
