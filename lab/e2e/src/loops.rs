// SPDX-License-Identifier: Apache-2.0 OR MIT
//! Loop devices and mounted file systems, for tests; taken down when dropped.
use std::path::{Path, PathBuf};
use std::process::Command;
use std::time::Duration;

use crate::process::run;
use crate::{Result, clock, pause};

const LIMIT: Duration = Duration::from_secs(120);
/// Longest time that a mount is busy without a client.
const BUSY: Duration = Duration::from_secs(10);

/// A loop device.
#[derive(Debug)]
pub struct Loop(PathBuf);

impl Loop {
    /// On a file. None, said aloud, where there are no loop devices or this is not root.
    pub fn on(file: &Path) -> Option<Loop> {
        Loop::with_blocks(file, 512)
    }

    /// The same with logical blocks of so many bytes.
    pub fn with_blocks(file: &Path, bytes: u32) -> Option<Loop> {
        Loop::with(file, &["--sector-size", &bytes.to_string()])
    }

    /// The same on `len` bytes of a file from byte `at` on.
    pub fn of_part(file: &Path, at: u64, len: u64) -> Option<Loop> {
        Loop::with(file, &["--offset", &at.to_string(), "--sizelimit", &len.to_string()])
    }

    fn with(file: &Path, options: &[&str]) -> Option<Loop> {
        let mut losetup = Command::new("losetup");
        losetup.args(["--find", "--show", "--direct-io=on"]).args(options).arg(file);
        let ended = run(&mut losetup, LIMIT).unwrap_or_else(|e| panic!("{e}"));
        if ended.code != 0 {
            println!("skipped: needs loop devices, and root: {}", ended.complaint());
            return None;
        }
        Some(Loop(ended.stdout.trim().into()))
    }

    /// The device.
    pub fn device(&self) -> &Path {
        &self.0
    }
}

impl Drop for Loop {
    fn drop(&mut self) {
        let _ = run(Command::new("losetup").arg("-d").arg(&self.0), LIMIT);
    }
}

/// A mounted file system.
#[derive(Debug)]
pub struct Mounted(Option<PathBuf>);

impl Mounted {
    /// Mounts a device, or an image with `options` that say so.
    pub fn new(options: &[&str], device: &Path, at: &Path) -> Result<Mounted> {
        let mut mount = Command::new("mount");
        run(mount.args(options).arg(device).arg(at), LIMIT)?.ok()?;
        Ok(Mounted(Some(at.to_owned())))
    }

    /// Unmounts it. A process that another thread of this one is starting has our open files until
    /// it executes its program, and the mount is busy for so long.
    pub fn unmount(mut self) -> Result<()> {
        let at = self.0.take().expect("it is taken here only");
        let give_up = clock() + BUSY.as_secs_f64();
        loop {
            let ended = run(Command::new("umount").arg(&at), LIMIT)?;
            if clock() > give_up || !ended.stderr.contains("target is busy") {
                return ended.ok().map(drop);
            }
            pause(Duration::from_millis(20));
        }
    }
}

impl Drop for Mounted {
    fn drop(&mut self) {
        if let Some(at) = self.0.take() {
            let _ = run(Command::new("umount").arg("-l").arg(at), LIMIT);
        }
    }
}
