// SPDX-License-Identifier: Apache-2.0 OR MIT
//! The world: one virtual clock, the disks, the mailboxes between cores, and the chance that
//! orders it all.
//!
//! ```text
//!  Sim::submit ──► op ──► model of its disk ──► done ──(stall?)──► due ──► Event::Cqe ──► core
//!  Sim::post ───────────────────────── random delay ─────────────► due ──► Event::Msg ──► core
//! ```
//!
//! The disks keep the border contract, nothing weaker and nothing stronger: see `media` for power
//! cuts. A read sees the medium either as it was at its submission or as it is at its completion.
//! A buffer that changes while its write is in flight is a panic (contract, point 8).
//!
//! Invariants
//! - W1 All chance comes from the seed and all order from the clock and a sequence number: the
//!   same seed gives the same `trace`.
//! - W2 The clock goes only forward, and only in `advance`.
//! - W3 Every request ends exactly once, or dies in a power cut or a kill.

use std::cell::RefCell;
use std::collections::BTreeMap;
use std::rc::Rc;

use block::{Bufs, CoreId, Nanos, OpKey, SECTOR_SIZE, Sector, Status, crashing, set_crashing};
use reactor::{Event, FileId, Msg, OpResult, Sqe, SqeOp};
use slab::Slab;

use crate::disk::{Disk, DiskSpec, DiskState, DiskStats, Faults};
use crate::events::{Happened, begin, note};
use crate::media::{FlushMark, InFlight, parts};
use crate::model::{Cmd, Flash, FlashParams, Hdd, HddParams, Kind, Model, Uniform};
use crate::rng::Rng;

/// A world, shared by the drivers of its cores and by the test.
pub type WorldRef = Rc<RefCell<World>>;

/// What a seed draws for itself, so that each seed is another kind of bad day (swarm testing).
/// With uniform latencies alone, races of three parties are not found at all.
#[derive(Clone, Copy, Debug)]
pub struct Swarm {
    /// Requests that take longer, of a thousand.
    pub stall_per_mille: u32,
    /// How many times longer.
    pub stall_factor: u64,
    /// Chance that the world goes on although a task could run.
    pub preempt_per_mille: u32,
    /// Messages between cores take up to this.
    pub message_ns_max: u64,
    /// Chance that a read sees the medium as it was when it was submitted.
    pub early_read_per_mille: u32,
    /// Chance that a discard leaves zeroes rather than what was there.
    pub discard_zeroes_per_mille: u32,
}

impl Swarm {
    /// No stalls, no preemption: for benchmarks.
    pub const CALM: Swarm = Swarm {
        stall_per_mille: 0,
        stall_factor: 1,
        preempt_per_mille: 0,
        message_ns_max: 1_000,
        early_read_per_mille: 0,
        discard_zeroes_per_mille: 1000,
    };

    fn draw(rng: &mut Rng) -> Swarm {
        Swarm {
            stall_per_mille: rng.pick(&[0, 5, 50, 300]),
            stall_factor: 1 << rng.below(8),
            preempt_per_mille: rng.pick(&[0, 0, 20, 200]),
            message_ns_max: rng.pick(&[300, 2_000, 50_000]),
            early_read_per_mille: rng.pick(&[0, 500, 1000]),
            discard_zeroes_per_mille: rng.pick(&[0, 500, 1000]),
        }
    }
}

/// When the power goes by itself: [`crate::Machine::run`] then returns.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum Cut {
    /// Once so many steps (polls and events) have been taken since the world began.
    Step(u64),
    /// Once the clock shows this.
    Time(Nanos),
}

#[derive(Debug)]
enum What {
    Read {
        bufs: Bufs,
        early: Option<Vec<u8>>,
    },
    Write {
        bufs: Bufs,
        data: Vec<u8>,
        fua: bool,
    },
    Flush {
        mark: FlushMark,
    },
    Discard,
    WriteZeroes,
    /// What this driver can't do, or not there.
    Refused(Status),
}

#[derive(Debug)]
struct Op {
    core: CoreId,
    home: CoreId,
    key: OpKey,
    disk: usize,
    submitted: Nanos,
    /// Which request of its disk it is.
    nth: u64,
    offset: u64,
    len: u64,
    what: What,
}

