// SPDX-License-Identifier: Apache-2.0 OR MIT
//! Writeback: dirty blocks to the origin in ascending order, gathered from wherever they lie.
//!
//! ```text
//!   dirty bitmap ─ sweep ─▶ run ─▶ read its slots ─▶ check ─▶ one origin write   (many in flight,
//!                                                                   │             in this order)
//!                                                                   │
//!          retire: Clean in the map ◀── one origin FLUSH ◀── written, unsettled
//! ```
//!
//! One origin flush has to drain all that the origin has taken into a cache of its own, and until
//! it has ended nothing comes free. So while writers may be slowed blocks are written in batches, a
//! flush each: of a few blocks at first, then twice as many each time, up to what writers can wait
//! for (`policy::Pacer`).
//!
//! Before a rotating disk gaps between the runs may be written too: `extent`.
//!
//! Invariants
//! - WC-I3 A block is retired only after an origin flush that began after its write had completed.
//! - WC-I3 holds for FUA too: such a write is durable as it ends, and needs no flush.
//! - WC-WB1 `busy` holds every block from the moment it is picked until it is settled, and every
//!   block of a range that is being cleared: no two origin writes of a block are ever in flight.
//! - WC-WB2 What is written to the origin has just been checked against its checksum.
//! - WC-WB3 Only a block whose state is in the durable log is written. Else the log may say that an
//!   older version is clean, and after a crash the cache would serve that one, then evict it, and
//!   then serve what the origin holds.
use std::cell::{Cell, RefCell};
use std::collections::VecDeque;
use std::ops::Range;

use block::Status;
use policy::destage::Costs;
use policy::{Run, Sweep};
use roaring::RoaringTreemap;

use self::drain::DrainJob;
use self::extent::{Destage, Extent};
use self::flush::FlushJob;
use self::limits::Limits;
use self::retry::Retry;
use self::zeroes::Zeroing;
use crate::cache::Cache;
use crate::map::SlotRef;
use crate::ordered_queue::OrderedQueue;

pub(crate) mod drain;
mod extent;
mod failed_gaps;
mod flush;
mod limits;
mod phase;
mod pick;
pub(crate) mod retry;
mod run;
mod settle;
mod zeroes;

/// Origin writes in flight: more than any drive's queue holds, few enough to bound memory.
const RUNS_IN_FLIGHT_MAX: usize = 256;
/// Bytes of these: with larger writes fewer of them fill a queue, and bound memory.
const IN_FLIGHT_BYTES_MAX: u64 = 64 << 20;
/// Written bytes after which an origin flush is due (design: one per 64 to 256 MiB).
const SETTLE_BYTES: u64 = 64 << 20;
/// First batch: 16 scattered blocks and the flush take a disk about 20 to 30 ms. Chosen.
const BATCH_BLOCKS_FIRST: u64 = 16;

/// A run that was picked while flush number `job` was the newest.
struct Picked {
    run: Run,
    /// It is a filled one.
    extent: Option<Extent>,
    job: u64,
    ticket: u64,
}

/// A block version on the origin, not yet settled.
#[derive(Clone, Copy)]
struct Written {
    block: u64,
    slot_ref: SlotRef,
    job: u64,
    /// As the write was submitted (WC-RT2).
    flush_errors: u64,
}

fn of_job(written: &[Written], job: u64) -> u64 {
    written.iter().filter(|w| w.job >= job).count() as u64
}

