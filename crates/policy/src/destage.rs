// SPDX-License-Identifier: Apache-2.0 OR MIT
//! The costs of requests to an origin, learnt from those that have ended: what a command costs, and
//! what its bytes, reads and writes apart; and on a disk that seeks what it costs to skip a gap.
//!
//! ```text
//!   sweep over dirty runs:   time = a * commands + b * bytes that pass under the head
//!                            runs ██  ██████ ██   ██     gaps pass as well, whether written or not
//!
//!   gap of g bytes filled:   saves a; costs g/R_read, and the runs beside it are read with it
//!   its contents are known:  saves a; costs g * c: it passes anyway, but has to be copied
//!
//!   without a head:          a skipped gap costs nothing, a written one its bytes as well
//! ```
//! `c` is zero where the contents are copied while the disk passes the gap. On a fast origin it is
//! the time of streams with copies beyond that of streams without.
//!
//! On a disk that says that it rotates `b` is 1/R_write, learnt from streams; `a` is the time of a
//! sweep beyond that. So streams and sweeps are compared per byte passed: a device without seeks
//! takes longer for a byte of a stream than for a byte that a sweep passes, and `a` is zero. Such
//! a device, and one that does not say that it rotates, has the costs of [`RequestCosts`].
//!
//! Which gaps are worth being filled at these costs is decided in `gap_plan`.
//!
//! Invariants
//! - PO-D1 No costs are known before commands were measured ([`SAMPLES_FIRST`] samples).
//! - PO-D3 One sample, however long the device stalled, at most doubles the estimated time of a
//!   command, or of a byte.
//! - PO-D4 Cached gaps are filled on a disk that rotates only while streams, including copies, pass
//!   a byte in less time than the measured sweeps.
use crate::request_costs::{RequestCost, RequestCosts};

const MIB: u64 = 1 << 20;

/// Assumed rates before the first measurement: a disk of 7200 rpm. Chosen high: a wrong guess costs
/// one stretch and is then corrected; a low guess would never be corrected.
const RATE_FIRST: u64 = 150_000_000;
/// Samples of commands before they count as known. Of the first ones the lowest is used, so that a
/// stall at the begin does not count.
const SAMPLES_FIRST: u32 = 2;
/// A sample moves the average by a quarter.
const WEIGHT: u64 = 4;
/// A sample with fewer commands or bytes is ignored.
const COMMANDS_MIN: u64 = 128;
const BYTES_MIN: u64 = 4 * MIB;
/// A shorter sample of commands is ignored, too: its final flush would dominate. Chosen so that the
/// first batch on a seeking disk is long enough.
pub const SAMPLE_NS_MIN: u64 = 50_000_000;
/// With at least this many bytes per command a batch is a sample of the rate, not of commands.
const STREAMED_BYTES: u64 = 512 << 10;
/// At most this much of a gap counts as passed: beyond that the arm moves. Chosen.
const PASSED_BYTES_MAX: u64 = 256 << 10;
/// Sweeps and streams of one device, measured at different times, differ by 1/5 by chance. Chosen.
const CHANCE_PART: u64 = 5;
/// A disk whose sweeps take less than this a command moves no head, if streams pass no more in that
/// time. Chosen: rotating disks take 200 to 500 us (`docs/hdd-model.md`), virtual ones 10 to 20 us.
const HEAD_NS_MIN: u64 = 100_000;
/// A stream with at least 1/4 of its bytes copied into gaps is a sample of copies, else of the
/// rate.
const COPIED_PART: u64 = 4;
/// Cost of changing from writing to reading and back, once per stretch: two seeks and two half
/// turns (disk models: 11 to 16 ms).
const TURNAROUND_NS: u64 = 16_000_000;
/// Reads of a stretch must save this much on a disk with a head: the turnaround, and the wait for
/// all earlier writes. Chosen on the models: with less, 10 % of a span take longer than without
/// reads.
const WORTH_NS: u64 = 48_000_000;
/// The same without a head: the queue runs empty twice. Chosen: two requests to a volume of a
/// cloud.
const WORTH_NS_FLAT: u64 = 2_000_000;
/// Each sample of commands moves the average rate by 1/128 towards [`RATE_FIRST`], and that of
/// copies towards zero, so that a bad value is measured again later.
const RELAX: u64 = 128;

