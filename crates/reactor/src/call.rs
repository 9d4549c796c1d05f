// SPDX-License-Identifier: Apache-2.0 OR MIT
//! Call: runs something on another core and brings back what it came to.
//!
//! ```text
//!   this core                      the other core
//!   call(core, f) ── Msg::Call ───▶ spawn(f())
//!   answer ◀──────── Msg::Call ──── its output
//! ```
//!
//! For what is asked seldom: a call costs two messages, a task and three allocations.
use std::any::Any;
use std::cell::RefCell;
use std::future::{Future, poll_fn};
use std::task::{Poll, Waker};

use block::{CoreId, crashing};
use slab::Slab;

use crate::core::{core_id, post, spawn, with_core};
use crate::driver::Msg;

/// Calls of one core that have not been answered, or whose answer has not been taken.
#[derive(Default)]
pub(crate) struct Calls(RefCell<Slab<Call>>);

enum Call {
    Waiting(Option<Waker>),
    Answered(Box<dyn Any>),
    /// Nobody waits any more.
    Forgotten,
}

fn answer(key: usize, value: Box<dyn Any>) {
    with_core(|c| {
        let mut calls = c.calls.0.borrow_mut();
        match std::mem::replace(&mut calls[key], Call::Answered(value)) {
            Call::Waiting(waker) => {
                if let Some(waker) = waker {
                    waker.wake();
                }
            }
            Call::Forgotten => drop(calls.remove(key)),
            Call::Answered(_) => unreachable!("a call is answered once"),
        }
    });
}

/// Takes the call off the list, or leaves word that nobody waits.
struct Key(usize);

impl Drop for Key {
    fn drop(&mut self) {
        if crashing() {
            return;
        }
        with_core(|c| {
            let mut calls = c.calls.0.borrow_mut();
            match calls[self.0] {
                Call::Waiting(_) => calls[self.0] = Call::Forgotten,
                Call::Answered(_) | Call::Forgotten => drop(calls.remove(self.0)),
            }
        });
    }
}

/// Runs `f` on `core`, which may be this one, and returns what its future comes to. It is sent at
/// once, after what was posted before, and `f` runs when it comes, before what is posted after; on
/// this core it has run when this returns. The future is a task's. Dropping the returned future
/// does not stop it. Waits for ever when that core has ended.
pub fn call<T, F, Fut>(core: CoreId, f: F) -> impl Future<Output = T> + 'static
where
    T: Send + 'static,
    F: FnOnce() -> Fut + Send + 'static,
    Fut: Future<Output = T> + 'static,
{
    let home = core_id();
    let key = Key(with_core(|c| c.calls.0.borrow_mut().insert(Call::Waiting(None))));
    let nth = key.0;
    let run = move || {
        // Now: what comes after may take away what it is about.
        let work = f();
        spawn(async move {
            let value = work.await;
            if core_id() == home {
                answer(nth, Box::new(value));
            } else {
                post(home, Msg::Call(Box::new(move || answer(nth, Box::new(value)))));
            }
        });
    };
    if core == home {
        run();
    } else {
        post(core, Msg::Call(Box::new(run)));
    }
    poll_fn(move |cx| {
        // The whole of it, not just its number, lives as long as the future.
        let key: &Key = &key;
        let nth = key.0;
        let value = with_core(|c| {
            let mut calls = c.calls.0.borrow_mut();
            match &mut calls[nth] {
                Call::Waiting(waker) => {
                    *waker = Some(cx.waker().clone());
                    None
                }
                answered @ Call::Answered(_) => {
                    match std::mem::replace(answered, Call::Answered(Box::new(()))) {
                        Call::Answered(value) => Some(value),
                        Call::Waiting(_) | Call::Forgotten => unreachable!("matched above"),
                    }
                }
                Call::Forgotten => unreachable!("only after the future has gone"),
            }
        });
        match value {
            Some(value) => Poll::Ready(*value.downcast().expect("what `f` came to, boxed above")),
            None => Poll::Pending,
        }
    })
}
