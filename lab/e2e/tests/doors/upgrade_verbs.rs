// SPDX-License-Identifier: Apache-2.0 OR MIT
//! Verbs that wait for writeback while a live upgrade comes: they go on at the successor, or, if
//! that fails, at the daemon.
use std::fs::{File, Permissions};
use std::os::unix::fs::{FileExt, PermissionsExt};
use std::time::Duration;

use e2e::client::Client;
use e2e::process::Job;
use e2e::test_bed::TestBed;
use e2e::{clock, pause};

const MIB: u64 = 1 << 20;
const BLOCKS: u64 = 400;
/// Blocks that are no neighbours: each is a write of its own.
const STRIDE: u64 = 16384;
/// One write at a time, each of 5 ms: two seconds for all blocks.
const DEVICES: [(&str, &str); 2] = [
    ("slow", "0 65536 delay ./origin.img 0 5"),
    (
        "wc",
        "0 65536 writecache s slow ./cache.img 4096 9 high_watermark 100 low_watermark 99 \
         writeback_jobs 1 gap_fill 0 no_guard",
    ),
];
const TIME: Duration = Duration::from_secs(120);

fn bed() -> TestBed {
    TestBed::start(&[("origin.img", 32 * MIB), ("cache.img", 16 * MIB)], &DEVICES)
}

fn write_all(client: &mut Client, byte: u8) {
    for nth in 0..BLOCKS {
        client.write(nth * STRIDE, &[byte; 4096]).unwrap();
    }
}

fn check_origin(bed: &TestBed, byte: u8, verb: &[&str]) {
    let origin = File::open(bed.path("origin.img")).unwrap();
    for nth in 0..BLOCKS {
        let mut data = vec![0; 4096];
        origin.read_exact_at(&mut data, nth * STRIDE).unwrap();
        assert!(data.iter().all(|b| *b == byte), "{verb:?}: block {nth} is not on the origin");
    }
}

/// Starts a verb, and returns when it has begun to write back.
fn start(bed: &TestBed, verb: &[&str]) -> Job {
    let before = bed.attribute("wc", "dirty_blocks");
    let job = Job::start(&mut bed.daemon().command(verb)).unwrap();
    let begun = clock();
    while bed.attribute("wc", "dirty_blocks") > before - 20 {
        assert!(clock() - begun < 20.0, "{verb:?} does not begin");
        pause(Duration::from_millis(5));
    }
    job
}

const VERBS: [&[&str]; 3] =
    [&["flush", "wc"], &["drain", "wc", "--rate", "100M"], &["message", "wc", "0", "flush"]];

#[test]
fn a_flush_and_a_drain_go_on_at_the_successor() {
    let bed = bed();
    let mut client = bed.connect("wc");
    for (byte, verb) in (1..).zip(VERBS) {
        write_all(&mut client, byte);
        let job = start(&bed, verb);
        // Two, if the first one comes early.
        for _ in 0..2 {
            let ended = bed.daemon().try_verb(&["upgrade", "--timeout", "20s"]).unwrap();
            assert_eq!(ended.code, 0, "beside {verb:?}: {}", ended.complaint());
        }
        let ended = job.wait(TIME).unwrap();
        assert_eq!(ended.code, 0, "{verb:?}: {}", ended.complaint());
        check_origin(&bed, byte, verb);
    }
}

#[test]
fn a_flush_and_a_drain_go_on_after_a_failed_upgrade() {
    if !rustix::process::geteuid().is_root() {
        println!("skipped: --binary needs root");
        return;
    }
    let bed = bed();
    let program = bed.daemon().command(&[]);
    let program = program.get_program().to_str().unwrap().to_owned();
    let script = bed.path("successor.sh");
    // It fails before the devices stop, and then when they have.
    let failing = ["exit 7".to_owned(), format!("exec {program} \"$@\" --memory 1M")];
    let mut client = bed.connect("wc");
    for (byte, verb) in (1..).zip(VERBS) {
        write_all(&mut client, byte);
        let job = start(&bed, verb);
        for text in &failing {
            std::fs::write(&script, format!("#!/bin/sh\n{text}\n")).unwrap();
            std::fs::set_permissions(&script, Permissions::from_mode(0o755)).unwrap();
            let words = ["upgrade", "--binary", script.to_str().unwrap()];
            assert_ne!(bed.daemon().try_verb(&words).unwrap().code, 0, "{text}");
        }
        let ended = job.wait(TIME).unwrap();
        assert_eq!(ended.code, 0, "{verb:?}: {}", ended.complaint());
        check_origin(&bed, byte, verb);
    }
}
