// SPDX-License-Identifier: Apache-2.0 OR MIT
//! Tests by tables and properties, and closed loops of writers, cache and device in virtual time.
use proptest::prelude::*;

use super::*;

const MIB: u64 = 1 << 20;
const MS: u64 = 1_000_000;
const SECOND: u64 = 1000 * MS;

/// Half of a memory of 2 GiB may be dirty; 2 s and 1 s.
const SECONDS: DirtyLimits =
    DirtyLimits { dirty: Bound::Millis(2000), background: Bound::Millis(1000), max_bytes: 1 << 30 };

#[test]
fn the_position_ratio_is_that_of_the_kernels_curve() {
    let at = Thresholds { background: 1000, set_limit: 2000, limit: 2000 };
    assert_eq!((at.freerun(), at.setpoint()), (1500, 1750));
    let table = [
        (1500, "2.0000"),
        (1550, "1.5120"),
        (1600, "1.2160"),
        (1650, "1.0640"),
        (1700, "1.0080"),
        (1750, "1.0000"),
        (1800, "0.9920"),
        (1850, "0.9360"),
        (1900, "0.7840"),
        (1950, "0.4880"),
        (1999, "0.0120"),
        (2000, "0.0000"),
        // Beyond what the curve is for.
        (0, "2.0000"),
        (3000, "0.0000"),
    ];
    for (dirty, ratio) in table {
        let tenths_of_mille = (at.position_ratio(dirty) * 10_000 + RATIO_ONE / 2) / RATIO_ONE;
        let shown = format!("{}.{:04}", tenths_of_mille / 10_000, tenths_of_mille % 10_000);
        assert_eq!(shown, ratio, "{dirty}");
    }
}

#[test]
fn limits_are_bytes_or_a_time_of_bandwidth() {
    let bytes = |dirty, background| DirtyLimits {
        dirty: Bound::Bytes(dirty),
        background: Bound::Bytes(background),
        max_bytes: 100 * MIB,
    };
    let both = |t: Thresholds| (t.background, t.limit);
    assert_eq!(both(bytes(8 * MIB, 4 * MIB).thresholds(None)), (4 * MIB, 8 * MIB));
    // A background threshold that is no lower is half; memory bounds both.
    assert_eq!(both(bytes(8 * MIB, 8 * MIB).thresholds(None)), (4 * MIB, 8 * MIB));
    assert_eq!(both(bytes(1 << 40, 1 << 39).thresholds(None)), (50 * MIB, 100 * MIB));
    assert_eq!(both(bytes(1, 1).thresholds(None)), (1, 8192));
    let secs = |bw| both(SECONDS.thresholds(bw));
    assert_eq!(secs(Some(100 * MIB)), (100 * MIB, 200 * MIB));
    assert_eq!(secs(None), (2 * MIB, 4 * MIB));
    assert_eq!(secs(Some(10)), (MIB / 2, MIB));
    assert_eq!(secs(Some(u64::MAX)), (1 << 29, 1 << 30));
    // Memory for a little more than one second: the thresholds stay apart.
    let little = DirtyLimits { max_bytes: 102 * MIB, ..SECONDS };
    assert_eq!(both(little.thresholds(Some(100 * MIB))), (51 * MIB, 102 * MIB));
}

#[test]
fn bandwidth_is_measured_while_writeback_is_in_flight() {
    let mut bw = Bandwidth::new();
    assert_eq!((bw.known(0), bw.bytes_per_s(0)), (None, BANDWIDTH_START));
    // The first sample counts as it is, after 20 ms.
    bw.started(0);
    bw.done(MIB, true, 10 * MS);
    assert_eq!(bw.known(10 * MS), None);
    bw.done(MIB, false, 20 * MS);
    assert_eq!(bw.known(20 * MS), Some(100 * MIB));
    // Or after 8 MiB, however fast.
    for (took, told) in [(MS, 8000 * MIB), (0, 16 << 40)] {
        let mut fast = Bandwidth::new();
        fast.started(SECOND);
        fast.done(8 * MIB - 1, true, SECOND);
        assert_eq!(fast.known(SECOND), None);
        fast.done(1, false, SECOND + took);
        assert_eq!(fast.known(SECOND + took), Some(told));
    }
    // An hour without writeback changes nothing (BW1).
    let mut now = 3600 * SECOND;
    assert_eq!(bw.known(now), Some(100 * MIB));
    // A tenth of the bandwidth from now on: nearly all of the way in 10 s.
    bw.started(now);
    for _ in 0..100 {
        now += 100 * MS;
        bw.done(MIB, true, now);
    }
    let told = bw.bytes_per_s(now);
    assert!((10 * MIB..14 * MIB).contains(&told), "{told}");
    // A stall (BW2).
    let told = bw.bytes_per_s(now + 30 * SECOND);
    assert!((MIB..14 * MIB / 10).contains(&told), "{told}");
}

