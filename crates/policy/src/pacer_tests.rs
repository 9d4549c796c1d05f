// SPDX-License-Identifier: Apache-2.0 OR MIT
//! Tests of the pacer: tables of its cost, and closed loops with writers and a writeback.

use super::*;

const SECOND: u64 = 1_000_000_000;

/// Pacing from 4000 free blocks, setpoint 2800, most expensive from 1600 on; 1000 blocks a second.
fn pacer() -> Pacer {
    Pacer::new(6000, 1000)
}

#[test]
fn cost_is_0_at_start_1_at_the_setpoint_and_8_at_most() {
    // Free blocks, cost of one block at 1000 blocks a second.
    let table = [
        (6000, 0),
        (4000, 0),
        (3400, 125_000),
        (2800, 1_000_000),
        (2200, 3_375_000),
        (1600, 8_000_000),
        (0, 8_000_000),
    ];
    for (free, cost_ns) in table {
        assert_eq!(pacer().cost_ns(1, free, 0), cost_ns, "{free} free");
    }
    assert_eq!(pacer().cost_ns(7, 2800, 0), 7_000_000);
}

#[test]
fn cost_is_monotone_and_has_no_cliff_between_levels() {
    // The slope is 3 x² / span / rate; at x = 2 that is 10 us a block.
    let pacer = pacer();
    let mut above = pacer.cost_ns(1, 6000, 0);
    for free in (0..6000).rev() {
        let cost = pacer.cost_ns(1, free, 0);
        assert!(cost >= above, "PO-P1 at {free} free");
        assert!(cost - above <= 11_000, "step of {} ns at {free} free", cost - above);
        above = cost;
    }
    assert_eq!(pacer.cost_ns(1, 3999, 0), 0, "the first block below start costs under 1 ns");
}

#[test]
fn a_delay_is_bounded_whatever_is_asked() {
    let mut pacer = Pacer::new(6000, 0);
    for _ in 0..3 {
        assert!(pacer.delay_ns(u64::MAX, 0, 0, 0) <= DELAY_MAX_NS, "PO-P2");
    }
    assert_eq!(pacer.delay_ns(1, 0, 0, 0), DELAY_MAX_NS);
    assert_eq!(pacer.delay_ns(1, 0, 0, DELAY_MAX_NS), 0, "the line is no longer than that");
    assert_eq!(pacer.delay_ns(1, 6000, 0, 0), 0, "space is back");
    assert_eq!(pacer.delay_ns(1, 2800, 0, 0), 0, "and the old debts are void");
}

#[test]
fn writers_that_come_together_are_let_in_one_after_another() {
    let mut pacer = pacer();
    let delays: Vec<u64> = (0..4).map(|_| pacer.delay_ns(2, 2800, 0, 7)).collect();
    assert_eq!(delays, [0, 2_000_000, 4_000_000, 6_000_000]);
    assert_eq!(pacer.delay_ns(2, 2800, 0, 7 + 5_000_000), 3_000_000, "time works the line off");
    assert_eq!(pacer.delay_ns(2, 2800, 0, 7 + SECOND), 0, "but idle time earns no credit");
    assert_eq!(pacer.delay_ns(2, 2800, 0, 7 + SECOND), 2_000_000);
}

#[test]
fn what_waits_for_its_flush_counts_as_free_at_the_measured_rate() {
    let mut pacer = pacer();
    pacer.writeback_started(0);
    pacer.freed(100, SECOND / 10);
    // Pending blocks, time since blocks came free last, what they count.
    for (pending, since_ns, counts) in
        [(0, SECOND, 0), (500, 0, 0), (500, SECOND / 10, 100), (500, SECOND, 500)]
    {
        let mut paced = pacer.clone();
        let now_ns = SECOND / 10 + since_ns;
        paced.delay_ns(1, 2800 - counts, pending, now_ns);
        let charged = paced.delay_ns(1, 2800 - counts, pending, now_ns);
        assert_eq!(charged, 1_000_000, "as at the setpoint: {pending} pending, {since_ns} ns");
    }
}

