// SPDX-License-Identifier: Apache-2.0 OR MIT
//! Devices as files: any program that takes a file is a client.

use std::fs::{File, OpenOptions};
use std::io::{ErrorKind, Read, Seek, SeekFrom, Write};
use std::os::unix::fs::{FileExt, OpenOptionsExt};
use std::path::Path;
use std::process::Command;
use std::sync::atomic::{AtomicBool, Ordering};
use std::sync::{Arc, mpsc};
use std::time::Duration;

use e2e::fio::Fio;
use e2e::loops::Loop;
use e2e::mounted::{file, fuse};
use e2e::process::{Job, run};
use e2e::stamp::fill_words;
use e2e::test_bed::{TestBed, clients};
use e2e::{clock, pause};
use rustix::fs::{FallocateFlags, OFlags, SeekFrom as Whence, fallocate};
use rustix::io::Errno;

const MIB: u64 = 1 << 20;
const LIMIT: Duration = Duration::from_secs(120);
/// A linear device on 64 MiB of memory.
const MEMORY: (&str, &str) = ("lin", "0 131072 linear mem:64M 0");

fn open(path: &Path) -> File {
    OpenOptions::new().read(true).write(true).open(path).unwrap()
}

/// As a shell opens an attribute to set it, but for O_TRUNC.
fn open_to_write(path: &Path) -> std::io::Result<File> {
    OpenOptions::new().write(true).open(path)
}

/// Bytes that tell where they belong.
fn pattern(len: usize, seed: u64) -> Vec<u8> {
    let mut x = seed | 1;
    let next = || {
        x ^= x << 13;
        x ^= x >> 7;
        x ^= x << 17;
        x
    };
    let mut data = vec![0; len];
    fill_words(&mut data, next);
    data
}

/// Runs a program that has to succeed.
fn ok(program: &str, args: &[&Path]) -> String {
    run(Command::new(program).args(args), LIMIT).unwrap().ok().unwrap()
}

fn attribute(bed: &TestBed, device: &str, path: &str) -> String {
    let path = bed.mount().join("sys/block").join(device).join(path);
    std::fs::read_to_string(&path).unwrap_or_else(|e| panic!("{}: {e}", path.display()))
}

#[test]
fn data_copied_to_a_file_read_back_there_and_over_nbd() {
    if !fuse() {
        return;
    }
    let bed = TestBed::start_mounted(&[], &[MEMORY]);
    let device = file(&bed, "lin");
    let image = bed.path("image");
    // Not a whole block at its end.
    let data = pattern(20_000_001, 1);
    std::fs::write(&image, &data).unwrap();
    ok("cp", &[&image, &device]);
    let mut back = vec![0; data.len()];
    File::open(bed.mount().join("dev/lin")).unwrap().read_exact(&mut back).unwrap();
    assert!(back == data);
    let mut nbd = vec![0; 20_000_256];
    bed.connect("lin").read(0, &mut nbd).unwrap();
    assert!(nbd[..data.len()] == data && nbd[data.len()..].iter().all(|b| *b == 0));
    // Both ways round: what NBD writes is in the file at once.
    bed.connect("lin").write(4096, &[7; 512]).unwrap();
    let mut sector = [0; 512];
    open(&device).read_exact_at(&mut sector, 4096).unwrap();
    assert_eq!(sector, [7; 512]);
}

#[test]
fn a_file_ends_where_a_block_device_does() {
    if !fuse() {
        return;
    }
    let bed = TestBed::start_mounted(&[], &[MEMORY]);
    let device = file(&bed, "lin");
    let size = 64 * MIB;
    assert_eq!(std::fs::metadata(&device).unwrap().len(), size);
    let mut f = open(&device);
    assert_eq!(f.seek(SeekFrom::End(0)).unwrap(), size);
    assert_eq!(f.read_at(&mut [0; 100], size - 3).unwrap(), 3);
    assert_eq!(f.read_at(&mut [0; 100], size).unwrap(), 0);
    assert_eq!(f.write_at(&[1; 100], size - 3).unwrap(), 3);
    let full = f.write_at(&[1], size).unwrap_err();
    assert_eq!(full.raw_os_error(), Some(Errno::NOSPC.raw_os_error()));
    f.set_len(size).unwrap();
    let grow = f.set_len(size + 1).unwrap_err();
    assert_eq!(grow.raw_os_error(), Some(Errno::INVAL.raw_os_error()));
    assert_eq!(rustix::fs::seek(&f, Whence::Data(5)), Ok(5));
    assert_eq!(rustix::fs::seek(&f, Whence::Hole(5)), Ok(size));
    let none = File::create(bed.mount().join("dev/none")).unwrap_err();
    assert_eq!(none.kind(), ErrorKind::PermissionDenied);
}

