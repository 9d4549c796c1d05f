// SPDX-License-Identifier: Apache-2.0 OR MIT
//! The page cache (`buffered`) as its users meet it: real clients over NBD and files, errors of the
//! device below, `kill -9`, attributes, memory; and the throttle of the leaf below it.

use std::fs::{File, OpenOptions, read};
use std::os::unix::fs::FileExt;
use std::path::Path;
use std::process::Command;
use std::sync::atomic::{AtomicU64, Ordering};
use std::time::Duration;

use e2e::fio::Fio;
use e2e::mounted::{file, fuse};
use e2e::process::{Ended, output, run};
use e2e::stamp::{BLOCK_BYTES, Random, Stamps, Written, fill};
use e2e::test_bed::{TestBed, clients};
use e2e::{clock, pause};
use nbd::wire::ExportFlags;

const MIB: u64 = 1 << 20;
const LIMIT: Duration = Duration::from_secs(120);
const SECTORS: u64 = 64 * MIB / 512;

/// Page caches of 16 MiB over 64 MiB: `lin` over a linear device, `str` over stripes of 64 KiB, and
/// `raw` over a file itself.
fn three_caches(mounted: bool) -> TestBed {
    let files =
        [("raw.img", 64 * MIB), ("lin.img", 64 * MIB), ("a.img", 32 * MIB), ("b.img", 32 * MIB)];
    let cache = |below: &str| format!("0 {SECTORS} buffered {below} 2 memory 16M");
    let linear = format!("0 {SECTORS} linear ./lin.img 0");
    let striped = format!("0 {SECTORS} striped 2 128 ./a.img 0 ./b.img 0");
    let (lin, striped_cache, raw) = (cache("linlow"), cache("strlow"), cache("./raw.img"));
    let devices = [
        ("linlow", &*linear),
        ("strlow", &*striped),
        ("lin", &*lin),
        ("str", &*striped_cache),
        ("raw", &*raw),
    ];
    if mounted {
        TestBed::start_mounted(&files, &devices)
    } else {
        TestBed::start(&files, &devices)
    }
}

/// A cache `c` of 16 MiB over `low`, a linear device on `disk.img` of 64 MiB.
fn one_cache(options: &str) -> TestBed {
    let words = options.split_whitespace().count() + 2;
    let linear = format!("0 {SECTORS} linear ./disk.img 0");
    let cache = format!("0 {SECTORS} buffered low {words} memory 16M {options}");
    TestBed::start(&[("disk.img", 64 * MIB)], &[("low", &linear), ("c", &cache)])
}

/// A verb that has to fail: its exit code and what it said.
fn refused(bed: &TestBed, args: &[&str]) -> (i32, String) {
    let ended: Ended = bed.daemon().try_verb(args).unwrap();
    (ended.code, ended.stderr)
}

fn get(bed: &TestBed, device: &str, attribute: &str) -> String {
    bed.verb(&["get", device, attribute]).trim_end().to_owned()
}

/// A file of `bytes` in which every block is another.
fn image(path: &Path, bytes: u64, version: u64) {
    let mut data = vec![0; usize::try_from(bytes).unwrap()];
    for (block, data) in (0..).zip(data.chunks_exact_mut(BLOCK_BYTES)) {
        fill(data, block, version);
    }
    std::fs::write(path, data).unwrap();
}

/// Removes a device as soon as the server has noticed that its clients have gone.
fn remove(bed: &TestBed, name: &str) {
    let gone = (0..250).any(|_| {
        let removed = bed.daemon().try_verb(&["remove", name]).unwrap().code == 0;
        if !removed {
            pause(Duration::from_millis(20));
        }
        removed
    });
    assert!(gone, "{name} is in use still\n{}", bed.daemon().log());
}

/// Random writes of all sizes up to 256 KiB, many in flight, each block verified.
fn verified(fio: Fio) -> Fio {
    fio.with(["--rw=randwrite", "--bsrange=4k-256k", "--iodepth=16", "--size=64M"]).with([
        "--verify=crc32c",
        "--verify_fatal=1",
        "--fsync=64",
        "--randseed=7",
    ])
}