#[test]
fn no_room_paces_nothing_and_the_smallest_room_has_a_batch() {
    let mut pacer = Pacer::new(0, 1);
    assert_eq!(pacer.delay_ns(100, 0, 0, 0), 0);
    assert_eq!(pacer.delay_ns(100, 0, 0, 0), 0);
    for (room, batch_max) in [(0, 1), (2, 1), (100, 40), (u64::MAX, u64::MAX / 5 * 2)] {
        assert_eq!(Pacer::new(room, 1).batch_max(), batch_max, "{room}");
    }
}

#[test]
fn the_first_sample_replaces_the_guess_later_ones_average() {
    let mut pacer = Pacer::new(5000, 7);
    pacer.writeback_started(0);
    assert_eq!(pacer.rate_milli_at(SECOND / 10) / 1000, 7);
    pacer.freed(100, SECOND / 10);
    assert_eq!(pacer.rate_milli_at(SECOND / 10) / 1000, 1000, "the first sample counts at once");
    pacer.freed(100, SECOND / 5);
    assert_eq!(pacer.rate_milli_at(SECOND / 5) / 1000, 1000, "the second gathers for a while");
    // 0.1 s at 1000 and 0.2 s at 2000.
    pacer.freed(300, SECOND * 3 / 10);
    assert_eq!(pacer.rate_milli_at(SECOND * 3 / 10) / 1000, 1666);
    // 10 s at 1000 against the 0.3 s; then 0.2 s at 2000 against 3 s, which is the longest.
    pacer.freed(10_000, SECOND * 103 / 10);
    assert_eq!(pacer.rate_milli_at(SECOND * 103 / 10) / 1000, 1019);
    pacer.freed(400, SECOND * 105 / 10);
    assert_eq!(pacer.rate_milli_at(SECOND * 105 / 10) / 1000, 1080);
}

#[test]
fn a_pause_of_writeback_is_no_slow_writeback_but_a_stall_is() {
    let mut pacer = pacer();
    pacer.writeback_started(0);
    pacer.freed(200, SECOND / 5);
    let mut paused = pacer.clone();
    paused.writeback_stopped();
    assert_eq!(paused.rate_milli_at(SECOND * 100) / 1000, 1000);
    paused.writeback_started(SECOND * 100);
    paused.freed(200, SECOND * 100 + SECOND / 5);
    assert_eq!(paused.rate_milli_at(SECOND * 101) / 1000, 1000);
    // The stall: 30 s of silence against an average of 3 s.
    assert_eq!(pacer.rate_milli_at(SECOND / 5 + SECOND * 3) / 1000, 1000);
    assert_eq!(pacer.rate_milli_at(SECOND / 5 + SECOND * 30) / 1000, 100);
}

#[test]
fn the_average_follows_a_change_in_a_few_time_constants() {
    let mut pacer = Pacer::new(5000, 1);
    pacer.writeback_started(0);
    let mut now = 0;
    for (rate, seconds) in [(8000, 1), (2000, 15), (6000, 15)] {
        for _ in 0..seconds * 10 {
            now += SECOND / 10;
            pacer.freed(rate / 10, now);
        }
        let found = pacer.rate_milli_at(now) / 1000;
        assert!(found.abs_diff(rate) * 20 <= rate, "{found} instead of {rate}");
    }
}

/// A cache that writers fill as fast as they are let, in steps of a tenth of a millisecond.
struct Loop {
    pacer: Pacer,
    now_ns: u64,
    free: u64,
    /// When each writer's next block arrives, if it is not held back.
    ready_at_ns: Vec<u64>,
    /// Blocks written back but not freed before the lump is full.
    lump: u64,
    progress_milli: u64,
    /// The longest delay of a write in the last run.
    delay_ns_max: u64,
}

const STEP_NS: u64 = 100_000;

impl Loop {
    fn new(pacer: Pacer, free: u64, writers: usize) -> Loop {
        let ready_at_ns = vec![0; writers];
        Loop { pacer, now_ns: 0, free, ready_at_ns, lump: 0, progress_milli: 0, delay_ns_max: 0 }
    }

