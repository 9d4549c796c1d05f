// SPDX-License-Identifier: Apache-2.0 OR MIT
//! The bios that came to a device while it was suspended, in order.
//!
//! Which writes a FLUSH covers is fixed when it is submitted, but one that waits reaches the device
//! below only after the resume. If a FLUSH of the same opener was in flight when the suspend began
//! and has failed since, the device below has reported that error, and would let the FLUSH that
//! waited succeed.
//!
//! Invariant
//! - DM-DW1 A FLUSH that waits fails if a FLUSH below has failed since it came.
use std::cell::{Cell, RefCell};
use std::collections::VecDeque;
use std::rc::{Rc, Weak};

use block::{Bio, OnIoError, Op, Sector, Status};

/// The queue.
#[derive(Default)]
pub(crate) struct Waiting {
    /// Each with the number of FLUSHes below that had failed when it came.
    bios: RefCell<VecDeque<(Bio, u64)>>,
    failed: Rc<FailedFlushes>,
}

/// The number of FLUSHes that have failed on the devices that it watches.
#[derive(Default)]
struct FailedFlushes(Cell<u64>);

impl OnIoError for FailedFlushes {
    fn on_io_error(&self, op: Op, _: Sector, _: Sector, _: Status) {
        if op == Op::Flush {
            self.0.set(self.0.get() + 1);
        }
    }
}

impl Waiting {
    /// Watches a device below for failed FLUSHes.
    pub(crate) fn watcher(&self) -> Weak<dyn OnIoError> {
        let failed: Rc<dyn OnIoError> = self.failed.clone();
        Rc::downgrade(&failed)
    }

    pub(crate) fn push(&self, bio: Bio) {
        self.bios.borrow_mut().push_back((bio, self.failed.0.get()));
    }

    /// Submits all of them, but for FLUSHes that must fail (DM-DW1).
    pub(crate) fn send(&self, submit: impl Fn(Bio)) {
        let failed = self.failed.0.get();
        for (bio, before) in self.bios.take() {
            match bio.op == Op::Flush && before != failed {
                true => bio.complete(Status::Io),
                false => submit(bio),
            }
        }
    }

    /// Fails all of them.
    pub(crate) fn fail(&self, status: Status) {
        for (bio, _) in self.bios.take() {
            bio.complete(status);
        }
    }
}
