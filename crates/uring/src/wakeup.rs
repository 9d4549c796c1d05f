// SPDX-License-Identifier: Apache-2.0 OR MIT
//! The read of a core's eventfd that is always armed on its ring, so that other threads can wake
//! it.
use std::os::fd::AsRawFd;

use io_uring::{IoUring, opcode, types};

use crate::mailbox::Mailbox;

/// `user_data` of this read; no slab has that many entries.
pub(crate) const WAKEUP: u64 = u64::MAX;

pub(crate) struct WakeupRead {
    mailbox: Mailbox,
    /// What the kernel reads the counter into: the address is stable and outlives the read (UR-U1).
    pub(crate) counter: Box<[u8; 8]>,
    pub(crate) armed: bool,
}

impl WakeupRead {
    pub(crate) fn new(mailbox: Mailbox) -> WakeupRead {
        WakeupRead { mailbox, counter: Box::new([0; 8]), armed: false }
    }

    pub(crate) fn mailbox(&self) -> &Mailbox {
        &self.mailbox
    }

    /// Arms the read if it is not armed, and makes room for it: without it a parked core would miss
    /// messages.
    pub(crate) fn arm(&mut self, ring: &mut IoUring) {
        if self.armed {
            return;
        }
        let fd = types::Fd(self.mailbox.eventfd().as_raw_fd());
        let read = opcode::Read::new(fd, self.counter.as_mut_ptr(), 8).build().user_data(WAKEUP);
        // SAFETY: UR-U1: the ring's owner keeps `counter` and the eventfd until the read is reaped.
        let push = |ring: &mut IoUring| unsafe { ring.submission().push(&read) }.is_ok();
        // If no room can be made, there are completions to reap: the park returns at once.
        self.armed = push(ring) || (ring.submit().is_ok() && push(ring));
    }
}
