// SPDX-License-Identifier: Apache-2.0 OR MIT
//! The state of the limits of writeback, which `limits` applies.
use std::cell::{Cell, RefCell};

use policy::{RateLimit, TailLimit};

/// See the module.
#[derive(Default)]
pub(crate) struct LimitState {
    pub(super) rate: RefCell<RateLimit>,
    pub(super) pace: RefCell<RateLimit>,
    pub(super) tail: RefCell<TailLimit>,
    /// Runs that have been written and wait for a flush of the origin, and runs that the running
    /// flush covers.
    pub(super) written: Cell<usize>,
    pub(super) settling: Cell<usize>,
    /// No run begins before this time.
    pub(super) pause_until_ns: Cell<u64>,
    /// A timer is running after which tasks check the latency target again.
    pub(super) timer: Cell<bool>,
}

impl LimitState {
    /// Counts no run as written any more.
    pub(super) fn reset_written(&self) {
        self.written.set(0);
    }

    /// The limits have changed: clears the debts to the old ones.
    pub(crate) fn reset(&self) {
        self.rate.borrow_mut().forgive();
        self.pace.borrow_mut().forgive();
        self.pause_until_ns.set(0);
    }
}
