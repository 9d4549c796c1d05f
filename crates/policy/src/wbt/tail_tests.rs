// SPDX-License-Identifier: Apache-2.0 OR MIT
//! The law against made-up windows, and its invariants under any.
use proptest::prelude::*;

use super::*;

const FLASH: Device = Device { queue_depth: 32, rotational: false, volatile_cache: true };
const DISK: Device = Device { rotational: true, ..FLASH };
const MS: u64 = 1_000_000;

fn reads(count: u32, ns: u64) -> Reads {
    let mut reads = Reads::default();
    (0..count).for_each(|_| reads.record(ns));
    reads
}

/// A law and its clock.
struct Lab {
    law: Control,
    now_ns: u64,
}

impl Lab {
    fn new(device: Device) -> Lab {
        Lab { law: Control::new(device), now_ns: 0 }
    }

    fn window(&mut self, sample: Sample) -> Verdict {
        let window_ns = self.law.window_ns();
        self.now_ns += window_ns;
        self.law.close_window(&Sample { now_ns: self.now_ns, window_ns, ..sample })
    }

    /// A window in which a reader is beside writes at `bytes_per_s`.
    fn beside(&mut self, read_ns: u64, bytes_per_s: u64) -> Verdict {
        let window_ns = self.law.window_ns();
        self.window(Sample {
            reads: reads(40, read_ns),
            writes: 100,
            write_bytes: bytes_per_s * (window_ns / 1000) / 1_000_000,
            write_busy_ns: window_ns,
            in_flight: 2,
            held: true,
            ..Sample::default()
        })
    }

    /// As [`Lab::beside`], and a probe in between sees reads of `clean_ns`.
    fn beside_and_clean(&mut self, read_ns: u64, clean_ns: u64, bytes_per_s: u64) -> Verdict {
        if !self.holds() {
            return self.beside(read_ns, bytes_per_s);
        }
        let clean_reads = reads(4, clean_ns);
        self.window(Sample { reads: clean_reads.clone(), clean_reads, ..Sample::default() })
    }

    fn signs(&self) -> Signs {
        Signs { now_ns: self.now_ns, last_read_ns: Some(self.now_ns), ..Signs::default() }
    }

    fn allowance(&self, who: Who) -> Allowance {
        self.law.in_force().allowance(who, &self.signs())
    }

    fn holds(&self) -> bool {
        self.allowance(Who::Background).ios == 0
    }

    /// A device of 500 MB/s with unloaded reads of 100 us, known to the law.
    fn known() -> Lab {
        let mut lab = Lab::new(FLASH);
        for _ in 0..40 {
            lab.beside_and_clean(150_000, 100_000, 500_000_000);
        }
        while lab.holds() {
            lab.beside_and_clean(150_000, 100_000, 500_000_000);
        }
        lab
    }
}

#[test]
fn until_it_is_measured_the_target_is_the_guess() {
    let lab = Lab::new(FLASH);
    assert_eq!(lab.law.target_ns(), 2 * MS);
    assert_eq!(Lab::new(DISK).law.target_ns(), 75 * MS);
    assert_eq!(lab.law.facts().origin, Origin::Guessed);
    assert!(lab.allowance(Who::Background).bytes < 256 << 10, "it starts gently");
}

#[test]
fn the_target_is_measured_in_probes_and_bytes_follow_from_the_rate() {
    let lab = Lab::known();
    let facts = lab.law.facts();
    assert_eq!(facts.origin, Origin::Measured);
    assert_eq!(facts.clean_read_ns, Some(100_000));
    assert_eq!(lab.law.target_ns(), 175_000);
    assert!(facts.probes > 0);
    // 75 us of slack at 500 MB/s.
    assert_eq!(lab.allowance(Who::Background).bytes, 32 << 10);
    assert_eq!(lab.allowance(Who::Background).piece_bytes, 16 << 10);
    assert_eq!(lab.allowance(Who::Normal).bytes, 64 << 10);
    assert_eq!(lab.allowance(Who::Sync).bytes, 128 << 10);
    assert_eq!(lab.law.step(), 0);
}

