// SPDX-License-Identifier: Apache-2.0 OR MIT
//! A write cache in mode p, on a plain file that stands in for persistent memory: a real client
//! writes, the daemon is killed, and what was flushed is there; and what mode p says no to.

use std::os::unix::fs::FileExt;
use std::process::Command;
use std::time::Duration;

use e2e::pond::{Pond, clients};
use e2e::process::{Ended, run};

const MIB: u64 = 1 << 20;
const TABLE: &str = "0 65536 writecache p ./origin.img ./cache.img 4096 0";
const WARNING: &str = "is not persistent memory";

fn pond(devices: &[(&str, &str)]) -> Pond {
    Pond::start(&[("origin.img", 32 * MIB), ("cache.img", 16 * MIB)], devices)
}

fn qemu_io(pond: &Pond, commands: &[&str]) -> String {
    let mut command = Command::new("qemu-io");
    command.args(["-f", "raw", "-t", "none", &pond.uri("wc")]);
    for c in commands {
        command.args(["-c", c]);
    }
    let said = run(&mut command, Duration::from_secs(60)).unwrap().ok().unwrap();
    // qemu-io exits with 0 when a pattern differs.
    assert!(!said.contains("verification failed"), "{said}");
    said
}

#[test]
fn what_a_client_has_flushed_to_a_mapped_file_survives_a_kill_and_reaches_the_origin() {
    if !clients(&["qemu-io"]) {
        return;
    }
    let mut pond = pond(&[("wc", TABLE)]);
    assert!(pond.daemon().log().contains(WARNING), "{}", pond.daemon().log());
    qemu_io(
        &pond,
        &["write -P 1 0 1M", "write -P 2 5M 64k", "write -P 3 4k 4k", "flush", "write -P 4 8M 4k"],
    );
    pond.kill();
    pond.start_again();
    qemu_io(
        &pond,
        &["read -P 1 0 4k", "read -P 3 4k 4k", "read -P 1 8k 1016k", "read -P 2 5M 64k"],
    );
    assert!(pond.attribute("wc", "dirty_blocks") >= 272);
    assert!(pond.verb(&["table", "wc"]).contains("writecache p "));
    pond.verb(&["message", "wc", "0", "flush"]);
    let origin = std::fs::File::open(pond.path("origin.img")).unwrap();
    let mut found = vec![0; 65536];
    origin.read_exact_at(&mut found, 5 * MIB).unwrap();
    assert!(found.iter().all(|b| *b == 2));
    pond.terminate();
}

fn refused(pond: &Pond, table: &str) -> Ended {
    let ended = pond.daemon().try_verb(&["create", "no", "--table", table]).unwrap();
    assert_ne!(ended.code, 0, "{table}");
    ended
}

#[test]
fn what_can_not_be_mapped_or_is_open_otherwise_is_refused_with_the_reason() {
    let pond = pond(&[("wc", TABLE), ("m", "0 8192 linear mem:4M 0")]);
    pond.make_file("o2.img", 32 * MIB);
    let path = |name: &str| pond.path(name).display().to_string();
    for cache in ["mem:16M", "m", "/dev/mapper/m", "/dev/null"] {
        let table = format!("0 65536 writecache p {} {cache} 4096 0", path("o2.img"));
        let said = refused(&pond, &table);
        let text = "Persistent memory or DAX not supported on this system";
        assert!(said.stderr.contains(text), "{cache}: {}", said.stderr);
    }
    // The cache of `wc` is mapped: nobody else has it as an ordinary file, nor the other way round.
    let ordinary = format!("0 8192 linear {} 0", path("cache.img"));
    let said = refused(&pond, &ordinary);
    assert_eq!(said.code, 4, "{}", said.stderr);
    assert!(said.stderr.contains("it is open as pmem:"), "{}", said.stderr);
    let mapped = format!("0 8192 linear pmem:{} 0", path("origin.img"));
    let said = refused(&pond, &mapped);
    assert_eq!(said.code, 4, "{}", said.stderr);
    assert!(said.stderr.contains("it is open as /"), "{}", said.stderr);
}

#[test]
fn persistent_memory_is_a_leaf_for_any_table_and_says_what_it_is() {
    let pond = pond(&[]);
    let table = format!("0 32768 linear pmem:{} 0", pond.path("cache.img").display());
    let made = pond.daemon().try_verb(&["create", "wc", "--table", &table]).unwrap();
    assert_eq!(made.code, 0, "{}", made.stderr);
    assert!(made.stderr.contains(WARNING), "{}", made.stderr);
    if clients(&["qemu-io"]) {
        qemu_io(&pond, &["write -P 7 64k 64k", "flush", "read -P 7 64k 64k"]);
    }
    let line = pond.verb(&["table", "wc"]);
    assert!(line.contains(" pmem:/"), "{line}");
}