#[test]
fn fio_verifies_over_nbd_through_a_cache_of_a_quarter_its_size() {
    if !clients(&["fio"]) {
        return;
    }
    let bed = three_caches(false);
    for name in ["lin", "str", "raw"] {
        verified(Fio::new(bed.dir(), &bed.uri(name))).run(LIMIT).unwrap();
    }
    // What was flushed is below, wherever the mapping says: the same jobs find it there.
    for (name, below) in [("lin", "linlow"), ("str", "strlow")] {
        bed.connect(name).flush().unwrap();
        let again = verified(Fio::new(bed.dir(), &bed.uri(below))).with(["--verify_only"]);
        again.run(LIMIT).unwrap_or_else(|e| panic!("{name}: {e}"));
    }
}

#[test]
fn fio_finds_through_files_what_it_wrote() {
    if !fuse() || !clients(&["fio"]) {
        return;
    }
    let bed = three_caches(true);
    for name in ["lin", "str"] {
        let fio = Fio::on_file(bed.dir(), &file(&bed, name));
        let write = fio.with(["--rw=randrw", "--bsrange=512-128k", "--blockalign=512"]);
        let write = write.with(["--size=32M", "--verify=crc32c", "--verify_fatal=1"]);
        write.with(["--direct=1", "--numjobs=1", "--fsync=32"]).run(LIMIT).unwrap();
    }
    let sys = |attribute: &str| {
        std::fs::read_to_string(bed.mount().join("sys/block/lin").join(attribute)).unwrap()
    };
    assert_eq!((sys("queue/write_cache").trim(), sys("queue/fua").trim()), ("write back", "1"));
    assert_eq!(sys("map_blocks").trim(), "multi");
    std::fs::write(bed.mount().join("sys/block/lin/map_blocks"), "single\n").unwrap();
    assert_eq!(get(&bed, "lin", "map_blocks"), "single");
}

#[test]
fn a_file_system_is_made_and_passes_its_check_after_a_restart() {
    if !fuse() || !clients(&["mkfs.ext4", "e2fsck", "debugfs"]) {
        return;
    }
    let mut bed = three_caches(true);
    let data = bed.path("data");
    image(&data, 20 * MIB, 9);
    // Blocks of a page, and of half a one.
    for (name, block) in [("lin", "4096"), ("str", "2048")] {
        let device = file(&bed, name);
        let shown = device.to_str().unwrap();
        output("mkfs.ext4", &["-q", "-F", "-b", block, shown]).unwrap();
        let write = format!("write {} data", data.display());
        output("debugfs", &["-w", "-R", &write, shown]).unwrap();
        output("e2fsck", &["-fn", shown]).unwrap();
    }
    // An orderly end writes everything back, without anybody's FLUSH.
    bed.terminate();
    bed.start_again();
    for name in ["lin", "str"] {
        let (device, back) = (file(&bed, name), bed.path("back"));
        let shown = device.to_str().unwrap();
        output("e2fsck", &["-fn", shown]).unwrap();
        let dump = format!("dump data {}", back.display());
        output("debugfs", &["-R", &dump, shown]).unwrap();
        assert!(read(&back).unwrap() == read(&data).unwrap(), "{name}");
    }
}

#[test]
fn flushed_data_are_in_the_file_after_remove_and_create() {
    if !clients(&["nbdcopy"]) {
        return;
    }
    let bed = three_caches(false);
    let disk = bed.path("disk.img");
    image(&disk, 64 * MIB, 3);
    let wanted = read(&disk).unwrap();
    for name in ["lin", "str", "raw"] {
        let table = bed.verb(&["table", name]);
        let copy = ["--flush", "--connections=4", disk.to_str().unwrap(), &bed.uri(name)];
        output("nbdcopy", &copy).unwrap();
        if name != "str" {
            assert!(read(bed.path(&format!("{name}.img"))).unwrap() == wanted, "{name}");
        }
        remove(&bed, name);
        // The table as it was told makes the same device again.
        bed.verb(&["create", name, "--table", table.trim_end()]);
        assert_eq!(bed.verb(&["table", name]), table);
        let back = bed.path("back.img");
        let copy = ["--connections=4", &bed.uri(name), back.to_str().unwrap()];
        output("nbdcopy", &copy).unwrap();
        assert!(read(&back).unwrap() == wanted, "{name}");
    }
}

