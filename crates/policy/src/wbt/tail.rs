// SPDX-License-Identifier: Apache-2.0 OR MIT
//! Our throttling algorithm. It compares the 99th percentile of reads with a target that it derives
//! from the device's own unloaded reads, and limits the bytes of writes in flight.
//!
//! ```text
//!   clean reads ─▶ unloaded tail U ─▶ target T = 7/4 U (rotating: 7/2 U) ─▶ slack T - U
//!   windows ─────▶ rate R of the writes while busy, and Q of their requests
//!   limit = R * slack * gain        gain: feedback of the tail of all reads against T
//!
//!   with recent reads: `limit` bytes in flight, in pieces of limit/2 (rotating: limit/16), and
//!                      at most 2 * Q * slack * gain requests
//!   without:           as much as the device writes in 20 ms (rotating: 100 ms)
//! ```
//! A clean read is one during which no write was in flight. If reads arrive but none is clean, the
//! algorithm pauses writes briefly to measure some (a probe), after a window with a read.
//!
//! Example: unloaded tail U = 100 us, so T = 175 us and the slack is 75 us. At R = 500 MB/s and
//! gain 1 the limit is 37 KB; rounded down to pieces of 4 KiB: two pieces of 16 KiB.
//!
//! The number of requests matters after a change from large to small ones: 37 KB of 4 KiB each
//! would be nine, which this device may never have served as fast. While their length stays the
//! same the bytes are the lower limit.
//!
//! Invariants
//! - PO-A1 More gain, rate or slack never lowers a limit: a boost does not lower a depth.
//! - PO-A2 At least two pieces may be in flight, except in a probe, so that the device has one
//!   ready when another ends.
//! - PO-A3 A probe lasts at most [`PROBE_MAX_NS`], and the pause until the next one is at least as
//!   long; fifty times as long once the unloaded tail is known or [`PROBES_FIRST`] probes were
//!   made.
//! - PO-A4 Without a read for [`CLOSE_READ_NS`], background writes may have in flight what the
//!   device writes in [`LONE_FLASH_NS`] or [`LONE_ROTATING_NS`], in pieces of half of that.
//! - PO-A5 The gain stays between [`GAIN_MIN`] and [`GAIN_MAX`].
//! - PO-A6 Normal and background requests leave a quarter of the queue free (but two may always be
//!   in flight), because a submitter that meets a full device queue blocks its whole core.
use super::{
    ControlStats, Depth, DeviceTraits, Inputs, LatencyHistogram, LatencyTarget, Quota,
    TargetSource, ThrottleClass, Verdict, WindowSample,
};

/// Length of a window, as in the kernel.
const WINDOW_NS: u64 = 100_000_000;
/// A read within this time counts as recent. Longer than the kernel's 100 ms, so that a reader of a
/// few blocks per second is protected, too.
const CLOSE_READ_NS: u64 = 1_000_000_000;

/// Clean reads needed before the unloaded tail counts as known.
const CLEAN_MIN: u64 = 8;
/// Clean reads per generation; two generations are kept. Enough for a 99th percentile.
const GENERATION: u64 = 128;
/// A generation also ends after this time, so that a single slow read is dropped.
const GENERATION_NS: u64 = 60_000_000_000;
/// The unloaded tail of a rotating disk is never below this: half a turn at 15,000 rpm.
pub const SEEK_MIN_NS: u64 = 2_000_000;
/// Least slack above the unloaded tail: a few requests of the fastest devices.
const SLACK_MIN_NS: u64 = 10_000;

/// Slack before the first measurement, chosen low: a fast start is not worth slow reads.
const FIRST_SLACK_FLASH_NS: u64 = 500_000;
const FIRST_SLACK_ROTATING_NS: u64 = 15_000_000;
/// So many times the requests that it has served in that time a device may have in flight: more
/// than it has shown, or it could never show more.
const REQUESTS_AHEAD: u64 = 2;
/// Assumed write rate before the first measurement, bytes per second: a slow device.
const FIRST_RATE: u64 = 128_000_000;
/// A window updates the rate only if writes were in flight for 1/`BUSY_SHARE` of it.
const BUSY_SHARE: u64 = 4;

