// SPDX-License-Identifier: Apache-2.0 OR MIT
//! The driver of a simulated core, and the machine: cores of one world on one thread.

use std::cell::{Cell, RefCell};
use std::future::Future;
use std::pin::Pin;
use std::rc::Rc;

use block::{CoreId, Nanos};
use reactor::{Driver, Event, FileId, Msg, Reactor, Sqe};

use crate::world::WorldRef;

/// Polls without progress of the clock that count as a livelock.
const POLLS_IN_PLACE_MAX: u64 = 1_000_000;

/// The driver of one core.
struct Sim {
    world: WorldRef,
    core: CoreId,
}

impl Driver for Sim {
    fn now(&self) -> Nanos {
        self.world.borrow().now()
    }
    fn submit(&mut self, batch: &mut Vec<Sqe>) {
        let mut world = self.world.borrow_mut();
        for sqe in batch.drain(..) {
            world.submit(self.core, sqe);
        }
    }
    fn end_waits(&mut self, file: FileId) {
        self.world.borrow_mut().end_waits(file);
    }
    fn post(&mut self, to: CoreId, msg: Msg) {
        self.world.borrow_mut().post(self.core, to, msg);
    }
    fn park(&mut self, _deadline: Option<Nanos>, _out: &mut Vec<Event>) {
        unreachable!("a simulated core is run by its Machine, not by Reactor::run");
    }
    fn random(&mut self) -> u64 {
        self.world.borrow_mut().rng.next_u64()
    }
    fn polls(&self) -> bool {
        self.world.borrow().swarm().polls
    }
}

/// Why [`Machine::run`] returned.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum RunEnd {
    /// `until` returned true.
    Until,
    /// The time of [`crate::World::power_cut_at`] was reached.
    PowerCut,
    /// No task can run, and nothing is scheduled.
    Idle,
}

/// The cores of one world: those of one process, or of several, each with its own. It ends by
/// [`Machine::power_cut`], [`Machine::kill`], [`Machine::shut_down`], or by a drop at the end of a
/// test.
#[must_use]
pub struct Machine {
    world: WorldRef,
    /// By core; none of a process that was killed.
    reactors: Vec<Option<Reactor>>,
}

impl Machine {
    /// Cores 0 to `cores` - 1, with nothing to do.
    pub fn boot(world: &WorldRef, cores: u16) -> Machine {
        assert!(cores > 0, "a machine needs a core");
        let enter = |core| {
            let core = CoreId(core);
            let reactor = Reactor::enter(core, Box::new(Sim { world: world.clone(), core }));
            match world.borrow().memories() {
                Some(memories) => reactor.on(|| reactor::set_shared_memory(Rc::new(memories))),
                None if world.borrow().has_shared_memory() => {
                    reactor.on(reactor::set_no_shared_memory);
                }
                None => {}
            }
            reactor
        };
        let reactors = (0..cores).map(|core| Some(enter(core))).collect();
        Machine { world: world.clone(), reactors }
    }

    /// Runs `f` as core `core`.
    pub fn on<R>(&self, core: u16, f: impl FnOnce() -> R) -> R {
        let reactor = self.reactors[usize::from(core)].as_ref();
        reactor.expect("the process of this core is alive").on(f)
    }

    /// Starts a task on core `core`.
    pub fn spawn(&self, core: u16, future: impl Future<Output = ()> + 'static) {
        self.on(core, || reactor::spawn(future));
    }

    /// Runs until `until` returns true, the power is cut, or nothing is left to run. The seed draws
    /// which task runs next.
    pub fn run(&self, mut until: impl FnMut() -> bool) -> RunEnd {
        self.run_until(&mut until)
    }

    /// As [`Machine::run`]: one function for all conditions, which is compiled once.
    fn run_until(&self, until: &mut dyn FnMut() -> bool) -> RunEnd {
        let (mut stood_at, mut polls_in_place) = (self.world.borrow().now(), 0);
        loop {
            if until() {
                return RunEnd::Until;
            }
            if self.world.borrow().cut_is_due() {
                return RunEnd::PowerCut;
            }
            self.look();
            let ready: usize = self.alive().map(|r| r.core().ready()).sum();
            if ready > 0 && !self.preempted() {
                self.poll(ready);
                polls_in_place += 1;
                assert!(polls_in_place < POLLS_IN_PLACE_MAX, "livelock: the clock stands still");
                continue;
            }
            if !self.next_event(ready > 0) && !self.end_pollers(1000) {
                return RunEnd::Idle;
            }
            if ready == 0 {
                self.end_pollers(300);
            }
            let now = self.world.borrow().now();
            if now != stood_at {
                (stood_at, polls_in_place) = (now, 0);
            }
        }
    }