#[test]
fn reads_of_a_device_that_is_alone_are_measured_without_a_probe() {
    let mut lab = Lab::new(DISK);
    let clean_reads = reads(20, 10 * MS);
    let verdict =
        lab.window(Sample { reads: clean_reads.clone(), clean_reads, ..Sample::default() });
    assert_eq!(verdict, Verdict::Ok);
    assert_eq!(lab.law.target_ns(), 35 * MS);
    assert_eq!(lab.law.facts().probes, 0);
}

#[test]
fn a_disk_that_answers_sooner_than_a_head_could_is_taken_for_flash() {
    let allowed = |device| {
        let mut lab = Lab::new(device);
        for _ in 0..80 {
            lab.beside_and_clean(150_000, 100_000, 500_000_000);
        }
        (lab.law.target_ns(), lab.law.piece_bytes(), lab.law.limit_bytes())
    };
    let (target_ns, piece_bytes, limit_bytes) = allowed(DISK);
    assert_eq!(target_ns, 175_000);
    assert_eq!(piece_bytes, 16 << 10);
    assert!(limit_bytes >= 32 << 10, "{limit_bytes}");
}

#[test]
fn too_long_reads_shrink_the_limit_and_good_ones_give_it_back() {
    let mut lab = Lab::known();
    let before = lab.allowance(Who::Background);
    assert_eq!(lab.beside(500_000, 500_000_000), Verdict::Exceeded);
    let after = lab.allowance(Who::Background);
    assert_eq!(after.bytes, before.bytes / 2);
    assert_eq!(lab.law.step(), 1);
    for _ in 0..100 {
        lab.beside(500_000, 500_000_000);
    }
    let least = lab.allowance(Who::Background);
    assert_eq!((least.bytes, least.piece_bytes), (8 << 10, 4 << 10), "two pieces, whatever comes");
    for _ in 0..100 {
        lab.beside_and_clean(170_000, 100_000, 500_000_000);
    }
    assert_eq!(lab.allowance(Who::Background), before);
}

#[test]
fn a_device_with_long_ways_gets_more_pieces_not_longer_ones() {
    let mut lab = Lab::known();
    let before = lab.allowance(Who::Background);
    for _ in 0..100 {
        lab.beside_and_clean(110_000, 100_000, 500_000_000);
    }
    let after = lab.allowance(Who::Background);
    assert_eq!(after.piece_bytes, before.piece_bytes);
    assert_eq!(after.bytes, before.bytes * GAIN_MAX / GAIN_ONE);
    assert!(lab.law.step() < 0);
    assert!(lab.law.depth().background > 2);
}

#[test]
fn a_read_that_is_stuck_counts_before_it_ends() {
    let mut lab = Lab::known();
    let stuck = Sample {
        read_outstanding_ns: Some(300 * MS),
        writes: 10,
        in_flight: 2,
        held: true,
        ..Sample::default()
    };
    assert_eq!(lab.window(stuck), Verdict::Exceeded);
    assert!(lab.law.step() > 0);
}

#[test]
fn a_lone_writer_is_not_limited_by_what_its_device_can_take() {
    for device in [FLASH, DISK, Device { queue_depth: 1, ..FLASH }] {
        for rate in [1_000_000, 100_000_000, 2_000_000_000] {
            let mut lab = Lab::new(device);
            let alone = Sample {
                writes: 100,
                write_bytes: rate / 10,
                write_busy_ns: WINDOW_NS,
                in_flight: 32,
                ..Sample::default()
            };
            for _ in 0..50 {
                lab.now_ns += WINDOW_NS;
                let (now_ns, window_ns) = (lab.now_ns, WINDOW_NS);
                let verdict = lab.law.close_window(&Sample { now_ns, window_ns, ..alone.clone() });
                assert_eq!(verdict, Verdict::UnknownWrites);
            }
            let allowed = lab.law.in_force().allowance(Who::Background, &Signs::default());
            assert!(allowed.ios >= 2.max(device.queue_depth / 4 * 3), "A6: {allowed:?}");
            let in_20_ms = rate / 50;
            assert!(allowed.bytes >= in_20_ms.max(1 << 20), "{allowed:?} at {rate}");
            assert!(u64::from(allowed.piece_bytes) * 2 <= allowed.bytes, "{allowed:?}");
            assert_eq!(lab.law.facts().probes, 0);
        }
    }
}