pub(crate) struct Writeback {
    sweep: RefCell<Sweep>,
    busy: RefCell<RoaringTreemap>,
    /// Ranges that somebody waits to lock: nothing of them is picked meanwhile.
    awaited: RefCell<Vec<Range<u64>>>,
    busy_blocks: Cell<u64>,
    in_flight_blocks: Cell<u64>,
    in_flight_runs: Cell<usize>,
    /// The order in which runs go to the origin.
    send_order: OrderedQueue,
    written: RefCell<Vec<Written>>,
    /// Blocks whose origin flush is under way, and those of the flush that runs among them.
    settling: Cell<u64>,
    settling_of_job: Cell<u64>,
    /// Blocks of one batch.
    batch: Cell<u64>,
    batch_max: Cell<u64>,
    /// Blocks after which an origin flush is due in any case.
    settle_max: u64,
    job: RefCell<Option<FlushJob>>,
    /// The `drain` that runs beside it.
    pub(crate) drain: RefCell<Option<DrainJob>>,
    /// Flushes and drains begun.
    jobs: Cell<u64>,
    pub(crate) limits: Limits,
    pub(crate) retry: Retry,
    /// Counts what may have made a block eligible: blocks released, ranges unlocked, flushes
    /// begun or ended.
    changes: Cell<u64>,
    lru: RefCell<VecDeque<u64>>,
    /// Blocks that are old enough to go first (`age`); also some that have ceased to be dirty.
    aged: RefCell<RoaringTreemap>,
    mark_due: Cell<bool>,
    /// Ordered: the epochs before this one are old enough.
    aged_before: Cell<u64>,
    /// Something was written without FUA since the last origin flush began.
    volatile: Cell<bool>,
    destage: Destage,
    /// How far the zeroes of the epoch are that is written back.
    zeroing: Cell<Option<Zeroing>>,
    /// Gaps over which a filled write is under way, and how many such have failed (WC-SP2).
    filling: RefCell<RoaringTreemap>,
    failed_fills: Cell<u64>,
    /// Occupancy has reached the high watermark and not yet fallen below the low one.
    draining: Cell<bool>,
    /// The picking task has nothing to pick.
    idle: Cell<bool>,
}

impl Writeback {
    /// Batches are of at most `batch_max` blocks of `block_size` bytes. What the origin costs is
    /// `assumed`, or measured.
    pub(crate) fn new(batch_max: u64, block_size: u32, assumed: Option<Costs>) -> Writeback {
        let settle_max = SETTLE_BYTES / u64::from(block_size);
        let batch_max = batch_max.clamp(1, settle_max);
        Writeback {
            sweep: RefCell::default(),
            busy: RefCell::default(),
            awaited: RefCell::default(),
            busy_blocks: Cell::default(),
            in_flight_blocks: Cell::default(),
            in_flight_runs: Cell::default(),
            send_order: OrderedQueue::default(),
            written: RefCell::default(),
            settling: Cell::default(),
            settling_of_job: Cell::default(),
            batch: Cell::new(BATCH_BLOCKS_FIRST.min(batch_max)),
            batch_max: Cell::new(batch_max),
            settle_max,
            job: RefCell::default(),
            drain: RefCell::default(),
            jobs: Cell::default(),
            limits: Limits::default(),
            retry: Retry::default(),
            changes: Cell::default(),
            lru: RefCell::default(),
            aged: RefCell::default(),
            mark_due: Cell::default(),
            aged_before: Cell::default(),
            volatile: Cell::default(),
            destage: Destage::new(assumed),
            zeroing: Cell::default(),
            filling: RefCell::default(),
            failed_fills: Cell::default(),
            draining: Cell::default(),
            idle: Cell::default(),
        }
    }

    /// The watermarks have changed, and with them what writers can wait for.
    pub(crate) fn set_batch_max(&self, batch_max: u64) {
        self.batch_max.set(batch_max.clamp(1, self.settle_max));
        self.batch.set(self.batch.get().min(self.batch_max.get()));
    }

    /// Whether blocks are being written back, or are about to be.
    pub(crate) fn is_busy(&self) -> bool {
        self.draining.get() || self.busy_blocks.get() > 0
    }

    /// What is known of the costs of the origin.
    pub(crate) fn costs(&self) -> Option<Costs> {
        self.destage.costs()
    }

    /// Blocks that the origin has, but not durably yet.
    pub(crate) fn pending(&self) -> u64 {
        self.written.borrow().len() as u64 + self.settling.get()
    }

    /// Whatever is dirty goes first, once what was marked before has gone.
    pub(crate) fn mark(&self) {
        self.mark_due.set(true);
        self.changes.set(self.changes.get() + 1);
    }

    /// Epochs before this one go first.
    pub(crate) fn mark_before(&self, epoch: u64) {
        self.aged_before.set(epoch);
        self.changes.set(self.changes.get() + 1);
    }

