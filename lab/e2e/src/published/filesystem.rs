// SPDX-License-Identifier: Apache-2.0 OR MIT
//! A file system on a stack of devices, through a loop device: what goes in comes out.
//!
//! ```text
//!   disk      linear       ─ losetup ─ mkfs, mount, copy, unpack, umount, fsck
//!    └ cached writecache
//!       ├ stripes   striped, of a.img and b.img
//!       └ cache.img
//!   dmsetup message cached 0 flush; disk is put on stripes, the cache goes away
//!   disk      linear       ─ losetup ─ fsck, mount, sha256
//!    └ stripes
//! ```
use std::fs::File;
use std::io::Write;
use std::path::Path;
use std::process::Command;

use super::PATIENCE;
use super::attached::{self, Loop, Mount, ok};
use super::site::{Site, sha256};
use crate::process::run as run_command;
use crate::stamp::Random;
use crate::{Result, clock};

/// Which file system.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum Kind {
    /// mkfs.ext4, fsck.ext4
    Ext4,
    /// mkfs.xfs, `xfs_repair`
    Xfs,
}

impl Kind {
    /// Its name.
    pub fn name(self) -> &'static str {
        match self {
            Kind::Ext4 => "ext4",
            Kind::Xfs => "xfs",
        }
    }

    pub(super) fn mkfs(self) -> &'static str {
        match self {
            Kind::Ext4 => "mkfs.ext4",
            Kind::Xfs => "mkfs.xfs",
        }
    }

    /// The check that changes nothing, and fails unless the file system is clean.
    fn check(self) -> &'static [&'static str] {
        match self {
            Kind::Ext4 => &["fsck.ext4", "-f", "-n"],
            Kind::Xfs => &["xfs_repair", "-n"],
        }
    }

    /// Why this kernel or this user can't do it; none where it works.
    pub fn obstacle(self, dir: &Path) -> Option<String> {
        super::obstacle().or_else(|| {
            let programs = [self.mkfs(), self.check()[0], "tar", "find", "xargs"];
            attached::obstacle(self.name(), dir, &programs)
        })
    }
}

/// Sizes.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct Sizes {
    /// The device; xfs takes none below 300 MiB.
    pub device_bytes: u64,
    /// Its cache.
    pub cache_bytes: u64,
    /// Files in the tarball.
    pub files: u64,
    /// Bytes of the longest; lengths are even from nothing up to it.
    pub file_bytes_max: u64,
}

impl Sizes {
    /// About 250 MiB in 2000 files.
    pub const FULL: Sizes = Sizes {
        device_bytes: 2 << 30,
        cache_bytes: 256 << 20,
        files: 2000,
        file_bytes_max: 256 << 10,
    };
}

/// What came of it.
#[derive(Clone, Copy, Debug, PartialEq)]
pub struct Outcome {
    /// Bytes of the tarball.
    pub tarball_bytes: u64,
    /// From mkfs to umount, everything written in between.
    pub write_s: f64,
    /// Blocks that were dirty when the flush began.
    pub dirty_blocks: u64,
    /// How long the flush took.
    pub flush_s: f64,
    /// From mount to the last sum, on the stack without its cache.
    pub read_s: f64,
}

/// Files of random data in a tree, the same for the same numbers.
pub(super) fn make_tree(dir: &Path, files: u64, file_bytes_max: u64) -> std::io::Result<()> {
    let mut random = Random::new(3);
    for nth in 0..files {
        let folder = dir.join(format!("{:02}/{:02}", nth % 7, nth % 41));
        std::fs::create_dir_all(&folder)?;
        let len = random.below(file_bytes_max + 1);
        let mut data = vec![0; len as usize];
        for bytes in data.chunks_mut(4) {
            let word = (random.below(1 << 32) as u32).to_le_bytes();
            bytes.copy_from_slice(&word[..bytes.len()]);
        }
        File::create(folder.join(format!("file {nth}")))?.write_all(&data)?;
    }
    Ok(())
}

/// The sums of all files of a tree, by name.
fn sums(tree: &Path) -> Result<String> {
    let script = "find . -type f -print0 | LC_ALL=C sort -z | xargs -0 sha256sum --";
    run_command(Command::new("sh").args(["-c", script]).current_dir(tree), PATIENCE)?.ok()
}

