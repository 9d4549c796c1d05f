// SPDX-License-Identifier: Apache-2.0 OR MIT
//! zram with a backing device: filled, written back under `time`, and read back.
//!
//! ```text
//!   echo BACKING > DIR/sys/block/zram0/backing_dev
//!   echo 6G > DIR/sys/block/zram0/disksize
//!   fio -iodepth=16 -rw=randwrite -ioengine=io_uring -bs=4k -numjobs=1 -size=4G
//!       -filename=DIR/dev/zram0
//!   echo all > DIR/sys/block/zram0/idle
//!   time echo idle > DIR/sys/block/zram0/writeback
//!   cat DIR/sys/block/zram0/bd_stat          1048576 0 1048576
//! ```
use std::fs::OpenOptions;
use std::io::Write;
use std::path::{Path, PathBuf};
use std::process::Command;

use super::PATIENCE;
use super::attached::{Loop, Mount, ok};
use super::filesystem::{Kind, check, make_tree, same};
use super::site::{Site, sha256};
use crate::fio::Fio;
use crate::process::run as run_command;
use crate::{Result, clock};

const PAGE_BYTES: u64 = 4096;
/// Name of the device, as published.
const NAME: &str = "zram0";
/// Pages that the limited writeback may write, and pages that it could.
const LIMIT: (u64, u64) = (1002, 2560);
/// What a quota's end is called.
const EDQUOT: i32 = 122;

/// Sizes of the idle writeback. fio writes each of its blocks once.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct Sizes {
    /// The device.
    pub disksize: &'static str,
    /// What fio writes, MiB.
    pub written_mib: u64,
}

impl Sizes {
    /// As published.
    pub const FULL: Sizes = Sizes { disksize: "6G", written_mib: 4096 };

    fn pages(self) -> u64 {
        (self.written_mib << 20) / PAGE_BYTES
    }

    /// The backing device has room for everything, and a little more.
    pub const fn backing_bytes(self) -> u64 {
        (self.written_mib + 64) << 20
    }
}

/// What came of the idle writeback.
#[derive(Clone, Copy, Debug, PartialEq)]
pub struct Idle {
    /// Writes a second while filling.
    pub fill_iops: f64,
    /// How long the writeback took.
    pub writeback_s: f64,
    /// Reads a second while everything is read back and verified.
    pub read_back_iops: f64,
}

/// What came of the tarball.
#[derive(Clone, Copy, Debug, PartialEq)]
pub struct Outcome {
    /// Its bytes.
    pub tarball_bytes: u64,
    /// How long the writeback took, the file system being mounted.
    pub writeback_s: f64,
    /// Pages that were written back.
    pub pages: u64,
    /// From mount to the end of the copy.
    pub read_back_s: f64,
}

/// The device, which goes when the site does.
struct Zram<'a> {
    site: &'a Site,
    attributes: PathBuf,
}

