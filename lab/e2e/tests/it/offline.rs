// SPDX-License-Identifier: Apache-2.0 OR MIT
//! A daemon is killed while its cache holds what a client has flushed: the tools for images look
//! into the cache, write it back, and make it blank, and the origin is what the client wrote.

use std::path::Path;
use std::process::Command;
use std::time::Duration;

use e2e::binary::{Build, millpond};
use e2e::process::{Ended, output, run};
use e2e::stamp::{BLOCK_BYTES, fill};
use e2e::test_bed::{TestBed, clients};
use e2e::{clock, pause};
use serde_json::Value;

const MIB: u64 = 1 << 20;
const ORIGIN_BYTES: u64 = 16 * MIB;
const CALM: &str = "high_watermark 100 low_watermark 100";

fn tool(args: &[&str]) -> Ended {
    let mut command = Command::new(millpond(Build::Workspace).unwrap());
    run(command.args(args), Duration::from_secs(120)).unwrap()
}

#[track_caller]
fn ok(args: &[&str]) -> String {
    tool(args).ok().unwrap()
}

/// What a tool says that has to end with `code`.
#[track_caller]
fn fails(code: i32, args: &[&str]) -> String {
    let ended = tool(args);
    assert_eq!((ended.code, ended.stdout.as_str()), (code, ""), "{}", ended.complaint());
    ended.stderr
}

fn bytes(path: &str) -> Vec<u8> {
    std::fs::read(path).unwrap()
}

/// An image in which every block is another.
fn image(path: &Path) {
    let mut data = vec![0; ORIGIN_BYTES as usize];
    for (block, data) in (0..).zip(data.chunks_exact_mut(BLOCK_BYTES)) {
        fill(data, block, 1);
    }
    std::fs::write(path, data).unwrap();
}

/// The life of a cache in `mode` with `options`, which begins at `start`; `all_dirty` unless the
/// daemon was killed in the middle of writeback.
fn killed_inspected_recovered_and_wiped(mode: &str, options: &str, start: &str, all_dirty: bool) {
    let told = format!("{mode} {options} from {start}");
    let mut bed = TestBed::with_cache_in(mode, ORIGIN_BYTES, 24 * MIB, options);
    let path = |name: &str| bed.path(name).to_str().unwrap().to_owned();
    let (origin, cache, disk) = (path("origin.img"), path("cache.img"), path("disk.img"));
    image(Path::new(&disk));
    output("nbdcopy", &["--flush", &disk, &bed.uri("wc")]).unwrap();
    let inspect = ["inspect", &cache, "--start-sector", start];
    let recover = ["recover", "--cache", &cache, "--origin", &origin, "--start-sector", start];
    let wipe = ["wipe", &cache, "--start-sector", start];
    for args in [&inspect[..], &recover, &wipe] {
        let text = fails(4, args);
        assert!(text.contains("is in use, by process ") && text.contains("EBUSY"), "{text}");
    }
    let all = ORIGIN_BYTES / BLOCK_BYTES as u64;
    if !all_dirty {
        let give_up = clock() + 60.0;
        while bed.attribute("wc", "dirty_blocks") == all {
            assert!(clock() < give_up, "{told}: nothing is written back");
            pause(Duration::from_millis(20));
        }
        // The cache device learns with a FLUSH, or later by itself, which blocks became clean.
        bed.connect("wc").flush().unwrap();
    }
    bed.kill();

    let json = |args: &[&str]| -> Value {
        serde_json::from_str(&ok(&[args, &["-o", "json"]].concat())).unwrap()
    };
    let seen = json(&inspect);
    assert_eq!(seen["sound"], true, "{told}: {seen}");
    let dirty = seen["blocks"]["dirty"].as_u64().unwrap();
    assert!(if all_dirty { dirty == all } else { (1..all).contains(&dirty) }, "{told}: {dirty}");

    let text = fails(1, &wipe);
    assert!(text.contains(&format!("holds {dirty} dirty blocks")), "{told}: {text}");
    let before = (bytes(&cache), bytes(&origin));
    let text = ok(&[&recover[..], &["--dry-run"]].concat());
    assert!(text.starts_with(&format!("{dirty} blocks (")), "{told}: {text}");
    assert!(text.contains(" would be written back from "), "{told}: {text}");
    assert!((bytes(&cache), bytes(&origin)) == before, "{told}: a dry run changes nothing");

    let text = ok(&recover);
    assert!(text.starts_with(&format!("{dirty} blocks (")), "{told}: {text}");
    assert!(bytes(&origin) == bytes(&disk), "{told}");
    assert_eq!(json(&inspect)["blocks"]["dirty"], 0, "{told}");
    assert!(ok(&recover).starts_with("0 blocks"), "{told}: again");
    assert!(ok(&wipe).contains(" is blank"), "{told}");
    assert!(ok(&inspect).contains("it is blank"), "{told}");
    let text = fails(1, &recover);
    assert!(text.contains("is blank: there is nothing to recover"), "{told}: {text}");

    // The same config makes a new cache over the recovered origin.
    bed.start_again();
    let back = bed.path("back.img");
    output("nbdcopy", &[&bed.uri("wc"), back.to_str().unwrap()]).unwrap();
    assert!(bytes(back.to_str().unwrap()) == bytes(&disk), "{told}");
    bed.terminate();
}

