// SPDX-License-Identifier: Apache-2.0 OR MIT
//! Errors of the origin, and unreadable dirty blocks: which blocks stay dirty and are tried again,
//! and which are lost. The rules are in `retry`.
use std::rc::Weak;

use block::{Class, Nanos, Status};
use policy::{BACKOFF_FIRST_NS, backoff_ns};
use reactor::now;

use super::Writeback;
use super::jobs::FlushJob;
use super::retry::{FailedFlushes, GIVE_UP_FAILURES};
use crate::config::FailMode;
use crate::events::CacheEvent;
use crate::map::SlotRef;
use crate::planted::Fault;

impl Writeback {
    /// An origin write has failed: the blocks stay dirty and wait for their next try.
    pub(super) fn write_failed(&self, blocks: impl Iterator<Item = u64>, job: u64, status: Status) {
        self.store.stats.writeback_errors.add(1);
        if self.store.tuning().fail_mode == FailMode::Kernel {
            return self.store.fail(status);
        }
        let healthy = self.retry.error().is_none();
        let mut first = None;
        for block in blocks {
            first.get_or_insert(block);
            let mut is_awaited = false;
            self.each_job(|job| is_awaited |= job.todo.contains(block));
            let wait = |n| if is_awaited { BACKOFF_FIRST_NS } else { backoff_ns(n) };
            let failures = self.retry.record_failure(block, status, wait);
            self.each_job(|of| {
                if job >= of.number && failures >= GIVE_UP_FAILURES {
                    of.give_up(block);
                    if self.retry.is_full() {
                        of.give_up_all();
                    }
                }
            });
        }
        self.store.waits.wake_all();
        if let Some(block) = first.filter(|_| healthy) {
            self.store
                .notify(CacheEvent::Writeback { status, sector: self.store.sector_of(block) });
        }
    }

    /// A flush of the origin has failed: the blocks that it should have made durable stay dirty
    /// (WC-RT2).
    pub(crate) fn origin_flush_failed(&self, status: Status) {
        self.store.stats.writeback_errors.add(1);
        // There is no other copy of writes around the cache (WC-A1).
        if self.store.tuning().fail_mode == FailMode::Kernel || self.origin.around.is_pending() {
            return self.store.fail(status);
        }
        let retry = &self.retry;
        let healthy = retry.error().is_none();
        retry.flush_errors.set(retry.flush_errors.get() + 1);
        let written = self.settling.written.take();
        self.limits.reset_written();
        let before = retry.flush.get();
        let failures = before.map_or(0, |f| f.failures).saturating_add(1);
        let mut is_awaited = false;
        self.each_job(|job| is_awaited |= !job.todo.is_empty());
        let wait_ns = if is_awaited { BACKOFF_FIRST_NS } else { backoff_ns(failures) };
        let blocks =
            (written.len() as u64 + self.settling.blocks.get()).max(before.map_or(0, |f| f.blocks));
        let until_ns = now().0.saturating_add(wait_ns);
        retry.flush.set(Some(FailedFlushes { failures, status, until_ns, blocks }));
        retry.paused.set(true);
        if failures >= GIVE_UP_FAILURES {
            self.each_job(FlushJob::give_up_all);
        }
        retry.requeue(written.iter().map(|w| w.block));
        self.release(written.iter().map(|w| w.block));
        self.store.waits.wake_all();
        if healthy {
            self.store.notify(CacheEvent::OriginFlush { status });
        }
    }

    /// A flush of the origin by its guard has failed. Writes in flight count as lost (WC-RT2). A
    /// cache that had no writes reports no error.
    pub(crate) fn guard_flush_failed(&self, status: Status) {
        let flush_errors = &self.retry.flush_errors;
        let written = !self.settling.written.borrow().is_empty() || self.settling.blocks.get() > 0;
        if self.store.health().is_err() {
            return;
        }
        if written || self.in_flight.runs.get() > 0 || self.origin.around.is_pending() {
            self.origin_flush_failed(status);
        } else {
            flush_errors.set(flush_errors.get() + 1);
        }
        self.store.waits.wake_all();
    }

    /// The origin holds these blocks durably.
    pub(super) fn clear_failing(&self, blocks: impl Iterator<Item = u64>) {
        let retry = &self.retry;
        let failed = retry.error();
        blocks.for_each(|block| retry.remove(block));
        retry.flush.set(None);
        retry.paused.set(false);
        if failed.is_some() && retry.error().is_none() {
            self.store.notify(CacheEvent::Recovered);
        }
    }