#[test]
fn writes_at_any_byte_leave_their_neighbours_alone() {
    if !fuse() {
        return;
    }
    let bed = TestBed::start_mounted(&[], &[MEMORY]);
    let device = file(&bed, "lin");
    // Four threads write interleaved pieces of 1000 bytes: every block belongs to several.
    let (pieces, len) = (2000, 1000);
    let data = pattern(pieces * len, 2);
    std::thread::scope(|scope| {
        for thread in 0..4 {
            let (data, device) = (&data, &device);
            scope.spawn(move || {
                let f = open(device);
                for piece in (thread..pieces).step_by(4) {
                    let at = piece * len;
                    f.write_all_at(&data[at..at + len], at as u64).unwrap();
                }
            });
        }
    });
    let mut back = vec![0; data.len()];
    open(&device).read_exact_at(&mut back, 0).unwrap();
    assert!(back == data);
}

#[test]
fn writers_of_whole_blocks_never_delay_a_writer_of_sectors() {
    if !fuse() {
        return;
    }
    let bed = TestBed::start_mounted(&[], &[MEMORY]);
    let device = file(&bed, "lin");
    let stop = Arc::new(AtomicBool::new(false));
    for block in 1..4 {
        let (device, stop) = (device.clone(), stop.clone());
        // Not joined: they would never come back from a device that hangs.
        let writer = move || {
            while !stop.load(Ordering::Relaxed) {
                // Each closes its file as soon as the reply is there.
                open(&device).write_all_at(&[1; 4096], block * 4096).unwrap();
            }
        };
        std::thread::Builder::new().spawn(writer).unwrap();
    }
    let (tell, hear) = mpsc::channel();
    let parts = open(&device);
    let writer = move || {
        for _ in 0..1000 {
            parts.write_all_at(&[2; 100], 50).unwrap();
        }
        tell.send(()).unwrap();
    };
    std::thread::Builder::new().spawn(writer).unwrap();
    let done = hear.recv_timeout(LIMIT / 2);
    stop.store(true, Ordering::Relaxed);
    assert_eq!(done, Ok(()), "a write hangs");
}

#[test]
fn direct_io_at_depth_verifies() {
    if !fuse() || !clients(&["fio"]) {
        return;
    }
    let bed = TestBed::start_mounted(&[], &[MEMORY]);
    let verified = |engine: &str, depth: u32, more: &[&str]| {
        let fio = Fio::on_file(bed.dir(), &file(&bed, "lin")).with([
            &format!("--ioengine={engine}"),
            &format!("--iodepth={depth}"),
            "--rw=randwrite",
            "--direct=1",
            "--size=16M",
            "--verify=crc32c",
            "--verify_fatal=1",
        ]);
        fio.with(more.iter().copied())
            .run(LIMIT)
            .unwrap_or_else(|e| panic!("{engine} {depth}: {e}"))
    };
    let measured = verified("psync", 1, &[]);
    assert_eq!((measured.writes, measured.reads), (4096, 4096));
    verified("libaio", 16, &[]);
    // More than one request each, several at a time: where another export mixes payloads up.
    verified("libaio", 16, &["--bs=1M", "--size=64M"]);
    verified("libaio", 8, &["--bsrange=1M-3M", "--size=60M"]);
    let parts = ["--numjobs=4", "--offset_increment=16M", "--bsrange=512k-3M"];
    verified("psync", 1, &parts);
}

