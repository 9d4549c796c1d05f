// SPDX-License-Identifier: Apache-2.0 OR MIT
//! Limits of writeback: bytes a second, and the latency of clients' requests.
//!
//! ```text
//!   writeback_rate_max, drain's rate  ─▶ RateLimit ─┐
//!   drain's time                      ─▶ RateLimit ─┼─▶ when the next run may be picked,
//!   foreground_p99_target, drain's    ─▶ TailLimit ─┘   and how many may be on their way
//! ```
//!
//! Priorities
//! - A rate is a hard limit, for an origin that others use too: `flush`, and writers that wait for
//!   a slot, proceed at that rate.
//! - A latency target does not apply while a writer waits for a slot: that is a client's request,
//!   too, and it waits for longer than any target.
//! - The pace of a drain limits only blocks that no other reason requires.
use std::rc::{Rc, Weak};

use block::{Bio, Flags, Nanos, Op};
use reactor::now;

use super::{RUNS_IN_FLIGHT_MAX, Writeback};

/// Most runs in flight while there is a latency target and no request: the next request of a client
/// waits for them. Twice the queue of a drive (NCQ).
const RUNS_IN_FLIGHT_QUIET: usize = 64;
/// A wait for a limit is checked so often, so that a suspend does not wait for it.
const CHECK_INTERVAL: Nanos = Nanos::from_millis(20);
/// Before a longer wait the written blocks are settled.
const SETTLE_AT_NS: u64 = 1_000_000_000;

impl Writeback {
    /// The lower of the latency targets of the option and of a drain.
    fn p99_target(&self) -> Option<Nanos> {
        let drain = self.jobs.drain.borrow().as_ref().and_then(|d| d.limits.p99);
        self.store.tuning().limits.p99_target.into_iter().chain(drain).min()
    }

    /// The lower of the rates of the option and of a drain; 0: no limit.
    fn rate_max(&self) -> u64 {
        let drain = self.jobs.drain.borrow().as_ref().map_or(0, |d| d.limits.rate);
        [self.store.tuning().limits.rate_max, drain]
            .into_iter()
            .filter(|r| *r > 0)
            .min()
            .unwrap_or(0)
    }

    /// A client's request begins. Returns the time, if there is a latency target.
    pub(crate) fn begin_request(&self) -> Option<Nanos> {
        self.p99_target().map(|_| now())
    }

    /// A client's request has ended. Reads count for the latency, and requests that wait for a
    /// commit.
    pub(crate) fn end_request(&self, bio: &Bio, began: Option<Nanos>) {
        let (Some(began), Some(target)) = (began, self.p99_target()) else { return };
        if matches!(bio.op, Op::Read | Op::Flush) || bio.flags.contains(Flags::FUA) {
            let (now, tail) = (now(), &self.limits.tail);
            tail.borrow_mut().request(now.saturating_sub(began).0, target.0, now.0);
        }
    }

    /// Whether a writer waits for a slot that only writeback can free.
    pub(super) fn is_starved(&self) -> bool {
        self.pacing.starved_writers.get() > 0
            && self.store.counts().clean + self.store.counts().limbo == 0
    }

    /// How many runs may be in flight because of a latency target; `None`: no limit.
    fn runs_for_latency(&self) -> Option<usize> {
        if self.is_starved() || self.p99_target().is_none() {
            return None;
        }
        self.limits.tail.borrow_mut().writes(now().0)
    }

    /// Whether a limit may delay runs for long.
    pub(super) fn is_limited(&self) -> bool {
        self.runs_for_latency().is_some() || self.rate_max() > 0
    }

    /// Whether another run may begin. With a latency target a run counts until it is durable: in a
    /// disk's own cache it still has to be written.
    pub(super) fn has_room_for_run(&self) -> bool {
        let (limits, in_flight) = (&self.limits, self.in_flight.runs.get());
        match self.runs_for_latency() {
            Some(runs) => {
                let unsettled = limits.written.get() + limits.settling.get();
                in_flight + unsettled < runs.min(RUNS_IN_FLIGHT_MAX)
            }
            None if self.p99_target().is_some() => in_flight < RUNS_IN_FLIGHT_QUIET,
            None => in_flight < RUNS_IN_FLIGHT_MAX,
        }
    }

