// SPDX-License-Identifier: Apache-2.0 OR MIT
//! The algorithm with chosen windows, and its invariants with random ones.
use proptest::prelude::*;

use super::*;

const FLASH: DeviceTraits =
    DeviceTraits { queue_depth: 32, rotational: false, volatile_cache: true };
const DISK: DeviceTraits = DeviceTraits { rotational: true, ..FLASH };
const MS: u64 = 1_000_000;

fn reads(count: u32, ns: u64) -> LatencyHistogram {
    let mut reads = LatencyHistogram::default();
    (0..count).for_each(|_| reads.record(ns));
    reads
}

/// A control and its clock.
struct Fixture {
    control: Control,
    now_ns: u64,
}

impl Fixture {
    fn new(device: DeviceTraits) -> Fixture {
        Fixture { control: Control::new(device), now_ns: 0 }
    }

    fn window(&mut self, sample: WindowSample) -> Verdict {
        let window_ns = self.control.window_ns();
        self.now_ns += window_ns;
        self.control.close_window(&WindowSample { now_ns: self.now_ns, window_ns, ..sample })
    }

    /// A window with reads while writes of 64 KiB run at `bytes_per_s`.
    fn beside(&mut self, read_ns: u64, bytes_per_s: u64) -> Verdict {
        self.beside_writes_of(64 << 10, read_ns, bytes_per_s)
    }

    fn beside_writes_of(&mut self, bytes: u64, read_ns: u64, bytes_per_s: u64) -> Verdict {
        let window_ns = self.control.window_ns();
        let write_bytes = bytes_per_s * (window_ns / 1000) / 1_000_000;
        self.window(WindowSample {
            reads: reads(40, read_ns),
            writes: u32::try_from(write_bytes.div_ceil(bytes)).unwrap(),
            write_bytes,
            write_busy_ns: window_ns,
            in_flight: 2,
            held: true,
            ..WindowSample::default()
        })
    }

    /// As [`Fixture::beside`], and a probe in between sees reads of `clean_ns`.
    fn beside_and_clean(&mut self, read_ns: u64, clean_ns: u64, bytes_per_s: u64) -> Verdict {
        if !self.holds() {
            return self.beside(read_ns, bytes_per_s);
        }
        let clean_reads = reads(4, clean_ns);
        self.window(WindowSample {
            reads: clean_reads.clone(),
            clean_reads,
            ..WindowSample::default()
        })
    }

    fn inputs(&self) -> Inputs {
        Inputs { now_ns: self.now_ns, last_read_ns: Some(self.now_ns), ..Inputs::default() }
    }

    fn quota(&self, class: ThrottleClass) -> Quota {
        self.control.limits().quota(class, &self.inputs())
    }

    fn holds(&self) -> bool {
        self.quota(ThrottleClass::Background).ios == 0
    }

    /// A device of 500 MB/s and unloaded reads of 100 us, already measured.
    fn known() -> Fixture {
        let mut fixture = Fixture::new(FLASH);
        for _ in 0..40 {
            fixture.beside_and_clean(150_000, 100_000, 500_000_000);
        }
        while fixture.holds() {
            fixture.beside_and_clean(150_000, 100_000, 500_000_000);
        }
        fixture
    }
}

#[test]
fn until_it_is_measured_the_target_is_the_guess() {
    let fixture = Fixture::new(FLASH);
    assert_eq!(fixture.control.target_ns(), 2 * MS);
    assert_eq!(Fixture::new(DISK).control.target_ns(), 75 * MS);
    assert_eq!(fixture.control.stats().target_source, TargetSource::Guessed);
    assert!(fixture.quota(ThrottleClass::Background).bytes < 256 << 10, "it starts gently");
}

#[test]
fn probes_measure_the_target_and_the_rate_gives_the_bytes() {
    let fixture = Fixture::known();
    let stats = fixture.control.stats();
    assert_eq!(stats.target_source, TargetSource::Measured);
    assert_eq!(stats.clean_read_ns, Some(100_000));
    assert_eq!(fixture.control.target_ns(), 175_000);
    assert!(stats.probes > 0);
    // 75 us of slack at 500 MB/s.
    assert_eq!(fixture.quota(ThrottleClass::Background).bytes, 32 << 10);
    assert_eq!(fixture.quota(ThrottleClass::Background).piece_bytes, 16 << 10);
    assert_eq!(fixture.quota(ThrottleClass::Normal).bytes, 64 << 10);
    assert_eq!(fixture.quota(ThrottleClass::Sync).bytes, 128 << 10);
    assert_eq!(fixture.control.step(), 0);
}

