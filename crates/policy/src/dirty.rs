// SPDX-License-Identifier: Apache-2.0 OR MIT
//! Dirty throttling: how much may be dirty, and how fast each writer may dirty more.
//!
//! ```text
//! dirty bytes   0 ── background ── freerun ── setpoint ── limit
//! writeback     idle     runs ────────────────────────────────
//! position ratio   (no waiting)       2 ──────── 1 ───────── 0     a cubic, flat in the middle
//! ```
//!
//! The algorithm is that of `balance_dirty_pages`: `freerun = (limit + background) / 2`,
//! `setpoint = (freerun + limit) / 2`, `ratio = 1 + ((setpoint - dirty) / (limit - setpoint))³`
//! between 0 and 2, and each writer goes at `base rate · ratio`. The base rate is one for all
//! writers, and follows the device's bandwidth divided by the number of those that want more than
//! that; they are not counted. So writers get equal shares, one that wants less keeps what it
//! wants, and what is dirty settles at the setpoint.
//!
//! The pauses differ. The kernel lets a writer run for pages worth a sleep of 100 ms, which makes
//! it stutter. Here each write takes `bytes / rate` of its writer's time, and completes when that
//! time is over: at 10 MB/s a write of 1 MB completes after 100 ms.
//!
//! Limits are bytes, or a time: as much as the device writes in that time at its measured
//! bandwidth. So a slow device never has minutes of writes queued.
//!
//! Invariants
//! - PO-DT1 The ratio never rises as dirty bytes rise, and is 1 at the setpoint.
//! - PO-DT2 The effective limit falls by at most 1/32 of the excess in 200 ms, and never below the
//!   dirty bytes: no writer exceeds a limit that it respected.
//! - PO-DT3 No pause is longer than [`PAUSE_MAX_NS`]; the rest of a writer's delay is charged to
//!   its next write, before that is taken, at the rate of that time.
//! - PO-DT4 Below freerun no writer waits, and old debts are dropped.
//! - PO-DT5 The background threshold is below the limit.

use crate::bandwidth::{BANDWIDTH_START, Bandwidth};

/// The longest pause of one write: the kernel's `MAX_PAUSE`, 200 ms.
pub const PAUSE_MAX_NS: u64 = 200_000_000;
/// Shorter pauses are saved up: a timer costs a few microseconds, so at most a hundredth of the
/// time goes to them. Chosen.
pub const PAUSE_MIN_NS: u64 = 1_000_000;
/// The pause may be cut to an eighth of the time for which the device has work (as the kernel's
/// `wb_max_pause`), but no shorter than this.
const PAUSE_MAX_FLOOR_NS: u64 = 10_000_000;
/// How far a writer's line may run ahead: ten pauses. Chosen: a rate that turns out to be wrong is
/// suffered for no longer.
const LINE_MAX_NS: u64 = 10 * PAUSE_MAX_NS;
/// The kernel's `BANDWIDTH_INTERVAL`: limit and base rate move once in this time.
const INTERVAL_NS: u64 = 200_000_000;
/// Intervals made up for after a pause of all writers; the gap is then a fourth of what it was.
const INTERVALS_MAX: u64 = 45;
const SECOND_NS: u128 = 1_000_000_000;

/// One, as a position ratio.
pub const RATIO_ONE: u64 = 1 << RATIO_SHIFT;
/// More digits than the kernel's ten: its table is met to the four printed ones.
const RATIO_SHIFT: u32 = 20;
/// Digits of the position itself.
const X_SHIFT: u32 = 30;

/// Until the bandwidth is known, a limit in seconds is this many bytes: enough for a few ioends in
/// flight, from which it is learnt within 20 ms; little enough for the slowest stick. Chosen.
pub const LIMIT_START_BYTES: u64 = 4 << 20;
/// No limit in seconds goes below this: an ioend. Chosen.
pub const LIMIT_MIN_BYTES: u64 = 1 << 20;
/// The kernel's smallest `dirty_bytes`: two pages.
pub const DIRTY_BYTES_MIN: u64 = 8192;