impl Zram<'_> {
    /// `millpond create zram0 --zram`, which is what a kernel has at start, and its two lines.
    fn make<'a>(site: &'a Site, disksize: &str, backing: &Path) -> Result<Zram<'a>> {
        site.millpond(&["create", NAME, "--zram"])?;
        let zram = Zram { site, attributes: site.block(NAME) };
        zram.echo(&backing.display().to_string(), "backing_dev")?;
        zram.echo(disksize, "disksize")?;
        Ok(zram)
    }

    fn device(&self) -> PathBuf {
        self.site.leaf(NAME)
    }

    fn sh(&self, line: &str) -> Result<crate::process::Ended> {
        let mut shell = Command::new("sh");
        shell.args(["-c", line]).current_dir(&self.attributes);
        run_command(&mut shell, PATIENCE)
    }

    /// `echo VALUE > .../ATTRIBUTE`
    fn echo(&self, value: &str, attribute: &str) -> Result<()> {
        self.sh(&format!("echo '{value}' > {attribute}"))?.ok().map(drop)
    }

    /// The same, and how long it took.
    fn time_echo(&self, value: &str, attribute: &str) -> Result<f64> {
        let began = clock();
        self.echo(value, attribute)?;
        Ok(clock() - began)
    }

    /// `cat .../ATTRIBUTE`, its blanks as single ones.
    fn cat(&self, attribute: &str) -> Result<String> {
        let text = self.sh(&format!("cat {attribute}"))?.ok()?;
        Ok(text.split_whitespace().collect::<Vec<_>>().join(" "))
    }

    /// The three numbers of `bd_stat`: pages on the backing device, read back, written.
    fn bd_stat(&self) -> Result<[u64; 3]> {
        let text = self.cat("bd_stat")?;
        let numbers: Vec<u64> = text.split(' ').filter_map(|n| n.parse().ok()).collect();
        numbers[..].try_into().map_err(|_| format!("bd_stat: {text}"))
    }

    /// `cat .../bd_stat` has to be this.
    fn expect_bd_stat(&self, wanted: &str) -> Result<()> {
        match self.cat("bd_stat")? {
            found if found == wanted => Ok(()),
            found => Err(format!("bd_stat is `{found}`, not `{wanted}`")),
        }
    }

    /// fio over the first `mib` of the device: what the published line does, with sums in what is
    /// written.
    fn fio(&self, mib: u64) -> Fio {
        Fio::on_file(self.site.dir(), &self.device())
            .with(["--iodepth=16", "--rw=randwrite", "--ioengine=io_uring", "--numjobs=1"])
            .with([&format!("--size={mib}m"), "--verify=crc32c"])
            .with(["--verify_fatal=1"])
    }

    fn fill(&self, mib: u64) -> Result<f64> {
        let fill = self.fio(mib).with(["--do_verify=0"]).run(PATIENCE)?;
        match fill.writes * PAGE_BYTES {
            bytes if bytes == mib << 20 => Ok(fill.write_iops),
            bytes => Err(format!("fio wrote {bytes} bytes only")),
        }
    }

    /// EE-P1: reads everything that fio wrote, and returns reads a second.
    fn verify(&self, mib: u64) -> Result<f64> {
        let verified = self.fio(mib).with(["--verify_only"]).run(PATIENCE)?;
        match verified.reads * PAGE_BYTES {
            bytes if bytes == mib << 20 => Ok(verified.read_iops),
            bytes => Err(format!("fio has verified {bytes} bytes only")),
        }
    }

    fn remove(self) -> Result<()> {
        self.site.remove(NAME)
    }
}

/// Writes everything, has it written back, and reads it back.
pub fn idle(site: &Site, sizes: Sizes) -> Result<Idle> {
    let (mib, pages) = (sizes.written_mib, sizes.pages());
    site.make_disk("backing.img", sizes.backing_bytes())?;
    let zram = Zram::make(site, sizes.disksize, &site.path("backing.img"))?;
    let fill_iops = zram.fill(mib)?;
    zram.expect_bd_stat("0 0 0")?;
    zram.echo("all", "idle")?;
    let writeback_s = zram.time_echo("idle", "writeback")?;
    zram.expect_bd_stat(&format!("{pages} 0 {pages}"))?;
    let in_memory = zram.cat("mm_stat")?;
    if in_memory.split(' ').nth(1) != Some("0") {
        return Err(format!("mm_stat is `{in_memory}`: pages are in memory still"));
    }
    let read_back_iops = zram.verify(mib)?;
    let [_, read, _] = zram.bd_stat()?;
    if read < pages {
        return Err(format!("{read} pages were read back, not {pages}"));
    }
    zram.remove()?;
    Ok(Idle { fill_iops, writeback_s, read_back_iops })
}

