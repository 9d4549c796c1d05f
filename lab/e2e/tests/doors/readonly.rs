// SPDX-License-Identifier: Apache-2.0 OR MIT
//! Devices that clients may only read, and devices that a door does not show.

use std::fs::{File, OpenOptions};
use std::os::unix::fs::{FileExt, MetadataExt};
use std::process::Command;
use std::time::Duration;

use e2e::mounted::{file, fuse};
use e2e::process::run;
use e2e::test_bed::{TestBed, clients};
use nbd::wire::ExportFlags;
use rustix::fs::{FallocateFlags, fallocate};
use rustix::io::Errno;

const LIN: (&str, &str) = ("lin", "0 131072 linear mem:64M 0");
/// A device that the configuration makes read-only, and one that no door shows.
const CONFIGURED: &str = "fuse = './mount'\n\
     [[device]]\nname = 'fixed'\nreadonly = true\ntable = '0 8 linear mem:1M 0'\n\
     [[device]]\nname = 'below'\ndoors = []\ntable = '0 8 linear mem:2M 0'\n\
     [[device]]\nname = 'by_nbd'\ndoors = ['nbd']\ntable = '0 8 linear below 0'\n\
     [[device]]\nname = 'by_file'\ndoors = ['fuse']\ntable = '0 8 linear below 0'\n";

fn set(bed: &TestBed, device: &str, attribute: &str, value: &str) {
    bed.daemon().verb(&["set", device, attribute, value]).unwrap();
}

/// The errno of a request that failed over NBD.
fn errno<T: std::fmt::Debug>(result: std::io::Result<T>) -> String {
    result.unwrap_err().to_string()
}

#[test]
fn a_read_only_export_refuses_every_change_with_eperm() {
    let bed = TestBed::start(&[], &[LIN]);
    bed.connect("lin").write(0, &[7; 4096]).unwrap();
    set(&bed, "lin", "ro", "1");
    let mut client = bed.connect("lin");
    let flags = ExportFlags::from_bits(client.flags()).unwrap();
    assert!(flags.contains(ExportFlags::READ_ONLY), "{flags:?}");
    let writes = ExportFlags::TRIM | ExportFlags::WRITE_ZEROES | ExportFlags::FUA;
    assert!(!flags.intersects(writes), "{flags:?}");
    for refused in [
        errno(client.write(0, &[1; 512])),
        errno(client.write_fua(0, &[1; 512])),
        errno(client.trim(0, 4096)),
        errno(client.write_zeroes(0, 4096)),
    ] {
        assert!(refused.ends_with("error 1"), "{refused}");
    }
    client.flush().unwrap();
    let mut data = [0; 4096];
    client.read(0, &mut data).unwrap();
    assert_eq!(data, [7; 4096]);
    assert!(bed.daemon().verb(&["info", "lin"]).unwrap().contains("READ-ONLY"));
}

#[test]
fn ro_takes_effect_in_sessions_that_are_open() {
    let bed = TestBed::start(&[], &[LIN]);
    let mut client = bed.connect("lin");
    client.write(0, &[7; 512]).unwrap();
    set(&bed, "lin", "ro", "1");
    assert!(errno(client.write(0, &[8; 512])).ends_with("error 1"));
    set(&bed, "lin", "ro", "0");
    client.write(0, &[9; 512]).unwrap();
}

#[test]
fn qemu_io_opens_a_read_only_export_only_to_read() {
    if !clients(&["qemu-io"]) {
        return;
    }
    let bed = TestBed::start(&[], &[LIN]);
    set(&bed, "lin", "ro", "1");
    let qemu_io = |options: &[&str], what: &str| {
        let mut command = Command::new("qemu-io");
        command.args(["-f", "raw"]).args(options).arg(bed.uri("lin")).args(["-c", what]);
        run(&mut command, Duration::from_secs(60)).unwrap()
    };
    let complaint = qemu_io(&[], "write 0 4096").complaint();
    assert!(complaint.contains("Permission denied"), "{complaint}");
    qemu_io(&["-r"], "read -P 0 0 4096").ok().unwrap();
}

#[test]
fn the_file_of_a_read_only_device_refuses_writers_with_erofs() {
    if !fuse() {
        return;
    }
    let bed = TestBed::start_mounted(&[], &[LIN]);
    let path = file(&bed, "lin");
    let early = OpenOptions::new().read(true).write(true).open(&path).unwrap();
    early.write_all_at(&[7; 4096], 0).unwrap();
    set(&bed, "lin", "ro", "1");
    let erofs = Some(Errno::ROFS.raw_os_error());
    // The file that was open before, and new ones.
    assert_eq!(early.write_all_at(&[8; 4096], 0).unwrap_err().raw_os_error(), erofs);
    let punch = FallocateFlags::PUNCH_HOLE | FallocateFlags::KEEP_SIZE;
    assert_eq!(fallocate(&early, punch, 0, 4096).unwrap_err(), Errno::ROFS);
    let opened = OpenOptions::new().write(true).open(&path);
    assert_eq!(opened.unwrap_err().raw_os_error(), erofs);
    let mut data = [0; 4096];
    File::open(&path).unwrap().read_exact_at(&mut data, 0).unwrap();
    assert_eq!(data, [7; 4096]);
    // The attribute as a file, as the kernel has it.
    let ro = bed.mount().join("sys/block/lin/ro");
    assert_eq!(std::fs::read_to_string(&ro).unwrap().trim(), "1");
    std::fs::write(&ro, "0").unwrap();
    early.write_all_at(&[9; 4096], 0).unwrap();
}

#[test]
fn a_device_is_shown_by_the_doors_that_the_config_names() {
    if !fuse() {
        return;
    }
    let bed = TestBed::start_with(CONFIGURED, &[], &[]);
    let connect = |name: &str| bed.daemon().connect(name).map(drop);
    let has_file = |name: &str| file(&bed, name).exists();
    for (name, by_nbd, by_file) in [
        ("fixed", true, true),
        ("below", false, false),
        ("by_nbd", true, false),
        ("by_file", false, true),
    ] {
        assert_eq!((connect(name).is_ok(), has_file(name)), (by_nbd, by_file), "{name}");
    }
    let refused = connect("below").unwrap_err();
    assert!(refused.contains("`doors`"), "{refused}");
    // A device above writes to a device without a door.
    bed.connect("by_nbd").write(0, &[7; 512]).unwrap();
    let mode = file(&bed, "fixed").metadata().unwrap().mode();
    assert_eq!(mode & 0o777, 0o400);
    set(&bed, "below", "doors", "all");
    assert!(connect("below").is_ok() && has_file("below"));
}