/// Writes of 64 KiB, and then writeback of small blocks.
#[test]
fn small_writes_after_large_ones_are_limited_by_their_number() {
    let mut fixture = Fixture::known();
    let large = fixture.quota(ThrottleClass::Background);
    // 7600 a second: 75 us are enough for none, so as many as there are pieces.
    assert_eq!((large.bytes, large.ios), (32 << 10, 2));
    assert_eq!(fixture.quota(ThrottleClass::Normal).ios, 4);
    assert_eq!(fixture.quota(ThrottleClass::Sync).ios, u32::MAX);
    // The device serves 40,000 small ones: twice the 3 that it serves in 75 us.
    fixture.beside_writes_of(4096, 150_000, 4096 * 40_000);
    let small = fixture.quota(ThrottleClass::Background);
    assert_eq!((small.bytes, small.ios), (32 << 10, 6));
}

#[test]
fn reads_of_a_device_that_is_alone_are_measured_without_a_probe() {
    let mut fixture = Fixture::new(DISK);
    let clean_reads = reads(20, 10 * MS);
    let verdict = fixture.window(WindowSample {
        reads: clean_reads.clone(),
        clean_reads,
        ..WindowSample::default()
    });
    assert_eq!(verdict, Verdict::Ok);
    assert_eq!(fixture.control.target_ns(), 35 * MS);
    assert_eq!(fixture.control.stats().probes, 0);
}

/// A disk that says wrongly that it rotates, whose first writes come after reads.
#[test]
fn reads_at_rest_count_before_the_first_window() {
    let mut fixture = Fixture::new(DISK);
    let guessed = fixture.control.limit_bytes();
    fixture.control.learn_at_rest(&reads(20, 100_000), 10 * MS);
    assert_eq!(fixture.control.target_ns(), 175_000);
    let first = fixture.control.limit_bytes();
    assert!(first * 8 < guessed, "{first} of {guessed}");
    assert_eq!(fixture.control.limits().limit_bytes, first);
    // Enough to show what it can do: more than the limit of so low a rate.
    assert!(first > 4 * PIECE_UNIT, "{first}");
}

/// Such as the large reads with which a cache opens.
#[test]
fn two_generations_of_reads_at_rest_replace_what_came_before() {
    let target_ns = |at_rest: u32| {
        let mut fixture = Fixture::new(FLASH);
        fixture.control.learn_at_rest(&reads(20, 1_500_000), 10 * MS);
        fixture.control.learn_at_rest(&reads(at_rest, 100_000), 20 * MS);
        fixture.control.target_ns()
    };
    assert!(target_ns(200) > 2_000_000, "{}", target_ns(200));
    assert_eq!(target_ns(2 * GENERATION as u32), 175_000);
}

#[test]
fn a_disk_faster_than_half_a_turn_counts_as_flash() {
    let allowed = |device| {
        let mut fixture = Fixture::new(device);
        for _ in 0..80 {
            fixture.beside_and_clean(150_000, 100_000, 500_000_000);
        }
        (fixture.control.target_ns(), fixture.control.piece_bytes(), fixture.control.limit_bytes())
    };
    let (target_ns, piece_bytes, limit_bytes) = allowed(DISK);
    assert_eq!(target_ns, 175_000);
    assert_eq!(piece_bytes, 16 << 10);
    assert!(limit_bytes >= 32 << 10, "{limit_bytes}");
}

