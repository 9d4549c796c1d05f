// SPDX-License-Identifier: Apache-2.0 OR MIT
//! Our law: the tail of the reads against a target that the device's own reads set, and bytes of
//! writes in flight, in pieces, so that the device is never far ahead of a read and never idle.
//!
//! ```text
//!   clean reads ─▶ unloaded tail U ─▶ target T = 7/4 U (rotating: 7/2 U) ─▶ slack T - U
//!   windows ─────▶ rate R of the writes while busy
//!   limit = R * slack * gain        gain: feedback of the tail of all reads against T
//!
//!   beside reads: limit bytes in flight, in pieces of limit/2 (rotating: limit/16)
//!   without:      whatever comes, up to what the device writes in a moment
//! ```
//! A clean read is one beside which no write was in flight. When reads come and all of them are
//! beside writes, the law holds writes for a moment to see some (a probe).
//!
//! Invariants
//! - A1 More gain, rate or slack never allows less: a boost does not lower a depth.
//! - A2 At least two pieces may be in flight, except in a probe, so that the device has one ready
//!   when another ends.
//! - A3 A probe lasts at most [`PROBE_MAX_NS`] and at least as long passes until the next. Once the
//!   unloaded tail is known, or [`PROBES_FIRST`] have been tried, it is fifty times as long.
//! - A4 Without reads for [`CLOSE_READ_NS`] background writes may have in flight what the device
//!   writes in [`LONE_FLASH_NS`] or [`LONE_ROTATING_NS`], in pieces of half of it.
//! - A5 The gain stays within [`GAIN_MIN`] and [`GAIN_MAX`].
//! - A6 Requests that nobody waits for leave a quarter of the queue free, but two may be in flight:
//!   who sends one to a full queue stands still until there is room, whatever else there is to do.
use super::{Allowance, Depth, Device, Facts, Origin, Reads, Sample, Signs, Target, Verdict, Who};

/// A window, as the kernel has it.
const WINDOW_NS: u64 = 100_000_000;
/// Reads within this are beside what is written now. Longer than the kernel's 100 ms: a reader of a
/// few blocks a second is somebody, too.
const CLOSE_READ_NS: u64 = 1_000_000_000;

/// Clean reads until the unloaded tail counts as known.
const CLEAN_MIN: u64 = 8;
/// Clean reads of one generation; two are kept. Enough for a 99th percentile.
const GENERATION: u64 = 128;
/// A generation ends after this, too, so that one bad read is forgotten.
const GENERATION_NS: u64 = 60_000_000_000;
/// No disk that rotates has an unloaded tail below this: half a turn of the fastest, 15,000 a
/// minute.
const SEEK_MIN_NS: u64 = 2_000_000;
/// What is added to the unloaded tail at least: a few requests of the fastest devices.
const SLACK_MIN_NS: u64 = 10_000;

/// Slack before anything is known, chosen low: a fast start is not worth slow reads.
const FIRST_SLACK_FLASH_NS: u64 = 500_000;
const FIRST_SLACK_ROTATING_NS: u64 = 15_000_000;
/// Rate before anything is known, bytes a second: a slow device of the kind.
const FIRST_RATE: u64 = 128_000_000;
/// Windows with writes in flight for a smaller part than this say nothing about the rate.
const BUSY_SHARE: u64 = 4;

/// Gain 1.
const GAIN_ONE: u64 = 64;
const GAIN_MIN: u64 = GAIN_ONE / 16;
const GAIN_MAX: u64 = GAIN_ONE * 8;
/// What a window within the target adds to the gain.
const GAIN_STEP: u64 = GAIN_ONE / 8;
/// Reads that a judgement needs, or [`JUDGE_WINDOWS`] windows with a read.
const JUDGE_READS: u64 = 32;
const JUDGE_WINDOWS: u32 = 10;
/// Reads that take so many times the target are slow whatever the writes do ...
const HOPELESS: u64 = 16;
/// ... and then writes may have a part of that time.
const HOPELESS_SHARE: u64 = 8;
/// What was seen longer ago says nothing about now.
const FORGET_NS: u64 = 10_000_000_000;

