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
//! Invariants
//! - I3 A block is retired only after an origin flush that began after its write had completed.
//! - WB1 `busy` holds every block from the moment it is picked until it is settled, and every
//!   block of a range that is being cleared: no two origin writes of a block are ever in flight.
//! - WB2 What is written to the origin has just been checked against its checksum.
//! - WB3 Only a block whose state is in the durable log is written. Else the log may say that an
//!   older version is clean, and after a crash the cache would serve that one, then evict it, and
//!   then serve what the origin holds.
use std::cell::{Cell, RefCell};
use std::collections::VecDeque;
use std::ops::Range;
use std::rc::Rc;

use block::{Buf, Class, Flags, Status};
use policy::{Run, Sweep};
use reactor::Workers;
use roaring::RoaringTreemap;
use smallvec::SmallVec;

use crate::cache::{Cache, TaskGuard, reclaim_reserve};
use crate::config::{Mutation, Order};
use crate::slots::{Held, State, next_in};
use crate::turns::Turns;

/// Origin writes in flight: more than any drive's queue holds, few enough to bound memory.
const RUNS_IN_FLIGHT_MAX: usize = 256;
/// Written bytes after which an origin flush is due (design: one per 64 to 256 MiB).
const SETTLE_BYTES: u64 = 64 << 20;
/// First batch: 16 scattered blocks and the flush take a disk about 20 to 30 ms. Chosen.
const BATCH_BLOCKS_FIRST: u64 = 16;
/// Least number of blocks beyond a batch that may be on their way, so that the origin has work
/// while the batch is settled: a disk's queue (NCQ).
const BATCH_AHEAD_MIN: u64 = 32;
/// Longest run of LRU order: the kernel's BIO_MAX_VECS.
const LRU_RUN_BLOCKS_MAX: u64 = 256;

/// A run that was picked while flush number `job` was the newest.
#[derive(Clone, Copy)]
struct Picked {
    run: Run,
    job: u64,
    ticket: u64,
}

/// A block version on the origin, not yet settled.
#[derive(Clone, Copy)]
struct Written {
    block: u64,
    held: Held,
    job: u64,
}

fn of_job(written: &[Written], job: u64) -> u64 {
    written.iter().filter(|w| w.job == job).count() as u64
}

/// A `flush`: the blocks that were dirty when it began and are not on the origin yet.
struct FlushJob {
    number: u64,
    todo: RoaringTreemap,
    total: u64,
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
    turns: Turns,
    written: RefCell<Vec<Written>>,
    /// Blocks whose origin flush is under way, and those of the flush that runs among them.
    settling: Cell<u64>,
    settling_of_job: Cell<u64>,
    /// Blocks of one batch.
    batch: Cell<u64>,
    batch_max: u64,
    job: RefCell<Option<FlushJob>>,
    jobs: Cell<u64>,
    /// Counts what may have made a block eligible: blocks released, ranges unlocked, flushes
    /// begun or ended.
    news: Cell<u64>,
    lru: RefCell<VecDeque<u64>>,
    /// Occupancy has reached the high watermark and not yet fallen below the low one.
    draining: Cell<bool>,
    /// The picking task has nothing to pick.
    idle: Cell<bool>,
}

impl Writeback {
    /// Batches are of at most `batch_max` blocks of `block_size` bytes.
    pub(crate) fn new(batch_max: u64, block_size: u32) -> Writeback {
        let batch_max = batch_max.min(SETTLE_BYTES / u64::from(block_size)).max(1);
        Writeback {
            sweep: RefCell::default(),
            busy: RefCell::default(),
            awaited: RefCell::default(),
            busy_blocks: Cell::default(),
            in_flight_blocks: Cell::default(),
            in_flight_runs: Cell::default(),
            turns: Turns::default(),
            written: RefCell::default(),
            settling: Cell::default(),
            settling_of_job: Cell::default(),
            batch: Cell::new(BATCH_BLOCKS_FIRST.min(batch_max)),
            batch_max,
            job: RefCell::default(),
            jobs: Cell::default(),
            news: Cell::default(),
            lru: RefCell::default(),
            draining: Cell::default(),
            idle: Cell::default(),
        }
    }

