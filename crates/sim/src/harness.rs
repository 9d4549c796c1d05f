// SPDX-License-Identifier: Apache-2.0 OR MIT
//! The crash test of an engine: several lives of one machine over the same disks. Each life but the
//! last is cut short by a power cut or a kill, at a step that the seed draws.
//!
//! ```text
//!   boot ──► open ──► verify ──► clients and operator work ──► quiet end
//!     ▲        └────────┴───────────────┴───── power cut or kill
//!     └───────────────────────────────────────────┘  next life
//! ```
//!
//! A test implements [`Engine`]; [`CrashTest::run`] calls it once for each life. Inside a life, `?`
//! ends it at a power cut, which is no failure: `machine.block_on(open())??`. For example, with
//! `lives: 4` and `cut_after: &[200, 20_000]` a seed boots four machines, and each of the first
//! three stops within 200 or within 20,000 steps.

use std::cell::{Cell, RefCell};
use std::rc::Rc;

use reactor::FileId;

use crate::disk::Faults;
use crate::driver::{Machine, RunEnd};
use crate::oracle::Oracle;
use crate::world::{PowerCut, WorldRef};

/// Virtual time after which a life counts as hung: the slowest disk with the lowest limits needs
/// less. An ordered cache of 42 slots before a disk that stalls for a second at each flush has
/// needed more than one hour.
const LIFE_NS_MAX: u64 = 4 * 3600 * 1_000_000_000;

/// Why a life ended before its quiet end.
#[derive(Clone, Debug, PartialEq, Eq)]
pub enum Stop {
    /// The power went, as planned.
    PowerCut,
    /// The engine broke its contract.
    Failed(String),
}

impl From<String> for Stop {
    fn from(why: String) -> Stop {
        Stop::Failed(why)
    }
}

/// The error of [`Machine::block_on`], which ends early at a power cut only.
impl From<RunEnd> for Stop {
    fn from(_: RunEnd) -> Stop {
        Stop::PowerCut
    }
}

/// A step of a life.
pub type Step<T = ()> = Result<T, Stop>;

/// What a crash test does in each life.
pub trait Engine {
    /// Draws what the next life begins with, and returns the cores of its machine.
    fn begin_life(&mut self) -> u16 {
        1
    }

    /// One life: opens the device, verifies what the last crash left, works, ends quietly.
    fn live(&mut self, machine: &Machine) -> Step;

    /// Drops what the life made, however it ended; the machine is stopped next.
    fn end_life(&mut self, _machine: &Machine) {}

    /// Checks the disks after the crash.
    fn check_crash(&mut self) -> Result<(), String> {
        Ok(())
    }
}

/// The lives of one seed.
pub struct CrashTest {
    pub world: WorldRef,
    pub oracle: Rc<RefCell<Oracle>>,
    /// All but the last are cut.
    pub lives: u32,
    /// A life is cut within one of so many steps.
    pub cut_after: &'static [u64],
}

impl CrashTest {
    /// Runs all lives, and returns the first failure.
    pub fn run(&self, engine: &mut impl Engine) -> Result<(), String> {
        for life in 1..=self.lives {
            let cores = engine.begin_life();
            let machine = Machine::boot(&self.world, cores);
            self.plan_cut(life == self.lives);
            let lived = engine.live(&machine);
            engine.end_life(&machine);
            self.stop(machine);
            if let Err(Stop::Failed(why)) = lived {
                return Err(why);
            }
            engine.check_crash().map_err(|why| format!("after life {life}: {why}"))?;
        }
        Ok(())
    }

    fn plan_cut(&self, is_last: bool) {
        let mut world = self.world.borrow_mut();
        let after = world.rng.pick(self.cut_after);
        let cut = PowerCut::Step(world.steps() + world.rng.below(after));
        world.power_cut_at((!is_last).then_some(cut));
    }

    /// The power goes, or, one time in three, only the process is killed.
    fn stop(&self, machine: Machine) {
        let killed = self.world.borrow_mut().rng.below(3) == 0;
        self.world.borrow_mut().power_cut_at(None);
        if killed {
            machine.kill();
            self.oracle.borrow_mut().kill();
        } else {
            machine.power_cut();
            self.oracle.borrow_mut().crash();
        }
    }
}

/// The state that an operator task shares with [`work`]: commands, suspends and changes of options
/// beside the clients, until it is told to stop.
#[derive(Debug, Default)]
pub struct OperatorState {
    stopping: Cell<bool>,
    has_ended: Cell<bool>,
    failure: RefCell<Option<String>>,
}

impl OperatorState {
    /// Whether the operator is to end.
    pub fn is_stopping(&self) -> bool {
        self.stopping.get()
    }

    /// The operator has ended: nothing of it is under way.
    pub fn end(&self) {
        self.has_ended.set(true);
    }

    /// Reports a failure; the first one counts.
    pub fn fail(&self, why: String) {
        self.failure.borrow_mut().get_or_insert(why);
    }

    /// The first failure.
    pub fn result(&self) -> Result<(), String> {
        self.failure.borrow().clone().map_or(Ok(()), Err)
    }
}

/// What [`work`] waits for and asks.
pub struct Work<'a> {
    /// Whether all clients have ended, or one of them has failed.
    pub is_settled: &'a dyn Fn() -> bool,
    /// What clients, and whoever else checks, have found.
    pub verdict: &'a dyn Fn() -> Result<(), String>,
    pub operator: &'a OperatorState,
    /// Their faults end with the clients.
    pub disks: &'a [FileId],
    /// The state of the device, for the report of a deadlock.
    pub status: &'a dyn Fn() -> String,
}

/// Lets clients and the operator work until the clients have ended; then no disk fails any more,
/// and the operator ends.
pub fn work(machine: &Machine, world: &WorldRef, work: &Work<'_>) -> Step {
    let began = world.borrow().now();
    let is_late = || world.borrow().now().0 - began.0 > LIFE_NS_MAX;
    let has_failed = || work.operator.result().is_err() || (work.verdict)().is_err();
    let wait = |who: &str, is_done: &dyn Fn() -> bool| {
        let ended = machine.run(|| is_done() || has_failed() || is_late());
        (work.verdict)()?;
        work.operator.result().map_err(|why| format!("operator: {why}"))?;
        match ended {
            RunEnd::PowerCut => Err(Stop::PowerCut),
            RunEnd::Idle => Err(Stop::Failed(format!("deadlock: {who}: {}", (work.status)()))),
            RunEnd::Until if is_late() => {
                Err(Stop::Failed(format!("too long: {who}: {}", (work.status)())))
            }
            RunEnd::Until => Ok(()),
        }
    };
    let worked = wait("clients", work.is_settled);
    // Also before a power cut: the next life opens its devices without errors.
    for disk in work.disks {
        world.borrow_mut().set_faults(*disk, Faults::default());
    }
    worked?;
    work.operator.stopping.set(true);
    wait("the operator", &|| work.operator.has_ended.get())
}
