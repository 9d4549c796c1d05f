// SPDX-License-Identifier: Apache-2.0 OR MIT
//! A cache that grows while clients work, again and again: power cuts, kills, torn writes and
//! errors at any step of it lose nothing; and planted faults of its order are each caught.

use crate::common::journal_plan::JournalPlan;
use crate::simulate::{GROWN, Plan, is_caught_at, simulate};
use sim::seeds;
use writecache::Fault;

const PLAN: Plan = Plan { grows: true, ..Plan::USUAL };
const WITH_ERRORS: Plan = Plan { grows: true, ..Plan::GUARDED };

fn run(seeds_of_test: u64, plan: Plan) {
    seeds::run(seeds_of_test, |seed| simulate(seed, plan));
}

#[test]
fn growth_beside_clients_and_crashes_loses_nothing() {
    run(80, PLAN);
    run(60, Plan { with_faults: true, ..PLAN });
    if seeds::count(80) >= 80 {
        assert!(GROWN.get() > 300, "{} times", GROWN.get());
    }
}

#[test]
fn growth_beside_kills_and_journals_loses_nothing() {
    run(40, Plan { journal: JournalPlan::Kept, ..PLAN });
    run(20, Plan { journal: JournalPlan::Moved, ..PLAN });
}

#[test]
fn growth_of_a_guarded_cache_that_reads_enter_loses_nothing() {
    run(40, Plan { grows: true, with_faults: false, ..Plan::GUARDED });
    run(20, WITH_ERRORS);
    run(30, Plan { options: " read_cache 1 sequential_read_cutoff 0", ..PLAN });
}

/// Seeds that showed rare faults; another one is looked for if one of them no longer does.
const SEEN_AT: &[(Fault, u64)] = &[
    (Fault::GrownSuperblockEarly, 19),
    (Fault::GrownUnflushed, 1411),
    (Fault::GrownSlotsEarly, 134),
    (Fault::GrownAfterFailure, 38),
];

fn is_caught_by(plan: Plan) {
    is_caught_at(plan, SEEN_AT);
}

#[test]
fn records_left_behind_by_growth_are_caught() {
    is_caught_by(Plan { fault: Some(Fault::GrownLogNotCopied), ..PLAN });
}

#[test]
fn a_grown_superblock_before_its_metadata_is_caught() {
    is_caught_by(Plan { fault: Some(Fault::GrownSuperblockEarly), ..PLAN });
}

/// A flush fails, and the superblock of the growth before is durable all the same.
#[test]
fn growth_of_a_cache_that_has_failed_is_caught() {
    is_caught_by(Plan { fault: Some(Fault::GrownAfterFailure), ..WITH_ERRORS });
}

#[test]
fn a_grown_superblock_before_their_flush_is_caught() {
    is_caught_by(Plan { fault: Some(Fault::GrownUnflushed), ..PLAN });
}

#[test]
fn new_slots_before_their_superblock_are_caught() {
    is_caught_by(Plan { fault: Some(Fault::GrownSlotsEarly), ..PLAN });
}