    /// Whether blocks are being written back, or are about to be.
    pub(crate) fn is_busy(&self) -> bool {
        self.draining.get() || self.busy_blocks.get() > 0
    }

    /// Blocks that the origin has, but not durably yet.
    pub(crate) fn pending(&self) -> u64 {
        self.written.borrow().len() as u64 + self.settling.get()
    }

    fn is_free(&self, range: &Range<u64>) -> bool {
        self.busy.borrow().range_cardinality(range.clone()) == 0
    }

    pub(crate) fn unlock(&self, range: Range<u64>) {
        self.busy.borrow_mut().remove_range(range);
        self.news.set(self.news.get() + 1);
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
            self.news.set(self.news.get() + 1);
        }
    }

    pub(crate) fn in_flight_runs(&self) -> usize {
        self.in_flight_runs.get()
    }

    /// Blocks picked and not yet settled.
    pub(crate) fn blocks(&self) -> u64 {
        self.busy_blocks.get()
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
    /// Takes a range for a direct origin write: waits until no block of it is busy (WB1).
    pub(crate) async fn lock_origin(&self, range: Range<u64>) -> Result<(), Status> {
        let wb = &self.writeback;
        wb.awaited.borrow_mut().push(range.clone());
        self.changed.wake_all();
        self.changed.wait_for(|| wb.is_free(&range) || self.health().is_err()).await;
        let mut awaited = wb.awaited.borrow_mut();
        let mine = awaited.iter().position(|r| *r == range).expect("pushed above");
        awaited.swap_remove(mine);
        self.health()?;
        wb.busy.borrow_mut().insert_range(range);
        Ok(())
    }

    /// Writes back every block that is dirty now, in order, and makes that durable. Writes that
    /// come meanwhile go on; they are not waited for.
    pub(crate) async fn write_back_all(&self) -> Result<(), Status> {
        let wb = &self.writeback;
        self.changed.wait_for(|| wb.job.borrow().is_none()).await;
        self.commit().await?;
        let todo = self.slots.borrow().dirty().clone();
        let number = wb.jobs.get() + 1;
        wb.jobs.set(number);
        *wb.job.borrow_mut() = Some(FlushJob { number, total: todo.len(), todo });
        wb.news.set(wb.news.get() + 1);
        wb.lru.borrow_mut().clear();
        self.changed.wake_all();
        let done = || wb.job.borrow().as_ref().is_none_or(|j| j.todo.is_empty());
        self.changed.wait_for(|| done() || self.health().is_err()).await;
        *wb.job.borrow_mut() = None;
        wb.news.set(wb.news.get() + 1);
        self.changed.wake_all();
        self.forget_clean().await?;
        if self.counts().bad > 0 { Err(Status::Checksum) } else { Ok(()) }
    }

    /// Drops every clean block, durably. After a flush the origin may be used without its cache,
    /// which must not come back one day with what was there before.
    async fn forget_clean(&self) -> Result<(), Status> {
        loop {
            self.commit().await?;
            let room = u32::try_from(self.changed_max()).unwrap_or(u32::MAX);
            if self.slots.borrow_mut().evict(room) == 0 {
                return Ok(());
            }
        }
    }

    pub(crate) fn wants_writeback(&self) -> bool {
        let wb = &self.writeback;
        let free = u64::from(self.free_blocks()) + wb.blocks();
        let draining = if wb.draining.get() {
            self.watermarks.should_continue(free)
        } else {
            self.watermarks.should_start(free)
        };
        wb.draining.set(draining);
        let starved = self.starved.get() > 0 && self.counts().clean + self.counts().limbo == 0;
        draining || starved || wb.job.borrow().is_some()
    }

    /// A task: picks runs while there is reason to, and keeps many in flight.
    pub(crate) async fn pick_task(self: Rc<Cache>, _guard: TaskGuard) {
        let wb = &self.writeback;
        let stop = || self.stopping.get() || self.health().is_err();
        let writer = self.clone();
        let runs =
            Workers::new(RUNS_IN_FLIGHT_MAX, move |picked| write_run(writer.clone(), picked));
        let jobs = u64::from(self.config.writeback_jobs);
        // What there was when nothing could be picked: look again when that has changed.
        let state = || (wb.news.get(), self.installs.get());
        let mut exhausted = None;
        loop {
            let work = || self.wants_writeback() && exhausted != Some(state());
            self.changed.wait_for(|| stop() || work()).await;
            wb.idle.set(false);
            self.pacer.borrow_mut().writeback_started(reactor::now().0);
            loop {
                let room = || {
                    wb.in_flight_blocks.get() < jobs
                        && wb.in_flight_runs.get() < RUNS_IN_FLIGHT_MAX
                        && (wb.blocks() < batch_and_ahead(wb.batch.get()) || !self.in_batches())
                };
                self.changed.wait_for(|| stop() || room()).await;
                exhausted = None;
                if stop() || !self.wants_writeback() {
                    break;
                }
                let Some(run) = self.pick() else {
                    exhausted = Some(state());
                    break;
                };
                wb.busy.borrow_mut().insert_range(run.start..run.end);
                wb.busy_blocks.set(wb.busy_blocks.get() + run.blocks());
                wb.in_flight_blocks.set(wb.in_flight_blocks.get() + run.blocks());
                wb.in_flight_runs.set(wb.in_flight_runs.get() + 1);
                runs.push(Picked { run, job: wb.jobs.get(), ticket: wb.turns.draw() });
            }
            wb.idle.set(true);
            if wb.blocks() == 0 {
                self.pacer.borrow_mut().writeback_stopped();
            }
            self.changed.wake_all();
            if stop() {
                return;
            }
        }
    }

    /// The next run. `writeback_jobs` decides when it may begin, not how long it is.
    fn pick(&self) -> Option<Run> {
        let wb = &self.writeback;
        let io_bytes = self.config.writeback_io_bytes.min(self.origin_io_bytes);
        let io_max = u64::from(io_bytes / self.config.block_size).max(1);
        let run = match self.config.writeback_order {
            Order::Sorted => {
                wb.sweep.borrow_mut().next_run(io_max, |from| self.next_eligible(from))
            }
            Order::Lru => self.next_oldest(io_max.min(LRU_RUN_BLOCKS_MAX)),
        };
        if run.is_none() && wb.job.borrow().as_ref().is_some_and(|j| j.todo.is_empty()) {
            self.changed.wake_all();
        }
        run
    }

    /// The first block at or after `from` that is dirty, not busy, and asked for.
    fn next_eligible(&self, mut from: u64) -> Option<u64> {
        let wb = &self.writeback;
        let (slots, busy) = (self.slots.borrow(), wb.busy.borrow());
        let (mut job, awaited) = (wb.job.borrow_mut(), wb.awaited.borrow());
        loop {
            let block = match &mut *job {
                Some(job) => next_in(&job.todo, from)?,
                None => slots.next_dirty(from)?,
            };
            if let Some(end) = awaited.iter().find(|r| r.contains(&block)).map(|r| r.end) {
                from = end;
            } else if busy.contains(block) {
                from = block + 1;
            } else if slots.dirty().contains(block) {
                return Some(block);
            } else if let Some(job) = &mut *job {
                // Discarded or quarantined since the flush began: there is nothing to write.
                job.todo.remove(block);
            }
        }
    }

    /// LRU order: the oldest eligible block, extended to the right while the next is dirty too.
    fn next_oldest(&self, max: u64) -> Option<Run> {
        if let Some(run) = self.next_queued(max) {
            return Some(run);
        }
        // Whatever was queued has been written or has moved on: queue what there is now.
        let mut order = Vec::new();
        let mut from = 0;
        while let Some(block) = self.next_eligible(from) {
            order.push((self.slots.borrow().age_of(block), block));
            from = block + 1;
        }
        order.sort_unstable_by_key(|&(age, block)| (std::cmp::Reverse(age), block));
        self.writeback.lru.borrow_mut().extend(order.into_iter().map(|(_, block)| block));
        self.next_queued(max)
    }

    fn next_queued(&self, max: u64) -> Option<Run> {
        loop {
            let start = self.writeback.lru.borrow_mut().pop_front()?;
            if self.next_eligible(start) != Some(start) {
                continue;
            }
            let mut end = start + 1;
            while end - start < max && self.next_eligible(end) == Some(end) {
                end += 1;
            }
            return Some(Run { start, end });
        }
    }

    /// A task: flushes the origin after much has been written, or when nothing more comes, and
    /// retires what the flush covers.
    pub(crate) async fn settle_task(self: Rc<Cache>, _guard: TaskGuard) {
        let wb = &self.writeback;
        let slots = u64::from(self.geometry.slots);
        let calm = (SETTLE_BYTES / u64::from(self.config.block_size)).min(slots / 8).max(1);
        let many = || if self.in_batches() { wb.batch.get() } else { calm };
        let picking_ended = || self.stopping.get() && wb.idle.get() && wb.in_flight_runs.get() == 0;
        loop {
            let due = || {
                let written = wb.written.borrow().len() as u64;
                let last = wb.idle.get() && wb.in_flight_runs.get() == 0;
                let wanted = !wb.awaited.borrow().is_empty();
                written >= many() || (written > 0 && (last || wanted))
            };
            let end = || self.health().is_err() || picking_ended();
            self.changed.wait_for(|| due() || end()).await;
            if self.health().is_err() || !due() {
                return;
            }
            let full = self.in_batches() && wb.written.borrow().len() as u64 >= wb.batch.get();
            self.settle().await;
            if full {
                wb.batch.set((2 * wb.batch.get()).min(wb.batch_max));
            }
        }
    }

    /// Whether the size of a batch counts: always but in a `flush` that no writer suffers from.
    fn in_batches(&self) -> bool {
        let slowed = u64::from(self.free_blocks()) < self.pacer.borrow().start();
        slowed || self.writeback.job.borrow().is_none()
    }

    async fn settle(&self) {
        let wb = &self.writeback;
        let written = wb.written.take();
        wb.settling.set(written.len() as u64);
        wb.settling_of_job.set(of_job(&written, wb.jobs.get()));
        let durable = if self.mutation(Mutation::FreeBeforeOriginDurable) {
            Ok(())
        } else {
            self.flush_origin(Class::Background).await
        };
        // I3: durable on the origin now, so the copies in the cache are no longer needed.
        if durable.is_ok() {
            for part in written.chunks(64) {
                self.changed_room(part.len()).await;
                let mut slots = self.slots.borrow_mut();
                for w in part {
                    slots.retire(w.block, w.held);
                }
            }
            if let Some(job) = &mut *wb.job.borrow_mut() {
                // What was picked before the flush began may be older than what it must write.
                for w in written.iter().filter(|w| w.job == job.number) {
                    job.todo.remove(w.block);
                }
            }
            self.pacer.borrow_mut().freed(written.len() as u64, reactor::now().0);
        }
        wb.settling.set(0);
        wb.settling_of_job.set(0);
        wb.release(written.iter().map(|w| w.block));
        self.changed.wake_all();
    }

    /// A task: keeps some slots free by dropping clean blocks, and by committing what waits in
    /// limbo.
    pub(crate) async fn reclaim_task(self: Rc<Cache>, _guard: TaskGuard) {
        let reserve = reclaim_reserve(self.geometry.slots);
        loop {
            let due = || {
                let c = self.counts();
                let limbo_min = if self.starved.get() > 0 { 1 } else { reserve / 2 };
                c.free < reserve && (c.clean > 0 || c.limbo >= limbo_min.max(1))
            };
            let end = || self.stopping.get() || self.health().is_err();
            self.changed.wait_for(|| due() || end()).await;
            if end() {
                return;
            }
            let c = self.counts();
            let room = self.changed_max().saturating_sub(c.changed);
            let want = u64::from(2 * reserve - c.free).min(room);
            self.slots.borrow_mut().evict(u32::try_from(want).expect("at most 2 * reserve"));
            self.commit().await.ok();
            self.changed.wake_all();
        }
    }
}

