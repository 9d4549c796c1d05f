// SPDX-License-Identifier: Apache-2.0 OR MIT
//! `drain`: everything that is dirty when it begins goes to the origin within a time, or as fast as
//! limits allow, while clients work.
//!
//! ```text
//!   within ─▶ pace = what is left / time left, refreshed with every run
//!   p99    ─▶ a latency target    ┐ for as long as it runs,
//!   rate   ─▶ a limit of the rate ┘ beside those of the device
//! ```
//!
//! What is written while it runs is cached as ever, and not waited for. Clean copies stay: a
//! `flush` afterwards, which has little left to do, makes the origin fit for use without its cache.
//!
//! Invariants
//! - WC-DR1 A drain that has ended, however it did, leaves no limit behind.
//! - WC-DR2 A drain does not hold up a `flush`, a suspend, or writers.
use std::rc::{Rc, Weak};

use block::{Error, Nanos};
use reactor::now;
use roaring::RoaringTreemap;

use super::flush::FlushJob;
use crate::cache::Cache;
use crate::dm_target::io_failed;

/// Longest time that may be given: a year.
const WITHIN_S_MAX: u64 = 365 * 24 * 3600;
/// As of the option `foreground_p99_target`.
const P99_US_MAX: u64 = 60_000_000;
/// Of the time left so much is kept for the last flush of the origin, for a disk that is slower at
/// times, and for blocks that are tried again: a twentieth, at least a second.
const SPARE_PART: u64 = 20;
const SPARE_NS_MIN: u64 = 1_000_000_000;
/// How often a drain looks at the clock.
const LOOK: Nanos = Nanos::from_millis(200);

/// What a drain has to keep to.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq)]
pub(crate) struct DrainLimits {
    /// The time in which it should be done.
    pub(crate) within: Option<Nanos>,
    /// As `foreground_p99_target`, while it runs.
    pub(crate) p99: Option<Nanos>,
    /// As `writeback_rate_max`, while it runs; 0: none.
    pub(crate) rate: u64,
}

impl DrainLimits {
    /// Reads the words `within=SECONDS p99=MICROSECONDS rate=BYTES_PER_SECOND`, each at most once.
    pub(crate) fn parse(text: &str) -> Result<DrainLimits, Error> {
        let mut limits = DrainLimits::default();
        let mut seen = Vec::new();
        for word in text.split_ascii_whitespace() {
            let wrong = || {
                Error::invalid(format!(
                    "writecache: drain: `{word}`: allowed are `within=SECONDS` (1 to \
                     {WITHIN_S_MAX}), `p99=MICROSECONDS` (1 to {P99_US_MAX}), \
                     `rate=BYTES_A_SECOND` (from 1), each once, or `stop`"
                ))
            };
            let (name, value) = word.split_once('=').ok_or_else(wrong)?;
            let value: u64 = value.parse().map_err(|_| wrong())?;
            let is_new = !seen.contains(&name);
            seen.push(name);
            match name {
                "within" if is_new && (1..=WITHIN_S_MAX).contains(&value) => {
                    limits.within = Some(Nanos(value * 1_000_000_000));
                }
                "p99" if is_new && (1..=P99_US_MAX).contains(&value) => {
                    limits.p99 = Some(Nanos(value * 1000));
                }
                "rate" if is_new && value > 0 => limits.rate = value,
                _ => return Err(wrong()),
            }
        }
        Ok(limits)
    }
}

pub(crate) struct DrainJob {
    pub(super) job: FlushJob,
    pub(crate) limits: DrainLimits,
    began: Nanos,
    stopped: bool,
}

impl DrainJob {
    fn deadline_ns(&self) -> Option<u64> {
        self.limits.within.map(|within| self.began.0.saturating_add(within.0))
    }

    /// Blocks that are durable on the origin, or have left the cache.
    fn done(&self) -> u64 {
        // With epochs what is left may be older than what was dirty.
        self.job.total.saturating_sub(self.job.todo.len() + self.job.left.len())
    }
}

impl Cache {
    /// Whether writeback has no other reason than a drain.
    pub(super) fn only_drain_wants(&self) -> bool {
        self.writeback.drain.borrow().is_some() && !self.wants_more_than_drain()
    }

    /// Bytes a second that a drain needs to be done in time; 0: it has no time.
    pub(super) fn pace_of_drain(&self, now_ns: u64) -> u64 {
        let drain = self.writeback.drain.borrow();
        let Some((drain, deadline_ns)) = drain.as_ref().and_then(|d| Some((d, d.deadline_ns()?)))
        else {
            return 0;
        };
        let left_ns = deadline_ns.saturating_sub(now_ns);
        let left_ns = left_ns.saturating_sub((left_ns / SPARE_PART).max(SPARE_NS_MIN));
        let bytes = u128::from(drain.job.todo.len()) * u128::from(self.config.block_size);
        let pace = (bytes * 1_000_000_000).checked_div(u128::from(left_ns));
        pace.map_or(0, |pace| u64::try_from(pace).unwrap_or(u64::MAX).max(1))
    }

