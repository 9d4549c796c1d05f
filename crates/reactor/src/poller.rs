// SPDX-License-Identifier: Apache-2.0 OR MIT
//! Pollers: what a core looks at by itself while it is awake.
//!
//! A client that shares memory with a core, as a guest does by its rings, needs a system call to
//! wake the core, and the core another one to be woken. Neither is needed while the core is awake:
//! then a task waits by a [`Poller`] for what the client stores.
//!
//! ```text
//!   a task has taken all ──wait──▶ the core looks in each turn, and while it polls before a sleep
//!                                        │ ready: true         │ it is about to sleep: false
//!                                        ▼                     ▼
//!                                  the task takes more   the task asks the client to wake it, and
//!                                                        looks once more
//! ```
use std::future::poll_fn;
use std::rc::Rc;
use std::task::Poll;

use crate::core::with_core;
use crate::pollers::{Poller, State};

impl Poller {
    /// Waits until it is ready. False: this core does not poll now, or no longer, and is about to
    /// sleep. One task waits at a time.
    pub async fn wait(self: &Rc<Self>) -> bool {
        let is_added = with_core(|c| {
            let polls = c.driver.borrow().polls();
            if polls {
                self.state.set(State::Waits);
                c.pollers.borrow_mut().push(self.clone());
            }
            polls
        });
        if !is_added {
            return false;
        }
        poll_fn(|cx| match self.state.get() {
            State::Ended { is_ready } => Poll::Ready(is_ready),
            State::Waits => {
                self.waker.replace(Some(cx.waker().clone()));
                Poll::Pending
            }
        })
        .await
    }
}
