// SPDX-License-Identifier: Apache-2.0 OR MIT
//! Tests of the cost model and of the choice of gaps.

use super::Contents::{Closed, Known, Unknown};
use super::*;

const KIB: u64 = 1 << 10;
/// The disk of the published run: 223 us a command beside what passes, 150 MB/s.
const DISK: Costs = Costs {
    command_ns: 223_000,
    read_ns_per_mib: 6_990_506,
    write_ns_per_mib: 6_990_506,
    copy_ns_per_mib: 0,
};

/// A batch without copies.
fn batch(commands: u64, passed_bytes: u64) -> Batch {
    Batch { commands, passed_bytes, copied_bytes: 0 }
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
        let fills = fill(DISK, &steps(4000, run * KIB, gap * KIB, contents));
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
        let [_, copied, read] = counts(&fill(DISK, &stretch));
        assert_eq!((copied, read > 0), (5, reads), "{n}");
    }
}

#[test]
fn one_long_gap_among_short_ones_is_read_a_closed_one_not() {
    let mut stretch = steps(1000, 8 * KIB, 8 * KIB, Unknown);
    // Two commands more, and the run before read for nothing: 400 us, 60 KiB.
    stretch[500].gap = 40 * KIB;
    assert_eq!(counts(&fill(DISK, &stretch)), [1, 0, 999]);
    stretch[500].gap = 200 * KIB;
    assert_eq!(fill(DISK, &stretch)[500], Fill::Skip);
    stretch[500] = Step { gap: 4 * KIB, contents: Closed, ..stretch[500] };
    assert_eq!(counts(&fill(DISK, &stretch)), [2, 0, 998]);
}

