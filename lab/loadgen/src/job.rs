// SPDX-License-Identifier: Apache-2.0 OR MIT
//! One job: a fixed number of slots, each with one request in flight, refilled as they end.
//!
//! ```text
//!   poll:  take the list of ready slots ─▶ for each: account, draw the next request, submit
//!                      ▲                                                        │
//!          on_done pushes the slot's number (and wakes the job when it sleeps) ◀┘
//! ```
//!
//! A job runs on any core where its device may be used.
//!
//! Invariants
//! - LG-J1 A slot is in flight or on the list, never both; its buffer is the device's while in
//!   flight.
//! - LG-J2 After the first failure nothing is submitted any more; what is in flight still ends. So
//!   the slot that failed still holds its request.
//! - LG-J3 With verification no two requests in flight touch the same block, so that what a block
//!   must hold is known.
use std::cell::{Cell, RefCell};
use std::future::poll_fn;
use std::rc::Rc;
use std::sync::Arc;
use std::sync::atomic::{AtomicU64, Ordering};
use std::task::{Context, Poll, Waker};

use block::{
    Bio, BlockDevice, Buf, Class, Completion, CoreId, ErrorKind, Flags, IoError, Nanos, Op, OpKey,
    Opener, Sector, Status,
};
use clap::ValueEnum;
use control::Failure;
use hdrhistogram::Histogram;
use reactor::{OnDone, chain, core_id, flush, new_opener, now, write};

use crate::pattern::{Blocks, NextRequest};
use crate::payload::Payload;

/// Requests between two reads of the clock and turns of other tasks of the core: some 13 us with
/// requests of 50 ns, so that a look of 25 ns does not count.
pub(crate) const TICK: u32 = 256;
/// Largest latency that is recorded exactly, a quarter of an hour, and its precision: three digits.
const LATENCY_NS_MAX: u64 = 1 << 40;
const LATENCY_DIGITS: u8 = 3;
/// Size of a write of the prefill.
const FILL_BYTES: usize = 1 << 20;

/// What to do, by fio's names.
#[derive(Clone, Copy, Debug, PartialEq, Eq, ValueEnum)]
pub(crate) enum Kind {
    /// Sequential reads
    Read,
    /// Sequential writes
    Write,
    /// Random reads
    Randread,
    /// Random writes
    Randwrite,
    /// Sequential reads and writes
    Rw,
    /// Random reads and writes
    Randrw,
}

impl Kind {
    pub(crate) fn is_random(self) -> bool {
        matches!(self, Kind::Randread | Kind::Randwrite | Kind::Randrw)
    }

    pub(crate) fn writes(self) -> bool {
        !matches!(self, Kind::Read | Kind::Randread)
    }
}

/// Which requests are timed.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(crate) enum Sampling {
    All,
    /// Every so many, a power of two.
    Every(u64),
    Nothing,
}

/// What a job does.
#[derive(Clone, Debug)]
pub(crate) struct Work {
    pub(crate) kind: Kind,
    pub(crate) mix_read_percent: u32,
    /// Where the region begins.
    pub(crate) first: Sector,
    /// Its length in requests, at least 1.
    pub(crate) blocks: u64,
    /// Size of a request.
    pub(crate) block: Sector,
    pub(crate) depth: u32,
    pub(crate) number_ios: Option<u64>,
    pub(crate) runtime: Option<Nanos>,
    /// Of the positions; each job has its own.
    pub(crate) seed: u64,
    /// Of what blocks hold; one for all jobs, and for later runs that check it.
    pub(crate) pattern_seed: u64,
    pub(crate) sampling: Sampling,
    pub(crate) verify: bool,
    /// Of what writes hold so much is zeroes and the rest random; if none, it is what the slot has.
    pub(crate) zero_percent: Option<u32>,
}

impl Work {
    /// What the `nth` of `jobs` does: with verification in a part of the region of its own (LG-J3).
    pub(crate) fn of_job(&self, nth: usize, jobs: usize) -> Work {
        let (nth, jobs) = (nth as u64, jobs as u64);
        let mut work = self.clone();
        if self.verify {
            work.blocks = self.blocks / jobs;
            work.first = self.first + Sector(nth * work.blocks * self.block.0);
        }
        work.seed = self.seed.wrapping_add(nth.wrapping_mul(0x9e37_79b9_7f4a_7c15));
        work
    }

