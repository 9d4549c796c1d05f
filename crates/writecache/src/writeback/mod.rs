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
//! One origin flush writes all that the origin has in a volatile cache of its own, and nothing
//! becomes free before it ends. So while writers may be slowed, blocks are written in batches, a
//! flush each: 16 blocks at first, then twice as many each time, up to what writers can wait for
//! (`policy::Pacer`).
//!
//! Gaps between the runs may be written too: `extent`. Slots of many runs are
//! read together where that is cheaper: `slot_reads`, `span_plan`.
//!
//! Invariants
//! - Of WC-I3: a block is retired only after an origin flush that began after its write had
//!   completed. A write with FUA is durable when it ends, and needs no flush.
//! - WC-WB1 `busy` holds every block from the moment it is picked until it is settled, and every
//!   block of a range that is being cleared: at most one origin write of a block is in flight.
//! - WC-WB2 Every block is checked against its checksum just before it is written to the origin.
//! - WC-WB3 Only a block whose state is in the durable log is written. Otherwise the log may call
//!   an older version clean: after a crash the cache would serve that one, then evict it, and then
//!   serve the newer data of the origin.
pub(crate) mod age;
mod drain;
mod extent;
mod failed_gaps;
mod fills;
mod flush;
mod gaps;
pub(crate) mod jobs;
mod limit_state;
mod limits;
mod locks;
mod origin_errors;
mod pause;
mod phase;
mod pick;
mod pieces;
mod read_again;
mod retry;
mod run;
mod settle;
mod slot_reads;
mod span_plan;
mod unreadable;
mod write_window;
mod zeroes;

use std::cell::{Cell, RefCell};
use std::collections::VecDeque;
use std::rc::Rc;

use policy::destage::Costs;
use policy::{Run, Sweep};
use roaring::RoaringTreemap;

use self::age::Ages;
use self::fills::Fills;
use self::gaps::{Destage, Extent};
use self::jobs::{DrainJob, FlushJob};
use self::limit_state::LimitState;
use self::locks::Locks;
use self::retry::Retry;
use self::slot_reads::{SlotReads, Span};
use self::unreadable::Unreadable;
use crate::config::Tuning;
use crate::map::SlotRef;
use crate::ordered_queue::OrderedQueue;
use crate::origin::Origin;
use crate::pacing::{Pacing, reclaim_reserve};
use crate::read_cache::ReadCache;
use crate::store::Store;

/// Origin writes in flight: more than any drive's queue holds, few enough to bound memory.
const RUNS_IN_FLIGHT_MAX: usize = 256;
/// Bytes of these: with larger writes fewer of them fill a queue, and bound memory.
const IN_FLIGHT_BYTES_MAX: u64 = 64 << 20;
/// Written bytes after which an origin flush is due (design: one per 64 to 256 MiB).
const SETTLE_BYTES: u64 = 64 << 20;
/// First batch: 16 scattered blocks and the flush take a disk about 20 to 30 ms. Chosen.
const BATCH_BLOCKS_FIRST: u64 = 16;

/// A run that was picked. `job` is the number of the newest job at that time.
struct PickedRun {
    run: Run,
    /// The extent of a filled write.
    extent: Option<Extent>,
    /// The span in which it lies.
    span: Option<Rc<Span>>,
    job: u64,
    ticket: u64,
}

/// A block version on the origin, not yet settled.
#[derive(Clone, Copy)]
struct WrittenBlock {
    block: u64,
    slot_ref: SlotRef,
    job: u64,
    /// `Retry::flush_errors` when the write was submitted (WC-RT2).
    flush_errors: u64,
}

fn of_job(written: &[WrittenBlock], job: u64) -> u64 {
    written.iter().filter(|w| w.job >= job).count() as u64
}

/// The progress of writing the zeroes of the phase.
#[derive(Clone, Copy, Debug)]
pub(super) struct ZeroProgress {
    pub(super) epoch: u64,
    /// Which of the zero ranges is being written, and up to which block it is written.
    pub(super) nth: usize,
    pub(super) next: u64,
    /// The origin does not support WRITE_ZEROES: zeroes are written as data.
    pub(super) by_hand: bool,
    /// `Retry::flush_errors` when the first piece was submitted (WC-RT2).
    pub(super) flush_errors: u64,
}

