// SPDX-License-Identifier: Apache-2.0 OR MIT
//! Picking: which blocks are written back next, and when.
use std::rc::Rc;

use policy::Run;
use reactor::TaskPool;

use super::Writeback;
use super::gaps::{Extent, Source};
use super::run::write_run;
use super::{IN_FLIGHT_BYTES_MAX, PickedRun, RUNS_IN_FLIGHT_MAX};
use crate::config::Order;
use crate::lifecycle::TaskGuard;
use crate::map::next_in;

/// Least number of blocks beyond a batch that may be in flight, so that the origin has work while
/// the batch is settled: the queue of a disk (NCQ).
const BATCH_AHEAD_MIN: u64 = 32;
/// Longest run of LRU order: the kernel's BIO_MAX_VECS.
const LRU_RUN_BLOCKS_MAX: u64 = 256;

impl Writeback {
    pub(crate) fn needs_writeback(&self) -> bool {
        let held_back = self.store.life.background_paused.get() && !self.is_starved();
        self.wants_writeback()
            && !self.retry.is_paused()
            && !self.waits_for_cache_device()
            && !held_back
    }

    /// The same, though errors of the origin may pause it.
    pub(crate) fn wants_writeback(&self) -> bool {
        let free = u64::from(self.store.free_blocks()) + self.blocks();
        let draining = if self.picker.draining.get() {
            self.pacing.watermarks().should_continue(free)
        } else {
            self.pacing.watermarks().should_start(free)
        };
        self.picker.draining.set(draining);
        self.has_work_besides_drain() || self.jobs.drain.borrow().is_some()
    }

    /// Whether there is a reason for writeback other than a drain.
    pub(super) fn has_work_besides_drain(&self) -> bool {
        self.is_asked_for() || self.needs_any()
    }

    /// Whether certain blocks must be written back.
    fn is_asked_for(&self) -> bool {
        let marked = self.picker.ages.has_marks() || self.is_epoch_aged();
        self.jobs.flush.borrow().is_some() || marked || self.retry.has_ready()
    }

    /// Whether any dirty blocks must be written back.
    fn needs_any(&self) -> bool {
        let c = self.store.counts();
        let cleaning = self.is_emptied() && c.dirty + c.old + c.zero > 0;
        self.is_starved() || cleaning || (self.picker.draining.get() && !self.is_paused())
    }

    /// A task: picks runs while writeback is needed, and keeps many in flight.
    pub(crate) async fn pick_task(self: Rc<Writeback>, _guard: TaskGuard) {
        let stop = || self.store.life.stopping.get() || self.store.health().is_err();
        let writer = self.clone();
        let runs =
            TaskPool::new(RUNS_IN_FLIGHT_MAX, move |picked| write_run(writer.clone(), picked));
        let reader = self.clone();
        let spans = TaskPool::new(1, move |span| reader.clone().read_span(span));
        // State at the time when nothing could be picked: try again when it has changed.
        let state = || (self.store.waits.eligible(), self.pacing.installs.get());
        let in_flight_max = IN_FLIGHT_BYTES_MAX / u64::from(self.store.config.block_size);
        let mut exhausted = None;
        loop {
            let work = || {
                self.start_pause_timer();
                self.needs_writeback() && exhausted != Some(state())
            };
            self.store.waits.pick.wait_for(|| stop() || work()).await;
            self.picker.idle.set(false);
            self.pacing.pacer.borrow_mut().writeback_started(reactor::now().0);
            loop {
                let room = || {
                    let in_flight = self.in_flight.blocks.get();
                    let jobs = u64::from(self.store.tuning().writeback_jobs);
                    let has_room = (jobs == 0 || in_flight < jobs)
                        && in_flight < in_flight_max
                        && self.has_room_for_run()
                        && (self.destage.has_stretch() || self.batch_room() > 0)
                        && !self.is_waiting_for_sample();
                    if !has_room {
                        self.start_room_timer();
                    }
                    has_room
                };
                self.store.waits.pick.wait_for(|| stop() || room()).await;
                exhausted = None;
                if stop() || !(self.needs_writeback() || self.destage.has_stretch()) {
                    break;
                }
                if self.wait_for_limits().await {
                    continue;
                }
                self.next_phase().await;
                if self.write_zeroes_of_phase().await {
                    continue;
                }
                // Before a stretch, whose blocks are locked: they may be in the span.
                if let Some(span) = self.plan_span(&stop).await {
                    spans.push(span);
                }
                // A planned stretch is locked, and must not wait for a limit; and its large reads
                // of the origin would delay clients, which a latency target forbids.
                if !self.is_limited() {
                    self.plan_stretch(self.batch_room(), &stop).await;
                }
                let Some((run, extent)) = self.pick() else {
                    exhausted = Some(state());
                    break;
                };
                self.count_run(run.blocks());
                if extent.is_none() {
                    self.locks.lock_run(run);
                    self.in_flight
                        .picked_blocks
                        .set(self.in_flight.picked_blocks.get() + run.blocks());
                }
                self.in_flight.blocks.set(self.in_flight.blocks.get() + run.blocks());
                self.in_flight.runs.set(self.in_flight.runs.get() + 1);
                runs.push(PickedRun {
                    run,
                    extent,
                    span: self.span_of(run),
                    job: self.jobs.begun.get(),
                    ticket: self.in_flight.send_order.take_ticket(),
                });
            }
            self.picker.zero_progress.set(self.picker.zero_progress.get().filter(|_| !stop()));
            // Unlocks planned extents that will not be written.
            self.drop_stretch();
            self.drop_spans().await;
            self.picker.idle.set(true);
            if self.blocks() == 0 {
                self.pacing.pacer.borrow_mut().writeback_stopped();
            }
            self.store.waits.settle.wake_all();
            if stop() {
                return;
            }
        }
    }