    /// The region: its first sector and its length.
    pub(crate) fn area(&self) -> (Sector, Sector) {
        (self.first, Sector(self.blocks * self.block.0))
    }

    /// What writes of `block` each hold.
    fn payload(&self, block: Sector) -> Option<Payload> {
        self.zero_percent.map(|percent| Payload::new(percent, block, self.pattern_seed))
    }
}

/// Requests done so far, for the thread that shows progress. Written by one job at a time.
#[derive(Debug, Default)]
pub(crate) struct Counter(AtomicU64);

impl Counter {
    pub(crate) fn get(&self) -> u64 {
        self.0.load(Ordering::Relaxed)
    }
}

/// The result of one direction.
#[derive(Clone, Debug)]
pub(crate) struct Done {
    pub(crate) ios: u64,
    pub(crate) latency_ns: Histogram<u64>,
}

impl Done {
    pub(crate) fn nothing() -> Done {
        let latency_ns = Histogram::new_with_bounds(1, LATENCY_NS_MAX, LATENCY_DIGITS);
        Done { ios: 0, latency_ns: latency_ns.expect("constant bounds") }
    }
}

/// The result of a job.
#[derive(Clone, Debug)]
pub(crate) struct Outcome {
    pub(crate) read: Done,
    pub(crate) write: Done,
    pub(crate) elapsed: Nanos,
    /// Blocks that were read and held what they had to.
    pub(crate) verified_blocks: u64,
}

/// The slots whose requests have ended. Shared with the core's table of requests, which does not
/// know the job.
struct Ready {
    list: RefCell<Vec<u32>>,
    failed: Cell<Option<(Status, u32)>>,
    /// The job's waker while it waits.
    asleep: RefCell<Option<Waker>>,
}

impl OnDone for Ready {
    fn on_done(&self, status: Status, tag: u64) {
        #[expect(clippy::cast_possible_truncation, reason = "it was made from a u32")]
        let slot = tag as u32;
        if status != Status::Ok && self.failed.get().is_none() {
            self.failed.set(Some((status, slot)));
        }
        let mut list = self.list.borrow_mut();
        if list.is_empty()
            && let Some(waker) = self.asleep.take()
        {
            waker.wake();
        }
        list.push(slot);
    }
}

/// The end of the chain: [`Ready`] has the slot by then.
fn end_of_chain(_home: CoreId, _key: OpKey, _status: Status) {}

struct Slot {
    buf: Buf,
    op: Op,
    sector: Sector,
    /// When it was submitted, if it is timed; else zero.
    began_ns: u64,
}

struct Job {
    device: Rc<dyn BlockDevice>,
    home: CoreId,
    opener: Opener,
    ready: Rc<Ready>,
    slots: Vec<Slot>,
    /// Taken from `ready`, and given back empty.
    batch: Vec<u32>,
    in_flight: u32,
    issued: u64,
    issue_max: u64,
    /// A request is timed when these bits of its number are all set.
    sample_mask: u64,
    random: bool,
    /// Out of 2^32.
    read_share: u64,
    rng: u64,
    next: u64,
    first: Sector,
    blocks: u64,
    block: Sector,
    done: [Done; 2],
    began: Nanos,
    until: Nanos,
    verify: Option<Blocks>,
    payload: Option<Payload>,
    problem: Option<String>,
    counter: Arc<Counter>,
    /// What earlier turns have counted.
    counted: u64,
}

/// Splitmix64: a multiplication or two a number, and any seed will do.
pub(crate) fn draw(state: &mut u64) -> u64 {
    *state = state.wrapping_add(0x9e37_79b9_7f4a_7c15);
    let mut z = *state;
    z = (z ^ (z >> 30)).wrapping_mul(0xbf58_476d_1ce4_e5b9);
    z = (z ^ (z >> 27)).wrapping_mul(0x94d0_49bb_1331_11eb);
    z ^ (z >> 31)
}