/// The costs of requests to an origin.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct Costs {
    /// Of writes: one more command, without the time in which its bytes and the gap pass.
    pub write: RequestCost,
    /// Of reads.
    pub read: RequestCost,
    /// Skipping a MiB between two writes: as long as a head needs to pass it.
    pub skip_ns_per_mib: u64,
    /// Copying a MiB for cached gaps, as far as writes wait for it.
    pub copy_ns_per_mib: u64,
    /// The reads of a stretch must save so much in all.
    pub reads_worth_ns: u64,
}

impl Costs {
    /// Of a disk with a head, which passes gaps whether they are written or not.
    #[must_use]
    pub const fn with_head(command_ns: u64, read_ns_per_mib: u64, write_ns_per_mib: u64) -> Costs {
        let side_by_side = false;
        Costs {
            write: RequestCost { command_ns, ns_per_mib: write_ns_per_mib, side_by_side },
            read: RequestCost { command_ns, ns_per_mib: read_ns_per_mib, side_by_side },
            skip_ns_per_mib: write_ns_per_mib,
            copy_ns_per_mib: 0,
            reads_worth_ns: WORTH_NS,
        }
    }

    /// Of a disk without one.
    #[must_use]
    pub const fn without_head(read: RequestCost, write: RequestCost) -> Costs {
        let (skip_ns_per_mib, copy_ns_per_mib, reads_worth_ns) = (0, 0, WORTH_NS_FLAT);
        Costs { write, read, skip_ns_per_mib, copy_ns_per_mib, reads_worth_ns }
    }

    /// The rate of reading in order.
    #[must_use]
    pub fn read_bytes_per_s(&self) -> u64 {
        MIB * 1_000_000_000 / self.read.ns_per_mib.max(1)
    }

    /// The rate of writing in order.
    #[must_use]
    pub fn write_bytes_per_s(&self) -> u64 {
        MIB * 1_000_000_000 / self.write.ns_per_mib.max(1)
    }
}

/// Time of a MiB at so many bytes a second.
#[must_use]
pub fn ns_per_mib(bytes_per_s: u64) -> u64 {
    MIB * 1_000_000_000 / bytes_per_s.max(1)
}

pub(crate) fn time_ns(bytes: u64, ns_per_mib: u64) -> u64 {
    // Of usual numbers without a division of 128 bits.
    if let Some(product) = bytes.checked_mul(ns_per_mib) {
        return product / MIB;
    }
    let ns = u128::from(bytes) * u128::from(ns_per_mib) / u128::from(MIB);
    u64::try_from(ns).unwrap_or(u64::MAX)
}

/// The writes between two flushes of the origin.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq)]
pub struct Batch {
    /// Writes that do not begin where the one before ended.
    pub commands: u64,
    /// Bytes written, and gaps passed.
    pub passed_bytes: u64,
    /// Of these, what was copied from the cache into gaps.
    pub copied_bytes: u64,
}

impl Batch {
    /// Adds a write of `bytes`, of them `copied` into gaps, that begins `gap` bytes after the end
    /// of the one before; `None` for the first, and for one that lies below.
    pub fn add(&mut self, bytes: u64, copied: u64, gap: Option<u64>) {
        self.copied_bytes += copied;
        self.commands += u64::from(gap != Some(0));
        self.passed_bytes += bytes + gap.unwrap_or(0).min(PASSED_BYTES_MAX);
    }

    fn is_streamed(&self) -> bool {
        self.passed_bytes / self.commands.max(1) >= STREAMED_BYTES
    }
}

/// The average time of a command of a sweep, and the bytes that pass with it.
#[derive(Clone, Copy, Debug)]
struct SweepCost {
    ns: u64,
    bytes: u64,
}

impl SweepCost {
    fn of(batch: Batch, elapsed_ns: u64) -> SweepCost {
        let commands = batch.commands.max(1);
        SweepCost { ns: elapsed_ns / commands, bytes: batch.passed_bytes / commands }
    }

    /// Time of a command without that in which its bytes pass; negative if a stream would take
    /// longer.
    fn command_ns(&self, ns_per_mib: u64) -> i64 {
        clamp(self.ns) - clamp(time_ns(self.bytes, ns_per_mib))
    }