/// The state of the picking task: which blocks it picks next.
#[derive(Default)]
struct Picker {
    sweep: RefCell<Sweep>,
    lru: RefCell<VecDeque<u64>>,
    ages: Ages,
    /// The progress of the zeroes of the epoch that is written back.
    zero_progress: Cell<Option<ZeroProgress>>,
    /// Occupancy has reached the high watermark and not yet fallen below the low one.
    draining: Cell<bool>,
    /// The picking task has nothing to pick.
    idle: Cell<bool>,
}

/// Runs that have been picked and are not written yet.
#[derive(Default)]
struct InFlight {
    /// Blocks picked and not yet settled.
    picked_blocks: Cell<u64>,
    /// Blocks and runs whose writes have not ended.
    blocks: Cell<u64>,
    runs: Cell<usize>,
    /// The order in which runs are sent to the origin.
    send_order: OrderedQueue,
}

/// Blocks that are written to the origin and not yet durable.
struct Settling {
    written: RefCell<Vec<WrittenBlock>>,
    /// Blocks that the running origin flush covers, and how many of them belong to the running
    /// `flush`.
    blocks: Cell<u64>,
    of_job: Cell<u64>,
    /// A block was written without FUA since the last origin flush began.
    volatile: Cell<bool>,
    /// Blocks in a batch.
    batch: Cell<u64>,
    batch_max: Cell<u64>,
    /// Written blocks after which an origin flush is due in any case.
    settle_max: u64,
}

impl Settling {
    fn new(batch_max: u64, block_size: u32) -> Settling {
        let settle_max = SETTLE_BYTES / u64::from(block_size);
        let batch_max = batch_max.clamp(1, settle_max);
        Settling {
            written: RefCell::default(),
            blocks: Cell::default(),
            of_job: Cell::default(),
            volatile: Cell::default(),
            batch: Cell::new(BATCH_BLOCKS_FIRST.min(batch_max)),
            batch_max: Cell::new(batch_max),
            settle_max,
        }
    }
}

/// The running `flush` and the running `drain`.
#[derive(Default)]
struct Jobs {
    flush: RefCell<Option<FlushJob>>,
    drain: RefCell<Option<DrainJob>>,
    /// How many jobs have begun.
    begun: Cell<u64>,
}

/// Writeback of one cache, and its origin. No borrow of it is held across an await.
pub(crate) struct Writeback {
    pub(crate) store: Rc<Store>,
    pub(crate) origin: Origin,
    pub(crate) pacing: Pacing,
    picker: Picker,
    pub(crate) locks: Locks,
    in_flight: InFlight,
    settling: Settling,
    jobs: Jobs,
    pub(crate) limits: LimitState,
    pub(crate) retry: Retry,
    unreadable: Unreadable,
    destage: Destage,
    slot_reads: SlotReads,
    pub(crate) fills: Fills,
    pub(crate) read_cache: ReadCache,
}

impl Writeback {
    /// Writeback from `store` to `origin`. The costs of origin writes are taken from the config, or
    /// measured.
    pub(crate) fn new(store: Rc<Store>, origin: Origin) -> Writeback {
        let pacing = Pacing::new(u64::from(store.slot_count()), &store.tuning());
        let batch_max = pacing.pacer.borrow().batch_max();
        Writeback {
            settling: Settling::new(batch_max, store.config.block_size),
            destage: Destage::new(store.config.assumed_costs, origin.limits.rotational),
            read_cache: ReadCache::new(store.config.planted),
            store,
            origin,
            pacing,
            picker: Picker::default(),
            locks: Locks::default(),
            in_flight: InFlight::default(),
            jobs: Jobs::default(),
            limits: LimitState::default(),
            retry: Retry::default(),
            unreadable: Unreadable::default(),
            slot_reads: SlotReads::default(),
            fills: Fills::default(),
        }
    }

    /// Applies changed options; all waiting tasks check their conditions again.
    pub(crate) fn tune(&self, tuning: Tuning) {
        if let Some(batch_max) = self.pacing.tune(u64::from(self.store.slot_count()), &tuning) {
            self.set_batch_max(batch_max);
        }
        self.read_cache.tune(&tuning, self.store.slot_count(), self.store.config.block_size);
        self.store.count_reads(self.read_cache.is_on());
        if self.store.set_tuning(tuning).limits.rate_max != tuning.limits.rate_max {
            self.limits.reset();
        }
        self.recheck();
        self.store.waits.wake_all();
    }

