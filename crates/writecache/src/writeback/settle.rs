// SPDX-License-Identifier: Apache-2.0 OR MIT
//! Settling: one origin flush for much that has been written, then the blocks are clean; and
//! reclaim, which makes free slots of clean ones.
use std::rc::Rc;

use block::Class;

use super::{SETTLE_BYTES, of_job};
use crate::cache::{Cache, TaskGuard, reclaim_reserve};
use crate::config::Mutation;
use crate::media::CHANGES_AT_ONCE_MAX;

impl Cache {
    /// A task: flushes the origin after much has been written, or when nothing more comes, and
    /// retires what the flush covers.
    pub(crate) async fn settle_task(self: Rc<Cache>, _guard: TaskGuard) {
        let wb = &self.writeback;
        let slots = u64::from(self.geometry.slots);
        let calm = (SETTLE_BYTES / u64::from(self.config.block_size)).min(slots / 8).max(1);
        let many = || {
            let batch = if self.in_batches() { wb.batch.get() } else { calm };
            batch.min(self.settle_at_most())
        };
        let picking_ended = || self.stopping.get() && wb.idle.get() && wb.in_flight_runs.get() == 0;
        loop {
            let due = || {
                let written = wb.written.borrow().len() as u64;
                let wants_quiet = wb.idle.get() || wb.destage.wants_quiet.get();
                let last = wants_quiet && wb.in_flight_runs.get() == 0;
                let wanted = !wb.awaited.borrow().is_empty();
                let sample = written > 0 && wb.in_flight_runs.get() == 0 && self.wants_sample();
                written >= many() || sample || (written > 0 && (last || wanted))
            };
            let end = || self.health().is_err() || picking_ended();
            self.waits.wait_for(|| due() || end()).await;
            if self.health().is_err() || !due() {
                return;
            }
            let full = self.in_batches() && wb.written.borrow().len() as u64 >= wb.batch.get();
            self.settle().await;
            if full {
                wb.batch.set((2 * wb.batch.get()).min(wb.batch_max.get()));
            }
        }
    }

    /// Whether the size of a batch counts: always but when everything is to be written back and no
    /// writer suffers from it.
    pub(super) fn in_batches(&self) -> bool {
        let slowed = u64::from(self.free_blocks()) < self.pacer.borrow().start();
        let all = self.tuning().cleaner || self.writeback.job.borrow().is_some();
        slowed || !all
    }

    async fn settle(&self) {
        let wb = &self.writeback;
        let (began, written) = (reactor::now(), wb.written.take());
        self.settle_begins();
        wb.settling.set(written.len() as u64);
        let flush = wb.job.borrow().as_ref().map_or(u64::MAX, |job| job.number);
        wb.settling_of_job.set(of_job(&written, flush));
        let volatile = wb.volatile.replace(false);
        let sample = wb.destage.flush_begins();
        let mut good = written.clone();
        if volatile && !self.mutation(Mutation::FreeBeforeOriginDurable) {
            let newest = written.iter().map(|w| w.flush_errors).max().unwrap_or(0);
            let flushed = self.flush_origin(Class::Background, newest).await;
            // WC-RT2. Not by what this flush brought: an earlier one may have failed.
            if !self.mutation(Mutation::IgnoreFlushError) {
                good.retain(|w| w.flush_errors == self.origin_flush_errors() && flushed.is_ok());
            }
            if good.len() < written.len() {
                let lost = written.iter().filter(|w| w.flush_errors != self.origin_flush_errors());
                wb.retry.requeue(lost.map(|w| w.block));
            }
        }
        if self.health().is_ok() {
            wb.destage.flush_ended(sample, wb.in_flight_runs.get() > 0);
        }
        // WC-I3: durable on the origin now, so the copies in the cache are no longer needed.
        if !good.is_empty() && self.health().is_ok() {
            for part in good.chunks(CHANGES_AT_ONCE_MAX) {
                self.reserve_unlogged(part.len()).await;
                let mut slots = self.slots.borrow_mut();
                for w in part {
                    let newer = || slots.find(w.block).map(|found| found.slot_ref);
                    let newer = self.mutation(Mutation::RetireNewer).then(newer).flatten();
                    slots.retire(w.block, newer.unwrap_or(w.slot_ref));
                }
            }
            wb.each_job(|job| {
                // What was picked before the flush began may be older than what it must write.
                for w in good.iter().filter(|w| w.job >= job.number) {
                    job.todo.remove(w.block);
                }
            });
            self.no_longer_failing(good.iter().map(|w| w.block));
            self.pacer.borrow_mut().freed(good.len() as u64, reactor::now().0);
        }
        wb.settling.set(0);
        wb.settling_of_job.set(0);
        self.settle_ended(began);
        wb.release(written.iter().map(|w| w.block));
        self.waits.wake_all();
    }

    /// A task: keeps some slots free by dropping clean blocks, and by committing what waits in
    /// limbo.
    pub(crate) async fn reclaim_task(self: Rc<Cache>, _guard: TaskGuard) {
        let reserve = reclaim_reserve(self.geometry.slots);
        loop {
            let due = || {
                let c = self.counts();
                let limbo_min = if self.starved.get() > 0 { 1 } else { reserve / 2 };
                let scarce = c.free < reserve && (c.clean > 0 || c.limbo >= limbo_min.max(1));
                // Who empties the cache has no use for clean copies. They must not come back one
                // day, when the origin has been in use without its cache.
                scarce || (self.tuning().cleaner && c.clean > 0)
            };
            let end = || self.stopping.get() || self.health().is_err();
            self.waits.wait_for(|| due() || end()).await;
            if end() {
                return;
            }
            let c = self.counts();
            let room = self.unlogged_max().saturating_sub(c.unlogged);
            let scarce = u64::from((2 * reserve).saturating_sub(c.free));
            let want = if self.tuning().cleaner { room } else { scarce.min(room) };
            self.slots.borrow_mut().evict(u32::try_from(want).unwrap_or(u32::MAX));
            if self.mutation(Mutation::EvictDirty) {
                self.slots.borrow_mut().evict_dirty();
            }
            // WC-M4. Else it would go round for ever.
            if !self.commits.is_running() && !self.slots.borrow().has_unlogged() {
                return self.fail_for_bug("no commit frees what waits in limbo");
            }
            self.commit().await.ok();
            self.waits.wake_all();
        }
    }
}