    /// Starts a timer, because no run may begin now. The latency target may allow one later, or a
    /// flush may become due.
    pub(super) fn start_room_timer(self: &Rc<Writeback>) {
        let timer = &self.limits.timer;
        if self.p99_target().is_some() && !self.store.life.stopping.get() && !timer.replace(true) {
            reactor::spawn(Writeback::room_task(Rc::downgrade(self)));
        }
    }

    /// A task: waits for the timer. Suspend does not wait for this task, which holds no reference
    /// while it sleeps.
    async fn room_task(weak: Weak<Writeback>) {
        reactor::sleep(CHECK_INTERVAL).await;
        if let Some(wb) = weak.upgrade() {
            wb.limits.timer.set(false);
            wb.store.waits.pick.wake_all();
            wb.store.waits.settle.wake_all();
        }
    }

    /// Written blocks after which an origin flush is due because of a latency target.
    pub(super) fn settle_max_for_latency(&self) -> u64 {
        self.runs_for_latency().map_or(u64::MAX, |runs| runs as u64)
    }

    /// Counts a run before it is written.
    pub(super) fn count_run(&self, blocks: u64) {
        let (now_ns, limits) = (now().0, &self.limits);
        let bytes = blocks * u64::from(self.store.config.block_size);
        limits.rate.borrow_mut().take(bytes, self.rate_max(), now_ns);
        limits.pace.borrow_mut().take(bytes, self.drain_pace(now_ns), now_ns);
    }

    /// A run has ended. It waits for a flush if any block of it `is_written`.
    pub(super) fn end_run(&self, began: Nanos, is_written: bool) {
        let written = &self.limits.written;
        written.set(written.get() + usize::from(is_written));
        self.pause_after(began);
    }

    /// A flush of the written blocks begins.
    pub(super) fn begin_settle(&self) {
        let limits = &self.limits;
        limits.settling.set(limits.written.take());
    }

    pub(super) fn end_settle(&self, began: Nanos) {
        self.limits.settling.set(0);
        self.pause_after(began);
    }

    /// Pauses after a write or a flush that began at `began`.
    fn pause_after(&self, began: Nanos) {
        if self.runs_for_latency().is_some() {
            let (now, limits) = (now(), &self.limits);
            let pause_ns = limits.tail.borrow().pause_ns(now.saturating_sub(began).0, now.0);
            let until_ns = now.0.saturating_add(pause_ns);
            limits.pause_until_ns.set(limits.pause_until_ns.get().max(until_ns));
        }
    }

    /// How long the next run has to wait.
    fn limit_ns(&self) -> u64 {
        let (now_ns, limits) = (now().0, &self.limits);
        let mut wait_ns = limits.rate.borrow().wait_ns(now_ns);
        if self.has_only_drain_work() {
            wait_ns = wait_ns.max(limits.pace.borrow().wait_ns(now_ns));
        }
        if self.runs_for_latency().is_some() {
            wait_ns = wait_ns.max(limits.pause_until_ns.get().saturating_sub(now_ns));
        }
        wait_ns
    }

    /// Waits for a short time if a limit requires it. Returns whether it did: the caller must check
    /// again.
    pub(super) async fn wait_for_limits(&self) -> bool {
        let wait_ns = self.limit_ns();
        if wait_ns == 0 {
            return false;
        }
        if wait_ns > SETTLE_AT_NS && !self.settling.written.borrow().is_empty() {
            self.picker.idle.set(true);
            self.store.waits.settle.wake_all();
        }
        reactor::sleep(Nanos(wait_ns).min(CHECK_INTERVAL)).await;
        self.picker.idle.set(false);
        true
    }
}