/// Has fewer pages written back than there are: exactly as many as the limit allows.
pub fn limit(site: &Site) -> Result<()> {
    let (limit, candidates) = LIMIT;
    let mib = (candidates * PAGE_BYTES) >> 20;
    site.make_sparse_disk("limited.img", 64 << 20)?;
    let zram = Zram::make(site, "32M", &site.path("limited.img"))?;
    zram.fill(mib)?;
    zram.echo("1", "writeback_limit_enable")?;
    zram.echo(&limit.to_string(), "writeback_limit")?;
    zram.echo("all", "idle")?;
    if zram.echo("idle", "writeback").is_ok() {
        return Err(format!("{limit} of {candidates} pages were written, and nobody was told"));
    }
    let wanted = format!("{limit} 0 {limit}");
    zram.expect_bd_stat(&wanted)?;
    let left = zram.cat("writeback_limit")?;
    if left != "0" {
        return Err(format!("writeback_limit: {left} are left"));
    }
    // Again, for the code, which a shell does not tell; a file of the kernel's takes no seek.
    let file = OpenOptions::new().write(true).open(zram.attributes.join("writeback"));
    let again = file.and_then(|mut f| f.write_all(b"idle\n"));
    if again.as_ref().map_err(std::io::Error::raw_os_error) != Err(Some(EDQUOT)) {
        return Err(format!("writeback with no budget left: {again:?}, not EDQUOT"));
    }
    zram.expect_bd_stat(&wanted)?;
    zram.verify(mib)?;
    zram.remove()
}

/// Why no ext4 can be made of a device here; none where it can.
pub fn obstacle(dir: &Path) -> Option<String> {
    Kind::Ext4.obstacle(dir)
}

/// Files in the tarball, and the bytes of the longest.
pub type Tree = (u64, u64);

/// The tree at full size: about 250 MiB.
pub const TREE_FULL: Tree = (2000, 256 << 10);

/// Has a tarball on ext4 written back, and copies it from there.
pub fn tarball(site: &Site, (files, file_bytes_max): Tree) -> Result<Outcome> {
    let (tree, tarball, place) = (site.path("tree"), site.path("tree.tar"), site.path("place"));
    let made = make_tree(&tree, files, file_bytes_max).and_then(|()| std::fs::create_dir(&place));
    made.map_err(|e| format!("{}: {e}", tree.display()))?;
    ok("tar", &[Path::new("-cf"), &tarball, Path::new("-C"), &tree, Path::new(".")])?;
    let tarball_bytes = std::fs::metadata(&tarball).map_err(|e| e.to_string())?.len();
    let before = sha256(&tarball)?;

    let disk_mib = ((tarball_bytes * 3 / 2) >> 20) + 64;
    site.make_sparse_disk("backing.img", disk_mib << 20)?;
    let zram = Zram::make(site, &format!("{disk_mib}M"), &site.path("backing.img"))?;
    let disk = Loop::attach(&zram.device())?;
    ok(Kind::Ext4.mkfs(), &[Path::new("-q"), disk.device()])?;
    let mounted = Mount::at(disk.device(), &place)?;
    let copy = place.join("tree.tar");
    ok("cp", &[&tarball, &copy])?;
    ok("sync", &[Path::new("-f"), &copy])?;
    zram.echo("all", "idle")?;
    let writeback_s = zram.time_echo("idle", "writeback")?;
    let [pages, _, written] = zram.bd_stat()?;
    if pages * PAGE_BYTES < tarball_bytes || pages != written {
        return Err(format!("bd_stat: {pages} pages of {tarball_bytes} bytes, {written} written"));
    }
    mounted.unmount()?;
    disk.detach()?;

    // A new loop device: nothing of the file system is in the kernel's memory any more.
    let disk = Loop::attach(&zram.device())?;
    check(Kind::Ext4, &disk)?;
    let began = clock();
    let mounted = Mount::at(disk.device(), &place)?;
    let back = site.path("back.tar");
    ok("cp", &[&copy, &back])?;
    let read_back_s = clock() - began;
    same("tarball", &before, &sha256(&back)?)?;
    let [_, read, _] = zram.bd_stat()?;
    if read * PAGE_BYTES < tarball_bytes {
        return Err(format!("{read} pages were read back for {tarball_bytes} bytes"));
    }
    mounted.unmount()?;
    disk.detach()?;
    zram.remove()?;
    Ok(Outcome { tarball_bytes, writeback_s, pages, read_back_s })
}
