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
//!
//! What it reports of a table of before: DM-UT4 and DM-UT5 of `untold`.
use std::cell::{Cell, RefCell};
use std::collections::VecDeque;
use std::rc::{Rc, Weak};

use block::{Bio, OnIoError, Op, Sector, Status};

use super::untold::{Report, Untold};

/// The queue.
#[derive(Default)]
pub(crate) struct Waiting {
    bios: RefCell<VecDeque<Waiter>>,
    failed: Rc<FailedFlushes>,
}

struct Waiter {
    bio: Bio,
    /// Number of FLUSHes below that had failed when it came.
    failed: u64,
    /// Nothing was in flight any more.
    is_last: bool,
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

    /// `is_last`: nothing is in flight below, so every change was acknowledged before.
    pub(crate) fn push(&self, bio: Bio, is_last: bool) {
        self.bios.borrow_mut().push_back(Waiter { bio, failed: self.failed.0.get(), is_last });
    }

    /// Submits all of them, but for FLUSHes that must fail: `fail` sends those that must hear of a
    /// table of before, and the others fail at once (DM-DW1).
    pub(crate) fn send(
        &self,
        untold: &Untold,
        submit: impl Fn(Bio),
        fail: impl Fn(Bio, Option<Report>),
    ) {
        let failed = self.failed.0.get();
        let ask = |waiter: Waiter| {
            let is_flush = waiter.bio.op == Op::Flush;
            let report = is_flush.then(|| untold.must_hear(waiter.bio.opener)).flatten();
            (waiter, report)
        };
        // All of them before the first one goes (DM-UT4).
        let all: Vec<(Waiter, Option<Report>)> = self.bios.take().into_iter().map(ask).collect();
        for (waiter, report) in all {
            let has_failed = waiter.bio.op == Op::Flush && waiter.failed != failed;
            match report {
                Some(report) => fail(waiter.bio, waiter.is_last.then_some(report)),
                None if has_failed => waiter.bio.complete(Status::Io),
                None => submit(waiter.bio),
            }
        }
    }

    /// Fails all of them.
    pub(crate) fn fail(&self, status: Status) {
        for waiter in self.bios.take() {
            waiter.bio.complete(status);
        }
    }
}