    /// The same, or zero if it is so small that it may be chance.
    fn certain_command_ns(&self, ns_per_mib: u64) -> u64 {
        let ns = u64::try_from(self.command_ns(ns_per_mib)).unwrap_or(0);
        if ns < self.ns / CHANCE_PART { 0 } else { ns }
    }
}

/// The costs of one origin, as they are learnt.
#[derive(Clone, Debug)]
pub struct CostModel {
    read_ns_per_mib: u64,
    write_ns_per_mib: u64,
    copy_ns_per_mib: u64,
    /// Samples of copies so far.
    copy_samples: u32,
    /// `None` before the first sample.
    swept: Option<SweepCost>,
    /// Samples of commands so far.
    samples: u32,
    /// Requests as they are on a disk without a head.
    reads: RequestCosts,
    writes: RequestCosts,
    /// The disk says that it rotates.
    rotates: bool,
    /// Fixed costs: the model does not learn.
    fixed: Option<Costs>,
}

/// The average, moved towards a sample (PO-D3).
fn blend(average: u64, sample: u64) -> u64 {
    let sample = sample.min(average.saturating_mul(2)).max(average / 2);
    mean(average, sample)
}

fn mean(average: u64, sample: u64) -> u64 {
    average - average / WEIGHT + sample / WEIGHT
}

impl CostModel {
    /// A model that knows nothing but whether the disk says that it rotates.
    #[must_use]
    pub fn new(rotates: bool) -> CostModel {
        let rate = ns_per_mib(RATE_FIRST);
        CostModel {
            read_ns_per_mib: rate,
            write_ns_per_mib: rate,
            copy_ns_per_mib: 0,
            copy_samples: 0,
            swept: None,
            samples: 0,
            reads: RequestCosts::of_any_disk(),
            writes: RequestCosts::of_any_disk(),
            rotates,
            fixed: None,
        }
    }

    /// A model that knows `costs` and never learns.
    #[must_use]
    pub fn fixed(costs: Costs) -> CostModel {
        CostModel { fixed: Some(costs), ..CostModel::new(false) }
    }

    /// Whether the sweeps of a disk that says that it rotates have been measured.
    #[must_use]
    pub fn are_sweeps_known(&self) -> bool {
        self.fixed.is_some() || !self.rotates || self.samples >= SAMPLES_FIRST
    }

    /// Whether the disk moves a head, as far as is known.
    #[must_use]
    pub fn moves_a_head(&self) -> bool {
        let is_slow = |swept: SweepCost| {
            swept.ns >= HEAD_NS_MIN || swept.certain_command_ns(self.write_ns_per_mib) > 0
        };
        let is_shown = self.swept.is_none_or(is_slow) || self.samples < SAMPLES_FIRST;
        self.fixed.map_or(self.rotates && is_shown, |costs| costs.skip_ns_per_mib > 0)
    }

    /// The costs; `None` before they are known.
    #[must_use]
    pub fn costs(&self) -> Option<Costs> {
        if self.fixed.is_some() || !self.are_sweeps_known() {
            return self.fixed;
        }
        if !self.moves_a_head() {
            let is_measured = self.reads.is_measured() && self.writes.is_measured();
            let costs = || Costs::without_head(self.reads.costs(), self.writes.costs());
            return is_measured.then(costs);
        }
        let CostModel { read_ns_per_mib, write_ns_per_mib, copy_ns_per_mib, .. } = *self;
        let command_ns = self.swept?.certain_command_ns(write_ns_per_mib);
        let costs = Costs::with_head(command_ns, read_ns_per_mib, write_ns_per_mib);
        Some(Costs { copy_ns_per_mib, ..costs })
    }

    /// Writes in flight side by side took so long.
    pub fn writes_took(&mut self, commands: u64, bytes: u64, elapsed_ns: u64) {
        self.writes.observe(commands, bytes, elapsed_ns);
    }

    /// Reads in flight side by side took so long.
    pub fn reads_took(&mut self, commands: u64, bytes: u64, elapsed_ns: u64) {
        self.reads.observe(commands, bytes, elapsed_ns);
    }

    /// What it would take to read and to write so many bytes in order, as far as is known.
    #[must_use]
    pub fn stream_ns(&self, bytes: u64) -> u64 {
        let ns_per_mib = self.reads.costs().ns_per_mib + self.writes.costs().ns_per_mib;
        time_ns(bytes, ns_per_mib)
    }