#[test]
fn a_killed_cache_of_every_kind_recovers_all_writes() {
    if !clients(&["nbdcopy"]) {
        return;
    }
    killed_inspected_recovered_and_wiped("s", CALM, "0", true);
    killed_inspected_recovered_and_wiped("s", &format!("start_sector 2048 {CALM}"), "2048", true);
    killed_inspected_recovered_and_wiped("s", &format!("format dm {CALM}"), "0", true);
    let both = format!("format dm start_sector 4096 {CALM}");
    killed_inspected_recovered_and_wiped("s", &both, "4096", true);
    killed_inspected_recovered_and_wiped("p", CALM, "0", true);
    killed_inspected_recovered_and_wiped("s", &format!("ordered {CALM}"), "0", true);
}

#[test]
fn a_cache_killed_during_writeback_recovers_all_writes() {
    if !clients(&["nbdcopy"]) {
        return;
    }
    let slow = "high_watermark 0 low_watermark 0 writeback_rate_max 2000000";
    killed_inspected_recovered_and_wiped("s", slow, "0", false);
    killed_inspected_recovered_and_wiped("s", &format!("ordered {slow}"), "0", false);
}

#[test]
fn a_wrong_sector_or_a_foreign_device_gives_error_and_exit_code() {
    if !clients(&["nbdcopy"]) {
        return;
    }
    let mut bed = TestBed::with_cache(ORIGIN_BYTES, 24 * MIB, &format!("start_sector 2048 {CALM}"));
    let path = |name: &str| bed.path(name).to_str().unwrap().to_owned();
    let (origin, cache, disk) = (path("origin.img"), path("cache.img"), path("disk.img"));
    image(Path::new(&disk));
    output("nbdcopy", &["--flush", &disk, &bed.uri("wc")]).unwrap();
    let nope = path("nope.img");
    bed.kill();
    assert!(ok(&["inspect", &cache]).contains("it is blank"), "from sector 0");
    let text = fails(1, &["recover", "--cache", &cache, "--origin", &origin]);
    assert!(text.contains("nothing to recover"), "{text}");
    let text = fails(1, &["recover", "--cache", &disk, "--origin", &origin]);
    assert!(text.contains("is no cache; --start-sector says where one is"), "{text}");
    let beyond = ["--start-sector", "99999999"];
    for verb in [&["inspect", &cache][..], &["wipe", &cache]] {
        let text = fails(1, &[verb, &beyond].concat());
        assert!(text.contains("99999999"), "{text}");
    }
    assert!(fails(1, &["wipe", &disk]).contains("holds something that is no cache"));
    assert!(fails(3, &["inspect", &nope]).contains("nope.img"));
    assert!(fails(2, &["recover", "--cache", &cache]).contains("--origin"));
    assert!(fails(2, &["inspect", &cache, "--start-sector", "x"]).contains("start-sector"));
    // Nothing of all that has changed anything.
    ok(&["recover", "--cache", &cache, "--origin", &origin, "--start-sector", "2048"]);
    assert!(bytes(&origin) == bytes(&disk));
}
