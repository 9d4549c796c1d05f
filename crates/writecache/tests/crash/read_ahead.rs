// SPDX-License-Identifier: Apache-2.0 OR MIT
//! Read-ahead beside writes, discards, drains, suspends, errors and crashes: clients never read
//! anything that is older than what they have written. `ordered` has read-ahead where its
//! tests let blocks enter by reads.

use crate::common::journal_plan::JournalPlan;
use crate::simulate::{AHEAD_USED, Plan, is_caught_at, simulate};
use sim::seeds;
use writecache::Fault;

/// Devices are small here, and so are their streams.
const AHEAD: &str = " read_cache 1 sequential_read_cutoff 0 read_ahead 256K";

const PLAN: Plan = Plan { options: AHEAD, ..Plan::USUAL };

fn run(seeds_of_test: u64, plan: Plan) {
    seeds::run(seeds_of_test, |seed| simulate(seed, plan));
}

#[test]
fn what_was_read_ahead_is_never_older_than_writes() {
    run(60, PLAN);
    run(60, Plan { with_faults: true, ..PLAN });
    run(40, Plan { around: true, ..PLAN });
    run(20, Plan { around: true, with_faults: true, ..PLAN });
    if seeds::count(60) >= 60 {
        assert!(AHEAD_USED.get() > 1 << 20, "{} bytes", AHEAD_USED.get());
    }
}

#[test]
fn that_holds_for_zeroes_sectors_other_media_and_modes() {
    run(20, Plan { by_sectors: true, block_sizes: &[1024, 4096, 4096], ..PLAN });
    run(20, Plan { write_zeroes: 40, ..PLAN });
    run(20, Plan { mode: "p", ..PLAN });
    run(20, Plan { format: "dm", area_kib: &[72, 416, 1024], ..PLAN });
    run(20, Plan { journal: JournalPlan::Kept, ..PLAN });
    run(20, Plan { around: true, through: true, ..PLAN });
    run(20, Plan { options: " read_cache 1 read_ahead 256K guard_origin", ..Plan::GUARDED });
}

#[test]
fn data_read_ahead_that_outlive_a_change_are_caught() {
    is_caught_at(Plan { fault: Some(Fault::AheadOutlivesChange), ..PLAN }, &[]);
}