#[test]
fn too_long_reads_shrink_the_limit_and_good_ones_give_it_back() {
    let mut fixture = Fixture::known();
    let before = fixture.quota(ThrottleClass::Background);
    assert_eq!(fixture.beside(500_000, 500_000_000), Verdict::Exceeded);
    let after = fixture.quota(ThrottleClass::Background);
    assert_eq!(after.bytes, before.bytes / 2);
    assert_eq!(fixture.control.step(), 1);
    for _ in 0..100 {
        fixture.beside(500_000, 500_000_000);
    }
    let least = fixture.quota(ThrottleClass::Background);
    assert_eq!((least.bytes, least.piece_bytes), (8 << 10, 4 << 10), "two pieces, whatever comes");
    for _ in 0..100 {
        fixture.beside_and_clean(170_000, 100_000, 500_000_000);
    }
    assert_eq!(fixture.quota(ThrottleClass::Background), before);
}

#[test]
fn a_device_with_long_ways_gets_more_pieces_not_longer_ones() {
    let mut fixture = Fixture::known();
    let before = fixture.quota(ThrottleClass::Background);
    for _ in 0..100 {
        fixture.beside_and_clean(110_000, 100_000, 500_000_000);
    }
    let after = fixture.quota(ThrottleClass::Background);
    assert_eq!(after.piece_bytes, before.piece_bytes);
    assert_eq!(after.bytes, before.bytes * GAIN_MAX / GAIN_ONE);
    assert!(fixture.control.step() < 0);
    assert!(fixture.control.depth().background > 2);
}

#[test]
fn a_read_that_is_stuck_counts_before_it_ends() {
    let mut fixture = Fixture::known();
    let stuck = WindowSample {
        read_outstanding_ns: Some(300 * MS),
        writes: 10,
        in_flight: 2,
        held: true,
        ..WindowSample::default()
    };
    assert_eq!(fixture.window(stuck), Verdict::Exceeded);
    assert!(fixture.control.step() > 0);
}

#[test]
fn a_lone_writer_is_not_limited_by_what_its_device_can_take() {
    for device in [FLASH, DISK, DeviceTraits { queue_depth: 1, ..FLASH }] {
        for rate in [1_000_000, 100_000_000, 2_000_000_000] {
            let mut fixture = Fixture::new(device);
            let alone = WindowSample {
                writes: 100,
                write_bytes: rate / 10,
                write_busy_ns: WINDOW_NS,
                in_flight: 32,
                ..WindowSample::default()
            };
            for _ in 0..50 {
                fixture.now_ns += WINDOW_NS;
                let (now_ns, window_ns) = (fixture.now_ns, WINDOW_NS);
                let verdict = fixture.control.close_window(&WindowSample {
                    now_ns,
                    window_ns,
                    ..alone.clone()
                });
                assert_eq!(verdict, Verdict::UnknownWrites);
            }
            let allowed =
                fixture.control.limits().quota(ThrottleClass::Background, &Inputs::default());
            assert!(allowed.ios >= 2.max(device.queue_depth / 4 * 3), "PO-A6: {allowed:?}");
            let in_20_ms = rate / 50;
            assert!(allowed.bytes >= in_20_ms.max(1 << 20), "{allowed:?} at {rate}");
            assert!(u64::from(allowed.piece_bytes) * 2 <= allowed.bytes, "{allowed:?}");
            assert_eq!(fixture.control.stats().probes, 0);
        }
    }
}

#[test]
fn a_burst_into_the_disk_cache_does_not_set_the_rate() {
    let mut fixture = Fixture::new(DISK);
    fixture.beside_and_clean(12 * MS, 10 * MS, 550_000_000);
    for _ in 0..60 {
        fixture.beside_and_clean(12 * MS, 10 * MS, 110_000_000);
    }
    let bytes = fixture.quota(ThrottleClass::Background).bytes;
    // 25 ms of slack.
    assert!((2_500_000..3_200_000).contains(&bytes), "{bytes}");
}

#[test]
fn when_reads_are_slow_whatever_is_done_writes_get_a_part() {
    let mut fixture = Fixture::known();
    for _ in 0..50 {
        fixture.beside(200 * MS, 500_000_000);
    }
    // An eighth of 200 ms, and no more than without reads.
    let bytes = fixture.quota(ThrottleClass::Background).bytes;
    assert!((5_000_000..=10_000_000).contains(&bytes), "{bytes}");
    fixture.beside(1000 * MS / 8, 500_000_000);
    for _ in 0..10 {
        fixture.beside(MS, 500_000_000);
    }
    assert!(fixture.quota(ThrottleClass::Background).bytes <= 16 << 10, "and only then");
}

