// SPDX-License-Identifier: Apache-2.0 OR MIT
//! Requests of 512 bytes on devices of larger blocks, by all doors at once. Found by an attack
//! from outside: a 512-byte write by a file undid completed NBD writes of the rest of the block,
//! and clients that do not ask for block sizes could not read 1 KiB from a cache.

use std::fs::OpenOptions;
use std::os::unix::fs::FileExt;
use std::process::Command;
use std::sync::atomic::{AtomicBool, Ordering};
use std::time::Duration;

use e2e::mounted::{file, fuse};
use e2e::pond::{Pond, clients};
use e2e::process::run;

const MIB: u64 = 1 << 20;
const CACHED: &str = "0 131072 writecache s ./origin.img ./cache.img 4096 0";
const LINEAR: &str = "0 131072 linear wc 0";

/// A cache of 4096-byte blocks, and a linear device on it.
fn pond(mounted: bool) -> Pond {
    let files = [("origin.img", 64 * MIB), ("cache.img", 32 * MIB)];
    let devices = [("wc", CACHED), ("lin", LINEAR)];
    if mounted { Pond::start_mounted(&files, &devices) } else { Pond::start(&files, &devices) }
}

/// As the kernel's client when ext4 is mounted: no block sizes asked for, 1 KiB at sector 2.
#[test]
fn a_client_that_asks_for_no_block_sizes_uses_sectors() {
    let pond = pond(false);
    let mut client = pond.connect("wc");
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
    pond.connect("lin").read(0, &mut all).unwrap();
    let pieces: Vec<u8> = all.chunks(512).map(|sector| sector[0]).collect();
    assert_eq!(pieces[..10], [1, 0, 2, 2, 1, 1, 1, 3, 3, 1]);
    assert!(all.chunks(512).all(|sector| sector.iter().all(|b| *b == sector[0])));
    if clients(&["qemu-io"]) {
        let mut command = Command::new("qemu-io");
        command.args(["-f", "raw", "-t", "none", &pond.uri("wc")]);
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
fn no_completed_write_is_undone_by_a_write_of_sectors() {
    if !fuse() {
        return;
    }
    let pond = pond(true);
    for (by_file, by_nbd) in [("wc", "wc"), ("lin", "wc"), ("wc", "lin")] {
        let device = OpenOptions::new().write(true).open(file(&pond, by_file)).unwrap();
        let stop = AtomicBool::new(false);
        let undone = std::thread::scope(|scope| {
            scope.spawn(|| {
                while !stop.load(Ordering::Relaxed) {
                    device.write_all_at(&[0xAA; 512], 0).unwrap();
                }
            });
            let mut client = pond.connect(by_nbd);
            let mut undone = 0;
            for round in 0..400_u32 {
                let byte = (round % 100) as u8;
                client.write(0, &[byte; 4096]).unwrap();
                let mut found = vec![0; 4096];
                client.read(0, &mut found).unwrap();
                undone += usize::from(found[512..] != [byte; 3584]);
            }
            stop.store(true, Ordering::Relaxed);
            undone
        });
        assert_eq!(undone, 0, "of 400 completed writes: {by_file} by file, {by_nbd} by NBD");
    }
}
