// SPDX-License-Identifier: Apache-2.0 OR MIT
//! What the processes of one seed share: the disks, the locks, what the seed has drawn, and the
//! requests to who starts and ends processes.
use std::cell::{Cell, RefCell};
use std::collections::{BTreeMap, VecDeque};
use std::rc::Rc;

use block::{CoreId, Error, Nanos, Sector};
use handover::PlantedFault;
use nbd::ServerFault;
use reactor::{FileId, sleep};
use sim::{Verdict, WorldRef};

use super::locks::{LockedFile, Locks};
use super::process::{Beginning, CACHE, ORIGIN};
use super::socket::Queue;
use super::{BLOCKS, Kills, Plan};

/// Cores: the first one has the clients, each of the others one process.
pub(super) const CORES: u16 = 24;
/// No upgrade begins with fewer cores left: a successor, and whoever starts after kills.
const CORES_LEFT_MIN: u16 = 4;

/// The disks of a process, by name, with their locks.
pub(super) type OpenDisks = BTreeMap<String, Rc<LockedFile>>;

/// A process, as others see it.
#[derive(Default)]
pub(super) struct Process {
    pub(super) core: u16,
    /// It was started to take over.
    pub(super) is_successor: bool,
    pub(super) is_alive: Cell<bool>,
    /// It has the devices and the clients.
    pub(super) is_up: Cell<bool>,
    /// Its disks, with their locks.
    pub(super) locks: RefCell<OpenDisks>,
    /// Descriptors on their way to it.
    pub(super) arriving: Option<Queue>,
}

/// Which process is killed next, and when.
#[derive(Clone, Copy, Debug)]
pub(super) enum Kill {
    /// The old one or the successor, at a step of the world.
    AtStep { step: u64, is_successor: bool },
    /// The successor, when it has sent so many requests to disks and some are in flight.
    AtRequest(u64),
}

/// What a process asks of who starts and ends them.
pub(super) enum Request {
    Start(Rc<Process>, Beginning),
    End(u16),
}

/// What the seed has drawn.
pub(super) struct Draws {
    pub(super) kills: Kills,
    pub(super) table: String,
    pub(super) journal_entries: u64,
    /// How long the old daemon waits for a message of the successor.
    pub(super) step: Nanos,
    /// How long a successor that has opened the devices takes at most to say so.
    pub(super) slowness: u64,
    pub(super) time_between_upgrades: u64,
    refusals_per_mille: u32,
    /// A kill in an upgrade comes within so many steps.
    kill_after: u64,
}

/// See the module.
pub(super) struct Setup {
    pub(super) world: WorldRef,
    pub(super) plan: Plan,
    pub(super) draws: Draws,
    pub(super) origin: FileId,
    pub(super) cache: FileId,
    /// The service manager's, at which every daemon serves.
    pub(super) listener: FileId,
    pub(super) locks: Locks,
    pub(super) verdict: Verdict,
    pub(super) requests: RefCell<VecDeque<Request>>,
    pub(super) last_core: Cell<u16>,
    /// Locks of processes that have ended and whose requests have perhaps not.
    pub(super) rings: RefCell<Vec<(CoreId, OpenDisks)>>,
    pub(super) may_upgrade: Cell<bool>,
    /// The process that hands over.
    pub(super) upgrading: Cell<Option<u16>>,
    upgrades_left: Cell<u32>,
    pub(super) kill: Cell<Option<Kill>>,
    /// Another program has overwritten the disks.
    pub(super) has_intruder: Cell<bool>,
    pub(super) is_ending: Cell<bool>,
    pub(super) has_ended: Cell<bool>,
    /// Why hand-overs failed, for the report.
    notes: RefCell<Vec<String>>,
}