#[test]
fn a_removal_writes_back_what_nobody_flushed() {
    let bed = one_cache("dirty_writeback_centisecs 0");
    let mut client = bed.connect("c");
    client.write(5 * MIB, &[0x5c; 8192]).unwrap();
    let mut found = [0; 8192];
    let disk = File::open(bed.path("disk.img")).unwrap();
    disk.read_exact_at(&mut found, 5 * MIB).unwrap();
    assert!(found == [0; 8192], "in memory only, until somebody asks");
    drop(client);
    remove(&bed, "c");
    disk.read_exact_at(&mut found, 5 * MIB).unwrap();
    assert!(found == [0x5c; 8192]);
}

#[test]
fn five_kills_lose_nothing_that_was_flushed() {
    const BLOCKS: u64 = 2048;
    for below in ["lin", "str"] {
        let mut bed = three_caches(false);
        let mut area = Stamps::new(100..100 + BLOCKS, 1);
        let mut random = Random::new(5);
        area.lay(&mut bed.connect(below)).unwrap();
        let (mut written, mut owed) = (Written::default(), 0);
        for round in 0..5 {
            let mut client = bed.connect(below);
            let answers = &AtomicU64::new(0);
            let (before, kill_at) = (written.writes, 100 + random.below(3000));
            std::thread::scope(|scope| {
                let (area, written) = (&mut area, &mut written);
                let writer = scope.spawn(move || {
                    area.write(&mut client, written, |w| {
                        answers.fetch_max(w.writes - before, Ordering::Relaxed);
                        false
                    })
                });
                while answers.load(Ordering::Relaxed) < kill_at {
                    assert!(!writer.is_finished(), "the client has failed");
                    pause(Duration::from_micros(200));
                }
                bed.kill();
                let ended = writer.join().unwrap().unwrap_err();
                assert!(!ended.to_string().contains("the server says"), "{ended}");
            });
            bed.start_again();
            let mut client = bed.connect(below);
            let found = area.check(|at, data| client.read(at, data));
            owed += found.unwrap_or_else(|e| panic!("{below}, round {round}: {e}")).owed;
        }
        assert!(owed > BLOCKS, "too little to prove: {owed} blocks were owed");
    }
}

#[test]
fn clients_see_a_volatile_cache_with_flush_and_fua() {
    let bed = one_cache("dirty_writeback_centisecs 0");
    let mut client = bed.connect("c");
    let flags = ExportFlags::from_bits_retain(client.flags());
    assert!(flags.contains(ExportFlags::FLUSH | ExportFlags::FUA), "{flags:?}");
    let disk = File::open(bed.path("disk.img")).unwrap();
    let on_disk = |at: u64| {
        let mut found = [0; 4096];
        disk.read_exact_at(&mut found, at).unwrap();
        found[0]
    };
    client.write(0, &[1; 4096]).unwrap();
    client.write_fua(4096, &[2; 4096]).unwrap();
    assert_eq!((on_disk(0), on_disk(4096)), (0, 2), "FUA is about its own range");
    client.flush().unwrap();
    assert_eq!(on_disk(0), 1);
}

/// Another device takes the place of the one below, while the cache has dirty pages.
fn swap_below(bed: &TestBed, table: &str) {
    bed.verb(&["load", "low", "--table", table]);
    bed.verb(&["resume", "low"]);
}

/// Waits until every page that could not be written has been; returns how many writes have failed.
fn failures_until_written(bed: &TestBed) -> u64 {
    let give_up = clock() + 20.0;
    loop {
        let errors = get(bed, "c", "errors");
        let figure = |name: &str| {
            let mut lines = errors.lines().map(|line| line.split_whitespace());
            let mut line = lines.find(|line| line.clone().next() == Some(name)).unwrap();
            line.nth(1).unwrap().parse::<u64>().unwrap()
        };
        if figure("failing_bytes") == 0 {
            return figure("errors");
        }
        assert!(clock() < give_up, "not written:\n{errors}");
        pause(Duration::from_millis(20));
    }
}

