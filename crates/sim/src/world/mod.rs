// SPDX-License-Identifier: Apache-2.0 OR MIT
//! The world: one virtual clock, the disks, the mailboxes between cores, and the random generator
//! that orders everything.
//!
//! ```text
//!  Sim::submit ──► op ──► model of its disk ──► done ──(stall?)──► due ──► Event::Cqe ──► core
//!  Sim::post ───────────────────────── random delay ─────────────► due ──► Event::Msg ──► core
//!  Sim::submit ──► stream ──► packets, each with a random delay ─► due ──► Event::Cqe ──► core
//! ```
//!
//! The disks keep the border contract exactly: see `media` for power cuts, and `lines` for those of
//! persistent memory. A read sees the medium as of its submission or as of its completion. A buffer
//! that changes while its write is in flight causes a panic (contract, point 8).
//!
//! Invariants
//! - SI-W1 Everything random comes from the seed, and all order from the clock and a sequence
//!   number: equal seeds give equal `trace`s.
//! - SI-W2 The clock moves forward only, and only in `advance`.
//! - SI-W3 Every request ends exactly once, or is dropped by a power cut or a kill.
//! - SI-W4 Requests to disks of a process that is killed beside others end as if it were alive
//!   (`processes`).

mod cuts;
mod ops;
mod processes;
mod stop;
mod streams;
mod swarm;

use std::cell::RefCell;
use std::collections::BTreeMap;
use std::rc::Rc;

use block::{CoreId, Nanos, Sector};
use reactor::{Event, FileId, Msg};
use slab::Slab;

use crate::disk::{Disk, DiskSpec, DiskState, DiskStats, Faults};
use crate::events::{TraceEvent, clear, record};
use crate::model::{Flash, FlashParams, Hdd, HddParams, Model, Uniform};
use crate::rng::Rng;
use crate::shared_memory::Memories;

use ops::Op;
use streams::Streams;
pub use swarm::Swarm;

/// A world, shared by the drivers of its cores and by the test.
pub type WorldRef = Rc<RefCell<World>>;

/// When [`crate::Machine::run`] cuts the power: it then returns.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum PowerCut {
    /// After this many steps (polls and events) since the world began.
    Step(u64),
    /// At this time.
    Time(Nanos),
}

#[derive(Debug)]
enum Scheduled {
    Op(usize),
    Msg(CoreId, Msg),
    /// Packets arrive at this end of a stream.
    Stream(usize),
    /// A completion is delivered.
    Ready(CoreId, Event),
}

/// See the module.
pub struct World {
    now: Nanos,
    /// Also for tests: draws here are part of the seed.
    pub rng: Rng,
    swarm: Swarm,
    disks: Vec<DiskState>,
    ops: Slab<Op>,
    streams: Streams,
    due: BTreeMap<(Nanos, u64), Scheduled>,
    /// Arrival time of the last message from one core to another.
    last_message: BTreeMap<(CoreId, CoreId), Nanos>,
    messages: u64,
    /// Requests to disks, by the core that sent them.
    requests: BTreeMap<CoreId, u64>,
    seq: u64,
    steps: u64,
    trace: u64,
    cut: Option<PowerCut>,
    /// Memory that outlives a process: all of the machine, and what its next processes can open.
    memories: Memories,
    memories_in_use: Option<Memories>,
    has_shared_memory: bool,
    /// See `show_requests`.
    shows_requests: bool,
    scratch: Vec<u64>,
    /// As many as the last request of zeroes wrote.
    zeroes: Rc<[u8]>,
}

impl World {
    /// The world of `seed`, with a swarm profile drawn by it.
    pub fn new(seed: u64) -> WorldRef {
        let mut rng = Rng::new(seed);
        let swarm = Swarm::draw(&mut rng);
        World::with_swarm(rng, swarm)
    }

    /// A world without stalls, for benchmarks in virtual time.
    pub fn calm(seed: u64) -> WorldRef {
        World::with_swarm(Rng::new(seed), Swarm::CALM)
    }

    /// A world with a profile of your own.
    pub fn with_swarm(rng: Rng, swarm: Swarm) -> WorldRef {
        clear();
        Rc::new(RefCell::new(World {
            now: Nanos::ZERO,
            rng,
            swarm,
            disks: Vec::new(),
            ops: Slab::new(),
            streams: Streams::default(),
            due: BTreeMap::new(),
            last_message: BTreeMap::new(),
            messages: 0,
            requests: BTreeMap::new(),
            seq: 0,
            steps: 0,
            trace: 0,
            cut: None,
            memories: Memories::default(),
            memories_in_use: None,
            has_shared_memory: false,
            shows_requests: false,
            scratch: Vec::new(),
            zeroes: Rc::default(),
        }))
    }

    /// A device model drawn by this seed: for correctness tests, where any model will do.
    pub fn swarm_model(&mut self) -> Box<dyn Model> {
        let seed = self.rng.next_u64();
        match self.rng.below(8) {
            0 => Box::new(Flash::new(FlashParams::sata())),
            1 => Box::new(Flash::new(FlashParams::nvme())),
            2 => Box::new(Hdd::new(HddParams::published())),
            3 => Box::new(Hdd::new(HddParams::textbook())),
            4 | 5 => Box::new(Uniform::new(seed, 1_000, 50_000)),
            _ => Box::new(Uniform::new(seed, 10_000, 2_000_000)),
        }
    }

