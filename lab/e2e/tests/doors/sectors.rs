// SPDX-License-Identifier: Apache-2.0 OR MIT
//! Requests of 512 bytes on devices of larger blocks, over NBD and files at once. Found by an
//! attack from outside: a 512-byte write by a file undid completed NBD writes of the rest of the
//! block, and clients that do not ask for block sizes could not read 1 KiB from a cache.

use std::fs::OpenOptions;
use std::os::unix::fs::FileExt;
use std::path::Path;
use std::process::Command;
use std::sync::atomic::{AtomicBool, Ordering};
use std::time::Duration;

use e2e::loops::Loop;
use e2e::mounted::{file, fuse};
use e2e::origin::{IMAGE, Kind, Origin, Transport};
use e2e::process::run;
use e2e::test_bed::{TestBed, clients};
use tempfile::TempDir;

const MIB: u64 = 1 << 20;
const CACHED: &str = "0 131072 writecache s ./origin.img ./cache.img 4096 0";
const LINEAR: &str = "0 131072 linear wc 0";

/// A cache of 4096-byte blocks, and a linear device on it.
fn bed(mounted: bool) -> TestBed {
    let files = [("origin.img", 64 * MIB), ("cache.img", 32 * MIB)];
    let devices = [("wc", CACHED), ("lin", LINEAR)];
    if mounted {
        TestBed::start_mounted(&files, &devices)
    } else {
        TestBed::start(&files, &devices)
    }
}

/// As the kernel's client when ext4 is mounted: no block sizes asked for, 1 KiB at sector 2.
#[test]
fn a_client_that_asks_for_no_block_sizes_uses_sectors() {
    let bed = bed(false);
    let mut client = bed.connect("wc");
    client.write(0, &[1; 8192]).unwrap();
    client.write(1024, &[2; 1024]).unwrap();
    client.write_fua(3584, &[3; 1024]).unwrap();
    client.write_zeroes(512, 512).unwrap();
    client.trim(4608, 512).unwrap();
    client.flush().unwrap();
    let mut found = [0; 1024];
    client.read(1024, &mut found).unwrap();
    assert_eq!(found, [2; 1024]);
    let mut all = vec![0; 8192];
    bed.connect("lin").read(0, &mut all).unwrap();
    let pieces: Vec<u8> = all.chunks(512).map(|sector| sector[0]).collect();
    assert_eq!(pieces[..10], [1, 0, 2, 2, 1, 1, 1, 3, 3, 1]);
    assert!(all.chunks(512).all(|sector| sector.iter().all(|b| *b == sector[0])));
    if clients(&["qemu-io"]) {
        let mut command = Command::new("qemu-io");
        command.args(["-f", "raw", "-t", "none", &bed.uri("wc")]);
        for c in ["write -P 7 1M 512", "write -f -P 8 1049600 1k", "read -P 7 1M 512"] {
            command.args(["-c", c]);
        }
        command.args(["-c", "read -P 8 1049600 1k", "-c", "read -P 0 1049088 512"]);
        run(&mut command, Duration::from_secs(60)).unwrap().ok().unwrap();
    }
}

/// One thread writes 512 bytes of a block by a file; an NBD client writes the whole block, and
/// reads what nobody else writes.
#[test]
fn a_write_of_sectors_undoes_no_completed_write() {
    if !fuse() {
        return;
    }
    let bed = bed(true);
    for (by_file, by_nbd) in [("wc", "wc"), ("lin", "wc"), ("wc", "lin")] {
        let undone = undone(&bed, by_file, by_nbd);
        assert_eq!(undone, 0, "of 400 completed writes: {by_file} by file, {by_nbd} by NBD");
    }
}

