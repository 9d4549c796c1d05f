// SPDX-License-Identifier: Apache-2.0 OR MIT
//! The costs of writeback on an origin that seeks, learnt from measurements; and which gaps between
//! dirty blocks are worth filling, so that runs merge into one command.
//!
//! ```text
//!   sweep over dirty runs:   time = a * commands + b * bytes that pass under the head
//!                            runs ██  ██████ ██   ██     gaps pass as well, whether written or not
//!
//!   gap of g bytes filled:   saves a; costs g/R_read, and the runs beside it are read with it
//!   its contents are known:  saves a; costs g * c: it passes anyway, but has to be copied
//! ```
//! `c` is zero where the contents are copied while the disk passes the gap. On a fast origin it is
//! the time of streams with copies beyond that of streams without.
//!
//! `b` is 1/R_write, learnt from streams; `a` is the time of a sweep beyond that. So streams and
//! sweeps are compared per byte passed: a device without seeks takes longer for a byte of a stream
//! than for a byte that a sweep passes, and `a` is zero. With the time to skip a gap, t_cmd = a +
//! g/R_write, the rule is: fill a gap if g * (1/R_read + 1/R_write) < t_cmd. The cost of a skip
//! depends on the gap, because the head has to pass it.
//!
//! A read pays only if it is long: a gap left open between filled ones costs one more command for
//! the reads and one for the writes. So the gaps of a stretch are decided together ([`fill`]).
//!
//! Invariants
//! - PO-D1 No gap is filled before commands were measured ([`SAMPLES_FIRST`] samples), and no gap
//!   longer than the caller allows.
//! - PO-D2 More commands, slower commands or faster reads never fill less.
//! - PO-D3 One sample, however long the device stalled, at most doubles the estimated time of a
//!   command, or of a byte.
//! - PO-D4 Cached gaps are filled only while streams, including copies, pass a byte in less time
//!   than the measured sweeps.

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
/// A stream with at least 1/4 of its bytes copied into gaps is a sample of copies, else of the
/// rate.
const COPIED_PART: u64 = 4;
/// Cost of changing from writing to reading and back, once per stretch: two seeks and two half
/// turns (disk models: 11 to 16 ms).
const TURNAROUND_NS: u64 = 16_000_000;
/// Reads of a stretch must save this much: the turnaround, and the wait for all earlier writes.
/// Chosen on the models: with less, 10 % of a span take longer than without reads.
const WORTH_NS: u64 = 48_000_000;
/// Each sample of commands moves the average rate by 1/128 towards [`RATE_FIRST`], and that of
/// copies towards zero, so that a bad value is measured again later.
const RELAX: u64 = 128;

/// The costs of writes to an origin.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct Costs {
    /// Cost of one more command of a sweep, without the time in which its bytes and the gap pass.
    pub command_ns: u64,
    /// Reading in order, time of a MiB.
    pub read_ns_per_mib: u64,
    /// Writing in order, time of a MiB.
    pub write_ns_per_mib: u64,
    /// Copying a MiB for cached gaps, as far as writes wait for it.
    pub copy_ns_per_mib: u64,
}

impl Costs {
    /// The rate of reading in order.
    #[must_use]
    pub fn read_bytes_per_s(&self) -> u64 {
        MIB * 1_000_000_000 / self.read_ns_per_mib.max(1)
    }

    /// The rate of writing in order.
    #[must_use]
    pub fn write_bytes_per_s(&self) -> u64 {
        MIB * 1_000_000_000 / self.write_ns_per_mib.max(1)
    }
}

/// Time of a MiB at so many bytes a second.
#[must_use]
pub fn ns_per_mib(bytes_per_s: u64) -> u64 {
    MIB * 1_000_000_000 / bytes_per_s.max(1)
}

fn time_ns(bytes: u64, ns_per_mib: u64) -> u64 {
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
    /// Fixed costs: the model does not learn.
    fixed: Option<Costs>,
}

impl Default for CostModel {
    fn default() -> CostModel {
        CostModel::new()
    }
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
    /// A model that knows nothing.
    #[must_use]
    pub fn new() -> CostModel {
        let rate = ns_per_mib(RATE_FIRST);
        CostModel {
            read_ns_per_mib: rate,
            write_ns_per_mib: rate,
            copy_ns_per_mib: 0,
            copy_samples: 0,
            swept: None,
            samples: 0,
            fixed: None,
        }
    }

    /// A model that knows `costs` and never learns.
    #[must_use]
    pub fn fixed(costs: Costs) -> CostModel {
        CostModel { fixed: Some(costs), ..CostModel::new() }
    }

    /// Whether commands have been measured.
    #[must_use]
    pub fn is_known(&self) -> bool {
        self.fixed.is_some() || self.samples >= SAMPLES_FIRST
    }