#[test]
fn a_device_that_is_done_as_it_begins_is_known_to_be_fast() {
    let mut bw = Bandwidth::new();
    for n in 0..16 {
        bw.started(n);
        bw.done(1 << 20, false, n);
    }
    assert!(bw.known(16).is_some_and(|bw| bw > 1 << 40), "{:?}", bw.known(16));
}

#[test]
fn the_limit_falls_slowly_and_never_below_what_is_dirty() {
    let mut t = DirtyThrottle::new(DirtyLimits {
        dirty: Bound::Bytes(320 * MIB),
        background: Bound::Bytes(MIB),
        max_bytes: 1 << 30,
    });
    let lower = DirtyLimits { dirty: Bound::Bytes(64 * MIB), ..t.limits };
    t.set_limits(lower, 0);
    let mut limits = Vec::new();
    for nth in 1..=200 {
        let dirty = 100 * MIB;
        t.admit(&mut Dirtier::default(), dirty, nth * 200 * MS);
        limits.push(t.thresholds().limit);
    }
    assert_eq!(limits[0], 320 * MIB - 220 * MIB / 32);
    assert!(limits.is_sorted_by(|a, b| a >= b));
    assert!((100 * MIB..101 * MIB).contains(&limits[199]), "{}", limits[199]);
    t.admit(&mut Dirtier::default(), 0, 1000 * SECOND);
    let limit = t.thresholds().limit;
    assert!(limit < 74 * MIB, "{limit}");
    // Upwards at once.
    t.set_limits(DirtyLimits { dirty: Bound::Bytes(500 * MIB), ..lower }, 1000 * SECOND);
    assert_eq!(t.thresholds().limit, 500 * MIB);
}

#[test]
fn nobody_waits_below_freerun_and_debts_are_void_there() {
    let mut t = DirtyThrottle::new(SECONDS);
    let mut writer = Dirtier { due_ns: 100 * SECOND };
    assert_eq!(t.wrote(&mut writer, MIB, 2 * MIB, SECOND), 0);
    assert_eq!(writer.due_ns(), SECOND);
    writer.due_ns = 100 * SECOND;
    assert_eq!(t.admit(&mut writer, 2 * MIB, SECOND), Admission::Now);
    assert_eq!(writer.due_ns(), SECOND);
    assert_eq!(t.admit(&mut writer, 4 * MIB, SECOND), Admission::AtLimit);
}

/// A writer that writes `bytes` at once, again as soon as that is done, but no more than
/// `wants` bytes a second.
#[derive(Clone)]
struct Writer {
    bytes: u64,
    wants: u64,
    state: Dirtier,
    /// When it writes next, and when it would if nothing held it up.
    next_ns: u64,
    wish_ns: u64,
    written: u64,
    pauses: Vec<u64>,
}

fn writer(bytes: u64, wants: u64) -> Writer {
    let state = Dirtier::default();
    Writer { bytes, wants, state, next_ns: 0, wish_ns: 0, written: 0, pauses: Vec::new() }
}

/// A cache that writes back in ioends of 1 MiB, one at a time, while more is dirty than the
/// background threshold.
struct Fixture {
    throttle: DirtyThrottle,
    writers: Vec<Writer>,
    bandwidth: u64,
    now_ns: u64,
    dirty: u64,
    ioend: Option<(u64, u64)>,
    written_back: u64,
}

const TICK: u64 = 200_000;

impl Fixture {
    fn new(limits: DirtyLimits, bandwidth: u64, writers: Vec<Writer>) -> Fixture {
        let throttle = DirtyThrottle::new(limits);
        Fixture { throttle, writers, bandwidth, now_ns: 0, dirty: 0, ioend: None, written_back: 0 }
    }

    fn tick(&mut self) {
        self.now_ns += TICK;
        let now = self.now_ns;
        let mut from_ns = now;
        while let Some((bytes, done_ns)) = self.ioend.filter(|(_, done_ns)| *done_ns <= now) {
            self.ioend = None;
            self.dirty -= bytes;
            self.written_back += bytes;
            from_ns = done_ns;
            self.begin(from_ns);
            self.throttle.writeback_done(bytes, self.ioend.is_some(), self.dirty, done_ns);
        }
        if self.ioend.is_none() {
            self.begin(from_ns);
            if self.ioend.is_some() {
                self.throttle.writeback_started(from_ns);
            }
        }
        for w in &mut self.writers {
            while w.next_ns <= now {
                match self.throttle.admit(&mut w.state, self.dirty, now) {
                    Admission::Now => {}
                    Admission::After(ns) => {
                        assert!(0 < ns && ns <= PAUSE_MAX_NS);
                        w.next_ns = now + ns;
                        break;
                    }
                    Admission::AtLimit => {
                        w.next_ns = now + TICK;
                        break;
                    }
                }
                self.dirty += w.bytes;
                w.written += w.bytes;
                let pause = self.throttle.wrote(&mut w.state, w.bytes, self.dirty, now);
                assert!(pause <= PAUSE_MAX_NS);
                w.pauses.push(pause);
                // Memory takes 4 GiB/s.
                let copied_ns = w.next_ns.max(now - TICK) + (w.bytes >> 2).max(1);
                w.wish_ns = w.wish_ns.max(w.next_ns) + w.bytes * SECOND / w.wants;
                w.next_ns = (copied_ns + pause).max(w.wish_ns);
            }
        }
    }