    /// Adds a disk; its file is the number of disks before it.
    pub fn add_disk(&mut self, spec: DiskSpec) -> FileId {
        let file = FileId(u32::try_from(self.disks.len()).expect("fewer than 2^32 disks"));
        self.disks.push(DiskState::new(spec));
        file
    }

    /// Adds a disk of `capacity` with a model drawn by the seed.
    pub fn add_swarm_disk(&mut self, name: &str, capacity: Sector) -> FileId {
        let model = self.swarm_model();
        self.add_disk(DiskSpec::new(name, capacity, model))
    }

    /// The same for a disk that keeps the order of writes.
    pub fn add_swarm_log(&mut self, name: &str, capacity: Sector) -> FileId {
        let spec = DiskSpec::new(name, capacity, self.swarm_model());
        self.add_disk(DiskSpec { keeps_write_order: true, ..spec })
    }

    /// The same for one in the memory of the process until it is flushed, as a volume on an object
    /// store is.
    pub fn add_swarm_volume(&mut self, name: &str, capacity: Sector) -> FileId {
        let spec = DiskSpec::new(name, capacity, self.swarm_model());
        self.add_disk(DiskSpec { keeps_write_order: true, loses_at_kill: true, ..spec })
    }

    /// Adds persistent memory of `capacity`, mostly fast, with a model drawn by the seed.
    pub fn add_swarm_memory(&mut self, name: &str, capacity: Sector) -> FileId {
        let model = match self.rng.below(4) {
            0 => self.swarm_model(),
            _ => Box::new(Uniform::new(self.rng.next_u64(), 100, 3_000)),
        };
        self.add_disk(DiskSpec::memory(name, capacity, model))
    }

    /// The leaf device of a disk, for use on any core of this world.
    pub fn leaf(&self, file: FileId) -> Rc<Disk> {
        let disk = &self.disks[index(file)];
        Rc::new(Disk { name: disk.name.clone(), file, limits: disk.limits.clone() })
    }

    /// Gives the machine shared memory: its next processes can open some.
    pub fn share_memory(&mut self) -> Memories {
        self.use_memory(Some(0));
        self.memories.clone()
    }

    /// From now on the next processes find shared memory in this directory, or have none.
    pub fn use_memory(&mut self, directory: Option<u32>) {
        self.memories_in_use = directory.map(|directory| self.memories.directory(directory));
        self.has_shared_memory |= directory.is_some();
    }

    /// Whether any process of the machine has had shared memory, or will have.
    pub(crate) fn has_shared_memory(&self) -> bool {
        self.has_shared_memory
    }

    /// The shared memory that the next processes can open, if any.
    pub fn memories(&self) -> Option<Memories> {
        self.memories_in_use.clone()
    }

    /// The clock.
    pub fn now(&self) -> Nanos {
        self.now
    }

    /// Polls and events since the world began.
    pub fn steps(&self) -> u64 {
        self.steps
    }

    /// A hash of all events: equal runs have equal traces.
    pub fn trace(&self) -> u64 {
        self.trace
    }

    /// The current profile.
    pub fn swarm(&self) -> Swarm {
        self.swarm
    }

    /// Sets the profile from now on.
    pub fn set_swarm(&mut self, swarm: Swarm) {
        self.swarm = swarm;
    }

    /// Schedules a power cut, at which [`crate::Machine::run`] returns; `None` cancels it.
    pub fn power_cut_at(&mut self, cut: Option<PowerCut>) {
        self.cut = cut;
    }

    pub(crate) fn cut_is_due(&self) -> bool {
        match self.cut {
            Some(PowerCut::Step(step)) => self.steps >= step,
            Some(PowerCut::Time(time)) => self.now >= time,
            None => false,
        }
    }

    /// Sets the faults of a disk from now on.
    pub fn set_faults(&mut self, file: FileId, faults: Faults) {
        self.disks[index(file)].faults = faults;
    }

    /// Calls `notify` with offset and data of each write of a disk at the moment it fails: before
    /// its submitter gets the error, if it ever does.
    pub fn on_failed_write(&mut self, file: FileId, notify: impl Fn(u64, &[u8]) + 'static) {
        self.disks[index(file)].on_failed_write = Some(Rc::new(notify));
    }

    /// Reads of the sector fail until it is rewritten.
    pub fn set_bad_sector(&mut self, file: FileId, sector: Sector) {
        self.disks[index(file)].bad_sectors.insert(sector.0);
    }

    /// Flips one bit of the medium silently.
    pub fn flip_bit(&mut self, file: FileId, offset_bytes: u64, bit: u32) {
        self.disks[index(file)].media.flip_bit(offset_bytes, bit);
    }

    /// Number of requests to a disk so far, for `Faults::fail_from_op`.
    pub fn disk_ops(&self, file: FileId) -> u64 {
        self.disks[index(file)].ops
    }

