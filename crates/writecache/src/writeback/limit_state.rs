// SPDX-License-Identifier: Apache-2.0 OR MIT
//! What limits of writeback keep in mind; how they are applied is in `limits`.
use std::cell::{Cell, RefCell};

use policy::{RateLimit, TailLimit};

/// See the module.
#[derive(Default)]
pub(crate) struct Limits {
    pub(super) rate: RefCell<RateLimit>,
    pub(super) pace: RefCell<RateLimit>,
    pub(super) tail: RefCell<TailLimit>,
    /// Runs that have ended and wait for a flush of the origin; and those of the flush that is
    /// under way.
    pub(super) written: Cell<usize>,
    pub(super) settling: Cell<usize>,
    /// No run before this moment.
    pub(super) pause_until_ns: Cell<u64>,
    /// A timer runs that makes the tasks look again at what a latency target allows.
    pub(super) timer: Cell<bool>,
}

impl Limits {
    /// What was written counts as not written.
    pub(super) fn reset_written(&self) {
        self.written.set(0);
    }

    /// The limits have changed: what was owed to the old ones is forgotten.
    pub(crate) fn forgive(&self) {
        self.rate.borrow_mut().forgive();
        self.pace.borrow_mut().forgive();
        self.pause_until_ns.set(0);
    }
}