    /// How many more blocks may be in flight.
    fn batch_room(&self) -> u64 {
        if self.in_batches() {
            batch_and_ahead(self.settling.batch.get()).saturating_sub(self.blocks())
        } else {
            u64::MAX
        }
    }

    /// The next run, or filled extent. `writeback_jobs` limits when it may begin, not its length.
    fn pick(&self) -> Option<(Run, Option<Extent>)> {
        if let Some((from, extent)) = self.next_of_stretch() {
            let Some(extent) = extent else {
                let run = self.pick_from(from)?;
                self.picker.ages.marked().borrow_mut().remove_range(run.start..run.end);
                return Some((run, None));
            };
            let mut aged = self.picker.ages.marked().borrow_mut();
            for range in extent.dirty_ranges() {
                aged.remove_range(range);
            }
            return Some((extent.run, Some(extent)));
        }
        self.pick_run().map(|run| (run, None))
    }

    /// The source of the next run and its first block, if there is any.
    pub(super) fn next_from(&self) -> Option<(Source, u64)> {
        let seek = |from| {
            let start = self.picker.sweep.borrow_mut().seek(|at| self.next_eligible(from, at));
            start.map(|start| (from, start))
        };
        let asked = self.is_asked_for().then(|| seek(Source::Asked)).flatten();
        let any = || self.jobs.flush.borrow().is_none() && self.needs_any();
        asked.or_else(|| any().then(|| seek(Source::Any)).flatten())
    }

    fn pick_run(&self) -> Option<Run> {
        let (slots, waiting) = (self.store.slots.borrow(), self.retry.waiting());
        if self.picker.ages.mark_if_due(slots.dirty(), &waiting) {
            self.picker.lru.borrow_mut().clear();
        }
        drop((slots, waiting));
        let asked = self.is_asked_for().then(|| self.pick_from(Source::Asked)).flatten();
        let any = || self.jobs.flush.borrow().is_none() && self.needs_any();
        let run = asked.or_else(|| any().then(|| self.pick_from(Source::Any)).flatten());
        let run = run.or_else(|| {
            let drain = self.jobs.flush.borrow().is_none() && self.jobs.drain.borrow().is_some();
            drain.then(|| self.pick_from(Source::Drain)).flatten()
        });
        if let Some(run) = run {
            // WC-G2. Later versions of these blocks are new.
            self.picker.ages.marked().borrow_mut().remove_range(run.start..run.end);
        } else if self.jobs.flush.borrow().is_some() || self.jobs.drain.borrow().is_some() {
            // The job may be done.
            self.store.waits.jobs.wake_all();
        }
        run
    }