/// A limit as it was set.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum Bound {
    /// So many bytes.
    Bytes(u64),
    /// What the device writes in so many milliseconds.
    Millis(u32),
}

impl Bound {
    /// The bytes that it stands for with a bandwidth of `bytes_per_s`, where known.
    fn bytes(self, bytes_per_s: Option<u64>) -> u64 {
        match self {
            Bound::Bytes(bytes) => bytes,
            Bound::Millis(ms) => bytes_per_s.map_or(LIMIT_START_BYTES, |bw| {
                let bytes = u128::from(bw) * u128::from(ms) / 1000;
                u64::try_from(bytes).unwrap_or(u64::MAX).max(LIMIT_MIN_BYTES)
            }),
        }
    }
}

/// Both limits as they were set, and the most that can be dirty at all.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct DirtyLimits {
    /// Where writers are stopped.
    pub dirty: Bound,
    /// Where writeback begins.
    pub background: Bound,
    /// What neither may exceed: the share of memory that may be dirty.
    pub max_bytes: u64,
}

impl DirtyLimits {
    /// The thresholds with a bandwidth of `bytes_per_s`, where known (PO-DT5).
    #[must_use]
    pub fn thresholds(&self, bytes_per_s: Option<u64>) -> Thresholds {
        let wanted = self.dirty.bytes(bytes_per_s);
        let limit = wanted.min(self.max_bytes).max(DIRTY_BYTES_MIN);
        let background = match self.background {
            // What memory takes from one time it takes from the other, else they would meet: with
            // writeback as good as off below the limit, where writers are as good as stopped.
            Bound::Millis(_) if wanted > limit => {
                let bytes = u128::from(self.background.bytes(bytes_per_s));
                let bytes = bytes * u128::from(limit) / u128::from(wanted);
                u64::try_from(bytes).unwrap_or(u64::MAX)
            }
            Bound::Millis(_) | Bound::Bytes(_) => self.background.bytes(bytes_per_s),
        };
        // As the kernel: a background threshold that is no lower is half of the limit.
        let background = if background >= limit { limit / 2 } else { background };
        Thresholds { background, set_limit: limit, limit }
    }
}

/// Dirty bytes at which something happens.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct Thresholds {
    /// Above it writeback runs.
    pub background: u64,
    /// The limit as it was set.
    pub set_limit: u64,
    /// The limit in force, where writers stop: above the other for a while after that has fallen.
    pub limit: u64,
}

impl Thresholds {
    /// Below it no writer waits.
    #[must_use]
    pub fn freerun(&self) -> u64 {
        self.background + (self.set_limit - self.background) / 2
    }

    /// Where dirty bytes settle.
    #[must_use]
    pub fn setpoint(&self) -> u64 {
        let freerun = self.freerun();
        freerun + (self.limit - freerun) / 2
    }

    /// By how much faster (above [`RATIO_ONE`]) or slower than the base rate writers may go
    /// (PO-DT1).
    #[must_use]
    pub fn position_ratio(&self, dirty: u64) -> u64 {
        let one = i128::from(RATIO_ONE);
        let setpoint = self.setpoint();
        let span = i128::from(self.limit - setpoint).max(1);
        let x = ((i128::from(setpoint) - i128::from(dirty)) << X_SHIFT) / span;
        let x = x.clamp(-1 << X_SHIFT, 1 << X_SHIFT);
        let cube = (x * x * x) >> (3 * X_SHIFT - RATIO_SHIFT);
        u64::try_from((one + cube).clamp(0, 2 * one)).expect("from 0 to 2")
    }
}

/// What is kept of one writer: the end of its line of time.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq)]
pub struct Dirtier {
    due_ns: u64,
}

impl Dirtier {
    /// When its last write has had its share of time.
    #[must_use]
    pub fn due_ns(&self) -> u64 {
        self.due_ns
    }
}

/// Whether a write may be taken.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum Admission {
    /// At once.
    Now,
    /// Ask again in so many nanoseconds: the writer owes time.
    After(u64),
    /// Ask again when less is dirty.
    AtLimit,
}