#[test]
fn a_cache_that_takes_more_than_the_disk_for_a_moment_is_not_believed_for_long() {
    let mut lab = Lab::new(DISK);
    lab.beside_and_clean(12 * MS, 10 * MS, 550_000_000);
    for _ in 0..60 {
        lab.beside_and_clean(12 * MS, 10 * MS, 110_000_000);
    }
    let bytes = lab.allowance(Who::Background).bytes;
    // 25 ms of slack.
    assert!((2_500_000..3_200_000).contains(&bytes), "{bytes}");
}

#[test]
fn when_reads_are_slow_whatever_is_done_writes_get_a_part() {
    let mut lab = Lab::known();
    for _ in 0..50 {
        lab.beside(200 * MS, 500_000_000);
    }
    // An eighth of 200 ms, and no more than without reads.
    let bytes = lab.allowance(Who::Background).bytes;
    assert!((5_000_000..=10_000_000).contains(&bytes), "{bytes}");
    lab.beside(1000 * MS / 8, 500_000_000);
    for _ in 0..10 {
        lab.beside(MS, 500_000_000);
    }
    assert!(lab.allowance(Who::Background).bytes <= 16 << 10, "and only then");
}

#[test]
fn one_reader_that_never_pauses_costs_few_probes_in_the_end() {
    let mut lab = Lab::new(FLASH);
    let mut held_ns = 0;
    while lab.now_ns < 100_000 * MS {
        held_ns += if lab.holds() { lab.law.window_ns() } else { 0 };
        lab.beside(50 * MS, 20_000_000);
    }
    assert!(held_ns < lab.now_ns / 40, "{held_ns} of {}", lab.now_ns);
}

#[test]
fn one_bad_clean_read_is_forgotten() {
    let mut lab = Lab::new(FLASH);
    lab.window(Sample { clean_reads: reads(1, 50 * MS), ..Sample::default() });
    lab.window(Sample { clean_reads: reads(7, 100_000), ..Sample::default() });
    assert_eq!(lab.law.facts().clean_read_ns, Some(50 * MS));
    for _ in 0..60 {
        lab.window(Sample { clean_reads: reads(8, 100_000), ..Sample::default() });
    }
    assert_eq!(lab.law.facts().clean_read_ns, Some(100_000));
}

#[test]
fn off_is_off_and_a_set_target_is_kept() {
    let mut lab = Lab::known();
    lab.law.set_target(Target::Off);
    assert_eq!(lab.law.target_ns(), 0);
    lab.law.set_target(Target::Ns(5 * MS));
    assert_eq!(lab.law.target_ns(), 5 * MS);
    assert_eq!(lab.law.facts().origin, Origin::Set);
    assert_eq!(lab.law.facts().clean_read_ns, None, "as if nothing had been seen");
    let mut lab = Lab::known();
    lab.law.set_device(DISK);
    assert_eq!(lab.law.target_ns(), 75 * MS);
}

fn any_sample() -> impl Strategy<Value = Sample> {
    let window = (1_000_000_u64..200_000_000, 0_u64..=100, 0_u64..4_000_000_000);
    let seen = (0_u32..300, 1_000_u64..20_000_000_000, 0_u32..100, 1_000_u64..1_000_000_000);
    let signs = (prop::option::of(0_u64..20_000_000_000), 0_u32..40, any::<(bool, bool)>());
    (window, seen, signs).prop_map(|((window_ns, busy, write_bytes), seen, signs)| {
        let (count, read_ns, clean, clean_ns) = seen;
        let (read_outstanding_ns, in_flight, (held, dirty_waited)) = signs;
        Sample {
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
            ..Sample::default()
        }
    })
}

