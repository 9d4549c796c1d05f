// SPDX-License-Identifier: Apache-2.0 OR MIT
//! What the tests of the driver share: a core, a folder that goes away, data to compare.
use std::future::Future;
use std::path::{Path, PathBuf};
use std::sync::atomic::{AtomicU32, Ordering};

use block::{Buf, Bufs, CoreId};
use reactor::Reactor;
use uring::{Files, Uring};

/// Runs `test` on a core with this driver.
pub(crate) fn on_core<F: Future<Output = ()> + 'static>(test: impl FnOnce(Files) -> F) {
    let driver = Uring::new().unwrap();
    let files = driver.files();
    let reactor = Reactor::enter(CoreId(0), Box::new(driver));
    reactor.block_on(test(files));
}

/// A folder of one test, removed at its end.
pub(crate) struct Folder(PathBuf);

impl Folder {
    /// On the file system of the build.
    pub(crate) fn on_disk() -> Folder {
        Folder::under(Path::new(env!("CARGO_TARGET_TMPDIR")))
    }

    /// On a tmpfs.
    pub(crate) fn in_memory() -> Folder {
        Folder::under(Path::new("/dev/shm"))
    }

    fn under(parent: &Path) -> Folder {
        static COUNT: AtomicU32 = AtomicU32::new(0);
        let nth = COUNT.fetch_add(1, Ordering::Relaxed);
        let path = parent.join(format!("uring-test-{}-{nth}", std::process::id()));
        std::fs::create_dir_all(&path).unwrap();
        Folder(path)
    }

    pub(crate) fn path(&self, name: &str) -> PathBuf {
        self.0.join(name)
    }
}

impl Drop for Folder {
    fn drop(&mut self) {
        let _ = std::fs::remove_dir_all(&self.0);
    }
}

/// `len` bytes that differ from place to place and from `seed` to `seed`.
pub(crate) fn bytes(len: usize, seed: u64) -> Vec<u8> {
    let mut rng = Rng(seed + 1);
    let mut out = Vec::with_capacity(len + 8);
    while out.len() < len {
        out.extend_from_slice(&rng.next().to_le_bytes());
    }
    out.truncate(len);
    out
}

pub(crate) fn buf(len: usize, seed: u64) -> Bufs {
    Buf::copy_of(&bytes(len, seed)).into()
}

pub(crate) fn to_vec(bufs: &Bufs) -> Vec<u8> {
    let mut out = vec![0; bufs.len_bytes()];
    bufs.copy_to(&mut out);
    out
}

/// xorshift64*: chance that is the same every time.
pub(crate) struct Rng(pub(crate) u64);

impl Rng {
    pub(crate) fn next(&mut self) -> u64 {
        self.0 ^= self.0 >> 12;
        self.0 ^= self.0 << 25;
        self.0 ^= self.0 >> 27;
        self.0.wrapping_mul(0x2545_F491_4F6C_DD1D)
    }

    pub(crate) fn below(&mut self, n: u64) -> u64 {
        self.next() % n
    }
}

/// Descriptors that this process has open.
pub(crate) fn open_descriptors() -> usize {
    std::fs::read_dir("/proc/self/fd").unwrap().count()
}

/// A loop device on a file, detached at the end.
pub(crate) struct Loop(pub(crate) String);

impl Loop {
    /// `None` where loop devices are not available; prints the reason.
    pub(crate) fn on(file: &Path) -> Option<Loop> {
        let made =
            std::process::Command::new("losetup").args(["--find", "--show"]).arg(file).output();
        match made {
            Ok(out) if out.status.success() => {
                Some(Loop(String::from_utf8(out.stdout).unwrap().trim().to_owned()))
            }
            Ok(out) => {
                eprintln!("skipped: losetup: {}", String::from_utf8_lossy(&out.stderr).trim());
                None
            }
            Err(e) => {
                eprintln!("skipped: losetup: {e}");
                None
            }
        }
    }
}

impl Drop for Loop {
    fn drop(&mut self) {
        let _ = std::process::Command::new("losetup").args(["--detach", &self.0]).status();
    }
}
