// SPDX-License-Identifier: Apache-2.0 OR MIT
//! Gate: the backing device as the shards of a persistent device see it: one flush at a time.
//!
//! Invariants
//! - ZR-GA1 One flush is in flight at a time, and after one that failed no other succeeds. For a
//!   failed flush may take with it what another shard's, which succeeds, was sent to save.
//! - ZR-GA2 A flush is submitted below after it came here: it covers all that had completed then.
use std::cell::{Cell, RefCell};
use std::fmt;
use std::rc::Rc;

use block::{Bio, BlockDevice, Class, Completion, Limits, Op, Status};
use reactor::spawn;

use crate::mutation::Mutation;

/// See the module. Lives on one core; shards on others reach it through a remote.
pub(crate) struct Gate {
    device: Rc<dyn BlockDevice>,
    state: Rc<State>,
}

#[derive(Default)]
struct State {
    waiting: RefCell<Vec<Completion>>,
    running: Cell<bool>,
    failed: Cell<Option<Status>>,
    mutation: Mutation,
}

impl Gate {
    pub(crate) fn new(device: Rc<dyn BlockDevice>, mutation: Mutation) -> Gate {
        Gate { device, state: Rc::new(State { mutation, ..State::default() }) }
    }
}

impl BlockDevice for Gate {
    fn name(&self) -> &str {
        self.device.name()
    }

    fn limits(&self) -> Limits {
        self.device.limits()
    }

    fn submit(&self, bio: Bio) {
        if bio.op != Op::Flush {
            return self.device.submit(bio);
        }
        self.state.waiting.borrow_mut().push(bio.done);
        if !self.state.running.replace(true) {
            spawn(flushes(self.device.clone(), self.state.clone()));
        }
    }
}

/// Flushes until nobody waits; those who come meanwhile share the next.
async fn flushes(device: Rc<dyn BlockDevice>, state: Rc<State>) {
    loop {
        let served = state.waiting.take();
        if served.is_empty() {
            break;
        }
        if state.failed.get().is_none() {
            let flushed = reactor::flush(&*device, Class::Foreground).await;
            state.failed.set(flushed.err()); // ZR-GA1
        }
        let status = state.failed.get().unwrap_or(Status::Ok);
        if state.mutation == Mutation::ForgetFailedFlush {
            state.failed.set(None);
        }
        served.into_iter().for_each(|done| done.complete(status));
    }
    state.running.set(false);
}

impl fmt::Debug for Gate {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        write!(f, "Gate({})", self.device.name())
    }
}
