// SPDX-License-Identifier: Apache-2.0 OR MIT
//! The published depths, windows and traces; and invariants under random windows.
use proptest::prelude::*;

use super::super::LatencyHistogram;
use super::*;

const STEPS: [i32; 11] = [-6, -4, -3, -2, -1, 0, 1, 2, 3, 4, 5];

/// A row for each queue depth: max/normal/background at each of [`STEPS`], `*` where a boost can't
/// go on.
const DEPTHS: &str = "\
1 2/2/1* 2/2/1* 2/2/1* 2/2/1* 2/2/1* 2/2/1* 1/1/1 1/1/1 1/1/1 1/1/1 1/1/1
2 1/1/1* 1/1/1* 1/1/1* 1/1/1* 1/1/1* 2/2/1 1/1/1 1/1/1 1/1/1 1/1/1 1/1/1
3 2/2/1* 2/2/1* 2/2/1* 2/2/1* 2/2/1* 3/2/1 2/2/1 1/1/1 1/1/1 1/1/1 1/1/1
4 3/2/1* 3/2/1* 3/2/1* 3/2/1* 3/2/1* 4/2/1 2/2/1 1/1/1 1/1/1 1/1/1 1/1/1
8 6/3/2* 6/3/2* 6/3/2* 6/3/2* 6/3/2* 8/4/2 4/2/1 2/2/1 1/1/1 1/1/1 1/1/1
16 12/6/3* 12/6/3* 12/6/3* 12/6/3* 12/6/3* 16/8/4 8/4/2 4/2/1 2/2/1 1/1/1 1/1/1
21 15/8/4* 15/8/4* 15/8/4* 15/8/4* 15/8/4* 16/8/4 8/4/2 4/2/1 2/2/1 1/1/1 1/1/1
22 16/8/4* 16/8/4* 16/8/4* 16/8/4* 16/8/4* 16/8/4 8/4/2 4/2/1 2/2/1 1/1/1 1/1/1
31 23/12/6* 23/12/6* 23/12/6* 23/12/6* 23/12/6* 16/8/4 8/4/2 4/2/1 2/2/1 1/1/1 1/1/1
32 24/12/6* 24/12/6* 24/12/6* 24/12/6* 24/12/6* 16/8/4 8/4/2 4/2/1 2/2/1 1/1/1 1/1/1
64 48/24/12* 48/24/12* 48/24/12* 48/24/12* 31/16/8 16/8/4 8/4/2 4/2/1 2/2/1 1/1/1 1/1/1
128 96/48/24* 96/48/24* 96/48/24* 61/31/16 31/16/8 16/8/4 8/4/2 4/2/1 2/2/1 1/1/1 1/1/1
256 192/96/48* 192/96/48* 121/61/31 61/31/16 31/16/8 16/8/4 8/4/2 4/2/1 2/2/1 1/1/1 1/1/1
1023 767/384/192* 241/121/61 121/61/31 61/31/16 31/16/8 16/8/4 8/4/2 4/2/1 2/2/1 1/1/1 1/1/1";

fn depth(max: u32, normal: u32, background: u32) -> Depth {
    Depth { max, normal, background }
}

#[test]
fn every_published_depth() {
    let mut cells = 0;
    for row in DEPTHS.lines() {
        let mut words = row.split(' ');
        let queue_depth: u32 = words.next().unwrap().parse().unwrap();
        for step in STEPS {
            let (d, is_bounded) = depth_at(KernelParams::default(), queue_depth, step);
            let star = if is_bounded { "*" } else { "" };
            let cell = format!("{}/{}/{}{star}", d.max, d.normal, d.background);
            assert_eq!(Some(&*cell), words.next(), "queue depth {queue_depth}, step {step}");
            cells += 1;
        }
        assert_eq!(words.next(), None);
    }
    assert_eq!(cells, 14 * 11);
}

#[test]
fn the_rule_as_first_published_scales_other_devices_from_64() {
    let params = KernelParams { default_depth: 64, qd1: Qd1Rule::Always };
    let at = |queue_depth, step| depth_at(params, queue_depth, step).0;
    for step in 0..6 {
        assert_eq!(at(1, step), depth(2, 2, 1));
    }
    assert_eq!(at(32, 0), depth(32, 16, 8));
    assert_eq!(at(32, 1), depth(16, 8, 4));
    assert_eq!(at(32, 2), depth(8, 4, 2));
    assert_eq!(at(128, 0), depth(64, 32, 16));
    // The sample of a trace that was published: window 72727272, background 8, normal 16, max 32.
    assert_eq!((at(128, 1), window_at(1)), (depth(32, 16, 8), 72_727_272));
}

