// SPDX-License-Identifier: Apache-2.0 OR MIT
//! A driver that has nothing to drive: time goes to the next timer at once, and nothing is
//! allocated. What is counted on it is the cache's own.
use std::cell::Cell;
use std::rc::Rc;

use block::{CoreId, Nanos};
use reactor::{Driver, Event, Msg, Reactor, Sqe};

struct Still(Rc<Cell<Nanos>>);

thread_local! {
    static LOOKS: Cell<u64> = const { Cell::new(0) };
}

/// How often the clock was read by anybody of this thread.
pub(crate) fn looks() -> u64 {
    LOOKS.get()
}

impl Driver for Still {
    fn now(&self) -> Nanos {
        LOOKS.set(LOOKS.get() + 1);
        self.0.get()
    }
    fn submit(&mut self, batch: &mut Vec<Sqe>) {
        assert!(batch.is_empty(), "devices in memory ask nothing of a driver");
    }
    fn post(&mut self, _to: CoreId, _msg: Msg) {
        panic!("one core only");
    }
    fn park(&mut self, deadline: Option<Nanos>, _out: &mut Vec<Event>) {
        let deadline = deadline.expect("somebody waits for what will never happen");
        self.0.set(self.0.get().max(deadline));
    }
    fn random(&mut self) -> u64 {
        0x0123_4567_89ab_cdef
    }
}

/// A core on such a driver.
pub(crate) fn core() -> Reactor {
    Reactor::enter(CoreId(0), Box::new(Still(Rc::default())))
}
