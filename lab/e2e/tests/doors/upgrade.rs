// SPDX-License-Identifier: Apache-2.0 OR MIT
//! Live upgrade: clients stay connected while another process takes over, and a successor that
//! fails, whenever it does, leaves the daemon serving.
use std::fs::Permissions;
use std::os::unix::fs::PermissionsExt;
use std::time::Duration;

use e2e::client::Client;
use e2e::daemon::Daemon;
use e2e::test_bed::TestBed;
use e2e::{clock, pause};
use serde_json::Value;

const MIB: u64 = 1 << 20;
const CACHE: &str = "0 65536 writecache s ./origin.img ./cache.img 4096 0";
/// A device on another one, and a mapping of a file.
const DEVICES: [(&str, &str); 3] =
    [("wc", CACHE), ("top", "0 1024 linear wc 8"), ("disk", "0 8192 linear ./disk.img 0")];

fn bed() -> TestBed {
    let files = [("origin.img", 32 * MIB), ("cache.img", 16 * MIB), ("disk.img", 4 * MIB)];
    TestBed::start(&files, &DEVICES)
}

/// The process of the daemon that answers.
pub(crate) fn pid(bed: &TestBed) -> u64 {
    let version: Value =
        serde_json::from_str(&bed.verb(&["version", "-o", "json"])).expect("it is JSON");
    version["pid"].as_u64().expect("a number")
}

/// Whether a daemon answers.
pub(crate) fn answers(bed: &TestBed) -> bool {
    bed.daemon().try_verb(&["ls"]).unwrap().code == 0
}

pub(crate) fn upgrade(bed: &TestBed, options: &[&str]) -> Value {
    let words = [&["upgrade", "-o", "json"], options].concat();
    serde_json::from_str(&bed.verb(&words)).expect("it is JSON")
}

/// A program for `--binary`: a script.
pub(crate) fn script(bed: &TestBed, text: &str) -> String {
    let path = bed.path("successor.sh");
    std::fs::write(&path, format!("#!/bin/sh\n{text}\n")).unwrap();
    std::fs::set_permissions(&path, Permissions::from_mode(0o755)).unwrap();
    path.to_str().unwrap().to_owned()
}

pub(crate) fn is_root() -> bool {
    let is_root = rustix::process::geteuid().is_root();
    if !is_root {
        println!("skipped: --binary needs root");
    }
    is_root
}

/// Writes each of 64 blocks with `byte`, and checks what is there.
fn write_all(client: &mut Client, byte: u8) {
    for nth in 0..64 {
        client.write(nth * 65536, &[byte; 4096]).unwrap();
    }
    check_all(client, byte);
}

fn check_all(client: &mut Client, byte: u8) {
    for nth in 0..64 {
        let mut data = vec![0; 4096];
        client.read(nth * 65536, &mut data).unwrap();
        assert!(data.iter().all(|b| *b == byte), "block {nth} is not of round {byte}");
    }
}

#[test]
fn devices_clients_and_settings_are_what_they_were() {
    let bed = bed();
    bed.verb(&["set", "wc", "high_watermark", "61"]);
    let mut sessions = [bed.connect("wc"), bed.connect("top"), bed.connect("disk")];
    for (nth, client) in sessions.iter_mut().enumerate() {
        client.write(8192, &[u8::try_from(nth).unwrap() + 1; 4096]).unwrap();
    }
    let look = |what: &[&str]| bed.verb(what);
    let before = [look(&["ls"]), look(&["table"]), look(&["get", "wc", "high_watermark"])];
    let done = upgrade(&bed, &[]);
    assert_eq!((&done["devices"], &done["sessions"]), (&3.into(), &3.into()), "{done}");
    let after = [look(&["ls"]), look(&["table"]), look(&["get", "wc", "high_watermark"])];
    assert_eq!(after, before);
    let all: Value = serde_json::from_str(&bed.verb(&["clients", "-o", "json"])).unwrap();
    assert_eq!(all.as_array().unwrap().len(), 3);
    for (nth, client) in sessions.iter_mut().enumerate() {
        let mut data = vec![0; 4096];
        client.read(8192, &mut data).unwrap();
        assert!(data.iter().all(|b| *b == u8::try_from(nth).unwrap() + 1), "session {nth}");
    }
    // The locks went with it.
    let other = TestBed::start(&[], &[]);
    let taken = format!("0 8192 linear {} 0", bed.path("disk.img").display());
    let refused = other.daemon().try_verb(&["create", "x", "--table", &taken]).unwrap();
    assert_eq!(refused.code, 4, "{}", refused.complaint());
}

#[test]
fn a_successor_that_fails_leaves_the_daemon_serving() {
    if !is_root() {
        return;
    }
    let bed = bed();
    let (mut client, before) = (bed.connect("wc"), pid(&bed));
    let program = bed.daemon().command(&[]);
    let program = program.get_program().to_str().unwrap().to_owned();
    let failing = [
        ("exit 7", "hand-over: "),
        ("echo hello >&0; sleep 60", "hand-over: "),
        ("sleep 60", "no answer in time"),
        // It can't start with these options, and says so.
        (&*format!("exec {program} daemon --cores 99"), "--cores 99: 1 to 16 are allowed"),
        // Its devices are refused: there is no room.
        (&*format!("exec {program} \"$@\" --memory 1M"), "memory"),
    ];
    for (round, (text, why)) in (1..).zip(failing) {
        write_all(&mut client, round);
        let binary = script(&bed, text);
        let words = ["upgrade", "--timeout", "3s", "--binary", &binary];
        let refused = bed.daemon().try_verb(&words).unwrap();
        assert_ne!(refused.code, 0, "{text}");
        assert!(refused.stderr.contains(why), "{text}: {}", refused.stderr);
        assert_eq!(pid(&bed), before, "{text}: the same process answers");
        check_all(&mut client, round);
        write_all(&mut client, round + 100);
        client.flush().unwrap();
    }
    upgrade(&bed, &[]);
    check_all(&mut client, 105);
}

