// SPDX-License-Identifier: Apache-2.0 OR MIT
//! Waiting: the bios that came to a device while it was suspended, in order.
//!
//! What a FLUSH must tell is fixed when it is submitted. One that waits reaches the device below
//! only after the resume. A FLUSH of the same opener that was in flight when the suspend began may
//! have failed by then and have told of the error, and the device below would find nothing new.
//!
//! Invariant
//! - DM-DW1 A FLUSH that waits fails if one below has failed since it came.
use std::cell::{Cell, RefCell};
use std::collections::VecDeque;
use std::rc::{Rc, Weak};

use block::{Bio, OnIoError, Op, Sector, Status};

/// See the module.
#[derive(Default)]
pub(crate) struct Waiting {
    /// Each with how many FLUSHes below had failed when it came.
    bios: RefCell<VecDeque<(Bio, u64)>>,
    failed: Rc<FailedFlushes>,
}

/// How many FLUSHes have failed on the devices that it watches.
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
    /// What a device below is to tell of its faults from now on.
    pub(crate) fn watcher(&self) -> Weak<dyn OnIoError> {
        let failed: Rc<dyn OnIoError> = self.failed.clone();
        Rc::downgrade(&failed)
    }

    pub(crate) fn push(&self, bio: Bio) {
        self.bios.borrow_mut().push_back((bio, self.failed.0.get()));
    }

    /// Sends all of them on, but for FLUSHes that must fail (DM-DW1).
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
