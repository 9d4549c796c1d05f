// SPDX-License-Identifier: Apache-2.0 OR MIT
//! OrderedQueue: tasks that began in some order do one thing in that order, whatever they do before
//! it.
use std::cell::{Cell, RefCell};
use std::collections::BTreeMap;
use std::future::poll_fn;
use std::task::{Poll, Waker};

/// Numbered tickets, called one after the other. Whoever draws one must come to its turn and pass
/// it on, or nobody behind it ever gets one.
#[derive(Default)]
pub(crate) struct OrderedQueue {
    drawn: Cell<u64>,
    /// The ticket whose turn it is.
    called: Cell<u64>,
    waiting: RefCell<BTreeMap<u64, Waker>>,
}

impl OrderedQueue {
    /// The next ticket.
    pub(crate) fn take_ticket(&self) -> u64 {
        self.drawn.replace(self.drawn.get() + 1)
    }

    /// Waits until all earlier tickets have been passed on.
    pub(crate) async fn wait_turn(&self, ticket: u64) {
        poll_fn(|cx| {
            if self.called.get() == ticket {
                return Poll::Ready(());
            }
            self.waiting.borrow_mut().insert(ticket, cx.waker().clone());
            Poll::Pending
        })
        .await;
    }

    /// Ends a turn.
    pub(crate) fn advance(&self, ticket: u64) {
        assert_eq!(self.called.get(), ticket, "it was this ticket's turn");
        self.called.set(ticket + 1);
        if let Some(next) = self.waiting.borrow_mut().remove(&(ticket + 1)) {
            next.wake();
        }
    }
}