fn any_device() -> impl Strategy<Value = Device> {
    (1_u32..2000, any::<bool>()).prop_map(|(queue_depth, rotational)| Device {
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
        let mut lab = Lab::new(device);
        lab.law.set_target(target.map_or(Target::Default, Target::Ns));
        let mut held_before = false;
        for sample in samples {
            lab.now_ns += sample.window_ns;
            lab.law.close_window(&Sample { now_ns: lab.now_ns, ..sample });
            let holds = lab.holds();
            prop_assert!(!(holds && held_before), "A3: two probes follow each other");
            if holds {
                prop_assert!(lab.law.wants_timer());
                prop_assert!(lab.law.window_ns() <= PROBE_MAX_NS);
            } else {
                for who in [Who::Sync, Who::Normal, Who::Background] {
                    let allowed = lab.allowance(who);
                    prop_assert!(allowed.ios > 1);
                    prop_assert!(allowed.piece_bytes >= 4 << 10);
                    prop_assert!(allowed.bytes >= 2 * u64::from(allowed.piece_bytes), "A2");
                }
                prop_assert!(lab.allowance(Who::Discard).ios > 0);
                let allowed = |who| lab.allowance(who).bytes;
                prop_assert!(allowed(Who::Sync) >= allowed(Who::Normal));
                prop_assert!(allowed(Who::Normal) >= allowed(Who::Background));
            }
            held_before = holds;
            prop_assert!((GAIN_MIN..=GAIN_MAX).contains(&lab.law.gain), "A5");
            let in_force = (lab.law.in_force.lone_bytes, lab.law.in_force.limit_bytes);
            prop_assert_eq!(in_force, (lab.law.lone_bytes(), lab.law.limit_bytes()));
            prop_assert_eq!(u64::from(lab.law.in_force.piece_bytes), lab.law.piece_bytes());
            prop_assert!((1..=WINDOW_NS).contains(&lab.law.window_ns()));
            let lone = lab.law.in_force().allowance(Who::Background, &Signs::default());
            prop_assert!(lone.bytes >= LONE_MIN_BYTES, "A4");
            prop_assert!(lone.ios >= 2 && lone.ios <= device.queue_depth.max(2), "A6");
        }
    }

    #[test]
    fn more_gain_rate_or_slack_never_allows_less(
        device in any_device(),
        (gain, more_gain) in (GAIN_MIN..=GAIN_MAX, GAIN_MIN..=GAIN_MAX),
        (rate, more_rate) in (1_u64..20_000_000_000, 1_u64..20_000_000_000),
        (target, more_target) in (1_u64..1_000_000_000, 1_u64..1_000_000_000),
    ) {
        let law = |gain, rate, target| {
            let mut law = Control::new(device);
            law.target = Target::Ns(target);
            law.gain = gain;
            law.rate = Some(rate);
            law
        };
        let less = law(gain.min(more_gain), rate.min(more_rate), target.min(more_target));
        let more = law(gain.max(more_gain), rate.max(more_rate), target.max(more_target));
        prop_assert!(more.limit_bytes() >= less.limit_bytes());
        prop_assert!(more.piece_bytes() >= less.piece_bytes());
        // A boost alone never lowers the depth.
        let boosted = Control { gain: gain.max(more_gain), ..less.clone() };
        prop_assert!(boosted.depth().background >= less.depth().background);
        prop_assert!(boosted.limit_bytes() >= less.limit_bytes());
    }
}

#[test]
fn a_quarter_of_the_queue_is_left_to_those_whom_somebody_waits_for() {
    for (queue_depth, ios) in [(1, 2), (2, 2), (3, 3), (4, 3), (32, 24), (256, 192)] {
        let lab = Lab::new(Device { queue_depth, ..FLASH });
        for signs in [Signs::default(), lab.signs()] {
            let allowed = |who| lab.law.in_force().allowance(who, &signs).ios;
            assert_eq!([Who::Normal, Who::Background].map(allowed), [ios; 2], "of {queue_depth}");
            assert_eq!(allowed(Who::Sync), u32::MAX);
        }
    }
}
