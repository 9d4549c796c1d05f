// SPDX-License-Identifier: Apache-2.0 OR MIT
//! Slows writers smoothly to the rate at which writeback frees blocks, as the cache fills.
//!
//! ```text
//! free blocks   high watermark ──── start ──────── setpoint ──────── reserve ──── 0
//! time a block  0                   0              1 / rate          8 / rate       more
//! allowed rate  unlimited           unlimited      rate              rate / 8
//! ```
//!
//! A written block takes `x³ / rate` of the writers' common time, where `rate` is the measured
//! writeback rate and `x` grows from 0 at `start` to 1 at the setpoint and 2 at the reserve. The
//! cube is the shape of the kernel's dirty position ratio, which is gentle where it begins and
//! firm where it must hold; taken as a cost and not as a ratio it begins at 0, so that nothing
//! jumps at `start`. Free space settles where the writers' rate equals the writeback rate: at the
//! setpoint.
//!
//! Invariants
//! - P1 The cost of a block never falls as the free space falls.
//! - P2 No delay is longer than [`DELAY_MAX_NS`]: a write is late, never refused. More writers at
//!   once than `rate` serves in that time fill the cache; then they wait for slots.
//! - P3 Writers queue in one virtual line: together they get the allowed rate, however many.

/// The longest delay of one write: the kernel's `MAX_PAUSE`, 200 ms.
pub const DELAY_MAX_NS: u64 = 200_000_000;

/// Blocks freed are gathered for this long before they make a sample: the kernel's
/// `BANDWIDTH_INTERVAL`.
const WINDOW_NS: u64 = 200_000_000;
/// Time constant of the average, as the kernel blends bandwidth over about 3 s. It spans the lumps
/// in which blocks come free, one for each flush of the origin.
const AVERAGE_NS: u64 = 3_000_000_000;
const SECOND_NS: u128 = 1_000_000_000;

/// Position `x` in fixed point.
const ONE: u128 = 1 << 16;
/// Cost stops growing here, at 512 / rate: the delay is at its bound long before.
const POSITION_MAX: u128 = 8 * ONE;
/// Larger writes are paced as this many blocks; keeps the product within 128 bits.
const BLOCKS_MAX: u64 = 1 << 20;

/// Blocks freed since a moment.
#[derive(Clone, Copy, Debug)]
struct Window {
    start_ns: u64,
    blocks: u64,
}

/// The pacing of one cache.
#[derive(Clone, Debug)]
pub struct Pacer {
    start: u64,
    reserve: u64,
    /// Writeback rate in thousandths of a block per second, at least 1.
    rate_milli: u64,
    /// False while `rate_milli` is only assumed.
    measured: bool,
    /// The sample being gathered; `None` while writeback does not run.
    window: Option<Window>,
    /// When the last admitted write has had its share of time.
    next_free_at_ns: u64,
}

impl Pacer {
    /// A pacer for a cache whose writeback begins at `free_at_high` free blocks (see
    /// [`Watermarks::free_at_high`](crate::Watermarks::free_at_high)) and whose engine wants to
    /// keep `reserve` blocks free. Until something is measured, writeback is taken to free
    /// `assumed_blocks_per_s`.
    #[must_use]
    pub fn new(free_at_high: u64, reserve: u64, assumed_blocks_per_s: u64) -> Pacer {
        let mut pacer = Pacer {
            start: 0,
            reserve: 0,
            rate_milli: assumed_blocks_per_s.saturating_mul(1000).max(1),
            measured: false,
            window: None,
            next_free_at_ns: 0,
        };
        pacer.set_levels(free_at_high, reserve);
        pacer
    }

    /// Changes the levels and keeps what was measured. Pacing begins half-way between
    /// `free_at_high` and `reserve`; if there is no room between them, nothing is paced.
    pub fn set_levels(&mut self, free_at_high: u64, reserve: u64) {
        self.reserve = reserve;
        self.start = reserve + free_at_high.saturating_sub(reserve) / 2;
    }

