// SPDX-License-Identifier: Apache-2.0 OR MIT
//! Wait list: the one synchronisation primitive.
use std::cell::RefCell;
use std::fmt;
use std::future::poll_fn;
use std::task::{Poll, Waker};

/// Tasks that wait for a predicate over their core's state. Whoever changes that state wakes all;
/// each waiter looks again, so a wake-up can't be lost and a spurious one does no harm.
#[derive(Default)]
pub struct WaitList(RefCell<Vec<Waker>>);

impl WaitList {
    /// A list with nobody on it.
    pub const fn new() -> WaitList {
        WaitList(RefCell::new(Vec::new()))
    }

    /// Lets every waiter look again.
    pub fn wake_all(&self) {
        // The waiters may come back while we wake, so the list is not borrowed meanwhile.
        let mut waiters = self.0.take();
        for w in waiters.drain(..) {
            w.wake();
        }
        let mut now = self.0.borrow_mut();
        if now.is_empty() {
            *now = waiters; // keeps the allocation
        }
    }

    /// Whether nobody waits.
    pub fn is_empty(&self) -> bool {
        self.0.borrow().is_empty()
    }

    /// Waits until `ready` holds; looks at once, and again after every wake.
    pub async fn wait_for(&self, mut ready: impl FnMut() -> bool) {
        poll_fn(|cx| {
            if ready() {
                return Poll::Ready(());
            }
            let mut list = self.0.borrow_mut();
            if !list.iter().any(|w| w.will_wake(cx.waker())) {
                list.push(cx.waker().clone());
            }
            Poll::Pending
        })
        .await;
    }
}

impl fmt::Debug for WaitList {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        write!(f, "WaitList({} waiting)", self.0.borrow().len())
    }
}