#[test]
fn one_reader_that_never_pauses_costs_few_probes_in_the_end() {
    let mut fixture = Fixture::new(FLASH);
    let mut held_ns = 0;
    while fixture.now_ns < 100_000 * MS {
        held_ns += if fixture.holds() { fixture.control.window_ns() } else { 0 };
        fixture.beside(50 * MS, 20_000_000);
    }
    assert!(held_ns < fixture.now_ns / 40, "{held_ns} of {}", fixture.now_ns);
}

/// The reads with which a write cache is opened made the flush of it, within a second, pause for
/// 100 ms of every 200: each window without a tail was followed by a probe.
#[test]
fn reads_that_come_no_more_cause_no_more_probes() {
    let mut fixture = Fixture::new(DISK);
    fixture.beside(MS, 500_000_000);
    let writes = WindowSample {
        writes: 1000,
        write_bytes: 50_000_000,
        write_busy_ns: 100 * MS,
        in_flight: 64,
        held: true,
        ..WindowSample::default()
    };
    let mut probes = 0;
    for _ in 0..20 {
        probes += u64::from(fixture.holds());
        fixture.window(writes.clone());
    }
    assert_eq!(probes, 1, "the one after the window with reads");
}

#[test]
fn one_bad_clean_read_is_forgotten() {
    let mut fixture = Fixture::new(FLASH);
    fixture.window(WindowSample { clean_reads: reads(1, 50 * MS), ..WindowSample::default() });
    fixture.window(WindowSample { clean_reads: reads(7, 100_000), ..WindowSample::default() });
    assert_eq!(fixture.control.stats().clean_read_ns, Some(50 * MS));
    for _ in 0..60 {
        fixture.window(WindowSample { clean_reads: reads(8, 100_000), ..WindowSample::default() });
    }
    assert_eq!(fixture.control.stats().clean_read_ns, Some(100_000));
}

#[test]
fn off_is_off_and_a_set_target_is_kept() {
    let mut fixture = Fixture::known();
    fixture.control.set_target(LatencyTarget::Off);
    assert_eq!(fixture.control.target_ns(), 0);
    fixture.control.set_target(LatencyTarget::Ns(5 * MS));
    assert_eq!(fixture.control.target_ns(), 5 * MS);
    assert_eq!(fixture.control.stats().target_source, TargetSource::Set);
    assert_eq!(fixture.control.stats().clean_read_ns, None, "as if nothing had been seen");
    let mut fixture = Fixture::known();
    fixture.control.set_device(DISK);
    assert_eq!(fixture.control.target_ns(), 75 * MS);
}

fn any_sample() -> impl Strategy<Value = WindowSample> {
    let window = (1_000_000_u64..200_000_000, 0_u64..=100, 0_u64..4_000_000_000);
    let seen = (0_u32..300, 1_000_u64..20_000_000_000, 0_u32..100, 1_000_u64..1_000_000_000);
    let inputs = (prop::option::of(0_u64..20_000_000_000), 0_u32..40, any::<(bool, bool)>());
    (window, seen, inputs).prop_map(|((window_ns, busy, write_bytes), seen, inputs)| {
        let (count, read_ns, clean, clean_ns) = seen;
        let (read_outstanding_ns, in_flight, (held, dirty_waited)) = inputs;
        WindowSample {
            window_ns,
            reads: reads(count, read_ns),
            clean_reads: reads(clean, clean_ns),
            writes: count,
            write_bytes,
            write_busy_ns: window_ns * busy / 100,
            read_outstanding_ns,
            in_flight,
            held,
            dirty_waited,
            ..WindowSample::default()
        }
    })
}

fn any_device() -> impl Strategy<Value = DeviceTraits> {
    (1_u32..2000, any::<bool>()).prop_map(|(queue_depth, rotational)| DeviceTraits {
        queue_depth,
        rotational,
        volatile_cache: true,
    })
}

