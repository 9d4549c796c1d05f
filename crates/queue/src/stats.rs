// SPDX-License-Identifier: Apache-2.0 OR MIT
//! What a leaf counts: requests, bytes and errors by operation, what is in flight, the last error.
use std::cell::{Cell, OnceCell, RefCell};
use std::fmt;
use std::rc::{Rc, Weak};

use block::{IoError, OnFault, Op, SECTOR_SHIFT, Sector, Status};
use reactor::{Epoch, Grace, WaitList};

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
#[derive(Clone, Copy, Debug)]
pub(crate) struct Ticket {
    op: Op,
    sector: Sector,
    len: Sector,
    epoch: Epoch,
}

/// Totals of one operation, as they are kept.
#[derive(Debug, Default)]
struct Totals {
    ios: Cell<u64>,
    bytes: Cell<u64>,
    errors: Cell<u64>,
}

/// Counters of one leaf. Plain cells: they belong to the core that owns the leaf.
pub struct Stats {
    device: String,
    by_op: [Totals; OPS],
    in_flight: Grace,
    last_error: RefCell<Option<IoError>>,
    failures: Cell<u64>,
    alarm: OnceCell<Rc<WaitList>>,
    watchers: RefCell<Vec<Weak<dyn OnFault>>>,
}

impl Stats {
    pub(crate) fn new(device: String) -> Stats {
        Stats {
            device,
            by_op: Default::default(),
            in_flight: Grace::default(),
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

    /// Totals of one operation.
    pub fn of(&self, op: Op) -> Counts {
        let Totals { ios, bytes, errors } = &self.by_op[index(op)];
        Counts { ios: ios.get(), bytes: bytes.get(), errors: errors.get() }
    }

    /// Requests that have entered and not ended.
    pub fn in_flight(&self) -> u64 {
        self.in_flight.in_flight() as u64
    }

    /// Failed requests of all operations.
    pub fn errors(&self) -> u64 {
        self.by_op.iter().map(|c| c.errors.get()).sum()
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
    pub fn watch(&self, watcher: Weak<dyn OnFault>) {
        let mut watchers = self.watchers.borrow_mut();
        watchers.retain(|w| w.strong_count() > 0);
        watchers.push(watcher);
    }

    /// What is in flight, to be waited for.
    pub fn grace(&self) -> &Grace {
        &self.in_flight
    }

    pub(crate) fn begin(&self, op: Op, sector: Sector, len: Sector) -> Ticket {
        Ticket { op, sector, len, epoch: self.in_flight.enter() }
    }

    pub(crate) fn end(&self, ticket: Ticket, status: Status) {
        self.in_flight.leave(ticket.epoch);
        self.count(ticket.op, ticket.sector, ticket.len, status);
    }

    /// Counts a request that ended as it was submitted.
    pub(crate) fn count(&self, op: Op, sector: Sector, len: Sector, status: Status) {
        if status != Status::Ok {
            return self.failed(op, sector, len, status);
        }
        let Totals { ios, bytes, .. } = &self.by_op[index(op)];
        ios.set(ios.get() + 1);
        bytes.set(bytes.get().wrapping_add(len.0 << SECTOR_SHIFT));
    }

    /// Counts and tells a request that failed on another core's device on the same file or memory.
    pub fn failed_elsewhere(&self, op: Op, sector: Sector, len: Sector, cause: Status) {
        self.failed(op, sector, len, cause);
    }

    #[cold]
    fn failed(&self, op: Op, sector: Sector, len: Sector, cause: Status) {
        let errors = &self.by_op[index(op)].errors;
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
            watcher.on_fault(op, sector, len, cause);
        }
    }
}

impl fmt::Debug for Stats {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        write!(f, "Stats({}, {:?})", self.device, self.by_op)
    }
}

fn index(op: Op) -> usize {
    op as usize
}
