// SPDX-License-Identifier: Apache-2.0 OR MIT
//! What a leaf counts: requests, bytes and errors by operation, what is in flight, the last error.
use std::cell::{Cell, OnceCell, RefCell};
use std::fmt;
use std::ops::Range;
use std::rc::{Rc, Weak};
use std::sync::atomic::{AtomicU64, Ordering};
use std::sync::{Arc, Mutex, MutexGuard, PoisonError};

use block::{IoError, OnIoError, Op, SECTOR_SHIFT, Sector, Status};
use reactor::{Generation, QuiesceCounter, WaitList};

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

/// Where and what a request in flight is: all that counting its end needs.
#[must_use = "what begins must end"]
#[derive(Clone, Copy, Debug)]
pub struct Ticket {
    op: Op,
    sector: Sector,
    len: Sector,
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

/// What was done by operation. Written by one core only, with plain loads and stores; others read.
#[derive(Debug, Default)]
struct Done {
    ios: [AtomicU64; OPS],
    bytes: [AtomicU64; OPS],
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

/// What other cores' devices on the same file or memory have done. It belongs to the leaf that they
/// stand for, which adds it to its own totals; their failures it is told one by one
/// ([`Stats::failed_elsewhere`]).
#[derive(Clone, Debug, Default)]
pub struct Elsewhere(Arc<Mutex<Others>>);

#[derive(Debug, Default)]
struct Others {
    there: Vec<Arc<Done>>,
    /// Totals of those that are gone.
    gone: [(u64, u64); OPS],
}

impl Elsewhere {
    fn lock(&self) -> MutexGuard<'_, Others> {
        // Nothing under the lock can panic half way.
        self.0.lock().unwrap_or_else(PoisonError::into_inner)
    }

    fn of(&self, op: usize) -> (u64, u64) {
        let others = self.lock();
        let there = others.there.iter().map(|done| done.of(op));
        there.fold(others.gone[op], |a, b| (a.0 + b.0, a.1.wrapping_add(b.1)))
    }

