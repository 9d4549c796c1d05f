// SPDX-License-Identifier: Apache-2.0 OR MIT
//! Where the record log of the native format stands.
use std::cell::Cell;

use reactor::WaitList;

/// The record log: which records exist, which are durable, which are still needed.
pub(crate) struct Log {
    pub(crate) epoch: u64,
    /// Next record to write, and the checksum of the one before.
    pub(crate) next: Cell<(u64, u32)>,
    /// Newest record known durable, and its checksum.
    pub(crate) durable: Cell<(u64, u32)>,
    /// First record that recovery would need.
    pub(crate) start_seq: Cell<u64>,
    /// The checkpoint that runs may finish only after a commit: it gets all the room there is.
    pub(crate) closing: Cell<bool>,
    /// Room has been made.
    pub(crate) room: WaitList,
}

impl Log {
    /// Units of the log that are needed.
    pub(crate) fn used(&self) -> u64 {
        self.next.get().0 - self.start_seq.get()
    }
}