proptest! {
    #[test]
    fn whatever_comes_something_may_go_and_a_probe_ends(
        device in any_device(),
        target in prop::option::of(1_u64..1_000_000_000),
        samples in prop::collection::vec(any_sample(), 1..60),
    ) {
        let mut fixture = Fixture::new(device);
        fixture.control.set_target(target.map_or(LatencyTarget::Default, LatencyTarget::Ns));
        let mut held_before = false;
        for sample in samples {
            fixture.now_ns += sample.window_ns;
            fixture.control.close_window(&WindowSample { now_ns: fixture.now_ns, ..sample });
            let holds = fixture.holds();
            prop_assert!(!(holds && held_before), "PO-A3: two probes follow each other");
            if holds {
                prop_assert!(fixture.control.wants_timer());
                prop_assert!(fixture.control.window_ns() <= PROBE_MAX_NS);
            } else {
                for class in &ThrottleClass::ALL[..3] {
                    let allowed = fixture.quota(*class);
                    prop_assert!(allowed.ios > 1);
                    prop_assert!(allowed.piece_bytes >= 4 << 10);
                    prop_assert!(allowed.bytes >= 2 * u64::from(allowed.piece_bytes), "PO-A2");
                }
                prop_assert!(fixture.quota(ThrottleClass::Discard).ios > 0);
                let allowed = |class| fixture.quota(class).bytes;
                prop_assert!(allowed(ThrottleClass::Sync) >= allowed(ThrottleClass::Normal));
                prop_assert!(allowed(ThrottleClass::Normal) >= allowed(ThrottleClass::Background));
            }
            held_before = holds;
            prop_assert!((GAIN_MIN..=GAIN_MAX).contains(&fixture.control.gain), "PO-A5");
            let limits = (fixture.control.limits.lone_bytes, fixture.control.limits.limit_bytes);
            prop_assert_eq!(limits, (fixture.control.lone_bytes(), fixture.control.limit_bytes()));
            let piece_bytes = u64::from(fixture.control.limits.piece_bytes);
            prop_assert_eq!(piece_bytes, fixture.control.piece_bytes());
            prop_assert!((1..=WINDOW_NS).contains(&fixture.control.window_ns()));
            let limits = fixture.control.limits();
            let lone = limits.quota(ThrottleClass::Background, &Inputs::default());
            prop_assert!(lone.bytes >= LONE_MIN_BYTES, "PO-A4");
            prop_assert!(lone.ios >= 2 && lone.ios <= device.queue_depth.max(2), "PO-A6");
        }
    }

    #[test]
    fn more_gain_rate_or_slack_never_allows_less(
        device in any_device(),
        (gain, more_gain) in (GAIN_MIN..=GAIN_MAX, GAIN_MIN..=GAIN_MAX),
        (rate, more_rate) in (1_u64..20_000_000_000, 1_u64..20_000_000_000),
        (target, more_target) in (1_u64..1_000_000_000, 1_u64..1_000_000_000),
    ) {
        let control = |gain, rate, target| {
            let mut control = Control::new(device);
            control.target = LatencyTarget::Ns(target);
            control.gain = gain;
            control.rate = Some(rate);
            control
        };
        let less = control(gain.min(more_gain), rate.min(more_rate), target.min(more_target));
        let more = control(gain.max(more_gain), rate.max(more_rate), target.max(more_target));
        prop_assert!(more.limit_bytes() >= less.limit_bytes());
        prop_assert!(more.piece_bytes() >= less.piece_bytes());
        // A boost alone never lowers the depth.
        let boosted = Control { gain: gain.max(more_gain), ..less.clone() };
        prop_assert!(boosted.depth().background >= less.depth().background);
        prop_assert!(boosted.limit_bytes() >= less.limit_bytes());
    }
}

#[test]
fn a_quarter_of_the_queue_is_left_to_waited_for_requests() {
    for (queue_depth, ios) in [(1, 2), (2, 2), (3, 3), (4, 3), (32, 24), (256, 192)] {
        let fixture = Fixture::new(DeviceTraits { queue_depth, ..FLASH });
        for inputs in [Inputs::default(), fixture.inputs()] {
            let allowed = |class| fixture.control.limits().quota(class, &inputs).ios;
            assert_eq!(
                [ThrottleClass::Normal, ThrottleClass::Background].map(allowed),
                [ios; 2],
                "of {queue_depth}"
            );
            assert_eq!(allowed(ThrottleClass::Sync), u32::MAX);
        }
    }
}
