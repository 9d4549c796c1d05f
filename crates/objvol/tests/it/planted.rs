// SPDX-License-Identifier: Apache-2.0 OR MIT
//! Each planted fault is found: by random writers (`takeover.rs`), by one writer that dies
//! (`crash.rs`), or by a few steps in the right order.
use std::collections::BTreeSet;
use std::fs;
use std::path::{Path, PathBuf};

use block::{Nanos, Status};
use objvol::Fault;
use sim::seeds;

use crate::fixture::{Fixture, options};
use crate::{crash, snapshots, takeover};

const SEEDS: u64 = 4000;
/// Segments of the first writer of a fixture.
const EPOCH_2: &str = "segment/0000000000000002/";

fn writers_find(fault: Fault) {
    let simulate = |seed| takeover::simulate(seed, Some(fault));
    let found = seeds::first_failure(0..SEEDS, simulate);
    assert!(found.is_some(), "{fault:?} is not found");
}

/// Writers find it, and so does one that dies.
fn both_find(fault: Fault) {
    writers_find(fault);
    let simulate = |seed| crash::simulate(seed, Some(fault));
    assert!(seeds::first_failure(0..1000, simulate).is_some(), "{fault:?} is not found");
}

#[test]
fn a_flush_before_the_chain_is_caught() {
    writers_find(Fault::AckBeforeChain);
}

#[test]
fn another_object_taken_for_ones_own_is_caught() {
    writers_find(Fault::BelieveExists);
}

#[test]
fn a_skipped_seal_is_caught() {
    writers_find(Fault::SkipSeal);
}

#[test]
fn sealing_only_the_newest_epoch_is_caught() {
    writers_find(Fault::SealNewestOnly);
}

#[test]
fn deleted_seals_are_caught() {
    writers_find(Fault::DeleteSeals);
}

#[test]
fn an_opening_that_does_not_look_is_caught() {
    writers_find(Fault::OpenUnlooked);
}

/// A listing is not one moment: segment 2.2 lands `after` so many milliseconds, while an opening
/// lists and reads. Does it open?
fn opens_beside_a_landing(fault: Option<Fault>, after: u64) -> bool {
    let fixture = Fixture::new();
    let volume = fixture.open("a", None);
    for _ in 0..3 {
        fixture.write(&volume, 0, 8, 1).unwrap();
        fixture.flush(&volume).unwrap();
    }
    let name = fixture.names(EPOCH_2).remove(1);
    let mut bucket = fixture.bucket.borrow_mut();
    let object = bucket.object(&name).unwrap();
    bucket.force(&name, None);
    bucket.land_later(&name, &object, Nanos::from_millis(after));
    drop(bucket);
    fixture.try_open(options("b", fault)).is_ok()
}

#[test]
fn a_hole_that_is_not_looked_at_again_is_caught() {
    let fault = Some(Fault::HoleSeenOnce);
    let shows =
        |after| opens_beside_a_landing(None, after) && !opens_beside_a_landing(fault, after);
    assert!((0..100).any(|step| shows(step * 20)));
}

#[test]
fn a_checkpoint_before_its_segments_is_caught() {
    writers_find(Fault::CheckpointBeforeChain);
}

#[test]
fn deleted_layers_are_caught() {
    both_find(Fault::ForgetLayers);
}

#[test]
fn an_increment_over_the_wrong_layer_is_caught() {
    both_find(Fault::StaleLayers);
}

#[test]
fn discards_that_an_increment_misses_are_caught() {
    both_find(Fault::ForgetCleared);
}

#[test]
fn a_replay_that_an_increment_misses_is_caught() {
    both_find(Fault::ForgetReplayed);
}

#[test]
fn garbage_by_the_map_in_memory_is_caught() {
    both_find(Fault::GarbageByMemory);
}

#[test]
fn garbage_that_is_deleted_without_a_look_is_caught() {
    writers_find(Fault::DeleteUnlooked);
}

#[test]
fn moved_data_over_newer_are_caught() {
    both_find(Fault::MoveOverNewer);
}

#[test]
fn segments_beyond_the_window_are_caught() {
    writers_find(Fault::IgnoreWindow);
}

#[test]
fn data_read_ahead_by_an_old_map_are_caught() {
    let simulate = |seed| takeover::simulate_ahead(seed, Some(Fault::ReadAheadByOldMap));
    assert!(seeds::first_failure(0..SEEDS, simulate).is_some());
}

