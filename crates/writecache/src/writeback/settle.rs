// SPDX-License-Identifier: Apache-2.0 OR MIT
//! Settling: one origin flush covers many written blocks, which then become clean. Reclaim: clean
//! blocks are dropped to free their slots.
use std::rc::Rc;

use block::Class;

use super::Writeback;
use super::pieces::{PIECE_BLOCKS, Pieces};
use super::{SETTLE_BYTES, WrittenBlock, of_job};
use crate::lifecycle::TaskGuard;
use crate::pacing::reclaim_reserve;
use crate::planted::Fault;
use crate::store::media::CHANGES_AT_ONCE_MAX;

impl Writeback {
    /// A task: flushes the origin after many writes, or when no more follow, and retires the blocks
    /// that the flush covers.
    pub(crate) async fn settle_task(self: Rc<Writeback>, _guard: TaskGuard) {
        let slots = u64::from(self.store.slot_count());
        let calm = (SETTLE_BYTES / u64::from(self.store.config.block_size)).min(slots / 8).max(1);
        let many = || {
            let batch = if self.in_batches() { self.settling.batch.get() } else { calm };
            batch.min(self.settle_max_for_latency())
        };
        let picking_ended = || {
            self.store.life.stopping.get()
                && self.picker.idle.get()
                && self.in_flight.runs.get() == 0
        };
        loop {
            let due = || {
                let written = self.settling.written.borrow().len() as u64;
                let wants_quiet = self.picker.idle.get() || self.destage.wants_quiet.get();
                let last = wants_quiet && self.in_flight.runs.get() == 0;
                let wanted = !self.locks.awaited().is_empty();
                let sample = written > 0 && self.in_flight.runs.get() == 0 && self.needs_sample();
                written >= many() || sample || (written > 0 && (last || wanted))
            };
            let end = || self.store.health().is_err() || picking_ended();
            self.store.waits.settle.wait_for(|| due() || end()).await;
            if self.store.health().is_err() || !due() {
                return;
            }
            let full = self.in_batches()
                && self.settling.written.borrow().len() as u64 >= self.settling.batch.get();
            self.settle().await;
            if full {
                self.settling
                    .batch
                    .set((2 * self.settling.batch.get()).min(self.settling.batch_max.get()));
            }
        }
    }

    /// Whether writeback works in batches: not if all dirty blocks are to be written and no writer
    /// waits.
    pub(super) fn in_batches(&self) -> bool {
        let slowed = u64::from(self.store.free_blocks()) < self.pacing.pacer.borrow().start();
        let all = self.store.tuning().cleaner || self.jobs.flush.borrow().is_some();
        slowed || !all
    }

    async fn settle(&self) {
        let (began, written) = (reactor::now(), self.settling.written.take());
        self.begin_settle();
        self.settling.blocks.set(written.len() as u64);
        let flush = self.jobs.flush.borrow().as_ref().map_or(u64::MAX, |job| job.number);
        self.settling.of_job.set(of_job(&written, flush));
        let volatile = self.settling.volatile.replace(false);
        let sample = self.destage.begin_flush();
        let mut good = written.clone();
        if volatile && !self.store.has_fault(Fault::FreeBeforeOriginDurable) {
            let newest = written.iter().map(|w| w.flush_errors).max().unwrap_or(0);
            let flushed = self.flush_origin(Class::Background, newest).await;
            // WC-RT2. The outcome of this flush is not enough: an earlier one may have failed.
            if !self.store.has_fault(Fault::IgnoreFlushError) {
                good.retain(|w| w.flush_errors == self.origin_flush_errors() && flushed.is_ok());
            }
            if good.len() < written.len() {
                let lost = written.iter().filter(|w| w.flush_errors != self.origin_flush_errors());
                self.retry.requeue(lost.map(|w| w.block));
            }
        }
        if self.store.health().is_ok() {
            self.destage.end_flush(sample, self.in_flight.runs.get() > 0);
        }
        let mut pieces = Pieces::of_blocks();
        // WC-I3: the blocks are durable on the origin now, so they become clean.
        if !good.is_empty() && self.store.health().is_ok() {
            for part in good.chunks(CHANGES_AT_ONCE_MAX) {
                self.store.reserve_unlogged(part.len()).await;
                self.retire(part);
                pieces.done(part.len()).await;
            }
            for part in good.chunks(PIECE_BLOCKS) {
                self.each_job(|job| {
                    // A version that was picked before the `flush` began may be older than the one
                    // that the `flush` must write.
                    for w in part.iter().filter(|w| w.job >= job.number) {
                        job.todo.remove(w.block);
                    }
                });
                let settled = of_job(part, flush);
                self.settling.of_job.set(self.settling.of_job.get() - settled);
                pieces.done(part.len()).await;
            }
            self.clear_failing(good.iter().map(|w| w.block));
            self.pacing.pacer.borrow_mut().freed(good.len() as u64, reactor::now().0);
        }
        self.settling.blocks.set(0);
        self.settling.of_job.set(0);
        self.end_settle(began);
        for part in written.chunks(PIECE_BLOCKS) {
            self.release(part.iter().map(|w| w.block));
            pieces.done(part.len()).await;
        }
        self.store.waits.blocks_changed();
        self.store.waits.writes_ended.wake_all();
        self.store.waits.jobs.wake_all();
    }

    /// Blocks are durable on the origin.
    fn retire(&self, written: &[WrittenBlock]) {
        let mut slots = self.store.slots.borrow_mut();
        for w in written {
            let newer = || slots.find(w.block).map(|found| found.slot_ref);
            let newer = self.store.has_fault(Fault::RetireNewer).then(newer).flatten();
            slots.retire(w.block, newer.unwrap_or(w.slot_ref));
        }
        slots.mark_oldest(reactor::now);
    }

    /// A task: keeps some slots free. It drops clean blocks, and commits to free the slots in
    /// limbo.
    pub(crate) async fn reclaim_task(self: Rc<Writeback>, _guard: TaskGuard) {
        loop {
            let due = || {
                let c = self.store.counts();
                // The cache may have grown.
                let reserve = reclaim_reserve(c.slots);
                let limbo_min = if self.pacing.starved_writers.get() > 0 { 1 } else { reserve / 2 };
                let scarce = c.free < reserve && (c.clean > 0 || c.limbo >= limbo_min.max(1));
                // A cache that is being emptied keeps no clean copies: the origin may be used
                // without its cache, and then they would be old.
                scarce || (self.store.tuning().cleaner && c.clean > 0)
            };
            let end = || self.store.life.stopping.get() || self.store.health().is_err();
            self.store.waits.reclaim.wait_for(|| due() || end()).await;
            if end() {
                return;
            }
            let c = self.store.counts();
            let room = self.store.unlogged_max().saturating_sub(c.unlogged);
            let scarce = u64::from((2 * reclaim_reserve(c.slots)).saturating_sub(c.free));
            let want = if self.store.tuning().cleaner { room } else { scarce.min(room) };
            let want = u32::try_from(want).unwrap_or(u32::MAX);
            self.read_cache.with_uses(|uses| self.store.slots.borrow_mut().evict(want, uses));
            if self.store.has_fault(Fault::EvictDirty) {
                self.store.slots.borrow_mut().evict_dirty();
            }
            // WC-M4. Otherwise this task would never sleep.
            if !self.store.commits.is_running() && !self.store.slots.borrow().has_unlogged() {
                return self.store.fail_for_bug("no commit frees what waits in limbo");
            }
            self.store.commit().await.ok();
            self.store.waits.blocks_changed();
        }
    }
}