/// Gain 1.
const GAIN_ONE: u64 = 64;
const GAIN_MIN: u64 = GAIN_ONE / 16;
const GAIN_MAX: u64 = GAIN_ONE * 8;
/// Increase of the gain after a window within the target.
const GAIN_STEP: u64 = GAIN_ONE / 8;
/// A judgement needs this many reads, or [`JUDGE_WINDOWS`] windows with a read.
const JUDGE_READS: u64 = 32;
const JUDGE_WINDOWS: u32 = 10;
/// If reads take this many times the target, throttling writes does not help them ...
const HOPELESS: u64 = 16;
/// ... so writes may use this fraction of that time.
const HOPELESS_SHARE: u64 = 8;
/// Measurements older than this are dropped.
const FORGET_NS: u64 = 10_000_000_000;

/// Number of pieces into which the limit is divided at gain 1. Two keep a device busy that serves
/// one request at a time. A rotating disk serves queued requests as the head passes, so a read may
/// wait for several. Less gain makes pieces smaller; more gain allows more of them: devices with
/// high latency need more requests in flight, and completions pace the next ones.
const PIECES_FLASH: u64 = 2;
const PIECES_ROTATING: u64 = 16;
/// Smallest piece. Pieces are multiples of [`PIECE_UNIT`].
const PIECE_MIN_FLASH: u64 = 4 << 10;
/// A disk writes this much in 0.1 ms: smaller pieces gain nothing.
const PIECE_MIN_ROTATING: u64 = 16 << 10;
const PIECE_UNIT: u64 = 4 << 10;

/// Without recent reads, bytes that the device writes in this time may be in flight: the first read
/// waits that long. A rotating disk sorts its queue, so it gets more.
const LONE_FLASH_NS: u64 = 20_000_000;
const LONE_ROTATING_NS: u64 = 100_000_000;
/// Lower bound of that: random writes are slow and need many requests in flight.
const LONE_MIN_BYTES: u64 = 1 << 20;

/// Bounds of a probe.
const PROBE_MIN_NS: u64 = 2_000_000;
const PROBE_MAX_NS: u64 = 100_000_000;
/// Pause after a probe, in multiples of its length: once the tail is known, and before.
const PROBE_REST: u64 = 50;
const PROBE_REST_FIRST: u64 = 1;
/// Probes made with the short pause. A reader that keeps the device full yields no clean reads.
const PROBES_FIRST: u64 = 24;
/// Clean reads younger than this need no probe.
const CLEAN_FRESH_NS: u64 = 10_000_000_000;

/// Latencies of clean reads.
#[derive(Clone, Debug, Default)]
struct Unloaded {
    current: LatencyHistogram,
    older: LatencyHistogram,
    current_since_ns: u64,
    last_ns: u64,
    /// The 99th percentile of both; `None` while there are too few.
    tail_ns: Option<u64>,
}

impl Unloaded {
    fn add(&mut self, reads: &LatencyHistogram, now_ns: u64) {
        if reads.count() == 0 {
            return;
        }
        self.last_ns = now_ns;
        if reads.count() >= 2 * GENERATION {
            // Two generations by themselves, of a device at rest.
            (self.older, self.current) = Default::default();
            self.current_since_ns = now_ns;
        }
        let age_ns = now_ns.saturating_sub(self.current_since_ns);
        let is_full = self.current.count() >= GENERATION || age_ns > GENERATION_NS;
        if is_full && self.current.count() >= CLEAN_MIN {
            self.older = std::mem::take(&mut self.current);
            self.current_since_ns = now_ns;
        }
        self.current.merge(reads);
        let mut all = self.older.clone();
        all.merge(&self.current);
        self.tail_ns = all.percentile_ns(990).filter(|_| all.count() >= CLEAN_MIN);
    }
}

/// A pause of writes to measure clean reads.
#[derive(Clone, Debug, Default)]
struct Probe {
    /// Length of the current probe.
    holding_ns: Option<u64>,
    not_before_ns: u64,
    count: u64,
}

/// The limits until the next update. Cached because each write reads them and computing them takes
/// a dozen divisions.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq)]
pub(super) struct TailLimits {
    lone_bytes: u64,
    limit_bytes: u64,
    /// The same in requests.
    limit_ios: u32,
    piece_bytes: u32,
    /// Limit of normal and background requests (PO-A6).
    queue_share: u32,
    /// A probe is running.
    is_probing: bool,
}

