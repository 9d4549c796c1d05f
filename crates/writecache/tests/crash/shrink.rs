// SPDX-License-Identifier: Apache-2.0 OR MIT
//! A cache that is made smaller before its device is cut, in one life and the other, and that grows
//! in between: power cuts, kills, torn writes and errors at any step of it lose nothing; and
//! planted faults of its order are each caught.

use crate::common::journal_plan::JournalPlan;
use crate::simulate::{Plan, Resizes, SHRUNK, is_caught_at, simulate};
use sim::seeds;
use writecache::Fault;

const PLAN: Plan =
    Plan { resizes: Resizes::GrowsAndShrinks, cut_after: &[200, 1_000, 20_000], ..Plan::USUAL };

fn run(seeds_of_test: u64, plan: Plan) {
    seeds::run(seeds_of_test, |seed| simulate(seed, plan));
}

#[test]
fn a_cache_that_shrinks_beside_crashes_loses_nothing() {
    run(100, PLAN);
    run(40, Plan { with_faults: true, ..PLAN });
    if seeds::count(100) >= 100 {
        assert!(SHRUNK.get() > 50, "{} times", SHRUNK.get());
    }
}

#[test]
fn a_guarded_cache_with_reads_or_a_journal_that_shrinks() {
    run(20, Plan { with_faults: false, resizes: Resizes::GrowsAndShrinks, ..Plan::GUARDED });
    run(20, Plan { options: " read_cache 1 sequential_read_cutoff 0", ..PLAN });
    run(20, Plan { journal: JournalPlan::Kept, ..PLAN });
}

/// Seeds that showed rare faults; another one is looked for if one of them no longer does.
const SEEN_AT: &[(Fault, u64)] = &[(Fault::CutBeforeCommit, 68)];

fn is_caught(fault: Fault) {
    is_caught_at(Plan { fault: Some(fault), ..PLAN }, SEEN_AT);
}

#[test]
fn dirty_blocks_that_are_cut_off_are_caught() {
    is_caught(Fault::CutDirtyDropped);
}

#[test]
fn blocks_that_the_map_has_beyond_the_cut_are_caught() {
    is_caught(Fault::CutSlotsNamed);
}

#[test]
fn slots_overwritten_before_they_are_free_are_caught() {
    is_caught(Fault::CutBeforeCommit);
}
