// SPDX-License-Identifier: Apache-2.0 OR MIT
//! A machine with memory that outlives the process: a kill undoes no completed change, and a power
//! cut undoes no more than without that memory.
use sim::seeds;

use crate::simulate::{Plan, simulate};

#[test]
fn no_kill_undoes_a_completed_change() {
    seeds::run(60, |seed| simulate(seed, Plan::JOURNAL));
}

#[test]
fn no_kill_undoes_a_completed_change_of_sectors() {
    seeds::run(60, |seed| simulate(seed, Plan { journal: true, ..Plan::SECTORS }));
}

#[test]
fn errors_beside_a_journal_lose_nothing_that_was_flushed() {
    seeds::run(60, |seed| simulate(seed, Plan { journal: true, ..Plan::FAULTS }));
}

#[test]
fn no_kill_undoes_a_completed_change_in_pmem() {
    seeds::run(60, |seed| simulate(seed, Plan { journal: true, ..Plan::MEMORY }));
}

#[test]
fn no_kill_undoes_a_change_beside_switches_of_the_mode() {
    seeds::run(60, |seed| simulate(seed, Plan { journal: true, ..Plan::THROUGH }));
}
