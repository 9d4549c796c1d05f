// SPDX-License-Identifier: Apache-2.0 OR MIT
//! Write caches in several parts, by the real program: on cores of their own, killed, inspected,
//! recovered and wiped.

use crate::common::{CommandOutput, Daemon, MILLPOND, file_in, sh};

const MIB: usize = 1 << 20;
const BLOCK: usize = 4096;
/// 256 MiB, of which each part has four chunks of 32.
const SECTORS: u64 = 256 * 2048;

fn millpond(args: &[&str]) -> CommandOutput {
    sh(MILLPOND, args)
}

/// A cache of two parts on two cores, before memory: that moves no head, whatever disk this is.
fn create(daemon: &Daemon, cache: &str, options: &str) -> CommandOutput {
    let words = options.split_whitespace().count();
    let table = format!("0 {SECTORS} writecache s mem:256M {cache} 4096 {words} {options}");
    daemon.cli(&["create", "wc", "--table", &table])
}

#[test]
fn a_cache_in_parts_serves_and_reports_on_all_its_cores() {
    let daemon = Daemon::start_with(&["--cores", "2"]);
    let cache = daemon.file("cache.img", 64);
    create(&daemon, &cache, "parts 2").ok();
    // The end of one chunk and the beginning of the next, and one further on.
    let (write, read) = ("write -P 0x21 31M 2M", "read -P 0x21 31M 2M");
    daemon
        .qemu_io("wc", &[write, "write -P 0x22 96M 4k", "flush", read, "read -P 0x22 96M 4k"])
        .ok();
    assert_eq!(daemon.cli(&["get", "wc", "dirty_blocks"]).ok(), "513\n");
    assert_eq!(daemon.cli(&["get", "wc", "parts"]).ok(), "2\n");
    let status = daemon.cli(&["status", "wc"]).ok();
    let fields: Vec<&str> = status.split_whitespace().collect();
    // The errno; and FLUSHes: ours, and that with which qemu-io ends. Both parts had each.
    assert_eq!((fields[3], fields[15]), ("0", "2"), "{status}");
    let (_, metrics) = daemon.curl("GET", "/metrics", &[]);
    let line = "millpond_writecache_dirty_blocks{device=\"wc\"} 513";
    assert!(metrics.contains(line), "{metrics}");
    daemon.cli(&["set", "wc", "high_watermark", "70"]).ok();
    let table = daemon.cli(&["table", "wc"]).ok();
    assert!(table.contains("high_watermark 70 parts 2"), "{table}");
    daemon.cli(&["suspend", "wc"]).ok();
    daemon.cli(&["resume", "wc"]).ok();
    daemon.cli(&["drain", "wc"]).ok();
    assert_eq!(daemon.cli(&["get", "wc", "dirty_blocks"]).ok(), "0\n");
    daemon.cli(&["message", "wc", "0", "flush"]).ok();
    daemon.qemu_io("wc", &[read]).ok();
    // Another number is refused with both, none is taken from the cache.
    daemon.cli(&["remove", "wc"]).ok();
    let output = create(&daemon, &cache, "parts 4").failed(1);
    assert!(output.contains("parts 4") && output.contains("has 2"), "{output}");
    create(&daemon, &cache, "").ok();
    assert_eq!(daemon.cli(&["get", "wc", "parts"]).ok(), "2\n");
    daemon.signal("-TERM");
    let (status, log, _dir) = daemon.wait();
    assert!(status.success() && log.contains("all devices are settled"), "{log}");
}

