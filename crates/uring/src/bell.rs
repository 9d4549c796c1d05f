// SPDX-License-Identifier: Apache-2.0 OR MIT
//! Bell: the read of a core's eventfd that is always armed on its ring.
use std::os::fd::AsRawFd;

use io_uring::{IoUring, opcode, types};

use crate::mailbox::Mailbox;

/// `user_data` of the bell's read; no slab has that many entries.
pub(crate) const BELL: u64 = u64::MAX;

pub(crate) struct Bell {
    mailbox: Mailbox,
    /// What the kernel reads the counter into: the address is stable and outlives the read (U1).
    pub(crate) counter: Box<[u8; 8]>,
    pub(crate) armed: bool,
}

impl Bell {
    pub(crate) fn new(mailbox: Mailbox) -> Bell {
        Bell { mailbox, counter: Box::new([0; 8]), armed: false }
    }

    pub(crate) fn mailbox(&self) -> &Mailbox {
        &self.mailbox
    }

    /// Arms the bell if it is not. Makes room for it: a core that parked without it would be deaf.
    pub(crate) fn arm(&mut self, ring: &mut IoUring) {
        if self.armed {
            return;
        }
        let fd = types::Fd(self.mailbox.bell().as_raw_fd());
        let read = opcode::Read::new(fd, self.counter.as_mut_ptr(), 8).build().user_data(BELL);
        // SAFETY: U1: the ring's owner keeps `counter` and the eventfd until the read is reaped.
        let push = |ring: &mut IoUring| unsafe { ring.submission().push(&read) }.is_ok();
        // When no room can be made, completions are there to be reaped: the park comes back.
        self.armed = push(ring) || (ring.submit().is_ok() && push(ring));
    }
}