    /// Runs for `seconds` with a writeback of `rate` blocks a second that frees `lump_blocks` at
    /// a time. Each writer has one block in flight, which takes a step. Returns the blocks that
    /// were written in each second and the least free space.
    fn run(&mut self, seconds: u64, rate: u64, lump_blocks: u64) -> (Vec<u64>, u64) {
        let (mut written, mut least_free) = (Vec::new(), self.free);
        self.delay_ns_max = 0;
        self.pacer.writeback_started(self.now_ns);
        for _ in 0..seconds {
            let mut blocks = 0;
            for _ in 0..SECOND / STEP_NS {
                self.now_ns += STEP_NS;
                blocks += self.step(rate, lump_blocks);
                least_free = least_free.min(self.free);
            }
            written.push(blocks);
        }
        (written, least_free)
    }

    fn step(&mut self, rate: u64, lump_blocks: u64) -> u64 {
        self.progress_milli += rate * 1000 * STEP_NS / SECOND;
        self.lump += self.progress_milli / 1000;
        self.progress_milli %= 1000;
        if self.lump >= lump_blocks {
            self.free += self.lump;
            self.pacer.freed(self.lump, self.now_ns);
            self.lump = 0;
        }
        let mut blocks = 0;
        for ready_at_ns in &mut self.ready_at_ns {
            if *ready_at_ns <= self.now_ns && self.free > 0 {
                self.free -= 1;
                blocks += 1;
                let delay_ns = self.pacer.delay_ns(1, self.free, self.lump, self.now_ns);
                self.delay_ns_max = self.delay_ns_max.max(delay_ns);
                *ready_at_ns = self.now_ns + STEP_NS + delay_ns;
            }
        }
        blocks
    }
}

/// Asserts that every second from `from` on saw `rate` blocks, to a tenth.
fn assert_settled(written: &[u64], from: usize, rate: u64) {
    for (second, blocks) in written.iter().enumerate().skip(from) {
        assert!(blocks.abs_diff(rate) * 10 <= rate, "{blocks} in second {second}: {written:?}");
    }
}

#[test]
fn writers_settle_at_the_writeback_rate_below_a_full_cache() {
    // 16 writers could write 160,000 blocks a second; a cache of 100,000 blocks; writeback of
    // 8000 a second in lumps of 1 MiB of 4 KiB blocks.
    for (writers, assumed) in [(1, 8000), (16, 8000), (16, 1000), (16, 60_000), (200, 8000)] {
        let pacer = Pacer::new(50_000, assumed);
        let mut closed = Loop::new(pacer, 100_000, writers);
        let (written, least_free) = closed.run(60, 8000, 256);
        let name = format!("{writers} writers, {assumed} assumed, {written:?}");
        assert!(least_free > 1000, "{least_free} free, {name}");
        let cliff = written.iter().find(|&&blocks| blocks < 7200);
        assert_eq!(cliff, None, "{name}");
        // One writer at 10,000 a second takes 40 s to fill the cache so far; the others one.
        assert_settled(&written, if writers == 1 { 45 } else { 5 }, 8000);
        // Setpoint: 7/15 of the room.
        assert!(closed.free.abs_diff(23_333) < 1500, "{} free, {name}", closed.free);
    }
}

#[test]
fn writers_follow_a_writeback_rate_that_falls_and_rises() {
    let mut closed = Loop::new(Pacer::new(50_000, 8000), 100_000, 16);
    closed.run(30, 8000, 256);
    let (slow, least_free) = closed.run(60, 2000, 256);
    assert!(least_free > 0, "{least_free}");
    assert_settled(&slow, 45, 2000);
    let (fast, _) = closed.run(60, 8000, 256);
    assert_settled(&fast, 45, 8000);
}

#[test]
fn lumps_of_half_a_second_do_not_shake_the_writers() {
    // A lump is two fifths of the room.
    let mut closed = Loop::new(Pacer::new(10_000, 8000), 20_000, 16);
    closed.run(30, 8000, closed.pacer.batch_max());
    let (written, least_free) = closed.run(30, 8000, closed.pacer.batch_max());
    assert!(least_free > 0, "{least_free}");
    assert_settled(&written, 0, 8000);
    // 16 writers at 8000 a second wait for 2 ms each.
    assert!(closed.delay_ns_max < 3_000_000, "{} ns", closed.delay_ns_max);
}
