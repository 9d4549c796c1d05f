// SPDX-License-Identifier: Apache-2.0 OR MIT
//! Whoever works on the device beside its clients: messages, suspends, changes of options, drains.
use std::cell::{Cell, RefCell};
use std::rc::Rc;

use block::{Bio, BlockDevice, Error, Limits, Nanos, Status, Target};
use sim::{Rng, WorldRef};
use writecache::WriteCache;

use crate::common::live;

/// Messages and suspends, at random, until told to stop.
pub(crate) async fn operator(world: WorldRef, cache: Rc<WriteCache>, gate: Rc<Gate>) {
    while !gate.stop.get() {
        let (pause, dice) = {
            let rng = &mut world.borrow_mut().rng;
            (rng.below(3_000_000), rng.below(18))
        };
        reactor::sleep(Nanos(pause)).await;
        let say = |word: &str| cache.clone().message(vec![word.to_owned()]);
        let outcome = match dice {
            0 | 1 => say("flush").await.map(drop),
            2 => say("clear_stats").await.map(drop),
            3 => say("flush_on_suspend").await.map(drop),
            4 | 5 => gate.suspend_and_resume(&cache).await,
            6 if gate.around => say("cleaner").await.map(drop),
            7..=10 => {
                // Drawn beforehand: nothing of the world is borrowed while it runs.
                let mut rng = Rng::new(world.borrow_mut().rng.next_u64());
                live::change(&cache, &mut rng, gate.around).await
            }
            11 | 12 => {
                let words = live::draw_drain(&mut world.borrow_mut().rng);
                gate.begin_drain(&cache, words);
                Ok(())
            }
            _ => {
                cache.check();
                Ok(())
            }
        };
        if let (Err(e), false) = (outcome, gate.errors_allowed) {
            gate.failure.borrow_mut().get_or_insert(e.chain());
        }
    }
    cache.clone().set_attribute("drain".to_owned(), "stop".to_owned()).await.ok();
    gate.changed.wait_for(|| gate.drains.get() == 0).await;
    gate.operator_done.set(true);
}

/// Keeps bios away while the target is suspended, as a mapped device does.
#[derive(Default)]
pub(crate) struct Gate {
    closed: Cell<bool>,
    in_flight: Cell<u64>,
    changed: reactor::WaitList,
    drains: Cell<u64>,
    pub(crate) stop: Cell<bool>,
    pub(crate) operator_done: Cell<bool>,
    pub(crate) errors_allowed: bool,
    pub(crate) around: bool,
    pub(crate) failure: RefCell<Option<String>>,
}

impl Gate {
    pub(crate) fn new(errors_allowed: bool, around: bool) -> Gate {
        Gate { errors_allowed, around, ..Gate::default() }
    }

    async fn suspend_and_resume(&self, cache: &Rc<WriteCache>) -> Result<(), Error> {
        self.closed.set(true);
        self.changed.wait_for(|| self.in_flight.get() == 0).await;
        let suspended = cache.clone().suspend().await;
        let resumed = cache.clone().resume().await;
        self.closed.set(false);
        self.changed.wake_all();
        suspended.and(resumed)
    }

    /// A drain, which may be stopped, late, or one too many; nobody waits for it.
    fn begin_drain(self: &Rc<Self>, cache: &Rc<WriteCache>, words: String) {
        let (gate, cache) = (self.clone(), cache.clone());
        gate.drains.set(gate.drains.get() + 1);
        reactor::spawn(async move {
            cache.set_attribute("drain".to_owned(), words).await.ok();
            gate.drains.set(gate.drains.get() - 1);
            gate.changed.wake_all();
        });
    }
}

pub(crate) struct Gated {
    pub(crate) cache: Rc<WriteCache>,
    pub(crate) gate: Rc<Gate>,
}

impl BlockDevice for Gated {
    fn name(&self) -> &str {
        "gated"
    }
    fn limits(&self) -> Limits {
        self.cache.limits()
    }
    fn submit(&self, mut bio: Bio) {
        struct Leave(Rc<Gate>);
        impl reactor::OnDone for Leave {
            fn on_done(&self, _: Status, _: u64) {
                self.0.in_flight.set(self.0.in_flight.get() - 1);
                self.0.changed.wake_all();
            }
        }
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