#[test]
fn holes_and_zero_ranges_read_as_zeroes() {
    if !fuse() {
        return;
    }
    let bed = TestBed::start_mounted(&[], &[MEMORY]);
    let f = open(&file(&bed, "lin"));
    let mut model = pattern(MIB as usize, 3);
    f.write_all_at(&model, 0).unwrap();
    let keep = FallocateFlags::KEEP_SIZE;
    for (mode, at, len) in [
        (FallocateFlags::PUNCH_HOLE | keep, 4096, 65536),
        (FallocateFlags::PUNCH_HOLE | keep, 100_001, 3),
        (FallocateFlags::ZERO_RANGE, 200_000, 100_000),
        (FallocateFlags::ZERO_RANGE | keep, 511, 2),
    ] {
        fallocate(&f, mode, at, len).unwrap();
        model[at as usize..(at + len) as usize].fill(0);
        let mut back = vec![1; model.len()];
        f.read_exact_at(&mut back, 0).unwrap();
        assert!(back == model, "{mode:?} {at}+{len}");
    }
    assert_eq!(fallocate(&f, FallocateFlags::empty(), 0, 4096), Err(Errno::OPNOTSUPP));
    assert_eq!(fallocate(&f, FallocateFlags::COLLAPSE_RANGE, 0, 4096), Err(Errno::OPNOTSUPP));
    let beyond = fallocate(&f, FallocateFlags::PUNCH_HOLE | keep, 64 * MIB, 4096);
    assert_eq!(beyond, Err(Errno::INVAL));
    // A device does not grow, so only with KEEP_SIZE is a range cut off at its end.
    let across = |mode| fallocate(&f, mode, 64 * MIB - 512, 4096);
    assert_eq!(across(FallocateFlags::ZERO_RANGE), Err(Errno::INVAL));
    assert_eq!(across(FallocateFlags::ZERO_RANGE | keep), Ok(()));
}

#[test]
fn fsync_is_a_flush_and_closing_is_not() {
    if !fuse() {
        return;
    }
    let bed = TestBed::start_mounted(&[], &[MEMORY]);
    // The 16th column of `stat` counts flushes.
    let flushes = || -> u64 {
        let stat = attribute(&bed, "mem:64M", "stat");
        stat.split_whitespace().nth(15).unwrap().parse().unwrap()
    };
    let f = open(&file(&bed, "lin"));
    f.write_all_at(&[1; 4096], 0).unwrap();
    assert_eq!(flushes(), 0);
    f.sync_all().unwrap();
    f.sync_data().unwrap();
    assert_eq!(flushes(), 2);
    drop(f);
    assert_eq!(flushes(), 2);
}

#[test]
fn synchronous_and_fsynced_writes_survive_a_kill() {
    if !fuse() {
        return;
    }
    let table = "0 32768 writecache s ./origin.img ./cache.img 4096 0";
    let files = [("origin.img", 16 * MIB), ("cache.img", 8 * MIB)];
    let mut bed = TestBed::start_mounted(&files, &[("wc", table)]);
    let device = file(&bed, "wc");
    let sync = |flag: OFlags| {
        let flag = flag.bits().cast_signed();
        OpenOptions::new().write(true).custom_flags(flag).open(&device).unwrap()
    };
    // The cache knows of a block after a commit: a FUA write or a flush.
    sync(OFlags::DSYNC).write_all_at(&[1; 4096], 0).unwrap();
    let f = sync(OFlags::empty());
    f.write_all_at(&[2; 4096], 8192).unwrap();
    f.sync_all().unwrap();
    sync(OFlags::SYNC).write_all_at(&[3; 100], 16384).unwrap();
    bed.kill();
    drop(f);
    let dead = std::fs::read_dir(bed.mount()).unwrap_err();
    assert_eq!(dead.raw_os_error(), Some(Errno::NOTCONN.raw_os_error()));
    // The next daemon clears the dead mount away.
    bed.start_again();
    let log = bed.daemon().log();
    assert!(log.contains("unmounted what a killed daemon had left"), "{log}");
    let f = open(&device);
    for (at, len, byte) in [(0, 4096, 1), (8192, 4096, 2), (16384, 100, 3)] {
        let mut back = vec![0; len];
        f.read_exact_at(&mut back, at).unwrap();
        assert!(back.iter().all(|b| *b == byte), "at {at}");
    }
}