/// Dirty throttling of one cache.
#[derive(Clone, Debug)]
pub struct DirtyThrottle {
    limits: DirtyLimits,
    bandwidth: Bandwidth,
    /// The limits in bytes, computed once per interval.
    at: Thresholds,
    /// The base rate, in bytes per second.
    rate: u64,
    /// What the base rate should have been in the interval before, for the step that agrees with
    /// both.
    balanced: u64,
    interval_ns: u64,
    /// Bytes dirtied in this interval.
    dirtied: u64,
}

impl DirtyThrottle {
    /// Throttling by `limits`.
    #[must_use]
    pub fn new(limits: DirtyLimits) -> DirtyThrottle {
        DirtyThrottle {
            limits,
            bandwidth: Bandwidth::new(),
            at: limits.thresholds(None),
            rate: BANDWIDTH_START,
            balanced: BANDWIDTH_START,
            interval_ns: 0,
            dirtied: 0,
        }
    }

    /// Sets other limits. A lower one is reached slowly (PO-DT2).
    pub fn set_limits(&mut self, limits: DirtyLimits, now_ns: u64) {
        self.limits = limits;
        self.look(now_ns);
    }

    /// Works out the thresholds anew; the limit in force only rises by that.
    fn look(&mut self, now_ns: u64) {
        let set = self.limits.thresholds(self.bandwidth.known(now_ns));
        self.at = Thresholds { limit: set.limit.max(self.at.limit), ..set };
    }

    /// The device's write bandwidth.
    #[must_use]
    pub fn bandwidth(&self) -> &Bandwidth {
        &self.bandwidth
    }

    /// The base rate of each writer, in bytes per second.
    #[must_use]
    pub fn rate(&self) -> u64 {
        self.rate
    }

    /// The thresholds in force (PO-DT2).
    #[must_use]
    pub fn thresholds(&self) -> Thresholds {
        self.at
    }

    /// Writeback is in flight from now on, where there was none.
    pub fn writeback_started(&mut self, now_ns: u64) {
        self.bandwidth.started(now_ns);
    }

    /// `bytes` are written back, and `dirty` (dirty or being written) are left. `more` is
    /// whether writeback is still in flight: otherwise time does not count until it starts again.
    pub fn writeback_done(&mut self, bytes: u64, more: bool, dirty: u64, now_ns: u64) {
        let was_known = self.bandwidth.known(now_ns).is_some();
        self.bandwidth.done(bytes, more, now_ns);
        if let (false, Some(bandwidth)) = (was_known, self.bandwidth.known(now_ns)) {
            self.rate = bandwidth;
            self.balanced = bandwidth;
            self.look(now_ns);
        }
        self.advance(dirty, now_ns);
    }

    /// Whether a write may be taken while `dirty` bytes are dirty or being written. A single write
    /// may go beyond the limit, so that none is too large to go at all.
    pub fn admit(&mut self, dirtier: &mut Dirtier, dirty: u64, now_ns: u64) -> Admission {
        self.advance(dirty, now_ns);
        let at = self.at;
        if dirty < at.freerun() {
            dirtier.due_ns = dirtier.due_ns.min(now_ns); // PO-DT4
            return Admission::Now;
        }
        if dirty >= at.limit {
            return Admission::AtLimit;
        }
        let ahead_ns = dirtier.due_ns.saturating_sub(now_ns);
        let pause_max_ns = self.pause_max_ns(dirty, now_ns);
        if ahead_ns > pause_max_ns {
            Admission::After((ahead_ns - pause_max_ns).min(pause_max_ns))
        } else {
            Admission::Now
        }
    }

