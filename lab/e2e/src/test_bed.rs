// SPDX-License-Identifier: Apache-2.0 OR MIT
//! A folder with files of devices and a daemon on them: what every test begins with.
use std::fs::File;
use std::path::{Path, PathBuf};
use std::process::Command;
use std::time::Duration;

use tempfile::TempDir;

use crate::binary::{Build, millpond};
use crate::client::Client;
use crate::daemon::{Daemon, Device, Variables, set_environment};
use crate::process::missing;
use crate::{clock, pause};

/// The folder for the devices as files.
const MOUNT: &str = "mount";

/// A daemon in a folder of its own, both gone when it is dropped. Its methods panic on failure:
/// it is for tests.
#[derive(Debug)]
pub struct TestBed {
    daemon: Option<Daemon>,
    program: PathBuf,
    mounted: bool,
    dir: TempDir,
}

/// Whether these clients are there; says what is skipped when not.
pub fn clients(programs: &[&str]) -> bool {
    let missing = missing(programs);
    if !missing.is_empty() {
        println!("skipped: needs {} (scripts/setup.sh installs it)", missing.join(", "));
    }
    missing.is_empty()
}

impl TestBed {
    /// Makes files (name, bytes) and starts a daemon with these devices.
    pub fn start(files: &[(&str, u64)], devices: &[Device<'_>]) -> TestBed {
        TestBed::start_with("", files, devices)
    }

    /// The same, with the devices as files below [`TestBed::mount`].
    pub fn start_mounted(files: &[(&str, u64)], devices: &[Device<'_>]) -> TestBed {
        TestBed::start_with("fuse = './mount'", files, devices)
    }

    /// The same with options as the config has them.
    pub fn start_with(options: &str, files: &[(&str, u64)], devices: &[Device<'_>]) -> TestBed {
        TestBed::start_in(&[], options, files, devices)
    }

    /// The same, of daemons and verbs with these variables.
    pub fn start_in(
        variables: &Variables,
        options: &str,
        files: &[(&str, u64)],
        devices: &[Device<'_>],
    ) -> TestBed {
        let program = millpond(Build::Workspace).unwrap_or_else(|e| panic!("{e}"));
        let dir = tempfile::Builder::new().prefix("millpond-e2e-").tempdir();
        let dir = dir.expect("a temporary folder can be made");
        for (name, bytes) in files {
            make_file(&dir.path().join(name), *bytes);
        }
        let mounted = options.contains("fuse");
        if mounted {
            std::fs::create_dir(dir.path().join(MOUNT)).expect("the folder is new");
        }
        set_environment(dir.path(), variables).expect("the folder is new");
        let daemon = Daemon::start_with(&program, dir.path(), options, devices);
        let daemon = Some(daemon.unwrap_or_else(|e| panic!("{e}")));
        TestBed { daemon, program, mounted, dir }
    }

    /// A write cache `wc`: `origin.img` and `cache.img` of these sizes, with these options.
    pub fn with_cache(origin_bytes: u64, cache_bytes: u64, options: &str) -> TestBed {
        TestBed::with_cache_in("s", origin_bytes, cache_bytes, options)
    }

    /// The same in mode `s`, or `p`: with the cache mapped as persistent memory.
    pub fn with_cache_in(
        mode: &str,
        origin_bytes: u64,
        cache_bytes: u64,
        options: &str,
    ) -> TestBed {
        let words = options.split_whitespace().count();
        let table = format!(
            "0 {} writecache {mode} ./origin.img ./cache.img 4096 {words} {options}",
            origin_bytes / 512
        );
        let files = [("origin.img", origin_bytes), ("cache.img", cache_bytes)];
        TestBed::start(&files, &[("wc", &table)])
    }

    /// The daemon.
    pub fn daemon(&self) -> &Daemon {
        self.daemon.as_ref().expect("the daemon was started")
    }

    /// The folder.
    pub fn dir(&self) -> &Path {
        self.dir.path()
    }

    /// Where the devices are as files, if they are.
    pub fn mount(&self) -> PathBuf {
        self.path(MOUNT)
    }

    /// A file in it.
    pub fn path(&self, name: &str) -> PathBuf {
        self.dir.path().join(name)
    }

    /// Makes another file.
    pub fn make_file(&self, name: &str, bytes: u64) {
        make_file(&self.path(name), bytes);
    }

    /// The export of a device.
    pub fn uri(&self, device: &str) -> String {
        self.daemon().uri(device)
    }

    /// A connection to a device.
    pub fn connect(&self, device: &str) -> Client {
        self.daemon().connect(device).unwrap_or_else(|e| panic!("{e}"))
    }

    /// Runs a verb that has to succeed.
    pub fn verb(&self, args: &[&str]) -> String {
        self.daemon().verb(args).unwrap_or_else(|e| panic!("{e}\n{}", self.daemon().log()))
    }

    /// A number that a device tells of itself.
    pub fn attribute(&self, device: &str, name: &str) -> u64 {
        self.daemon().attribute(device, name).unwrap_or_else(|e| panic!("{e}"))
    }

    /// Waits until a client has written something that the write cache `wc` has yet to write back.
    pub fn wait_until_dirty(&self) {
        let give_up = clock() + 30.0;
        while self.attribute("wc", "dirty_blocks") == 0 {
            assert!(clock() < give_up, "no client writes");
            pause(Duration::from_millis(20));
        }
    }

    /// `kill -9`.
    pub fn kill(&mut self) {
        let daemon = self.daemon.take().expect("the daemon was started");
        daemon.kill().unwrap_or_else(|e| panic!("{e}"));
    }

    /// SIGTERM; the daemon has to exit with 0.
    pub fn terminate(&mut self) {
        let daemon = self.daemon.take().expect("the daemon was started");
        daemon.terminate().unwrap_or_else(|e| panic!("{e}"));
    }

    /// The daemon has ended.
    pub fn forget(&mut self) {
        self.daemon = None;
    }

    /// Starts the daemon again, with the same devices.
    pub fn start_again(&mut self) {
        assert!(self.daemon.is_none(), "one daemon at a time");
        let daemon = Daemon::restart(&self.program, self.dir.path());
        self.daemon = Some(daemon.unwrap_or_else(|e| panic!("{e}")));
    }
}

impl Drop for TestBed {
    fn drop(&mut self) {
        if let Some(daemon) = self.daemon.as_ref().filter(|_| std::thread::panicking()) {
            eprintln!("the daemon's log:\n{}", daemon.log());
        }
        if self.mounted {
            drop(self.daemon.take());
            // What a killed daemon leaves would keep the folder from being removed. Nothing may be
            // there; for root it is the first one that works, for others the second.
            let mount = self.mount();
            let _ = Command::new("umount").arg("-lq").arg(&mount).output();
            let _ = Command::new("fusermount3").args(["-uzq", "--"]).arg(&mount).output();
        }
    }
}

fn make_file(path: &Path, bytes: u64) {
    let made = File::create(path).and_then(|f| f.set_len(bytes));
    made.unwrap_or_else(|e| panic!("{}: {e}", path.display()));
}