#[test]
fn a_write_put_under_a_newer_one_is_caught() {
    both_find(Fault::ReplaceOverNewer);
}

#[test]
fn a_checksum_of_replaced_data_is_caught() {
    both_find(Fault::ReplaceUnchecked);
}

fn snapshots_find(fault: Fault) {
    let found = seeds::first_failure(0..SEEDS, |seed| snapshots::simulate(seed, Some(fault)));
    assert!(found.is_some(), "{fault:?} is not found");
}

#[test]
fn garbage_that_snapshots_need_is_caught() {
    snapshots_find(Fault::CollectUnderSnapshots);
}

#[test]
fn a_snapshot_of_layers_is_caught() {
    snapshots_find(Fault::SnapshotOfLayers);
}

#[test]
fn a_snapshot_before_its_checkpoint_is_caught() {
    snapshots_find(Fault::SnapshotBeforeCheckpoint);
}

#[test]
fn a_deletion_that_frees_shared_segments_is_caught() {
    snapshots_find(Fault::FreeSharedSegments);
}

#[test]
fn deleted_checkpoints_of_snapshots_are_caught() {
    snapshots_find(Fault::ForgetSnapshotCheckpoints);
}

#[test]
fn space_that_is_freed_before_its_deletion_is_caught() {
    snapshots_find(Fault::FreeBeforeDeletion);
}

#[test]
fn a_snapshot_that_is_acknowledged_early_is_caught() {
    snapshots_find(Fault::AckSnapshotBeforeChain);
}

/// A segment in the middle of the chain has gone: somebody's lifecycle rule.
fn opens_over_a_hole(fault: Option<Fault>) -> bool {
    let fixture = Fixture::new();
    let volume = fixture.open("a", None);
    for n in 0..6 {
        fixture.write(&volume, n * 8, 8, 1).unwrap();
        fixture.flush(&volume).unwrap();
    }
    fixture.bucket.borrow_mut().force(&format!("{EPOCH_2}{:016x}", 4), None);
    let before = fixture.names("segment/");
    let opened = fixture.try_open(options("b", fault));
    if let Err(error) = &opened {
        assert!(error.chain().contains("segment 2.4 is missing"), "{}", error.chain());
        assert_eq!(fixture.names("segment/"), before, "nothing is sealed");
    }
    opened.is_ok()
}

#[test]
fn a_hole_taken_for_the_end_is_caught() {
    assert!(!opens_over_a_hole(None));
    assert!(opens_over_a_hole(Some(Fault::HoleIsEnd)), "the fault shows");
}

fn reads_rotten_data(fault: Option<Fault>) -> Result<Vec<u8>, Status> {
    let fixture = Fixture::new();
    let volume = fixture.open("a", fault);
    fixture.write(&volume, 0, 8, 1).unwrap();
    fixture.flush(&volume).unwrap();
    let name = fixture.names(EPOCH_2).remove(0);
    let mut object = fixture.bucket.borrow_mut().object(&name).unwrap().to_vec();
    object[512 + 3 * 512] ^= 4;
    fixture.bucket.borrow_mut().force(&name, Some(object));
    fixture.read(&volume, 0, 8)
}

#[test]
fn data_that_are_not_checked_are_caught() {
    assert_eq!(reads_rotten_data(None), Err(Status::Checksum));
    let rotten = reads_rotten_data(Some(Fault::SkipChecksum));
    assert_eq!(rotten.unwrap(), [1, 1, 1, 5, 1, 1, 1, 1], "the fault shows");
}

/// A writer that takes another object for its own goes on behind the seal, and writes a checkpoint
/// there; what does the next opening find?
fn after_a_checkpoint_beyond_the_seal(fault: Option<Fault>) -> Vec<u8> {
    let fixture = Fixture::new();
    let broken = fixture.open("a", Some(Fault::BelieveExists));
    fixture.write(&broken, 0, 8, 1).unwrap();
    fixture.flush(&broken).unwrap();
    let good = fixture.open("b", None);
    for _ in 0..9 {
        fixture.write(&broken, 0, 8, 2).unwrap();
        fixture.flush(&broken).unwrap();
    }
    let writer = broken.clone();
    fixture.run(async move { writer.checkpoint().await }).unwrap();
    assert_eq!(fixture.read(&good, 0, 1).unwrap(), [1]);
    let volume = fixture.open("c", fault);
    fixture.read(&volume, 0, 1).unwrap()
}

