// SPDX-License-Identifier: Apache-2.0 OR MIT
//! The file or disk on which an open file or block device lies in the end.
//!
//! ```text
//!   /dev/loop1p1 ─ from sector 2048 ─▶ /dev/loop1 ─ from byte 4096 ─▶ /srv/disk.img
//! ```
//!
//! Whoever has the file and whoever has the loop device write to the same bytes, and the kernel
//! refuses neither: a loop device takes no lock of its file, and no claim of its disk.
use std::ffi::OsStr;
use std::fs;
use std::os::unix::ffi::OsStrExt;
use std::path::Path;

use block::Backing;
use rustix::fs::{FileType, Statx};

use crate::file::identity_of;
use crate::stat::{stat, type_of};

/// Where the kernel shows block devices by their numbers.
const DEVICES: &str = "/sys/dev/block";

/// Loop devices and partitions on each other are followed so far. Chosen: nobody has more.
const DEPTH_MAX: u32 = 16;

/// The backing of an open file whose identity is `identity`.
pub(crate) fn of(stat: &Statx, identity: &str) -> Backing {
    if type_of(stat) == FileType::BlockDevice {
        return of_device(Path::new(DEVICES), (stat.stx_rdev_major, stat.stx_rdev_minor));
    }
    Backing { file: identity.into(), start_bytes: 0 }
}

/// The same of the block device with this number; `devices` is [`DEVICES`].
fn of_device(devices: &Path, number: (u32, u32)) -> Backing {
    let (mut number, mut start_bytes) = (number, 0_u64);
    for _ in 0..DEPTH_MAX {
        let dir = devices.join(format!("{}:{}", number.0, number.1));
        let step = partition(&dir).or_else(|| loop_device(&dir));
        let Some((below, at)) = step else { break };
        start_bytes = start_bytes.saturating_add(at);
        match below {
            LowerDevice::Block(device) => number = device,
            LowerDevice::File(file) => return Backing { file: file.into(), start_bytes },
        }
    }
    Backing { file: format!("block {}:{}", number.0, number.1).into(), start_bytes }
}

/// What is directly below a block device.
enum LowerDevice {
    /// The number of another one.
    Block((u32, u32)),
    /// The identity of a file.
    File(String),
}

/// The disk of a partition, and where that begins there.
fn partition(dir: &Path) -> Option<(LowerDevice, u64)> {
    let sectors = text(&dir.join("partition")).and_then(|_| text(&dir.join("start")))?;
    let disk = text(&dir.join("../dev"))?;
    let (major, minor) = disk.split_once(':')?;
    let disk = (major.parse().ok()?, minor.parse().ok()?);
    Some((LowerDevice::Block(disk), sectors.parse::<u64>().ok()?.checked_mul(512)?))
}

/// The file or device below a loop device, and where it begins there.
fn loop_device(dir: &Path) -> Option<(LowerDevice, u64)> {
    let path = fs::read(dir.join("loop/backing_file")).ok()?;
    let path = path.strip_suffix(b"\n").unwrap_or(&path);
    let offset = text(&dir.join("loop/offset"))?.parse().ok()?;
    let below = match stat(Path::new(OsStr::from_bytes(path))) {
        Ok(stat) if type_of(&stat) == FileType::BlockDevice => {
            LowerDevice::Block((stat.stx_rdev_major, stat.stx_rdev_minor))
        }
        Ok(stat) => LowerDevice::File(identity_of(&stat)),
        // It was deleted, or lies in a file system that is not mounted here: then nobody can open
        // it by a path here, and other loop devices on it show the same.
        Err(_) => LowerDevice::File(format!("loop on {}", String::from_utf8_lossy(path))),
    };
    Some((below, offset))
}

fn text(path: &Path) -> Option<String> {
    Some(fs::read_to_string(path).ok()?.trim().to_owned())
}

#[cfg(test)]
mod tests {
    use std::path::PathBuf;

    use super::*;

    /// A folder like [`DEVICES`], removed at the end.
    struct Devices(PathBuf);

    impl Devices {
        fn new(test: &str) -> Devices {
            let name = format!("millpond-backing-{test}-{}", std::process::id());
            let devices = Devices(std::env::temp_dir().join(name));
            fs::create_dir_all(&devices.0).unwrap();
            devices
        }

        fn put(&self, path: &str, text: &str) -> PathBuf {
            let path = self.0.join(path);
            fs::create_dir_all(path.parent().unwrap()).unwrap();
            fs::write(&path, text).unwrap();
            path
        }

        /// A loop device over a file.
        fn add_loop(&self, number: &str, file: &Path, offset: u64) {
            self.put(&format!("{number}/dev"), &format!("{number}\n"));
            let file = format!("{}\n", file.display());
            self.put(&format!("{number}/loop/backing_file"), &file);
            self.put(&format!("{number}/loop/offset"), &format!("{offset}\n"));
            self.put(&format!("{number}/loop/sizelimit"), "0\n");
        }

        fn of(&self, minor: u32) -> (String, u64) {
            let Backing { file, start_bytes } = of_device(&self.0, (7, minor));
            (file.to_string(), start_bytes)
        }
    }

    impl Drop for Devices {
        fn drop(&mut self) {
            let _ = fs::remove_dir_all(&self.0);
        }
    }

    #[test]
    fn a_loop_device_lies_where_its_file_does_by_whatever_name() {
        let devices = Devices::new("loop");
        let file = devices.put("a disk.img", "x");
        let link = devices.0.join("link.img");
        fs::hard_link(&file, &link).unwrap();
        let found = stat(&file).unwrap();
        let file_itself = of(&found, &identity_of(&found));
        devices.add_loop("7:0", &file, 0);
        devices.add_loop("7:1", &link, 1 << 20);
        assert_eq!(devices.of(0), (file_itself.file.to_string(), 0));
        assert_eq!(devices.of(1), (file_itself.file.to_string(), 1 << 20));
        assert_eq!(devices.of(2), ("block 7:2".to_owned(), 0), "a disk is itself");
    }

    #[test]
    fn a_partition_of_a_loop_device_lies_on_the_file_too() {
        let devices = Devices::new("partition");
        let file = devices.put("disk.img", "x");
        devices.add_loop("7:0", &file, 512);
        devices.put("7:0/p1/partition", "1\n");
        devices.put("7:0/p1/start", "2048\n");
        std::os::unix::fs::symlink("7:0/p1", devices.0.join("7:9")).unwrap();
        assert_eq!(devices.of(9), (devices.of(0).0, 512 + 2048 * 512));
    }

    #[test]
    fn loop_devices_on_a_deleted_file_are_on_the_same_file() {
        let devices = Devices::new("deleted");
        let gone = devices.0.join("gone.img (deleted)");
        devices.add_loop("7:0", &gone, 0);
        devices.add_loop("7:1", &gone, 4096);
        let ((first, _), (second, at)) = (devices.of(0), devices.of(1));
        assert_eq!((first, 4096), (second, at));
    }
}
