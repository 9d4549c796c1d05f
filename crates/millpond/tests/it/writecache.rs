// SPDX-License-Identifier: Apache-2.0 OR MIT
//! The write cache as dm-writecache's users meet it: every error of its table line in the kernel's
//! words, and every option changed while the device is in use.

use std::os::unix::fs::FileExt;
use std::path::Path;
use std::process::Command;

use crate::common::{CommandOutput, Daemon, MILLPOND};
use serde_json::{Value, json};

/// The terminal session of a machine with the kernel's own target.
const SESSION: &str = include_str!("../../../writecache/tests/golden/kernel-session.txt");

/// Calls the program as `dmsetup create bad --table LINE`.
fn create(daemon: &Daemon, line: &str) -> CommandOutput {
    let link = daemon.dir.path().join("dmsetup");
    if !link.exists() {
        std::os::unix::fs::symlink(MILLPOND, &link).unwrap();
    }
    let mut command = Command::new(link);
    command.env("MILLPOND_RUN_DIR", daemon.run_dir()).current_dir(daemon.dir.path());
    command.args(["create", "bad", "--table", line]).output().unwrap().into()
}

/// Checks a refusal: dmsetup's line with the cause that the kernel gives, then the target's words,
/// and what they are about.
#[track_caller]
fn assert_refused(daemon: &Daemon, args: &str, errno: &str, texts: &[&str]) {
    let line = format!("0 8192 writecache {args}");
    let output = create(daemon, line.trim_end()).failed(1);
    let first = output.lines().next().unwrap();
    assert!(first.starts_with("device-mapper: reload ioctl on bad "), "{args}: {output}");
    assert!(first.ends_with(&format!(" failed: {errno}")), "{args}: {output}");
    assert!(output.ends_with("\nCommand failed.\n"), "{args}: {output}");
    assert!(output.contains("bad: ") && output.contains("writecache: "), "{args}: {output}");
    for text in texts {
        assert!(output.contains(text), "{args}: no `{text}` in {output}");
    }
    assert_eq!(daemon.cli(&["ls"]).ok(), "No devices found\n", "{args}");
}

fn poke(cache: &str, offset: u64, bytes: &[u8]) {
    let file = std::fs::OpenOptions::new().write(true).open(cache).unwrap();
    file.write_all_at(bytes, offset).unwrap();
}

/// Every line of the session's errors, with the device names of this test.
#[test]
fn the_kernels_refusals_are_repeated_in_its_words() {
    let daemon = Daemon::start();
    let (origin, cache) = (daemon.file("origin.img", 4), daemon.file("cache.img", 2));
    let table = format!("0 8192 writecache s {origin} {cache} 4096");
    daemon.create("new", &format!("{table} 2 format dm"));
    daemon.cli(&["remove", "new"]).ok();
    let good = std::fs::read(&cache).unwrap();
    let (_, errors) = SESSION.split_once("== error strings\n").unwrap();
    let (mut taken, mut refused) = (0, 0);
    for (command, output) in errors.split("$ ").skip(1).map(|part| part.split_once('\n').unwrap()) {
        if let Some(damage) = command.strip_prefix("superblock: ") {
            poke(&cache, 0, &good);
            match damage {
                "magic changed (all 0xff)" => poke(&cache, 0, &[0xff; 4]),
                "version 9" => poke(&cache, 4, &[9]),
                "block_size 512 in sb" => poke(&cache, 8, &512u32.to_le_bytes()),
                "n_blocks + 1" => poke(&cache, 16, &(509u64 + 1).to_le_bytes()),
                other => panic!("{other}"),
            }
            continue;
        }
        let args = command.strip_prefix("writecache ").unwrap().trim();
        let args = args.replace("/dev/vda", &origin).replace("/dev/vdb", &cache);
        let kernel = output.lines().find_map(|line| line.split_once(": writecache: "));
        let Some((text, _errno)) = kernel.and_then(|(_, text)| text.rsplit_once(" (-")) else {
            create(&daemon, &format!("0 8192 writecache {args}")).ok();
            daemon.cli(&["remove", "bad"]).ok();
            taken += 1;
            continue;
        };
        let (_, errno) = output.lines().next().unwrap().split_once(" failed: ").unwrap();
        // The session is of Linux 6.1; that of a missing device is Linux 7.3's.
        let errno = if errno == "No such device" { MISSING } else { errno };
        assert_refused(&daemon, &args, errno, &[text]);
        refused += 1;
    }
    assert_eq!((taken, refused), (2, 17));
}

