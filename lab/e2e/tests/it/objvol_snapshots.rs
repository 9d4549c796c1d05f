// SPDX-License-Identifier: Apache-2.0 OR MIT
//! Snapshots of volumes on object stores under real clients: the table `URL@NAME` has what the
//! volume had, while that is overwritten, collected, killed, and after its writer has gone.
use std::time::Duration;

use e2e::bucket::{Bucket, Faults};
use e2e::pause;
use e2e::stamp::Random;
use e2e::test_bed::TestBed;

const MIB: u64 = 1 << 20;
const BYTES: u64 = 4 * MIB;
const BYTES_TEXT: &str = "4M";
const BLOCK: usize = 4096;
const OPTIONS: &str = "4 segment_size 256K grace 1s";

/// Overwrites blocks at random, each with bytes of its own, and flushes; `wanted` is what the
/// volume has then.
fn overwrite(bed: &TestBed, wanted: &mut [u8], random: &mut Random, writes: u64) {
    let mut client = bed.connect("vol");
    for _ in 0..writes {
        let at = usize::try_from(random.below(BYTES / BLOCK as u64)).unwrap() * BLOCK;
        let byte = u8::try_from(random.below(256)).unwrap();
        let data = &mut wanted[at..at + BLOCK];
        data.fill(byte);
        client.write(at as u64, data).unwrap();
    }
    client.flush().unwrap();
}

fn contents(bed: &TestBed, device: &str) -> Vec<u8> {
    let mut client = bed.connect(device);
    let mut all = vec![0xdd; usize::try_from(BYTES).unwrap()];
    for (n, piece) in (0..).zip(all.chunks_mut(MIB as usize)) {
        client.read(n * MIB, piece).unwrap();
    }
    all
}

fn open(bed: &TestBed, url: &str, name: &str) {
    bed.verb(&["create", name, "--table", &format!("0 {BYTES_TEXT} objvol {url}@{name}")]);
}

fn snapshots_outlive_writes_and_kills(bed: &mut TestBed, url: &str) {
    let mut random = Random::new(11);
    let mut now = vec![0; usize::try_from(BYTES).unwrap()];
    let mut kept: Vec<(String, Vec<u8>)> = Vec::new();
    for round in 0..4 {
        overwrite(bed, &mut now, &mut random, 600);
        let name = format!("round-{round}");
        bed.verb(&["snapshot", "vol", &name]);
        kept.push((name, now.clone()));
        overwrite(bed, &mut now, &mut random, 600);
        if round == 1 {
            bed.kill();
            bed.start_again();
        }
    }
    // What is garbage by now is deleted.
    bed.verb(&["message", "vol", "0", "checkpoint"]);
    pause(Duration::from_secs(3));
    assert!(bed.attribute("vol", "delete_requests") > 0);
    assert!(bed.attribute("vol", "retained_bytes") > 0);
    for (name, wanted) in &kept {
        open(bed, url, name);
        assert!(contents(bed, name) == *wanted, "{name}");
        let mut client = bed.connect(name);
        assert!(client.flags() & 2 != 0, "the export is read-only");
        client.write(0, &[1; BLOCK]).unwrap_err();
    }
    assert!(contents(bed, "vol") == now);

    let refused = bed.daemon().try_verb(&["snapshot", "vol", "round-0"]).unwrap();
    assert!(
        refused.code == 1 && refused.stderr.contains("a snapshot round-0 already"),
        "{refused:?}"
    );
    let stored = bed.attribute("vol", "stored_bytes");
    for name in ["round-0", "round-2"] {
        bed.verb(&["remove", name]);
        bed.verb(&["snapshot", "vol", name, "--delete"]);
        kept.retain(|(kept, _)| kept != name);
    }
    let gone = bed.daemon().try_verb(&["snapshot", "vol", "round-0", "--delete"]).unwrap();
    assert!(gone.code == 3 && gone.stderr.contains("there is no snapshot round-0"), "{gone:?}");
    let listed = bed.verb(&["snapshots", "vol"]);
    assert!(listed.contains("round-1 ") && !listed.contains("round-0"), "{listed}");
    let give_up = e2e::clock() + 60.0;
    while bed.attribute("vol", "stored_bytes") >= stored {
        assert!(e2e::clock() < give_up, "nothing is freed");
        pause(Duration::from_millis(200));
    }
    // No writer is there any more.
    bed.verb(&["remove", "vol"]);
    for (name, wanted) in &kept {
        assert!(contents(bed, name) == *wanted, "{name}");
        bed.verb(&["remove", name]);
        open(bed, url, name);
        assert!(contents(bed, name) == *wanted, "{name}");
    }
}

#[test]
fn snapshots_outlive_kills_in_a_directory() {
    let dir = tempfile::Builder::new().prefix("millpond-e2e-store-").tempdir().unwrap();
    let url = format!("file://{}", dir.path().display());
    let table = format!("0 {BYTES_TEXT} objvol {url} {OPTIONS}");
    let mut bed = TestBed::start_with("", &[], &[("vol", &table)]);
    snapshots_outlive_writes_and_kills(&mut bed, &url);
}

#[test]
fn snapshots_outlive_kills_in_a_bad_bucket() {
    let bucket = Bucket::start().unwrap();
    let url = "s3://bucket/disks/one";
    let table = format!("0 {BYTES_TEXT} objvol {url} {OPTIONS}");
    let mut bed = TestBed::start_in(&bucket.variables(), "", &[], &[("vol", &table)]);
    bucket.set_faults(Faults::some());
    snapshots_outlive_writes_and_kills(&mut bed, url);
    assert!(bucket.faults_met() > 20, "{} faults", bucket.faults_met());
}

#[test]
fn a_deleted_snapshot_fails_its_readers_and_says_why() {
    let dir = tempfile::Builder::new().prefix("millpond-e2e-store-").tempdir().unwrap();
    let url = format!("file://{}", dir.path().display());
    let table = format!("0 {BYTES_TEXT} objvol {url} {OPTIONS}");
    let bed = TestBed::start_with("", &[], &[("vol", &table)]);
    let mut now = vec![0; usize::try_from(BYTES).unwrap()];
    overwrite(&bed, &mut now, &mut Random::new(3), 300);
    bed.verb(&["snapshot", "vol", "old"]);
    open(&bed, &url, "old");
    assert!(contents(&bed, "old") == now);
    overwrite(&bed, &mut now, &mut Random::new(4), 4000);
    bed.verb(&["snapshot", "vol", "old", "--delete"]);
    let mut client = bed.connect("old");
    let give_up = e2e::clock() + 60.0;
    while client.read(0, &mut vec![0; MIB as usize]).is_ok() {
        assert!(e2e::clock() < give_up, "its data are still there");
        pause(Duration::from_millis(200));
    }
    assert_eq!(bed.verb(&["get", "old", "state"]).trim(), "deleted");
    let shown = bed.verb(&["show", "old"]);
    assert!(shown.contains("the snapshot was deleted"), "{shown}");
}