#[test]
fn each_client_gets_an_error_once_and_dirty_data_are_retried() {
    let bed = one_cache("dirty_writeback_centisecs 0");
    let (mut one, mut two) = (bed.connect("c"), bed.connect("c"));
    one.flush().unwrap();
    two.flush().unwrap();
    swap_below(&bed, &format!("0 {SECTORS} error"));
    one.write(MIB, &[0x77; 16384]).unwrap();
    let text = one.flush().unwrap_err().to_string();
    assert!(text.contains("error 5"), "EIO: {text}");
    let status = bed.verb(&["status", "c"]);
    assert!(status.contains("failing"), "{status}");
    let linear = format!("0 {SECTORS} linear {} 0", bed.path("disk.img").display());
    swap_below(&bed, &linear);
    let failures = failures_until_written(&bed);
    // `one` has got the first error; a retry before the swap may have failed, which is another.
    assert_eq!(one.flush().is_err(), failures > 1, "{failures} writes have failed");
    assert!(two.flush().is_err(), "it has got none of the {failures} errors");
    for client in [&mut one, &mut two, &mut bed.connect("c")] {
        client.flush().unwrap();
    }
    let status = bed.verb(&["status", "c"]);
    assert!(!status.contains("failing"), "{status}");
    let mut found = [0; 16384];
    File::open(bed.path("disk.img")).unwrap().read_exact_at(&mut found, MIB).unwrap();
    assert!(found == [0x77; 16384], "nothing was dropped");
}

#[test]
fn a_removal_does_not_drop_dirty_data_of_a_failed_device() {
    let bed = one_cache("dirty_writeback_centisecs 0");
    let mut client = bed.connect("c");
    client.write(0, &[0x11; 4096]).unwrap();
    swap_below(&bed, &format!("0 {SECTORS} error"));
    assert!(client.flush().is_err());
    drop(client);
    let told = (0..250).find_map(|_| {
        pause(Duration::from_millis(20));
        let (code, text) = refused(&bed, &["remove", "c"]);
        (code != 4).then_some((code, text))
    });
    let (code, text) = told.expect("the client has gone");
    assert!(code == 1 && text.contains("4096 bytes are not written back"), "{code}: {text}");
    let linear = format!("0 {SECTORS} linear {} 0", bed.path("disk.img").display());
    swap_below(&bed, &linear);
    bed.verb(&["remove", "c"]);
    let mut found = [0; 4096];
    File::open(bed.path("disk.img")).unwrap().read_exact_at(&mut found, 0).unwrap();
    assert!(found == [0x11; 4096]);
}

#[test]
fn expired_dirty_pages_are_written_back() {
    let bed = one_cache("dirty_writeback_centisecs 10 dirty_expire_centisecs 20");
    let mut client = bed.connect("c");
    client.write(3 * MIB, &[0x3d; 4096]).unwrap();
    let disk = File::open(bed.path("disk.img")).unwrap();
    let (mut found, give_up) = ([0; 4096], clock() + 20.0);
    while found != [0x3d; 4096] {
        assert!(clock() < give_up, "not written back\n{}", get(&bed, "c", "cache_stat"));
        pause(Duration::from_millis(20));
        disk.read_exact_at(&mut found, 3 * MIB).unwrap();
    }
}

#[test]
fn the_process_stays_within_the_memory_limit_of_the_cache() {
    if !clients(&["fio"]) {
        return;
    }
    let resident = |bed: &TestBed| {
        let path = format!("/proc/{}/status", bed.daemon().id());
        let status = std::fs::read_to_string(path).unwrap();
        let line = status.lines().find_map(|line| line.strip_prefix("VmRSS:")).unwrap();
        line.trim().strip_suffix(" kB").unwrap().parse::<u64>().unwrap() << 10
    };
    let bed = TestBed::start(
        &[("disk.img", 512 * MIB)],
        &[("c", "0 1048576 buffered ./disk.img 2 memory 64M")],
    );
    // What a client's connection takes is there before.
    let small = Fio::new(bed.dir(), &bed.uri("c"));
    small.with(["--rw=write", "--bs=1M", "--iodepth=4", "--size=4M"]).run(LIMIT).unwrap();
    let before = resident(&bed);
    for rw in ["write", "randwrite", "randread", "read"] {
        let fio = Fio::new(bed.dir(), &bed.uri("c"));
        let fio = fio.with(["--bs=64k", "--iodepth=4", "--size=512M", "--io_size=128M"]);
        fio.with([&format!("--rw={rw}")]).run(LIMIT).unwrap();
        let more = resident(&bed).saturating_sub(before);
        // Buffers of requests are pooled, too; the cache itself is exact.
        assert!(more < 64 * MIB + 24 * MIB, "{rw}: {} MiB", more / MIB);
    }
    assert!(resident(&bed) > before + 32 * MIB, "it caches something");
}

