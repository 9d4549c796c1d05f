// SPDX-License-Identifier: Apache-2.0 OR MIT
//! `drain`: writes all blocks that are dirty when it begins to the origin, within a time or as fast
//! as limits allow, while clients work.
//!
//! ```text
//!   within ─▶ pace = bytes left / time left, computed for every run
//!   p99    ─▶ a latency target    ┐ while it runs,
//!   rate   ─▶ a limit of the rate ┘ besides the options of the device
//! ```
//!
//! Writes of clients are cached as always meanwhile, and the drain does not wait for them. Clean
//! copies stay in the cache. A `flush` after it has little left to write; then the origin may be
//! used without its cache.
//!
//! Invariants
//! - WC-DR1 The limits of a drain end with it, also after an error.
//! - WC-DR2 A drain does not delay a `flush`, a suspend, or writers.
use std::rc::{Rc, Weak};

use block::{Error, Nanos};
use reactor::now;

use super::Writeback;
use super::jobs::{DrainJob, DrainLimits, DrainProgress, FlushJob, Stop};
use crate::events::io_failed;

/// Part of the time left that is reserved: a twentieth, at least a second. It is for the last flush
/// of the origin, for a disk that is slow at times, and for blocks that are tried again.
const SPARE_PART: u64 = 20;
const SPARE_NS_MIN: u64 = 1_000_000_000;
/// How often a drain checks its time.
const CHECK_INTERVAL: Nanos = Nanos::from_millis(200);

impl Writeback {
    /// Whether a drain is the only reason for writeback.
    pub(super) fn has_only_drain_work(&self) -> bool {
        self.jobs.drain.borrow().is_some() && !self.has_work_besides_drain()
    }

    /// The rate in bytes a second that a drain needs to end in time; 0: no time was given.
    pub(super) fn drain_pace(&self, now_ns: u64) -> u64 {
        let drain = self.jobs.drain.borrow();
        let Some((drain, deadline_ns)) = drain.as_ref().and_then(|d| Some((d, d.deadline_ns()?)))
        else {
            return 0;
        };
        let left_ns = deadline_ns.saturating_sub(now_ns);
        let left_ns = left_ns.saturating_sub((left_ns / SPARE_PART).max(SPARE_NS_MIN));
        let bytes = u128::from(drain.job.todo.len()) * u128::from(self.store.config.block_size);
        let pace = (bytes * 1_000_000_000).checked_div(u128::from(left_ns));
        pace.map_or(0, |pace| u64::try_from(pace).unwrap_or(u64::MAX).max(1))
    }

    /// Writes back every block that is dirty now, within limits, and makes them durable.
    pub(crate) async fn drain(self: Rc<Self>, limits: DrainLimits) -> Result<(), Error> {
        let busy = || Error::busy("a drain is running: `stop` ends it, `drain_state` shows it");
        if self.jobs.drain.borrow().is_some() {
            return Err(busy());
        }
        self.store.slots.borrow_mut().close_epoch();
        let until = self.store.slots.borrow().open_epoch();
        self.store.commit().await.map_err(io_failed)?;
        if self.jobs.drain.borrow().is_some() {
            return Err(busy());
        }
        let todo = self.store.slots.borrow().dirty().clone();
        let number = self.jobs.begun.get() + 1;
        self.jobs.begun.set(number);
        let job = FlushJob::new(number, todo, self.store.config.ordered);
        *self.jobs.drain.borrow_mut() = Some(DrainJob { job, limits, began: now() });
        self.retry.make_all_ready();
        self.limits.pace.borrow_mut().forgive();
        self.picker.lru.borrow_mut().clear();
        self.recheck();
        reactor::spawn(Writeback::drain_clock(Rc::downgrade(&self), number));
        let retired = || self.store.slots.borrow().is_retired_before(until);
        let over = || {
            let drain = self.jobs.drain.borrow();
            drain.as_ref().is_none_or(|d| {
                let late = d.deadline_ns().is_some_and(|deadline_ns| now().0 >= deadline_ns);
                d.job.is_stopped || late || d.job.is_done(retired)
            })
        };
        let stopped = || self.store.health().is_err() || self.store.life.is_about_to_stop();
        let ended = || over() || stopped();
        self.store.waits.jobs.wait_for(ended).await;
        let mut drain = self.jobs.drain.take().expect("only this takes it");
        if drain.job.is_done(retired) {
            drain.job.end();
        }
        // WC-DR1
        if drain.limits.rate > 0 {
            self.limits.reset();
        }
        self.recheck();
        self.store.health().map_err(io_failed)?;
        self.outcome(&drain)
    }

    fn outcome(&self, drain: &DrainJob) -> Result<(), Error> {
        let (left, refused) = (drain.job.todo.len(), &drain.job.left);
        let total = drain.job.total;
        if left > 0 {
            let why = if drain.job.is_stopped {
                "stopped"
            } else if self.store.life.is_about_to_stop() {
                "ended by a suspend"
            } else {
                "not done in time"
            };
            let left = left + refused.len();
            return Err(Error::io(format!(
                "drain {why}: {left} of {total} blocks are left; they are kept in the cache"
            )));
        }
        if let Some(first) = refused.min() {
            return Err(self.not_written(refused.len(), first));
        }
        self.unreadable()
    }

    /// A task: wakes the drain so that it checks its time.
    async fn drain_clock(weak: Weak<Writeback>, number: u64) {
        while let Some(wb) = weak.upgrade() {
            if wb.jobs.drain.borrow().as_ref().is_none_or(|d| d.job.number != number) {
                return;
            }
            wb.store.waits.jobs.wake_all();
            drop(wb);
            reactor::sleep(CHECK_INTERVAL).await;
        }
    }

    /// Stops what is running of it.
    pub(crate) fn stop(&self, stop: Stop) {
        if let Some(drain) = self.jobs.drain.borrow_mut().as_mut() {
            drain.job.is_stopped = true;
        }
        if stop == Stop::DrainAndFlush
            && let Some(flush) = self.jobs.flush.borrow_mut().as_mut()
        {
            flush.is_stopped = true;
        }
        self.store.waits.jobs.wake_all();
    }

    /// The progress of the running drain; `None` without one.
    pub(crate) fn drain_progress(&self) -> Option<DrainProgress> {
        let drain = self.jobs.drain.borrow();
        let d = drain.as_ref()?;
        let now_ns = now().0;
        let elapsed_ns = now_ns.saturating_sub(d.began.0).max(1);
        let done = d.job.done();
        let per_s = u128::from(done) * 1_000_000_000 / u128::from(elapsed_ns);
        let blocks_per_s = u64::try_from(per_s).unwrap_or(u64::MAX);
        Some(DrainProgress {
            done,
            total: d.job.total,
            failing: d.job.left.len(),
            blocks_per_s,
            seconds_left: d.job.todo.len().checked_div(blocks_per_s),
            deadline_seconds: d.deadline_ns().map(|ns| ns.saturating_sub(now_ns) / 1_000_000_000),
        })
    }
}