impl TailLimits {
    #[inline]
    pub(super) fn quota(&self, class: ThrottleClass, inputs: &Inputs) -> Quota {
        if !inputs.read_within(CLOSE_READ_NS) {
            return match class {
                ThrottleClass::Sync | ThrottleClass::Discard => Quota::UNLIMITED,
                ThrottleClass::Normal | ThrottleClass::Background => self.alone(),
            };
        }
        match class {
            // How long a discard takes is unknown: one at a time.
            ThrottleClass::Discard => Quota::of_ios(u32::from(!self.is_probing)),
            ThrottleClass::Sync | ThrottleClass::Normal | ThrottleClass::Background => Quota {
                // The piece size stays: an overdue piece starts even during a probe.
                ios: match (class, self.is_probing) {
                    (ThrottleClass::Sync, _) => u32::MAX,
                    (_, true) => 0,
                    (_, false) => self.queue_share.min(self.limit_ios.saturating_mul(share(class))),
                },
                bytes: self.limit_bytes.saturating_mul(u64::from(share(class))),
                piece_bytes: self.piece_bytes,
            },
        }
    }

    /// PO-A4.
    fn alone(&self) -> Quota {
        let half = self.lone_bytes / 2 - self.lone_bytes / 2 % PIECE_UNIT;
        Quota {
            ios: self.queue_share,
            bytes: self.lone_bytes,
            piece_bytes: u32::try_from(half).unwrap_or(u32::MAX),
        }
    }
}

/// Multiple of the background limit that a class gets: the kernel's proportions.
fn share(class: ThrottleClass) -> u32 {
    match class {
        ThrottleClass::Sync => 4,
        ThrottleClass::Normal => 2,
        ThrottleClass::Background | ThrottleClass::Discard => 1,
    }
}

/// The throttle control of one device.
#[derive(Clone, Debug)]
pub struct Control {
    device: DeviceTraits,
    limits: TailLimits,
    target: LatencyTarget,
    unloaded: Unloaded,
    probe: Probe,
    /// Bytes per second written while writes are in flight.
    rate: Option<u64>,
    /// Requests per second in the same time.
    request_rate: Option<u64>,
    gain: u64,
    /// The tail of the last judgement when it was hopeless.
    hopeless_ns: Option<u64>,
    /// Reads since the last judgement, and the number of their windows.
    seen: LatencyHistogram,
    seen_windows: u32,
    seen_writes: bool,
    /// Mean interval between reads in the last window with reads.
    read_gap_ns: u64,
    closed_ns: u64,
}

impl Control {
    /// A control for `device`, with the default target.
    pub fn new(device: DeviceTraits) -> Control {
        Control::with_target(LatencyTarget::Default, device)
    }

    fn with_target(target: LatencyTarget, device: DeviceTraits) -> Control {
        let mut control = Control {
            device,
            limits: TailLimits::default(),
            target,
            unloaded: Unloaded::default(),
            probe: Probe::default(),
            rate: None,
            request_rate: None,
            gain: GAIN_ONE,
            hopeless_ns: None,
            seen: LatencyHistogram::default(),
            seen_windows: 0,
            seen_writes: false,
            read_gap_ns: WINDOW_NS,
            closed_ns: 0,
        };
        control.recompute();
        control
    }

    /// Computes the limits from the current measurements.
    fn recompute(&mut self) {
        self.limits = TailLimits {
            lone_bytes: self.lone_bytes(),
            limit_bytes: self.limit_bytes(),
            limit_ios: self.limit_ios(),
            piece_bytes: u32::try_from(self.piece_bytes()).unwrap_or(u32::MAX),
            queue_share: self.queue_share(),
            is_probing: self.probe.holding_ns.is_some(),
        };
    }

    pub(super) fn target(&self) -> LatencyTarget {
        self.target
    }

    pub(super) fn set_target(&mut self, target: LatencyTarget) {
        *self = Control::with_target(target, self.device);
    }

    pub(super) fn set_device(&mut self, device: DeviceTraits) {
        *self = Control::with_target(self.target, device);
    }

    pub(super) fn target_ns(&self) -> u64 {
        match self.target {
            LatencyTarget::Off => 0,
            LatencyTarget::Ns(ns) => ns,
            LatencyTarget::Default => match self.unloaded.tail_ns {
                Some(tail_ns) => self.measured_target_ns(tail_ns),
                None => self.device.guessed_target_ns(),
            },
        }
    }

