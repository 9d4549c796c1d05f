// SPDX-License-Identifier: Apache-2.0 OR MIT
//! Loop devices and mounts that do not outlive what made them.
use std::path::{Path, PathBuf};
use std::process::Command;
use std::time::Duration;

use super::PATIENCE;
use crate::process::{missing, run};
use crate::undo::Undo;
use crate::{Result, clock, pause};

/// Longest wait until the kernel has let go of a loop device.
const DETACH_SECONDS: f64 = 60.0;

/// Runs a program that has to succeed.
pub(super) fn ok(program: &str, args: &[&Path]) -> Result<String> {
    run(Command::new(program).args(args), PATIENCE)?.ok()
}

/// A block device made of a file.
#[derive(Debug)]
pub(super) struct Loop {
    device: PathBuf,
    file: PathBuf,
    _undo: Undo,
}

impl Loop {
    pub(super) fn attach(file: &Path) -> Result<Loop> {
        let args = ["--find", "--show", "--direct-io=on"].map(Path::new);
        let device = ok("losetup", &[args[0], args[1], args[2], file])?;
        let device = PathBuf::from(device.trim());
        let (ours, of) = (device.clone(), file.to_owned());
        let undo = Undo::by(move || {
            if is_attached(&ours, &of) {
                let _ = run(Command::new("losetup").arg("-d").arg(&ours), PATIENCE);
            }
        });
        Ok(Loop { device, file: file.into(), _undo: undo })
    }

    pub(super) fn device(&self) -> &Path {
        &self.device
    }

    /// Detaches, and waits until the kernel has done so.
    pub(super) fn detach(self) -> Result<()> {
        ok("losetup", &[Path::new("-d"), &self.device])?;
        let give_up = clock() + DETACH_SECONDS;
        while is_attached(&self.device, &self.file) {
            if clock() > give_up {
                return Err(format!("{}: not detached", self.device.display()));
            }
            pause(Duration::from_millis(5));
        }
        Ok(())
    }
}

/// Whether a loop device has this file: another one's device is not ours to touch.
fn is_attached(device: &Path, file: &Path) -> bool {
    let name = device.file_name().unwrap_or_default();
    let backing = Path::new("/sys/block").join(name).join("loop/backing_file");
    let Ok(backing) = std::fs::read_to_string(backing) else { return false };
    // Below a mount that is unmounted lazily the path begins at that mount.
    file.to_string_lossy().ends_with(backing.trim_end())
}

/// A mounted file system.
#[derive(Debug)]
pub(super) struct Mount {
    place: PathBuf,
    _undo: Undo,
}

impl Mount {
    pub(super) fn at(device: &Path, place: &Path) -> Result<Mount> {
        let ours = place.to_owned();
        let undo = Undo::by(move || {
            if is_mounted(&ours) {
                let umount = |args: &[&str]| {
                    run(Command::new("umount").args(args).arg(&ours), PATIENCE)
                        .is_ok_and(|e| e.code == 0)
                };
                let _ = umount(&[]) || umount(&["-l"]);
            }
        });
        ok("mount", &[device, place])?;
        Ok(Mount { place: place.to_owned(), _undo: undo })
    }

    /// Unmounts: everything is on the device then.
    pub(super) fn unmount(self) -> Result<()> {
        ok("umount", &[&self.place]).map(drop)
    }
}

fn is_mounted(place: &Path) -> bool {
    let mounts = std::fs::read_to_string("/proc/self/mounts").unwrap_or_default();
    // Our folders have names that nothing in this list is escaped in.
    mounts.lines().any(|l| l.split(' ').nth(1).is_some_and(|p| Path::new(p) == place))
}

/// Why no block device can be made of a file here and mounted; none where it can.
pub(super) fn obstacle(file_system: &str, dir: &Path, programs: &[&str]) -> Option<String> {
    let missing = missing(&[&["losetup", "mount", "umount"], programs].concat());
    if !missing.is_empty() {
        return Some(format!("needs {} (scripts/setup.sh installs it)", missing.join(", ")));
    }
    if !rustix::process::geteuid().is_root() {
        return Some("needs root, for losetup and mount".into());
    }
    let known = || {
        let list = std::fs::read_to_string("/proc/filesystems").unwrap_or_default();
        list.lines().any(|l| l.trim() == file_system)
    };
    if !known() {
        let _ = Command::new("modprobe").args(["-q", file_system]).output();
        if !known() {
            return Some(format!("needs a kernel with {file_system}"));
        }
    }
    let tried = tempfile::Builder::new()
        .prefix("millpond-published-probe-")
        .tempfile_in(dir)
        .and_then(|probe| probe.as_file().set_len(1 << 20).map(|()| probe))
        .map_err(|e| format!("{}: {e}", dir.display()))
        .and_then(|probe| Loop::attach(probe.path())?.detach());
    tried.err().map(|e| format!("needs loop devices: {e}"))
}