const INVALID: &str = "Invalid argument";
const MISSING: &str = "No such file or directory";
const OPTION: &str = "Invalid optional argument";

#[test]
fn the_kernels_other_refusals_also_state_what_is_allowed() {
    let daemon = Daemon::start();
    let (origin, cache) = (daemon.file("origin.img", 4), daemon.file("cache.img", 2));
    let with = |count: u32, options: &str| format!("s {origin} {cache} 4096 {count} {options}");
    for (args, texts) in [
        (format!("s {origin}"), &["Bad arguments", "<p|s> <origin> <cache>"][..]),
        (format!("s {origin} {cache}"), &["Bad arguments"]),
        (format!("s {origin} {cache} 4096"), &["Bad arguments"]),
        (format!("s {origin} {cache} 4096k 0"), &["Invalid block size `4096k`", "512 to 4096"]),
        (with(2, "high_watermark"), &["Invalid number of feature args `2`", "1 follow"]),
        (with(0, "cleaner"), &["Bad arguments: `cleaner` follows"]),
        (with(1, "high_watermark"), &[OPTION, "high_watermark has no value"]),
        (with(2, "start_sector x"), &[OPTION, "start_sector: `x`"]),
        (with(2, "start_sector 4096"), &[OPTION, "start_sector 4096", "4096 sectors"]),
        (
            with(2, "low_watermark 101"),
            &[OPTION, "low_watermark: `101`: a number from 0 to 100 percent"],
        ),
        (with(2, "writeback_jobs 4294967296"), &[OPTION, "writeback_jobs", "0 to 4294967295"]),
        (
            with(2, "autocommit_blocks -1"),
            &[OPTION, "autocommit_blocks: `-1`: a number from 0 to 4294967295"],
        ),
        (with(2, "autocommit_time 3600001"), &[OPTION, "autocommit_time", "0 to 3600000 ms"]),
        (with(2, "max_age 86400001"), &[OPTION, "max_age: `86400001`: none, or 0 to 86400000 ms"]),
        (with(2, "pause_writeback 60001"), &[OPTION, "pause_writeback", "0 to 60000 ms"]),
        (with(1, "nofua"), &[OPTION, "`nofua`", "mode `p`"]),
        (
            format!("p {origin} {cache} 4096 2 pause_writeback 1"),
            &[OPTION, "`pause_writeback`", "mode `s`"],
        ),
    ] {
        assert_refused(&daemon, &args, INVALID, texts);
    }
    for (args, errno, texts) in [
        (
            format!("p {origin} mem:2M 4096 0"),
            "Operation not supported",
            &["Persistent memory or DAX not supported on this system", "mem:2M"][..],
        ),
        (
            format!("p {origin} ./nope.img 4096 0"),
            MISSING,
            &["Cache data device lookup failed", "nope.img"],
        ),
        (
            format!("s nobody {cache} 4096 0"),
            MISSING,
            &["Origin data device lookup failed: `nobody`"],
        ),
        (
            format!("s {origin} mem:4K 4096 0"),
            "No space left on device",
            &["Invalid device size", "mem:4K", "needs at least 408 KiB"],
        ),
        (
            format!("s {origin} mem:4K 4096 2 format dm"),
            "No space left on device",
            &["Invalid device size", "mem:4K", "needs 8192"],
        ),
    ] {
        assert_refused(&daemon, &args, errno, texts);
    }
}

/// Makes `name` of `table`, tries `args`, and takes it away.
#[track_caller]
fn assert_refused_over(daemon: &Daemon, below: &str, args: &str, errno: &str, texts: &[&str]) {
    daemon.create("below", below);
    let line = format!("0 8192 writecache {args}");
    let output = create(daemon, &line).failed(1);
    assert!(output.lines().next().unwrap().ends_with(&format!("failed: {errno}")), "{output}");
    for text in texts {
        assert!(output.contains(text), "{args}: no `{text}` in {output}");
    }
    daemon.cli(&["remove", "below"]).ok();
}

