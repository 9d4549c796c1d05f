// SPDX-License-Identifier: Apache-2.0 OR MIT
//! What real clients see and do: nbdinfo, nbdcopy, qemu-io, qemu-img.

use std::os::unix::fs::FileExt;
use std::path::Path;
use std::process::Command;
use std::time::Duration;

use e2e::process::{Ended, output, run};
use e2e::stamp::{BLOCK_BYTES, fill};
use e2e::test_bed::{TestBed, clients};
use serde_json::{Value, json};

const MIB: u64 = 1 << 20;
/// Stripes of 64 KiB over two files of 32 MiB.
const STRIPED: &str = "0 131072 striped 2 128 ./a.img 0 ./b.img 0";
const CACHED: &str = "0 131072 writecache s ./origin.img ./cache.img 4096 0";

/// A write cache `wc` and a striped device `st`, 64 MiB each.
fn two_devices() -> TestBed {
    let files = [
        ("a.img", 32 * MIB),
        ("b.img", 32 * MIB),
        ("origin.img", 64 * MIB),
        ("cache.img", 32 * MIB),
    ];
    TestBed::start(&files, &[("wc", CACHED), ("st", STRIPED)])
}

fn qemu_io(uri: &str, commands: &[&str]) -> Ended {
    let mut command = Command::new("qemu-io");
    command.args(["-f", "raw", "-t", "none", uri]);
    for c in commands {
        command.args(["-c", c]);
    }
    run(&mut command, Duration::from_secs(60)).unwrap()
}

/// A file of `bytes` in which every block is another.
fn image(path: &Path, bytes: u64, version: u64) {
    let mut data = vec![0; bytes as usize];
    for (block, data) in (0..).zip(data.chunks_exact_mut(BLOCK_BYTES)) {
        fill(data, block, version);
    }
    std::fs::write(path, data).unwrap();
}

fn text(path: &Path) -> &str {
    path.to_str().unwrap()
}

fn nbdinfo(args: &[&str]) -> Value {
    serde_json::from_str(&output("nbdinfo", args).unwrap()).unwrap()
}

#[test]
fn nbdinfo_lists_every_export_with_size_flags_and_contexts() {
    if !clients(&["nbdinfo"]) {
        return;
    }
    let bed = two_devices();
    let all = nbdinfo(&["--list", "--json", &bed.uri("")]);
    assert_eq!(all["protocol"], "newstyle-fixed");
    assert_eq!(all["structured"], true);
    let exports = all["exports"].as_array().unwrap();
    let named = |name: &str| exports.iter().find(|e| e["export-name"] == name).unwrap();
    assert_eq!(exports.len(), 2);
    for name in ["wc", "st"] {
        let export = named(name);
        assert_eq!(export["export-size"], 64 * MIB, "{name}");
        assert_eq!(export["block_size_minimum"], 512, "{name}");
        assert_eq!(export["block_size_maximum"], 32 * MIB, "{name}");
        for flag in ["can_flush", "can_fua", "can_trim", "can_zero", "can_multi_conn"] {
            assert_eq!(export[flag], true, "{name}: {flag}");
        }
        assert_eq!(export["is_read_only"], false, "{name}");
    }
    assert_eq!(named("wc")["contexts"], json!(["base:allocation", "millpond:dirty"]));
    assert!(named("st")["contexts"].as_array().unwrap().contains(&json!("base:allocation")));
    // One export by its name, and one that is not there.
    assert_eq!(nbdinfo(&["--json", &bed.uri("wc")])["exports"][0]["export-name"], "wc");
    assert!(output("nbdinfo", &[&bed.uri("nobody")]).is_err());
}

/// Runs (offset, length) of `millpond:dirty` that are dirty.
fn dirty(bed: &TestBed) -> Vec<(u64, u64)> {
    let map = nbdinfo(&["--json", "--map=millpond:dirty", &bed.uri("wc")]);
    let runs = map.as_array().unwrap().iter();
    let all: u64 = runs.clone().map(|r| r["length"].as_u64().unwrap()).sum();
    assert_eq!(all, 64 * MIB, "the map covers the device: {map}");
    let run = |r: &Value| (r["offset"].as_u64().unwrap(), r["length"].as_u64().unwrap());
    runs.filter(|r| r["type"] == 1).map(run).collect()
}

#[test]
fn nbdinfo_maps_what_is_dirty_until_a_flush_message() {
    if !clients(&["nbdinfo", "qemu-io"]) {
        return;
    }
    let bed = two_devices();
    assert_eq!(dirty(&bed), []);
    let writes = ["write -P 1 1M 64k", "write -P 2 3M 4k", "write -P 3 33M 2M"];
    qemu_io(&bed.uri("wc"), &writes).ok().unwrap();
    assert_eq!(dirty(&bed), [(MIB, 64 << 10), (3 * MIB, 4 << 10), (33 * MIB, 2 * MIB)]);
    bed.verb(&["message", "wc", "0", "flush"]);
    assert_eq!(dirty(&bed), []);
}