    /// A batch has taken so long, its flush included. Many small commands show what a command
    /// costs, streams show the rate, and copies what they cost beyond both.
    pub fn wrote(&mut self, batch: Batch, elapsed_ns: u64) {
        if self.fixed.is_some() {
            return;
        }
        if batch.copied_bytes > batch.passed_bytes / COPIED_PART {
            if elapsed_ns >= SAMPLE_NS_MIN {
                self.copied(batch, elapsed_ns);
            }
        } else if batch.is_streamed() {
            if batch.passed_bytes >= BYTES_MIN {
                let bytes_ns = elapsed_ns.saturating_sub(self.commands_ns(batch));
                let sample = per_mib(bytes_ns, batch.passed_bytes);
                self.write_ns_per_mib = blend(self.write_ns_per_mib, sample);
            }
        } else if batch.commands >= COMMANDS_MIN && elapsed_ns >= SAMPLE_NS_MIN {
            self.swept(SweepCost::of(batch, elapsed_ns));
        }
    }

    fn commands_ns(&self, batch: Batch) -> u64 {
        let one = self.swept.map_or(0, |swept| swept.command_ns(self.write_ns_per_mib));
        batch.commands * u64::try_from(one).unwrap_or(0)
    }

    fn copied(&mut self, batch: Batch, elapsed_ns: u64) {
        let passed_ns = time_ns(batch.passed_bytes, self.write_ns_per_mib);
        let besides_ns = passed_ns + self.commands_ns(batch);
        let sample = |ns: u64| per_mib(ns.saturating_sub(besides_ns), batch.copied_bytes);
        let average = self.copy_ns_per_mib;
        // Batches overlap: what one takes too long the next one takes too little, so that the first
        // ones are averaged.
        let weight = WEIGHT.min(u64::from(self.copy_samples) + 1);
        let expected_ns = besides_ns + time_ns(batch.copied_bytes, average);
        let limit_ns = if weight < WEIGHT { u64::MAX } else { 2 * expected_ns }; // PO-D3
        let sample = sample(elapsed_ns.min(limit_ns));
        self.copy_ns_per_mib = average - average / weight + sample / weight;
        self.copy_samples = self.copy_samples.saturating_add(1);
    }

    fn swept(&mut self, sample: SweepCost) {
        let rate = self.write_ns_per_mib;
        self.swept = Some(match self.swept {
            None => sample,
            Some(first) if self.samples < SAMPLES_FIRST => {
                if sample.command_ns(rate) < first.command_ns(rate) { sample } else { first }
            }
            Some(average) => {
                let command_ns = u64::try_from(average.command_ns(rate)).unwrap_or(0);
                let expected_ns = command_ns + time_ns(sample.bytes, rate);
                let ns = sample.ns.min(2 * expected_ns);
                SweepCost { ns: mean(average.ns, ns), bytes: mean(average.bytes, sample.bytes) }
            }
        });
        self.samples = self.samples.saturating_add(1);
        let first = ns_per_mib(RATE_FIRST);
        for rate in [&mut self.read_ns_per_mib, &mut self.write_ns_per_mib] {
            *rate = *rate - *rate / RELAX + first / RELAX;
        }
        self.copy_ns_per_mib -= self.copy_ns_per_mib / RELAX;
    }

    /// So many bytes were read in order.
    pub fn read(&mut self, bytes: u64, elapsed_ns: u64) {
        if bytes >= BYTES_MIN {
            let sample = per_mib(elapsed_ns.saturating_sub(TURNAROUND_NS / 2), bytes);
            self.read_ns_per_mib = blend(self.read_ns_per_mib, sample);
        }
    }
}

pub(crate) fn clamp(ns: u64) -> i64 {
    i64::try_from(ns).unwrap_or(i64::MAX)
}

fn per_mib(ns: u64, bytes: u64) -> u64 {
    let per_mib = u128::from(ns) * u128::from(MIB) / u128::from(bytes.max(1));
    u64::try_from(per_mib).unwrap_or(u64::MAX).max(1)
}

#[cfg(test)]
#[path = "destage_tests.rs"]
mod tests;