#[test]
fn a_bad_cache_device_is_refused_in_the_kernels_words() {
    let daemon = Daemon::start();
    let (origin, cache) = (daemon.file("origin.img", 4), daemon.file("cache.img", 2));
    // A write cache of 4096-byte blocks takes sectors, which it merges: what the kernel refuses,
    // a cache of smaller blocks on it, works.
    daemon.create("below", "0 4096 writecache s mem:2M,o mem:2M,c 4096 0");
    let other = daemon.file("other.img", 4);
    daemon.create("above", &format!("0 8192 writecache s {other} below 512 0"));
    daemon.cli(&["remove", "above"]).ok();
    assert_eq!(daemon.cli(&["remove", "below"]).code, Some(0)); // it tells what stays in a cache
    for format in ["native", "dm"] {
        let args = format!("s {origin} below 4096 2 format {format}");
        let io = "Input/output error";
        let unreadable = ["Unable to read first block of metadata", "below"];
        assert_refused_over(&daemon, "0 4096 error", &args, io, &unreadable);
        let read_only = format!("0 4096 flakey {cache} 0 0 60 1 error_writes");
        let uninitialized = ["Unable to initialize device", "below"];
        assert_refused_over(&daemon, &read_only, &args, io, &uninitialized);
    }
    assert!(std::fs::read(&cache).unwrap().iter().all(|byte| *byte == 0));
    // More blocks than any number holds bytes of.
    daemon.create("new", &format!("0 8192 writecache s {origin} {cache} 4096 2 format dm"));
    daemon.cli(&["remove", "new"]).ok();
    poke(&cache, 16, &u64::MAX.to_le_bytes());
    let args = format!("s {origin} {cache} 4096 0");
    assert_refused(&daemon, &args, INVALID, &["Overflow in size calculation", "cache.img"]);
}

/// Sets an attribute by the API; returns the status and the body.
fn put(daemon: &Daemon, option: &str, value: &str) -> (String, String) {
    let body = json!({ "value": value }).to_string();
    let path = format!("/v1/devices/wc/attributes/{option}");
    let (status, body) = daemon.curl("PUT", &path, &["-d", &body]);
    let body: Value = serde_json::from_str(&body).unwrap();
    let output = if status == "200" { &body["value"] } else { &body["message"] };
    (status, output.as_str().map_or_else(|| output.to_string(), str::to_owned))
}

/// A write cache in this mode. Returns its table line without the options.
fn live(daemon: &Daemon, mode: &str) -> String {
    let (origin, cache) = (daemon.file("origin.img", 4), daemon.file("cache.img", 2));
    let head = format!("0 8192 writecache {mode} {origin} {cache} 4096");
    let output = daemon.cli(&["create", "wc", "--table", &format!("{head} 0")]);
    assert_eq!(output.code, Some(0), "{output:?}");
    let shown = daemon.cli(&["table", "wc"]).ok();
    let (head, count) = shown.trim_end().rsplit_once(' ').unwrap();
    assert_eq!(count, "0");
    head.to_owned()
}

/// Options with a value: two that are accepted, one that is not, and its error.
const VALUES: [(&str, [&str; 2], &str, &str); 20] = [
    ("high_watermark", ["70", "100"], "101", "0 to 100 percent"),
    ("low_watermark", ["0", "50"], "x", "0 to 100 percent"),
    ("writeback_jobs", ["16", "0"], "4294967296", "0 to 4294967295 blocks"),
    ("autocommit_blocks", ["0", "4294967295"], "-1", "0 to 4294967295 blocks"),
    ("autocommit_time", ["0", "3600000"], "3600001", "0 to 3600000 ms"),
    ("max_age", ["1000", "86400000"], "86400001", "0 to 86400000 ms"),
    ("pause_writeback", ["0", "60000"], "60001", "0 to 60000 ms"),
    ("writeback_order", ["lru", "sorted"], "random", "sorted or lru"),
    ("writeback_io_bytes", ["4096", "16777216"], "5000", "multiple of the block size 4096"),
    ("gap_fill", ["0", "1"], "2", "0 or 1"),
    ("gap_write_percent", ["20", "auto"], "10001", "auto, or 0 to 10000 percent"),
    ("fail_mode", ["kernel", "retry"], "stop", "retry or kernel"),
    ("writeback_rate_max", ["1000000", "0"], "fast", "0 and more bytes"),
    ("foreground_p99_target", ["5000", "0"], "60000001", "0 to 60000000 us"),
    ("sequential_write_cutoff", ["1048576", "0"], "long", "0 and more bytes"),
    ("scrub_rate", ["1000000", "0"], "fast", "0 and more bytes"),
    ("read_cache", ["1", "0"], "2", "0 or 1"),
    ("sequential_read_cutoff", ["0", "1048576"], "long", "0 and more bytes"),
    ("read_admit_bytes_per_day", ["1000000", "0"], "many", "0 and more bytes"),
    ("high_watermark", ["60", "60"], "", "0 to 100 percent"),
];