/// Writes the first sector by a file, and its block by NBD; returns how many completed writes of
/// the block were put back.
fn undone(bed: &TestBed, by_file: &str, by_nbd: &str) -> u32 {
    let device = OpenOptions::new().write(true).open(file(bed, by_file)).unwrap();
    let stop = AtomicBool::new(false);
    std::thread::scope(|scope| {
        scope.spawn(|| {
            while !stop.load(Ordering::Relaxed) {
                device.write_all_at(&[0xAA; 512], 0).unwrap();
            }
        });
        let mut client = bed.connect(by_nbd);
        let mut undone = 0;
        for round in 0..400_u32 {
            let byte = (round % 100) as u8;
            client.write(0, &[byte; 4096]).unwrap();
            let mut found = vec![0; 4096];
            client.read(0, &mut found).unwrap();
            undone += u32::from(found[512..] != [byte; 3584]);
        }
        stop.store(true, Ordering::Relaxed);
        undone
    })
}

/// A folder with an image of 8 MiB.
fn image() -> TempDir {
    let dir = tempfile::Builder::new().prefix("millpond-e2e-").tempdir().unwrap();
    std::fs::File::create(dir.path().join(IMAGE)).unwrap().set_len(8 * MIB).unwrap();
    dir
}

#[test]
fn writes_of_sectors_are_merged_on_an_export_of_larger_blocks() {
    if clients(&["nbdkit"]) && fuse() {
        let dir = image();
        let origin = Origin::start(Kind::NbdkitBlocks, Transport::Unix, dir.path());
        write_parts(&origin.uri(""), &origin.image());
    }
}

#[test]
fn writes_of_sectors_are_merged_on_a_disk_of_larger_blocks() {
    let dir = image();
    if fuse()
        && let Some(disk) = Loop::with_blocks(&dir.path().join(IMAGE), 4096)
    {
        write_parts(&disk.device().to_string_lossy(), &dir.path().join(IMAGE));
    }
}

/// Two devices on a leaf that takes whole blocks of 4096 bytes only: whoever writes which sectors
/// of a block, by whichever transport of whichever device, puts back no other's.
fn write_parts(leaf: &str, image: &Path) {
    let table = format!("0 16384 linear {leaf} 0");
    let bed = TestBed::start_mounted(&[], &[("one", &table), ("two", &table)]);
    for (by_file, by_nbd) in [("one", "one"), ("one", "two")] {
        let undone = undone(&bed, by_file, by_nbd);
        assert_eq!(undone, 0, "of 400 completed writes: {by_file} by file, {by_nbd} by NBD");
    }
    // Each has bytes of two blocks for itself. Bytes of one sector are for one transport only.
    const ROUNDS: u8 = 200;
    let parts = [("one", 8192, 512), ("one", 9216, 512), ("two", 8704, 512), ("two", 9728, 4096)];
    std::thread::scope(|scope| {
        for (name, at, len) in parts {
            let mut client = bed.connect(name);
            scope.spawn(move || {
                for round in 1..=ROUNDS {
                    client.write(at, &vec![round; len]).unwrap();
                    let mut found = vec![0; len];
                    client.read(at, &mut found).unwrap();
                    assert!(found == vec![round; len], "{name}: {at}, round {round}");
                }
            });
        }
        for (at, len) in [(13_824, 100), (13_924, 412), (14_336, 2048)] {
            let options = OpenOptions::new().read(true).write(true).clone();
            let device = options.open(file(&bed, "two")).unwrap();
            scope.spawn(move || {
                for round in 1..=ROUNDS {
                    device.write_all_at(&vec![round; len], at).unwrap();
                    let mut found = vec![0; len];
                    device.read_exact_at(&mut found, at).unwrap();
                    assert!(found == vec![round; len], "file: {at}, round {round}");
                }
            });
        }
    });
    let mut client = bed.connect("one");
    client.write(65_536, &[5; 8192]).unwrap();
    client.write_zeroes(65_536 + 512, 4096).unwrap();
    client.trim(65_536 + 512, 1024).unwrap();
    client.write_fua(65_536 + 512, &[6; 512]).unwrap();
    client.flush().unwrap();
    let image = std::fs::read(image).unwrap();
    assert!(image[8192..16_384] == [ROUNDS; 8192]);
    let expected = [vec![5; 512], vec![6; 512], vec![0; 3584], vec![5; 3584]].concat();
    assert!(image[65_536..73_728] == expected);
}