#[test]
fn attributes_are_read_and_set_as_in_sysfs() {
    if !fuse() {
        return;
    }
    let bed = TestBed::start_mounted(&[], &[MEMORY]);
    for (path, value) in [
        ("size", "131072\n"),
        ("ro", "0\n"),
        ("removable", "0\n"),
        ("dev", "999:0\n"),
        ("dm/name", "lin\n"),
        ("dm/uuid", "\n"),
        ("dm/suspended", "0\n"),
        ("queue/logical_block_size", "512\n"),
        ("queue/rotational", "0\n"),
        ("queue/write_cache", "write through\n"),
        ("queue/fua", "0\n"),
        ("queue/atomic_write_unit_min_bytes", "0\n"),
        ("queue/discard_max_bytes", "2199023255040\n"),
        ("queue/write_zeroes_max_bytes", "2199023255040\n"),
    ] {
        assert_eq!(attribute(&bed, "lin", path), value, "{path}");
    }
    bed.verb(&["suspend", "lin"]);
    assert_eq!(attribute(&bed, "lin", "dm/suspended"), "1\n", "an attribute shows what is now");
    bed.verb(&["resume", "lin"]);

    let folder = bed.mount().join("sys/block/lin");
    let open_for = |path: &str| open_to_write(&folder.join(path));
    let errno = |e: std::io::Error| e.raw_os_error();
    let denied = Some(Errno::ACCESS.raw_os_error());
    assert_eq!(errno(open_for("size").unwrap_err()), denied);
    assert_eq!(open_for("queue/none").unwrap_err().kind(), ErrorKind::NotFound);
    assert_eq!(open_for("none").unwrap_err().kind(), ErrorKind::NotFound);

    // One that can be set, as a shell does it: truncated, one write with a newline.
    assert_eq!(attribute(&bed, "lin", "mapping"), "[in-place] clone\n");
    std::fs::write(folder.join("mapping"), "clone\n").unwrap();
    assert_eq!(attribute(&bed, "lin", "mapping"), "in-place [clone]\n");
    assert_eq!(bed.verb(&["get", "lin", "mapping"]).trim(), "in-place [clone]");
    let wrong = open_for("mapping").unwrap().write(b"sideways\n").unwrap_err();
    assert_eq!(errno(wrong), Some(Errno::INVAL.raw_os_error()));

    // An attribute is read in pieces, and its text does not change meanwhile.
    let mut pieces = File::open(folder.join("mapping")).unwrap();
    let mut first = [0; 2];
    pieces.read_exact(&mut first).unwrap();
    std::fs::write(folder.join("mapping"), "in-place").unwrap();
    let mut rest = String::new();
    pieces.read_to_string(&mut rest).unwrap();
    assert_eq!((&first[..], &*rest), (&b"in"[..], "-place [clone]\n"));

    let mut names: Vec<_> = std::fs::read_dir(bed.mount().join("sys/block")).unwrap().collect();
    let mut names: Vec<_> = names.drain(..).map(|e| e.unwrap().file_name()).collect();
    names.sort();
    assert_eq!(names, ["lin", "mem:64M"]);
}

#[test]
fn the_options_of_a_write_cache_are_files() {
    if !fuse() {
        return;
    }
    let table = "0 65536 writecache s mem:32M mem:16M 4096 2 start_sector 8";
    let bed = TestBed::start_mounted(&[], &[("wc", table)]);
    let folder = bed.mount().join("sys/block/wc");
    let errno = |e: std::io::Error| e.raw_os_error();
    for (option, default, good, bad) in [
        ("high_watermark", "50", "70", "101"),
        ("low_watermark", "45", "70", "71"),
        ("max_age", "none", "86400000", "86400001"),
        ("pause_writeback", "3000", "0", "60001"),
        ("cleaner", "0", "1", "2"),
        ("fail_mode", "retry", "kernel", "stop"),
    ] {
        assert_eq!(attribute(&bed, "wc", option), format!("{default}\n"));
        std::fs::write(folder.join(option), format!("{good}\n")).unwrap();
        assert_eq!(attribute(&bed, "wc", option), format!("{good}\n"));
        let wrong = open_to_write(&folder.join(option)).unwrap().write(bad.as_bytes());
        assert_eq!(errno(wrong.unwrap_err()), Some(Errno::INVAL.raw_os_error()), "{option} {bad}");
        assert_eq!(attribute(&bed, "wc", option), format!("{good}\n"));
    }
    let shown = bed.verb(&["table", "wc"]);
    let given = "13 start_sector 8 high_watermark 70 low_watermark 70 max_age 86400000 cleaner \
                 pause_writeback 0 fail_mode kernel";
    assert!(shown.contains(given), "{shown}");
    for (fixed, value) in
        [("start_sector", "8"), ("format", "native"), ("ordered", "0"), ("adopt_origin", "0")]
    {
        assert_eq!(attribute(&bed, "wc", fixed), format!("{value}\n"));
        let denied = open_to_write(&folder.join(fixed)).unwrap_err();
        assert_eq!(errno(denied), Some(Errno::ACCESS.raw_os_error()), "{fixed}");
    }
}

