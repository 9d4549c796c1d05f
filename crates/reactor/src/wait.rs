// SPDX-License-Identifier: Apache-2.0 OR MIT
//! Wait list: the one synchronisation primitive.
use std::cell::{Cell, RefCell};
use std::future::poll_fn;
use std::task::{Poll, Waker};

/// Tasks that wait for a predicate over their core's state. Whoever changes that state wakes all;
/// each waiter looks again, so a wake-up can't be lost and a spurious one does no harm.
#[derive(Default)]
pub struct WaitList {
    waiters: RefCell<Vec<Waker>>,
    /// Counts `wake_all`s: who has registered since the last one is on the list already.
    round: Cell<u64>,
}

impl WaitList {
    /// A list with nobody on it.
    pub const fn new() -> WaitList {
        WaitList { waiters: RefCell::new(Vec::new()), round: Cell::new(0) }
    }

    /// Lets every waiter look again.
    pub fn wake_all(&self) {
        // Waking only queues tasks, so nobody comes back to the list meanwhile.
        self.round.set(self.round.get() + 1);
        for waiter in self.waiters.borrow_mut().drain(..) {
            waiter.wake();
        }
    }

    /// Whether nobody waits.
    pub fn is_empty(&self) -> bool {
        self.waiters.borrow().is_empty()
    }

    /// Waits until `ready` holds; looks at once, and again after every wake.
    pub async fn wait_for(&self, mut ready: impl FnMut() -> bool) {
        let mut registered = None;
        poll_fn(|cx| {
            if ready() {
                return Poll::Ready(());
            }
            if registered != Some(self.round.get()) {
                registered = Some(self.round.get());
                self.waiters.borrow_mut().push(cx.waker().clone());
            }
            Poll::Pending
        })
        .await;
    }
}

block::debug_as!(WaitList, s => "WaitList({} waiting)", s.waiters.borrow().len());