    /// Writes back every block that is dirty now, and makes that durable, within limits.
    pub(crate) async fn drain(self: Rc<Self>, limits: DrainLimits) -> Result<(), Error> {
        let wb = &self.writeback;
        let busy = || Error::busy("a drain is running: `stop` ends it, `drain_state` shows it");
        if wb.drain.borrow().is_some() {
            return Err(busy());
        }
        self.slots.borrow_mut().close_epoch();
        let until = self.slots.borrow().open_epoch();
        self.commit().await.map_err(io_failed)?;
        if wb.drain.borrow().is_some() {
            return Err(busy());
        }
        let todo = self.slots.borrow().dirty().clone();
        let number = wb.jobs.get() + 1;
        wb.jobs.set(number);
        let (total, left, in_order) = (todo.len(), RoaringTreemap::new(), self.config.ordered);
        let job = FlushJob { number, total, todo, left, in_order };
        *wb.drain.borrow_mut() = Some(DrainJob { job, limits, began: now(), stopped: false });
        wb.retry.make_all_ready();
        wb.limits.pace.borrow_mut().forgive();
        wb.lru.borrow_mut().clear();
        wb.recheck();
        self.waits.wake_all();
        reactor::spawn(Cache::drain_clock(Rc::downgrade(&self), number));
        let retired = || self.slots.borrow().is_retired_before(until);
        let over = || {
            let drain = wb.drain.borrow();
            drain.as_ref().is_none_or(|d| {
                let late = d.deadline_ns().is_some_and(|deadline_ns| now().0 >= deadline_ns);
                d.stopped || late || d.job.is_done(retired)
            })
        };
        let ended = || over() || self.health().is_err() || self.stopping.get();
        self.waits.wait_for(ended).await;
        let mut drain = wb.drain.take().expect("only this takes it");
        if drain.job.is_done(retired) {
            drain.job.end();
        }
        // WC-DR1
        if drain.limits.rate > 0 {
            wb.limits.forgive();
        }
        wb.recheck();
        self.waits.wake_all();
        self.health().map_err(io_failed)?;
        self.outcome(&drain)
    }

    fn outcome(&self, drain: &DrainJob) -> Result<(), Error> {
        let (left, refused) = (drain.job.todo.len(), &drain.job.left);
        let total = drain.job.total;
        if left > 0 {
            let why = if drain.stopped {
                "stopped"
            } else if self.stopping.get() {
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

    /// A task: lets a drain look at the clock.
    async fn drain_clock(weak: Weak<Cache>, number: u64) {
        while let Some(cache) = weak.upgrade() {
            if cache.writeback.drain.borrow().as_ref().is_none_or(|d| d.job.number != number) {
                return;
            }
            cache.waits.wake_all();
            drop(cache);
            reactor::sleep(LOOK).await;
        }
    }

    /// Ends the drain that runs, if one does.
    pub(crate) fn stop_drain(&self) -> bool {
        let mut drain = self.writeback.drain.borrow_mut();
        let runs = drain.as_mut().map(|d| d.stopped = true).is_some();
        drop(drain);
        self.waits.wake_all();
        runs
    }

    /// `idle`, or how far a drain is.
    pub(crate) fn drain_state(&self) -> String {
        let drain = self.writeback.drain.borrow();
        let Some(d) = drain.as_ref() else { return "idle".to_owned() };
        let now_ns = now().0;
        let elapsed_ns = now_ns.saturating_sub(d.began.0).max(1);
        let (done, left) = (d.done(), d.job.todo.len());
        let per_s = u128::from(done) * 1_000_000_000 / u128::from(elapsed_ns);
        let mut state = format!(
            "running done={done} total={} failing={} blocks_per_s={per_s}",
            d.job.total,
            d.job.left.len()
        );
        if let Some(seconds) = u128::from(left).checked_div(per_s) {
            state.push_str(&format!(" seconds_left={seconds}"));
        }
        if let Some(deadline_ns) = d.deadline_ns() {
            let seconds = deadline_ns.saturating_sub(now_ns) / 1_000_000_000;
            state.push_str(&format!(" deadline_seconds={seconds}"));
        }
        state
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn words_are_taken_in_any_order_and_refused_with_what_is_allowed() {
        let table = [
            ("", DrainLimits::default()),
            (
                "rate=5 within=600 p99=5000",
                DrainLimits {
                    within: Some(Nanos::from_secs(600)),
                    p99: Some(Nanos::from_millis(5)),
                    rate: 5,
                },
            ),
        ];
        for (text, limits) in table {
            assert_eq!(DrainLimits::parse(text).unwrap(), limits, "{text}");
        }
        let wrong = [
            "within=0",
            "within=31536001",
            "p99=0",
            "p99=60000001",
            "rate=0",
            "rate=-1",
            "rate=1 rate=2",
            "fast",
            "within=10m",
            "bogus=1",
        ];
        for text in wrong {
            let said = DrainLimits::parse(text).unwrap_err().to_string();
            assert!(said.contains("within=SECONDS") && said.contains("`stop`"), "{text}: {said}");
        }
    }
}