#[test]
fn without_its_rule_a_device_of_queue_depth_1_has_one_in_flight() {
    let params = KernelParams { qd1: Qd1Rule::None, ..KernelParams::default() };
    for step in -3..4 {
        assert_eq!(depth_at(params, 1, step).0, depth(1, 1, 1));
    }
    assert_eq!(depth_at(params, 2, 0), depth_at(KernelParams::default(), 2, 0));
}

#[test]
fn every_published_window() {
    for (step, ns) in [
        (-3, 100_000_000),
        (0, 100_000_000),
        (1, 72_727_272),
        (2, 59_259_259),
        (3, 50_000_000),
        (4, 45_714_285),
        (5, 41_025_641),
        (6, 38_095_238),
        (7, 35_555_555),
        (8, 33_333_333),
        (15, 25_000_000),
        (31, 17_777_777),
    ] {
        assert_eq!(window_at(step), ns, "step {step}");
    }
}

fn control(queue_depth: u32) -> Control {
    Control::new(DeviceTraits { queue_depth, rotational: false, volatile_cache: false })
}

fn reads(all_ns: &[u64]) -> LatencyHistogram {
    let mut reads = LatencyHistogram::default();
    all_ns.iter().for_each(|ns| reads.record(*ns));
    reads
}

fn writes_alone() -> WindowSample {
    WindowSample { writes: 100, in_flight: 4, ..WindowSample::default() }
}

fn reads_of(all_ns: &[u64]) -> WindowSample {
    WindowSample { reads: reads(all_ns), ..writes_alone() }
}

#[test]
fn the_published_trace() {
    let mut control = control(128);
    let mut close = |sample: &WindowSample| {
        let verdict = control.close_window(sample);
        let d = control.depth();
        (verdict, control.step(), (d.max, d.normal, d.background), control.window_ns())
    };
    use Verdict::{Exceeded, Ok, Unknown, UnknownWrites};
    let full = 100_000_000;
    assert_eq!(close(&writes_alone()), (UnknownWrites, -1, (31, 16, 8), full));
    assert_eq!(close(&writes_alone()), (UnknownWrites, -2, (61, 31, 16), full));
    assert_eq!(close(&writes_alone()), (UnknownWrites, -3, (96, 48, 24), full));
    assert_eq!(
        close(&writes_alone()),
        (UnknownWrites, -3, (96, 48, 24), full),
        "as far as it goes"
    );
    let slow = reads_of(&[2_446_000, 9_000_000]);
    assert_eq!(close(&slow), (Exceeded, 0, (16, 8, 4), full), "at once");
    assert_eq!(close(&slow), (Exceeded, 1, (8, 4, 2), 72_727_272));
    assert_eq!(close(&slow), (Exceeded, 2, (4, 2, 1), 59_259_259));
    assert_eq!(close(&slow), (Exceeded, 3, (2, 2, 1), 50_000_000));
    assert_eq!(close(&slow), (Exceeded, 4, (1, 1, 1), 45_714_285));
    assert_eq!(close(&slow), (Exceeded, 4, (1, 1, 1), 45_714_285), "it refuses");
    // One quick read hides the slow ones: the shortest is the signal.
    let quick = reads_of(&[1_999_999, 50_000_000]);
    for step in [3, 2, 1, 0, -1] {
        let (verdict, now, ..) = close(&quick);
        assert_eq!((verdict, now), (Ok, step));
    }
    for step in [-1, -1, -1, -1, 0] {
        let (verdict, now, ..) = close(&WindowSample::default());
        assert_eq!((verdict, now), (Unknown, step));
    }
}

#[test]
fn without_a_sign_five_windows_move_a_step_towards_0() {
    let mut control = control(128);
    for _ in 0..3 {
        control.close_window(&reads_of(&[5_000_000]));
    }
    let mut steps = Vec::new();
    while control.wants_timer() {
        control.close_window(&WindowSample::default());
        steps.push(control.step());
    }
    assert_eq!(steps, [3, 3, 3, 3, 2, 2, 2, 2, 2, 1, 1, 1, 1, 1, 0]);
}

