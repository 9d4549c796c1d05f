// SPDX-License-Identifier: Apache-2.0 OR MIT
//! Compressed RAM disks as their users meet them: set up through files as the kernel's, driven
//! through files and NBD, on one core and on two.

use std::fs::{File, OpenOptions};
use std::io::{Error, Result, Write};
use std::os::unix::fs::{FileExt, OpenOptionsExt};
use std::path::PathBuf;
use std::time::Duration;

use e2e::mounted::{file, fuse};
use e2e::process::Job;
use e2e::stamp::fill_words;
use e2e::test_bed::TestBed;
use e2e::{clock, pause};
use nbd::wire::ExportFlags;
use rustix::fs::{FallocateFlags, OFlags, fallocate};
use rustix::io::Errno;

const KIB: usize = 1 << 10;
const MIB: u64 = 1 << 20;
const PAGE: usize = 4 * KIB;
const LIMIT: Duration = Duration::from_secs(120);
/// How long an attribute may take that waits for nobody, on a busy machine.
const AT_ONCE: f64 = 2.0;

/// A device as its files show it.
struct Files<'a> {
    bed: &'a TestBed,
    name: String,
}

impl<'a> Files<'a> {
    fn of(bed: &'a TestBed, name: &str) -> Files<'a> {
        Files { bed, name: name.to_owned() }
    }

    /// A device without a size.
    fn added(bed: &'a TestBed, name: &str) -> Files<'a> {
        bed.verb(&["create", name, "--zram"]);
        Files::of(bed, name)
    }

    fn path(&self, attribute: &str) -> PathBuf {
        self.bed.mount().join("sys/block").join(&self.name).join(attribute)
    }

    /// `echo VALUE > ATTRIBUTE`.
    fn echo(&self, value: &str, attribute: &str) -> Result<()> {
        let path = self.path(attribute);
        OpenOptions::new().write(true).open(path)?.write_all(format!("{value}\n").as_bytes())
    }

    fn set(&self, attribute: &str, value: &str) {
        self.echo(value, attribute).unwrap_or_else(|e| panic!("{value} > {attribute}: {e}"));
    }

    /// The errno of an `echo` that has to fail.
    fn refused(&self, attribute: &str, value: &str) -> Errno {
        let e = self.echo(value, attribute).expect_err(&format!("{value} > {attribute}"));
        errno(&e)
    }

    fn cat(&self, attribute: &str) -> String {
        let path = self.path(attribute);
        let text = std::fs::read_to_string(&path);
        text.unwrap_or_else(|e| panic!("{}: {e}", path.display())).trim_end().to_owned()
    }

    fn numbers(&self, attribute: &str) -> Vec<u64> {
        self.cat(attribute).split_whitespace().map(|word| word.parse().unwrap()).collect()
    }

    fn open(&self) -> File {
        let flags = OFlags::DIRECT.bits().cast_signed();
        let path = file(self.bed, &self.name);
        OpenOptions::new().read(true).write(true).custom_flags(flags).open(path).unwrap()
    }
}

fn errno(e: &Error) -> Errno {
    Errno::from_io_error(e).unwrap_or_else(|| panic!("no errno: {e}"))
}

/// A page of this device that compresses to about half, and is like no other.
fn page(nth: u64, round: u64) -> Vec<u8> {
    let mut x = nth.wrapping_mul(0x9e37_79b9_7f4a_7c15) ^ round.wrapping_add(1) << 40 | 1;
    let next = || {
        x ^= x << 13;
        x ^= x >> 7;
        x ^= x << 17;
        x
    };
    let mut page = vec![0x5a; PAGE];
    fill_words(&mut page[..PAGE / 2], next);
    page[..8].copy_from_slice(&nth.to_le_bytes());
    page
}

/// A page that nothing compresses.
fn noise(nth: u64) -> Vec<u8> {
    let mut x = (nth + 1).wrapping_mul(0x9e37_79b9_7f4a_7c15);
    let next = || {
        x ^= x << 13;
        x ^= x >> 7;
        x ^= x << 17;
        x.wrapping_mul(0x2545_f491_4f6c_dd1d)
    };
    let mut page = vec![0; PAGE];
    fill_words(&mut page, next);
    page
}

/// Buffered where the device is a file: the pages go one after the other in large writes.
fn fill(bed: &TestBed, name: &str, pages: std::ops::Range<u64>, page: impl Fn(u64) -> Vec<u8>) {
    let device = OpenOptions::new().write(true).open(file(bed, name)).unwrap();
    let pages: Vec<u64> = pages.collect();
    for run in pages.chunks(64) {
        let data = run.iter().map(|nth| page(*nth)).collect::<Vec<_>>().concat();
        device.write_all_at(&data, run[0] * PAGE as u64).unwrap();
    }
}

fn verify(bed: &TestBed, name: &str, pages: std::ops::Range<u64>, page: impl Fn(u64) -> Vec<u8>) {
    let device = File::open(file(bed, name)).unwrap();
    let mut found = vec![0; PAGE];
    for nth in pages {
        device.read_exact_at(&mut found, nth * PAGE as u64).unwrap();
        assert!(found == page(nth), "page {nth}");
    }
}

/// A backing device of `mib` that takes `ms` for each request: `slowN`, and a device `zN` of 8 MiB
/// on it that writes back one page at a time.
fn slow(bed: &TestBed, nth: u32, mib: u64, ms: u32) -> String {
    let sectors = mib * MIB / 512;
    let backing = format!("slow{nth}");
    let table = format!("0 {sectors} delay mem:{mib}M,{nth} 0 {ms}");
    bed.verb(&["create", &backing, "--table", &table]);
    let name = format!("z{nth}");
    let options = format!("6 backing_dev {backing} writeback_batch_size 1 writeback_inflight 1");
    bed.verb(&["create", &name, "--table", &format!("0 16384 zram lz4 {options}")]);
    name
}

/// The daemon's memory in bytes.
fn resident(bed: &TestBed) -> u64 {
    let status = std::fs::read_to_string(format!("/proc/{}/status", bed.daemon().id())).unwrap();
    let line = status.lines().find_map(|line| line.strip_prefix("VmRSS:")).unwrap();
    line.trim().strip_suffix(" kB").unwrap().parse::<u64>().unwrap() << 10
}

#[test]
fn a_device_is_set_up_through_files_with_the_kernels_refusals() {
    if !fuse() {
        return;
    }
    let bed = TestBed::start_mounted(&[("back.img", 64 * MIB)], &[]);
    let zram = Files::added(&bed, "zram0");
    let backing = bed.path("back.img").display().to_string();
    assert_eq!((zram.cat("initstate"), zram.cat("disksize")), ("0".into(), "0".into()));
    for (attribute, value, wanted) in [
        ("comp_algorithm", "nosuch", Errno::INVAL),
        ("disksize", "0", Errno::INVAL),
        ("disksize", "-1", Errno::INVAL),
        ("disksize", "abc", Errno::INVAL),
        ("backing_dev", "/dev/nope", Errno::NOENT),
        ("backing_dev", "/tmp", Errno::INVAL),
        ("backing_dev", "back.img", Errno::NOENT),
        ("backing_dev", "./back.img", Errno::INVAL),
        ("writeback", "idle", Errno::INVAL),
        ("idle", "all", Errno::INVAL),
        ("compact", "1", Errno::INVAL),
        ("mem_limit", "x", Errno::INVAL),
        ("reset", "0", Errno::INVAL),
        ("reset", "x", Errno::INVAL),
    ] {
        assert_eq!(zram.refused(attribute, value), wanted, "{value} > {attribute}");
    }
    zram.set("backing_dev", &backing);
    assert_eq!(zram.cat("backing_dev"), backing);
    zram.set("comp_algorithm", "zstd");
    assert_eq!(zram.cat("comp_algorithm"), "lz4 lz4hc [zstd] deflate");
    for (attribute, value) in
        [("mem_limit", "64M"), ("writeback_limit", "100"), ("writeback_limit_enable", "1")]
    {
        zram.set(attribute, value);
    }
    zram.set("disksize", "32M");
    assert_eq!((zram.cat("initstate"), zram.cat("size")), ("1".into(), "65536".into()));
    for (attribute, value) in
        [("disksize", "16M"), ("comp_algorithm", "lz4"), ("backing_dev", "none")]
    {
        assert_eq!(zram.refused(attribute, value), Errno::BUSY, "{value} > {attribute}");
    }
    for (attribute, value) in [
        ("queue/logical_block_size", "512"),
        ("queue/physical_block_size", "4096"),
        ("queue/discard_granularity", "4096"),
        ("queue/write_cache", "write through"),
        ("queue/fua", "0"),
        ("mm_stat", "0 0 0 67108864 0 0 0 0 0"),
    ] {
        assert_eq!(zram.cat(attribute), value, "{attribute}");
    }
    // Who may only command may not read, and the other way round.
    for command in ["writeback", "reset", "compact"] {
        let e = File::open(zram.path(command)).map(drop);
        assert_eq!(errno(&e.unwrap_err()), Errno::ACCESS, "{command}");
    }
    assert_eq!(zram.refused("mm_stat", "1"), Errno::ACCESS);

    // As in the kernel: 200 zero pages, then 200 that nothing compresses, then the limit.
    fill(&bed, "zram0", 0..200, |_| vec![0; PAGE]);
    fill(&bed, "zram0", 200..400, noise);
    let stat = zram.numbers("mm_stat");
    assert_eq!((stat[0], stat[5], stat[7]), (400 * PAGE as u64, 200, 200));
    let limited = zram.refused("writeback", "huge");
    assert_eq!((limited, zram.cat("bd_stat")), (Errno::DQUOT, "100 0 100".into()));
    zram.set("writeback_limit_enable", "0");
    zram.set("writeback", "huge");
    assert_eq!(zram.cat("bd_stat"), "200 0 200");
    verify(&bed, "zram0", 200..400, noise);
    assert_eq!(zram.numbers("bd_stat")[0], 200, "they stay there");
    verify(&bed, "zram0", 0..200, |_| vec![0; PAGE]);
    assert_eq!(zram.refused("writeback", "bogus"), Errno::INVAL);

    let held = zram.open();
    assert_eq!(zram.refused("reset", "1"), Errno::BUSY);
    drop(held);
    zram.set("reset", "1");
    assert_eq!((zram.cat("initstate"), zram.cat("disksize")), ("0".into(), "0".into()));
    assert_eq!(
        (zram.cat("backing_dev"), zram.cat("mm_stat")),
        ("none".into(), "0 ".repeat(8) + "0")
    );
    zram.set("disksize", "8M");
    verify(&bed, "zram0", 0..8, |_| vec![0; PAGE]);
    bed.verb(&["remove", "zram0"]);
    assert!(!zram.path("mm_stat").exists());
}

#[test]
fn a_backing_device_has_one_user_until_that_is_reset() {
    if !fuse() {
        return;
    }
    let bed = TestBed::start_mounted(&[("back.img", 16 * MIB)], &[]);
    let backing = bed.path("back.img").display().to_string();
    let (one, two) = (Files::added(&bed, "one"), Files::added(&bed, "two"));
    for zram in [&one, &two] {
        zram.set("backing_dev", &backing);
    }
    one.set("disksize", "8M");
    assert_eq!(two.refused("disksize", "8M"), Errno::BUSY);
    assert_eq!(two.cat("backing_dev"), backing, "refused, it is as before");
    one.set("reset", "1");
    two.set("disksize", "8M");
    // By the command line paths are as the shell's.
    let mut set = bed.daemon().command(&["set", "one", "backing_dev", "./back.img"]);
    let set = Job::start(set.current_dir(bed.dir())).unwrap().wait(LIMIT).unwrap();
    set.ok().unwrap();
    assert_eq!(one.cat("backing_dev"), backing);
}

/// More writebacks at once than the mount has threads, each of which takes seconds.
#[test]
fn long_commands_delay_neither_attributes_nor_data() {
    if !fuse() {
        return;
    }
    const DEVICES: u32 = 12;
    let bed = TestBed::start_mounted(&[], &[]);
    let names: Vec<String> = (0..DEVICES).map(|nth| slow(&bed, nth, 8, 40)).collect();
    for name in &names {
        fill(&bed, name, 0..100, |nth| page(nth, 0));
        Files::of(&bed, name).set("idle", "all");
    }
    let began = clock();
    std::thread::scope(|threads| {
        let writes: Vec<_> = names
            .iter()
            .map(|name| {
                let zram = Files::of(&bed, name);
                threads.spawn(move || zram.echo("idle", "writeback").map(|()| clock()))
            })
            .collect();
        let running = |name: &String| Files::of(&bed, name).numbers("bd_stat")[2] > 0;
        while !names.iter().all(running) {
            pause(Duration::from_millis(5));
        }
        for name in &names {
            let zram = Files::of(&bed, name);
            let before = clock();
            assert!(zram.numbers("bd_stat")[0] < 100, "{name} is at it still");
            assert_eq!(zram.cat("block_state").lines().count(), 100);
            let progress = zram.numbers("writeback_progress");
            assert!(progress[0] < progress[1], "{progress:?}");
            // What is written now is there, wherever the old page is on its way to.
            fill(&bed, name, 99..100, |nth| page(nth, 1));
            verify(&bed, name, 99..100, |nth| page(nth, 1));
            let took = clock() - before;
            assert!(took < AT_ONCE, "{name} took {took} s");
        }
        assert!(writes.iter().all(|write| !write.is_finished()), "the proof needs longer writes");
        for write in writes {
            let took = write.join().unwrap().unwrap() - began;
            assert!(took > 3.0, "a hundred pages at 40 ms each can't take {took} s");
        }
    });
    for name in &names {
        assert!(Files::of(&bed, name).numbers("bd_stat")[0] >= 99);
        verify(&bed, name, 0..99, |nth| page(nth, 0));
    }
}

#[test]
fn writeback_progress_is_shown_and_a_removal_ends_it() {
    let bed = TestBed::start(&[], &[]);
    let name = slow(&bed, 0, 8, 40);
    let mut client = bed.connect(&name);
    for nth in 0..100 {
        client.write(nth * PAGE as u64, &page(nth, 0)).unwrap();
    }
    drop(client);
    bed.verb(&["set", &name, "idle", "all"]);
    let set = ["set", &name, "writeback", "idle"];
    let done = bed.daemon().try_verb(&set).unwrap();
    assert_eq!(done.code, 0, "{}", done.complaint());
    let (what, unit) = (format!("millpond: writeback {name}: "), "of 2048 pages");
    assert!(done.stderr.contains(&what) && done.stderr.contains(unit), "{}", done.stderr);

    let mut client = bed.connect(&name);
    for nth in 0..100 {
        client.write(nth * PAGE as u64, &page(nth, 1)).unwrap();
    }
    drop(client);
    bed.verb(&["set", &name, "idle", "all"]);
    let job = Job::start(&mut bed.daemon().command(&set)).unwrap();
    let written = || bed.verb(&["get", &name, "bd_stat"]).ends_with(" 100\n");
    while written() {
        pause(Duration::from_millis(5));
    }
    let before = clock();
    bed.verb(&["remove", &name]);
    assert!(clock() - before < AT_ONCE);
    let ended = job.wait(LIMIT).unwrap();
    assert!(ended.code != 0 && ended.stderr.contains("ended by a suspend"), "{}", ended.stderr);
}

#[test]
fn sigterm_ends_a_running_command() {
    if !fuse() {
        return;
    }
    let mut bed = TestBed::start_mounted(&[], &[]);
    let name = slow(&bed, 0, 8, 100);
    fill(&bed, &name, 0..400, |nth| page(nth, 0));
    let zram = Files::of(&bed, &name);
    zram.set("idle", "all");
    let (path, stat) = (zram.path("writeback"), zram.path("bd_stat"));
    std::thread::scope(|threads| {
        let write = move || OpenOptions::new().write(true).open(path)?.write_all(b"idle\n");
        let writer = threads.spawn(write);
        while std::fs::read_to_string(&stat).unwrap() == "0 0 0\n" {
            pause(Duration::from_millis(5));
        }
        let before = clock();
        bed.terminate();
        let took = clock() - before;
        assert!(took < 20.0, "forty seconds of writeback were left; the end took {took} s");
        assert_eq!(errno(&writer.join().unwrap().unwrap_err()), Errno::BUSY);
    });
}

#[test]
fn an_attribute_of_many_lines_is_read_whole() {
    if !fuse() {
        return;
    }
    let table = "0 2097152 zram lz4";
    let bed = TestBed::start_mounted(&[], &[("big", table)]);
    let zram = Files::of(&bed, "big");
    let zero = vec![0; 1024 * KIB];
    let device = OpenOptions::new().write(true).open(file(&bed, "big")).unwrap();
    for mib in 0..512 {
        device.write_all_at(&zero, mib * MIB).unwrap();
    }
    let text = zram.cat("block_state");
    assert!(text.len() > 3 * MIB as usize, "{} bytes come in several reads", text.len());
    let slot = |line: &str| line.split_whitespace().next().unwrap().parse::<u64>().unwrap();
    assert!(text.lines().map(slot).eq(0..131_072));
    // It is not among all attributes at once.
    let all = bed.verb(&["get", "big"]);
    assert!(all.contains("mm_stat ") && !all.contains("block_state"), "{all}");
}

#[test]
fn memory_goes_back_to_the_system_after_discard_and_compact() {
    if !fuse() {
        return;
    }
    let bed = TestBed::start_mounted(&[], &[("z", "0 1048576 zram lz4")]);
    let zram = Files::of(&bed, "z");
    fill(&bed, "z", 0..256, noise);
    let base = resident(&bed);
    const PAGES: u64 = 128 * MIB / PAGE as u64;
    fill(&bed, "z", 0..PAGES, |nth| page(nth, 0));
    let full = resident(&bed) - base;
    let used = zram.numbers("mm_stat")[2];
    assert!(full > 60 * MIB && used > 60 * MIB, "{full} resident, {used} used");
    // All but one page in sixteen, so that nearly every span of objects stays.
    let device = zram.open();
    for nth in (0..PAGES).filter(|nth| nth % 16 != 0) {
        let how = FallocateFlags::PUNCH_HOLE | FallocateFlags::KEEP_SIZE;
        fallocate(&device, how, nth * PAGE as u64, PAGE as u64).unwrap();
    }
    zram.set("compact", "1");
    let stat = zram.numbers("mm_stat");
    assert_eq!(stat[0], PAGES / 16 * PAGE as u64);
    assert!(stat[2] < used / 12, "{stat:?}");
    let (freed, back) = (used - stat[2], base + full - resident(&bed));
    assert!(back > freed / 10 * 9, "of {freed} bytes that are free {back} went back");
    verify(&bed, "z", 0..1, |nth| page(nth, 0));
    verify(&bed, "z", 16..17, |nth| page(nth, 0));
    verify(&bed, "z", 1..2, |_| vec![0; PAGE]);
}

#[test]
fn a_new_table_takes_over_no_pages_that_exist_only_in_memory() {
    let (table, other) = ("0 65536 zram lz4", "0 65536 zram zstd");
    let mut bed = TestBed::start(&[], &[("ram", table)]);
    bed.verb(&["load", "ram", "--table", other]);
    bed.connect("ram").write(0, &page(0, 0)).unwrap();
    // Loaded while there was nothing to lose; now there is.
    for args in [&["resume", "ram"][..], &["load", "ram", "--table", other]] {
        let refused = bed.daemon().try_verb(args).unwrap();
        assert_eq!(refused.code, 4, "{}", refused.complaint());
        assert!(refused.complaint().contains("reset or remove"), "{}", refused.complaint());
    }
    bed.verb(&["clear", "ram"]);
    bed.verb(&["resume", "ram"]);
    let mut found = vec![0; PAGE];
    bed.connect("ram").read(0, &mut found).unwrap();
    assert!(found == page(0, 0), "the page is there still");
    bed.verb(&["set", "ram", "reset", "1"]);
    bed.terminate();
}

#[test]
fn memory_goes_back_to_the_system_after_a_writeback() {
    if !fuse() {
        return;
    }
    let table = "0 262144 zram lz4 2 backing_dev ./back.img";
    let bed = TestBed::start_mounted(&[("back.img", 128 * MIB)], &[("z", table)]);
    let zram = Files::of(&bed, "z");
    fill(&bed, "z", 0..256, noise);
    let base = resident(&bed);
    fill(&bed, "z", 0..64 * MIB / PAGE as u64, noise);
    let full = resident(&bed);
    assert!(full - base > 60 * MIB, "{base}, then {full} resident");
    zram.set("idle", "all");
    zram.set("writeback", "idle");
    assert_eq!(zram.numbers("mm_stat")[2], 0);
    let after = resident(&bed);
    assert!(full - after > 60 * MIB, "{base} empty, {full} full, {after} written back");
}

#[test]
fn only_what_keeps_offers_flushes() {
    let kept = "0 65536 writecache s ./origin.img ./cache.img 4096 0";
    let devices = [("ram", "0 65536 zram lz4"), ("kept", kept), ("on", "0 8 linear ram 0")];
    let files = [("origin.img", 32 * MIB), ("cache.img", 16 * MIB)];
    let bed = TestBed::start(&files, &devices);
    let flags = |name| ExportFlags::from_bits_retain(bed.connect(name).flags());
    let flush = ExportFlags::FLUSH | ExportFlags::FUA;
    assert!(!flags("ram").intersects(flush));
    assert!(!flags("on").intersects(flush), "nor does what stands on it");
    assert!(flags("kept").contains(flush));
    let trim = ExportFlags::TRIM | ExportFlags::WRITE_ZEROES;
    assert!(flags("ram").contains(trim));
    // A client that flushes all the same is not turned away.
    bed.connect("ram").flush().unwrap();
}

#[test]
fn two_cores_share_a_device() {
    if !fuse() {
        return;
    }
    let options = "cores = 2\nfuse = './mount'";
    let mut bed = TestBed::start_with(options, &[("back.img", 64 * MIB)], &[]);
    let zram = Files::added(&bed, "zram0");
    zram.set("backing_dev", &bed.path("back.img").display().to_string());
    zram.set("disksize", "64M");
    fill(&bed, "zram0", 0..4096, |nth| page(nth, 0));
    let of_core1 = || {
        let tasks = std::fs::read_dir(format!("/proc/{}/task", bed.daemon().id())).unwrap();
        let stat = |t: std::fs::DirEntry| std::fs::read_to_string(t.path().join("stat")).unwrap();
        let all: Vec<String> = tasks.map(|t| stat(t.unwrap())).collect();
        let core1 = all.iter().find(|stat| stat.contains("(core1)")).unwrap();
        let fields: Vec<&str> = core1.rsplit(") ").next().unwrap().split(' ').collect();
        fields[11].parse::<u64>().unwrap() + fields[12].parse::<u64>().unwrap()
    };
    let ticks = of_core1();
    for _ in 0..20 {
        fill(&bed, "zram0", 0..4096, |nth| page(nth, 0));
    }
    assert!(of_core1() > ticks, "core 1 has compressed something");
    assert_eq!(zram.numbers("mm_stat")[0], 4096 * PAGE as u64);
    zram.set("idle", "all");
    zram.set("writeback", "idle");
    assert_eq!(zram.cat("bd_stat"), "4096 0 4096");
    verify(&bed, "zram0", 0..4096, |nth| page(nth, 0));
    assert_eq!(zram.numbers("bd_stat")[0], 4096);
    // Suspended and resumed, and its table loaded once more, it is what it was.
    bed.verb(&["suspend", "zram0"]);
    bed.verb(&["resume", "zram0"]);
    verify(&bed, "zram0", 1000..1100, |nth| page(nth, 0));
    zram.set("reset", "1");
    zram.set("disksize", "64M");
    fill(&bed, "zram0", 0..512, |nth| page(nth, 1));
    verify(&bed, "zram0", 0..512, |nth| page(nth, 1));
    bed.terminate();
}
