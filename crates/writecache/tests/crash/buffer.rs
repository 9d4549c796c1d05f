// SPDX-License-Identifier: Apache-2.0 OR MIT
//! The write buffer: writes are acknowledged from memory, and nothing that was flushed is lost;
//! with memory that outlives the process, nothing that was completed is lost by a kill. Ordered
//! caches with it are in `ordered`.
use sim::seeds;
use writecache::Fault;

use crate::common::journal_plan::JournalPlan;
use crate::native::is_caught_by;
use crate::simulate::{Plan, simulate};

const KEPT: JournalPlan = JournalPlan::Kept;
/// As much as an eighth of the slots: segments of a few blocks.
const BUFFER: &str = " write_buffer 1M";
const USUAL: Plan = Plan { options: BUFFER, ..Plan::USUAL };
const FAULTS: Plan = Plan { options: BUFFER, ..Plan::FAULTS };
const JOURNAL: Plan = Plan { options: BUFFER, ..Plan::JOURNAL };
/// Slots refuse their data often.
const REFUSED: Plan = Plan { write_errors: &[20, 100, 300], ..FAULTS };

/// And clients write zeroes over much of the device meanwhile.
const ZEROED: Plan = Plan { write_zeroes: 25, block_sizes: &[512], ..REFUSED };

#[test]
fn what_was_flushed_from_the_buffer_survives_any_crash() {
    seeds::run(40, |seed| simulate(seed, USUAL));
}

#[test]
fn what_was_flushed_from_the_buffer_survives_any_error() {
    seeds::run(40, |seed| simulate(seed, FAULTS));
    seeds::run(40, |seed| simulate(seed, REFUSED));
    seeds::run(40, |seed| simulate(seed, ZEROED));
}

#[test]
fn no_kill_undoes_a_write_that_is_in_the_buffer() {
    seeds::run(25, |seed| simulate(seed, JOURNAL));
}

#[test]
fn no_kill_undoes_a_buffered_write_of_512_bytes() {
    seeds::run(25, |seed| simulate(seed, Plan { block_sizes: &[512], ..JOURNAL }));
}

#[test]
fn no_kill_undoes_a_buffered_write_of_sectors() {
    seeds::run(25, |seed| simulate(seed, Plan { options: BUFFER, journal: KEPT, ..Plan::SECTORS }));
}

#[test]
fn errors_beside_buffer_and_journal_lose_no_flushed_write() {
    seeds::run(25, |seed| simulate(seed, Plan { journal: KEPT, ..REFUSED }));
}

#[test]
fn no_kill_undoes_a_buffered_write_beside_switches_of_the_mode() {
    seeds::run(25, |seed| simulate(seed, Plan { options: BUFFER, journal: KEPT, ..Plan::THROUGH }));
}

#[test]
fn a_buffer_in_another_directory_is_never_believed() {
    seeds::run(25, |seed| simulate(seed, Plan { journal: JournalPlan::Moved, ..USUAL }));
}

#[test]
fn a_flush_that_forgets_the_buffer_is_caught() {
    is_caught_by(Plan { fault: Some(Fault::FlushForgetsBuffer), ..USUAL });
}

#[test]
fn a_run_that_changes_while_it_is_written_is_caught() {
    is_caught_by(Plan { fault: Some(Fault::BufferedOverwritten), ..USUAL });
}

#[test]
fn a_slot_that_is_reused_while_it_is_written_is_caught() {
    is_caught_by(Plan { fault: Some(Fault::BufferSlotReused), ..USUAL });
}

#[test]
fn data_that_no_slot_has_taken_are_missed() {
    is_caught_by(Plan { fault: Some(Fault::BufferErrorSwallowed), ..REFUSED });
}

#[test]
fn a_read_past_the_buffer_is_caught() {
    is_caught_by(Plan { fault: Some(Fault::ReadPastBuffer), ..USUAL });
}

#[test]
fn writeback_past_the_buffer_is_caught() {
    is_caught_by(Plan { fault: Some(Fault::WritebackPastBuffer), ..USUAL });
}

#[test]
fn a_version_without_its_frame_is_caught() {
    is_caught_by(Plan { fault: Some(Fault::FrameNotStored), ..JOURNAL });
}

#[test]
fn a_recovery_that_ignores_frames_is_caught() {
    is_caught_by(Plan { fault: Some(Fault::FramesIgnored), ..JOURNAL });
}

#[test]
fn a_frame_that_is_left_before_the_commit_is_caught() {
    is_caught_by(Plan { fault: Some(Fault::FrameLeftEarly), journal: KEPT, ..REFUSED });
}

#[test]
fn records_that_name_a_refused_slot_are_caught() {
    is_caught_by(Plan { fault: Some(Fault::RecordsNotRepeated), ..REFUSED });
}
