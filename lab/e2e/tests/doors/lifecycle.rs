// SPDX-License-Identifier: Apache-2.0 OR MIT
//! Tables change under a client that does not notice: suspend, load, resume while fio writes.
use std::fs::Permissions;
use std::os::unix::fs::PermissionsExt;
use std::process::Command;
use std::time::Duration;

use e2e::binary::{Build, millpond};
use e2e::daemon::Daemon;
use e2e::fio::Fio;
use e2e::process::run;
use e2e::test_bed::{TestBed, clients};
use e2e::{clock, pause};

use crate::upgrade::is_root;

const MIB: u64 = 1 << 20;
const LIMIT: Duration = Duration::from_secs(120);
const SECTORS: u64 = 64 * MIB / 512;

/// Every block once, slowly enough that there is time to change tables.
fn slow_writes(fio: Fio) -> Fio {
    fio.with(["--rw=randwrite", "--size=64m", "--iodepth=8", "--randseed=4"])
        .with(["--verify=crc32c", "--end_fsync=1"])
}

#[test]
fn a_cache_is_removed_and_replaced_under_load() {
    if !clients(&["fio"]) {
        return;
    }
    let bed = TestBed::with_cache(64 * MIB, 32 * MIB, "");
    bed.make_file("other.img", 16 * MIB);
    let fio = slow_writes(Fio::new(bed.dir(), &bed.uri("wc")))
        .with(["--rate_iops=5000"])
        .start()
        .unwrap();
    bed.wait_until_dirty(); // there is something to lose

    let path = |name: &str| bed.path(name).display().to_string();
    let (origin, other) = (path("origin.img"), path("other.img"));
    let linear = format!("0 {SECTORS} linear {origin} 0");
    bed.verb(&["load", "wc", "--table", &linear]);
    bed.verb(&["message", "wc", "0", "flush_on_suspend"]);
    bed.verb(&["suspend", "wc"]);
    assert_eq!(bed.attribute("wc", "dirty_blocks"), 0, "the suspend has flushed");
    pause(Duration::from_millis(200)); // requests wait meanwhile
    assert!(bed.verb(&["info", "wc"]).contains("SUSPENDED"));
    bed.verb(&["resume", "wc"]);
    assert_eq!(bed.verb(&["table", "wc"]), format!("{linear}\n"));
    pause(Duration::from_millis(500));
    assert!(fio.is_running(), "the writes are not over yet");

    let cached = format!("0 {SECTORS} writecache s {origin} {other} 4096 0");
    bed.verb(&["load", "wc", "--table", &cached]);
    bed.verb(&["resume", "wc"]); // suspends by itself
    assert!(fio.is_running(), "the writes are not over yet");

    let done = fio.wait(LIMIT).unwrap();
    assert_eq!((done.writes, done.reads), (64 * MIB / 4096, 64 * MIB / 4096));
    assert!(bed.attribute("wc", "dirty_blocks") > 0, "the second cache took writes");
    bed.verb(&["message", "wc", "0", "flush"]);
    let origin = Fio::on_file(bed.dir(), &bed.path("origin.img"));
    let verified = slow_writes(origin).with(["--verify_only"]).run(LIMIT).unwrap();
    assert_eq!(verified.reads, 64 * MIB / 4096);
}

#[test]
fn suspend_and_resume_under_load_fail_no_request() {
    if !clients(&["fio"]) {
        return;
    }
    let bed = TestBed::with_cache(64 * MIB, 16 * MIB, "");
    let fio = slow_writes(Fio::new(bed.dir(), &bed.uri("wc")))
        .with(["--rate_iops=8000"])
        .start()
        .unwrap();
    bed.wait_until_dirty();
    for _ in 0..5 {
        pause(Duration::from_millis(150));
        bed.verb(&["suspend", "wc"]);
        pause(Duration::from_millis(50));
        bed.verb(&["resume", "wc"]);
    }
    assert!(fio.is_running(), "the writes are not over yet");
    let done = fio.wait(LIMIT).unwrap();
    assert_eq!((done.writes, done.reads), (64 * MIB / 4096, 64 * MIB / 4096));
}

/// Outside of a container its process has another number, or none: `stop` sees its end even so.
#[test]
fn a_daemon_in_a_container_is_stopped_from_outside() {
    if !is_root() {
        return;
    }
    let dir = tempfile::Builder::new().prefix("millpond-e2e-").tempdir().unwrap();
    let program = millpond(Build::Workspace).unwrap();
    let contained = dir.path().join("contained.sh");
    let text = format!("exec unshare --pid --fork --kill-child {} \"$@\"", program.display());
    std::fs::write(&contained, format!("#!/bin/sh\n{text}\n")).unwrap();
    std::fs::set_permissions(&contained, Permissions::from_mode(0o755)).unwrap();
    let daemon = Daemon::start(&contained, dir.path(), &[]).unwrap();
    let run_dir = dir.path().join("run");
    let of_here = |words: &[&str]| {
        let mut verb = Command::new(&program);
        verb.arg("--run-dir").arg(&run_dir).args(words);
        run(&mut verb, LIMIT).unwrap().ok().unwrap()
    };
    let version: serde_json::Value =
        serde_json::from_str(&of_here(&["version", "-o", "json"])).unwrap();
    assert_eq!(version["pid"], 1, "{version}");
    of_here(&["stop"]);
    let give_up = clock() + 20.0;
    while daemon.is_running() {
        assert!(clock() < give_up, "it is not stopped");
        pause(Duration::from_millis(5));
    }
    assert_eq!(daemon.exit_code(), Some(0));
}

#[test]
fn a_device_in_use_is_not_removed_and_an_unused_one_is() {
    let bed = TestBed::with_cache(16 * MIB, 8 * MIB, "");
    let mut client = bed.connect("wc");
    client.write(0, &[7; 4096]).unwrap();
    let refused = bed.daemon().try_verb(&["remove", "wc"]).unwrap();
    assert_eq!(refused.code, 4, "{}", refused.complaint());
    client.flush().unwrap();
    drop(client);
    // The server notices soon that the client has gone.
    let gone = (0..200).any(|_| {
        pause(Duration::from_millis(20));
        bed.daemon().try_verb(&["remove", "wc"]).unwrap().code == 0
    });
    assert!(gone, "{}", bed.daemon().log());
    assert_eq!(bed.verb(&["ls"]), "No devices found\n");
}

/// The kernel's way to take a cache away and bring it back: what the origin got meanwhile counts.
#[test]
fn a_cache_removed_after_a_flush_returns_without_stale_blocks() {
    let bed = TestBed::with_cache(16 * MIB, 8 * MIB, "");
    let path = |name: &str| bed.path(name).display().to_string();
    let (origin, cache) = (path("origin.img"), path("cache.img"));
    let sectors = 16 * MIB / 512;
    let mut client = bed.connect("wc");
    client.write(0, &[1; 8192]).unwrap();
    bed.verb(&["load", "wc", "--table", &format!("0 {sectors} linear {origin} 0")]);
    bed.verb(&["message", "wc", "0", "flush_on_suspend"]);
    bed.verb(&["resume", "wc"]);
    client.write(0, &[2; 4096]).unwrap();
    let cached = format!("0 {sectors} writecache s {origin} {cache} 4096 0");
    bed.verb(&["load", "wc", "--table", &cached]);
    bed.verb(&["resume", "wc"]);
    let mut data = [0; 8192];
    client.read(0, &mut data).unwrap();
    assert!(data[..4096] == [2; 4096] && data[4096..] == [1; 4096], "stale: {}", data[0]);
}
