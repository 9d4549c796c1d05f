// SPDX-License-Identifier: Apache-2.0 OR MIT
//! Tests of the cost model.

use super::*;
use crate::gap_plan::Contents::Known;
use crate::gap_plan::{Contents, Fill, Step, fill};

const KIB: u64 = 1 << 10;
/// The disk of the published run: 223 us a command beside what passes, 150 MB/s.
fn disk() -> Costs {
    Costs::with_head(223_000, 6_990_506, 6_990_506)
}

/// A batch without copies.
fn batch(commands: u64, passed_bytes: u64) -> Batch {
    Batch { commands, passed_bytes, copied_bytes: 0 }
}

fn steps(n: usize, run: u64, gap: u64, contents: Contents) -> Vec<Step> {
    vec![Step { run, gap, contents }; n]
}

#[test]
fn nothing_is_known_before_two_batches_of_commands() {
    let mut model = CostModel::new(true);
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
    assert!((200_000..240_000).contains(&costs.write.command_ns), "{costs:?}");
}

/// What a disk of these costs takes.
fn took(costs: Costs, batch: Batch) -> u64 {
    let copied_ns = time_ns(batch.copied_bytes, costs.copy_ns_per_mib);
    batch.commands * costs.write.command_ns
        + time_ns(batch.passed_bytes, costs.write.ns_per_mib)
        + copied_ns
}

#[test]
fn it_learns_what_a_disk_costs_and_follows_it_when_it_changes() {
    let commands = batch(1000, 16 << 20);
    let stream = batch(2, 32 << 20);
    let filled = Batch { copied_bytes: 16 << 20, ..stream };
    let disks = [
        disk(),
        Costs::with_head(460_000, 6_990_506, 6_990_506),
        Costs { copy_ns_per_mib: 30_000_000, ..Costs::with_head(300_000, 10_000_000, 20_000_000) },
        Costs { copy_ns_per_mib: 2_000_000, ..Costs::with_head(90_000, 4_000_000, 4_000_000) },
    ];
    let mut model = CostModel::new(true);
    for disk in disks {
        for _ in 0..40 {
            model.wrote(commands, took(disk, commands));
            model.wrote(stream, took(disk, stream));
            model.wrote(filled, took(disk, filled));
            let read_ns = time_ns(stream.passed_bytes, disk.read.ns_per_mib) + TURNAROUND_NS / 2;
            model.read(stream.passed_bytes, read_ns);
        }
        let found = model.costs().unwrap();
        let near = |found: u64, real: u64| found.abs_diff(real) <= real / 10;
        assert!(near(found.write.command_ns, disk.write.command_ns), "{disk:?}: {found:?}");
        assert!(near(found.read.ns_per_mib, disk.read.ns_per_mib), "{disk:?}: {found:?}");
        assert!(near(found.write.ns_per_mib, disk.write.ns_per_mib), "{disk:?}: {found:?}");
        let nothing = found.copy_ns_per_mib < 1_000_000 && disk.copy_ns_per_mib == 0;
        let copy = near(found.copy_ns_per_mib, disk.copy_ns_per_mib);
        assert!(nothing || copy, "{disk:?}: {found:?}");
    }
}

#[test]
fn a_stall_is_no_more_than_a_doubling_for_a_quarter() {
    let commands = batch(1000, 16 << 20);
    let mut model = CostModel::new(true);
    (0..10).for_each(|_| model.wrote(commands, took(disk(), commands)));
    let before = model.costs().unwrap();
    model.wrote(commands, 60_000_000_000);
    model.wrote(batch(1, 32 << 20), 60_000_000_000);
    model.read(32 << 20, 60_000_000_000);
    let after = model.costs().unwrap();
    let limit = |before: u64| before + before / 4 + before / 100;
    // The stream before was slow, too.
    let swept = |costs: Costs| costs.write.command_ns + time_ns(16 << 10, costs.write.ns_per_mib);
    assert!(swept(after) <= limit(swept(before)), "{after:?}");
    assert!(after.read.ns_per_mib <= limit(before.read.ns_per_mib), "{after:?}");
    assert!(after.write.ns_per_mib <= limit(before.write.ns_per_mib), "{after:?}");
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
        let mut model = CostModel::new(true);
        let ns =
            |batch: Batch, mib_per_s: u64| time_ns(batch.passed_bytes, 1_000_000_000 / mib_per_s);
        let (commands, stream) = (batch(4000, 64 << 20), batch(2, 64 << 20));
        let copies = Batch { copied_bytes: 32 << 20, ..stream };
        for _ in 0..20 {
            model.wrote(stream, ns(stream, streamed));
        }
        (0..2).for_each(|_| model.wrote(commands, ns(commands, swept)));
        let stretch = steps(100, 8 * KIB, 8 * KIB, Known);
        let is_filled = |model: &CostModel| {
            let fills = |costs| fill(&costs, &stretch, u64::MAX);
            model.costs().is_some_and(|costs| fills(costs).contains(&Fill::Copy))
        };
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
    let mut model = CostModel::new(true);
    let commands = batch(4000, 64 << 20);
    (0..5).for_each(|_| model.wrote(commands, took(disk(), commands)));
    let before = model.costs().unwrap().write.command_ns;
    let mixed = Batch { commands: 1900, passed_bytes: 140 << 20, copied_bytes: 56 << 20 };
    let disk = Costs { copy_ns_per_mib: 50_000_000, ..disk() };
    model.wrote(mixed, took(disk, mixed));
    let after = model.costs().unwrap();
    assert!(after.write.command_ns <= before, "{before} {after:?}");
    assert!(after.copy_ns_per_mib.abs_diff(50_000_000) < 5_000_000, "{after:?}");
}

