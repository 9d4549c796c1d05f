// SPDX-License-Identifier: Apache-2.0 OR MIT
//! Both algorithms with random clocks, devices and targets: nothing overflows, and requests may
//! always start, at the latest after a few windows.
use proptest::prelude::*;

use super::*;

/// Usual numbers and extreme ones.
fn any_ns() -> impl Strategy<Value = u64> {
    prop_oneof![
        Just(0),
        Just(1),
        0_u64..1 << 20,
        0_u64..1 << 40,
        Just(1 << 60),
        Just(u64::MAX / 2),
        Just(u64::MAX),
    ]
}

fn any_reads() -> impl Strategy<Value = LatencyHistogram> {
    prop::collection::vec((any_ns(), 1_usize..40), 0..4).prop_map(|all| {
        let mut reads = LatencyHistogram::default();
        for (ns, times) in all {
            (0..times).for_each(|_| reads.record(ns));
        }
        reads
    })
}

fn any_target() -> impl Strategy<Value = LatencyTarget> {
    prop_oneof![
        Just(LatencyTarget::Off),
        Just(LatencyTarget::Default),
        any_ns().prop_map(LatencyTarget::Ns)
    ]
}

fn any_window() -> impl Strategy<Value = (u64, WindowSample)> {
    let reads = (any_reads(), any_reads());
    let numbers = (any_ns(), any_ns(), any::<u32>(), any_ns(), 0_u32..3);
    let flags = (any::<bool>(), any::<bool>());
    let outstanding = prop::option::of(any_ns());
    let clock = prop_oneof![Just(0), 0_u64..1 << 30, Just(1 << 50)];
    (clock, reads, numbers, flags, outstanding).prop_map(|(goes_on_ns, reads, n, flags, out)| {
        let sample = WindowSample {
            now_ns: 0,
            window_ns: n.0,
            reads: reads.0,
            clean_reads: reads.1,
            writes: n.2,
            write_bytes: n.1,
            write_busy_ns: n.3,
            read_outstanding_ns: out,
            in_flight: n.4,
            dirty_waited: flags.0,
            held: flags.1,
        };
        (goes_on_ns, sample)
    })
}

proptest! {
    #[test]
    fn nothing_overflows_and_nobody_is_held_for_long(
        kernel in any::<bool>(),
        (queue_depth, rotational, volatile_cache) in (any::<u32>(), any::<bool>(), any::<bool>()),
        windows in prop::collection::vec(
            (any_window(), prop::option::weighted(0.1, any_target())),
            1..60,
        ),
    ) {
        let mode = if kernel { Mode::Kernel } else { Mode::Tail };
        let device = DeviceTraits { queue_depth, rotational, volatile_cache };
        let mut control = Control::new(mode, device);
        let (mut now_ns, mut held) = (0_u64, 0);
        for ((goes_on_ns, sample), target) in windows {
            now_ns += goes_on_ns;
            if let Some(target) = target {
                control.set_target(target);
                held = 0;
            }
            control.close_window(&WindowSample { now_ns, ..sample });
            let inputs = Inputs { now_ns, last_read_ns: Some(now_ns), ..Inputs::default() };
            let limits = control.limits();
            let allowed = ThrottleClass::ALL.map(|class| limits.quota(class, &inputs));
            let is_held = allowed.iter().any(|a| a.ios == 0);
            held = if is_held { held + 1 } else { 0 };
            prop_assert!(held <= 1, "two windows in a row");
            prop_assert!(!is_held || control.wants_timer());
            prop_assert!(allowed[0].ios > 0, "somebody waits for it");
            prop_assert!(allowed.iter().all(|a| a.piece_bytes > 0));
            prop_assert!(allowed[1..3].iter().all(|a| a.piece_bytes == allowed[0].piece_bytes));
            prop_assert!((1..=1_000_000_000).contains(&control.window_ns()));
            let background = ThrottleClass::Background;
            prop_assert!(limits.wakes(background, 0, &inputs), "with nothing in flight");
            let _ = (control.depth(), control.stats(), control.step());
        }
    }
}