    pub(crate) fn unmark(&self) {
        self.mark_due.set(false);
        self.aged.borrow_mut().clear();
        self.aged_before.set(0);
    }

    /// Begins the sweep over what is old, if one is due and the last one has ended.
    fn mark_if_due(&self, dirty: &RoaringTreemap) {
        if self.aged.borrow().is_empty() && self.mark_due.replace(false) {
            // What the origin has refused is tried again in its own time, and holds nobody up.
            *self.aged.borrow_mut() = dirty - &*self.retry.waiting();
            self.lru.borrow_mut().clear();
        }
    }

    /// There may be new reasons to write something back.
    pub(crate) fn recheck(&self) {
        self.changes.set(self.changes.get() + 1);
    }

    fn is_free(&self, range: &Range<u64>) -> bool {
        self.busy.borrow().range_cardinality(range.clone()) == 0
    }

    pub(crate) fn unlock(&self, range: Range<u64>) {
        self.busy.borrow_mut().remove_range(range);
        self.changes.set(self.changes.get() + 1);
    }

    /// WC-WB1. Scattered blocks are runs of one, and a range costs three times as much.
    fn lock_run(&self, run: Run) {
        let mut busy = self.busy.borrow_mut();
        if run.blocks() == 1 {
            busy.insert(run.start);
        } else {
            busy.insert_range(run.start..run.end);
        }
    }

    fn release(&self, blocks: impl Iterator<Item = u64>) {
        let mut busy = self.busy.borrow_mut();
        let before = self.busy_blocks.get();
        for block in blocks {
            busy.remove(block);
            self.busy_blocks.set(self.busy_blocks.get() - 1);
        }
        // Else the picking task would look through all that is busy for nothing.
        if self.busy_blocks.get() != before {
            self.changes.set(self.changes.get() + 1);
        }
    }

    /// Whether what the origin has refused is on its way there again, or will be without a wait.
    pub(crate) fn is_trying_again(&self) -> bool {
        // While writeback is paused what is ready waits, too.
        let ready = self.retry.has_ready() && !self.retry.is_paused();
        ready || self.in_flight_runs.get() > 0 || self.pending() > 0
    }

    pub(crate) fn in_flight_runs(&self) -> usize {
        self.in_flight_runs.get()
    }

    /// Blocks picked and not yet settled.
    pub(crate) fn blocks(&self) -> u64 {
        self.busy_blocks.get()
    }

    /// The flush and the drain that run.
    fn each_job(&self, mut visit: impl FnMut(&mut FlushJob)) {
        self.job.borrow_mut().iter_mut().for_each(&mut visit);
        self.drain.borrow_mut().iter_mut().for_each(|drain| visit(&mut drain.job));
    }

    /// Done and total blocks of the flush that runs. Blocks that are written but not yet durable
    /// count too, except that the last one is done only when all are.
    pub(crate) fn progress(&self) -> Option<(u64, u64)> {
        let job = self.job.borrow();
        let job = job.as_ref()?;
        let pending = of_job(&self.written.borrow(), job.number) + self.settling_of_job.get();
        let left = job.todo.len();
        let done = job.total - left + pending.min(left.saturating_sub(1));
        Some((done, job.total))
    }
}
impl Cache {
    /// Takes a range for a direct origin write: waits until no block of it is busy (WC-WB1).
    pub(crate) async fn lock_origin(&self, range: Range<u64>) -> Result<(), Status> {
        let wb = &self.writeback;
        let overlaps = |r: &Range<u64>| r.start < range.end && range.start < r.end;
        if wb.is_free(&range) && !wb.awaited.borrow().iter().any(overlaps) {
            wb.busy.borrow_mut().insert_range(range);
            return Ok(());
        }
        wb.awaited.borrow_mut().push(range.clone());
        self.waits.wake_all();
        self.waits.wait_for(|| wb.is_free(&range) || self.health().is_err()).await;
        let mut awaited = wb.awaited.borrow_mut();
        let mine = awaited.iter().position(|r| *r == range).expect("pushed above");
        awaited.swap_remove(mine);
        self.health()?;
        wb.busy.borrow_mut().insert_range(range);
        Ok(())
    }
}
