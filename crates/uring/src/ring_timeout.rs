// SPDX-License-Identifier: Apache-2.0 OR MIT
//! A timeout that stays in the ring of a core, for deadlines that are far away.
//!
//! A wait with a deadline starts a timer of the kernel and ends it again, and needs the clock to
//! know how long it may take. A core nearly always has a deadline some seconds away, of something
//! that is to be looked at then, and sleeps thousands of times before it. So such a deadline
//! becomes a request of the ring, once, and the sleeps need none.
use block::Nanos;
use io_uring::{IoUring, opcode, types};

use crate::wakeup::WAKEUP;

/// `user_data` of the timeout; no slab has that many entries.
pub(crate) const TIMEOUT: u64 = WAKEUP - 2;

/// Nearer deadlines are left to the wait. Chosen: many sleeps are shorter than this.
const FAR: Nanos = Nanos::from_millis(5);

#[derive(Default)]
pub(crate) struct RingTimeout {
    /// When it ends.
    at: Option<Nanos>,
    /// How far away that was, for the kernel, which reads it only as it takes the entry.
    left: Box<types::Timespec>,
}

impl RingTimeout {
    /// Whether it ends by `deadline`: then a sleep until then needs no timer of its own.
    pub(crate) fn ends_by(&self, deadline: Nanos) -> bool {
        self.at.is_some_and(|at| at <= deadline)
    }

    /// Sets it for `deadline`, which is `left` away, if that is far and it is not set. Returns
    /// whether it has been set.
    pub(crate) fn set(&mut self, ring: &mut IoUring, deadline: Nanos, left: Nanos) -> bool {
        if self.at.is_some() || left < FAR {
            return false;
        }
        *self.left = timespec(left);
        let timeout = opcode::Timeout::new(&raw const *self.left).build().user_data(TIMEOUT);
        // SAFETY: `left` is not changed before the timeout has ended, and lives as long as the
        // ring's owner: without it nobody submits the entry.
        if unsafe { ring.submission().push(&timeout) }.is_ok() {
            self.at = Some(deadline);
        }
        self.at.is_some()
    }

    /// It has ended.
    pub(crate) fn has_ended(&mut self) {
        self.at = None;
    }
}

/// A time as the kernel takes it.
pub(crate) fn timespec(Nanos(ns): Nanos) -> types::Timespec {
    let nsec = u32::try_from(ns % 1_000_000_000).expect("below 10^9");
    types::Timespec::new().sec(ns / 1_000_000_000).nsec(nsec)
}
