// SPDX-License-Identifier: Apache-2.0 OR MIT
//! Futures that wait for a time.
use std::future::Future;
use std::pin::Pin;
use std::task::{Context, Poll};

use block::{Nanos, crashing};

use crate::core::{now, with_core};

/// Sleeps for `time` on the driver's clock.
pub fn sleep(time: Nanos) -> impl Future<Output = ()> {
    Sleep { due: now() + time, entry: None }
}

/// Lets the driver and all tasks that are ready run first. For long work, in steps.
pub fn yield_now() -> impl Future<Output = ()> {
    let mut entry = None;
    std::future::poll_fn(move |cx| {
        if entry.is_some() {
            return Poll::Ready(());
        }
        // A timer that is due fires after the driver has been asked, once.
        entry = Some(with_core(|c| c.timers.borrow_mut().insert(now(), cx.waker().clone())));
        Poll::Pending
    })
}

struct Sleep {
    due: Nanos,
    entry: Option<(Nanos, u64)>,
}

impl Future for Sleep {
    type Output = ();
    fn poll(mut self: Pin<&mut Self>, cx: &mut Context<'_>) -> Poll<()> {
        if now() >= self.due {
            return Poll::Ready(());
        }
        with_core(|c| {
            let mut timers = c.timers.borrow_mut();
            if let Some(old) = self.entry.take() {
                timers.remove(old);
            }
            self.entry = Some(timers.insert(self.due, cx.waker().clone()));
        });
        Poll::Pending
    }
}

impl Drop for Sleep {
    fn drop(&mut self) {
        if let (Some(entry), false) = (self.entry, crashing()) {
            with_core(|c| c.timers.borrow_mut().remove(entry));
        }
    }
}
