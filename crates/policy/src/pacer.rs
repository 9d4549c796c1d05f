// SPDX-License-Identifier: Apache-2.0 OR MIT
//! Slows writers smoothly to the rate at which writeback frees blocks, as the cache fills.
//!
//! ```text
//!                room of the cache (see Watermarks::room)
//! free blocks   1 ──────── 2/3 ───────── 7/15 ───────── 4/15 ───────── 0
//!                         start        setpoint
//! time a block  0           0          1 / rate       8 / rate      8 / rate
//! allowed rate  unlimited   unlimited    rate         rate / 8      rate / 8
//! ```
//!
//! A written block costs `x³ / rate` of the writers' common time. `rate` is the measured writeback
//! rate; `x` is 0 at `start`, 1 at the setpoint, and 2 at the same distance below it. The cube is
//! the shape of the kernel's dirty position ratio: gentle at first, then steep. As a cost (not a
//! ratio) it starts at 0, so that nothing jumps at `start`. Free space settles where the writers'
//! rate equals the writeback rate: at the setpoint.
//!
//! Blocks become free in batches, one per flush of the origin, which may take hundreds of
//! milliseconds. So blocks that are written back and wait for the flush count as free gradually, at
//! the measured rate. Position and delays stay smooth, while the number of free blocks jumps by a
//! batch, up to 2/5 of the room.
//!
//! Invariants
//! - PO-P1 The cost of a block never falls as the free space falls.
//! - PO-P2 No delay is longer than [`DELAY_MAX_NS`]: a write is delayed, never refused. If there
//!   are more writers than `rate` serves in that time, the cache fills and they wait for slots.
//! - PO-P3 Writers share one virtual queue: all together get the allowed rate, whatever their
//!   number.
//! - PO-P4 No block costs more than 8 times what it costs at the setpoint.

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
/// Cost stops growing here, at 8 / rate (PO-P4). Chosen: a wrong rate is made good up to a factor
/// of eight; and it is measured anew with each lump.
const POSITION_MAX: u128 = 2 * ONE;
/// Larger writes are paced as this many blocks; keeps the product within 128 bits.
const BLOCKS_MAX: u64 = 1 << 20;

/// Parts of the room: where pacing begins, how far below that the setpoint lies, and how much one
/// flush of the origin sets free. Chosen on both disk models (tests/it/pacing.rs of writecache): at
/// the setpoint the blocks that are really free swing between 7/15 and 1/15 of the room, and with
/// those that are being written back they are not all of it, where writeback would stop. A larger
/// batch lets writers run into the end of the free blocks; a smaller one costs throughput, as a
/// disk with a cache of its own sorts within a batch.
const START_OF_ROOM: (u64, u64) = (2, 3);
const SPAN_OF_ROOM: (u64, u64) = (1, 5);
const BATCH_OF_ROOM: (u64, u64) = (2, 5);

/// `n / d` of `room`.
fn part_of((n, d): (u64, u64), room: u64) -> u64 {
    room / d * n + room % d * n / d
}

/// Blocks freed since a moment.
#[derive(Clone, Copy, Debug)]
struct Window {
    start_ns: u64,
    blocks: u64,
    /// When blocks last came free, or writeback started.
    freed_at_ns: u64,
}

/// The pacing of one cache.
#[derive(Clone, Debug)]
pub struct Pacer {
    start: u64,
    /// From `start` to the setpoint; at least 1.
    span: u64,
    batch_max: u64,
    /// Writeback rate in thousandths of a block per second, at least 1.
    rate_milli: u64,
    /// For how long it was measured, at most [`AVERAGE_NS`]; 0 while it is only assumed.
    measured_ns: u64,
    /// The sample being gathered; `None` while writeback does not run.
    window: Option<Window>,
    /// When the last admitted write has had its share of time.
    next_free_at_ns: u64,
}

impl Pacer {
    /// A pacer for a cache with `room` (see [`Watermarks::room`](crate::Watermarks::room)). Until
    /// something is measured, writeback is taken to free `assumed_blocks_per_s`.
    #[must_use]
    pub fn new(room: u64, assumed_blocks_per_s: u64) -> Pacer {
        Pacer {
            start: part_of(START_OF_ROOM, room),
            span: part_of(SPAN_OF_ROOM, room).max(1),
            batch_max: part_of(BATCH_OF_ROOM, room).max(1),
            rate_milli: assumed_blocks_per_s.saturating_mul(1000).max(1),
            measured_ns: 0,
            window: None,
            next_free_at_ns: 0,
        }
    }

    /// The watermarks have changed; what was measured stays.
    pub fn set_room(&mut self, room: u64) {
        let new = Pacer::new(room, 1);
        (self.start, self.span, self.batch_max) = (new.start, new.span, new.batch_max);
    }