#[test]
fn errors_of_table_lines_name_the_allowed_values() {
    let bed = TestBed::start(&[("disk.img", MIB)], &[]);
    let disk = bed.path("disk.img").display().to_string();
    let table = |arguments: &str| format!("0 2048 buffered {arguments}");
    for (arguments, code, part) in [
        (String::new(), 1, "buffered"),
        (format!("{disk} 2 memory x"), 1, "memory"),
        (format!("{disk} 2 memory 0"), 1, "memory"),
        (format!("{disk} 2 map_blocks some"), 1, "multi"),
        (format!("{disk} 2 nosuch 1"), 1, "nosuch"),
        (format!("{disk} 2 dirty_bytes -1"), 1, "dirty_bytes"),
        (format!("{disk} 1 memory"), 1, "memory"),
        ("nobody".to_owned(), 3, "nobody"),
    ] {
        let (got, text) = refused(&bed, &["create", "c", "--table", &table(&arguments)]);
        assert!(got == code && text.contains(part), "{arguments}: {got}: {text}");
    }
    let (code, text) =
        refused(&bed, &["create", "c", "--table", &format!("0 4096 buffered {disk}")]);
    assert!(code == 1 && text.contains("2048"), "larger than the device below: {text}");
    // A device is in one engine only.
    bed.verb(&["create", "c", "--table", &table(&disk)]);
    let (code, text) = refused(&bed, &["create", "d", "--table", &table(&disk)]);
    assert!(code == 4 && text.contains("the origin of c (buffered)"), "{code}: {text}");
    assert!(bed.verb(&["targets"]).contains("buffered         v1.0.0\n"));
}

#[test]
fn attributes_are_read_set_and_refused_by_name() {
    let bed = one_cache("");
    for (attribute, value, shown) in [
        ("dirty_bytes", "8388608", "8388608"),
        ("dirty_background_bytes", "4194304", "4194304"),
        ("dirty_expire_centisecs", "100", "100"),
        ("dirty_writeback_centisecs", "50", "50"),
        ("read_ahead_kb", "256", "256"),
        ("ioend_bytes", "524288", "524288"),
        ("map_blocks", "single", "single"),
        ("map_blocks", "multi", "multi"),
    ] {
        bed.verb(&["set", "c", attribute, value]);
        assert_eq!(get(&bed, "c", attribute), shown, "{attribute}");
    }
    // As the kernel: of two that say the same, the last one counts.
    assert_eq!(get(&bed, "c", "dirty_seconds"), "0");
    bed.verb(&["set", "c", "dirty_seconds", "3"]);
    assert_eq!(get(&bed, "c", "dirty_bytes"), "0");
    for (attribute, value) in [
        ("map_blocks", "some"),
        ("dirty_bytes", "x"),
        ("dirty_bytes", "-5"),
        ("dirty_seconds", "-1"),
        ("read_ahead_kb", "1.5"),
        ("ioend_bytes", "1"),
        ("dirty_expire_centisecs", ""),
    ] {
        let (code, text) = refused(&bed, &["set", "c", attribute, value]);
        assert!(code == 1 && text.contains(attribute), "{attribute} {value}: {code}: {text}");
    }
    let (code, text) = refused(&bed, &["set", "c", "cache_stat", "1"]);
    assert!(code == 1 && text.contains("EACCES"), "{text}");
    let (code, text) = refused(&bed, &["get", "c", "nosuch"]);
    assert!(code == 3 && text.contains("map_blocks"), "{text}");
    let all = bed.verb(&["get", "c"]);
    for name in ["memory", "map_blocks", "dirty_background_seconds"] {
        assert!(all.contains(name), "{name}: {all}");
    }
    for name in ["cache_stat", "bandwidth", "ioend_stats", "errors"] {
        assert!(!all.contains(name), "{name} has many lines: {all}");
        assert!(get(&bed, "c", name).contains('\n'), "{name}");
    }
}