    fn pick_from(&self, from: Source) -> Option<Run> {
        let io_max = self.io_blocks();
        match self.store.tuning().writeback_order {
            Order::Sorted => {
                let mut start = None;
                // A block that has failed before is written alone.
                let next = |at| {
                    // The run ends here; the next block is searched when it is picked.
                    let goes_on =
                        || self.store.config.ordered || self.store.slots.borrow().is_dirty(at);
                    if start.is_some() && !goes_on() {
                        return None;
                    }
                    let found = self.next_eligible(from, at)?;
                    let alone = |block| self.retry.is_failing(block);
                    let fits = start.is_none_or(|first| !alone(first) && !alone(found));
                    start.get_or_insert(found);
                    fits.then_some(found)
                };
                self.picker.sweep.borrow_mut().next_run(io_max, next)
            }
            Order::Lru => self.next_oldest(from, io_max.min(LRU_RUN_BLOCKS_MAX)),
        }
    }

    /// The first block at or after `at` of this source that is dirty and not busy.
    pub(super) fn next_eligible(&self, from: Source, mut at: u64) -> Option<u64> {
        if self.store.config.ordered {
            return self.next_in_phase(at);
        }
        let (slots, busy) = (self.store.slots.borrow(), self.locks.busy());
        let (mut job, mut aged) =
            (self.jobs.flush.borrow_mut(), self.picker.ages.marked().borrow_mut());
        let (mut drain, awaited) = (self.jobs.drain.borrow_mut(), self.locks.awaited());
        let only_failing = self.retry.is_full();
        loop {
            let mut is_dirty = false;
            let block = match from {
                _ if only_failing => self.retry.next_ready(at)?,
                Source::Any => {
                    is_dirty = true;
                    slots.next_dirty(at)?
                }
                Source::Drain => drain.as_ref().and_then(|drain| next_in(&drain.job.todo, at))?,
                Source::Asked => {
                    let todo = job.as_ref().and_then(|job| next_in(&job.todo, at));
                    let asked = [todo, next_in(&aged, at), self.retry.next_ready(at)];
                    asked.into_iter().flatten().min()?
                }
            };
            let awake = self.retry.skip(block);
            if awake > block {
                at = awake;
            } else if let Some(end) = awaited.iter().find(|r| r.contains(&block)).map(|r| r.end) {
                at = end;
            } else if busy.contains(block) {
                at = block + 1;
            } else if is_dirty || slots.is_dirty(block) {
                return Some(block);
            } else {
                // The block was discarded, became bad or was written back: there is nothing to
                // write.
                aged.remove(block);
                self.retry.clear_ready(block);
                if let Some(job) = &mut *job {
                    job.todo.remove(block);
                }
                if let Some(drain) = &mut *drain {
                    drain.job.todo.remove(block);
                }
            }
        }
    }

    /// LRU order: the oldest eligible block, extended to the right while the next is dirty too.
    fn next_oldest(&self, from: Source, max: u64) -> Option<Run> {
        if let Some(run) = self.next_queued(from, max) {
            return Some(run);
        }
        // All queued blocks have been written or changed: queue the dirty blocks of now.
        let mut order = Vec::new();
        let mut at = 0;
        while let Some(block) = self.next_eligible(from, at) {
            order.push((self.store.slots.borrow().age_of(block), block));
            at = block + 1;
        }
        order.sort_unstable_by_key(|&(age, block)| (std::cmp::Reverse(age), block));
        self.picker.lru.borrow_mut().extend(order.into_iter().map(|(_, block)| block));
        self.next_queued(from, max)
    }

    fn next_queued(&self, from: Source, max: u64) -> Option<Run> {
        loop {
            let start = self.picker.lru.borrow_mut().pop_front()?;
            if self.next_eligible(from, start) != Some(start) {
                continue;
            }
            let mut end = start + 1;
            let alone = |block| self.retry.is_failing(block);
            let fits =
                |end| !alone(start) && !alone(end) && self.next_eligible(from, end) == Some(end);
            while end - start < max && fits(end) {
                end += 1;
            }
            return Some(Run { start, end });
        }
    }
}

/// Blocks that may be in flight while batches have `batch` blocks.
fn batch_and_ahead(batch: u64) -> u64 {
    batch + (batch / 4).max(BATCH_AHEAD_MIN)
}