#[test]
fn qemu_io_reads_the_patterns_it_wrote_of_any_alignment() {
    if !clients(&["qemu-io"]) {
        return;
    }
    let mut bed = two_devices();
    let reads = [
        "read -P 0x11 0 1000",
        "read -P 0x22 1000 3000",
        "read -P 0x11 4000 257k",
        "read -P 0 512k 132k",
        "read -P 0x11 644k 380k",
        "read -P 0x33 8M 16M",
        "read -P 0 24M 1M",
        "read -P 0x44 67108352 512", // the last sector
    ];
    for name in ["wc", "st"] {
        let writes = [
            "write -P 0x11 0 1M",
            "write -P 0x22 1000 3000", // qemu reads, changes and writes what is not aligned
            "write -z 512k 128k",
            "write -z -u 640k 4k",
            "write -f -P 0x33 8M 16M",
            "write -P 0x44 67108352 512",
            "discard 264k 200k",
            "flush",
        ];
        qemu_io(&bed.uri(name), &writes).ok().unwrap();
        qemu_io(&bed.uri(name), &reads).ok().unwrap();
        let wrong = qemu_io(&bed.uri(name), &["read -P 0x12 0 512"]);
        assert_ne!(wrong.code, 0, "qemu-io tells what is not there: {}", wrong.stdout);
    }
    bed.terminate();
    bed.start_again();
    for name in ["wc", "st"] {
        qemu_io(&bed.uri(name), &reads).ok().unwrap();
    }
}

#[test]
fn qemu_io_keeps_many_requests_in_flight() {
    if !clients(&["qemu-io"]) {
        return;
    }
    let bed = two_devices();
    for name in ["wc", "st"] {
        let mut commands: Vec<String> =
            (0..64).map(|n| format!("aio_write -q -P {} {}k 96k", n + 1, n * 100)).collect();
        commands.push("aio_flush".into());
        commands.extend((0..64).map(|n| format!("read -q -P {} {}k 96k", n + 1, n * 100)));
        let commands: Vec<&str> = commands.iter().map(String::as_str).collect();
        qemu_io(&bed.uri(name), &commands).ok().unwrap();
    }
}

#[test]
fn qemu_img_converts_to_and_from_a_device() {
    if !clients(&["qemu-img"]) {
        return;
    }
    let bed = two_devices();
    let (raw, qcow2) = (bed.path("disk.img"), bed.path("disk.qcow2"));
    image(&raw, 64 * MIB, 1);
    // Some of it empty, so that zeroes are written as such.
    let hole = vec![0; 8 * MIB as usize];
    let file = std::fs::File::options().write(true).open(&raw).unwrap();
    file.write_all_at(&hole, 16 * MIB).unwrap();
    for name in ["wc", "st"] {
        let uri = bed.uri(name);
        let img = |args: &[&str]| output("qemu-img", args).unwrap();
        img(&["convert", "-n", "-W", "-f", "raw", "-O", "raw", text(&raw), &uri]);
        img(&["compare", "-f", "raw", "-F", "raw", text(&raw), &uri]);
        img(&["convert", "-f", "raw", "-O", "qcow2", &uri, text(&qcow2)]);
        img(&["compare", "-f", "raw", "-F", "qcow2", text(&raw), text(&qcow2)]);
    }
}

#[test]
fn nbdcopy_copies_both_ways_over_many_connections() {
    if !clients(&["nbdcopy"]) {
        return;
    }
    let mut bed = two_devices();
    let disk = |n: u64| bed.path(&format!("disk-{n}.img"));
    for (n, name) in [(1, "wc"), (2, "st")] {
        image(&disk(n), 64 * MIB, n);
        let copy = |args: &[&str]| output("nbdcopy", args).unwrap();
        copy(&["--flush", "--connections=4", text(&disk(n)), &bed.uri(name)]);
        let back = bed.path("back.img");
        copy(&["--connections=4", &bed.uri(name), text(&back)]);
        assert!(std::fs::read(disk(n)).unwrap() == std::fs::read(&back).unwrap(), "{name}");
    }
    let want = std::fs::read(disk(1)).unwrap();
    // nbdcopy wrote twice what the cache holds.
    assert!(bed.attribute("wc", "origin_writes") > 0);
    bed.verb(&["message", "wc", "0", "flush"]);
    assert!(std::fs::read(bed.path("origin.img")).unwrap() == want, "the origin has all of it");
    bed.terminate();
    // Stripes are where the table says: chunk 1 begins the second file.
    let second = std::fs::read(bed.path("b.img")).unwrap();
    let disk = std::fs::read(bed.path("disk-2.img")).unwrap();
    assert!(second[..64 << 10] == disk[64 << 10..128 << 10]);
}