#[test]
fn files_follow_their_devices_and_keep_them_open() {
    if !fuse() {
        return;
    }
    let bed = TestBed::start_mounted(&[], &[]);
    let device = file(&bed, "new");
    assert!(!device.exists());
    bed.verb(&["create", "new", "--table", "0 8 zero"]);
    assert_eq!(std::fs::metadata(&device).unwrap().len(), 4096);
    let f = open(&device);
    let busy = bed.daemon().try_verb(&["remove", "new"]).unwrap();
    assert_eq!(busy.code, 4, "{}", busy.complaint());
    bed.verb(&["rename", "new", "a b"]);
    assert!(!device.exists());
    assert_eq!(f.metadata().unwrap().len(), 4096, "an open file stays itself");
    assert!(file(&bed, "a\\x20b").exists(), "names are mangled as udev does it");
    drop(f);
    // The kernel tells of the last close a moment later.
    let give_up = clock() + 10.0;
    while bed.daemon().try_verb(&["remove", "a b"]).unwrap().code == 4 {
        assert!(clock() < give_up, "closed, but still in use");
        pause(Duration::from_millis(5));
    }
    assert!(!file(&bed, "a\\x20b").exists());
    // Another device of the name is another file.
    bed.verb(&["create", "new", "--table", "0 16 zero"]);
    assert_eq!(std::fs::metadata(&device).unwrap().len(), 8192);
}

#[test]
fn only_a_suspended_device_blocks_requests() {
    if !fuse() {
        return;
    }
    let bed = TestBed::start_mounted(&[], &[MEMORY, ("other", "0 8 zero")]);
    bed.verb(&["suspend", "lin"]);
    let mut read = Command::new("dd");
    read.arg(format!("if={}", file(&bed, "lin").display())).args(["of=/dev/null", "count=1"]);
    let read = Job::start(&mut read).unwrap();
    for _ in 0..5 {
        assert_eq!(std::fs::read(file(&bed, "other")).unwrap().len(), 4096);
        pause(Duration::from_millis(20));
    }
    assert!(read.is_running());
    bed.verb(&["resume", "lin"]);
    read.wait(LIMIT).unwrap().ok().unwrap();
}

#[test]
fn an_attribute_can_be_synced_as_in_sysfs() {
    if !fuse() {
        return;
    }
    let bed = TestBed::start_mounted(&[], &[MEMORY]);
    File::open(bed.mount().join("sys/block/lin/size")).unwrap().sync_all().unwrap();
}

#[test]
fn a_leaf_without_a_valid_file_name_does_not_break_listings() {
    if !fuse() {
        return;
    }
    let table = format!("0 8 linear mem:4K,{} 0", "long".repeat(300));
    let bed = TestBed::start_mounted(&[], &[MEMORY, ("long", &table)]);
    for (dir, count) in [("dev", 4), ("sys/block", 3)] {
        let all = std::fs::read_dir(bed.mount().join(dir)).unwrap();
        assert_eq!(all.map(Result::unwrap).count(), count, "{dir}");
    }
}

/// mkfs, mount, copy, unmount, check, mount again, compare.
fn file_system_on_a_loop_device(mkfs: &str, check: &[&str], size_mib: u64) {
    let tools = [mkfs, check[0], "losetup", "mount", "umount"];
    if !fuse() || !clients(&tools) {
        return;
    }
    let table = format!("0 {} linear mem:{size_mib}M 0", size_mib * 2048);
    let bed = TestBed::start_mounted(&[], &[("disk", &table)]);
    let Some(disk) = Loop::on(&file(&bed, "disk")) else { return };
    let disk = disk.device();
    let (place, data) = (bed.path("place"), bed.path("data"));
    std::fs::create_dir(&place).unwrap();
    std::fs::write(&data, pattern(20_000_001, 4)).unwrap();
    ok(mkfs, &[Path::new("-q"), disk]);
    ok("mount", &[disk, &place]);
    ok("cp", &[&data, &place.join("data")]);
    ok("umount", &[&place]);
    let check_args: Vec<&Path> = check[1..].iter().map(Path::new).chain([disk]).collect();
    ok(check[0], &check_args);
    ok("mount", &[disk, &place]);
    let same = run(Command::new("cmp").arg(&data).arg(place.join("data")), LIMIT).unwrap();
    ok("umount", &[&place]);
    same.ok().unwrap();
}

#[test]
fn ext4_lives_on_a_loop_device() {
    file_system_on_a_loop_device("mkfs.ext4", &["e2fsck", "-fn"], 64);
}

#[test]
fn xfs_lives_on_a_loop_device() {
    file_system_on_a_loop_device("mkfs.xfs", &["xfs_repair", "-n"], 320);
}