    fn alive(&self) -> impl Iterator<Item = &Reactor> {
        self.reactors.iter().flatten()
    }

    /// Kills the process of one core, while those of the others go on: its tasks are dropped, its
    /// sockets closed, and what it had sent to disks ends (SI-W4).
    pub fn kill_process(&mut self, core: u16) {
        drop(self.reactors[usize::from(core)].take());
        self.world.borrow_mut().kill_process(CoreId(core));
        if let Some(memories) = self.world.borrow().memories() {
            memories.end_process(CoreId(core));
        }
    }

    /// Cores that are awake look at their pollers, at times.
    fn look(&self) {
        for core in self.alive().map(Reactor::core).filter(|core| core.has_pollers()) {
            if self.world.borrow_mut().rng.chance_per_mille(300) {
                core.wake_ready();
            }
        }
    }

    /// Cores that have polled in vain are about to sleep, each with this chance. Returns whether
    /// one is.
    fn end_pollers(&self, per_mille: u32) -> bool {
        let mut has_ended = false;
        for core in self.alive().map(Reactor::core).filter(|core| core.has_pollers()) {
            if self.world.borrow_mut().rng.chance_per_mille(per_mille) {
                core.end_pollers();
                has_ended = true;
            }
        }
        has_ended
    }

    /// Whether the next event is delivered although a task could run.
    fn preempted(&self) -> bool {
        let mut world = self.world.borrow_mut();
        let per_mille = world.swarm().preempt_per_mille;
        world.rng.chance_per_mille(per_mille)
    }

    fn poll(&self, ready: usize) {
        let mut nth = {
            let mut world = self.world.borrow_mut();
            world.step();
            world.rng.index(ready)
        };
        for reactor in self.alive() {
            let here = reactor.core().ready();
            if nth < here {
                return reactor.core().poll_nth(nth);
            }
            nth -= here;
        }
    }

    /// Submits the requests of all tasks and delivers one event. False: there will be no more
    /// events.
    fn next_event(&self, busy: bool) -> bool {
        let sent_before = self.world.borrow().sent();
        for reactor in self.alive() {
            reactor.core().flush_sq();
        }
        if !busy
            && self.world.borrow().shows_requests()
            && self.world.borrow().sent() != sent_before
        {
            return true;
        }
        let deadline = self.alive().filter_map(|r| r.core().next_timer()).min();
        if deadline.is_none() && self.world.borrow().is_idle() {
            return busy;
        }
        let event = self.world.borrow_mut().advance(deadline);
        if let Some((core, event)) = event
            && let Some(reactor) = &self.reactors[usize::from(core.0)]
        {
            reactor.core().deliver(event);
        }
        for reactor in self.alive() {
            reactor.core().fire_timers();
        }
        true
    }

    /// Runs `future` on core 0 to its end. `Err` if the power was cut first. Panics if it can never
    /// end.
    pub fn block_on<T: 'static>(
        &self,
        future: impl Future<Output = T> + 'static,
    ) -> Result<T, RunEnd> {
        let out = Rc::new(RefCell::new(None));
        let set = out.clone();
        self.finish(Box::pin(async move { *set.borrow_mut() = Some(future.await) }))?;
        Ok(out.take().expect("set by the task, which has ended"))
    }

    /// Runs a task on core 0 to its end, as [`Machine::block_on`] does.
    fn finish(&self, task: Pin<Box<dyn Future<Output = ()>>>) -> Result<(), RunEnd> {
        let has_ended = Rc::new(Cell::new(false));
        let set = has_ended.clone();
        self.spawn(0, async move {
            task.await;
            set.set(true);
        });
        match self.run(|| has_ended.get()) {
            RunEnd::Until => Ok(()),
            RunEnd::PowerCut => Err(RunEnd::PowerCut),
            RunEnd::Idle => panic!("deadlock: no task can run and nothing is in flight"),
        }
    }

    /// Cuts the power: drops all tasks; disks lose what is not durable.
    pub fn power_cut(self) {
        drop(self.reactors);
        self.world.borrow_mut().crash();
    }

    /// Kills the process; the disks keep their caches.
    pub fn kill(self) {
        drop(self.reactors);
        self.world.borrow_mut().kill();
    }

    /// Runs until nothing is left to run, for a clean end. Stop tasks that never end (timer loops)
    /// first.
    pub fn shut_down(self) {
        let ended = self.run(|| false);
        assert_eq!(ended, RunEnd::Idle, "the power went during a shutdown");
    }
}
