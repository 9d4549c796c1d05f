// SPDX-License-Identifier: Apache-2.0 OR MIT
//! Flush queue: the backing device as the parts of a persistent device see it, with one flush in
//! flight at a time.
//!
//! Invariants
//! - ZR-GA1 One flush is in flight at a time, and after a failed one no other succeeds: a failed
//!   flush may destroy data of another part, whose own flush succeeds.
//! - ZR-GA2 A flush is submitted below after its request came: it covers everything that had
//!   completed then.
use std::cell::{Cell, RefCell};
use std::fmt;
use std::rc::Rc;

use block::{Bio, BlockDevice, Class, Completion, Limits, Op, Planted, Status};
use reactor::spawn;

use crate::planted::Fault;

/// See the module. Lives on one core; parts on other cores reach it as a remote device.
pub(crate) struct FlushQueue {
    device: Rc<dyn BlockDevice>,
    state: Rc<State>,
}

#[derive(Default)]
struct State {
    waiting: RefCell<Vec<Completion>>,
    running: Cell<bool>,
    failed: Cell<Option<Status>>,
    planted: Planted<Fault>,
}

impl FlushQueue {
    pub(crate) fn new(device: Rc<dyn BlockDevice>, planted: Planted<Fault>) -> FlushQueue {
        FlushQueue { device, state: Rc::new(State { planted, ..State::default() }) }
    }
}

impl BlockDevice for FlushQueue {
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

/// Flushes until no request waits. Requests that come meanwhile share the next flush.
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
        if state.planted.is(Fault::ForgetFailedFlush) {
            state.failed.set(None);
        }
        served.into_iter().for_each(|done| done.complete(status));
    }
    state.running.set(false);
}

impl fmt::Debug for FlushQueue {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        write!(f, "FlushQueue({})", self.device.name())
    }
}