    /// `dirtier` has dirtied `bytes`, and `dirty` are dirty or being written with them: for how
    /// many nanoseconds its completion is put off.
    pub fn wrote(&mut self, dirtier: &mut Dirtier, bytes: u64, dirty: u64, now_ns: u64) -> u64 {
        self.dirtied = self.dirtied.saturating_add(bytes);
        self.advance(dirty, now_ns);
        let at = self.at;
        if dirty < at.freerun() {
            dirtier.due_ns = dirtier.due_ns.min(now_ns); // PO-DT4
            return 0;
        }
        let rate = self.rate_at(&at, dirty);
        let cost_ns = u128::from(bytes) * SECOND_NS / u128::from(rate);
        let cost_ns = u64::try_from(cost_ns).unwrap_or(u64::MAX);
        // A writer that was away for longer than the shortest pause has no credit for it.
        let from_ns = dirtier.due_ns.max(now_ns.saturating_sub(PAUSE_MIN_NS));
        dirtier.due_ns = from_ns.saturating_add(cost_ns).min(now_ns.saturating_add(LINE_MAX_NS));
        let pause_ns = dirtier.due_ns.saturating_sub(now_ns);
        if pause_ns < PAUSE_MIN_NS {
            return 0; // Saved up.
        }
        pause_ns.min(self.pause_max_ns(dirty, now_ns)) // PO-DT3
    }

    /// What one writer may dirty a second, at least a byte.
    fn rate_at(&self, at: &Thresholds, dirty: u64) -> u64 {
        let rate = (u128::from(self.rate) * u128::from(at.position_ratio(dirty))) >> RATIO_SHIFT;
        u64::try_from(rate).unwrap_or(u64::MAX).max(1)
    }

    fn pause_max_ns(&self, dirty: u64, now_ns: u64) -> u64 {
        let bandwidth = u128::from(self.bandwidth.bytes_per_s(now_ns));
        let eighth_ns = u128::from(dirty) * SECOND_NS / 8 / bandwidth;
        let eighth_ns = u64::try_from(eighth_ns).unwrap_or(u64::MAX);
        eighth_ns.clamp(PAUSE_MAX_FLOOR_NS, PAUSE_MAX_NS)
    }

    /// Moves limit and base rate on, once an interval.
    fn advance(&mut self, dirty: u64, now_ns: u64) {
        let elapsed_ns = now_ns.saturating_sub(self.interval_ns);
        if elapsed_ns < INTERVAL_NS {
            return;
        }
        self.look(now_ns);
        let floor = self.at.set_limit.max(dirty); // PO-DT2
        for _ in 0..(elapsed_ns / INTERVAL_NS).min(INTERVALS_MAX) {
            self.at.limit -= self.at.limit.saturating_sub(floor).div_ceil(32);
        }
        let dirtied = u128::from(self.dirtied) * SECOND_NS / u128::from(elapsed_ns);
        // A longer time without writes does not count for writers that wait for each other's space.
        if dirty >= self.at.freerun() && elapsed_ns < 2 * INTERVAL_NS {
            self.follow(dirty, u64::try_from(dirtied).unwrap_or(u64::MAX), now_ns);
        }
        self.interval_ns = now_ns;
        self.dirtied = 0;
    }

    /// Moves the base rate towards what would have made the writers dirty as much as the device
    /// writes, having dirtied `dirtied` bytes a second instead (`wb_update_dirty_ratelimit`).
    fn follow(&mut self, dirty: u64, dirtied: u64, now_ns: u64) {
        let at = self.at;
        let bandwidth = self.bandwidth.bytes_per_s(now_ns);
        let task = self.rate_at(&at, dirty);
        let balanced = u128::from(task) * u128::from(bandwidth) / u128::from(dirtied.max(1));
        let balanced = u64::try_from(balanced).unwrap_or(u64::MAX).min(bandwidth);
        // Only a step that goes the way in which the dirty bytes should go, and no further than
        // the smallest of both intervals and the position.
        let step = if dirty < at.setpoint() {
            self.balanced.min(balanced).min(task).saturating_sub(self.rate)
        } else {
            self.rate.saturating_sub(self.balanced.max(balanced).max(task))
        };
        // Small differences count for less the smaller they are: they are mostly noise.
        let shift = self.rate / (2 * step + 1);
        let step = if shift < 64 { (step >> shift).div_ceil(8) } else { 0 };
        self.rate = if dirty < at.setpoint() { self.rate + step } else { self.rate - step };
        // A writer is never slower than one page a second, so that the rate can grow again.
        self.rate = self.rate.max(4096);
        self.balanced = balanced;
    }
}

#[cfg(test)]
#[path = "dirty_tests.rs"]
mod tests;
