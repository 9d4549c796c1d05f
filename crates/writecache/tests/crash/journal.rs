// SPDX-License-Identifier: Apache-2.0 OR MIT
//! A machine with memory that outlives the process: a kill undoes no completed change, and a power
//! cut undoes no more than without that memory. Ordered caches with it are in `ordered`.
use sim::seeds;
use writecache::Fault;

use crate::common::journal_plan::JournalPlan;
use crate::native::is_caught_by;
use crate::simulate::{Plan, simulate};

const KEPT: JournalPlan = JournalPlan::Kept;
/// The next life has other memory, or none, now and then.
const MOVED: Plan = Plan { journal: JournalPlan::Moved, ..Plan::USUAL };

/// Many short lives: kills come soon after the opening, and in it.
const SHORT: Plan = Plan { rounds: 12, cut_after: &[300, 1_000, 3_000], ..Plan::JOURNAL };

#[test]
fn no_kill_undoes_a_completed_change() {
    seeds::run(25, |seed| simulate(seed, Plan::JOURNAL));
}

#[test]
fn no_kill_undoes_a_completed_change_in_blocks_of_512() {
    seeds::run(25, |seed| simulate(seed, Plan { block_sizes: &[512], ..Plan::JOURNAL }));
}

#[test]
fn no_kill_undoes_a_completed_change_of_sectors() {
    seeds::run(25, |seed| simulate(seed, Plan { journal: KEPT, ..Plan::SECTORS }));
}

#[test]
fn errors_beside_a_journal_lose_nothing_that_was_flushed() {
    seeds::run(25, |seed| simulate(seed, Plan { journal: KEPT, ..Plan::FAULTS }));
}

#[test]
fn no_kill_undoes_a_completed_change_in_pmem() {
    seeds::run(25, |seed| simulate(seed, Plan { journal: KEPT, ..Plan::MEMORY }));
}

#[test]
fn no_kill_undoes_a_change_beside_switches_of_the_mode() {
    seeds::run(25, |seed| simulate(seed, Plan { journal: KEPT, ..Plan::THROUGH }));
}

#[test]
fn a_journal_in_another_directory_is_never_believed() {
    seeds::run(25, |seed| simulate(seed, MOVED));
    // Short lives: most journals have something, and many processes change nothing.
    seeds::run(25, |seed| simulate(seed, Plan { journal: JournalPlan::Moved, ..SHORT }));
}

#[test]
fn a_journal_in_another_directory_is_ignored_beside_errors() {
    seeds::run(20, |seed| simulate(seed, Plan { with_faults: true, ..MOVED }));
}

#[test]
fn a_read_before_a_journal_elsewhere_is_refused_is_caught() {
    // As few seeds show it, they must not change with what writeback does.
    let options = " writeback_buffer 0";
    is_caught_by(Plan { fault: Some(Fault::ReadBeforeRecord), options, ..MOVED });
}

/// An origin that forgets, as a volume does, below a cache around which writes go: the limits must
/// not promise that a kill undoes nothing.
const FORGETS: Plan = Plan { origin_dies: true, around: true, ..Plan::JOURNAL };

#[test]
fn what_limits_say_of_kills_above_an_origin_that_forgets_holds() {
    seeds::run(25, |seed| simulate(seed, FORGETS));
}

#[test]
fn a_cache_that_promises_too_much_of_kills_is_caught() {
    is_caught_by(Plan { fault: Some(Fault::SurvivesUnordered), ..FORGETS });
}

#[test]
fn an_entry_after_its_request_is_caught() {
    is_caught_by(Plan { fault: Some(Fault::EntryAfterRequest), ..Plan::JOURNAL });
}

#[test]
fn a_start_beyond_what_a_commit_has_logged_is_caught() {
    is_caught_by(Plan { fault: Some(Fault::JournalStartLate), ..Plan::JOURNAL });
}

#[test]
fn a_version_whose_data_the_disk_has_lost_is_caught() {
    is_caught_by(Plan { fault: Some(Fault::JournalDataUnchecked), ..Plan::JOURNAL });
}

#[test]
fn a_journal_of_another_boot_that_is_applied_is_caught() {
    is_caught_by(Plan { fault: Some(Fault::JournalOfOtherBoot), ..Plan::JOURNAL });
}

#[test]
fn a_journal_that_is_not_made_durable_is_caught() {
    is_caught_by(Plan { fault: Some(Fault::JournalNotDurable), ..Plan::JOURNAL });
}

#[test]
fn a_journal_that_is_blanked_too_early_is_caught() {
    is_caught_by(Plan { fault: Some(Fault::JournalBlankedEarly), ..SHORT });
}
