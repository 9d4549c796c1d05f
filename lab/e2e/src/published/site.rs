// SPDX-License-Identifier: Apache-2.0 OR MIT
//! A daemon without devices, its mount, and a link called `dmsetup` that acts on it.
//!
//! ```text
//!   millpond-published-XXXX/
//!     dmsetup          link to the program
//!     run/             the daemon's folder
//!     mount/dev/...    the devices as files
//!     *.img            what stands for disks
//! ```
use std::fs::File;
use std::io::Write;
use std::path::{Path, PathBuf};
use std::process::Command;

use super::PATIENCE;
use crate::daemon::Daemon;
use crate::process::run;
use crate::undo::Undo;
use crate::{Result, clock};

/// See the module. Dropped, everything is gone.
#[derive(Debug)]
pub struct Site {
    // In the order in which they end.
    daemon: Daemon,
    mount: Undo,
    dir: PathBuf,
    remove_dir: Undo,
}

impl Site {
    /// Starts the daemon of `program` in a new folder in `base`.
    pub fn start(program: &Path, base: &Path) -> Result<Site> {
        let dir = tempfile::Builder::new().prefix("millpond-published-").tempdir_in(base);
        let dir = dir.map_err(|e| format!("folder in {}: {e}", base.display()))?;
        let remove_dir = Undo::folder(dir.path().to_owned());
        let dir = dir.keep();
        let mount = dir.join("mount");
        let made = std::fs::create_dir(&mount)
            .and_then(|()| std::os::unix::fs::symlink(program, dir.join("dmsetup")));
        made.map_err(|e| format!("{}: {e}", dir.display()))?;
        // A daemon that ends in order has unmounted by itself.
        let undo_mount = Undo::by(move || {
            let _ = Command::new("umount").arg("-lq").arg(&mount).output();
            let _ = Command::new("fusermount3").args(["-uzq", "--"]).arg(&mount).output();
        });
        let daemon = Daemon::start_with(program, &dir, "fuse = './mount'", &[])?;
        Ok(Site { daemon, mount: undo_mount, dir, remove_dir })
    }

    /// A path in the folder.
    pub fn path(&self, name: &str) -> PathBuf {
        self.dir.join(name)
    }

    /// What `/dev/mapper/NAME` is in the published lines.
    pub fn mapped(&self, name: &str) -> PathBuf {
        self.path("mount/dev/mapper").join(name)
    }

    /// What `/dev/NAME` is.
    pub fn leaf(&self, name: &str) -> PathBuf {
        self.path("mount/dev").join(name)
    }

    /// Makes the file of a disk whose blocks are all there, as those of a disk are: the file
    /// system's allocation is nobody's to measure.
    pub fn make_disk(&self, name: &str, bytes: u64) -> Result<()> {
        let path = self.path(name);
        let make = || {
            let mut file = File::create(&path)?;
            let zeroes = vec![0; 1 << 20];
            let mut left = bytes;
            while left > 0 {
                let n = left.min(zeroes.len() as u64);
                file.write_all(&zeroes[..n as usize])?;
                left -= n;
            }
            file.sync_all()
        };
        make().map_err(|e| format!("{}: {e}", path.display()))
    }

    /// Makes the file of a disk of which nobody measures anything.
    pub fn make_sparse_disk(&self, name: &str, bytes: u64) -> Result<()> {
        let path = self.path(name);
        let made = File::create(&path).and_then(|f| f.set_len(bytes));
        made.map_err(|e| format!("{}: {e}", path.display()))
    }

    /// Runs `dmsetup` with these words; it has to succeed.
    pub fn dmsetup(&self, args: &[&str]) -> Result<String> {
        let mut command = Command::new(self.path("dmsetup"));
        command.args(args).env("MILLPOND_RUN_DIR", self.path("run")).env("LC_ALL", "C.UTF-8");
        run(&mut command, PATIENCE)?.ok()
    }

    /// Runs `millpond` with these words; it has to succeed.
    pub fn millpond(&self, args: &[&str]) -> Result<String> {
        self.daemon.verb(args)
    }

    /// What `/sys/block/NAME` is.
    pub fn block(&self, name: &str) -> PathBuf {
        self.path("mount/sys/block").join(name)
    }

    /// `dmsetup create NAME --table LINE`
    pub fn create(&self, name: &str, table: &str) -> Result<()> {
        self.dmsetup(&["create", name, "--table", table]).map(drop)
    }

    /// `dmsetup remove NAME`, also just after the last close of its file.
    pub fn remove(&self, name: &str) -> Result<()> {
        self.dmsetup(&["remove", "--retry", name]).map(drop)
    }

    /// `time dmsetup ...`: seconds.
    pub fn time_dmsetup(&self, args: &[&str]) -> Result<f64> {
        let began = clock();
        self.dmsetup(args)?;
        Ok(clock() - began)
    }

    /// A number that a device tells of itself.
    pub fn attribute(&self, device: &str, name: &str) -> Result<u64> {
        self.daemon.attribute(device, name)
    }

    /// What the daemon has logged.
    pub fn log(&self) -> String {
        self.daemon.log()
    }

    /// The folder, for the files of clients.
    pub fn dir(&self) -> &Path {
        &self.dir
    }

    /// Ends in order: the daemon exits with 0 and has unmounted.
    pub fn end(self) -> Result<()> {
        let Site { daemon, mount, dir, remove_dir } = self;
        daemon.terminate()?;
        let path = dir.join("mount");
        let left = std::fs::read_dir(&path).map(Iterator::count);
        drop(mount);
        drop(remove_dir);
        match left {
            Ok(0) => Ok(()),
            other => Err(format!("{}: still mounted: {other:?}", path.display())),
        }
    }
}

/// The sum of all of a file.
pub(super) fn sha256(path: &Path) -> Result<String> {
    let sum = run(Command::new("sha256sum").arg("--").arg(path), PATIENCE)?.ok()?;
    // A backslash stands before the sum when the name holds one.
    let word = sum.split_whitespace().next().unwrap_or_default();
    Ok(word.trim_start_matches('\\').to_owned())
}