    /// Writeback begins to run: time counts from now on. Without this call the first
    /// [`Pacer::freed`] opens the window and is itself not counted.
    pub fn writeback_started(&mut self, now_ns: u64) {
        self.window.get_or_insert(Window { start_ns: now_ns, blocks: 0 });
    }

    /// Writeback has nothing to do: the time until it starts again says nothing of its rate.
    pub fn writeback_stopped(&mut self) {
        self.window = None;
    }

    /// Writeback has freed `blocks`. Blocks that came free in other ways, as by discard, do not
    /// count.
    pub fn freed(&mut self, blocks: u64, now_ns: u64) {
        let Some(window) = &mut self.window else {
            self.window = Some(Window { start_ns: now_ns, blocks: 0 });
            return;
        };
        window.blocks = window.blocks.saturating_add(blocks);
        let elapsed_ns = now_ns.saturating_sub(window.start_ns);
        if elapsed_ns < WINDOW_NS {
            return;
        }
        let sample = u128::from(window.blocks) * 1000 * SECOND_NS / u128::from(elapsed_ns);
        self.window = Some(Window { start_ns: now_ns, blocks: 0 });
        let old = u128::from(self.rate_milli);
        let elapsed = u128::from(elapsed_ns);
        let average = u128::from(AVERAGE_NS);
        // old + (sample - old) * elapsed / (elapsed + average), without a sign.
        let blended = match self.measured {
            true => (old * average + sample * elapsed) / (elapsed + average),
            false => sample,
        };
        self.rate_milli = u64::try_from(blended).unwrap_or(u64::MAX).max(1);
        self.measured = true;
    }

    /// The writeback rate as of `now_ns`, in whole blocks per second. It sinks while a running
    /// writeback frees nothing for longer than the average spans.
    #[must_use]
    pub fn blocks_per_s(&self, now_ns: u64) -> u64 {
        self.rate_milli_at(now_ns) / 1000
    }

    /// How long a write of `blocks` has to wait, `free` blocks being free now. Takes the write's
    /// place in the line, so ask once for each write.
    pub fn delay_ns(&mut self, blocks: u64, free: u64, now_ns: u64) -> u64 {
        let cost_ns = self.cost_ns(blocks, free, now_ns);
        if cost_ns == 0 {
            self.next_free_at_ns = now_ns; // Space is back: old debts are void.
            return 0;
        }
        let turn_ns = self.next_free_at_ns.max(now_ns);
        let delay_ns = (turn_ns - now_ns).min(DELAY_MAX_NS); // P2
        // P3. The line is no longer than the longest delay, lest a stall be paid for later.
        let line_end_ns = now_ns.saturating_add(DELAY_MAX_NS);
        self.next_free_at_ns = turn_ns.saturating_add(cost_ns).min(line_end_ns);
        delay_ns
    }

    /// What share of the writers' common time a write of `blocks` takes with `free` blocks free.
    #[must_use]
    pub fn cost_ns(&self, blocks: u64, free: u64, now_ns: u64) -> u64 {
        let span = (self.start - self.reserve) / 2;
        if free >= self.start || span == 0 {
            return 0;
        }
        let position = (u128::from(self.start - free) * ONE / u128::from(span)).min(POSITION_MAX);
        let work = u128::from(blocks.min(BLOCKS_MAX)) * 1000 * SECOND_NS * position.pow(3);
        let cost_ns = work / (u128::from(self.rate_milli_at(now_ns)) * ONE.pow(3));
        u64::try_from(cost_ns).unwrap_or(u64::MAX)
    }

    fn rate_milli_at(&self, now_ns: u64) -> u64 {
        let Some(window) = &self.window else { return self.rate_milli };
        let silent_ns = now_ns.saturating_sub(window.start_ns).max(AVERAGE_NS);
        let sunk = u128::from(self.rate_milli) * u128::from(AVERAGE_NS) / u128::from(silent_ns);
        u64::try_from(sunk).unwrap_or(u64::MAX).max(1)
    }
}

#[cfg(test)]
#[path = "pacer_tests.rs"]
mod tests;
