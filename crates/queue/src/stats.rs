// SPDX-License-Identifier: Apache-2.0 OR MIT
//! The counters of a leaf: requests, bytes and errors by operation, requests in flight, the last
//! error.
use std::cell::{Cell, OnceCell, RefCell};
use std::ops::Range;
use std::rc::{Rc, Weak};
use std::sync::atomic::{AtomicBool, AtomicU64, Ordering};
use std::sync::{Arc, Mutex, MutexGuard, PoisonError};

use block::latency::{Latencies, LatencyCounts};
use block::{IoError, Nanos, OnIoError, Op, SECTOR_SHIFT, Sector, Status};
use reactor::{Generation, QuiesceCounter, WaitList, loop_time};

/// Whether requests of leaves are timed, in this process.
static TIMED: AtomicBool = AtomicBool::new(false);

/// Times requests of leaves from now on, for who shows the times. Not by default: a reading of the
/// clock and its count are a tenth of the instructions of a request to a file.
pub fn time_requests() {
    TIMED.store(true, Ordering::Relaxed);
}

/// Whether [`time_requests`] has been called.
pub fn requests_are_timed() -> bool {
    TIMED.load(Ordering::Relaxed)
}

/// The begin of a request that is not timed. An `Option` would make each request in
/// flight larger.
const NOT_TIMED: Nanos = Nanos(u64::MAX);

/// Number of operations of [`Op`].
const OPS: usize = 5;

/// Totals of one operation since the leaf was opened. Failed requests count in `errors` only.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq)]
pub struct Counts {
    /// Requests done.
    pub ios: u64,
    /// Bytes read, written, discarded or zeroed.
    pub bytes: u64,
    /// Requests that failed or were refused.
    pub errors: u64,
}

/// A request in flight: what counting its end needs.
#[must_use = "a request that has begun must end"]
#[derive(Clone, Copy, Debug)]
pub struct Ticket {
    op: Op,
    sector: Sector,
    len: Sector,
    /// [`NOT_TIMED`] if it is not timed.
    begun: Nanos,
    generation: Generation,
}

impl Ticket {
    pub(crate) fn op(&self) -> Op {
        self.op
    }

    /// Whether it changes any of these sectors.
    pub fn changes(&self, sectors: &Range<Sector>) -> bool {
        let Ticket { op, sector, len, .. } = *self;
        op.is_write() && sector < sectors.end && sectors.start < sector + len
    }
}

/// Totals by operation. One core writes them, with plain loads and stores; others read.
#[derive(Debug, Default)]
struct Done {
    ios: [AtomicU64; OPS],
    bytes: [AtomicU64; OPS],
    latencies: Latencies,
}

/// What leaves that are closed have counted of one operation.
#[derive(Clone, Copy, Debug, Default)]
struct ClosedCounts {
    ios: u64,
    bytes: u64,
    latencies: LatencyCounts,
}

impl Done {
    fn add(&self, op: usize, bytes: u64) {
        let add = |to: &AtomicU64, n: u64| {
            to.store(to.load(Ordering::Relaxed).wrapping_add(n), Ordering::Relaxed);
        };
        add(&self.ios[op], 1);
        add(&self.bytes[op], bytes);
    }

    fn of(&self, op: usize) -> (u64, u64) {
        (self.ios[op].load(Ordering::Relaxed), self.bytes[op].load(Ordering::Relaxed))
    }
}

/// The counters of leaves on other cores on the same file or memory. They belong to the first leaf,
/// which adds them to its own totals. Failures are reported to it one by one
/// ([`Stats::failed_on_other_core`]).
#[derive(Clone, Debug, Default)]
pub struct OtherCores(Arc<Mutex<OtherCounters>>);

#[derive(Debug, Default)]
struct OtherCounters {
    open: Vec<Arc<Done>>,
    /// Totals of those that are closed.
    closed: [ClosedCounts; OPS],
}

impl OtherCores {
    fn lock(&self) -> MutexGuard<'_, OtherCounters> {
        // Nothing under the lock can panic half way.
        self.0.lock().unwrap_or_else(PoisonError::into_inner)
    }

    fn of(&self, op: usize) -> (u64, u64) {
        let others = self.lock();
        let ClosedCounts { ios, bytes, .. } = others.closed[op];
        let open = others.open.iter().map(|done| done.of(op));
        open.fold((ios, bytes), |a, b| (a.0 + b.0, a.1.wrapping_add(b.1)))
    }

    fn latencies(&self, op: Op) -> LatencyCounts {
        let others = self.lock();
        let open = others.open.iter().map(|done| done.latencies.counts(op));
        open.fold(others.closed[index(op)].latencies, |a, b| a.plus(&b))
    }

    fn leave(&self, done: &Arc<Done>) {
        let mut others = self.lock();
        others.open.retain(|d| !Arc::ptr_eq(d, done));
        for op in Op::ALL {
            let closed = &mut others.closed[index(op)];
            let (ios, bytes) = done.of(index(op));
            closed.ios += ios;
            closed.bytes = closed.bytes.wrapping_add(bytes);
            closed.latencies = closed.latencies.plus(&done.latencies.counts(op));
        }
    }
}

