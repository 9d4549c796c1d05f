// SPDX-License-Identifier: Apache-2.0 OR MIT
//! Devices as files, for tests.
use std::fs::OpenOptions;
use std::path::PathBuf;

use crate::test_bed::{TestBed, clients};

/// Whether file systems can be mounted through FUSE here; says what is skipped when not.
pub fn fuse() -> bool {
    let device = OpenOptions::new().read(true).write(true).open("/dev/fuse");
    if let Err(e) = &device {
        println!("skipped: needs /dev/fuse, readable and writable: {e}");
    }
    let root = rustix::process::geteuid().is_root();
    device.is_ok() && (root || clients(&["fusermount3"]))
}

/// The file of a mapped device.
pub fn file(bed: &TestBed, name: &str) -> PathBuf {
    bed.mount().join("dev/mapper").join(name)
}
