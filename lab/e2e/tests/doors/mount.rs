// SPDX-License-Identifier: Apache-2.0 OR MIT
//! The mount of devices as files: where it may be, when it ends, and that no table uses its own
//! mount.

use std::fs::{File, OpenOptions};
use std::os::unix::fs::FileExt;
use std::path::{Path, PathBuf};
use std::process::Command;
use std::time::Duration;

use e2e::binary::{Build, millpond};
use e2e::mounted::{file, fuse};
use e2e::process::run;
use e2e::test_bed::{TestBed, clients};

const LIMIT: Duration = Duration::from_secs(120);
/// A linear device on 64 MiB of memory.
const MEMORY: (&str, &str) = ("lin", "0 131072 linear mem:64M 0");

fn open(path: &Path) -> File {
    OpenOptions::new().read(true).write(true).open(path).unwrap()
}

#[test]
fn the_mount_ends_with_the_daemon_despite_open_files() {
    if !fuse() {
        return;
    }
    let mut bed = TestBed::start_mounted(&[], &[MEMORY]);
    bed.terminate();
    assert_eq!(std::fs::read_dir(bed.mount()).unwrap().count(), 0);
    bed.start_again();
    let f = open(&file(&bed, "lin"));
    bed.terminate();
    assert!(f.write_at(&[1; 512], 0).is_err(), "its device is gone");
    assert_eq!(std::fs::read_dir(bed.mount()).unwrap().count(), 0);
    let log = std::fs::read_to_string(bed.path("daemon.log")).unwrap();
    assert!(log.contains("unmounted lazily"), "{log}");
}

#[test]
fn a_table_on_a_file_of_its_own_daemon_is_refused() {
    if !fuse() {
        return;
    }
    let bed = TestBed::start_mounted(&[], &[MEMORY]);
    let link = bed.path("link");
    std::os::unix::fs::symlink(file(&bed, "lin"), &link).unwrap();
    for path in [file(&bed, "lin"), link] {
        let table = format!("0 8 linear {} 0", path.display());
        let refused = bed.daemon().try_verb(&["create", "up", "--table", &table]).unwrap();
        assert_eq!(refused.code, 1);
        assert!(refused.stderr.contains("name the device"), "{}", refused.stderr);
    }
    // By its name it can.
    bed.verb(&["create", "up", "--table", "0 8 linear lin 0"]);
}

/// A mount made by a test.
struct Mount(PathBuf);

impl Mount {
    /// None, said aloud, where that is not allowed.
    fn new(args: &[&str], at: &Path) -> Option<Mount> {
        let ended = run(Command::new("mount").args(args).arg(at), LIMIT).unwrap();
        if ended.code != 0 {
            println!("skipped: needs root: {}", ended.complaint());
            return None;
        }
        Some(Mount(at.to_owned()))
    }
}

impl Drop for Mount {
    fn drop(&mut self) {
        let _ = run(Command::new("umount").arg("-l").arg(&self.0), LIMIT);
    }
}

#[test]
fn a_table_on_a_file_of_its_own_second_mount_is_refused() {
    if !fuse() {
        return;
    }
    let bed = TestBed::start_mounted(&[], &[MEMORY]);
    let (dev, again) = (bed.mount().join("dev"), bed.path("again"));
    std::fs::create_dir(&again).unwrap();
    let Some(_bind) = Mount::new(&["--bind", dev.to_str().unwrap()], &again) else { return };
    let table = format!("0 8 linear {} 0", again.join("lin").display());
    let refused = bed.daemon().try_verb(&["create", "up", "--table", &table]).unwrap();
    assert!(refused.stderr.contains("name the device"), "{}", refused.stderr);
}

#[test]
fn what_somebody_else_has_mounted_there_stays() {
    if !fuse() {
        return;
    }
    let mut bed = TestBed::start_mounted(&[], &[MEMORY]);
    let dir = bed.mount();
    let f = open(&file(&bed, "lin"));
    // Ours is gone from there, but for who has a file open.
    let gone = run(Command::new("umount").arg("-l").arg(&dir), LIMIT).unwrap();
    if gone.code != 0 {
        return println!("skipped: needs root: {}", gone.complaint());
    }
    let Some(_theirs) = Mount::new(&["-t", "tmpfs", "tmpfs"], &dir) else { return };
    std::fs::write(dir.join("precious"), "1").unwrap();
    bed.terminate();
    assert!(dir.join("precious").exists());
    drop(f);
}

#[test]
fn mounts_of_a_killed_daemon_are_removed_through_a_link_too() {
    if !fuse() {
        return;
    }
    let mut bed = TestBed::start_mounted(&[], &[MEMORY]);
    let link = bed.path("link");
    std::os::unix::fs::symlink(bed.mount(), &link).unwrap();
    bed.kill();
    let mut command = Command::new(millpond(Build::Workspace).unwrap());
    command.args(["run", "--fuse"]).arg(&link).args(["--table", MEMORY.1, "--", "true"]);
    let ended = run(&mut command, LIMIT).unwrap();
    assert_eq!(ended.code, 0, "{}", ended.complaint());
}

#[test]
fn a_bad_mount_point_is_refused_with_its_name() {
    if !fuse() {
        return;
    }
    let bed = TestBed::start_mounted(&[], &[]);
    let program = millpond(Build::Workspace).unwrap();
    for (dir, code, why) in [
        (bed.mount(), 4, "another daemon"),
        (bed.dir().to_owned(), 1, "not empty"),
        (bed.path("missing"), 3, "empty directory"),
        (bed.path("millpond.toml"), 1, "no directory"),
    ] {
        let mut daemon = Command::new(&program);
        daemon.arg("--run-dir").arg(bed.path("r")).args(["daemon", "--fuse"]).arg(&dir);
        let ended = run(&mut daemon, LIMIT).unwrap();
        assert_eq!(ended.code, code, "{}", ended.complaint());
        let named = ended.stderr.contains(&*dir.to_string_lossy()) && ended.stderr.contains(why);
        assert!(named, "{}", ended.stderr);
    }
}

#[test]
fn run_gives_its_command_the_device_as_a_file() {
    if !fuse() || !clients(&["mkfs.ext4"]) {
        return;
    }
    let dir = tempfile::tempdir().unwrap();
    let mount = dir.path().join("mount");
    std::fs::create_dir(&mount).unwrap();
    let program = millpond(Build::Workspace).unwrap();
    let script = "set -e; mkfs.ext4 -q -F \"$MILLPOND_DEVICE\"; e2fsck -fn \"$MILLPOND_DEVICE\"; \
                  echo \"$MILLPOND_DEVICE\"; exit 7";
    let mut command = Command::new(program);
    command.args(["run", "--table", MEMORY.1, "--name", "disk", "--fuse"]).arg(&mount);
    let ended = run(command.args(["--", "sh", "-c", script]), LIMIT).unwrap();
    assert_eq!(ended.code, 7, "{}", ended.complaint());
    assert!(ended.stdout.contains(&*mount.join("dev/disk").to_string_lossy()), "{}", ended.stdout);
    assert_eq!(std::fs::read_dir(&mount).unwrap().count(), 0, "unmounted");
}
