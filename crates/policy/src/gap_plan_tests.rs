// SPDX-License-Identifier: Apache-2.0 OR MIT
//! Tests of the choice of gaps.

use super::Contents::{Closed, Known, Unknown};
use super::*;
use crate::request_costs::RequestCost;

const KIB: u64 = 1 << 10;

/// The disk of the published run: 223 us a command beside what passes, 150 MB/s.
fn disk() -> Costs {
    Costs::with_head(223_000, 6_990_506, 6_990_506)
}

fn steps(n: usize, run: u64, gap: u64, contents: Contents) -> Vec<Step> {
    vec![Step { run, gap, contents }; n]
}

fn counts(fills: &[Fill]) -> [usize; 3] {
    FILLS.map(|fill| fills.iter().filter(|&&f| f == fill).count())
}

#[test]
fn a_cheap_gap_is_read_and_a_cached_gap_is_always_copied() {
    // KiB of run and gap, contents, whether most gaps are filled.
    let table = [
        (8, 8, Unknown, true),
        (8, 20, Unknown, true),
        (8, 32, Unknown, false), // 40 KiB pass in 273 us
        (4, 36, Unknown, false), // one block in ten
        (24, 4, Unknown, true),
        (40, 4, Unknown, false), // long runs: reading them again costs more than the skip
        (8, 8, Known, true),
        (4, 200, Known, true),
        (8, 8, Closed, false),
    ];
    for (run, gap, contents, filled) in table {
        let fills = fill(&disk(), &steps(4000, run * KIB, gap * KIB, contents), u64::MAX);
        let [skipped, ..] = counts(&fills);
        assert_eq!(skipped == 1, filled, "{run} KiB, {gap} KiB, {contents:?}: {skipped}");
        assert!(filled || skipped == 4000, "{run} KiB, {gap} KiB, {contents:?}: {skipped}");
    }
}

#[test]
fn a_short_stretch_fills_only_its_cached_gaps() {
    // A gap saves 223 - 107 us: 48 ms are 415 of them, and a few for the beginning.
    for (n, reads) in [(10, false), (400, false), (500, true)] {
        let mut stretch = steps(n, 8 * KIB, 8 * KIB, Unknown);
        stretch.extend(steps(5, 8 * KIB, 8 * KIB, Known));
        let [_, copied, read] = counts(&fill(&disk(), &stretch, u64::MAX));
        assert_eq!((copied, read > 0), (5, reads), "{n}");
    }
}

#[test]
fn one_long_gap_among_short_ones_is_read_a_closed_one_not() {
    let mut stretch = steps(1000, 8 * KIB, 8 * KIB, Unknown);
    // Two commands more, and the run before read for nothing: 400 us, 60 KiB.
    stretch[500].gap = 40 * KIB;
    assert_eq!(counts(&fill(&disk(), &stretch, u64::MAX)), [1, 0, 999]);
    stretch[500].gap = 200 * KIB;
    assert_eq!(fill(&disk(), &stretch, u64::MAX)[500], Fill::Skip);
    stretch[500] = Step { gap: 4 * KIB, contents: Closed, ..stretch[500] };
    assert_eq!(counts(&fill(&disk(), &stretch, u64::MAX)), [2, 0, 998]);
}

#[test]
fn the_choice_is_the_best_of_all() {
    // All ways to treat the gaps of short stretches, with costs that make them near to each other.
    let costs = Costs::with_head(16_000_000, 1000 * 1000 * 1000, 6_990_506);
    let mut chance = 1_u64;
    for _ in 0..300 {
        let stretch: Vec<Step> = (0..6)
            .map(|_| {
                chance = chance.wrapping_mul(6_364_136_223_846_793_005).wrapping_add(1);
                let contents = [Known, Unknown, Unknown, Closed][(chance >> 60) as usize % 4];
                Step { run: (chance >> 50) % 9 * KIB, gap: (chance >> 40) % 17 * KIB, contents }
            })
            .collect();
        let saved = |fills: &[Fill]| -> Option<i64> {
            let mut total = 0;
            for n in 1..stretch.len() {
                let read = |bytes| clamp(time_ns(bytes, costs.read.ns_per_mib));
                total += match (fills[n], stretch[n].contents) {
                    (Fill::Skip, _) => 0,
                    (Fill::Copy, Known) => clamp(costs.write.command_ns),
                    (Fill::Read, Unknown) if fills[n - 1] == Fill::Read => {
                        clamp(costs.write.command_ns) - read(stretch[n].gap + stretch[n].run)
                    }
                    (Fill::Read, Unknown) => {
                        -read(stretch[n - 1].run) - read(stretch[n].gap + stretch[n].run)
                    }
                    (Fill::Copy | Fill::Read, _) => return None,
                };
            }
            Some(total)
        };
        let all = (0..3_usize.pow(5)).filter_map(|code| {
            let mut fills = vec![Fill::Skip];
            fills.extend((0..5).map(|n| FILLS[code / 3_usize.pow(n) % 3]));
            saved(&fills)
        });
        let (found, claimed) =
            best(&costs, &stretch, true, Price { write: PRICE_ONE, read: PRICE_ONE });
        assert_eq!(Some(claimed), all.max(), "{stretch:?}");
        assert_eq!(saved(&found), Some(claimed), "{stretch:?}: {found:?}");
    }
}

