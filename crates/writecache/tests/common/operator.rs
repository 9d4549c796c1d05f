// SPDX-License-Identifier: Apache-2.0 OR MIT
//! The operator, who works concurrently with clients: messages, suspends, changes of options,
//! drains.
use std::cell::Cell;
use std::rc::Rc;

use block::{Error, Nanos, Target};
use reactor::WaitList;
use sim::harness::OperatorState;
use sim::{Rng, WorldRef};
use writecache::WriteCache;

use super::random_options;
use super::suspend_gate::{GatedTarget, SuspendGate};

/// Drains that run in the background; they may be stopped, be late, or be refused.
#[derive(Default)]
pub(crate) struct Drains {
    running: Cell<u64>,
    changed: WaitList,
}

impl Drains {
    pub(crate) fn begin(self: &Rc<Self>, cache: &Rc<WriteCache>, words: String) {
        let (drains, cache) = (self.clone(), cache.clone());
        drains.running.set(drains.running.get() + 1);
        reactor::spawn(async move {
            cache.set_attribute("drain".to_owned(), words).await.ok();
            drains.running.set(drains.running.get() - 1);
            drains.changed.wake_all();
        });
    }

    pub(crate) async fn stop(&self, cache: &Rc<WriteCache>) {
        cache.clone().set_attribute("drain".to_owned(), "stop".to_owned()).await.ok();
        self.changed.wait_for(|| self.running.get() == 0).await;
    }
}

/// Performs random operations until it is stopped.
pub(crate) struct Operator {
    world: WorldRef,
    cache: Rc<WriteCache>,
    gate: Rc<SuspendGate>,
    drains: Rc<Drains>,
    around: bool,
    errors_allowed: bool,
    pub(crate) state: OperatorState,
}

impl AsRef<OperatorState> for Operator {
    fn as_ref(&self) -> &OperatorState {
        &self.state
    }
}

impl Operator {
    /// With `around` it may also make writes go around the cache.
    pub(crate) fn of(
        world: &WorldRef,
        device: &GatedTarget,
        around: bool,
        errors_allowed: bool,
    ) -> Rc<Operator> {
        let (world, cache, gate) = (world.clone(), device.cache.clone(), device.gate.clone());
        let (drains, state) = Default::default();
        Rc::new(Operator { world, cache, gate, drains, around, errors_allowed, state })
    }

    pub(crate) async fn work(self: Rc<Self>) {
        while !self.state.is_stopping() {
            let (pause, dice) = {
                let rng = &mut self.world.borrow_mut().rng;
                (rng.below(3_000_000), rng.below(18))
            };
            reactor::sleep(Nanos(pause)).await;
            if let (Err(e), false) = (self.act(dice).await, self.errors_allowed) {
                self.state.fail(e.chain());
            }
        }
        self.drains.stop(&self.cache).await;
        self.state.end();
    }

    async fn act(&self, dice: u64) -> Result<(), Error> {
        let cache = &self.cache;
        let say = |word: &str| cache.clone().message(vec![word.to_owned()]);
        match dice {
            0 | 1 => say("flush").await.map(drop),
            2 => say("clear_stats").await.map(drop),
            3 => say("flush_on_suspend").await.map(drop),
            4 | 5 => self.gate.suspend_and_resume(cache).await,
            6 if self.around => say("cleaner").await.map(drop),
            7..=10 => {
                // Drawn first: the world must not be borrowed while the operation runs.
                let mut rng = Rng::new(self.world.borrow_mut().rng.next_u64());
                random_options::change(cache, &mut rng, self.around).await
            }
            11 | 12 => {
                let words = random_options::draw_drain(&mut self.world.borrow_mut().rng);
                self.drains.begin(cache, words);
                Ok(())
            }
            _ => {
                cache.check();
                Ok(())
            }
        }
    }
}