    fn begin(&mut self, now_ns: u64) {
        let background = self.throttle.thresholds().background;
        if self.dirty > background {
            let bytes = self.dirty.min(MIB);
            self.ioend = Some((bytes, now_ns + bytes * SECOND / self.bandwidth));
        }
    }

    fn run(&mut self, secs: u64) {
        for _ in 0..secs * SECOND / TICK {
            self.tick();
        }
    }

    /// Bytes per second of each writer over the next `secs`, and how far dirty bytes went.
    fn measure(&mut self, secs: u64) -> (Vec<u64>, std::ops::RangeInclusive<u64>) {
        let before: Vec<u64> = self.writers.iter().map(|w| w.written).collect();
        let (mut least, mut most) = (u64::MAX, 0);
        for w in &mut self.writers {
            w.pauses.clear();
        }
        for _ in 0..secs * SECOND / TICK {
            self.tick();
            least = least.min(self.dirty);
            most = most.max(self.dirty);
        }
        let rates = self.writers.iter().zip(before).map(|(w, b)| (w.written - b) / secs);
        (rates.collect(), least..=most)
    }
}

fn within(what: &str, value: u64, wanted: u64, percent: u64) {
    let off = value.abs_diff(wanted) * 100;
    assert!(off <= wanted * percent, "{what}: {value} is not within {percent} % of {wanted}");
}

#[test]
fn dirty_settles_at_the_setpoint_the_writer_at_the_bandwidth() {
    for bandwidth in [2 * MIB, 20 * MIB, 150 * MIB, 500 * MIB] {
        for size in [4096, 65536, MIB] {
            let mut lab = Fixture::new(SECONDS, bandwidth, vec![writer(size, u64::MAX)]);
            lab.run(30);
            let (rates, dirty) = lab.measure(20);
            let at = lab.throttle.thresholds();
            let what = format!("{bandwidth} in {size}");
            // A write of a fourth of the limit is a lump that no rate makes smooth.
            within(&what, rates[0], bandwidth, if size * 4 >= at.limit { 15 } else { 5 });
            let span = at.limit - at.setpoint();
            let lump = MIB + size; // Dirty bytes go up and down by these.
            assert!(*dirty.start() + span + lump >= at.setpoint(), "{what}: {dirty:?} {at:?}");
            assert!(*dirty.end() < at.limit + size, "{what}: {dirty:?} {at:?}");
            within(&what, (dirty.start() + dirty.end()) / 2, at.setpoint(), 25);
        }
    }
}

#[test]
fn a_slow_stick_queues_seconds_and_a_fast_device_stays_busy() {
    let mut stick = Fixture::new(SECONDS, 3 * MIB, vec![writer(65536, u64::MAX)]);
    let (_, dirty) = stick.measure(60);
    assert!(*dirty.end() <= 3 * 3 * MIB, "{dirty:?}");
    let mut fast = Fixture::new(SECONDS, 2048 * MIB, vec![writer(65536, u64::MAX)]);
    fast.run(1);
    within("fast", fast.written_back, 2048 * MIB, 15);
}

#[test]
fn writers_have_equal_shares_and_no_sawtooth() {
    for n in [2, 8, 32] {
        let bandwidth = 100 * MIB;
        let mut lab = Fixture::new(SECONDS, bandwidth, vec![writer(65536, u64::MAX); n]);
        lab.run(60);
        let (rates, dirty) = lab.measure(20);
        let share = bandwidth / n as u64;
        for rate in &rates {
            within(&format!("{n} writers"), *rate, share, 10);
        }
        let at = lab.throttle.thresholds();
        assert!(*dirty.end() < at.limit, "{n}: {dirty:?} {at:?}");
        // Each write is late by about its own part, not now and then by 100 ms.
        let part_ns = 65536 * SECOND / share;
        let longest = lab.writers.iter().flat_map(|w| &w.pauses).max().unwrap();
        assert!(*longest < 3 * part_ns, "{n}: {longest} for {part_ns}");
    }
}

