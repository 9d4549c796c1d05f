// SPDX-License-Identifier: Apache-2.0 OR MIT
//! A gate in front of a target: no bio enters while it is suspended, as in a mapped device.
use std::cell::Cell;
use std::rc::Rc;

use block::{Bio, BlockDevice, Error, Limits, Status, Target};
use reactor::{OnDone, WaitList};
use writecache::WriteCache;

#[derive(Default)]
pub(crate) struct SuspendGate {
    closed: Cell<bool>,
    in_flight: Cell<u64>,
    changed: WaitList,
}

impl SuspendGate {
    /// Admits no more bios, and waits until none is in flight.
    pub(crate) async fn close(&self) {
        self.closed.set(true);
        self.changed.wait_for(|| self.in_flight.get() == 0).await;
    }

    pub(crate) fn open(&self) {
        self.closed.set(false);
        self.changed.wake_all();
    }

    /// Admits a bio as soon as the gate is open.
    pub(crate) fn pass(self: &Rc<Self>, mut bio: Bio, submit: impl FnOnce(Bio) + 'static) {
        let gate = self.clone();
        let enter = move || {
            gate.in_flight.set(gate.in_flight.get() + 1);
            bio.done = reactor::chain(bio.done, Rc::new(GateGuard(gate)), 0);
            submit(bio);
        };
        if self.closed.get() {
            let gate = self.clone();
            reactor::spawn(async move {
                gate.changed.wait_for(|| !gate.closed.get()).await;
                enter();
            });
        } else {
            enter();
        }
    }

    pub(crate) async fn suspend_and_resume(&self, cache: &Rc<WriteCache>) -> Result<(), Error> {
        self.close().await;
        let suspended = cache.clone().suspend().await;
        let resumed = cache.clone().resume().await;
        self.open();
        suspended.and(resumed)
    }
}

struct GateGuard(Rc<SuspendGate>);

impl OnDone for GateGuard {
    fn on_done(&self, _: Status, _: u64) {
        self.0.in_flight.set(self.0.in_flight.get() - 1);
        self.0.changed.wake_all();
    }
}

/// A cache behind a gate.
pub(crate) struct GatedTarget {
    pub(crate) cache: Rc<WriteCache>,
    pub(crate) gate: Rc<SuspendGate>,
}

impl GatedTarget {
    pub(crate) fn new(cache: Rc<WriteCache>) -> Rc<GatedTarget> {
        Rc::new(GatedTarget { cache, gate: Rc::default() })
    }
}

impl BlockDevice for GatedTarget {
    fn name(&self) -> &str {
        "gated"
    }
    fn limits(&self) -> Limits {
        self.cache.limits()
    }
    fn submit(&self, bio: Bio) {
        let cache = self.cache.clone();
        self.gate.pass(bio, move |bio| cache.submit(bio));
    }
}