#[test]
fn verdicts_are_found_in_their_order() {
    let judge = |sample: WindowSample| control(16).judge(&sample);
    let stuck = |ns, sample| WindowSample { read_outstanding_ns: Some(ns), ..sample };
    assert_eq!(judge(stuck(100_000_001, reads_of(&[1]))), Verdict::Exceeded);
    assert_eq!(judge(stuck(100_000_000, reads_of(&[1]))), Verdict::Ok);
    assert_eq!(judge(stuck(2_000_001, writes_alone())), Verdict::Exceeded);
    assert_eq!(judge(stuck(2_000_000, writes_alone())), Verdict::UnknownWrites);
    assert_eq!(judge(stuck(2_000_001, WindowSample::default())), Verdict::Exceeded);
    let few = |writes| WindowSample { writes, in_flight: 0, ..reads_of(&[5_000_000]) };
    assert_eq!(judge(few(3)), Verdict::Exceeded);
    assert_eq!(judge(few(2)), Verdict::UnknownWrites);
    assert_eq!(judge(few(0)), Verdict::Unknown);
    assert_eq!(judge(WindowSample { in_flight: 1, ..few(0) }), Verdict::UnknownWrites);
    assert_eq!(judge(WindowSample { dirty_waited: true, ..few(0) }), Verdict::UnknownWrites);
    assert_eq!(judge(reads_of(&[2_000_000])), Verdict::Ok);
    assert_eq!(judge(reads_of(&[2_000_001])), Verdict::Exceeded);
}

#[test]
fn limits_by_what_is_written_and_what_was_read() {
    let control = control(16);
    assert_eq!(control.depth(), depth(16, 8, 4));
    let at = Inputs { now_ns: 5_000_000_000, ..Inputs::default() };
    let ago = |ns| Some(at.now_ns - ns);
    let beside_reads = Inputs { last_read_ns: ago(99_999_999), ..at };
    let after_reads = Inputs { last_read_ns: ago(100_000_000), ..at };
    let waiting = Inputs { dirty_wait_ns: ago(999_999_999), ..beside_reads };
    let waited = Inputs { dirty_wait_ns: ago(1_000_000_000), ..at };
    let limits =
        |inputs: &Inputs| ThrottleClass::ALL.map(|class| control.limits().limit(class, inputs));
    assert_eq!(limits(&at), [16, 8, 4, 4]);
    assert_eq!(limits(&beside_reads), [16, 4, 4, 4]);
    assert_eq!(limits(&after_reads), [16, 8, 4, 4]);
    assert_eq!(limits(&waiting), [16, 16, 16, 4]);
    assert_eq!(limits(&waited), [16, 8, 4, 4]);
}

#[test]
fn who_waits_is_woken_with_room_for_half_of_the_background() {
    let mut control = control(16);
    let wakes = |control: &Control, class, range: std::ops::Range<u32>| -> Vec<u32> {
        range.filter(|n| control.limits().wakes(class, *n, &Inputs::default())).collect()
    };
    // Normal 8, background 4.
    assert_eq!(wakes(&control, ThrottleClass::Sync, 0..20), [0, 1, 2, 3, 4, 5, 6]);
    assert_eq!(wakes(&control, ThrottleClass::Discard, 0..20), [0, 1, 2]);
    control.set_device(DeviceTraits { volatile_cache: true, ..control.device });
    assert_eq!(wakes(&control, ThrottleClass::Background, 0..20), [0], "the cache is empty first");
    assert_eq!(wakes(&control, ThrottleClass::Discard, 0..20), [0, 1, 2]);
    let waited = Inputs { now_ns: 9, dirty_wait_ns: Some(8), ..Inputs::default() };
    assert!(
        control.limits().wakes(ThrottleClass::Background, 6, &waited),
        "somebody waits for memory"
    );
}

#[test]
fn a_new_target_or_device_starts_anew() {
    let mut control = control(128);
    control.close_window(&writes_alone());
    control.set_target(LatencyTarget::Ns(5));
    assert_eq!((control.step(), control.depth(), control.target_ns()), (0, depth(16, 8, 4), 5));
    control.close_window(&writes_alone());
    control.set_device(DeviceTraits { queue_depth: 8, ..control.device });
    assert_eq!((control.step(), control.depth(), control.target_ns()), (0, depth(8, 4, 2), 5));
    control.set_target(LatencyTarget::Default);
    assert_eq!(control.target_ns(), 2_000_000);
    control.set_device(DeviceTraits { rotational: true, ..control.device });
    assert_eq!(control.target_ns(), 75_000_000);
}