/// Blocks that may be on their way while batches have `batch` blocks.
fn batch_and_ahead(batch: u64) -> u64 {
    batch + (batch / 4).max(BATCH_AHEAD_MIN)
}

/// Reads a run's blocks from their slots and writes them to the origin.
async fn write_run(cache: Rc<Cache>, Picked { run, job, ticket }: Picked) {
    let wb = &cache.writeback;
    let good = cache.gather(run).await;
    // WB3. What was gathered is superseded or in this commit.
    let unsaid = |&(block, _): &(u64, Held)| cache.slots.borrow().is_changed(block);
    if (cache.commits.is_running() || good.blocks.iter().any(unsaid))
        && !cache.mutation(Mutation::WritebackBeforeCommit)
    {
        cache.commit().await.ok();
    }
    let good = if cache.health().is_ok() { good } else { Gathered { blocks: vec![], ..good } };
    let mut written = Vec::with_capacity(good.blocks.len());
    let size = cache.block_bytes();
    // A disk without a cache of its own sorts no more than its queue holds: it must get the runs in
    // the order of the sweep, whichever were read first.
    wb.turns.come(ticket).await;
    let mut parts = SmallVec::<[_; 1]>::new();
    let mut at = 0;
    while at < good.blocks.len() {
        let contiguous = |n: usize| good.blocks[n].0 == good.blocks[at].0 + (n - at) as u64;
        let end = (at..good.blocks.len()).find(|&n| !contiguous(n)).unwrap_or(good.blocks.len());
        let first = good.blocks[at].0;
        let from = usize::try_from(first - run.start).expect("within the run") * size;
        let data = good.buf.slice(from..from + (end - at) * size);
        let sector = cache.sector_of(first);
        cache.stats.origin_writes.add(1);
        cache.stats.origin_write_bytes.add(data.len() as u64);
        let flags = Flags::BACKGROUND;
        let class = Class::Background;
        parts.push((at..end, reactor::write(&*cache.origin, flags, class, sector, data.into())));
        at = end;
    }
    wb.turns.pass_on(ticket);
    for (part, io) in parts {
        match io.await {
            Ok(()) => written.extend(good.blocks[part].iter().map(|&(block, held)| Written {
                block,
                held,
                job,
            })),
            Err(status) => cache.fail(status),
        }
    }
    // What was not written stays dirty and may be picked again.
    wb.release(
        (run.start..run.end)
            .filter(|b| written.binary_search_by_key(b, |w: &Written| w.block).is_err()),
    );
    wb.written.borrow_mut().extend(written);
    wb.in_flight_blocks.set(wb.in_flight_blocks.get() - run.blocks());
    wb.in_flight_runs.set(wb.in_flight_runs.get() - 1);
    cache.changed.wake_all();
}

