// SPDX-License-Identifier: Apache-2.0 OR MIT
//! `base:allocation`: clients see where a device has no data, and copy none of that.
use std::os::unix::fs::MetadataExt;
use std::process::Command;
use std::time::Duration;

use e2e::process::run;
use e2e::test_bed::{TestBed, clients};

const MIB: u64 = 1 << 20;
/// Everything stays in the cache until it is asked for.
const CACHED: &str = "0 131072 writecache s ./cached.img ./cache.img 4096 5 no_guard \
     high_watermark 90 low_watermark 90";

fn bed() -> TestBed {
    let files = [
        ("disk.img", 64 * MIB),
        ("a.img", 32 * MIB),
        ("b.img", 32 * MIB),
        ("cached.img", 64 * MIB),
        ("cache.img", 32 * MIB),
        ("buffered.img", 64 * MIB),
    ];
    let devices = [
        ("plain", "0 131072 linear ./disk.img 0"),
        ("two", "0 131072 striped 2 2048 ./a.img 0 ./b.img 0"),
        ("wc", CACHED),
        ("buf", "0 131072 buffered ./buffered.img"),
        ("ram", "0 131072 zram lz4"),
        ("nothing", "0 131072 zero"),
    ];
    TestBed::start(&files, &devices)
}

/// Offset, length and flags of the extents that `nbdinfo --map` lists.
fn map(bed: &TestBed, device: &str) -> Vec<(u64, u64, u64)> {
    let mut command = Command::new("nbdinfo");
    command.args(["--map", &bed.uri(device)]);
    let listed = run(&mut command, Duration::from_secs(60)).unwrap().ok().unwrap();
    let number = |word: &str| word.parse().unwrap();
    let line = |line: &str| {
        let words: Vec<&str> = line.split_whitespace().collect();
        (number(words[0]), number(words[1]), number(words[2]))
    };
    listed.lines().map(line).collect()
}

/// What a map must be in which only the mebibytes `data` have data.
fn only(data: &[u64]) -> Vec<(u64, u64, u64)> {
    let (mut out, mut at) = (Vec::new(), 0);
    for begin in data.iter().map(|mib| mib * MIB) {
        out.push((at, begin - at, 3));
        out.push((begin, MIB, 0));
        at = begin + MIB;
    }
    out.push((at, 64 * MIB - at, 3));
    out
}

#[test]
fn clients_see_holes_and_skip_them() {
    if !clients(&["nbdinfo", "nbdcopy", "qemu-img"]) {
        return;
    }
    let bed = bed();
    let all_zero = [(0, 64 * MIB, 3)];
    assert_eq!(map(&bed, "nothing"), all_zero);
    for device in ["plain", "two", "wc", "buf", "ram"] {
        assert_eq!(map(&bed, device), all_zero, "{device}");
        let mut client = bed.connect(device);
        let data: Vec<u8> = (0..MIB).map(|n| u8::try_from(n % 251).unwrap()).collect();
        client.write(8 * MIB, &data).unwrap();
        client.write(32 * MIB, &data).unwrap();
        // Not flushed: some of it is in a cache only.
        assert_eq!(map(&bed, device), only(&[8, 32]), "{device}");
        client.flush().unwrap();
        if device == "wc" {
            bed.verb(&["flush", "wc"]);
        }
        assert_eq!(map(&bed, device), only(&[8, 32]), "{device}, flushed");
        client.write_zeroes(32 * MIB, MIB).unwrap();
        client.flush().unwrap();
        if device == "wc" {
            bed.verb(&["flush", "wc"]);
        }
        let after = map(&bed, device);
        assert_eq!(after, only(&[8]), "{device}, zeroed");
        copies_have_holes(&bed, device);
    }
}

/// What `nbdcopy` and `qemu-img convert` make takes no space where the device has no data.
fn copies_have_holes(bed: &TestBed, device: &str) {
    let mut map = Command::new("qemu-img");
    map.args(["map", "--output=json", "-f", "raw", &bed.uri(device)]);
    let map = run(&mut map, Duration::from_secs(60)).unwrap().ok().unwrap();
    let holes = map.lines().filter(|line| line.contains("\"data\": false")).count();
    assert_eq!(holes, 2, "{device}: {map}");
    let [at, mib, end] = [8 * MIB, MIB, 64 * MIB].map(|bytes| usize::try_from(bytes).unwrap());
    let mut wanted = vec![0; end];
    bed.connect(device).read(8 * MIB, &mut wanted[at..at + mib]).unwrap();
    for program in ["nbdcopy", "qemu-img"] {
        let copy = bed.path("copy.img");
        let mut command = Command::new(program);
        if program == "nbdcopy" {
            std::fs::File::create(&copy).unwrap().set_len(64 * MIB).unwrap();
            // Only the holes that the server tells of: it looks for no zeroes itself.
            command.args(["--destination-is-zero", "--sparse=0", &bed.uri(device)]).arg(&copy);
        } else {
            command.args(["convert", "-n", "--target-is-zero", "-O", "raw"]);
            command.args(["-f", "raw", &bed.uri(device)]).arg(&copy);
            std::fs::File::create(&copy).unwrap().set_len(64 * MIB).unwrap();
        }
        run(&mut command, Duration::from_secs(60)).unwrap().ok().unwrap();
        let blocks = std::fs::metadata(&copy).unwrap().blocks() * 512;
        // nbdcopy's requests are as long as the optimal request: 2 MiB of the striped device.
        assert!(
            (MIB..=2 * MIB + MIB / 4).contains(&blocks),
            "{program} of {device}: {blocks} bytes"
        );
        let copied = std::fs::read(&copy).unwrap();
        // In one comparison: byte by byte an unoptimised test takes a second for it.
        assert!(copied == wanted, "{program} of {device}");
        std::fs::remove_file(&copy).unwrap();
    }
}

#[test]
fn who_only_asks_is_not_logged_as_connected() {
    if !clients(&["nbdinfo"]) {
        return;
    }
    let bed = bed();
    let mut command = Command::new("nbdinfo");
    command.args(["--list", &bed.uri("")]);
    run(&mut command, Duration::from_secs(60)).unwrap().ok().unwrap();
    assert!(!bed.daemon().log().contains("client connected"), "{}", bed.daemon().log());
    // It is logged when the first request is answered, at the latest.
    bed.connect("plain").read(0, &mut [0; 512]).unwrap();
    let connected = bed.daemon().log();
    assert_eq!(connected.matches("client connected").count(), 1, "{connected}");
}
