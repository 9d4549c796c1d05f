// SPDX-License-Identifier: Apache-2.0 OR MIT
//! `--memory`: what needs more than there is is refused, one device at a time, and nothing else
//! notices.

use std::fs::File;
use std::os::unix::fs::{FileExt, MetadataExt};

use crate::common::{self, Daemon, MILLPOND, folder, sh};
use format::{CheckpointRef, Geometry, SUPERBLOCK_COPIES, Superblock, UNIT};

const BIG: u64 = 15 << 40;

/// A sparse file of 15 TiB.
fn big(dir: &std::path::Path) -> String {
    let path = dir.join("big.img");
    File::create(&path).unwrap().set_len(BIG).unwrap();
    path.to_str().unwrap().to_owned()
}

/// The story, found by an attack from outside: one `create` with such a cache device ended the
/// daemon with all of its devices, after it had written the format.
#[test]
fn a_device_that_needs_too_much_memory_is_refused_alone() {
    let daemon = Daemon::start_with(&["--memory", "96M"]);
    daemon.create("good", "0 8192 linear mem:4M 0");
    let big = big(daemon.dir.path());
    let backing = format!("0 8192 zram lz4 2 backing_dev {big}");
    let cache = format!("0 131072 writecache s null:64M {big} 4096 0");
    let dm = format!("0 131072 writecache s null:64M {big} 4096 2 format dm");
    for (table, what) in [
        (&*cache, "the map of its 39"),
        (&dm, "the map of its 40"),
        (&backing, "blocks of"),
        (
            "0 17179869184 zram lz4",
            "bad: the table of its 2147483648 pages needs 32.0 GiB of memory",
        ),
        ("0 8192 linear mem:1T 0", "mem:1T needs 1.0 TiB of memory, 92.0 MiB of 96.0 MiB are free"),
        (
            "0 8192 buffered good 2 memory 1T",
            "bad: the option memory needs 1.0 TiB of memory, 92.0",
        ),
    ] {
        let why = daemon.cli(&["create", "bad", "--table", table]).failed(1);
        for part in [what, "of 96.0 MiB are free (daemon --memory)", "(ENOMEM)"] {
            assert!(why.contains(part), "{table}: {why}");
        }
    }
    assert_eq!(std::fs::metadata(&big).unwrap().blocks(), 0, "something was written");
    daemon.qemu_io("good", &["write -P 7 0 1M", "flush", "read -P 7 0 1M"]).ok();
    // What was refused holds nothing, and what has gone gives back.
    for _ in 0..3 {
        daemon.create("most", "0 8192 linear mem:90M 0");
        daemon.cli(&["remove", "most"]).ok();
    }
}

/// Tools for images ended in the same way.
#[test]
fn tools_refuse_an_image_that_needs_too_much_memory() {
    let meminfo = std::fs::read_to_string("/proc/meminfo").unwrap();
    let kib: u64 = meminfo.split_whitespace().nth(1).unwrap().parse().unwrap();
    if kib > 100 << 20 {
        return println!("skipped: this machine has the memory for it");
    }
    let dir = folder();
    let path = big(dir.path());
    let geometry = Geometry::compute(BIG, 4096).unwrap();
    let superblock = Superblock {
        uuid: [7; 16],
        generation: 1,
        block_size: 4096,
        slots: geometry.slots,
        log_units: geometry.log_units,
        checkpoint_units: geometry.checkpoint_units,
        origin_sectors: 131_072,
        origin_id: [0; 16],
        checkpoint: CheckpointRef { log_start_seq: 1, ..CheckpointRef::default() },
        guards_origin: false,
        moved: None,
        atomic_bytes: 0,
        later: None,
    };
    let file = File::options().write(true).open(&path).unwrap();
    for copy in 0..SUPERBLOCK_COPIES {
        let mut unit = [0; UNIT];
        superblock.encode(copy, &mut unit);
        file.write_all_at(&unit, Geometry::superblock_offset(copy)).unwrap();
    }
    let origin = common::file_in(dir.path(), "origin.img", 64);
    for args in
        [&["inspect", &path][..], &["recover", "--dry-run", "--cache", &path, "--origin", &origin]]
    {
        let why = sh(MILLPOND, args).failed(1);
        assert!(why.contains("the map of its 39") && why.contains("(ENOMEM)"), "{args:?}: {why}");
    }
}
