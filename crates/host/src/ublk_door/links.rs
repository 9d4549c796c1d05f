// SPDX-License-Identifier: Apache-2.0 OR MIT
//! Links to block devices, by the names of ours.
//!
//! ```text
//!   RUN_DIR/dev/NAME     always; the next daemon reads there which number a name had
//!   /dev/millpond/NAME   of root, unless another daemon has the name
//! ```
//!
//! Invariants
//! - HO-L1 At most one link of RUN_DIR leads to a number.
use std::io;
use std::os::unix::fs::symlink;
use std::path::{Path, PathBuf};

use ublk::disk_path;

/// Where links for everybody are.
const FOR_ALL: &str = "/dev/millpond";

fn dir(run_dir: &Path) -> PathBuf {
    run_dir.join("dev")
}

/// The number to which a link leads, if it is one of ours.
fn number_of(link: &Path) -> Option<u32> {
    let target = std::fs::read_link(link).ok()?;
    // Those that udev has made are relative.
    let name = target.strip_prefix("/dev").or_else(|_| target.strip_prefix("..")).ok()?;
    name.to_str()?.strip_prefix("ublkb")?.parse().ok()
}

fn links_in(dir: &Path) -> Vec<(PathBuf, u32)> {
    let Ok(entries) = std::fs::read_dir(dir) else { return Vec::new() };
    let link = |entry: io::Result<std::fs::DirEntry>| {
        let path = entry.ok()?.path();
        number_of(&path).map(|number| (path, number))
    };
    entries.filter_map(link).collect()
}

/// The names and numbers of a run directory.
pub(super) fn all(run_dir: &Path) -> Vec<(String, u32)> {
    let named = |(path, number): (PathBuf, u32)| {
        let name = path.file_name()?.to_str()?.to_owned();
        Some((name, number))
    };
    links_in(&dir(run_dir)).into_iter().filter_map(named).collect()
}

/// The names and numbers of an earlier daemon of this run directory. Links to what is not there any
/// more are removed.
pub(super) fn read(run_dir: &Path, is_there: impl Fn(u32) -> bool) -> Vec<(String, u32)> {
    let (kept, gone): (Vec<_>, Vec<_>) =
        all(run_dir).into_iter().partition(|(_, number)| is_there(*number));
    gone.iter().for_each(|(_, number)| remove(run_dir, *number));
    kept
}

/// Makes the links of a device; those of earlier names go. Returns where clients find it.
pub(super) fn make(run_dir: &Path, name: &str, number: u32) -> io::Result<PathBuf> {
    let (dir, target) = (dir(run_dir), disk_path(number));
    match std::fs::create_dir(&dir) {
        Err(e) if e.kind() != io::ErrorKind::AlreadyExists => return Err(e),
        _ => {}
    }
    remove(run_dir, number); // HO-L1
    let link = dir.join(name);
    replace(&link, &target)?;
    if rustix::process::geteuid().is_root()
        && let Err(e) = make_for_all(name, &target)
    {
        tracing::warn!("{FOR_ALL}/{name}: {e}: use {}", link.display());
    }
    Ok(link)
}

fn make_for_all(name: &str, target: &Path) -> io::Result<()> {
    let dir = Path::new(FOR_ALL);
    match std::fs::create_dir(dir) {
        Err(e) if e.kind() != io::ErrorKind::AlreadyExists => return Err(e),
        _ => {}
    }
    let for_all = dir.join(name);
    match std::fs::canonicalize(&for_all) {
        // The name of another daemon's device, or of an export that nbd-client has connected.
        Ok(other) if other != target => {
            Err(io::Error::other(format!("it leads to {}", other.display())))
        }
        _ => replace(&for_all, target),
    }
}

/// Puts a link in the place of one that is there.
fn replace(link: &Path, target: &Path) -> io::Result<()> {
    match std::fs::remove_file(link) {
        Err(e) if e.kind() != io::ErrorKind::NotFound => Err(e),
        _ => symlink(target, link),
    }
}

/// Lets udev look again at a block device that has another name.
pub(super) fn announce(number: u32) {
    // Without the right, or without udev, there is nothing to be renamed.
    let _ = std::fs::write(format!("/sys/class/block/ublkb{number}/uevent"), "change");
}

/// Removes the links to a number.
pub(super) fn remove(run_dir: &Path, number: u32) {
    for (path, found) in links_in(&dir(run_dir)) {
        if found == number {
            let _ = std::fs::remove_file(&path); // an error shows when another is made
            let for_all = path.file_name().map(|name| Path::new(FOR_ALL).join(name));
            if let Some(for_all) = for_all.filter(|link| number_of(link) == Some(number)) {
                let _ = std::fs::remove_file(for_all);
            }
        }
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn a_number_has_one_link_and_the_next_daemon_finds_it() {
        let tmp = tempfile::tempdir().unwrap();
        let run_dir = tmp.path();
        for (name, number) in [("a", 4_000_000), ("b", 4_000_001), ("c", 4_000_000)] {
            let dir = dir(run_dir);
            let _ = std::fs::create_dir(&dir);
            remove(run_dir, number);
            replace(&dir.join(name), &disk_path(number)).unwrap();
        }
        std::fs::write(dir(run_dir).join("file"), "").unwrap();
        symlink("../ublkb4000002", dir(run_dir).join("by udev")).unwrap();
        symlink("../sda", dir(run_dir).join("other")).unwrap();
        assert_eq!(number_of(&dir(run_dir).join("by udev")), Some(4_000_002));
        remove(run_dir, 4_000_002);
        let mut found = read(run_dir, |_| true);
        found.sort();
        assert_eq!(found, [("b".to_owned(), 4_000_001), ("c".to_owned(), 4_000_000)]);
        assert_eq!(read(run_dir, |number| number == 4_000_001).len(), 1);
        assert!(!dir(run_dir).join("c").is_symlink(), "its device is gone");
        remove(run_dir, 4_000_001);
        assert!(read(run_dir, |_| true).is_empty());
        assert!(dir(run_dir).join("file").exists());
    }
}