/// A run's data, and which of its blocks are good.
struct Gathered {
    buf: Buf,
    blocks: Vec<(u64, Held)>,
}

impl Cache {
    /// Reads every block of the run that is still dirty, and checks it (WB2).
    async fn gather(&self, run: Run) -> Gathered {
        let size = self.block_bytes();
        let count = usize::try_from(run.blocks()).expect("at most writeback_io_bytes");
        let buf = Buf::alloc(count * size);
        let mut blocks = Vec::with_capacity(count);
        let mut reads = Vec::new();
        {
            let slots = self.slots.borrow();
            for block in run.start..run.end {
                if let Some(found) = slots.find(block).filter(|f| f.state == State::Dirty) {
                    blocks.push((block, found.held, found.crc));
                }
            }
        }
        let mut at = 0;
        while at < blocks.len() {
            let (first, held, _) = blocks[at];
            let mut end = at + 1;
            while end < blocks.len()
                && blocks[end].0 == first + (end - at) as u64
                && blocks[end].1.slot as usize == held.slot as usize + (end - at)
            {
                end += 1;
            }
            let from = usize::try_from(first - run.start).expect("within the run") * size;
            let data = buf.slice(from..from + (end - at) * size);
            let sector = self.slot_sector(held.slot);
            let io = reactor::read(&*self.device, Class::Background, sector, data.into());
            reads.push((at..end, io));
            at = end;
        }
        let mut good = Vec::with_capacity(blocks.len());
        for (range, io) in reads {
            let read = io.await;
            for &(block, held, crc) in &blocks[range] {
                let from = usize::try_from(block - run.start).expect("within the run") * size;
                let mut slots = self.slots.borrow_mut();
                if !slots.is_intact(held) {
                    continue; // superseded, and its slot used again: the newer version is dirty
                }
                let sum = || buf.slice(from..from + size).read(format::checksum);
                if read.is_ok() && sum() == crc {
                    good.push((block, held));
                } else {
                    // Never to the origin: the block reads as an error until it is rewritten.
                    slots.quarantine(block, held);
                    self.stats.checksum_errors.add(1);
                }
            }
        }
        Gathered { buf, blocks: good }
    }
}
