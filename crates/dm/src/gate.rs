// SPDX-License-Identifier: Apache-2.0 OR MIT
//! Gate and lock: what a device waits for before it changes.
use std::cell::Cell;

use block::{Status, crashing};
use reactor::{OnDone, WaitList};

/// Counts what is in flight below a device: bios, and messages to its targets.
#[derive(Default)]
pub(crate) struct Gate {
    in_flight: Cell<usize>,
    idle: WaitList,
}

impl Gate {
    pub(crate) fn enter(&self) {
        self.in_flight.set(self.in_flight.get() + 1);
    }

    /// Waits until nothing is in flight.
    pub(crate) async fn drained(&self) {
        self.idle.wait_for(|| self.in_flight.get() == 0).await;
    }

    pub(crate) fn leave(&self) {
        let left = self.in_flight.get() - 1;
        self.in_flight.set(left);
        if left == 0 && !self.idle.is_empty() {
            self.idle.wake_all();
        }
    }
}

impl OnDone for Gate {
    fn on_done(&self, _status: Status, _tag: u64) {
        self.leave();
    }
}

/// A mutual exclusion of tasks.
#[derive(Default)]
pub(crate) struct Lock {
    held: Cell<bool>,
    waiters: WaitList,
}

#[must_use = "the lock is free again when this is dropped"]
pub(crate) struct Held<'a>(&'a Lock);

impl Lock {
    pub(crate) async fn acquire(&self) -> Held<'_> {
        self.waiters.wait_for(|| !self.held.replace(true)).await;
        Held(self)
    }
}

impl Drop for Held<'_> {
    fn drop(&mut self) {
        self.0.held.set(false);
        if !crashing() {
            self.0.waiters.wake_all();
        }
    }
}
