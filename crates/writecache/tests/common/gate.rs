// SPDX-License-Identifier: Apache-2.0 OR MIT
//! A gate before a target: no bio enters while it is suspended, as a mapped device does it.
use std::cell::Cell;
use std::rc::Rc;

use block::{Bio, BlockDevice, Error, Limits, Status, Target};
use reactor::{OnDone, WaitList};
use writecache::WriteCache;

#[derive(Default)]
struct Gate {
    closed: Cell<bool>,
    in_flight: Cell<u64>,
    changed: WaitList,
}

/// A cache behind a gate.
pub(crate) struct Gated {
    cache: Rc<WriteCache>,
    gate: Rc<Gate>,
}

impl Gated {
    pub(crate) fn new(cache: Rc<WriteCache>) -> Rc<Gated> {
        Rc::new(Gated { cache, gate: Rc::default() })
    }

    pub(crate) async fn suspend_and_resume(&self) -> Result<(), Error> {
        let gate = &self.gate;
        gate.closed.set(true);
        gate.changed.wait_for(|| gate.in_flight.get() == 0).await;
        let suspended = self.cache.clone().suspend().await;
        let resumed = self.cache.clone().resume().await;
        gate.closed.set(false);
        gate.changed.wake_all();
        suspended.and(resumed)
    }
}

struct Leave(Rc<Gate>);

impl OnDone for Leave {
    fn on_done(&self, _: Status, _: u64) {
        self.0.in_flight.set(self.0.in_flight.get() - 1);
        self.0.changed.wake_all();
    }
}

impl BlockDevice for Gated {
    fn name(&self) -> &str {
        "gated"
    }
    fn limits(&self) -> Limits {
        self.cache.limits()
    }
    fn submit(&self, mut bio: Bio) {
        let (cache, gate) = (self.cache.clone(), self.gate.clone());
        let enter = move |gate: Rc<Gate>| {
            gate.in_flight.set(gate.in_flight.get() + 1);
            bio.done = reactor::chain(bio.done, Rc::new(Leave(gate)), 0);
            cache.submit(bio);
        };
        if gate.closed.get() {
            reactor::spawn(async move {
                gate.changed.wait_for(|| !gate.closed.get()).await;
                enter(gate);
            });
        } else {
            enter(gate);
        }
    }
}
