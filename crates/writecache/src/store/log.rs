// SPDX-License-Identifier: Apache-2.0 OR MIT
//! The position of the record log of the native format.
use std::cell::Cell;

use reactor::WaitList;

/// The record log: which records exist, which are durable, which are still needed.
pub(crate) struct Log {
    /// The incarnation of the log: one more each time that the cache is opened.
    pub(crate) incarnation: u64,
    /// Next record to write, and the checksum of the one before.
    pub(crate) next: Cell<(u64, u32)>,
    /// Newest record known durable, and its checksum.
    pub(crate) durable: Cell<(u64, u32)>,
    /// First record that recovery would need.
    pub(crate) start_seq: Cell<u64>,
    /// A checkpoint is about to end: its last commit may use the reserve (WC-LR1).
    pub(crate) closing: Cell<bool>,
    /// Waits for room in the log.
    pub(crate) room: WaitList,
}

impl Log {
    /// Units of the log that are needed.
    pub(crate) fn used(&self) -> u64 {
        self.next.get().0 - self.start_seq.get()
    }
}