#[test]
fn a_checkpoint_behind_a_seal_is_not_believed() {
    assert_eq!(after_a_checkpoint_beyond_the_seal(None), [1]);
    let believed = after_a_checkpoint_beyond_the_seal(Some(Fault::BelieveBeyondSeal));
    assert_eq!(believed, [2], "the fault shows");
}

/// The counter-example of decision 0035: a taker's seals are under way for hours, and land in names
/// that garbage collection of a later writer has freed. Does the volume still open, and with what?
fn after_a_late_seal(fault: Option<Fault>) -> Result<Vec<u8>, String> {
    let fixture = Fixture::new();
    let first = fixture.open("a", None);
    for byte in 1..=5 {
        fixture.write(&first, 0, 8, byte).unwrap();
        fixture.flush(&first).unwrap();
    }
    // A seal for 2.2 that somebody sent when 2.1 was the last: it is late.
    let seal = {
        let _taker = fixture.open("b", None);
        let name = format!("{EPOCH_2}{:016x}", 6);
        fixture.bucket.borrow_mut().object(&name).unwrap()
    };
    let second = fixture.open("c", fault);
    if fault.is_none() {
        fixture.write(&second, 8, 8, 9).unwrap();
    }
    let writer = second.clone();
    fixture.run(async move { writer.checkpoint().await }).unwrap();
    fixture.sleep(Nanos::from_secs(5));
    let freed = format!("{EPOCH_2}{:016x}", 2);
    assert!(!fixture.names(EPOCH_2).contains(&freed), "it is garbage");
    fixture.bucket.borrow_mut().force(&freed, Some(seal_of_2_2(&seal)));
    let opened = fixture.try_open(options("d", None)).map_err(|e| e.chain())?;
    fixture.read(&opened, 0, 1).map_err(|status| status.to_string())
}

/// The seal of 2.6, as it would be for 2.2: sequence and checksum differ.
fn seal_of_2_2(seal: &[u8]) -> Vec<u8> {
    let mut seal = seal.to_vec();
    seal[40] = 2;
    seal[12..16].fill(0);
    let crc = format::checksum(&seal[..128]);
    seal[12..16].copy_from_slice(&crc.to_le_bytes());
    seal
}

#[test]
fn a_late_seal_in_a_freed_name_does_no_harm() {
    assert_eq!(after_a_late_seal(None), Ok(vec![5]));
    let harmed = after_a_late_seal(Some(Fault::CheckpointOfOtherEpoch));
    assert!(harmed.unwrap_err().contains("segment 2.1 is missing"), "the fault shows");
}

fn folder(name: &str) -> PathBuf {
    Path::new(env!("CARGO_MANIFEST_DIR")).join(name)
}

fn sources(folder: &Path) -> String {
    let entries = fs::read_dir(folder).unwrap().map(|entry| entry.unwrap().path());
    let text = |path: PathBuf| {
        if path.is_dir() { sources(&path) } else { fs::read_to_string(path).unwrap() }
    };
    entries.map(text).collect()
}

#[test]
fn the_list_of_planted_faults_is_complete() {
    let page = fs::read_to_string(folder("../../docs/mutations.md")).unwrap();
    let section = page.split("## Elsewhere: a volume on an object store").nth(1).unwrap();
    let section = section.split("\n## ").next().unwrap();
    let faults = fs::read_to_string(folder("src/planted.rs")).unwrap();
    let variants = faults.split("pub enum Fault {").nth(1).unwrap().split("\n}").next().unwrap();
    let variants: BTreeSet<&str> =
        variants.lines().filter_map(|line| line.trim().strip_suffix(',')).collect();
    let listed: BTreeSet<&str> =
        section.lines().filter_map(|line| line.strip_prefix("- `")?.split('`').next()).collect();
    assert_eq!(listed, variants);
    let (engine, tests) = (sources(&folder("src")), sources(&folder("tests/it")));
    for name in variants {
        assert!(engine.contains(&format!("Fault::{name}")), "{name} is planted nowhere");
        assert!(tests.contains(&format!("Fault::{name}")), "no test plants {name}");
    }
    let quoted = section.split('`').skip(1).step_by(2).filter(|word| word.contains("_"));
    for test in quoted.filter(|word| !word.contains('.')) {
        assert!(tests.contains(&format!("fn {test}(")), "there is no test {test}");
    }
}