#[test]
fn every_live_option_can_be_set_and_is_in_the_table_line() {
    let daemon = Daemon::start();
    let head = live(&daemon, "s");
    for (option, good, bad, allowed) in VALUES {
        let shown = |value: &str| {
            let line = daemon.cli(&["table", "wc"]).ok();
            assert!(line.starts_with(&head), "{line}");
            assert!(format!("{} ", line.trim_end()).contains(&format!(" {option} {value} ")));
            assert_eq!(daemon.cli(&["get", "wc", option]).ok(), format!("{value}\n"));
        };
        daemon.cli(&["set", "wc", option, good[0]]).ok();
        shown(good[0]);
        assert_eq!(put(&daemon, option, good[1]), ("200".into(), good[1].into()));
        shown(good[1]);
        let output = daemon.cli(&["set", "wc", option, bad]).failed(1);
        let text = format!("wc: {OPTION}: {option}: `{bad}`: ");
        assert!(output.starts_with(&format!("millpond: set {text}")), "{output}");
        assert!(output.contains(allowed), "{output}");
        let (status, output) = put(&daemon, option, bad);
        assert_eq!(status, "400");
        assert!(output.starts_with(&text) && output.contains(allowed), "{output}");
        shown(good[1]);
    }
    // Two options that contradict each other, and a default that has no word.
    let output = daemon.cli(&["set", "wc", "high_watermark", "49"]).failed(1);
    assert!(output.contains("High watermark must be greater than or equal to low"), "{output}");
    daemon.cli(&["set", "wc", "max_age", "none"]).ok();
    assert!(!daemon.cli(&["table", "wc"]).ok().contains("max_age"));
    assert_eq!(daemon.cli(&["get", "wc", "max_age"]).ok(), "none\n");
    // The line that is shown can be loaded.
    let line = daemon.cli(&["table", "wc"]).ok();
    daemon.cli(&["load", "wc", "--table", line.trim_end()]).ok();
    daemon.cli(&["resume", "wc"]).ok();
    assert_eq!(daemon.cli(&["table", "wc"]).ok(), line);
}

#[test]
fn every_flag_is_set_by_1_and_taken_back_by_0() {
    for (mode, flags) in [("s", &["cleaner", "metadata_only"][..]), ("p", &["fua", "nofua"])] {
        let daemon = Daemon::start();
        let head = live(&daemon, mode);
        for flag in flags {
            daemon.cli(&["set", "wc", flag, "1"]).ok();
            assert_eq!(daemon.cli(&["table", "wc"]).ok().trim_end(), format!("{head} 1 {flag}"));
            assert_eq!(daemon.cli(&["get", "wc", flag]).ok(), "1\n");
            assert_eq!(put(&daemon, flag, "0"), ("200".into(), "0".into()));
            assert_eq!(daemon.cli(&["table", "wc"]).ok().trim_end(), format!("{head} 0"));
            daemon.cli(&["set", "wc", flag, "Yes"]).ok();
            assert_eq!(daemon.cli(&["get", "wc", flag]).ok(), "1\n");
            daemon.cli(&["set", "wc", flag, "off"]).ok();
            let output = daemon.cli(&["set", "wc", flag, "2"]).failed(1);
            assert!(output.contains(&format!("wc: {OPTION}: {flag}: `2`: 0 or 1")), "{output}");
        }
    }
}

#[test]
fn what_only_a_table_sets_is_shown_and_refused_with_that_text() {
    let daemon = Daemon::start();
    let head = live(&daemon, "s");
    for (option, shown) in
        [("start_sector", "0"), ("format", "native"), ("ordered", "0"), ("guard_origin", "0")]
    {
        assert_eq!(daemon.cli(&["get", "wc", option]).ok(), format!("{shown}\n"));
        let text = format!("wc: writecache: {option} can't be changed on a live device: load a");
        let output = daemon.cli(&["set", "wc", option, "1"]).failed(1);
        assert!(output.contains(&text), "{output}");
        let (status, output) = put(&daemon, option, "1");
        assert!(status == "403" && output.starts_with(&text), "{status} {output}");
    }
    let output = daemon.cli(&["set", "wc", "fua", "1"]).failed(3);
    assert!(output.contains("wc: no attribute `fua`: "), "of the other mode: {output}");
    assert_eq!(daemon.cli(&["table", "wc"]).ok().trim_end(), format!("{head} 0"));
    assert!(Path::new(&daemon.dir.path().join("cache.img")).exists());
}