/// Counters of one leaf. They belong to the core that owns the leaf.
pub struct Stats {
    device: String,
    done: Arc<Done>,
    errors: [Cell<u64>; OPS],
    other_cores: OtherCores,
    /// The first leaf on the same file or memory, which adds these counters to its own.
    counts_for: OnceCell<OtherCores>,
    in_flight: QuiesceCounter,
    last_error: RefCell<Option<IoError>>,
    failures: Cell<u64>,
    /// The changes that had been done when one was refused by a device that takes no writes.
    refused_after: Cell<Option<u64>>,
    on_failure: OnceCell<Rc<WaitList>>,
    watchers: RefCell<Vec<Weak<dyn OnIoError>>>,
}

impl Stats {
    /// Counters of the leaf with the name `device`.
    pub fn new(device: String) -> Stats {
        Stats {
            device,
            done: Arc::default(),
            errors: Default::default(),
            other_cores: OtherCores::default(),
            counts_for: OnceCell::new(),
            in_flight: QuiesceCounter::default(),
            last_error: RefCell::new(None),
            failures: Cell::new(0),
            refused_after: Cell::new(None),
            on_failure: OnceCell::new(),
            watchers: RefCell::default(),
        }
    }

    /// The name of the leaf.
    pub fn device(&self) -> &str {
        &self.device
    }

    /// Totals of one operation, on all cores.
    pub fn of(&self, op: Op) -> Counts {
        let op = index(op);
        let (here, others) = (self.done.of(op), self.other_cores.of(op));
        Counts {
            ios: here.0 + others.0,
            bytes: here.1.wrapping_add(others.1),
            errors: self.errors[op].get(),
        }
    }

    /// How long requests of one operation took, waits in the throttle included, on all cores. What
    /// ends as it is submitted is not timed.
    pub fn latencies(&self, op: Op) -> LatencyCounts {
        self.done.latencies.counts(op).plus(&self.other_cores.latencies(op))
    }

    /// The counters that leaves of other cores on the same file or memory join.
    pub fn other_cores(&self) -> OtherCores {
        self.other_cores.clone()
    }

    /// From now on, counts also for the leaf that these [`Stats::other_cores`] belong to.
    pub fn count_for(&self, leaf: &OtherCores) {
        if self.counts_for.set(leaf.clone()).is_ok() {
            leaf.lock().open.push(self.done.clone());
        }
    }

    /// Requests that have entered and not ended.
    pub fn in_flight(&self) -> u64 {
        self.in_flight.in_flight() as u64
    }

    /// Failed requests of all operations.
    pub fn errors(&self) -> u64 {
        self.errors.iter().map(Cell::get).sum()
    }

    /// The last request that failed, in full.
    pub fn last_error(&self) -> Option<IoError> {
        self.last_error.borrow().clone()
    }

    /// Requests that the device itself failed. Unsupported and invalid requests are mistakes of
    /// their sender and do not count.
    pub fn failures(&self) -> u64 {
        self.failures.get()
    }

    /// Whether the last change was refused because the device takes no writes.
    pub fn refuses_writes(&self) -> bool {
        self.refused_after.get().is_some_and(|changes| changes == self.changes())
    }

    /// Changes done, on all cores.
    fn changes(&self) -> u64 {
        Op::ALL.into_iter().filter(|op| op.is_write()).map(|op| self.of(op).ios).sum()
    }

    /// Wakes `list` whenever [`Stats::failures`] grows. The first list stays.
    pub fn wake_on_failure(&self, list: Rc<WaitList>) {
        let _ = self.on_failure.set(list);
    }

    /// Reports every request that fails from now on to `watcher`, as long as that lives; once,
    /// however often it is given.
    pub fn watch(&self, watcher: Weak<dyn OnIoError>) {
        let address = |w: &Weak<dyn OnIoError>| w.as_ptr().cast::<()>();
        let mut watchers = self.watchers.borrow_mut();
        watchers.retain(|w| w.strong_count() > 0 && address(w) != address(&watcher));
        watchers.push(watcher);
    }

    /// The requests in flight, to wait until they have ended.
    pub fn requests(&self) -> &QuiesceCounter {
        &self.in_flight
    }

    /// A request has entered.
    pub fn begin(&self, op: Op, sector: Sector, len: Sector) -> Ticket {
        let begun = if requests_are_timed() { loop_time() } else { NOT_TIMED };
        Ticket { op, sector, len, begun, generation: self.in_flight.enter() }
    }

