// SPDX-License-Identifier: Apache-2.0 OR MIT
//! The device: takes bios, and owns the parts of the cache.
use std::cell::Cell;
use std::rc::{Rc, Weak};

use block::{Bio, BlockDevice, Error, Limits, Op, PAGE, Reservation, Sector, Status, ZeroRuns};
use reactor::{OnDone, TaskPool};

use crate::config::Config;
use crate::planted::Fault;
use crate::read::{Miss, miss_tasks};
use crate::readahead::ReadAhead;
use crate::store::Store;
use crate::writeback::Writeback;

/// A page cache in front of a device.
pub struct PageCache {
    me: Weak<PageCache>,
    name: String,
    pub(crate) store: Store,
    pub(crate) writeback: Writeback,
    pub(crate) readahead: ReadAhead,
    pub(crate) miss_tasks: TaskPool<Miss>,
    pub(crate) hits: Cell<u64>,
    pub(crate) misses: Cell<u64>,
    /// The cache's memory, out of the budget of its core.
    _reserved: Reservation,
}

/// Called by the reactor when an ioend has ended.
struct OnIoendDone(Weak<PageCache>);

impl OnDone for OnIoendDone {
    fn on_done(&self, status: Status, tag: u64) {
        if let Some(cache) = self.0.upgrade() {
            cache.writeback.ioend_ended(&cache.store, status, tag);
        }
    }
}

/// The limits of a cache of the first `len` sectors of `below`.
fn limits(below: &dyn BlockDevice, len: Sector) -> Result<Limits, Error> {
    let under = below.limits();
    if under.capacity < len {
        return Err(Error::invalid(format!(
            "{} has {} sectors, fewer than the {len} of the table line",
            below.name(),
            under.capacity
        )));
    }
    if under.write_unit_bytes() as usize > PAGE {
        return Err(Error::invalid(format!(
            "{}: logical blocks of {} bytes, at most {PAGE} are allowed",
            below.name(),
            under.write_unit_bytes()
        )));
    }
    // The last page is written only as far as the device reaches.
    if !len.is_aligned(Sector::from_bytes(under.write_unit_bytes().into())) {
        return Err(Error::invalid(format!(
            "{}: a length of {len} is not a multiple of its logical block of {} bytes",
            below.name(),
            under.write_unit_bytes()
        )));
    }
    Ok(Limits {
        capacity: len,
        // Whole pages go below: smaller writes are merged in memory.
        logical_block_bytes: 512,
        merge_block_bytes: 0,
        volatile_cache: true,
        survives_kill: false,
        keeps_write_order: false, // it writes back in the order of its pages
        atomic_write_unit_bytes: under.atomic_write_unit_bytes,
        ..under
    })
}

impl PageCache {
    /// A cache called `name` of the first `len` sectors of `below`. Errors: `EINVAL` when `below`
    /// is smaller or has blocks that do not fit; `ENOMEM` when the budget of this core has no room
    /// for the cache's memory.
    pub fn new(
        name: &str,
        config: Config,
        below: Rc<dyn BlockDevice>,
        len: Sector,
    ) -> Result<Rc<PageCache>, Error> {
        let limits = limits(&*below, len)?;
        let what = format_args!("{name}: the option memory");
        let reserved = reactor::memory().reserve(config.memory_bytes, what)?;
        Ok(Rc::new_cyclic(|me: &Weak<PageCache>| PageCache {
            me: me.clone(),
            name: name.to_owned(),
            writeback: Writeback::new(&below, len, Rc::new(OnIoendDone(me.clone()))),
            readahead: ReadAhead::new(&config),
            miss_tasks: miss_tasks(),
            hits: Cell::new(0),
            misses: Cell::new(0),
            _reserved: reserved,
            store: Store::new(below, limits, config),
        }))
    }

    /// Has `callback` called whenever writeback begins to fail.
    pub fn on_failure(&self, callback: impl Fn() + 'static) {
        self.store.errors.set_on_failure(callback);
    }

    pub(crate) fn rc(&self) -> Rc<PageCache> {
        self.me.upgrade().expect("a method of it runs")
    }

    fn flush(&self, bio: Bio) {
        let (me, round) = (self.rc(), self.writeback.rounds.next_run());
        let sample = self.store.errors.sample(bio.opener); // PC-E1
        reactor::spawn(async move {
            let done = me.writeback.flush(&me.store, bio.opener, round, sample).await;
            let again = me.store.is_planted(Fault::ReportTwice) && me.store.errors.count() > 0;
            bio.complete(if again { Status::Io } else { done.into() });
        });
    }
}

impl BlockDevice for PageCache {
    fn name(&self) -> &str {
        &self.name
    }

    fn limits(&self) -> Limits {
        self.store.limits.clone()
    }

    fn submit(&self, bio: Bio) {
        if let Err(status) = self.store.limits.check(&bio) {
            return bio.complete(status);
        }
        self.store.errors.register(bio.opener);
        match bio.op {
            Op::Read => self.read(bio),
            Op::Write => self.write(bio),
            Op::Discard | Op::WriteZeroes => self.discard(bio),
            Op::Flush => self.flush(bio),
        }
    }

    fn zero_runs(&self, at: Sector, len: Sector) -> ZeroRuns {
        self.find_zero_runs(at, len)
    }
}

block::debug_as!(PageCache, s => "PageCache({} over {})", s.name, s.store.below.name());