#[test]
fn the_choice_is_the_best_of_all() {
    // All ways to treat the gaps of short stretches, with costs that make them near to each other.
    let costs = Costs { command_ns: TURNAROUND_NS, read_ns_per_mib: 1000 * 1000 * 1000, ..DISK };
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
                let read = |bytes| clamp(time_ns(bytes, costs.read_ns_per_mib));
                total += match (fills[n], stretch[n].contents) {
                    (Fill::Skip, _) => 0,
                    (Fill::Copy, Known) => clamp(costs.command_ns),
                    (Fill::Read, Unknown) if fills[n - 1] == Fill::Read => {
                        clamp(costs.command_ns) - read(stretch[n].gap + stretch[n].run)
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
        let (found, claimed) = best(costs, &stretch, true);
        assert_eq!(Some(claimed), all.max(), "{stretch:?}");
        assert_eq!(saved(&found), Some(claimed), "{stretch:?}: {found:?}");
    }
}

#[test]
fn nothing_is_known_before_two_batches_of_commands() {
    let mut model = CostModel::new();
    let commands = batch(1000, 16 << 20);
    assert_eq!(model.costs(), None);
    model.wrote(batch(10, 160 << 10), 10_000_000);
    model.wrote(batch(64, 64 << 20), 500_000_000);
    model.wrote(commands, SAMPLE_NS_MIN - 1);
    assert_eq!(model.costs(), None, "too few, a stream, and too short to tell");
    model.wrote(commands, 10_000_000_000); // with a stall
    assert_eq!(model.costs(), None);
    model.wrote(commands, 335_000_000);
    let costs = model.costs().unwrap();
    // 335 us less 16.8 KB that pass.
    assert!((200_000..240_000).contains(&costs.command_ns), "{costs:?}");
}

/// What a disk of these costs takes.
fn took(costs: Costs, batch: Batch) -> u64 {
    let copied_ns = time_ns(batch.copied_bytes, costs.copy_ns_per_mib);
    batch.commands * costs.command_ns
        + time_ns(batch.passed_bytes, costs.write_ns_per_mib)
        + copied_ns
}

#[test]
fn it_learns_what_a_disk_costs_and_follows_it_when_it_changes() {
    let commands = batch(1000, 16 << 20);
    let stream = batch(2, 32 << 20);
    let filled = Batch { copied_bytes: 16 << 20, ..stream };
    let disks = [
        DISK,
        Costs { command_ns: 460_000, ..DISK },
        Costs {
            command_ns: 300_000,
            read_ns_per_mib: 10_000_000,
            write_ns_per_mib: 20_000_000,
            copy_ns_per_mib: 30_000_000,
        },
        Costs {
            command_ns: 90_000,
            read_ns_per_mib: 4_000_000,
            write_ns_per_mib: 4_000_000,
            copy_ns_per_mib: 2_000_000,
        },
    ];
    let mut model = CostModel::new();
    for disk in disks {
        for _ in 0..40 {
            model.wrote(commands, took(disk, commands));
            model.wrote(stream, took(disk, stream));
            model.wrote(filled, took(disk, filled));
            let read_ns = time_ns(stream.passed_bytes, disk.read_ns_per_mib) + TURNAROUND_NS / 2;
            model.read(stream.passed_bytes, read_ns);
        }
        let found = model.costs().unwrap();
        let near = |found: u64, real: u64| found.abs_diff(real) <= real / 10;
        assert!(near(found.command_ns, disk.command_ns), "{disk:?}: {found:?}");
        assert!(near(found.read_ns_per_mib, disk.read_ns_per_mib), "{disk:?}: {found:?}");
        assert!(near(found.write_ns_per_mib, disk.write_ns_per_mib), "{disk:?}: {found:?}");
        let nothing = found.copy_ns_per_mib < 1_000_000 && disk.copy_ns_per_mib == 0;
        let copy = near(found.copy_ns_per_mib, disk.copy_ns_per_mib);
        assert!(nothing || copy, "{disk:?}: {found:?}");
    }
}

#[test]
fn a_stall_is_no_more_than_a_doubling_for_a_quarter() {
    let commands = batch(1000, 16 << 20);
    let mut model = CostModel::new();
    (0..10).for_each(|_| model.wrote(commands, took(DISK, commands)));
    let before = model.costs().unwrap();
    model.wrote(commands, 60_000_000_000);
    model.wrote(batch(1, 32 << 20), 60_000_000_000);
    model.read(32 << 20, 60_000_000_000);
    let after = model.costs().unwrap();
    let limit = |before: u64| before + before / 4 + before / 100;
    // The stream before was slow, too.
    let swept = |costs: Costs| costs.command_ns + time_ns(16 << 10, costs.write_ns_per_mib);
    assert!(swept(after) <= limit(swept(before)), "{after:?}");
    assert!(after.read_ns_per_mib <= limit(before.read_ns_per_mib), "{after:?}");
    assert!(after.write_ns_per_mib <= limit(before.write_ns_per_mib), "{after:?}");
}

#[test]
fn no_gap_is_filled_where_a_stream_is_no_faster_than_a_sweep() {
    // Passed MiB a second of sweeps, of streams, and of streams that are half copies; whether known
    // gaps are filled after at most two such. The devices of the first five move no head.
    let table = [
        (800, 400, 400, false),
        (400, 390, 390, false),
        (400, 1000, 200, false), // streams are quick, copies are not
        (100, 50, 50, false),    // a stream is thought to be quicker, before one is measured
        (50, 110, 110, true),    // so many commands a second
        (55, 150, 150, true),    // the disk
        (55, 150, 80, true),
        (30, 40, 40, true),
    ];
    for (swept, streamed, filled, fills) in table {
        let mut model = CostModel::new();
        let ns =
            |batch: Batch, mib_per_s: u64| time_ns(batch.passed_bytes, 1_000_000_000 / mib_per_s);
        let (commands, stream) = (batch(4000, 64 << 20), batch(2, 64 << 20));
        let copies = Batch { copied_bytes: 32 << 20, ..stream };
        for _ in 0..20 {
            model.wrote(stream, ns(stream, streamed));
        }
        (0..2).for_each(|_| model.wrote(commands, ns(commands, swept)));
        let stretch = steps(100, 8 * KIB, 8 * KIB, Known);
        let is_filled =
            |model: &CostModel| fill(model.costs().unwrap(), &stretch).contains(&Fill::Copy);
        for _ in 0..2 {
            if is_filled(&model) {
                model.wrote(copies, ns(copies, filled));
            }
        }
        assert_eq!(is_filled(&model), fills, "{swept}, {streamed}, {filled}: {model:?}");
    }
}

#[test]
fn commands_are_not_charged_for_the_time_of_copies() {
    let mut model = CostModel::new();
    let commands = batch(4000, 64 << 20);
    (0..5).for_each(|_| model.wrote(commands, took(DISK, commands)));
    let before = model.costs().unwrap().command_ns;
    let mixed = Batch { commands: 1900, passed_bytes: 140 << 20, copied_bytes: 56 << 20 };
    let disk = Costs { copy_ns_per_mib: 50_000_000, ..DISK };
    model.wrote(mixed, took(disk, mixed));
    let after = model.costs().unwrap();
    assert!(after.command_ns <= before, "{before} {after:?}");
    assert!(after.copy_ns_per_mib.abs_diff(50_000_000) < 5_000_000, "{after:?}");
}

#[test]
fn commands_that_were_free_for_a_while_get_a_cost_again() {
    let mut model = CostModel::new();
    let commands = batch(4000, 64 << 20);
    (0..20).for_each(|_| model.wrote(commands, SAMPLE_NS_MIN));
    assert_eq!(model.costs().unwrap().command_ns, 0);
    (0..20).for_each(|_| model.wrote(commands, took(DISK, commands)));
    assert!(model.costs().unwrap().command_ns > 150_000, "{model:?}");
}

#[test]
fn a_bad_rate_is_forgotten_while_only_commands_are_written() {
    let commands = batch(1000, 16 << 20);
    let mut model = CostModel::new();
    (0..20).for_each(|_| model.read(32 << 20, 6_000_000_000));
    let bad = model.read_ns_per_mib;
    assert!(bad > 100_000_000, "{bad}");
    (0..600).for_each(|_| model.wrote(commands, took(DISK, commands)));
    let now = model.read_ns_per_mib;
    assert!(now < 10_000_000, "{now}");
}

#[test]
fn what_was_told_is_not_learnt_over() {
    let mut model = CostModel::fixed(DISK);
    model.wrote(batch(1000, 16 << 20), 60_000_000_000);
    model.read(32 << 20, 60_000_000_000);
    assert_eq!(model.costs(), Some(DISK));
}

#[test]
fn touching_writes_are_one_command_and_long_gaps_are_seeks() {
    let mut batch = Batch::default();
    for (bytes, copied, gap) in
        [(8, 0, None), (8, 3, Some(0)), (4, 0, Some(100)), (4, 2, Some(1 << 40))]
    {
        batch.add(bytes, copied, gap);
    }
    let passed_bytes = 24 + 100 + PASSED_BYTES_MAX;
    assert_eq!(batch, Batch { commands: 3, passed_bytes, copied_bytes: 5 });
}
