// SPDX-License-Identifier: Apache-2.0 OR MIT
//! A write cache in mode p, on a plain file that stands in for persistent memory: a real client
//! writes, the daemon is killed, and flushed data are there; and which files mode p refuses.

use std::os::unix::fs::FileExt;
use std::process::Command;
use std::time::Duration;

use e2e::process::{Ended, run};
use e2e::test_bed::{TestBed, clients};

const MIB: u64 = 1 << 20;
const TABLE: &str = "0 65536 writecache p ./origin.img ./cache.img 4096 0";
const WARNING: &str = "is not persistent memory";

fn bed(devices: &[(&str, &str)]) -> TestBed {
    TestBed::start(&[("origin.img", 32 * MIB), ("cache.img", 16 * MIB)], devices)
}

fn qemu_io(bed: &TestBed, commands: &[&str]) -> String {
    let mut command = Command::new("qemu-io");
    command.args(["-f", "raw", "-t", "none", &bed.uri("wc")]);
    for c in commands {
        command.args(["-c", c]);
    }
    let output = run(&mut command, Duration::from_secs(60)).unwrap().ok().unwrap();
    // qemu-io exits with 0 when a pattern differs.
    assert!(!output.contains("verification failed"), "{output}");
    output
}

#[test]
fn data_flushed_to_a_mapped_file_survive_a_kill() {
    if !clients(&["qemu-io"]) {
        return;
    }
    let mut bed = bed(&[("wc", TABLE)]);
    assert!(bed.daemon().log().contains(WARNING), "{}", bed.daemon().log());
    qemu_io(
        &bed,
        &["write -P 1 0 1M", "write -P 2 5M 64k", "write -P 3 4k 4k", "flush", "write -P 4 8M 4k"],
    );
    bed.kill();
    bed.start_again();
    qemu_io(&bed, &["read -P 1 0 4k", "read -P 3 4k 4k", "read -P 1 8k 1016k", "read -P 2 5M 64k"]);
    assert!(bed.attribute("wc", "dirty_blocks") >= 272);
    assert!(bed.verb(&["table", "wc"]).contains("writecache p "));
    bed.verb(&["message", "wc", "0", "flush"]);
    let origin = std::fs::File::open(bed.path("origin.img")).unwrap();
    let mut found = vec![0; 65536];
    origin.read_exact_at(&mut found, 5 * MIB).unwrap();
    assert!(found.iter().all(|b| *b == 2));
    bed.terminate();
}

fn refused(bed: &TestBed, table: &str) -> Ended {
    let ended = bed.daemon().try_verb(&["create", "no", "--table", table]).unwrap();
    assert_ne!(ended.code, 0, "{table}");
    ended
}

#[test]
fn files_that_cannot_be_mapped_are_refused_with_the_reason() {
    let bed = bed(&[("wc", TABLE), ("m", "0 8192 linear mem:4M 0")]);
    bed.make_file("o2.img", 32 * MIB);
    let path = |name: &str| bed.path(name).display().to_string();
    for cache in ["mem:16M", "m", "/dev/mapper/m", "/dev/null"] {
        let table = format!("0 65536 writecache p {} {cache} 4096 0", path("o2.img"));
        let output = refused(&bed, &table);
        let text = "Persistent memory or DAX not supported on this system";
        assert!(output.stderr.contains(text), "{cache}: {}", output.stderr);
    }
    // The cache of `wc` is mapped: nobody else has it as an ordinary file, nor the other way round.
    let ordinary = format!("0 8192 linear {} 0", path("cache.img"));
    let output = refused(&bed, &ordinary);
    assert_eq!(output.code, 4, "{}", output.stderr);
    assert!(output.stderr.contains("it is open as pmem:"), "{}", output.stderr);
    let mapped = format!("0 8192 linear pmem:{} 0", path("origin.img"));
    let output = refused(&bed, &mapped);
    assert_eq!(output.code, 4, "{}", output.stderr);
    assert!(output.stderr.contains("it is open as /"), "{}", output.stderr);
}

#[test]
fn persistent_memory_is_a_leaf_and_its_status_says_so() {
    let bed = bed(&[]);
    let table = format!("0 32768 linear pmem:{} 0", bed.path("cache.img").display());
    let made = bed.daemon().try_verb(&["create", "wc", "--table", &table]).unwrap();
    assert_eq!(made.code, 0, "{}", made.stderr);
    assert!(made.stderr.contains(WARNING), "{}", made.stderr);
    if clients(&["qemu-io"]) {
        qemu_io(&bed, &["write -P 7 64k 64k", "flush", "read -P 7 64k 64k"]);
    }
    let line = bed.verb(&["table", "wc"]);
    assert!(line.contains(" pmem:/"), "{line}");
}