/// Runs a job on the core of the caller. Fails with what the first failed request was, or with what
/// was found instead of what should have been there.
pub(crate) async fn run(
    device: Rc<dyn BlockDevice>,
    work: Work,
    counter: Arc<Counter>,
) -> Result<Outcome, String> {
    let mut job = Job::new(device, &work, counter);
    poll_fn(|cx| job.poll(cx)).await;
    let elapsed = Nanos(now().0 - job.began.0);
    job.result()?;
    let done = std::mem::replace(&mut job.done, [Done::nothing(), Done::nothing()]);
    if let Some(verify) = job.verify.as_mut().filter(|_| work.kind.writes()) {
        verify.read_back();
        // What it held before must not be what is checked.
        let flushed = flush(&*job.device, Class::Foreground).await;
        flushed.map_err(|status| format!("{}: flush: {status}", job.device.name()))?;
        job.read_back();
        poll_fn(|cx| job.poll(cx)).await;
        job.result()?;
    }
    let verified_blocks = job.verify.as_ref().map_or(0, Blocks::checked);
    let [read, write] = done;
    Ok(Outcome { read, write, elapsed, verified_blocks })
}

impl Job {
    fn new(device: Rc<dyn BlockDevice>, work: &Work, counter: Arc<Counter>) -> Job {
        let depth = u32::try_from(work.blocks).map_or(work.depth, |b| work.depth.min(b));
        let depth = if work.verify { depth } else { work.depth };
        let bytes = usize::try_from(work.block.bytes()).expect("at most 32 MiB");
        let slot =
            |_| Slot { buf: Buf::zeroed(bytes), op: Op::Read, sector: Sector::ZERO, began_ns: 0 };
        let read_percent = match work.kind {
            Kind::Read | Kind::Randread => 100,
            Kind::Write | Kind::Randwrite => 0,
            Kind::Rw | Kind::Randrw => u64::from(work.mix_read_percent),
        };
        let ready = Ready {
            // All slots begin as ready.
            list: RefCell::new((0..depth).collect()),
            failed: Cell::new(None),
            asleep: RefCell::new(None),
        };
        let began = now();
        Job {
            device,
            home: core_id(),
            opener: new_opener(),
            ready: Rc::new(ready),
            slots: (0..depth).map(slot).collect(),
            batch: Vec::with_capacity(depth as usize),
            in_flight: depth,
            issued: 0,
            issue_max: work.number_ios.unwrap_or(u64::MAX),
            sample_mask: match work.sampling {
                Sampling::All => 0,
                Sampling::Every(n) => n.next_power_of_two() - 1,
                Sampling::Nothing => u64::MAX,
            },
            random: work.kind.is_random(),
            read_share: (read_percent << 32) / 100,
            rng: work.seed,
            next: 0,
            first: work.first,
            blocks: work.blocks,
            block: work.block,
            done: [Done::nothing(), Done::nothing()],
            began,
            until: work.runtime.map_or(Nanos(u64::MAX), |t| Nanos(began.0.saturating_add(t.0))),
            verify: work.verify.then(|| Blocks::new(work)),
            payload: work.payload(work.block),
            problem: None,
            counted: counter.get(),
            counter,
        }
    }

    /// From here on the blocks that were written are read, each once.
    fn read_back(&mut self) {
        self.issued = 0;
        self.issue_max = u64::MAX;
        self.until = Nanos(u64::MAX);
        self.sample_mask = u64::MAX;
        self.in_flight = u32::try_from(self.slots.len()).expect("made from a u32");
        self.ready.list.borrow_mut().extend(0..self.in_flight);
        self.slots.iter_mut().for_each(|slot| slot.began_ns = 0);
    }

    fn poll(&mut self, cx: &mut Context<'_>) -> Poll<()> {
        // In the first round the slots on the list have not been submitted: nothing to account.
        let mut fresh = self.issued == 0;
        let mut left = TICK;
        while left > 0 {
            std::mem::swap(&mut self.batch, &mut *self.ready.list.borrow_mut());
            if self.batch.is_empty() {
                if self.in_flight == 0 {
                    return Poll::Ready(());
                }
                *self.ready.asleep.borrow_mut() = Some(cx.waker().clone());
                self.check_time();
                return Poll::Pending;
            }
            let failed = self.ready.failed.get().is_some() || self.problem.is_some();
            if failed {
                self.issue_max = self.issued; // LG-J2
            }
            let mut batch = std::mem::take(&mut self.batch);
            left = left.saturating_sub(batch.len() as u32);
            for slot in batch.drain(..) {
                let seen = if fresh { None } else { self.account(slot) };
                self.submit(slot, seen);
            }
            self.batch = batch;
            fresh = false;
        }
        self.check_time();
        cx.waker().wake_by_ref();
        Poll::Pending
    }

