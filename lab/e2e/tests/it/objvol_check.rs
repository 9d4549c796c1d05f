// SPDX-License-Identifier: Apache-2.0 OR MIT
//! `check` and `inspect` of a volume: beside a daemon that has it open, in a bucket, and after
//! objects were deleted by somebody else.
use std::path::{Path, PathBuf};

use e2e::bucket::{Bucket, Faults};
use e2e::test_bed::TestBed;
use serde_json::Value;

const PIECE: u64 = 64 << 10;

/// What `check` or `inspect` says in JSON; and its exit code, which has to be this.
fn report(bed: &TestBed, args: &[&str], code: i32) -> Value {
    let args: Vec<&str> = args.iter().copied().chain(["-o", "json"]).collect();
    let ended = bed.daemon().try_verb(&args).unwrap();
    assert_eq!(ended.code, code, "{}\n{}", ended.stderr, ended.stdout);
    serde_json::from_str(&ended.stdout).unwrap()
}

/// Writes pieces of 64 KiB, each in a segment of its own.
fn write_pieces(bed: &TestBed, pieces: std::ops::Range<u64>) {
    let mut client = bed.connect("vol");
    for piece in pieces {
        let byte = u8::try_from(piece + 1).unwrap();
        client.write(piece * PIECE, &vec![byte; PIECE as usize]).unwrap();
        client.flush().unwrap();
    }
}

/// The files of segments with data, ascending.
fn segments(dir: &Path) -> Vec<PathBuf> {
    let epochs = std::fs::read_dir(dir.join("segment")).unwrap();
    let files = epochs.flat_map(|epoch| std::fs::read_dir(epoch.unwrap().path()).unwrap());
    let mut files: Vec<PathBuf> = files
        .map(|file| file.unwrap())
        .filter(|file| file.metadata().unwrap().len() >= PIECE)
        .map(|file| file.path())
        .collect();
    files.sort();
    files
}

#[test]
fn a_volume_is_checked_in_use_and_repaired_after_a_loss() {
    let dir = tempfile::Builder::new().prefix("millpond-e2e-store-").tempdir().unwrap();
    let url = format!("file://{}", dir.path().display());
    let table = format!("0 8M objvol {url} 2 segment_size 256K");
    let mut bed = TestBed::start(&[], &[("vol", &table)]);
    let desk = TestBed::start(&[], &[]);
    write_pieces(&bed, 0..4);
    bed.verb(&["message", "vol", "0", "checkpoint"]);
    write_pieces(&bed, 4..10);
    let found = report(&desk, &["check", &url], 0);
    assert_eq!(found["health"], "sound");
    assert_eq!((&found["segments"], &found["replayed_segments"]), (&10.into(), &6.into()));
    assert_eq!(found["checked_bytes"], 10 * PIECE);
    write_pieces(&bed, 10..12); // it was not fenced
    bed.kill();

    let files = segments(dir.path());
    assert_eq!(files.len(), 12);
    std::fs::remove_file(&files[1]).unwrap();
    std::fs::remove_file(&files[8]).unwrap();
    let found = report(&desk, &["inspect", &url], 1);
    assert_eq!((&found["health"], &found["cut_off_segments"]), (&"broken".into(), &3.into()));
    let refused = desk.daemon().try_verb(&["create", "vol", "--table", &table]).unwrap();
    assert!(refused.code == 1 && refused.stderr.contains("is missing"), "{}", refused.stderr);
    // The repair can't bring the second piece back.
    let found = report(&desk, &["check", &url, "--repair"], 1);
    assert_eq!((&found["health"], &found["lost_range_count"]), (&"lossy".into(), &1.into()));
    assert_eq!(found["lost_ranges"][0]["start"], PIECE / 512);
    desk.verb(&["create", "vol", "--table", &table]);
    let mut client = desk.connect("vol");
    let mut data = vec![0; PIECE as usize];
    for piece in 0..12 {
        let read = client.read(piece * PIECE, &mut data);
        assert_eq!(read.is_err(), piece == 1, "{piece}: {read:?}");
        let byte = if piece < 8 { u8::try_from(piece + 1).unwrap() } else { 0 };
        assert!(piece == 1 || data.iter().all(|found| *found == byte), "{piece}");
    }
    client.write(PIECE, &data).unwrap();
    client.flush().unwrap();
    assert_eq!(report(&desk, &["check", &url], 0)["health"], "sound");
}

#[test]
fn a_volume_in_a_bad_bucket_is_checked() {
    let bucket = Bucket::start().unwrap();
    let url = "s3://bucket/disks/one";
    let table = format!("0 8M objvol {url} 2 segment_size 256K");
    let bed = TestBed::start_in(&bucket.variables(), "", &[], &[("vol", &table)]);
    write_pieces(&bed, 0..20);
    bucket.set_faults(Faults::some());
    let found = report(&bed, &["check", url], 0);
    assert_eq!(found["checked_bytes"], 20 * PIECE);
    let text = bed.verb(&["inspect", url]);
    assert!(text.contains("(8.0 MiB), uuid ") && text.contains("damage      none"), "{text}");
    assert_eq!(bed.daemon().try_verb(&["check", "s3://bucket/none"]).unwrap().code, 3);
}