    /// Removes failing blocks that are not dirty any more: they were discarded or are unreadable.
    pub(crate) fn forget_failures(&self) {
        let retry = &self.retry;
        let failed = retry.error();
        let gone: Vec<u64> = {
            let slots = self.store.slots.borrow();
            let failing = retry.failing.borrow();
            let is_pending = |block| slots.is_dirty(block) || slots.is_in_phase(block);
            failing.keys().copied().filter(|&block| !is_pending(block)).collect()
        };
        gone.iter().for_each(|&block| retry.remove(block));
        let c = self.store.counts();
        if retry.flush.get().is_some() && c.dirty + c.zero == 0 {
            retry.flush.set(None);
            retry.paused.set(false);
        }
        if failed.is_some() && retry.error().is_none() {
            self.store.notify(CacheEvent::Recovered);
        }
    }

    /// A task: makes failing blocks ready when it is time for their next try. Suspend does not wait
    /// for this task. While it sleeps it holds no reference, so that the devices may be closed.
    pub(crate) async fn retry_task(weak: Weak<Writeback>, period: u64) {
        while let Some(writeback) = weak.upgrade() {
            let retry = &writeback.retry;
            let over = || {
                writeback.store.life.stopping.get() || writeback.store.life.period.get() != period
            };
            let end = || over() || writeback.store.health().is_err();
            writeback.store.waits.retry.wait_for(|| retry.next_due().is_some() || end()).await;
            if end() {
                return;
            }
            let due_ns = retry.next_due().expect("waited for");
            let now_ns = now().0;
            if due_ns <= now_ns {
                retry.make_ready(now_ns);
                writeback.forget_failures();
                writeback.recheck();
                writeback.store.waits.free_slots.wake_all();
                continue;
            }
            drop(writeback);
            // A block that fails meanwhile is due no earlier than `BACKOFF_FIRST_NS` from now.
            reactor::sleep(Nanos((due_ns - now_ns).min(BACKOFF_FIRST_NS))).await;
        }
    }

    /// Flushes the origin, one flush at a time as in `Store::flush_device`. Fails if any flush of
    /// the origin has failed since `flush_errors` was read. The caller must read it before it
    /// submits the first of the writes that the flush should cover (WC-RT2).
    pub(crate) async fn flush_origin(&self, class: Class, flush_errors: u64) -> Result<(), Status> {
        let flush = async || {
            self.store.stats.origin_flushes.add(1);
            let around = self.origin.around.completed();
            match reactor::flush(&*self.origin.device, class).await {
                Ok(()) => self.origin.around.flushed(around),
                Err(status) => self.origin_flush_failed(status),
            }
        };
        self.origin.flush.join(flush).await;
        self.store.health()?;
        if self.origin_flush_errors() == flush_errors { Ok(()) } else { Err(Status::Io) }
    }

    /// How many flushes of the origin have failed. Read it before a write of the origin is
    /// submitted, for [`Writeback::flush_origin`].
    pub(crate) fn origin_flush_errors(&self) -> u64 {
        self.retry.flush_errors()
    }

    /// The cache device has failed to read this version of a block.
    pub(crate) fn cache_read_failed(&self, block: u64, slot_ref: SlotRef, status: Status) {
        self.store.stats.cache_read_errors.add(1);
        if self.drop_unreadable(block, slot_ref) {
            self.store.health.drain_only.set(Some(status));
            self.unreadable.rotten.borrow_mut().remove(block);
            self.cache_device_is_silent();
            self.store.notify(CacheEvent::BadBlock { status, sector: self.store.sector_of(block) });
        }
    }

    /// The data of this version of a block do not match their checksum. A clean one is dropped, and
    /// the block can be read again. Returns whether it was dirty.
    pub(crate) fn drop_rotten(&self, block: u64, slot_ref: SlotRef) -> bool {
        self.store.stats.checksum_errors.add(1);
        let is_bad = self.drop_unreadable(block, slot_ref);
        if is_bad {
            self.unreadable.rotten.borrow_mut().insert(block);
            self.store.waits.retry.wake_all();
            self.store.notify(CacheEvent::RottenBlock { sector: self.store.sector_of(block) });
        }
        is_bad
    }

    /// This version of a block can't be read, or does not match its checksum. A clean version is
    /// dropped. A dirty one becomes bad, and no job waits for it any longer: returns true. A
    /// superseded version is given up by its epoch. If the block has a newer version nothing
    /// changes.
    fn drop_unreadable(&self, block: u64, slot_ref: SlotRef) -> bool {
        let mut slots = self.store.slots.borrow_mut();
        let is_bad = !slots.drop_clean(block, slot_ref) && slots.quarantine(block, slot_ref);
        if !is_bad {
            slots.drop_unreadable_old(block, slot_ref);
        }
        drop(slots);
        self.forget_failures();
        if !self.store.has_fault(Fault::WaitForBad) {
            self.recheck(); // perhaps a `flush` or an epoch waited only for this block
        }
        self.store.waits.blocks_changed();
        is_bad
    }
}
