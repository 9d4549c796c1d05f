// SPDX-License-Identifier: Apache-2.0 OR MIT
//! What devices stand on in a live upgrade: tables that an operator has forced, and servers that
//! take one connection at a time.
use std::fs::Permissions;
use std::os::unix::fs::PermissionsExt;

use e2e::binary::{Build, millpond};
use e2e::clock;
use e2e::daemon::Daemon;
use e2e::origin::{IMAGE, Kind, Origin, Transport};
use e2e::test_bed::{TestBed, clients};

const MIB: u64 = 1 << 20;

/// A successor that fails when the devices have stopped: it has no memory for them.
fn fail_to_upgrade(daemon: &Daemon, dir: &std::path::Path) {
    let program = daemon.command(&[]);
    let program = program.get_program().to_str().unwrap().to_owned();
    let script = dir.join("successor.sh");
    std::fs::write(&script, format!("#!/bin/sh\nexec {program} \"$@\" --memory 1M\n")).unwrap();
    std::fs::set_permissions(&script, Permissions::from_mode(0o755)).unwrap();
    let ended = daemon.try_verb(&["upgrade", "--binary", script.to_str().unwrap()]).unwrap();
    assert!(ended.code != 0 && ended.stderr.contains("memory"), "{}", ended.complaint());
}

fn is_root() -> bool {
    let is_root = rustix::process::geteuid().is_root();
    if !is_root {
        println!("skipped in part: --binary needs root");
    }
    is_root
}

/// Makes a device with the token of its refusal.
fn force(bed: &TestBed, name: &str, table: &str) {
    let words = ["create", name, "--table", table];
    let refused = bed.daemon().try_verb(&words).unwrap();
    assert_ne!(refused.code, 0, "{name}");
    let token = refused.stderr.split("--force=").nth(1).expect(&refused.stderr);
    let token = format!("--force={}", &token[..8]);
    bed.verb(&[&words[..], &[&token]].concat());
}

#[test]
fn tables_that_were_forced_cross_an_upgrade() {
    let files = [("origin.img", 32 * MIB), ("cache.img", 16 * MIB), ("other.img", 4 * MIB)];
    let cache = "0 65536 writecache s ./origin.img ./cache.img 4096 1 no_guard";
    let bed = TestBed::start(&files, &[("wc", cache)]);
    let path = |name: &str| bed.path(name).display().to_string();
    force(&bed, "over", &format!("0 1024 linear {} 0", path("origin.img")));
    let stale = format!("0 8192 writecache s {} {} 4096 0", path("other.img"), path("gone.img"));
    force(&bed, "stale", &stale);
    let look = || [bed.verb(&["ls"]), bed.verb(&["table"]), bed.verb(&["status", "stale"])];
    let (before, mut client) = (look(), bed.connect("over"));
    client.write(4096, &[7; 4096]).unwrap();
    if is_root() {
        fail_to_upgrade(bed.daemon(), bed.dir());
        assert_eq!(look(), before, "after a failed upgrade");
    }
    for round in 0..2 {
        bed.verb(&["upgrade"]);
        assert_eq!(look(), before, "round {round}");
        let mut data = vec![0; 4096];
        client.read(4096, &mut data).unwrap();
        assert!(data.iter().all(|b| *b == 7));
        bed.connect("stale").read(0, &mut data).unwrap();
    }
}

/// The connection is closed before the successor makes its own.
#[test]
fn a_server_of_one_connection_is_no_obstacle() {
    let kind = Kind::QemuNbdOne;
    if !clients(&[kind.program()]) {
        return;
    }
    let dir = tempfile::Builder::new().prefix("millpond-e2e-").tempdir().unwrap();
    for name in [IMAGE, "cache.img"] {
        std::fs::File::create(dir.path().join(name)).unwrap().set_len(8 * MIB).unwrap();
    }
    let origin = Origin::start(kind, Transport::Unix, dir.path());
    let table = format!("0 16384 writecache s {} ./cache.img 4096 1 no_guard", origin.uri(""));
    let program = millpond(Build::Workspace).unwrap();
    let daemon = Daemon::start(&program, dir.path(), &[("wc", &table)]).unwrap();
    let mut client = daemon.connect("wc").unwrap();
    for round in 1..=3 {
        client.write(8192, &[round; 4096]).unwrap();
        if round == 2 && is_root() {
            fail_to_upgrade(&daemon, dir.path());
        } else {
            daemon.verb(&["upgrade"]).unwrap();
        }
        let mut data = vec![0; 4096];
        client.read(8192, &mut data).unwrap();
        assert!(data.iter().all(|b| *b == round), "round {round}");
        // To the server.
        daemon.verb(&["flush", "wc"]).unwrap();
        let image = std::fs::read(origin.image()).unwrap();
        assert!(image[8192..8192 + 4096].iter().all(|b| *b == round), "round {round}");
    }
    daemon.terminate().unwrap();
}

/// The FLUSH before the connection is closed waited for a server that hangs, for minutes, when all
/// clients had stopped; and what a page cache writes back before, with all verbs refused.
#[test]
fn a_server_that_hangs_ends_an_upgrade_in_time() {
    let kind = Kind::Nbdkit;
    if !clients(&[kind.program()]) {
        return;
    }
    let dir = tempfile::Builder::new().prefix("millpond-e2e-").tempdir().unwrap();
    for name in [IMAGE, "disk.img"] {
        std::fs::File::create(dir.path().join(name)).unwrap().set_len(8 * MIB).unwrap();
    }
    let origin = Origin::start(kind, Transport::Unix, dir.path());
    let program = millpond(Build::Workspace).unwrap();
    let devices = [("disk", "0 16384 linear ./disk.img 0")];
    let daemon = Daemon::start(&program, dir.path(), &devices).unwrap();
    let mut other = daemon.connect("disk").unwrap();
    for (target, why) in [
        ("linear", "its requests do not end in time"),
        ("buffered", "its page cache is not written back in time"),
    ] {
        let table = format!("0 16384 {target} {} 0", origin.uri(""));
        daemon.verb(&["create", "above", "--table", &table]).unwrap();
        let mut client = daemon.connect("above").unwrap();
        client.write(0, &[1; 4096]).unwrap();
        // With a client of it the end of the client's requests would be waited for before.
        daemon.verb(&["disconnect", "--device", "above"]).unwrap();
        origin.stop();
        let begun = clock();
        let ended = daemon.try_verb(&["upgrade", "--timeout", "10s"]).unwrap();
        let took = clock() - begun;
        assert!(ended.stderr.contains(why) && took < 50.0, "{took} s, {}", ended.complaint());
        other.write(0, &[2; 4096]).unwrap();
        origin.go_on();
        let mut client = daemon.connect("above").unwrap();
        client.write(0, &[3; 4096]).unwrap();
        client.flush().unwrap();
        daemon.verb(&["upgrade"]).unwrap();
        other.write(0, &[4; 4096]).unwrap();
        client.write(0, &[5; 4096]).unwrap();
        daemon.verb(&["disconnect", "--device", "above"]).unwrap();
        daemon.verb(&["remove", "above"]).unwrap();
    }
    daemon.terminate().unwrap();
}
