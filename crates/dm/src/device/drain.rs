// SPDX-License-Identifier: Apache-2.0 OR MIT
//! What a device waits for before it changes: what is in flight below its live table, and below
//! tables that were replaced by force and have not settled yet.
use std::cell::{Cell, RefCell};
use std::rc::{Rc, Weak};

use block::{Nanos, OnIoError};
use reactor::WaitList;

use crate::in_flight::InFlight;

#[derive(Default)]
pub(super) struct Drain {
    /// Below the live table.
    pub(super) live: RefCell<Rc<InFlight>>,
    /// Below tables that were replaced by force, as long as something is in flight there.
    replaced: RefCell<Vec<Rc<InFlight>>>,
    /// Tables that were replaced by force and have not settled.
    unsettled: Cell<usize>,
    settled: WaitList,
}

impl Drain {
    pub(super) fn new(watcher: Weak<dyn OnIoError>) -> Drain {
        let drain = Drain::default();
        drain.live.borrow().watch(watcher);
        drain
    }

    /// All that may still be in flight, the live table's last.
    pub(super) fn all(&self) -> Vec<Rc<InFlight>> {
        let mut all = self.replaced.borrow().clone();
        all.push(self.live.borrow().clone());
        all
    }

    /// The live table is replaced by force: its requests are counted apart from those that come.
    pub(super) fn replace(&self, watcher: Weak<dyn OnIoError>) -> Rc<InFlight> {
        let old = self.live.take();
        self.live.borrow().watch(watcher);
        self.replaced.borrow_mut().push(old.clone());
        self.unsettled.set(self.unsettled.get() + 1);
        old
    }

    /// Nothing of `old`, a table that was replaced, is in flight any more.
    pub(super) fn end(&self, old: &Rc<InFlight>) {
        self.replaced.borrow_mut().retain(|other| !Rc::ptr_eq(other, old));
    }

    /// A table that was replaced has settled.
    pub(super) fn settle(&self) {
        self.unsettled.set(self.unsettled.get() - 1);
        self.settled.wake_all();
    }

    pub(super) fn is_settled(&self) -> bool {
        self.unsettled.get() == 0
    }

    /// Waits until all tables that were replaced have settled, or [`Drain::look_again`] finds that
    /// it is `end`.
    pub(super) async fn settled_by(&self, end: Nanos) {
        self.settled.wait_for(|| self.is_settled() || reactor::now() >= end).await;
    }

    pub(super) fn look_again(&self) {
        self.settled.wake_all();
    }
}