#[test]
fn commands_that_were_free_for_a_while_get_a_cost_again() {
    let mut model = CostModel::new(true);
    let commands = batch(4000, 64 << 20);
    (0..20).for_each(|_| model.wrote(commands, SAMPLE_NS_MIN));
    assert!(!model.moves_a_head(), "{model:?}");
    (0..20).for_each(|_| model.wrote(commands, took(disk(), commands)));
    assert!(model.costs().unwrap().write.command_ns > 150_000, "{model:?}");
}

#[test]
fn a_bad_rate_is_forgotten_while_only_commands_are_written() {
    let commands = batch(1000, 16 << 20);
    let mut model = CostModel::new(true);
    (0..20).for_each(|_| model.read(32 << 20, 6_000_000_000));
    let bad = model.read_ns_per_mib;
    assert!(bad > 100_000_000, "{bad}");
    (0..600).for_each(|_| model.wrote(commands, took(disk(), commands)));
    let now = model.read_ns_per_mib;
    assert!(now < 10_000_000, "{now}");
}

#[test]
fn what_was_told_is_not_learnt_over() {
    let mut model = CostModel::fixed(disk());
    model.wrote(batch(1000, 16 << 20), 60_000_000_000);
    model.read(32 << 20, 60_000_000_000);
    assert_eq!(model.costs(), Some(disk()));
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

/// Requests of a volume with limits of both kinds, as the model gets to know them.
fn observe_volume(model: &mut CostModel, batches: u64) {
    let cost = RequestCost { command_ns: 333_333, ns_per_mib: 8_000_000, side_by_side: true };
    for nth in 0..batches {
        let (commands, bytes) = if nth % 2 == 0 { (256, 8 << 10) } else { (16, 1 << 20) };
        let took_ns = cost.time_ns(commands, commands * bytes);
        model.writes_took(commands, commands * bytes, took_ns);
        model.reads_took(commands, commands * bytes, took_ns);
    }
}

#[test]
fn a_disk_that_does_not_rotate_has_the_costs_of_its_requests() {
    let mut model = CostModel::new(false);
    observe_volume(&mut model, 3);
    assert_eq!((model.costs(), model.moves_a_head()), (None, false));
    observe_volume(&mut model, 30);
    let costs = model.costs().unwrap();
    let is_near = |is: u64, was: u64| is.abs_diff(was) <= was / 5;
    for cost in [costs.read, costs.write] {
        assert!(
            is_near(cost.command_ns, 333_333) && is_near(cost.ns_per_mib, 8_000_000),
            "{cost:?}"
        );
    }
    assert_eq!(costs.skip_ns_per_mib, 0);
}

#[test]
fn a_disk_that_says_that_it_rotates_must_show_it() {
    let mut model = CostModel::new(true);
    observe_volume(&mut model, 30);
    assert!(model.moves_a_head() && model.costs().is_none(), "no sweep was measured");
    // Sweeps that pass more in a second than streams do.
    (0..2).for_each(|_| model.wrote(batch(4000, 64 << 20), SAMPLE_NS_MIN));
    assert!(!model.moves_a_head());
    assert_eq!(model.costs().unwrap().skip_ns_per_mib, 0);
}