pub(super) fn same(what: &str, before: &str, after: &str) -> Result<()> {
    if before == after && !before.is_empty() {
        return Ok(());
    }
    let differ = before.lines().zip(after.lines()).find(|(b, a)| b != a);
    let lines = (before.lines().count(), after.lines().count());
    Err(format!("{what}: not the same: {differ:?}, {} and {} lines", lines.0, lines.1))
}

pub(super) fn check(kind: Kind, disk: &Loop) -> Result<()> {
    let words = kind.check();
    let args: Vec<&Path> = words[1..].iter().map(Path::new).chain([disk.device()]).collect();
    ok(words[0], &args).map(drop)
}

/// Runs the procedure on new files.
pub fn run(site: &Site, kind: Kind, sizes: Sizes) -> Result<Outcome> {
    let (tree, tarball, place) = (site.path("tree"), site.path("tree.tar"), site.path("place"));
    if !tree.exists() {
        let made = make_tree(&tree, sizes.files, sizes.file_bytes_max);
        made.map_err(|e| format!("{}: {e}", tree.display()))?;
        std::fs::create_dir(&place).map_err(|e| format!("{}: {e}", place.display()))?;
        ok("tar", &[Path::new("-cf"), &tarball, Path::new("-C"), &tree, Path::new(".")])?;
    }
    let tarball_bytes = std::fs::metadata(&tarball).map_err(|e| e.to_string())?.len();

    for disk in ["a.img", "b.img"] {
        site.make_sparse_disk(disk, sizes.device_bytes / 2)?;
    }
    site.make_sparse_disk("cache.img", sizes.cache_bytes)?;
    let sectors = sizes.device_bytes / 512;
    let path = |name: &str| site.path(name).display().to_string();
    let striped = format!("0 {sectors} striped 2 128 {} 0 {} 0", path("a.img"), path("b.img"));
    site.create("stripes", &striped)?;
    let cache = path("cache.img");
    let cached = format!("0 {sectors} writecache s /dev/mapper/stripes {cache} 4096 0");
    site.create("cached", &cached)?;
    site.create("disk", &format!("0 {sectors} linear /dev/mapper/cached 0"))?;

    let disk = Loop::attach(&site.mapped("disk"))?;
    let began = clock();
    ok(kind.mkfs(), &[Path::new("-q"), disk.device()])?;
    let mounted = Mount::at(disk.device(), &place)?;
    ok("cp", &[&tarball, &place.join("tree.tar")])?;
    let unpacked = place.join("unpacked");
    std::fs::create_dir(&unpacked).map_err(|e| format!("{}: {e}", unpacked.display()))?;
    ok("tar", &[Path::new("-xf"), &place.join("tree.tar"), Path::new("-C"), &unpacked])?;
    mounted.unmount()?;
    let write_s = clock() - began;
    check(kind, &disk)?;
    disk.detach()?;

    let dirty_blocks = site.attribute("cached", "dirty_blocks")?;
    if dirty_blocks == 0 {
        return Err("no block is dirty: the cache was not in use".into());
    }
    let flush_s = site.time_dmsetup(&["message", "cached", "0", "flush"])?;
    let status = site.dmsetup(&["status", "cached"])?;
    if status.split_whitespace().nth(3) != Some("0") {
        return Err(format!("the cache has failed: {status}"));
    }
    // From here on everything has to be on the stripes.
    site.dmsetup(&["suspend", "disk"])?;
    let uncached = format!("0 {sectors} linear /dev/mapper/stripes 0");
    site.dmsetup(&["load", "disk", "--table", &uncached])?;
    site.dmsetup(&["resume", "disk"])?;
    site.remove("cached")?;

    let disk = Loop::attach(&site.mapped("disk"))?;
    check(kind, &disk)?;
    let began = clock();
    let mounted = Mount::at(disk.device(), &place)?;
    same("tarball", &sha256(&tarball)?, &sha256(&place.join("tree.tar"))?)?;
    same("files", &sums(&tree)?, &sums(&unpacked)?)?;
    let read_s = clock() - began;
    mounted.unmount()?;
    disk.detach()?;
    site.remove("disk")?;
    site.remove("stripes")?;
    Ok(Outcome { tarball_bytes, write_s, dirty_blocks, flush_s, read_s })
}
