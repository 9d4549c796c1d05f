// SPDX-License-Identifier: Apache-2.0 OR MIT
//! The durability contract under every kind of bad day: random clients, messages, suspend and
//! resume, drains, changes of options, injected errors, power cuts and kills at any step, torn
//! writes, and recovery that is cut itself; all answers judged by the oracle. And the proof that
//! the judge is awake: planted faults of the commit protocol are each caught.

use crate::simulate::{GAPS, Plan, simulate};
use sim::seeds;
use writecache::Mutation;

#[test]
fn acknowledged_durability_survives_any_crash() {
    seeds::run(400, |seed| simulate(seed, Plan::USUAL));
    if seeds::count(2000) > 100 {
        assert!(GAPS.get() > 1000, "{} blocks of gaps were filled", GAPS.get());
    }
}

#[test]
fn errors_of_origin_and_cache_lose_nothing_that_was_acknowledged() {
    seeds::run(400, |seed| simulate(seed, Plan::FAULTS));
}

/// Requests smaller than a block were refused; a door that merged them by itself undid completed
/// writes that came by another one, as an attack from outside showed.
#[test]
fn requests_of_sectors_survive_any_crash() {
    seeds::run(400, |seed| simulate(seed, Plan::SECTORS));
}

#[test]
fn requests_of_sectors_survive_any_error() {
    seeds::run(400, |seed| simulate(seed, Plan { with_faults: true, ..Plan::SECTORS }));
}

#[test]
fn requests_of_sectors_in_other_formats_survive_any_crash() {
    let with_faults = |seed: u64| seed.is_multiple_of(3);
    seeds::run(200, |seed| {
        let plan = Plan { with_faults: with_faults(seed), format: "dm", ..Plan::SECTORS };
        simulate(seed, plan)
    });
    seeds::run(200, |seed| {
        let plan = Plan { with_faults: with_faults(seed), mode: "p", ..Plan::SECTORS };
        simulate(seed, plan)
    });
}

#[test]
fn a_merge_that_does_not_look_again_is_caught() {
    is_caught_by(Plan { mutation: Mutation::MergeUnchecked, ..Plan::SECTORS });
}

#[test]
fn a_merged_fua_write_without_a_commit_is_caught() {
    is_caught_by(Plan { mutation: Mutation::MergeIgnoresFua, ..Plan::SECTORS });
}

#[test]
fn clearing_a_block_beside_a_merge_is_caught() {
    is_caught_by(Plan { mutation: Mutation::ClearBesideMerge, ..Plan::SECTORS });
}

#[test]
fn the_kernels_format_survives_any_crash_and_error_too() {
    seeds::run(400, |seed| {
        simulate(seed, Plan { with_faults: seed.is_multiple_of(3), ..Plan::DM })
    });
}

#[test]
fn the_kernels_format_in_persistent_memory_survives_any_crash_and_error_too() {
    seeds::run(400, |seed| {
        simulate(seed, Plan { with_faults: seed.is_multiple_of(3), mode: "p", ..Plan::DM })
    });
}

#[test]
fn rubbish_that_failed_writes_leave_is_never_read() {
    seeds::run(400, |seed| simulate(seed, Plan::RUBBISH));
}

#[test]
fn in_persistent_memory_what_was_acknowledged_survives_any_crash() {
    seeds::run(400, |seed| simulate(seed, Plan::MEMORY));
}

#[test]
fn errors_of_origin_and_persistent_memory_lose_nothing_that_was_acknowledged() {
    seeds::run(400, |seed| simulate(seed, Plan { with_faults: true, ..Plan::MEMORY }));
}

#[test]
fn in_persistent_memory_a_commit_without_its_fence_is_caught() {
    is_caught_by(Plan { mutation: Mutation::SkipCacheFlush, ..Plan::MEMORY });
}

#[test]
fn in_persistent_memory_a_superblock_before_its_checkpoint_is_caught() {
    is_caught_by(Plan { mutation: Mutation::SuperblockBeforeData, ..Plan::MEMORY });
}

/// Disks leave sectors whole: there the same fault does no harm.
#[test]
fn a_checksum_of_the_heads_of_sectors_is_caught_by_words_of_8_bytes_only() {
    let mutation = Mutation::TrustSectors;
    is_caught_by(Plan { mutation, ..Plan::MEMORY });
    seeds::run(400, |seed| simulate(seed, Plan { mutation, ..Plan::USUAL }));
}

fn is_caught(mutation: Mutation) {
    is_caught_by(Plan { mutation, ..Plan::USUAL });
}