    /// The costs; `None` before they are known.
    #[must_use]
    pub fn costs(&self) -> Option<Costs> {
        let learnt = || {
            let CostModel { read_ns_per_mib, write_ns_per_mib, copy_ns_per_mib, .. } = *self;
            let command_ns = self.swept?.certain_command_ns(write_ns_per_mib);
            let costs = Costs { command_ns, read_ns_per_mib, write_ns_per_mib, copy_ns_per_mib };
            self.is_known().then_some(costs)
        };
        self.fixed.or_else(learnt)
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

fn per_mib(ns: u64, bytes: u64) -> u64 {
    let per_mib = u128::from(ns) * u128::from(MIB) / u128::from(bytes.max(1));
    u64::try_from(per_mib).unwrap_or(u64::MAX).max(1)
}

/// A dirty run of a stretch and the gap before it.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct Step {
    /// Bytes of the run.
    pub run: u64,
    /// Bytes between the run before and this one.
    pub gap: u64,
    /// What the gap may be filled with.
    pub contents: Contents,
}

/// Where the contents of a gap would come from.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum Contents {
    /// The cache has them.
    Known,
    /// The origin has to be read.
    Unknown,
    /// It must not be filled.
    Closed,
}

/// How a gap is treated.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum Fill {
    /// Left as it is.
    Skip,
    /// Filled from the cache.
    Copy,
    /// Filled with what was read from the origin.
    Read,
}

const FILLS: [Fill; 3] = [Fill::Skip, Fill::Copy, Fill::Read];

/// Decides all gaps of a stretch, of which `steps` are in ascending order: the gap of the first is
/// that before the stretch, and never filled. The best of all ways by these costs, in one pass:
///
/// | from, to | saves | costs |
/// |---|---|---|
/// | gap skipped | | |
/// | gap known, filled | a command | copying the gap |
/// | gap unknown, filled | a command | reading gap and run |
/// | the same, after one that was not read | | a command, and reading the run before |
///
/// If the reads of a stretch do not save [`WORTH_NS`] in all, only known gaps are filled.
#[must_use]
pub fn fill(costs: Costs, steps: &[Step]) -> Vec<Fill> {
    let (fills, saved_ns) = best(costs, steps, true);
    let reads = fills.contains(&Fill::Read);
    if !reads {
        return fills;
    }
    let (copies, saved_by_copies_ns) = best(costs, steps, false);
    let worth = saved_ns.saturating_sub(saved_by_copies_ns) > clamp(WORTH_NS);
    if worth { fills } else { copies }
}

fn clamp(ns: u64) -> i64 {
    i64::try_from(ns).unwrap_or(i64::MAX)
}

/// The best way, and what it saves.
fn best(costs: Costs, steps: &[Step], with_reads: bool) -> (Vec<Fill>, i64) {
    const NEVER: i64 = i64::MIN / 4;
    let command = clamp(costs.command_ns);
    let read = |bytes| clamp(time_ns(bytes, costs.read_ns_per_mib));
    let copy = |bytes| clamp(time_ns(bytes, costs.copy_ns_per_mib));
    // What was saved up to here, by how the last gap was treated.
    let mut saved = [0, NEVER, NEVER];
    let mut ways: Vec<[usize; 3]> = vec![[0; 3]; steps.len()];
    for (n, step) in steps.iter().enumerate().skip(1) {
        let before = saved;
        for (to, fill) in FILLS.iter().enumerate() {
            let gain = |from: usize| match (fill, step.contents) {
                (Fill::Skip, _) => 0,
                (Fill::Copy, Contents::Known) => command - copy(step.gap),
                (Fill::Read, Contents::Unknown) if with_reads => {
                    let begins = FILLS[from] != Fill::Read;
                    let entry = if begins { command + read(steps[n - 1].run) } else { 0 };
                    command - read(step.gap + step.run) - entry
                }
                (Fill::Copy | Fill::Read, _) => NEVER,
            };
            let of = |from: usize| before[from].saturating_add(gain(from)).max(NEVER);
            // The first of equals: the least is filled.
            let from = (0..3).rev().max_by_key(|&from| of(from)).expect("three of them");
            ways[n][to] = from;
            saved[to] = of(from);
        }
    }
    let mut at = (0..3).rev().max_by_key(|&to| saved[to]).expect("three of them");
    let total = saved[at];
    let mut fills = vec![Fill::Skip; steps.len()];
    for n in (1..steps.len()).rev() {
        fills[n] = FILLS[at];
        at = ways[n][at];
    }
    (fills, total)
}

#[cfg(test)]
#[path = "destage_tests.rs"]
mod tests;
