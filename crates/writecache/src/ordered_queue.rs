// SPDX-License-Identifier: Apache-2.0 OR MIT
//! Ordered queue: tasks take a ticket, work concurrently, and then proceed in the order of tickets.
use std::cell::{Cell, RefCell};
use std::collections::BTreeMap;
use std::future::poll_fn;
use std::task::{Poll, Waker};

/// Numbered tickets, served one after the other. Each ticket must be waited for and then advanced,
/// or the tickets behind it wait forever.
#[derive(Default)]
pub(crate) struct OrderedQueue {
    taken: Cell<u64>,
    /// The ticket whose turn it is.
    serving: Cell<u64>,
    waiting: RefCell<BTreeMap<u64, Waker>>,
}

impl OrderedQueue {
    /// The next ticket.
    pub(crate) fn take_ticket(&self) -> u64 {
        self.taken.replace(self.taken.get() + 1)
    }

    /// Waits until all earlier tickets have been advanced.
    pub(crate) async fn wait_turn(&self, ticket: u64) {
        poll_fn(|cx| {
            if self.serving.get() == ticket {
                return Poll::Ready(());
            }
            self.waiting.borrow_mut().insert(ticket, cx.waker().clone());
            Poll::Pending
        })
        .await;
    }

    /// Ends the turn of `ticket`; the next ticket's turn begins.
    pub(crate) fn advance(&self, ticket: u64) {
        assert_eq!(self.serving.get(), ticket, "it was this ticket's turn");
        self.serving.set(ticket + 1);
        if let Some(next) = self.waiting.borrow_mut().remove(&(ticket + 1)) {
            next.wake();
        }
    }
}