impl Op {
    fn name(&self) -> &'static str {
        match self.what {
            What::Read { .. } => "read",
            What::Write { .. } => "write",
            What::Flush { .. } => "flush",
            What::Discard => "discard",
            What::WriteZeroes => "write zeroes",
            What::Refused(_) => "refused request",
        }
    }
}

#[derive(Debug)]
enum Due {
    Op(usize),
    Msg(CoreId, Msg),
}

/// See the module.
pub struct World {
    now: Nanos,
    /// For whoever needs chance in a test: draws here are part of the seed.
    pub rng: Rng,
    swarm: Swarm,
    disks: Vec<DiskState>,
    ops: Slab<Op>,
    due: BTreeMap<(Nanos, u64), Due>,
    seq: u64,
    steps: u64,
    trace: u64,
    cut: Option<Cut>,
    scratch: Vec<u64>,
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
        begin();
        Rc::new(RefCell::new(World {
            now: Nanos::ZERO,
            rng,
            swarm,
            disks: Vec::new(),
            ops: Slab::new(),
            due: BTreeMap::new(),
            seq: 0,
            steps: 0,
            trace: 0,
            cut: None,
            scratch: Vec::new(),
        }))
    }

    /// A device model as this seed draws it: for correctness, where any will do.
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

    /// The leaf device of a disk, for use on any core of this world.
    pub fn leaf(&self, file: FileId) -> Rc<Disk> {
        let disk = &self.disks[index(file)];
        Rc::new(Disk { name: disk.name.clone(), file, limits: disk.limits.clone() })
    }

    /// The clock.
    pub fn now(&self) -> Nanos {
        self.now
    }

    /// Polls and events since the world began.
    pub fn steps(&self) -> u64 {
        self.steps
    }

    /// A hash of all that has happened: equal runs have equal traces.
    pub fn trace(&self) -> u64 {
        self.trace
    }

    /// The profile in force.
    pub fn swarm(&self) -> Swarm {
        self.swarm
    }

    /// Has [`crate::Machine::run`] return when the moment comes; `None` takes it back.
    pub fn power_cut_at(&mut self, cut: Option<Cut>) {
        self.cut = cut;
    }

    pub(crate) fn cut_is_due(&self) -> bool {
        match self.cut {
            Some(Cut::Step(step)) => self.steps >= step,
            Some(Cut::Time(time)) => self.now >= time,
            None => false,
        }
    }

    /// What goes wrong with a disk from now on.
    pub fn set_faults(&mut self, file: FileId, faults: Faults) {
        self.disks[index(file)].faults = faults;
    }

    /// Reads of the sector fail until it is rewritten.
    pub fn set_bad_sector(&mut self, file: FileId, sector: Sector) {
        self.disks[index(file)].bad_sectors.insert(sector.0);
    }

    /// One bit of the medium goes bad, unnoticed.
    pub fn flip_bit(&mut self, file: FileId, offset_bytes: u64, bit: u32) {
        self.disks[index(file)].media.flip_bit(offset_bytes, bit);
    }

    /// Number of requests a disk has been given, for `Faults::fail_from_op`.
    pub fn disk_ops(&self, file: FileId) -> u64 {
        self.disks[index(file)].ops
    }

    /// What a disk has been asked for.
    pub fn stats(&self, file: FileId) -> DiskStats {
        self.disks[index(file)].stats
    }

    /// Memory that a disk's contents take.
    pub fn resident_bytes(&self, file: FileId) -> u64 {
        self.disks[index(file)].media.resident_bytes()
    }

    /// Looks at a disk's contents, taking no time.
    pub fn peek(&self, file: FileId, at: Sector, out: &mut [u8]) {
        self.disks[index(file)].media.read(at.bytes(), out);
    }

    /// Looks at what is sure to survive a power cut.
    pub fn peek_durable(&self, file: FileId, at: Sector, out: &mut [u8]) {
        self.disks[index(file)].media.read_durable(at.bytes(), out);
    }

    /// Puts durable contents on a disk before a test, taking no time.
    pub fn poke(&mut self, file: FileId, at: Sector, data: &[u8]) {
        self.disks[index(file)].media.write(at.bytes(), data, true);
    }

    pub(crate) fn step(&mut self) {
        self.steps += 1;
    }

    fn mix(&mut self, value: u64) {
        self.trace = (self.trace.rotate_left(5) ^ value).wrapping_mul(0x9E37_79B9_7F4A_7C15);
    }

    fn at(&mut self, time: Nanos, due: Due) {
        self.seq += 1;
        self.due.insert((time, self.seq), due);
    }

    pub(crate) fn post(&mut self, to: CoreId, msg: Msg) {
        let delay = self.rng.range(200, self.swarm.message_ns_max.max(201));
        self.at(self.now + Nanos(delay), Due::Msg(to, msg));
    }

    pub(crate) fn submit(&mut self, core: CoreId, sqe: Sqe) {
        let Sqe { home, key, file, what } = sqe;
        let disk = file.0 as usize;
        let refused = |status| (0, 0, What::Refused(status));
        let (offset, len, what) = match what {
            SqeOp::Read { offset, bufs } => {
                (offset, bufs.len_bytes() as u64, What::Read { bufs, early: None })
            }
            SqeOp::Write { offset, bufs, fua } => {
                let mut data = vec![0; bufs.len_bytes()];
                bufs.copy_to(&mut data);
                (offset, data.len() as u64, What::Write { bufs, data, fua })
            }
            SqeOp::Flush => (0, 0, What::Flush { mark: FlushMark::default() }),
            SqeOp::Discard { offset, len } => (offset, len, What::Discard),
            SqeOp::WriteZeroes { offset, len, .. } => (offset, len, What::WriteZeroes),
            SqeOp::Accept
            | SqeOp::Recv { .. }
            | SqeOp::Send { .. }
            | SqeOp::Shutdown
            | SqeOp::Close => refused(Status::NotSupported),
        };
        let op = Op { core, home, key, disk, submitted: self.now, nth: 0, offset, len, what };
        self.submit_op(op);
    }

    fn submit_op(&mut self, mut op: Op) {
        let known = self.disks.get_mut(op.disk);
        let refused = match (&op.what, &known) {
            (What::Refused(status), _) => Some(*status),
            (_, None) => Some(Status::NoDevice),
            (What::Flush { .. }, Some(_)) => None,
            (_, Some(disk)) => (!disk.has(op.offset, op.len)).then_some(Status::Invalid),
        };
        let Some(disk) = known.filter(|_| refused.is_none()) else {
            op.what = What::Refused(refused.unwrap_or(Status::NoDevice));
            let id = self.ops.insert(op);
            return self.at(self.now + Nanos(1_000), Due::Op(id));
        };
        op.nth = disk.ops;
        disk.ops += 1;
        let kind = match &mut op.what {
            What::Read { early, .. } => {
                if self.rng.chance_per_mille(self.swarm.early_read_per_mille) {
                    let mut data = vec![0; usize_of(op.len)];
                    disk.media.read(op.offset, &mut data);
                    *early = Some(data);
                }
                disk.stats.reads += 1;
                disk.stats.read_bytes += op.len;
                Kind::Read
            }
            What::Write { .. } | What::WriteZeroes => {
                disk.stats.writes += 1;
                disk.stats.write_bytes += op.len;
                Kind::Write
            }
            What::Flush { mark } => {
                *mark = disk.media.flush_mark();
                disk.stats.flushes += 1;
                Kind::Flush
            }
            What::Discard => {
                disk.stats.discards += 1;
                Kind::Discard
            }
            What::Refused(_) => unreachable!("handled above"),
        };
        let fua = matches!(op.what, What::Write { fua: true, .. });
        let (number, offset, len, name) = (op.disk, op.offset, op.len, op.name());
        let id = self.ops.insert(op);
        note(self.now, Happened::Submitted { disk: number, op: name, id, offset, len, fua });
        let cmd = Cmd { kind, offset_bytes: offset, len_bytes: len, fua };
        disk.model.submit(self.now.0, id as u64, cmd);
    }

    /// Whether nothing will ever happen by itself.
    pub(crate) fn is_idle(&self) -> bool {
        self.due.is_empty() && self.ops.is_empty()
    }

    fn next_time(&self) -> Option<Nanos> {
        let due = self.due.keys().next().map(|k| k.0);
        let models = self.disks.iter().filter_map(|d| d.model.next_event().map(Nanos));
        models.chain(due).min()
    }

    /// Goes to the next event, or to `deadline` if that comes first.
    pub(crate) fn advance(&mut self, deadline: Option<Nanos>) -> Option<(CoreId, Event)> {
        loop {
            let next = self.next_time().filter(|&t| deadline.is_none_or(|d| t <= d));
            let Some(next) = next else {
                // W2: a deadline in the past only collects.
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
                Due::Op(id) => return Some(self.end_op(id)),
                Due::Msg(to, msg) => {
                    note(self.now, Happened::Message { to: to.0, what: msg_name(&msg) });
                    return Some((to, Event::Msg(msg)));
                }
            }
        }
    }

    /// Takes what a disk's model has done; some of it stalls.
    fn collect(&mut self, number: usize) {
        let mut done = std::mem::take(&mut self.scratch);
        self.disks[number].model.pop_done(self.now.0, &mut done);
        for &id in &done {
            let id = usize_of(id);
            let mut time = self.now;
            if self.rng.chance_per_mille(self.swarm.stall_per_mille) {
                let took = self.now.saturating_sub(self.ops[id].submitted);
                let extra = Nanos(took.0 * (self.swarm.stall_factor - 1));
                note(self.now, Happened::Stalled { id, extra });
                time = time + extra;
            }
            self.at(time, Due::Op(id));
        }
        done.clear();
        self.scratch = done;
    }

    fn end_op(&mut self, id: usize) -> (CoreId, Event) {
        let op = self.ops.remove(id);
        let status = self.perform(id, &op);
        let Op { core, home, key, disk, offset, len, .. } = op;
        note(self.now, Happened::Ended { disk, op: op.name(), id, offset, len, status });
        self.mix(u64::from(status.errno().unsigned_abs()) << 32 | id as u64);
        (core, Event::Cqe { home, key, result: OpResult { status, value: 0 } })
    }

    /// The request takes effect on the medium, now that it is done.
    fn perform(&mut self, id: usize, op: &Op) -> Status {
        let (now, rng) = (self.now, &mut self.rng);
        if let What::Refused(status) = op.what {
            return status;
        }
        let disk = &mut self.disks[op.disk];
        let (faults, offset, len) = (disk.faults, op.offset, usize_of(op.len));
        let broken = faults.fail_from_op.is_some_and(|from| op.nth >= from);
        match &op.what {
            What::Read { bufs, early } => {
                let error = rng.chance_per_mille(faults.read_error_per_mille);
                if broken || error || disk.bad_in(offset, len) {
                    bufs.copy_from(&vec![0xEE; len]);
                    return Status::Io;
                }
                if rng.chance_per_mille(faults.rot_per_mille) {
                    let at = offset + rng.below(op.len);
                    let bit = u32::try_from(rng.below(8)).expect("below 8");
                    disk.media.flip_bit(at, bit);
                    note(now, Happened::Rotted { disk: op.disk, offset: at });
                }
                if let Some(data) = early {
                    bufs.copy_from(data);
                } else {
                    let mut data = vec![0; len];
                    disk.media.read(offset, &mut data);
                    bufs.copy_from(&data);
                }
            }
            What::Write { bufs, data, fua } => {
                let mut at = 0;
                bufs.for_each(|piece| {
                    let same = piece == &data[at..at + piece.len()];
                    assert!(same, "buffer of write #{id} at byte {offset} modified in flight");
                    at += piece.len();
                });
                if broken || rng.chance_per_mille(faults.write_error_per_mille) {
                    fail_write(disk, rng, offset, data);
                    return Status::Io;
                }
                if rng.chance_per_mille(faults.lost_write_per_mille) {
                    note(now, Happened::Misplaced { disk: op.disk, id, to: None });
                    return Status::Ok;
                }
                let mut to = offset;
                if rng.chance_per_mille(faults.misdirected_write_per_mille) {
                    let places = (disk.limits.capacity.bytes() - op.len) / SECTOR_SIZE as u64 + 1;
                    to = rng.below(places) * SECTOR_SIZE as u64;
                    note(now, Happened::Misplaced { disk: op.disk, id, to: Some(to) });
                }
                disk.heal(to, len);
                disk.media.write(to, data, *fua);
            }
            What::Flush { mark } => {
                if broken || rng.chance_per_mille(faults.flush_error_per_mille) {
                    disk.media.fail_flush(*mark);
                    return Status::Io;
                }
                disk.media.flush(*mark);
            }
            What::Discard | What::WriteZeroes => {
                let zeroes = vec![0; len];
                if broken || rng.chance_per_mille(faults.write_error_per_mille) {
                    fail_write(disk, rng, offset, &zeroes);
                    return Status::Io;
                }
                let whole = matches!(op.what, What::WriteZeroes);
                if whole || rng.chance_per_mille(self.swarm.discard_zeroes_per_mille) {
                    disk.heal(offset, len);
                    disk.media.write(offset, &zeroes, false);
                }
            }
            What::Refused(_) => unreachable!("returned above"),
        }
        Status::Ok
    }

    /// Requests and messages vanish; returns what was on its way to the media, by disk.
    fn forget(&mut self) -> Vec<Vec<InFlight>> {
        let mut in_flight: Vec<Vec<InFlight>> = Vec::new();
        in_flight.resize_with(self.disks.len(), Vec::new);
        for mut op in std::mem::take(&mut self.ops) {
            let op = &mut op.1;
            let data = match &mut op.what {
                What::Write { data, .. } => std::mem::take(data),
                What::Discard | What::WriteZeroes => vec![0; usize_of(op.len)],
                What::Read { .. } | What::Flush { .. } | What::Refused(_) => continue,
            };
            in_flight[op.disk].push(InFlight { offset: op.offset, data });
        }
        drop_quietly(std::mem::take(&mut self.due));
        for disk in &mut self.disks {
            disk.model.power_cut();
        }
        self.cut = None;
        in_flight
    }

    /// The power goes and comes back. The reactors are gone by then; the disks can be opened anew.
    pub fn crash(&mut self) {
        let (step, in_flight) = (self.steps, self.ops.len());
        note(self.now, Happened::PowerCut { step, in_flight });
        let pending = self.forget();
        for (disk, pending) in self.disks.iter_mut().zip(pending) {
            disk.media.power_cut(pending, &mut self.rng);
        }
        self.mix(u64::MAX);
    }

    /// The process is killed, the power stays: caches keep their contents; of the writes in flight
    /// each lands or does not. The reactors are gone by then.
    pub fn kill(&mut self) {
        let (step, in_flight) = (self.steps, self.ops.len());
        note(self.now, Happened::Killed { step, in_flight });
        let pending = self.forget();
        for (disk, mut pending) in self.disks.iter_mut().zip(pending) {
            disk.media.reopen();
            self.rng.shuffle(&mut pending);
            for write in pending {
                if self.rng.chance_per_mille(700) {
                    disk.media.write(write.offset, &write.data, false);
                }
            }
        }
        self.mix(u64::MAX - 1);
    }
}

impl Drop for World {
    fn drop(&mut self) {
        drop_quietly(std::mem::take(&mut self.due));
    }
}

/// Messages may carry bios, whose completions would complain.
fn drop_quietly(due: BTreeMap<(Nanos, u64), Due>) {
    let before = crashing();
    set_crashing(true);
    drop(due);
    set_crashing(before);
}

/// Each sector of a failed write holds the old or the new.
fn fail_write(disk: &mut DiskState, rng: &mut Rng, offset: u64, data: &[u8]) {
    let new_per_mille = rng.pick(&[0, 500, 1000]);
    for part in parts(offset, data.len(), SECTOR_SIZE as u64) {
        if rng.chance_per_mille(new_per_mille) {
            disk.media.write(offset + part.start as u64, &data[part], false);
        }
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