/// Pieces of the limit at gain 1. Two keep a device busy that works on one at a time. A rotating
/// disk serves what it has queued when it comes by, so a read may wait for several. Less gain
/// makes them smaller, more gain makes more of them: who wants more in flight is a device with
/// long ways, and there the ends of pieces space out the next ones.
const PIECES_FLASH: u64 = 2;
const PIECES_ROTATING: u64 = 16;
/// Smallest piece, and what pieces are multiples of.
const PIECE_MIN_FLASH: u64 = 4 << 10;
/// A disk passes this in a tenth of a millisecond: smaller pieces win nothing.
const PIECE_MIN_ROTATING: u64 = 16 << 10;
const PIECE_UNIT: u64 = 4 << 10;

/// Without reads, as many bytes as are written in this may be in flight: the first read that comes
/// waits for them. A disk sorts what is in flight, so it gets more.
const LONE_FLASH_NS: u64 = 20_000_000;
const LONE_ROTATING_NS: u64 = 100_000_000;
/// ... and never fewer than this: random writes are slow and need many in flight.
const LONE_MIN_BYTES: u64 = 1 << 20;

/// Bounds of a probe.
const PROBE_MIN_NS: u64 = 2_000_000;
const PROBE_MAX_NS: u64 = 100_000_000;
/// A probe is followed by so many times its length without one: once enough is known, before.
const PROBE_REST: u64 = 50;
const PROBE_REST_FIRST: u64 = 1;
/// So many probes are tried before; a reader that fills the device never leaves a clean moment.
const PROBES_FIRST: u64 = 24;
/// Clean reads younger than this need no probe.
const CLEAN_FRESH_NS: u64 = 10_000_000_000;

/// The device's own reads.
#[derive(Clone, Debug, Default)]
struct Unloaded {
    current: Reads,
    older: Reads,
    current_since_ns: u64,
    last_ns: u64,
    /// The 99th percentile of both; nothing while they are few.
    tail_ns: Option<u64>,
}

