// SPDX-License-Identifier: Apache-2.0 OR MIT
//! Timers: who sleeps, and until when.
use std::collections::BTreeMap;
use std::future::Future;
use std::pin::Pin;
use std::task::{Context, Poll, Waker};

use block::{Nanos, crashing};

use crate::core::{now, with_core};

/// Sleeping tasks by due time; the second part of the key keeps sleepers of one instant in order.
#[derive(Default)]
pub(crate) struct Timers {
    due: BTreeMap<(Nanos, u64), Waker>,
    seq: u64,
}

impl Timers {
    pub(crate) fn next(&self) -> Option<Nanos> {
        self.due.first_key_value().map(|((due, _), _)| *due)
    }

    pub(crate) fn pop_due(&mut self, now: Nanos) -> Option<Waker> {
        let first = self.due.first_entry().filter(|e| e.key().0 <= now)?;
        Some(first.remove())
    }

    fn insert(&mut self, due: Nanos, waker: Waker) -> (Nanos, u64) {
        self.seq += 1;
        self.due.insert((due, self.seq), waker);
        (due, self.seq)
    }
}

/// Sleeps for `time` on the driver's clock.
pub fn sleep(time: Nanos) -> impl Future<Output = ()> {
    Sleep { due: now() + time, entry: None }
}

/// Lets the driver and everybody else who is ready go first: for work that is long for one core.
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
                timers.due.remove(&old);
            }
            self.entry = Some(timers.insert(self.due, cx.waker().clone()));
        });
        Poll::Pending
    }
}

impl Drop for Sleep {
    fn drop(&mut self) {
        if let (Some(entry), false) = (self.entry, crashing()) {
            with_core(|c| c.timers.borrow_mut().due.remove(&entry));
        }
    }
}