    /// Writers are slowed when fewer blocks than these are free.
    #[must_use]
    pub fn start(&self) -> u64 {
        self.start
    }

    /// The most blocks that one flush of the origin should set free while writers are slowed.
    #[must_use]
    pub fn batch_max(&self) -> u64 {
        self.batch_max
    }

    /// Writeback begins to run: time counts from now on. Without this call the first
    /// [`Pacer::freed`] opens the window and is itself not counted.
    pub fn writeback_started(&mut self, now_ns: u64) {
        self.window.get_or_insert(Window { start_ns: now_ns, blocks: 0, freed_at_ns: now_ns });
    }

    /// Writeback has nothing to do: the time until it starts again does not count for its rate.
    pub fn writeback_stopped(&mut self) {
        self.window = None;
    }

    /// Writeback has freed `blocks`. The first sample is taken at once and replaces what was
    /// assumed; later ones are averaged, over all the time measured but no more than a few seconds.
    /// Blocks that came free in other ways, as by discard, do not count.
    pub fn freed(&mut self, blocks: u64, now_ns: u64) {
        let Some(window) = &mut self.window else {
            self.window = Some(Window { start_ns: now_ns, blocks: 0, freed_at_ns: now_ns });
            return;
        };
        window.blocks = window.blocks.saturating_add(blocks);
        window.freed_at_ns = now_ns;
        let elapsed_ns = now_ns.saturating_sub(window.start_ns);
        if elapsed_ns == 0 || (elapsed_ns < WINDOW_NS && self.measured_ns > 0) {
            return;
        }
        let sample = u128::from(window.blocks) * 1000 * SECOND_NS / u128::from(elapsed_ns);
        self.window = Some(Window { start_ns: now_ns, blocks: 0, freed_at_ns: now_ns });
        let old = u128::from(self.rate_milli);
        let elapsed = u128::from(elapsed_ns);
        let average = u128::from(self.measured_ns);
        // old + (sample - old) * elapsed / (elapsed + average), without a sign.
        let blended = (old * average + sample * elapsed) / (elapsed + average);
        self.rate_milli = u64::try_from(blended).unwrap_or(u64::MAX).max(1);
        self.measured_ns = self.measured_ns.saturating_add(elapsed_ns).min(AVERAGE_NS);
    }

    /// Whether writers wait for nothing because so many blocks are `free`: then old debts are void.
    #[inline]
    pub fn has_space(&mut self, free: u64) -> bool {
        let has_space = free >= self.start;
        if has_space {
            self.next_free_at_ns = 0;
        }
        has_space
    }

    /// How long a write of `blocks` has to wait, `free` blocks being free now and `pending` ones
    /// written back but not yet free. Takes the write's place in the line, so ask once for each
    /// write.
    pub fn delay_ns(&mut self, blocks: u64, free: u64, pending: u64, now_ns: u64) -> u64 {
        let free = free.saturating_add(self.expected(pending, now_ns));
        let cost_ns = self.cost_ns(blocks, free, now_ns);
        if cost_ns == 0 {
            self.next_free_at_ns = now_ns; // Space is back: old debts are void.
            return 0;
        }
        let turn_ns = self.next_free_at_ns.max(now_ns);
        let delay_ns = (turn_ns - now_ns).min(DELAY_MAX_NS); // PO-P2
        // PO-P3. The line is no longer than the longest delay, lest a stall be paid for later.
        let line_end_ns = now_ns.saturating_add(DELAY_MAX_NS);
        self.next_free_at_ns = turn_ns.saturating_add(cost_ns).min(line_end_ns);
        delay_ns
    }

    /// What share of the writers' common time a write of `blocks` takes with `free` blocks free.
    #[must_use]
    pub fn cost_ns(&self, blocks: u64, free: u64, now_ns: u64) -> u64 {
        if free >= self.start {
            return 0;
        }
        let below = u128::from(self.start - free);
        let position = (below * ONE / u128::from(self.span)).min(POSITION_MAX);
        let work = u128::from(blocks.min(BLOCKS_MAX)) * 1000 * SECOND_NS * position.pow(3);
        let cost_ns = work / (u128::from(self.rate_milli_at(now_ns)) * ONE.pow(3));
        u64::try_from(cost_ns).unwrap_or(u64::MAX)
    }

    /// How many of the `pending` blocks would be free by now if they came free one by one.
    fn expected(&self, pending: u64, now_ns: u64) -> u64 {
        let Some(window) = &self.window else { return 0 };
        let since_ns = u128::from(now_ns.saturating_sub(window.freed_at_ns));
        let freed = u128::from(self.rate_milli_at(now_ns)) * since_ns / (1000 * SECOND_NS);
        u64::try_from(freed).map_or(pending, |freed| freed.min(pending))
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
