// SPDX-License-Identifier: Apache-2.0 OR MIT
//! What a leaf counts: requests, bytes and errors by operation, what is in flight, the last error.
use std::cell::{Cell, OnceCell, RefCell};
use std::rc::Rc;

use block::{Bio, IoError, Op, Sector, Status};
use reactor::WaitList;

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
}

/// Counters of one leaf. Plain cells: they belong to the core that owns the leaf.
#[derive(Debug)]
pub struct Stats {
    device: String,
    by_op: [Cell<Counts>; OPS],
    in_flight: Cell<u64>,
    last_error: RefCell<Option<IoError>>,
    failures: Cell<u64>,
    alarm: OnceCell<Rc<WaitList>>,
}

impl Stats {
    pub(crate) fn new(device: String) -> Stats {
        Stats {
            device,
            by_op: Default::default(),
            in_flight: Cell::new(0),
            last_error: RefCell::new(None),
            failures: Cell::new(0),
            alarm: OnceCell::new(),
        }
    }

    /// The name of the leaf.
    pub fn device(&self) -> &str {
        &self.device
    }

    /// Totals of one operation.
    pub fn of(&self, op: Op) -> Counts {
        self.by_op[index(op)].get()
    }

    /// Requests that have entered and not ended.
    pub fn in_flight(&self) -> u64 {
        self.in_flight.get()
    }

    /// Failed requests of all operations.
    pub fn errors(&self) -> u64 {
        self.by_op.iter().map(|c| c.get().errors).sum()
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

    pub(crate) fn begin(&self, bio: &Bio) -> Ticket {
        self.in_flight.set(self.in_flight.get() + 1);
        Ticket { op: bio.op, sector: bio.sector, len: bio.len }
    }

    pub(crate) fn end(&self, ticket: Ticket, status: Status) {
        self.in_flight.set(self.in_flight.get() - 1);
        let cell = &self.by_op[index(ticket.op)];
        let mut counts = cell.get();
        if status == Status::Ok {
            counts.ios += 1;
            counts.bytes += ticket.len.bytes();
        } else {
            counts.errors += 1;
            let (device, op, sector) = (self.device.clone(), ticket.op, ticket.sector);
            *self.last_error.borrow_mut() = Some(IoError { device, op, sector, cause: status });
            if !matches!(status, Status::NotSupported | Status::Invalid) {
                self.failures.set(self.failures.get() + 1);
                if let Some(alarm) = self.alarm.get() {
                    alarm.wake_all();
                }
            }
        }
        cell.set(counts);
    }
}

fn index(op: Op) -> usize {
    op as usize
}