/// HO-UP1, HO-UP2. Whatever step it is at: the daemon goes on, or, after COMMIT, the next one finds
/// everything.
#[test]
fn a_successor_killed_at_any_moment_loses_nothing() {
    if !is_root() {
        return;
    }
    let bed = bed();
    let program = bed.daemon().command(&[]);
    let program = program.get_program().to_str().unwrap().to_owned();
    let (mut client, mut killed_early, mut killed_late) = (bed.connect("wc"), 0, 0);
    let mut again: Option<Daemon> = None;
    for round in 1..=24_u8 {
        write_all(&mut client, round);
        if round % 3 == 0 {
            client.flush().unwrap();
        }
        let before = pid(&bed);
        // From the start of the program to after COMMIT.
        let seconds = f64::from(round) * 0.004;
        let text = format!("(sleep {seconds}; kill -9 $$) & exec {program} \"$@\"");
        let binary = script(&bed, &text);
        let ended = bed.daemon().try_verb(&["upgrade", "--binary", &binary]).unwrap();
        if ended.code != 0 && answers(&bed) {
            assert_eq!(pid(&bed), before, "the daemon goes on");
            killed_early += 1;
        } else {
            // The successor had everything, and was killed.
            let begun = clock();
            while answers(&bed) {
                assert!(clock() - begun < 20.0, "it is not killed");
                pause(Duration::from_millis(20));
            }
            drop(again.take());
            again = Some(Daemon::restart(program.as_ref(), bed.dir()).unwrap());
            client = bed.connect("wc");
            killed_late += 1;
        }
        check_all(&mut client, round);
    }
    println!("{killed_early} killed before COMMIT, {killed_late} after it");
    assert!(killed_early > 0, "none was killed before COMMIT");
    drop(again);
}

/// HO-UP2: the successor had opened the cache, and with that changed what is on its device.
#[test]
fn what_is_written_after_a_failed_upgrade_survives_a_kill() {
    if !is_root() {
        return;
    }
    let bed = bed();
    bed.make_file("paged.img", 4 * MIB);
    let paged = format!("0 8192 buffered {} 2 memory 512M", bed.path("paged.img").display());
    bed.verb(&["create", "paged", "--table", &paged]);
    let program = bed.daemon().command(&[]);
    let program = program.get_program().to_str().unwrap().to_owned();
    let mut client = bed.connect("wc");
    write_all(&mut client, 1);
    // It has no room for the last device.
    let binary = script(&bed, &format!("exec {program} \"$@\" --memory 256M"));
    let refused = bed.daemon().try_verb(&["upgrade", "--binary", &binary]).unwrap();
    // Devices are opened in order: it had the cache by then. Its log may end before that.
    assert!(refused.stderr.contains("device paged"), "{}", refused.complaint());
    assert!(refused.stderr.contains("memory"), "{}", refused.complaint());
    // Not flushed: the journal in memory has it, whose file the successor had open, too.
    write_all(&mut client, 2);
    let pid = i32::try_from(pid(&bed)).ok().and_then(rustix::process::Pid::from_raw).unwrap();
    rustix::process::kill_process(pid, rustix::process::Signal::KILL).unwrap();
    while answers(&bed) {
        pause(Duration::from_millis(5));
    }
    let _again = Daemon::restart(program.as_ref(), bed.dir()).unwrap();
    check_all(&mut bed.connect("wc"), 2);
}

#[test]
fn an_upgrade_can_be_left_out_where_the_program_is_the_same() {
    let bed = bed();
    let before = pid(&bed);
    let said = bed.verb(&["upgrade", "--if-changed"]);
    let version = env!("CARGO_PKG_VERSION");
    assert_eq!(said.trim(), format!("pid {before} ({version}) runs the program that is installed"));
    assert_eq!(pid(&bed), before);
    if !is_root() {
        return;
    }
    // The same with a byte behind its end.
    let program = bed.daemon().command(&[]);
    let mut bytes = std::fs::read(program.get_program()).unwrap();
    bytes.push(0);
    let other = bed.path("millpond");
    std::fs::write(&other, bytes).unwrap();
    std::fs::set_permissions(&other, Permissions::from_mode(0o755)).unwrap();
    let other = other.to_str().unwrap();
    let done = upgrade(&bed, &["--if-changed", "--binary", other]);
    assert_eq!(done["program_differs"], true, "{done}");
    assert_ne!(pid(&bed), before);
}

#[test]
fn what_does_not_cross_is_named_and_refused() {
    let bed = bed();
    bed.verb(&["create", "scratch", "--table", "0 2048 linear mem:1M 0"]);
    let report = upgrade(&bed, &["--dry-run"]);
    let problem = &report["problems"][0];
    assert_eq!(problem["name"], "scratch", "{report}");
    assert_eq!(report["successor"], Value::Null);
    let before = pid(&bed);
    let refused = bed.daemon().try_verb(&["upgrade"]).unwrap();
    assert_eq!(refused.code, 4, "{}", refused.complaint());
    assert!(refused.stderr.contains("--force scratch"), "{}", refused.stderr);
    bed.verb(&["suspend", "disk"]);
    let refused = bed.daemon().try_verb(&["upgrade", "--force", "scratch"]).unwrap();
    assert!(refused.stderr.contains("disk: it is suspended"), "{}", refused.stderr);
    assert_eq!(pid(&bed), before);
    bed.verb(&["resume", "disk"]);
    upgrade(&bed, &["--force", "scratch"]);
    assert!(bed.verb(&["ls"]).contains("scratch"));
}