    /// Whether the device has to seek. Virtual disks may report `rotational` wrongly: a device
    /// whose reads are faster than half a turn does not seek.
    fn seeks(&self) -> bool {
        self.device.rotational && self.unloaded.tail_ns.is_none_or(|ns| ns >= SEEK_MIN_NS)
    }

    /// Reads should stay below twice the unloaded tail. The factor is 7/4: the rest is room for
    /// what a window does not show and for the delay of the feedback. On a rotating disk a read
    /// waits for the head in any case, so there the factor is 7/2.
    fn measured_target_ns(&self, tail_ns: u64) -> u64 {
        let part_ns = if self.seeks() { tail_ns / 2 } else { tail_ns / 4 };
        part_ns.saturating_mul(7).max(tail_ns.saturating_add(SLACK_MIN_NS))
    }

    /// How long the device may be busy with writes when a read arrives.
    fn slack_ns(&self) -> u64 {
        let first = if self.seeks() { FIRST_SLACK_ROTATING_NS } else { FIRST_SLACK_FLASH_NS };
        let target_ns = self.target_ns();
        match self.unloaded.tail_ns {
            // Two requests at a time would show a low rate, and the limit follows the rate.
            Some(_) if self.rate.is_none() && !self.seeks() => first,
            // If the target can't be met, come as near as possible.
            Some(tail_ns) => target_ns.saturating_sub(tail_ns).max(target_ns / 8),
            None => first.min(target_ns / 2),
        }
        .max(SLACK_MIN_NS)
    }

    fn written_in(&self, ns: u64) -> u64 {
        let rate = self.rate.unwrap_or(FIRST_RATE);
        let bytes = u128::from(rate) * u128::from(ns) / 1_000_000_000;
        u64::try_from(bytes).unwrap_or(u64::MAX)
    }

    fn pieces(&self) -> u64 {
        if self.seeks() { PIECES_ROTATING } else { PIECES_FLASH }
    }

    fn piece_bytes(&self) -> u64 {
        let least = if self.seeks() { PIECE_MIN_ROTATING } else { PIECE_MIN_FLASH };
        let gained = self.slack_ns().saturating_mul(self.gain.min(GAIN_ONE)) / GAIN_ONE;
        let piece = self.written_in(gained) / self.pieces();
        let piece = piece.clamp(least, u64::from(u32::MAX));
        piece - piece % PIECE_UNIT
    }

    /// Bytes that background writes may have in flight while there are reads.
    fn limit_bytes(&self) -> u64 {
        let pieces = self.pieces() * self.gain.max(GAIN_ONE) / GAIN_ONE;
        let limit = self.piece_bytes().saturating_mul(pieces);
        let hopeless_ns = self.hopeless_ns.map_or(0, |ns| ns / HOPELESS_SHARE);
        limit.max(self.written_in(hopeless_ns).min(self.lone_bytes()))
    }

    /// Requests that background writes may have in flight while there are reads: all the pieces of
    /// [`Control::limit_bytes`], and more only as far as the device has served so many.
    fn limit_ios(&self) -> u32 {
        let Some(rate) = self.request_rate else { return u32::MAX };
        let slack_ns = u128::from(self.slack_ns()) * u128::from(self.gain) / u128::from(GAIN_ONE);
        let served = u128::from(rate) * slack_ns / 1_000_000_000;
        let ios = (served * u128::from(REQUESTS_AHEAD)).max(u128::from(self.limit_pieces()));
        u32::try_from(ios).unwrap_or(u32::MAX)
    }

    fn limit_pieces(&self) -> u64 {
        self.limit_bytes() / self.piece_bytes()
    }

    fn lone_bytes(&self) -> u64 {
        let ns = if self.seeks() { LONE_ROTATING_NS } else { LONE_FLASH_NS };
        self.written_in(ns).max(LONE_MIN_BYTES)
    }

    /// Limit of normal and background requests in flight (PO-A6).
    fn queue_share(&self) -> u32 {
        let depth = self.device.queue_depth;
        (depth - depth / 4).max(2)
    }

    pub(super) fn limits(&self) -> TailLimits {
        self.limits
    }