/// A device of queue depth 2 is boosted to depth 1 by a window of writes alone, from where neither
/// way leads back. The quirk is the kernel's, and one reason for the other algorithm.
#[test]
fn a_boost_may_lower_the_depth_for_ever() {
    let mut control = control(2);
    control.close_window(&writes_alone());
    assert_eq!((control.step(), control.depth()), (-1, depth(1, 1, 1)));
    for sample in [writes_alone(), reads_of(&[1]), reads_of(&[9_000_000]), WindowSample::default()]
    {
        for _ in 0..10 {
            control.close_window(&sample);
            assert_eq!((control.step(), control.depth()), (-1, depth(1, 1, 1)));
        }
    }
}

fn any_sample() -> impl Strategy<Value = WindowSample> {
    let reads_ns = prop::collection::vec(0_u64..10_000_000, 0..3);
    let stuck = prop::option::of(0_u64..300_000_000);
    (reads_ns, stuck, 0_u32..5, 0_u32..3, any::<bool>()).prop_map(
        |(reads_ns, read_outstanding_ns, writes, in_flight, dirty_waited)| WindowSample {
            reads: reads(&reads_ns),
            read_outstanding_ns,
            writes,
            in_flight,
            dirty_waited,
            ..WindowSample::default()
        },
    )
}

proptest! {
    /// PO-K1; and depths stay in order and never stop all requests.
    #[test]
    fn steps_and_depths_are_bounded(
        queue_depth in 1_u32..2000,
        qd1 in prop::sample::select(vec![Qd1Rule::Kernel, Qd1Rule::Always, Qd1Rule::None]),
        samples in prop::collection::vec(any_sample(), 1..200),
    ) {
        let device = DeviceTraits { queue_depth, rotational: false, volatile_cache: false };
        let params = KernelParams { qd1, ..KernelParams::default() };
        let mut control = Control::with_params(device, params);
        for sample in &samples {
            control.close_window(sample);
            let d = control.depth();
            let in_order = d.background >= 1 && d.background <= d.normal && d.normal <= d.max;
            prop_assert!(in_order, "{d:?}");
            prop_assert!(d.max <= queue_depth.max(2));
            prop_assert!((-20..=STEP_MAX).contains(&control.step()), "step {}", control.step());
            if qd1 == Qd1Rule::Kernel {
                prop_assert!(control.step() <= 5);
            }
            prop_assert!(control.window_ns() <= WINDOW_NS);
        }
    }

    /// Without requests the step returns to 0 and the timer stops, after any sequence of events.
    /// Exception: the quirk above, a boost that led to depth 1.
    #[test]
    fn silence_ends_the_timer(
        queue_depth in 3_u32..2000,
        samples in prop::collection::vec(any_sample(), 1..100),
    ) {
        let mut control = control(queue_depth);
        for sample in &samples {
            control.close_window(sample);
        }
        for _ in 0..5 * 32 {
            control.close_window(&WindowSample::default());
        }
        prop_assert!(!control.wants_timer(), "step {}", control.step());
        prop_assert_eq!(control.depth().max, queue_depth.min(16));
    }

    /// With nothing in flight waiting requests are woken and may start.
    #[test]
    fn nobody_waits_for_nothing(
        queue_depth in 1_u32..300,
        volatile_cache in any::<bool>(),
        samples in prop::collection::vec(any_sample(), 0..30),
        now_ns in 0_u64..10_000_000_000,
        read_ago_ns in prop::option::of(0_u64..3_000_000_000),
        wait_ago_ns in prop::option::of(0_u64..3_000_000_000),
    ) {
        let device = DeviceTraits { queue_depth, rotational: false, volatile_cache };
        let mut control = Control::new(device);
        for sample in &samples {
            control.close_window(sample);
        }
        let ago = |ago_ns: Option<u64>| ago_ns.and_then(|ns| now_ns.checked_sub(ns));
        let inputs = Inputs {
            now_ns,
            last_read_ns: ago(read_ago_ns),
            dirty_wait_ns: ago(wait_ago_ns),
        };
        for class in ThrottleClass::ALL {
            prop_assert!(control.limits().wakes(class, 0, &inputs));
            prop_assert!(control.limits().quota(class, &inputs).ios >= 1);
        }
    }
}