    /// Sets the largest batch for which writers can wait.
    pub(crate) fn set_batch_max(&self, batch_max: u64) {
        self.settling.batch_max.set(batch_max.clamp(1, self.settling.settle_max));
        self.settling.batch.set(self.settling.batch.get().min(self.settling.batch_max.get()));
    }

    /// Whether blocks are being written back, or will be.
    pub(crate) fn is_busy(&self) -> bool {
        self.picker.draining.get() || self.in_flight.picked_blocks.get() > 0
    }

    /// The costs of origin writes, if they are known.
    pub(crate) fn costs(&self) -> Option<Costs> {
        self.destage.costs()
    }

    /// Blocks that are written to the origin and not flushed yet.
    pub(crate) fn pending(&self) -> u64 {
        self.settling.written.borrow().len() as u64 + self.settling.blocks.get()
    }

    /// Blocks may have become eligible for writeback.
    pub(crate) fn recheck(&self) {
        self.store.waits.recheck();
    }

    /// Unlocks picked blocks.
    fn release(&self, blocks: impl Iterator<Item = u64>) {
        let unlocked = self.locks.remove_blocks(blocks);
        let picked = &self.in_flight.picked_blocks;
        picked.set(picked.get() - unlocked.count);
        if unlocked.count == 0 {
            return;
        }
        // At the end of a flush all blocks that are left are locked: the picking task would search
        // all of them without a result, each time that some are unlocked.
        if unlocked.many.is_none_or(|blocks| self.concerns_picking(&blocks)) {
            self.recheck();
        } else {
            self.store.waits.pick.wake_all();
        }
        self.store.waits.unlocked.wake_all();
    }

    /// Whether these blocks, which are not locked any more, may be picked, or are in a set from
    /// which the picking task drops blocks that need not be written.
    fn concerns_picking(&self, blocks: &RoaringTreemap) -> bool {
        let overlaps = |set: &RoaringTreemap| !set.is_disjoint(blocks);
        let slots = self.store.slots.borrow();
        let mut in_job = false;
        self.each_job(|job| in_job |= overlaps(&job.todo));
        let c = slots.counts();
        self.store.config.ordered
            || c.zero + c.old > 0
            || in_job
            || overlaps(slots.dirty())
            || overlaps(&self.picker.ages.marked().borrow())
            || self.retry.has_any(blocks)
    }

    /// Whether failing blocks are being written again, or will be without a delay.
    pub(crate) fn is_retrying(&self) -> bool {
        // While writeback is paused ready blocks wait, too.
        let ready = self.retry.has_ready() && !self.retry.is_paused();
        ready || self.in_flight.runs.get() > 0 || self.pending() > 0
    }

    /// Whether nothing is on its way to the origin, or there and not durable.
    pub(crate) fn is_quiet(&self) -> bool {
        self.blocks() == 0 && self.in_flight.runs.get() == 0 && self.pending() == 0
    }

    pub(crate) fn in_flight_runs(&self) -> usize {
        self.in_flight.runs.get()
    }

    /// Blocks picked and not yet settled.
    pub(crate) fn blocks(&self) -> u64 {
        self.in_flight.picked_blocks.get()
    }

    /// Calls `visit` with the running `flush` and the running `drain`.
    fn each_job(&self, mut visit: impl FnMut(&mut FlushJob)) {
        self.jobs.flush.borrow_mut().iter_mut().for_each(&mut visit);
        self.jobs.drain.borrow_mut().iter_mut().for_each(|drain| visit(&mut drain.job));
    }

    /// Done and total blocks of the running `flush`. Blocks count as done when they are written,
    /// the last one when all are durable; those that the origin refuses do not count.
    pub(crate) fn progress(&self) -> Option<(u64, u64)> {
        let job = self.jobs.flush.borrow();
        let job = job.as_ref()?;
        let pending =
            of_job(&self.settling.written.borrow(), job.number) + self.settling.of_job.get();
        let left = job.todo.len();
        let done = job.done() + pending.min(left.saturating_sub(1));
        Some((done, job.total))
    }

    /// Whether a background task or a waiting writer may depend on this write. Usually none does,
    /// and waking all of them would cost more than the rest of the write.
    pub(crate) fn has_work(&self) -> bool {
        let c = self.store.counts();
        self.store.is_commit_due()
            || c.free < reclaim_reserve(c.slots)
            || self.pacing.starved_writers.get() > 0
            || self.wants_writeback()
    }
}