    pub(super) fn learn_at_rest(&mut self, clean_reads: &LatencyHistogram, now_ns: u64) {
        self.learn_clean(clean_reads, now_ns);
        self.recompute();
    }

    fn learn_clean(&mut self, clean_reads: &LatencyHistogram, now_ns: u64) {
        let was_known = self.unloaded.tail_ns.is_some();
        self.unloaded.add(clean_reads, now_ns);
        if self.unloaded.tail_ns.is_some() && !was_known {
            // Judgements against the guessed target do not count.
            self.forget();
        }
    }

    pub(super) fn close_window(&mut self, sample: &WindowSample) -> Verdict {
        let verdict = self.learn(sample);
        self.recompute();
        verdict
    }

    fn learn(&mut self, sample: &WindowSample) -> Verdict {
        if sample.now_ns.saturating_sub(self.closed_ns) > FORGET_NS {
            self.forget();
        }
        self.closed_ns = sample.now_ns;
        self.learn_clean(&sample.clean_reads, sample.now_ns);
        if let Some(gap_ns) = sample.window_ns.checked_div(sample.reads.count()) {
            self.read_gap_ns = gap_ns;
        }
        if self.probe.holding_ns.take().is_some() {
            // Reads and writes during a probe are not representative.
            return Verdict::Unknown;
        }
        let verdict = self.judge(sample);
        self.learn_rate(sample, verdict);
        self.plan_probe(sample);
        verdict
    }

    fn forget(&mut self) {
        self.gain = GAIN_ONE;
        self.hopeless_ns = None;
        self.start_judging();
    }

    fn start_judging(&mut self) {
        self.seen = LatencyHistogram::default();
        self.seen_windows = 0;
        self.seen_writes = false;
    }

    /// Judges all reads since the gain last changed.
    fn judge(&mut self, sample: &WindowSample) -> Verdict {
        let target_ns = self.target_ns();
        let outstanding_ns = sample.read_outstanding_ns.unwrap_or(0);
        let is_stuck = outstanding_ns > target_ns
            && (outstanding_ns > self.window_ns() || sample.reads.count() == 0);
        if sample.reads.count() > 0 {
            self.seen.merge(&sample.reads);
            self.seen_windows += 1;
        }
        self.seen_writes |= sample.writes > 0 || sample.in_flight > 0;
        let Some(tail_ns) = self.seen.percentile_ns(990).max(is_stuck.then_some(outstanding_ns))
        else {
            let writing = self.seen_writes || sample.dirty_waited;
            return if writing { Verdict::UnknownWrites } else { Verdict::Unknown };
        };
        let is_enough = self.seen.count() >= JUDGE_READS || self.seen_windows >= JUDGE_WINDOWS;
        if is_stuck || is_enough {
            if self.seen_writes {
                self.adjust(tail_ns, sample.held);
            }
            self.start_judging();
        }
        if tail_ns > target_ns { Verdict::Exceeded } else { Verdict::Ok }
    }

    fn adjust(&mut self, tail_ns: u64, held: bool) {
        let (target_ns, slack_ns) = (self.target_ns(), self.slack_ns());
        let unloaded_ns = target_ns.saturating_sub(slack_ns);
        self.hopeless_ns = Some(tail_ns).filter(|ns| ns / HOPELESS > target_ns);
        if tail_ns > target_ns {
            let over_ns = tail_ns - unloaded_ns;
            let fair = self.gain.saturating_mul(slack_ns) / over_ns.max(1);
            self.gain = fair.clamp(self.gain / 2, self.gain * 7 / 8).max(GAIN_MIN);
        } else if held && self.gain < GAIN_ONE {
            self.gain = (self.gain + GAIN_STEP).min(GAIN_ONE);
        } else if held && !self.seeks() && tail_ns < unloaded_ns + slack_ns / 2 {
            // More requests in flight may raise the rate of flash, not that of a rotating disk.
            self.gain = (self.gain + GAIN_STEP).min(GAIN_MAX);
        }
    }

