// SPDX-License-Identifier: Apache-2.0 OR MIT
//! A driver without devices: time jumps to the next timer, and nothing is allocated, so the counts
//! taken on it are those of the cache alone.
use std::cell::Cell;
use std::rc::Rc;

use block::{CoreId, Nanos};
use reactor::{Driver, Event, Msg, Reactor, Sqe};

struct IdleDriver(Rc<Cell<Nanos>>);

thread_local! {
    static CLOCK_READS: Cell<u64> = const { Cell::new(0) };
}

/// How often this thread has read the clock.
pub(crate) fn clock_reads() -> u64 {
    CLOCK_READS.get()
}

impl Driver for IdleDriver {
    fn now(&self) -> Nanos {
        CLOCK_READS.set(CLOCK_READS.get() + 1);
        self.0.get()
    }
    fn submit(&mut self, batch: &mut Vec<Sqe>) {
        assert!(batch.is_empty(), "devices in memory ask nothing of a driver");
    }
    fn post(&mut self, _to: CoreId, _msg: Msg) {
        panic!("one core only");
    }
    fn park(&mut self, deadline: Option<Nanos>, _out: &mut Vec<Event>) {
        let deadline = deadline.expect("a task waits for an event that never comes");
        self.0.set(self.0.get().max(deadline));
    }
    fn random(&mut self) -> u64 {
        0x0123_4567_89ab_cdef
    }
}

/// A core on such a driver.
pub(crate) fn core() -> Reactor {
    Reactor::enter(CoreId(0), Box::new(IdleDriver(Rc::default())))
}
