// SPDX-License-Identifier: Apache-2.0 OR MIT
//! The origin, and counters of the writes that went around the cache.
use std::cell::Cell;
use std::rc::Rc;

use block::{BlockDevice, Limits, Nanos};
use reactor::GroupCommit;

/// The slow device below.
pub(crate) struct Origin {
    pub(crate) device: Rc<dyn BlockDevice>,
    pub(crate) limits: Limits,
    pub(crate) flush: GroupCommit,
    /// When a client last read from it.
    pub(crate) last_read_ns: Cell<Option<u64>>,
    pub(crate) around: WriteAround,
}

impl Origin {
    pub(crate) fn new(device: Rc<dyn BlockDevice>) -> Origin {
        Origin {
            limits: device.limits(),
            device,
            flush: GroupCommit::default(),
            last_read_ns: Cell::default(),
            around: WriteAround::default(),
        }
    }
}

/// Counters of writes around the cache.
#[derive(Default)]
pub(crate) struct WriteAround {
    /// Writes that have succeeded; failed ones were not acknowledged.
    pub(crate) completed: Cell<u64>,
    /// How many of `completed` are durable.
    durable: Cell<u64>,
    pub(crate) in_flight: Cell<u64>,
    pub(crate) last_ended: Cell<Option<Nanos>>,
    /// A task is waiting for the end of the pause of writeback.
    pub(crate) timer: Cell<bool>,
}

impl WriteAround {
    /// Read it before an origin flush, and pass it to `flushed`.
    pub(crate) fn completed(&self) -> u64 {
        self.completed.get()
    }

    /// Whether any completed write is not durable yet.
    pub(crate) fn is_pending(&self) -> bool {
        self.durable.get() < self.completed.get()
    }

    /// An origin flush that began when `completed` writes had completed has succeeded.
    pub(crate) fn flushed(&self, completed: u64) {
        self.durable.set(self.durable.get().max(completed));
    }

    /// The time since the last write around the cache ended; `None` if there was none.
    pub(crate) fn idle(&self) -> Option<Nanos> {
        match self.in_flight.get() {
            0 => self.last_ended.get().map(|at| Nanos(reactor::now().0 - at.0)),
            _ => Some(Nanos(0)),
        }
    }
}