impl Setup {
    pub(super) fn draw(world: &WorldRef, plan: Plan) -> Setup {
        let mut w = world.borrow_mut();
        w.use_memory(Some(0));
        let sectors = Sector(BLOCKS * 8);
        let origin = w.add_swarm_disk(ORIGIN, sectors);
        let area_kib = w.rng.pick(&[416, 440, 512, 1024]);
        let cache = w.add_swarm_disk(CACHE, Sector(area_kib * 2));
        let listener = w.listen();
        let rng = &mut w.rng;
        let high = rng.range(0, 101);
        let table = format!(
            "0 {sectors} writecache s {ORIGIN} {CACHE} 4096 16 high_watermark {high} \
             low_watermark {} writeback_jobs {} autocommit_blocks {} autocommit_time {} \
             writeback_io_bytes {} max_age {} write_buffer {}",
            rng.range(0, high + 1),
            rng.pick(&[0, 1, 7]),
            rng.pick(&[1, 9, 65536]),
            rng.pick(&[1, 5, 1000]),
            rng.pick(&[4096, 16384, 1 << 20]),
            rng.pick(&["none", "1"]),
            rng.pick(&["0", "0", "1048576"]),
        );
        let draws = Draws {
            kills: rng.pick(&[Kills::None, Kills::Successor, Kills::Any, Kills::Any]),
            table,
            journal_entries: rng.pick(&[70, 200, 4096]),
            step: rng.pick(&[Nanos::from_millis(20), Nanos::from_secs(2), super::LONG]),
            slowness: rng.pick(&[10_000, 1_000_000, 100_000_000, 5_000_000_000]),
            time_between_upgrades: rng.pick(&[300_000, 3_000_000, 30_000_000]),
            refusals_per_mille: rng.pick(&[0, 0, 300]),
            kill_after: rng.pick(&[300, 1_000, 4_000]),
        };
        Setup {
            plan,
            draws,
            origin,
            cache,
            listener,
            locks: Locks::default(),
            verdict: Verdict::default(),
            requests: RefCell::default(),
            last_core: Cell::default(),
            rings: RefCell::default(),
            may_upgrade: Cell::default(),
            upgrading: Cell::default(),
            upgrades_left: Cell::new(6),
            kill: Cell::default(),
            has_intruder: Cell::default(),
            is_ending: Cell::default(),
            has_ended: Cell::default(),
            notes: RefCell::default(),
            world: world.clone(),
        }
    }

    pub(super) fn fault(&self) -> PlantedFault {
        self.plan.fault.into()
    }

    pub(super) fn server_fault(&self) -> Option<ServerFault> {
        self.plan.server_fault
    }

    pub(super) fn disk(&self, name: &str) -> Result<FileId, Error> {
        match name {
            ORIGIN => Ok(self.origin),
            CACHE => Ok(self.cache),
            other => Err(Error::no_file(other)),
        }
    }

    /// Sleeps, at most so long.
    pub(super) async fn pause(&self, ns_max: u64) {
        let ns = self.world.borrow_mut().rng.below(ns_max);
        sleep(Nanos(ns)).await;
    }

    pub(super) fn request(&self, request: Request) {
        self.requests.borrow_mut().push_back(request);
    }

    /// Makes a process and asks for its start.
    pub(super) fn start(&self, beginning: Beginning, is_successor: bool) -> Rc<Process> {
        let core = self.last_core.get() + 1;
        assert!(core < CORES, "too many processes: {:?}", self.notes.borrow());
        self.last_core.set(core);
        let arriving = match &beginning {
            Beginning::Start => None,
            Beginning::TakeOver(socket) => {
                self.world.borrow_mut().give_stream(socket.file, CoreId(core));
                Some(socket.arriving.clone())
            }
        };
        let is_alive = Cell::new(true);
        let process = Process { core, is_successor, is_alive, arriving, ..Process::default() };
        let process = Rc::new(process);
        self.request(Request::Start(process.clone(), beginning));
        process
    }

    /// Whether nobody has the disks, and no request of a process that has ended is under way.
    pub(super) fn is_free(&self) -> bool {
        let world = self.world.borrow();
        self.rings.borrow_mut().retain(|(core, _)| world.count_in_flight(*core) > 0);
        [ORIGIN, CACHE].iter().all(|name| self.locks.is_free(name))
    }

    /// Whether an upgrade of this process begins now; then it also draws whether and when a process
    /// is killed.
    pub(super) fn begin_upgrade(&self, core: u16) -> bool {
        let (left, cores) = (self.upgrades_left.get(), CORES - self.last_core.get());
        if !self.may_upgrade.get() || left == 0 || cores < CORES_LEFT_MIN {
            return false;
        }
        self.upgrades_left.set(left - 1);
        self.upgrading.set(Some(core));
        let mut world = self.world.borrow_mut();
        let step = world.steps() + world.rng.below(self.draws.kill_after);
        let is_successor = self.draws.kills == Kills::Successor || world.rng.below(2) == 0;
        let kill = match world.rng.below(2) {
            _ if self.draws.kills == Kills::None => None,
            0 if is_successor => Some(Kill::AtRequest(world.rng.below(100))),
            _ => Some(Kill::AtStep { step, is_successor }),
        };
        self.kill.set(kill);
        true
    }

    /// What a successor refuses: nothing, or at once, or after it has opened the devices (`true`).
    pub(super) fn draw_refusal(&self) -> Option<bool> {
        let rng = &mut self.world.borrow_mut().rng;
        rng.chance_per_mille(self.draws.refusals_per_mille).then(|| rng.below(2) == 0)
    }

    /// Notes why a hand-over failed.
    pub(super) fn note(&self, why: &Error) {
        self.notes.borrow_mut().push(why.chain());
    }

    /// Why hand-overs failed.
    pub(super) fn failures(&self) -> Vec<String> {
        self.notes.borrow().clone()
    }
}