fn is_caught_with_faults(mutation: Mutation) {
    is_caught_by(Plan { mutation, ..Plan::FAULTS });
}

fn is_caught_in_dm(mutation: Mutation) {
    is_caught_by(Plan { mutation, ..Plan::DM });
}

fn is_caught_by(plan: Plan) {
    let mutation = plan.mutation;
    let found = seeds::first_failure(0..4000, |seed| simulate(seed, plan));
    let found = found.unwrap_or_else(|| panic!("{mutation:?} was not caught in 4000 seeds"));
    eprintln!("{mutation:?}: seed {}: {}", found.seed, found.why);
}

#[test]
fn a_write_around_the_cache_beside_a_live_entry_is_caught() {
    is_caught(Mutation::AroundBesideLive);
}

#[test]
fn a_flush_that_forgets_what_went_around_the_cache_is_caught() {
    is_caught(Mutation::FlushWithoutOrigin);
}

#[test]
fn a_commit_without_its_flush_is_caught() {
    is_caught(Mutation::SkipCacheFlush);
    is_caught_in_dm(Mutation::SkipCacheFlush);
}

#[test]
fn a_superblock_before_its_checkpoint_is_caught() {
    is_caught(Mutation::SuperblockBeforeData);
}

#[test]
fn an_ignored_fua_is_caught() {
    is_caught(Mutation::IgnoreFua);
    is_caught_in_dm(Mutation::IgnoreFua);
}

#[test]
fn a_dropped_checksum_check_is_caught() {
    is_caught(Mutation::DropChecksumCheck);
}

#[test]
fn retiring_before_the_origin_is_durable_is_caught() {
    is_caught(Mutation::FreeBeforeOriginDurable);
    is_caught_in_dm(Mutation::FreeBeforeOriginDurable);
}

#[test]
fn reusing_a_slot_before_the_commit_is_caught() {
    is_caught(Mutation::ReuseBeforeCommit);
    is_caught_in_dm(Mutation::ReuseBeforeCommit);
}

/// In the kernel's format this is a bug that dm-writecache had: a flush was sent before the data
/// writes that it was to cover had completed.
#[test]
fn a_record_before_its_data_is_caught() {
    is_caught(Mutation::RecordBeforeData);
    is_caught_in_dm(Mutation::RecordBeforeData);
}

#[test]
fn writing_back_before_the_commit_is_caught() {
    is_caught(Mutation::WritebackBeforeCommit);
}

#[test]
fn a_superblock_before_the_entries_that_it_makes_valid_is_caught() {
    is_caught_in_dm(Mutation::SuperblockBeforeEntries);
}

#[test]
fn reusing_a_slot_before_its_entry_is_erased_is_caught() {
    // The newer copy of a superseded block hides what its slot holds; only of a block that has left
    // the cache the entry counts. So the slots must be few, and cuts frequent.
    is_caught_by(Plan {
        mutation: Mutation::ReuseBeforeErase,
        area_kib: &[24, 72],
        rounds: 12,
        cut_after: &[200, 600],
        ..Plan::DM
    });
}

#[test]
fn entries_of_a_commit_that_never_ended_left_at_recovery_are_caught() {
    // Seen only where the next commit has no reason to write the same unit of entries, so there
    // must be several, and after a cut in the middle of a commit.
    is_caught_by(Plan {
        mutation: Mutation::LeftoversKept,
        block_sizes: &[512],
        area_kib: &[416, 1024],
        rounds: 12,
        cut_after: &[200, 600],
        ..Plan::DM
    });
}

#[test]
fn forgetting_that_the_origin_refused_a_block_is_caught() {
    is_caught_with_faults(Mutation::ForgetWriteError);
}

#[test]
fn counting_blocks_as_written_after_a_failed_flush_of_the_origin_is_caught() {
    is_caught_with_faults(Mutation::IgnoreFlushError);
}

#[test]
fn writing_back_what_the_cache_device_could_not_read_is_caught() {
    let (mutation, cache_read_errors) = (Mutation::WriteBackUnreadable, &[200]);
    is_caught_by(Plan { mutation, cache_read_errors, write_errors: &[0], ..Plan::FAULTS });
}

#[test]
fn filling_gaps_that_are_not_locked_is_caught() {
    is_caught(Mutation::GapFillUnlocked);
}

#[test]
fn filling_gaps_with_whatever_a_slot_holds_is_caught() {
    is_caught(Mutation::GapFillUnchecked);
}