#[test]
fn sizes_do_not_matter_for_the_share_and_who_wants_less_has_it() {
    let bandwidth = 100 * MIB;
    let writers = vec![writer(4096, u64::MAX), writer(MIB, u64::MAX)];
    let mut lab = Fixture::new(SECONDS, bandwidth, writers);
    lab.run(40);
    let (rates, _) = lab.measure(20);
    for rate in rates {
        within("share", rate, bandwidth / 2, 10);
    }
    // One wants 9 MiB/s, the other ten times as much or more.
    let writers = vec![writer(65536, 9 * MIB), writer(65536, u64::MAX)];
    let mut lab = Fixture::new(SECONDS, bandwidth, writers);
    lab.run(40);
    let (rates, _) = lab.measure(20);
    within("modest", rates[0], 9 * MIB, 3);
    within("greedy", rates[1], 91 * MIB, 5);
    let longest = lab.writers[0].pauses.iter().max().unwrap();
    assert!(*longest <= 2 * MS, "{longest}");
}

#[test]
fn a_device_that_falls_to_a_tenth_stops_nobody_dead() {
    let mut lab = Fixture::new(SECONDS, 200 * MIB, vec![writer(65536, u64::MAX); 4]);
    lab.run(30);
    lab.bandwidth = 20 * MIB;
    let mut worst = u64::MAX;
    for _ in 0..60 {
        let (rates, dirty) = lab.measure(2);
        let at = lab.throttle.thresholds();
        assert!(*dirty.end() <= at.limit.max(430 * MIB), "{dirty:?} {at:?}");
        worst = worst.min(rates.iter().sum());
        for rate in &rates {
            assert!(*rate > 0, "a writer stood still for two seconds");
        }
    }
    assert!(worst >= 4 * MIB, "{worst}");
    let (rates, dirty) = lab.measure(10);
    let at = lab.throttle.thresholds();
    within("limit", at.limit, 40 * MIB, 25);
    within("all", rates.iter().sum(), 20 * MIB, 10);
    assert!(*dirty.end() <= at.limit, "{dirty:?} {at:?}");
    // And back.
    lab.bandwidth = 200 * MIB;
    lab.run(20);
    let (rates, _) = lab.measure(10);
    within("back", rates.iter().sum(), 200 * MIB, 5);
}

#[test]
fn limits_in_bytes_hold_whatever_the_bandwidth() {
    let limits = DirtyLimits {
        dirty: Bound::Bytes(16 * MIB),
        background: Bound::Bytes(8 * MIB),
        max_bytes: 1 << 30,
    };
    for bandwidth in [MIB, 100 * MIB, 1000 * MIB] {
        let mut lab = Fixture::new(limits, bandwidth, vec![writer(16384, u64::MAX); 3]);
        let (_, dirty) = lab.measure(20);
        assert!(*dirty.end() <= 16 * MIB + 16384, "{dirty:?}");
        let (rates, _) = lab.measure(20);
        within("all", rates.iter().sum(), bandwidth, 5);
    }
}

proptest! {
    #[test]
    fn the_ratio_never_rises_with_what_is_dirty(
        background in 0..u64::MAX / 4, above in 1..u64::MAX / 4, a in 0..u64::MAX, b in 0..u64::MAX,
    ) {
        let limit = background + above;
        let at = Thresholds { background, set_limit: limit, limit };
        let (less, more) = (a.min(b), a.max(b));
        prop_assert!(at.position_ratio(less) >= at.position_ratio(more));
        prop_assert_eq!(at.position_ratio(at.setpoint()), RATIO_ONE);
        prop_assert!(at.position_ratio(at.limit) <= RATIO_ONE / 8 || above < 16);
    }

    #[test]
    fn no_history_makes_it_panic_or_wait_too_long(
        steps in prop::collection::vec((0u8..6, any::<u64>(), 0u64..1 << 50), 1..200),
    ) {
        let mut t = DirtyThrottle::new(SECONDS);
        let mut writer = Dirtier::default();
        let mut now = 0u64;
        for (what, number, step) in steps {
            now = now.saturating_add(step >> (number % 51));
            match what {
                0 => t.writeback_started(now),
                1 => t.writeback_done(number >> 8, number % 2 == 0, number >> 16, now),
                2 => prop_assert!(t.wrote(&mut writer, number >> 8, number, now) <= PAUSE_MAX_NS),
                3 => match t.admit(&mut writer, number >> (number % 40), now) {
                    Admission::After(ns) => prop_assert!(0 < ns && ns <= PAUSE_MAX_NS),
                    Admission::Now | Admission::AtLimit => {}
                },
                _ => {
                    let ms = Bound::Millis(number as u32);
                    let dirty = if what == 4 { Bound::Bytes(number) } else { ms };
                    t.set_limits(DirtyLimits { dirty, ..SECONDS }, now);
                }
            }
            let at = t.thresholds();
            prop_assert!(at.background < at.set_limit && at.set_limit <= at.limit, "{:?}", at);
        }
    }
}