    /// Raises the rate at once: what was reached can be reached. Lowers it slowly, and only if this
    /// throttle did not cause the low rate. A rotating disk's cache briefly accepts far more than
    /// the medium, so there the rate is an average.
    fn learn_rate(&mut self, sample: &WindowSample, verdict: Verdict) {
        if sample.write_bytes == 0 || sample.write_busy_ns < sample.window_ns / BUSY_SHARE {
            return;
        }
        let is_average = self.seeks();
        let lowers = !sample.held || (verdict == Verdict::Exceeded && self.hopeless_ns.is_none());
        let learned = |known: Option<u64>, count: u64| {
            let rate = u128::from(count) * 1_000_000_000 / u128::from(sample.write_busy_ns.max(1));
            let (rate, known_rate) = (u64::try_from(rate).unwrap_or(u64::MAX), known.unwrap_or(0));
            match known {
                Some(_) if is_average => Some(known_rate - known_rate / 8 + rate / 8),
                _ if rate > known_rate => Some(rate),
                _ if lowers => Some(known_rate - (known_rate - rate) / 16),
                _ => known,
            }
        };
        self.rate = learned(self.rate, sample.write_bytes);
        self.request_rate = learned(self.request_rate, u64::from(sample.writes));
    }

    fn plan_probe(&mut self, sample: &WindowSample) {
        let now_ns = sample.now_ns;
        let is_known = self.unloaded.tail_ns.is_some();
        let is_fresh = is_known && now_ns.saturating_sub(self.unloaded.last_ns) < CLEAN_FRESH_NS;
        // A probe that no read comes in shows nothing, and costs all of its time.
        let reads = sample.reads.count() > 0 || sample.read_outstanding_ns.is_some();
        let writes = sample.in_flight > 0 || sample.held;
        if !self.is_on() || is_fresh || !reads || !writes || now_ns < self.probe.not_before_ns {
            return;
        }
        // Time for what is in flight to end, and then for two reads.
        let length_ns = self.slack_ns().saturating_add(self.read_gap_ns.saturating_mul(2));
        let length_ns = length_ns.clamp(PROBE_MIN_NS, PROBE_MAX_NS.min(WINDOW_NS));
        let is_first = !is_known && self.probe.count < PROBES_FIRST;
        let rest = if is_first { PROBE_REST_FIRST } else { PROBE_REST };
        self.probe.holding_ns = Some(length_ns);
        self.probe.not_before_ns = now_ns + (rest + 1) * length_ns;
        self.probe.count += 1;
    }

    fn is_on(&self) -> bool {
        self.target_ns() > 0
    }

    /// Until the unloaded tail is known, windows are short, because the limits are guesses.
    pub(super) fn window_ns(&self) -> u64 {
        match (self.probe.holding_ns, self.unloaded.tail_ns) {
            (Some(length_ns), _) => length_ns,
            (None, Some(_)) => WINDOW_NS,
            (None, None) => self.read_gap_ns.saturating_mul(2).clamp(PROBE_MIN_NS, WINDOW_NS),
        }
    }

    pub(super) fn wants_timer(&self) -> bool {
        self.probe.holding_ns.is_some()
    }

    /// How often the limit was halved.
    pub(super) fn step(&self) -> i32 {
        GAIN_ONE.ilog2().cast_signed() - self.gain.ilog2().cast_signed()
    }

    /// In pieces, while there are reads.
    pub(super) fn depth(&self) -> Depth {
        let pieces = |class| {
            let pieces = self.limit_pieces() * u64::from(share(class));
            u32::try_from(pieces).unwrap_or(u32::MAX)
        };
        Depth {
            max: pieces(ThrottleClass::Sync),
            normal: pieces(ThrottleClass::Normal),
            background: pieces(ThrottleClass::Background),
        }
    }

    pub(super) fn stats(&self) -> ControlStats {
        let target_source = match self.target {
            LatencyTarget::Off | LatencyTarget::Ns(_) => TargetSource::Set,
            LatencyTarget::Default if self.unloaded.tail_ns.is_some() => TargetSource::Measured,
            LatencyTarget::Default => TargetSource::Guessed,
        };
        let is_on = self.is_on();
        ControlStats {
            target_source,
            limit_bytes: if is_on { self.limit_bytes() } else { u64::MAX },
            piece_bytes: if is_on {
                u32::try_from(self.piece_bytes()).unwrap_or(u32::MAX)
            } else {
                u32::MAX
            },
            clean_read_ns: self.unloaded.tail_ns,
            probes: self.probe.count,
        }
    }
}

#[cfg(test)]
#[path = "tail_tests.rs"]
mod tests;