#[test]
fn a_killed_cache_in_parts_is_inspected_recovered_and_wiped() {
    let daemon = Daemon::start_with(&["--cores", "2"]);
    let cache = daemon.file("cache.img", 16);
    create(&daemon, &cache, "parts 2").ok();
    daemon.qemu_io("wc", &["write -P 0x11 31M 2M", "write -P 0x22 200M 4k", "flush"]).ok();
    daemon.signal("-KILL");
    let (_, _, dir) = daemon.wait();

    let text = millpond(&["inspect", &cache]).ok();
    for part in ["native, in 2 parts of 16384 sectors, chunks of 65536", "part 0", "part 1"] {
        assert!(text.contains(part), "{part}: {text}");
    }
    for part in [" 513 dirty,", "63488 4096\n", "409600 8\n", "none\n"] {
        assert!(text.contains(part), "{part}: {text}");
    }
    let told: serde_json::Value =
        serde_json::from_str(&millpond(&["inspect", &cache, "-o", "json"]).ok()).unwrap();
    assert_eq!((&told["format"], &told["sound"]), (&"divided".into(), &true.into()), "{told}");
    assert_eq!((&told["part_count"], &told["blocks"]["dirty"]), (&2.into(), &513.into()));
    let sum: u64 =
        [0, 1].iter().map(|n| told["parts"][n]["blocks"]["dirty"].as_u64().unwrap()).sum();
    assert_eq!(sum, 513);

    // The data of the second part can't be had without it, nor the whole without the first.
    let origin = file_in(dir.path(), "origin.img", 256);
    let image = std::fs::read(&cache).unwrap();
    let mut hurt = image.clone();
    hurt[8 * MIB..][..MIB].fill(0);
    std::fs::write(&cache, &hurt).unwrap();
    let output = millpond(&["inspect", &cache]);
    assert!(output.code == Some(1) && output.out.contains("part 1: it is missing"), "{output:?}");
    let recover = ["recover", "--cache", &cache, "--origin", &origin];
    let output = millpond(&recover).failed(1);
    assert!(output.contains("part 1: it is missing"), "{output}");
    std::fs::write(&cache, &image).unwrap();

    let output = millpond(&[&recover[..], &["--dry-run"]].concat()).ok();
    assert!(
        output.starts_with("513 blocks (2.0 MiB) in 2 ranges would be written back"),
        "{output}"
    );
    assert!(std::fs::read(&cache).unwrap() == image, "a dry run writes nothing");
    let output = millpond(&["wipe", &cache]).failed(1);
    assert!(output.contains("holds 513 dirty blocks"), "{output}");
    let output = millpond(&recover).ok();
    assert!(output.starts_with("513 blocks (2.0 MiB) in 2 ranges written back"), "{output}");
    let data = std::fs::read(&origin).unwrap();
    let wanted = |block: usize| match block {
        block if (31 * MIB / BLOCK..33 * MIB / BLOCK).contains(&block) => [0x11; BLOCK],
        block if block == 200 * MIB / BLOCK => [0x22; BLOCK],
        _ => [0; BLOCK],
    };
    assert_eq!(data.len(), 256 * MIB);
    let wrong = data.chunks(BLOCK).enumerate().position(|(nth, block)| *block != wanted(nth));
    assert!(wrong.is_none(), "block {wrong:?}");

    assert!(millpond(&["wipe", &cache]).ok().contains("is blank"));
    let text = millpond(&["inspect", &cache]).ok();
    assert!(text.contains("none: it is blank"), "{text}");
    let image = std::fs::read(&cache).unwrap();
    assert!(image[8 * MIB..][..256 << 10].iter().all(|byte| *byte == 0), "every part is");
}

/// Found by an attack from outside: two cores that had parts of one client's buffer, one that
/// checked what it had read and one that filled its part with zeroes, ended the program.
#[test]
fn reads_across_parts_go_on_over_origins_without_data() {
    let daemon = Daemon::start_with(&["--cores", "2"]);
    daemon.cli(&["create", "nothing", "--table", "0 131072 zero"]).ok();
    let mixed = "0 65536 linear mem:32M 0\n65536 65536 zero";
    daemon.cli(&["create", "mixed", "--table", mixed]).ok();
    let spoilt = "0 131072 flakey mem:64M 0 0 1000 5 corrupt_bio_byte 1 r 0 0";
    daemon.cli(&["create", "spoilt", "--table", spoilt]).ok();
    for origin in ["null:64M", "/dev/mapper/nothing", "/dev/mapper/mixed", "/dev/mapper/spoilt"] {
        let cache = daemon.file("cache.img", 64);
        let table = format!("0 131072 writecache s {origin} {cache} 4096 2 parts 2");
        daemon.cli(&["create", "wc", "--table", &table]).ok();
        // A dirty block in 16, on both sides of the border of the chunks.
        let writes: Vec<String> =
            (0..256).map(|nth| format!("write -q -P 0x21 {}k 4k", 24 * 1024 + nth * 64)).collect();
        let flush = ["flush".to_owned()];
        let reads = (0..40).map(|nth| match nth % 4 {
            0 => "read -q 24M 16M".to_owned(), // all dirty blocks, half of them in each part
            _ => format!("read -q {}k 1M", 32 * 1024 - 512 - nth * 4),
        });
        let all: Vec<String> = writes.into_iter().chain(flush).chain(reads).collect();
        let all: Vec<&str> = all.iter().map(String::as_str).collect();
        daemon.qemu_io("wc", &all).ok();
        daemon.qemu_io("wc", &["read -P 0x21 32M 4k", "read -P 0x21 32704k 4k"]).ok();
        daemon.cli(&["drain", "wc"]).ok();
        daemon.cli(&["remove", "wc"]).ok();
    }
}