    fn leave(&self, done: &Arc<Done>) {
        let mut others = self.lock();
        others.there.retain(|d| !Arc::ptr_eq(d, done));
        for (op, gone) in others.gone.iter_mut().enumerate() {
            let (ios, bytes) = done.of(op);
            *gone = (gone.0 + ios, gone.1.wrapping_add(bytes));
        }
    }
}

/// Counters of one leaf. They belong to the core that owns the leaf.
pub struct Stats {
    device: String,
    done: Arc<Done>,
    errors: [Cell<u64>; OPS],
    elsewhere: Elsewhere,
    /// The leaf for which this one counts, too.
    stands_for: OnceCell<Elsewhere>,
    in_flight: QuiesceCounter,
    last_error: RefCell<Option<IoError>>,
    failures: Cell<u64>,
    alarm: OnceCell<Rc<WaitList>>,
    watchers: RefCell<Vec<Weak<dyn OnIoError>>>,
}

impl Stats {
    /// Counters of a leaf that people call `device`.
    pub fn new(device: String) -> Stats {
        Stats {
            device,
            done: Arc::default(),
            errors: Default::default(),
            elsewhere: Elsewhere::default(),
            stands_for: OnceCell::new(),
            in_flight: QuiesceCounter::default(),
            last_error: RefCell::new(None),
            failures: Cell::new(0),
            alarm: OnceCell::new(),
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
        let (here, elsewhere) = (self.done.of(op), self.elsewhere.of(op));
        Counts {
            ios: here.0 + elsewhere.0,
            bytes: here.1.wrapping_add(elsewhere.1),
            errors: self.errors[op].get(),
        }
    }

    /// For the stats of other cores' devices on the same file or memory.
    pub fn elsewhere(&self) -> Elsewhere {
        self.elsewhere.clone()
    }

    /// Counts for the leaf whose [`Stats::elsewhere`] it is, too, from now on.
    pub fn stand_for(&self, elsewhere: &Elsewhere) {
        if self.stands_for.set(elsewhere.clone()).is_ok() {
            elsewhere.lock().there.push(self.done.clone());
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

    /// Requests that the device itself failed: those that it does not know or that did not fit are
    /// their sender's mistake and are left out.
    pub fn failures(&self) -> u64 {
        self.failures.get()
    }

    /// Wakes `alarm` whenever [`Stats::failures`] grows. The first alarm stays.
    pub fn set_alarm(&self, alarm: Rc<WaitList>) {
        let _ = self.alarm.set(alarm);
    }

    /// Tells `watcher`, as long as it lives, of every request that fails from now on.
    pub fn watch(&self, watcher: Weak<dyn OnIoError>) {
        let mut watchers = self.watchers.borrow_mut();
        watchers.retain(|w| w.strong_count() > 0);
        watchers.push(watcher);
    }

    /// The requests in flight, for who waits until they have ended.
    pub fn requests(&self) -> &QuiesceCounter {
        &self.in_flight
    }

    /// A request has entered.
    pub fn begin(&self, op: Op, sector: Sector, len: Sector) -> Ticket {
        Ticket { op, sector, len, generation: self.in_flight.enter() }
    }

    /// It has ended.
    pub fn end(&self, ticket: Ticket, status: Status) {
        self.in_flight.leave(ticket.generation);
        self.count(ticket.op, ticket.sector, ticket.len, status);
    }

    /// Counts a request that ended as it was submitted.
    pub fn count(&self, op: Op, sector: Sector, len: Sector, status: Status) {
        if status != Status::Ok {
            return self.failed(op, sector, len, status);
        }
        self.done.add(index(op), len.0 << SECTOR_SHIFT);
    }

    /// Counts and tells a request that failed on another core's device on the same file or memory.
    pub fn failed_elsewhere(&self, op: Op, sector: Sector, len: Sector, cause: Status) {
        self.failed(op, sector, len, cause);
    }

    #[cold]
    fn failed(&self, op: Op, sector: Sector, len: Sector, cause: Status) {
        let errors = &self.errors[index(op)];
        errors.set(errors.get() + 1);
        let device = self.device.clone();
        *self.last_error.borrow_mut() = Some(IoError { device, op, sector, cause });
        if !matches!(cause, Status::NotSupported | Status::Invalid) {
            self.failures.set(self.failures.get() + 1);
            if let Some(alarm) = self.alarm.get() {
                alarm.wake_all();
            }
        }
        for watcher in self.watchers.borrow().iter().filter_map(Weak::upgrade) {
            watcher.on_io_error(op, sector, len, cause);
        }
    }
}

impl Drop for Stats {
    fn drop(&mut self) {
        if let Some(elsewhere) = self.stands_for.get() {
            elsewhere.leave(&self.done);
        }
    }
}

impl fmt::Debug for Stats {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        write!(f, "Stats({}, {:?})", self.device, self.done)
    }
}

fn index(op: Op) -> usize {
    op as usize
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn what_other_cores_do_adds_up_and_stays_when_they_go() {
        let leaf = Stats::new("disk".into());
        leaf.count(Op::Read, Sector(0), Sector(8), Status::Ok);
        let elsewhere = leaf.elsewhere();
        for _ in 0..2 {
            let twin = Stats::new("disk".into());
            twin.stand_for(&elsewhere);
            twin.count(Op::Read, Sector(8), Sector(1), Status::Ok);
            twin.count(Op::Read, Sector(8), Sector(1), Status::Io);
            assert_eq!(twin.of(Op::Read).ios, 1, "its own only");
        }
        leaf.failed_elsewhere(Op::Read, Sector(8), Sector(1), Status::Io);
        assert_eq!(leaf.of(Op::Read), Counts { ios: 3, bytes: 10 * 512, errors: 1 });
        assert_eq!(leaf.of(Op::Write), Counts::default());
    }
}
