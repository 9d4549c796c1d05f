// SPDX-License-Identifier: Apache-2.0 OR MIT
//! The process that uses a busy file or block device: as text for an error, and whether it runs.
use std::fs;
use std::path::Path;

use rustix::fs::{FileType, Statx};
use rustix::io::Errno;
use rustix::process::{Pid, test_kill_process};

use crate::stat::{stat, type_of};

/// Who has a busy file or block device, as far as the kernel says it.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum LockOwner {
    /// A process that runs.
    Running,
    /// One that has ended: the lock falls with its last request (UR-U10).
    Ended,
    /// A block device, or a file whose lock is a process's that is not visible here.
    Unknown,
}

impl LockOwner {
    /// The owner of the lock of `path`. May wait for its file system.
    pub fn of(path: &Path) -> LockOwner {
        match stat(path).ok().filter(|stat| !is_block_device(stat)).and_then(|stat| holder(&stat)) {
            Some(Holder { has_ended: true, .. }) => LockOwner::Ended,
            Some(_) => LockOwner::Running,
            None => LockOwner::Unknown,
        }
    }
}

/// A process that has a lock.
struct Holder {
    id: u32,
    /// Unknown where /proc hides the processes of other users.
    name: Option<String>,
    has_ended: bool,
}

fn is_block_device(stat: &Statx) -> bool {
    type_of(stat) == FileType::BlockDevice
}

fn holder(stat: &Statx) -> Option<Holder> {
    let locks = fs::read_to_string("/proc/locks").unwrap_or_default();
    let place = format!("{:02x}:{:02x}:{}", stat.stx_dev_major, stat.stx_dev_minor, stat.stx_ino);
    let id = locked_by(&locks, &place)?;
    let stat = fs::read_to_string(format!("/proc/{id}/stat")).unwrap_or_default();
    let (name, has_ended) = match name_and_end(&stat) {
        Some((name, has_ended)) => (Some(name.to_owned()), has_ended),
        None => (None, is_gone(id)),
    };
    Some(Holder { id, name, has_ended })
}

/// The name in a process's `stat`, and whether the process has ended: it may wait for its parent.
fn name_and_end(stat: &str) -> Option<(&str, bool)> {
    let (name, rest) = stat.rsplit_once(") ")?;
    let (_, name) = name.split_once(" (")?;
    Some((name, rest.starts_with(['Z', 'X'])))
}

/// Whether there is no process of this number.
fn is_gone(id: u32) -> bool {
    let id = i32::try_from(id).ok().and_then(Pid::from_raw);
    id.is_none_or(|id| test_kill_process(id) == Err(Errno::SRCH))
}

/// The possible user of the file of `stat`, for "in use, by ...".
pub(crate) fn of(stat: &Statx) -> String {
    if is_block_device(stat) {
        let (major, minor) = (stat.stx_rdev_major, stat.stx_rdev_minor);
        return of_block_device(Path::new(&format!("/sys/dev/block/{major}:{minor}")));
    }
    match holder(stat) {
        Some(Holder { id, .. }) if id == std::process::id() => "this process".to_owned(),
        Some(Holder { id, has_ended: true, .. }) => {
            format!("process {id}, which has ended, but its last requests have not")
        }
        Some(Holder { id, name: Some(name), .. }) => format!("process {id} ({name})"),
        Some(Holder { id, .. }) => format!("process {id}"),
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
    fn a_process_that_waits_for_its_parent_has_ended() {
        assert_eq!(name_and_end("17 (mill) pond) S 1 17"), Some(("mill) pond", false)));
        assert_eq!(name_and_end("17 (millpond) Z 1 17"), Some(("millpond", true)));
        assert_eq!(name_and_end(""), None);
        assert!(!is_gone(std::process::id()));
        assert!(is_gone(u32::MAX), "no process has such a number");
    }

    #[test]
    fn the_owner_of_a_lock_is_told_from_one_that_has_ended() {
        let path = std::env::temp_dir().join(format!("millpond-owner-{}", std::process::id()));
        let file = fs::File::create(&path).unwrap();
        assert_eq!(LockOwner::of(&path), LockOwner::Unknown);
        let lock = rustix::fs::FlockOperation::NonBlockingLockExclusive;
        rustix::fs::flock(&file, lock).unwrap();
        assert_eq!(LockOwner::of(&path), LockOwner::Running);
        drop(file);
        // A process that locks it, and leaves it to another one when it ends.
        let script = "exec 9>>\"$0\"; flock -w 60 9 || exit 1; sleep 60 >/dev/null 2>&1 & echo $!";
        let mut child = std::process::Command::new("sh");
        let out = child.args(["-c", script]).arg(&path).output();
        let heir = String::from_utf8(out.unwrap().stdout).unwrap();
        // The kernel lists the locks of processes that have ended to the first namespace only.
        let namespace = fs::read_link("/proc/self/ns/pid").unwrap();
        let is_first = namespace.to_str() == Some("pid:[4026531836]");
        let expected = if is_first { LockOwner::Ended } else { LockOwner::Unknown };
        assert_eq!(LockOwner::of(&path), expected);
        let heir = rustix::process::Pid::from_raw(heir.trim().parse().unwrap()).unwrap();
        rustix::process::kill_process(heir, rustix::process::Signal::KILL).unwrap();
        fs::remove_file(&path).unwrap();
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