    fn check_time(&mut self) {
        let ios = self.counted + self.done[0].ios + self.done[1].ios;
        self.counter.0.store(ios, Ordering::Relaxed);
        if now() >= self.until {
            self.issue_max = self.issued;
        }
    }

    /// Counts the end of a request; returns the time if it read the clock.
    fn account(&mut self, slot: u32) -> Option<u64> {
        let Slot { buf, op, sector, began_ns } = &self.slots[slot as usize];
        let done = &mut self.done[usize::from(*op == Op::Write)];
        done.ios += 1;
        if let Some(verify) = &mut self.verify {
            // Failures are reported by `Ready`.
            let failed = self.ready.failed.get().is_some();
            if let Err(found) = verify.ended(*op, *sector, buf, failed) {
                self.problem.get_or_insert(found);
            }
        }
        if *began_ns == 0 {
            return None;
        }
        let at = now().0;
        done.latency_ns.saturating_record(at - began_ns);
        Some(at)
    }

    /// Submits the next request with `slot`, if there is one.
    fn submit(&mut self, slot: u32, now_ns: Option<u64>) {
        if self.issued >= self.issue_max {
            self.in_flight -= 1;
            return;
        }
        let random = draw(&mut self.rng);
        let mut at = if self.random {
            // The high bits, so that the low ones are free for the choice between read and write.
            ((u128::from(random) * u128::from(self.blocks)) >> 64) as u64
        } else {
            self.next
        };
        let mut op = if random & 0xffff_ffff < self.read_share { Op::Read } else { Op::Write };
        let chosen = &mut self.slots[slot as usize];
        if let Some(verify) = &mut self.verify {
            match verify.begin(op, at, &chosen.buf) {
                NextRequest::Go(o, block) => (op, at) = (o, block),
                NextRequest::Over => {
                    self.issue_max = self.issued;
                    self.in_flight -= 1;
                    return;
                }
            }
        }
        self.next = if at + 1 == self.blocks { 0 } else { at + 1 };
        chosen.op = op;
        chosen.sector = self.first + Sector(at * self.block.0);
        let timed = self.issued & self.sample_mask == self.sample_mask;
        chosen.began_ns = if timed { now_ns.unwrap_or_else(|| now().0) } else { 0 };
        self.issued += 1;
        let parent = Completion::new(end_of_chain, self.home, OpKey(0));
        let done = chain(parent, self.ready.clone(), u64::from(slot));
        let data = match self.payload.as_ref().filter(|_| op == Op::Write) {
            Some(payload) => payload.block(draw(&mut self.rng)),
            None => chosen.buf.all(),
        };
        self.device.submit(Bio {
            op,
            flags: Flags::empty(),
            class: Class::Foreground,
            opener: self.opener,
            sector: chosen.sector,
            len: self.block,
            bufs: data.into(),
            done,
        });
    }

    fn result(&mut self) -> Result<(), String> {
        if let Some((cause, slot)) = self.ready.failed.get() {
            let Slot { op, sector, .. } = self.slots[slot as usize];
            let device = self.device.name().to_owned();
            return Err(IoError { device, op, sector, cause }.to_string());
        }
        let device = self.device.name();
        self.problem.take().map_or(Ok(()), |found| Err(format!("{device}: {found}")))
    }
}

/// Writes the region once, so that nothing of it is a hole.
pub(crate) async fn prefill(device: &dyn BlockDevice, work: &Work) -> Result<(), Failure> {
    let buf = Buf::alloc(FILL_BYTES);
    buf.write(|b| b.fill(0x5a));
    let step = Sector::from_bytes(FILL_BYTES as u64);
    let (first, len) = work.area();
    let (payload, mut rng) = (work.payload(step), work.seed);
    let mut at = Sector::ZERO;
    while at < len {
        let now = step.min(len - at);
        let bytes = usize::try_from(now.bytes()).expect("at most FILL_BYTES");
        let sector = first + at;
        let piece = payload.as_ref().map_or_else(|| buf.all(), |p| p.block(draw(&mut rng)));
        let data = piece.slice(0..bytes).into();
        let written = write(device, Flags::empty(), Class::Normal, sector, data).await;
        written.map_err(|cause| {
            let device = device.name().to_owned();
            let e = IoError { device, op: Op::Write, sector, cause };
            Failure::new(ErrorKind::Io, e.to_string()).within("prefill")
        })?;
        at += now;
    }
    Ok(())
}
