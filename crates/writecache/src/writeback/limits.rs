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
//! - A latency target yields to a writer that waits for a slot: that is a client's request as well,
//!   and waits for longer than any target.
//! - The pace of a drain limits only blocks that nothing but the drain has asked for.
use std::rc::{Rc, Weak};

use block::{Bio, Flags, Nanos, Op};
use reactor::now;

use super::{RUNS_IN_FLIGHT_MAX, Writeback};

/// Runs in flight while there is a latency target and no client: what is in flight when a
/// client comes back is what it waits for. Twice a drive's queue (NCQ).
const RUNS_IN_FLIGHT_QUIET: usize = 64;
/// Waiting for a limit is done in parts, so that a suspend need not.
const LOOK: Nanos = Nanos::from_millis(20);
/// A longer wait lets written blocks be settled meanwhile.
const SETTLE_AT_NS: u64 = 1_000_000_000;

impl Writeback {
    /// The least latency target that there is.
    fn p99_target(&self) -> Option<Nanos> {
        let drain = self.jobs.drain.borrow().as_ref().and_then(|d| d.limits.p99);
        self.store.tuning().foreground_p99_target.into_iter().chain(drain).min()
    }

    /// The least rate that there is; 0: none.
    fn rate_max(&self) -> u64 {
        let drain = self.jobs.drain.borrow().as_ref().map_or(0, |d| d.limits.rate);
        [self.store.tuning().writeback_rate_max, drain]
            .into_iter()
            .filter(|r| *r > 0)
            .min()
            .unwrap_or(0)
    }

    /// A client's request begins; when, if that is to be known.
    pub(crate) fn request_begins(&self) -> Option<Nanos> {
        self.p99_target().map(|_| now())
    }

    /// A client's request has ended: reads, and whatever waits for a commit, count.
    pub(crate) fn request_ended(&self, bio: &Bio, began: Option<Nanos>) {
        let (Some(began), Some(target)) = (began, self.p99_target()) else { return };
        if matches!(bio.op, Op::Read | Op::Flush) || bio.flags.contains(Flags::FUA) {
            let (now, tail) = (now(), &self.limits.tail);
            tail.borrow_mut().request(now.saturating_sub(began).0, target.0, now.0);
        }
    }

    /// Whether a writer waits for a slot that only writeback can free.
    pub(super) fn is_starved(&self) -> bool {
        self.room.starved.get() > 0 && self.store.counts().clean + self.store.counts().limbo == 0
    }

    /// How many runs may be on their way because of a latency target; `None`: it does not count.
    fn tail_runs(&self) -> Option<usize> {
        if self.is_starved() || self.p99_target().is_none() {
            return None;
        }
        self.limits.tail.borrow_mut().writes(now().0)
    }

    /// Whether a limit may hold runs back for long.
    pub(super) fn is_limited(&self) -> bool {
        self.tail_runs().is_some() || self.rate_max() > 0
    }

    /// Whether another run may be on its way. While a latency target counts, that is until the
    /// origin has made it durable: in a disk's own cache it still costs the head its time.
    pub(super) fn has_room_for_run(&self) -> bool {
        let (limits, in_flight) = (&self.limits, self.in_flight.runs.get());
        match self.tail_runs() {
            Some(runs) => {
                let unsettled = limits.written.get() + limits.settling.get();
                in_flight + unsettled < runs.min(RUNS_IN_FLIGHT_MAX)
            }
            None if self.p99_target().is_some() => in_flight < RUNS_IN_FLIGHT_QUIET,
            None => in_flight < RUNS_IN_FLIGHT_MAX,
        }
    }

    /// There is no room for a run. What a latency target allows changes with time: a timer makes
    /// the tasks look again, also at whether a flush is due.
    pub(super) fn time_room(self: &Rc<Writeback>) {
        let timer = &self.limits.timer;
        if self.p99_target().is_some() && !self.store.life.stopping.get() && !timer.replace(true) {
            reactor::spawn(Writeback::room_task(Rc::downgrade(self)));
        }
    }

    /// Holds no reference while it sleeps; suspend does not wait for it.
    async fn room_task(weak: Weak<Writeback>) {
        reactor::sleep(LOOK).await;
        if let Some(wb) = weak.upgrade() {
            wb.limits.timer.set(false);
            wb.store.waits.pick.wake_all();
            wb.store.waits.settle.wake_all();
        }
    }

    /// Written blocks after which an origin flush is due because of a latency target.
    pub(super) fn settle_at_most(&self) -> u64 {
        self.tail_runs().map_or(u64::MAX, |runs| runs as u64)
    }

    /// Counts a run that is about to be written.
    pub(super) fn count_run(&self, blocks: u64) {
        let (now_ns, limits) = (now().0, &self.limits);
        let bytes = blocks * u64::from(self.store.config.block_size);
        limits.rate.borrow_mut().take(bytes, self.rate_max(), now_ns);
        limits.pace.borrow_mut().take(bytes, self.pace_of_drain(now_ns), now_ns);
    }

    /// A run has ended, and waits for a flush if anything of it `is_written`.
    pub(super) fn run_ended(&self, began: Nanos, is_written: bool) {
        let written = &self.limits.written;
        written.set(written.get() + usize::from(is_written));
        self.pause_after(began);
    }

    /// What has been written is about to be flushed.
    pub(super) fn settle_begins(&self) {
        let limits = &self.limits;
        limits.settling.set(limits.written.take());
    }

    pub(super) fn settle_ended(&self, began: Nanos) {
        self.limits.settling.set(0);
        self.pause_after(began);
    }

    /// Pauses after a write or flush that began then.
    fn pause_after(&self, began: Nanos) {
        if self.tail_runs().is_some() {
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
        if self.only_drain_wants() {
            wait_ns = wait_ns.max(limits.pace.borrow().wait_ns(now_ns));
        }
        if self.tail_runs().is_some() {
            wait_ns = wait_ns.max(limits.pause_until_ns.get().saturating_sub(now_ns));
        }
        wait_ns
    }

    /// Waits a little if a limit wants it. Returns whether it did: then look again.
    pub(super) async fn wait_for_limits(&self) -> bool {
        let wait_ns = self.limit_ns();
        if wait_ns == 0 {
            return false;
        }
        if wait_ns > SETTLE_AT_NS && !self.settling.written.borrow().is_empty() {
            self.picker.idle.set(true);
            self.store.waits.settle.wake_all();
        }
        reactor::sleep(Nanos(wait_ns).min(LOOK)).await;
        self.picker.idle.set(false);
        true
    }
}
