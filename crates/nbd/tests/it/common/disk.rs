// SPDX-License-Identifier: Apache-2.0 OR MIT
//! A disk in memory that counts what it is asked for.
use std::cell::{Cell, RefCell};
use std::rc::Rc;

use block::{Bio, BlockDevice, Limits, Nanos, Op, Opener, Sector, Status};
use reactor::{TaskPool, sleep};

/// A disk in memory that takes `latency` for each bio and counts them.
pub(crate) struct Disk {
    pub(crate) limits: Limits,
    pub(crate) data: RefCell<Vec<u8>>,
    pub(crate) started: Cell<usize>,
    pub(crate) finished: Cell<usize>,
    pub(crate) flushes: Cell<usize>,
    /// Their openers.
    pub(crate) flushed_by: RefCell<Vec<Opener>>,
    pub(crate) fuas: Cell<usize>,
    /// Reads and writes of this sector fail.
    pub(crate) bad: Cell<Option<Sector>>,
    pub(crate) failing_flushes: Cell<usize>,
    /// What a bio takes; of zero it ends inside `submit`.
    latency: Nanos,
    pool: TaskPool<(Rc<Disk>, Bio)>,
    self_: std::rc::Weak<Disk>,
}

impl Disk {
    pub(crate) fn new(sectors: u64, latency: Nanos) -> Rc<Disk> {
        Disk::with(Limits::new(Sector(sectors)), latency)
    }

    pub(crate) fn with(limits: Limits, latency: Nanos) -> Rc<Disk> {
        let bytes = usize::try_from(limits.capacity.bytes()).unwrap();
        let handle = move |(disk, bio): (Rc<Disk>, Bio)| async move {
            sleep(latency).await;
            disk.finish(bio);
        };
        Rc::new_cyclic(|self_| Disk {
            limits,
            data: RefCell::new(vec![0; bytes]),
            started: Cell::new(0),
            finished: Cell::new(0),
            flushes: Cell::new(0),
            flushed_by: RefCell::default(),
            fuas: Cell::new(0),
            bad: Cell::new(None),
            failing_flushes: Cell::new(0),
            latency,
            pool: TaskPool::new(4096, handle),
            self_: self_.clone(),
        })
    }

    fn finish(&self, bio: Bio) {
        let status = self.apply(&bio);
        self.finished.set(self.finished.get() + 1);
        bio.complete(status);
    }

    fn apply(&self, bio: &Bio) -> Status {
        if let Err(status) = self.limits.check(bio) {
            return status;
        }
        if self.bad.get().is_some_and(|s| bio.sector <= s && s < bio.end()) {
            return Status::Io;
        }
        let range = bio.sector.bytes() as usize..bio.end().bytes() as usize;
        match bio.op {
            Op::Read => bio.bufs.copy_from(&self.data.borrow()[range]),
            Op::Write => bio.bufs.copy_to(&mut self.data.borrow_mut()[range]),
            Op::Flush => {
                self.flushes.set(self.flushes.get() + 1);
                self.flushed_by.borrow_mut().push(bio.opener);
                if self.failing_flushes.get() > 0 {
                    self.failing_flushes.set(self.failing_flushes.get() - 1);
                    return Status::Io;
                }
            }
            Op::Discard if self.limits.discard_granularity_bytes > 0 => {}
            Op::WriteZeroes if self.limits.write_zeroes => self.data.borrow_mut()[range].fill(0),
            Op::Discard | Op::WriteZeroes => return Status::NotSupported,
        }
        if bio.flags.contains(block::Flags::FUA) {
            self.fuas.set(self.fuas.get() + 1);
        }
        Status::Ok
    }
}

impl BlockDevice for Disk {
    fn name(&self) -> &str {
        "disk"
    }
    fn limits(&self) -> Limits {
        self.limits.clone()
    }
    fn submit(&self, bio: Bio) {
        self.started.set(self.started.get() + 1);
        match self.latency {
            Nanos::ZERO => self.finish(bio),
            _ => self.pool.push((self.self_.upgrade().unwrap(), bio)),
        }
    }
}
