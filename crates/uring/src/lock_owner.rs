// SPDX-License-Identifier: Apache-2.0 OR MIT
//! The process that uses a busy file or block device, as text for an error.
use std::fs;
use std::path::Path;

use rustix::fs::{FileType, Statx};

/// The possible user of the file of `stat`, for "in use, by ...".
pub(crate) fn of(stat: &Statx) -> String {
    if FileType::from_raw_mode(stat.stx_mode.into()) == FileType::BlockDevice {
        let (major, minor) = (stat.stx_rdev_major, stat.stx_rdev_minor);
        return of_block_device(Path::new(&format!("/sys/dev/block/{major}:{minor}")));
    }
    let locks = fs::read_to_string("/proc/locks").unwrap_or_default();
    let place = format!("{:02x}:{:02x}:{}", stat.stx_dev_major, stat.stx_dev_minor, stat.stx_ino);
    let process = locked_by(&locks, &place).and_then(|id| {
        let name = fs::read_to_string(format!("/proc/{id}/comm")).ok()?;
        Some((id, name.trim_end().to_owned()))
    });
    match process {
        Some((id, _)) if id == std::process::id() => "this process".to_owned(),
        Some((id, name)) => format!("process {id} ({name})"),
        None => "this or another process".to_owned(),
    }
}

/// The process that has locked the file `place` (device and inode), from the kernel's list.
fn locked_by(locks: &str, place: &str) -> Option<u32> {
    locks.lines().find_map(|line| {
        let words: Vec<&str> = line.split_whitespace().collect();
        match words[..] {
            [_, "FLOCK", _, _, process, at, ..] if at == place => process.parse().ok(),
            _ => None,
        }
    })
}

/// The kernel lists only its own devices that use a block device.
fn of_block_device(dir: &Path) -> String {
    let holders = fs::read_dir(dir.join("holders")).into_iter().flatten().flatten();
    let mut holders: Vec<String> =
        holders.map(|entry| entry.file_name().to_string_lossy().into_owned()).collect();
    holders.sort();
    if holders.is_empty() {
        "a mounted file system, swap, or this or another process".to_owned()
    } else {
        format!("the kernel's {}", holders.join(", "))
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn the_process_of_a_lock_is_found_by_device_and_inode() {
        let locks = "1: POSIX  ADVISORY  WRITE 17 fe:00:99 0 EOF\n\
                     2: FLOCK  ADVISORY  WRITE 23 fe:00:990 0 EOF\n\
                     2: -> FLOCK  ADVISORY  WRITE 24 fe:00:99 0 EOF\n\
                     3: FLOCK  ADVISORY  WRITE 25 fe:00:99 0 EOF\n";
        assert_eq!(locked_by(locks, "fe:00:99"), Some(25));
        assert_eq!(locked_by(locks, "fe:01:99"), None);
    }

    #[test]
    fn kernel_devices_on_a_disk_are_named() {
        let dir = std::env::temp_dir().join(format!("millpond-holders-{}", std::process::id()));
        fs::create_dir_all(dir.join("holders/dm-1")).unwrap();
        fs::create_dir_all(dir.join("holders/dm-0")).unwrap();
        assert_eq!(of_block_device(&dir), "the kernel's dm-0, dm-1");
        fs::remove_dir_all(&dir).unwrap();
        assert!(of_block_device(&dir).contains("a mounted file system"));
    }
}