    /// Counts of a disk's requests.
    pub fn stats(&self, file: FileId) -> DiskStats {
        self.disks[index(file)].stats
    }

    /// Messages from one core to another, so far.
    pub fn messages(&self) -> u64 {
        self.messages
    }

    /// Requests that a core has sent to disks, so far.
    pub fn requests_of(&self, core: CoreId) -> u64 {
        self.requests.get(&core).copied().unwrap_or(0)
    }

    /// Memory used by a disk's contents.
    pub fn resident_bytes(&self, file: FileId) -> u64 {
        self.disks[index(file)].media.resident_bytes()
    }

    /// Reads a disk's contents in no time.
    pub fn peek(&self, file: FileId, at: Sector, out: &mut [u8]) {
        self.disks[index(file)].media.read(at.bytes(), out);
    }

    /// Reads the contents that survive a power cut in any case.
    pub fn peek_durable(&self, file: FileId, at: Sector, out: &mut [u8]) {
        self.disks[index(file)].media.read_durable(at.bytes(), out);
    }

    /// Stores durable contents on a disk before a test, in no time.
    pub fn poke(&mut self, file: FileId, at: Sector, data: &[u8]) {
        self.disks[index(file)].media.write(at.bytes(), data, true);
    }

    pub(crate) fn step(&mut self) {
        self.steps += 1;
    }

    fn mix(&mut self, value: u64) {
        self.trace = (self.trace.rotate_left(5) ^ value).wrapping_mul(0x9E37_79B9_7F4A_7C15);
    }

    fn at(&mut self, time: Nanos, due: Scheduled) {
        self.seq += 1;
        self.due.insert((time, self.seq), due);
    }

    /// Sends a message. It arrives later, but never before an earlier one between the same cores.
    pub(crate) fn post(&mut self, from: CoreId, to: CoreId, msg: Msg) {
        self.messages += 1;
        let delay = self.rng.range(200, self.swarm.message_ns_max.max(201));
        let last = self.last_message.entry((from, to)).or_default();
        *last = (self.now + Nanos(delay)).max(*last);
        let time = *last;
        self.at(time, Scheduled::Msg(to, msg));
    }

    /// Whether nothing is scheduled.
    pub(crate) fn is_idle(&self) -> bool {
        self.due.is_empty() && self.ops.is_empty()
    }

    fn next_time(&self) -> Option<Nanos> {
        let due = self.due.keys().next().map(|k| k.0);
        let models = self.disks.iter().filter_map(|d| d.model.next_event().map(Nanos));
        models.chain(due).min()
    }

    /// Advances to the next event, or to `deadline` if that comes first.
    pub(crate) fn advance(&mut self, deadline: Option<Nanos>) -> Option<(CoreId, Event)> {
        loop {
            let next = self.next_time().filter(|&t| deadline.is_none_or(|d| t <= d));
            let Some(next) = next else {
                // SI-W2: a deadline in the past does not move the clock.
                self.now = self.now.max(deadline?);
                return None;
            };
            self.now = self.now.max(next);
            for number in 0..self.disks.len() {
                self.collect(number);
            }
            let Some(entry) = self.due.first_entry().filter(|e| e.key().0 <= self.now) else {
                continue;
            };
            let ((_, seq), due) = entry.remove_entry();
            self.steps += 1;
            self.mix(self.now.0 ^ seq);
            match due {
                Scheduled::Op(id) => {
                    if let Some(event) = self.end_op(id) {
                        return Some(event);
                    }
                }
                Scheduled::Stream(end) => self.arrive(end),
                Scheduled::Ready(core, event) => return Some((core, event)),
                Scheduled::Msg(to, msg) => {
                    record(self.now, TraceEvent::Message { to: to.0, what: msg_name(&msg) });
                    return Some((to, Event::Msg(msg)));
                }
            }
        }
    }

    /// Takes the completed requests from a disk's model; some of them stall.
    fn collect(&mut self, number: usize) {
        let mut done = std::mem::take(&mut self.scratch);
        self.disks[number].model.pop_done(self.now.0, &mut done);
        for &id in &done {
            let id = usize_of(id);
            let mut time = self.now;
            if self.ops[id].is_orphan {
                time = time + self.orphan_delay();
            }
            if self.rng.chance_per_mille(self.swarm.stall_per_mille) {
                let took = self.now.saturating_sub(self.ops[id].submitted);
                let extra = Nanos(took.0 * (self.swarm.stall_factor - 1));
                record(self.now, TraceEvent::Stalled { id, extra });
                time = time + extra;
            }
            self.at(time, Scheduled::Op(id));
        }
        done.clear();
        self.scratch = done;
    }
}

fn msg_name(msg: &Msg) -> &'static str {
    match msg {
        Msg::Submit { .. } => "a bio",
        Msg::Complete { .. } => "an outcome",
        Msg::Call(_) => "a call",
    }
}

fn index(file: FileId) -> usize {
    file.0 as usize
}

fn usize_of(n: u64) -> usize {
    usize::try_from(n).expect("lengths and ids of the simulator fit in memory")
}