impl Unloaded {
    fn add(&mut self, reads: &Reads, now_ns: u64) {
        if reads.count() == 0 {
            return;
        }
        self.last_ns = now_ns;
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

/// Holding writes for a moment.
#[derive(Clone, Debug, Default)]
struct Probe {
    /// Length of the one under way.
    holding_ns: Option<u64>,
    not_before_ns: u64,
    count: u64,
}

/// What writes may have in flight until the law learns something: each write asks, and working it
/// out costs a dozen divisions.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq)]
pub(super) struct InForce {
    lone_bytes: u64,
    limit_bytes: u64,
    piece_bytes: u32,
    /// Requests of those that nobody waits for.
    queue_share: u32,
    /// A probe is under way.
    holds: bool,
}

impl InForce {
    #[inline]
    pub(super) fn allowance(&self, who: Who, signs: &Signs) -> Allowance {
        if !signs.read_within(CLOSE_READ_NS) {
            return match who {
                Who::Sync | Who::Discard => Allowance::UNLIMITED,
                Who::Normal | Who::Background => self.alone(),
            };
        }
        match who {
            // Nobody knows how long one takes.
            Who::Discard => Allowance::of_ios(u32::from(!self.holds)),
            Who::Sync | Who::Normal | Who::Background => Allowance {
                // The pieces are the same: one that has waited too long goes all the same.
                ios: match (who, self.holds) {
                    (Who::Sync, _) => u32::MAX,
                    (_, true) => 0,
                    (_, false) => self.queue_share,
                },
                bytes: self.limit_bytes.saturating_mul(share(who)),
                piece_bytes: self.piece_bytes,
            },
        }
    }

    /// A4.
    fn alone(&self) -> Allowance {
        let half = self.lone_bytes / 2 - self.lone_bytes / 2 % PIECE_UNIT;
        Allowance {
            ios: self.queue_share,
            bytes: self.lone_bytes,
            piece_bytes: u32::try_from(half).unwrap_or(u32::MAX),
        }
    }
}

/// How many times the background's limit somebody gets: the kernel's proportions.
fn share(who: Who) -> u64 {
    match who {
        Who::Sync => 4,
        Who::Normal => 2,
        Who::Background | Who::Discard => 1,
    }
}

/// The law of one device.
#[derive(Clone, Debug)]
pub struct Control {
    device: Device,
    in_force: InForce,
    target: Target,
    unloaded: Unloaded,
    probe: Probe,
    /// Bytes a second of the writes while busy.
    rate: Option<u64>,
    gain: u64,
    /// The tail of the last judgement when it was hopeless.
    hopeless_ns: Option<u64>,
    /// Reads that are not judged yet, and the windows they are of.
    seen: Reads,
    seen_windows: u32,
    seen_writes: bool,
    /// Length of the last window with reads, by their number.
    read_gap_ns: u64,
    closed_ns: u64,
    /// End of the last window with reads.
    last_read_ns: Option<u64>,
}

impl Control {
    /// The law for `device`, with the default target.
    pub fn new(device: Device) -> Control {
        Control::aiming_at(Target::Default, device)
    }

    fn aiming_at(target: Target, device: Device) -> Control {
        let mut law = Control {
            device,
            in_force: InForce::default(),
            target,
            unloaded: Unloaded::default(),
            probe: Probe::default(),
            rate: None,
            gain: GAIN_ONE,
            hopeless_ns: None,
            seen: Reads::default(),
            seen_windows: 0,
            seen_writes: false,
            read_gap_ns: WINDOW_NS,
            closed_ns: 0,
            last_read_ns: None,
        };
        law.settle();
        law
    }

    /// Puts in force what is known by now.
    fn settle(&mut self) {
        self.in_force = InForce {
            lone_bytes: self.lone_bytes(),
            limit_bytes: self.limit_bytes(),
            piece_bytes: u32::try_from(self.piece_bytes()).unwrap_or(u32::MAX),
            queue_share: self.queue_share(),
            holds: self.probe.holding_ns.is_some(),
        };
    }

    pub(super) fn target(&self) -> Target {
        self.target
    }

    pub(super) fn set_target(&mut self, target: Target) {
        *self = Control::aiming_at(target, self.device);
    }

    pub(super) fn set_device(&mut self, device: Device) {
        *self = Control::aiming_at(self.target, device);
    }

    pub(super) fn target_ns(&self) -> u64 {
        match self.target {
            Target::Off => 0,
            Target::Ns(ns) => ns,
            Target::Default => match self.unloaded.tail_ns {
                Some(tail_ns) => self.measured_target_ns(tail_ns),
                None => self.device.guessed_target_ns(),
            },
        }
    }

    /// Whether a head has to go to where a read is. A disk that says that it rotates, and answers
    /// nearly all reads sooner than a head is there, does not: virtual disks say what they like.
    fn seeks(&self) -> bool {
        self.device.rotational && self.unloaded.tail_ns.is_none_or(|ns| ns >= SEEK_MIN_NS)
    }

    /// Twice the unloaded tail is a calm neighbour. What a window does not see, and what the
    /// feedback lets pass before it acts, has to fit in as well, hence the rest to 2. A read of a
    /// disk waits for the head to come back whatever is done, so there it is more.
    fn measured_target_ns(&self, tail_ns: u64) -> u64 {
        let part_ns = if self.seeks() { tail_ns / 2 } else { tail_ns / 4 };
        part_ns.saturating_mul(7).max(tail_ns.saturating_add(SLACK_MIN_NS))
    }

    /// For how long the device may be busy with writes when a read comes.
    fn slack_ns(&self) -> u64 {
        let first = if self.seeks() { FIRST_SLACK_ROTATING_NS } else { FIRST_SLACK_FLASH_NS };
        let target_ns = self.target_ns();
        match self.unloaded.tail_ns {
            // A target that can't be met is met as far as it can.
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

    /// What background writes may have in flight beside reads.
    fn limit_bytes(&self) -> u64 {
        let pieces = self.pieces() * self.gain.max(GAIN_ONE) / GAIN_ONE;
        let limit = self.piece_bytes().saturating_mul(pieces);
        let hopeless_ns = self.hopeless_ns.map_or(0, |ns| ns / HOPELESS_SHARE);
        limit.max(self.written_in(hopeless_ns).min(self.lone_bytes()))
    }

    fn lone_bytes(&self) -> u64 {
        let ns = if self.seeks() { LONE_ROTATING_NS } else { LONE_FLASH_NS };
        self.written_in(ns).max(LONE_MIN_BYTES)
    }

    /// Requests that may be in flight of those that nobody waits for (A6).
    fn queue_share(&self) -> u32 {
        let depth = self.device.queue_depth;
        (depth - depth / 4).max(2)
    }

    pub(super) fn in_force(&self) -> InForce {
        self.in_force
    }

    pub(super) fn close_window(&mut self, sample: &Sample) -> Verdict {
        let verdict = self.learn(sample);
        self.settle();
        verdict
    }

    fn learn(&mut self, sample: &Sample) -> Verdict {
        if sample.now_ns.saturating_sub(self.closed_ns) > FORGET_NS {
            self.forget();
        }
        self.closed_ns = sample.now_ns;
        let was_known = self.unloaded.tail_ns.is_some();
        self.unloaded.add(&sample.clean_reads, sample.now_ns);
        if self.unloaded.tail_ns.is_some() && !was_known {
            // What was judged by the guess counts for nothing.
            self.forget();
        }
        if let Some(gap_ns) = sample.window_ns.checked_div(sample.reads.count()) {
            self.read_gap_ns = gap_ns;
            self.last_read_ns = Some(sample.now_ns);
        }
        if self.probe.holding_ns.take().is_some() {
            // Neither the reads nor the writes of a probe are those of a common day.
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
        self.seen = Reads::default();
        self.seen_windows = 0;
        self.seen_writes = false;
    }

    /// The verdict is on what was seen since the gain last moved.
    fn judge(&mut self, sample: &Sample) -> Verdict {
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
            // The device may do more with more in flight. A head can't.
            self.gain = (self.gain + GAIN_STEP).min(GAIN_MAX);
        }
    }

    /// Upwards at once: what was written can be written. Downwards slowly, and only when it is not
    /// this law that kept it low. A disk's cache takes far more than the medium for a moment, but
    /// few writes in flight are enough for its rate, so there it is the mean.
    fn learn_rate(&mut self, sample: &Sample, verdict: Verdict) {
        if sample.write_bytes == 0 || sample.write_busy_ns < sample.window_ns / BUSY_SHARE {
            return;
        }
        let bytes = u128::from(sample.write_bytes) * 1_000_000_000;
        let rate = u64::try_from(bytes / u128::from(sample.write_busy_ns.max(1)));
        let (rate, known) = (rate.unwrap_or(u64::MAX), self.rate.unwrap_or(0));
        if self.seeks() && self.rate.is_some() {
            self.rate = Some(known - known / 8 + rate / 8);
        } else if rate > known {
            self.rate = Some(rate);
        } else if !sample.held || (verdict == Verdict::Exceeded && self.hopeless_ns.is_none()) {
            self.rate = Some(known - (known - rate) / 16);
        }
    }

    fn plan_probe(&mut self, sample: &Sample) {
        let now_ns = sample.now_ns;
        let is_known = self.unloaded.tail_ns.is_some();
        let is_fresh = is_known && now_ns.saturating_sub(self.unloaded.last_ns) < CLEAN_FRESH_NS;
        let reads =
            self.last_read_ns.is_some_and(|then| now_ns.saturating_sub(then) < CLOSE_READ_NS);
        let writes = sample.in_flight > 0 || sample.held;
        if !self.is_on() || is_fresh || !reads || !writes || now_ns < self.probe.not_before_ns {
            return;
        }
        // What is in flight ends, and then there is time for two reads.
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

    /// Until the unloaded tail is known, windows are short: what is done until then is a guess.
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

    /// Halvings of the limit.
    pub(super) fn step(&self) -> i32 {
        GAIN_ONE.ilog2().cast_signed() - self.gain.ilog2().cast_signed()
    }

    /// In pieces, beside reads.
    pub(super) fn depth(&self) -> Depth {
        let pieces = |who| {
            let pieces = self.limit_bytes() / self.piece_bytes() * share(who);
            u32::try_from(pieces).unwrap_or(u32::MAX)
        };
        Depth {
            max: pieces(Who::Sync),
            normal: pieces(Who::Normal),
            background: pieces(Who::Background),
        }
    }

    pub(super) fn facts(&self) -> Facts {
        let origin = match self.target {
            Target::Off | Target::Ns(_) => Origin::Set,
            Target::Default if self.unloaded.tail_ns.is_some() => Origin::Measured,
            Target::Default => Origin::Guessed,
        };
        let is_on = self.is_on();
        Facts {
            origin,
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
