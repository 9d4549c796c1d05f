// SPDX-License-Identifier: Apache-2.0 OR MIT
//! Pollers on a driver that polls as a script says.
use std::cell::{Cell, RefCell};
use std::rc::Rc;

use block::{CoreId, Nanos};
use reactor::{Driver, Event, Found, Msg, Poller, Reactor, Sqe, yield_now};

/// What the driver finds when it polls, one look after the other; then it does not poll any more.
struct Script(RefCell<Vec<Step>>);

#[derive(Clone, Copy, Debug, PartialEq, Eq)]
enum Step {
    /// A client stores what a poller waits for.
    Stored,
    Event,
    Nothing,
}

thread_local! {
    static IS_STORED: Cell<bool> = const { Cell::new(false) };
    static PARKS: Cell<u32> = const { Cell::new(0) };
}

impl Driver for Script {
    fn now(&self) -> Nanos {
        Nanos::ZERO
    }
    fn submit(&mut self, _: &mut Vec<Sqe>) {
        unreachable!("no test submits");
    }
    fn post(&mut self, _: CoreId, _: Msg) {
        unreachable!("there is one core");
    }
    fn park(&mut self, _: Option<Nanos>, _: &mut Vec<Event>) {
        PARKS.set(PARKS.get() + 1);
    }
    fn random(&mut self) -> u64 {
        0
    }
    fn polls(&self) -> bool {
        !self.0.borrow().is_empty()
    }
    fn poll(&mut self, _: Option<Nanos>, is_ready: &dyn Fn() -> bool) -> Found {
        assert!(!is_ready(), "the tasks of pollers that were ready have run");
        match self.0.borrow_mut().remove(0) {
            Step::Stored => {
                IS_STORED.set(true);
                assert!(is_ready());
                Found::Ready
            }
            Step::Event => Found::Event,
            Step::Nothing => Found::Nothing,
        }
    }
}

fn core(looks: &[Step]) -> Reactor {
    IS_STORED.set(false);
    PARKS.set(0);
    Reactor::enter(CoreId(0), Box::new(Script(RefCell::new(looks.to_vec()))))
}

fn poller() -> Rc<Poller> {
    Poller::new(|| IS_STORED.get())
}

/// What a wait returns, and how often the driver was asked for events.
fn wait(looks: &[Step]) -> (bool, u32) {
    let core = core(looks);
    let is_ready = core.block_on(async { poller().wait().await });
    (is_ready, PARKS.get())
}

#[test]
fn a_wait_ends_when_the_poller_is_ready_or_before_a_sleep() {
    use Step::{Event, Nothing, Stored};
    assert_eq!(wait(&[Stored, Nothing]), (true, 0), "nobody was asked for events");
    assert_eq!(wait(&[Event, Event, Stored, Nothing]), (true, 2));
    assert_eq!(wait(&[Event, Nothing]), (false, 1));
    assert_eq!(wait(&[]), (false, 0), "the core does not poll");
}

/// A core that has other tasks does not poll, but looks in each turn.
#[test]
fn a_busy_core_looks_at_its_pollers() {
    let core = core(&[Step::Nothing]);
    let (is_ready, turns) = core.block_on(async {
        let turns = Rc::new(Cell::new(0));
        let other = turns.clone();
        reactor::spawn(async move {
            loop {
                other.set(other.get() + 1);
                IS_STORED.set(other.get() >= 5);
                assert!(other.get() < 1000, "the core does not look");
                yield_now().await;
            }
        });
        (poller().wait().await, turns.get())
    });
    assert!(is_ready && turns >= 5, "{turns} turns");
}