    /// It has ended.
    pub fn end(&self, ticket: Ticket, status: Status) {
        self.in_flight.leave(ticket.generation);
        if ticket.begun != NOT_TIMED {
            self.record_latency(&ticket);
        }
        self.count(ticket.op, ticket.sector, ticket.len, status);
    }

    #[cold]
    fn record_latency(&self, ticket: &Ticket) {
        let latency = loop_time().saturating_sub(ticket.begun);
        self.done.latencies.record(ticket.op, latency);
    }

    /// Counts a request that ended as it was submitted.
    pub fn count(&self, op: Op, sector: Sector, len: Sector, status: Status) {
        if status != Status::Ok {
            return self.failed(op, sector, len, status);
        }
        self.done.add(index(op), len.0 << SECTOR_SHIFT);
    }

    /// Counts and reports a request that failed on another core's leaf on the same file or memory.
    pub fn failed_on_other_core(&self, op: Op, sector: Sector, len: Sector, cause: Status) {
        self.failed(op, sector, len, cause);
    }

    #[cold]
    fn failed(&self, op: Op, sector: Sector, len: Sector, cause: Status) {
        let errors = &self.errors[index(op)];
        errors.set(errors.get() + 1);
        let device = self.device.clone();
        if cause == Status::ReadOnly {
            self.refused_after.set(Some(self.changes()));
        }
        *self.last_error.borrow_mut() = Some(IoError { device, op, sector, cause });
        if !matches!(cause, Status::NotSupported | Status::Invalid) {
            self.failures.set(self.failures.get() + 1);
            if let Some(list) = self.on_failure.get() {
                list.wake_all();
            }
        }
        for watcher in self.watchers.borrow().iter().filter_map(Weak::upgrade) {
            watcher.on_io_error(op, sector, len, cause);
        }
    }
}

impl Drop for Stats {
    fn drop(&mut self) {
        if let Some(leaf) = self.counts_for.get() {
            leaf.leave(&self.done);
        }
    }
}

block::debug_as!(Stats, s => "Stats({}, {:?})", s.device, s.done);

fn index(op: Op) -> usize {
    op as usize
}

#[cfg(test)]
mod tests {
    use super::*;

    #[derive(Default)]
    struct ErrorCounter(Cell<u32>);

    impl OnIoError for ErrorCounter {
        fn on_io_error(&self, _: Op, _: Sector, _: Sector, _: Status) {
            self.0.set(self.0.get() + 1);
        }
    }

    /// A device that is suspended and resumed every minute was added each time.
    #[test]
    fn a_watcher_that_is_given_again_is_kept_once() {
        let leaf = Stats::new("disk".into());
        let counter: Rc<ErrorCounter> = Rc::default();
        for _ in 0..3 {
            let watcher: Rc<dyn OnIoError> = counter.clone();
            leaf.watch(Rc::downgrade(&watcher));
        }
        leaf.count(Op::Read, Sector(0), Sector(8), Status::Io);
        assert_eq!((counter.0.get(), leaf.watchers.borrow().len()), (1, 1));
    }

    #[test]
    fn a_device_that_takes_writes_again_refuses_none() {
        let leaf = Stats::new("disk".into());
        let write = |status| leaf.count(Op::Write, Sector(0), Sector(8), status);
        write(Status::Ok);
        write(Status::Io);
        assert!(!leaf.refuses_writes(), "that is no refusal");
        write(Status::ReadOnly);
        leaf.count(Op::Read, Sector(0), Sector(8), Status::Ok);
        assert!(leaf.refuses_writes());
        write(Status::Ok);
        assert!(!leaf.refuses_writes());
        leaf.failed_on_other_core(Op::Discard, Sector(0), Sector(8), Status::ReadOnly);
        assert!(leaf.refuses_writes());
        let other = Stats::new("disk".into());
        other.count_for(&leaf.other_cores());
        other.count(Op::WriteZeroes, Sector(0), Sector(8), Status::Ok);
        assert!(!leaf.refuses_writes());
    }

    #[test]
    fn counters_of_other_cores_add_up_and_stay_when_they_close() {
        let leaf = Stats::new("disk".into());
        leaf.count(Op::Read, Sector(0), Sector(8), Status::Ok);
        let other_cores = leaf.other_cores();
        for _ in 0..2 {
            let other = Stats::new("disk".into());
            other.count_for(&other_cores);
            other.count(Op::Read, Sector(8), Sector(1), Status::Ok);
            other.count(Op::Read, Sector(8), Sector(1), Status::Io);
            assert_eq!(other.of(Op::Read).ios, 1, "its own only");
        }
        leaf.failed_on_other_core(Op::Read, Sector(8), Sector(1), Status::Io);
        assert_eq!(leaf.of(Op::Read), Counts { ios: 3, bytes: 10 * 512, errors: 1 });
        assert_eq!(leaf.of(Op::Write), Counts::default());
    }
}