/// A volume of a cloud: 3000 requests and 125 MiB a second, side by side.
fn volume() -> Costs {
    let cost = RequestCost { command_ns: 333_333, ns_per_mib: 8_000_000, side_by_side: true };
    Costs::without_head(cost, cost)
}

/// Runs and gaps of random blocks, of which so many of a hundred are dirty.
fn random_steps(percent: u64, contents: Contents) -> Vec<Step> {
    let mut chance = 1_u64;
    let mut dirty = || {
        chance = chance.wrapping_mul(6_364_136_223_846_793_005).wrapping_add(1);
        (chance >> 33) % 100 < percent
    };
    let mut steps = Vec::new();
    let (mut run, mut gap) = (0, 0);
    for _ in 0..8192 {
        match (dirty(), run) {
            (true, _) => run += 4 * KIB,
            (false, 0) => gap += 4 * KIB,
            (false, _) => {
                steps.push(Step { run, gap, contents });
                (run, gap) = (0, 4 * KIB);
            }
        }
    }
    steps
}

/// The bounds are those of the best length up to which all gaps are filled.
#[test]
fn a_volume_with_two_limits_gets_the_gaps_that_balance_them() {
    for percent in [10, 25, 49, 90] {
        let steps = random_steps(percent, Unknown);
        let up_to = |most: u64| {
            let fills: Vec<Fill> = (0..steps.len())
                .map(|n| if n > 0 && steps[n].gap <= most { Fill::Read } else { Fill::Skip })
                .collect();
            time_of(&volume(), &steps, &fills)
        };
        let bound_ns = (0..64).map(|blocks| up_to(blocks * 4 * KIB)).min().unwrap();
        let found_ns = time_of(&volume(), &steps, &fill(&volume(), &steps, u64::MAX));
        assert!(found_ns <= bound_ns + bound_ns / 50, "{percent} %: {found_ns}, {bound_ns}");
    }
}

#[test]
fn a_drive_that_is_limited_by_bytes_gets_no_gap() {
    let cost = |ns_per_mib| RequestCost { command_ns: 1_600, ns_per_mib, side_by_side: true };
    let drive = Costs::without_head(cost(327_000), cost(524_000));
    for percent in [10, 25, 49, 90] {
        for contents in [Known, Unknown] {
            let steps = random_steps(percent, contents);
            let [skipped, ..] = counts(&fill(&drive, &steps, u64::MAX));
            assert_eq!(skipped, steps.len(), "{percent} %, {contents:?}");
        }
    }
}

#[test]
fn no_more_is_filled_than_is_allowed() {
    let filled = |steps: &[Step], fills: &[Fill]| -> u64 {
        let gaps = steps.iter().zip(fills).filter(|(_, fill)| **fill != Fill::Skip);
        gaps.map(|(step, _)| step.gap).sum()
    };
    for contents in [Known, Unknown] {
        let steps = random_steps(49, contents);
        let all = filled(&steps, &fill(&volume(), &steps, u64::MAX));
        for most in [0, 4 * KIB, 1 << 20, all, 2 * all] {
            let fills = fill(&volume(), &steps, most);
            assert!(filled(&steps, &fills) <= most, "PO-GP1: {most}");
            assert_eq!(filled(&steps, &fills) > 0, most > 1 << 19, "{most}");
            let fills = explore(&steps, 8 * KIB, most);
            assert!(filled(&steps, &fills) <= most, "PO-GP1: {most}");
        }
    }
}

#[test]
fn a_closed_gap_is_not_explored_and_long_ones_in_one_half_only() {
    let mut stretch = steps(100, 4 * KIB, 12 * KIB, Unknown);
    stretch[70].contents = Closed;
    stretch[80].contents = Known;
    let fills = explore(&stretch, 8 * KIB, u64::MAX);
    assert_eq!(counts(&fills), [51, 0, 49]);
    assert_eq!((fills[49], fills[50], fills[70]), (Fill::Skip, Fill::Read, Fill::Skip));
}