#[test]
fn the_throttle_of_the_leaf_below_is_shown_and_can_be_set() {
    let bed = one_cache("");
    let leaf = bed.path("disk.img").display().to_string();
    let target = |bed: &TestBed| get(bed, &leaf, "queue/wbt_lat_usec");
    assert_ne!(target(&bed), "0", "it is on by default");
    assert_eq!(get(&bed, &leaf, "queue/wbt_mode"), "[tail] kernel");
    for (attribute, value, shown) in [
        ("queue/wbt_lat_usec", "0", "0"),
        ("queue/wbt_lat_usec", "3000", "3000"),
        ("queue/wbt_mode", "kernel", "tail [kernel]"),
        ("queue/nr_requests", "64", "64"),
    ] {
        bed.verb(&["set", &leaf, attribute, value]);
        assert_eq!(get(&bed, &leaf, attribute), shown, "{attribute}");
    }
    bed.verb(&["set", &leaf, "queue/wbt_lat_usec", "-1"]);
    assert_ne!(target(&bed), "3000");
    for (attribute, value) in [
        ("queue/wbt_lat_usec", "fast"),
        ("queue/wbt_lat_usec", "-2"),
        ("queue/wbt_mode", "both"),
        ("queue/nr_requests", "0"),
    ] {
        let (code, text) = refused(&bed, &["set", &leaf, attribute, value]);
        let named = text.contains(&leaf) && text.contains(attribute);
        assert!(code == 1 && named, "{attribute} {value}: {code}: {text}");
    }
    let (code, text) = refused(&bed, &["set", &leaf, "queue/wbt_stats", "1"]);
    assert!(code == 1 && text.contains("EACCES"), "{code}: {text}");
    // A cache that writes back under the smallest target there is goes on all the same, and
    // whoever waits is let go when the throttle is turned off.
    bed.verb(&["set", &leaf, "queue/wbt_lat_usec", "1"]);
    let mut client = bed.connect("c");
    let data = vec![0x42; MIB as usize];
    for nth in 0..48 {
        client.write(nth * MIB, &data).unwrap();
    }
    bed.verb(&["set", &leaf, "queue/wbt_lat_usec", "0"]);
    client.flush().unwrap();
    assert!(!get(&bed, &leaf, "queue/wbt_stats").is_empty());
    let disk = OpenOptions::new().read(true).open(bed.path("disk.img")).unwrap();
    let mut found = vec![0; MIB as usize];
    for nth in 0..48 {
        disk.read_exact_at(&mut found, nth * MIB).unwrap();
        assert!(found == data, "MiB {nth}");
    }
}

#[test]
fn qemu_io_sees_zeroes_and_discards_through_the_cache() {
    if !clients(&["qemu-io"]) {
        return;
    }
    let bed = three_caches(false);
    for name in ["lin", "str", "raw"] {
        let commands = [
            "write -P 0x11 0 8M",
            "write -z 1M 1M",
            "write -z -u 3M 4k",
            "discard 5M 256k",
            "write -P 0x22 1000 3000",
            "write -f -P 0x33 6M 2M",
            "flush",
            "read -P 0 1M 1M",
            "read -P 0 3M 4k",
            "read -P 0x11 0 1000",
            "read -P 0x22 1000 3000",
            "read -P 0x11 4000 1000k",
            "read -P 0x33 6M 2M",
        ];
        let mut command = Command::new("qemu-io");
        command.args(["-f", "raw", "-t", "none", &bed.uri(name)]);
        for c in commands {
            command.args(["-c", c]);
        }
        run(&mut command, LIMIT).unwrap().ok().unwrap();
    }
}
