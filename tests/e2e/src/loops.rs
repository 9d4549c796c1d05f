// SPDX-License-Identifier: Apache-2.0 OR MIT
//! Loop devices and mounted file systems, for tests; taken down when dropped.
use std::path::{Path, PathBuf};
use std::process::Command;
use std::time::Duration;

use crate::Result;
use crate::process::run;

const LIMIT: Duration = Duration::from_secs(120);

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
        let mut losetup = Command::new("losetup");
        losetup.args(["--find", "--show", "--direct-io=on"]);
        losetup.args(["--sector-size", &bytes.to_string()]).arg(file);
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

    /// Unmounts it.
    pub fn unmount(mut self) -> Result<()> {
        let at = self.0.take().expect("it is taken here only");
        run(Command::new("umount").arg(at), LIMIT)?.ok().map(drop)
    }
}

impl Drop for Mounted {
    fn drop(&mut self) {
        if let Some(at) = self.0.take() {
            let _ = run(Command::new("umount").arg("-l").arg(at), LIMIT);
        }
    }
}
