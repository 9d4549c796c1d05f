// SPDX-License-Identifier: Apache-2.0 OR MIT
//! The position of the record log of the native format.
use std::cell::Cell;

use reactor::WaitList;

/// The record log: which records exist, which are durable, which are still needed.
pub(crate) struct Log {
    /// The incarnation of the log: incremented each time that the cache is opened.
    pub(crate) incarnation: u64,
    /// The number of the next record, and the checksum of the record before it.
    pub(crate) next: Cell<(u64, u32)>,
    /// The newest record that is known to be durable, and its checksum.
    pub(crate) durable: Cell<(u64, u32)>,
    /// The first record that recovery would read.
    pub(crate) start_seq: Cell<u64>,
    /// A checkpoint is about to end: its last commit may use the reserve (WC-LR1).
    pub(crate) closing: Cell<bool>,
    /// The log is about to move to another place, with less in it than usual (WC-GR5).
    pub(crate) is_moving: Cell<bool>,
    /// Waits for room in the log.
    pub(crate) room: WaitList,
}

impl Log {
    /// Units of the log in use.
    pub(crate) fn used(&self) -> u64 {
        self.next.get().0 - self.start_seq.get()
    }
}
