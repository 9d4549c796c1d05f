// SPDX-License-Identifier: Apache-2.0 OR MIT
//! Power cuts of the disk below a volume that is in a directory (`file://`): the page cache is
//! lost, and what was not synced with it.
//!
//! ```text
//!   writer ─ NBD ─▶ daemon: volume, or writecache over it
//!                      └─▶ file system ─▶ device mapper ─▶ DISK
//!   cut: the mapper stops (no flush, no freeze of the file system), the daemon is killed, the
//!        mapper goes on as a disk that refuses everything; the file system is unmounted
//!   then DISK is mounted again, and has what had arrived there
//! ```
//!
//! The folder of the daemon is new each time: what outlives a process in memory is lost, too. With
//! `--no-sync` the same happens over a file system that syncs nothing, and a loss must be seen.
use std::path::{Path, PathBuf};
use std::process::ExitCode;
use std::sync::atomic::{AtomicU64, Ordering};
use std::time::Duration;

use clap::{Parser, ValueEnum};
use e2e::binary::{Build, millpond};
use e2e::daemon::{Daemon, Device};
use e2e::loops::Mounted;
use e2e::process::output;
use e2e::stamp::{BLOCK_BYTES, Found, Order, Random, Stamps, Written};
use e2e::{Result, pause};
use rustix::process::{Pid, Signal, kill_process};

const BLOCKS: u64 = 1024;
const SECTORS: u64 = BLOCKS * BLOCK_BYTES as u64 / 512;
/// The mapped device of the kernel.
const NAME: &str = "power-cut";

/// Power cuts below a volume that is in a directory. Everything on DISK is lost
#[derive(Debug, Parser)]
#[command(name = "power-cut", max_term_width = 100)]
struct Args {
    /// A block device of 320 MiB or more
    disk: PathBuf,
    #[arg(long, value_enum, default_value = "ext4")]
    file_system: Kind,
    #[arg(long, value_name = "N", default_value_t = 3)]
    cuts: u64,
    /// With a write cache `ordered` above the volume, a file of the same file system
    #[arg(long)]
    cache: bool,
    /// Over a file system that syncs nothing: fails unless something is lost
    #[arg(long, conflicts_with = "cache")]
    no_sync: bool,
    /// Draws the moments and the writes
    #[arg(long, default_value_t = 1)]
    seed: u64,
}

#[derive(Clone, Copy, Debug, ValueEnum)]
enum Kind {
    Ext4,
    Xfs,
}

impl Kind {
    fn name(self) -> &'static str {
        match self {
            Kind::Ext4 => "ext4",
            Kind::Xfs => "xfs",
        }
    }

    fn make(self, disk: &Path) -> Result<()> {
        let disk = &*disk.to_string_lossy();
        match self {
            Kind::Ext4 => output("mkfs.ext4", &["-q", "-F", disk]),
            Kind::Xfs => output("mkfs.xfs", &["-q", "-f", disk]),
        }
        .map(drop)
    }

    fn check(self, disk: &Path) -> Result<()> {
        let disk = &*disk.to_string_lossy();
        match self {
            Kind::Ext4 => output("fsck.ext4", &["-f", "-n", disk]),
            Kind::Xfs => output("xfs_repair", &["-n", disk]),
        }
        .map(drop)
    }
}

fn dmsetup(verb: &str, args: &[&str]) -> Result<String> {
    output("dmsetup", &[&[verb, "--noudevsync"], args].concat())
}

/// A disk that can lose its power.
#[derive(Debug)]
struct Disk {
    sectors: u64,
    node: PathBuf,
}

impl Disk {
    fn on(base: &Path) -> Result<Disk> {
        let base = base.to_string_lossy();
        let sectors = output("blockdev", &["--getsz", &base])?;
        let sectors = sectors.trim().parse().map_err(|_| format!("{base}: size {sectors}"))?;
        dmsetup("create", &[NAME, "--table", &format!("0 {sectors} linear {base} 0")])?;
        let minor = output("dmsetup", &["info", "-c", "--noheadings", "-o", "minor", NAME])?;
        Ok(Disk { sectors, node: format!("/dev/dm-{}", minor.trim()).into() })
    }

    /// From now on nothing arrives at the disk. `meanwhile` is after the last request that the
    /// disk has completed, and before the first that it refuses.
    fn cut(&self, meanwhile: impl FnOnce() -> Result<()>) -> Result<()> {
        dmsetup("load", &[NAME, "--table", &format!("0 {} error", self.sectors)])?;
        dmsetup("suspend", &["--noflush", "--nolockfs", NAME])?;
        let outcome = meanwhile();
        dmsetup("resume", &[NAME])?;
        outcome
    }
}

impl Drop for Disk {
    fn drop(&mut self) {
        if let Err(e) = dmsetup("remove", &[NAME]) {
            eprintln!("power-cut: {e}");
        }
    }
}

/// Where things are, and what was written.
struct Site {
    program: PathBuf,
    dir: tempfile::TempDir,
    has_cache: bool,
    area: Stamps,
    random: Random,
    written: Written,
    owed: u64,
}

impl Site {
    fn mount(&self) -> PathBuf {
        self.dir.path().join("mount")
    }

    fn table(&self, store: &Path) -> String {
        format!("0 {SECTORS} objvol file://{} 4 segment_size 256K grace 1s", store.display())
    }

    fn cache_table(&self) -> String {
        let file = self.mount().join("cache.img");
        let options = "5 ordered high_watermark 40 low_watermark 20";
        format!("0 {SECTORS} writecache s vol {} 4096 {options}", file.display())
    }

    fn device(&self) -> &'static str {
        if self.has_cache { "wc" } else { "vol" }
    }

    /// A daemon with a folder that no other has had.
    fn start(&self, life: u64, store: &Path) -> Result<Daemon> {
        let dir = self.dir.path().join(life.to_string());
        std::fs::create_dir(&dir).map_err(|e| e.to_string())?;
        let table = self.table(store);
        let devices: [Device<'_>; 1] = [("vol", &table)];
        Daemon::start(&self.program, &dir, &devices)
    }

    fn add_cache(&self, daemon: &Daemon) -> Result<()> {
        if self.has_cache {
            daemon.verb(&["create", "wc", "--table", &self.cache_table()])?;
        }
        Ok(())
    }

    /// A daemon on what the last cut has left, once that was found to be right.
    fn recover(&mut self, life: u64, store: &Path) -> Result<(Daemon, Found)> {
        let daemon = self.start(life, store)?;
        let url = format!("file://{}", store.display());
        daemon.verb(&["check", &url])?;
        let mut client = daemon.connect("vol")?;
        // With a cache, too: it writes back in the order of flushes.
        let order = if self.has_cache { Order::Flushes } else { Order::Writes };
        self.area.check_order(|at, data| client.read(at, data), order)?;
        drop(client);
        self.add_cache(&daemon)?;
        let mut client = daemon.connect(self.device())?;
        let found = self.area.check(|at, data| client.read(at, data))?;
        Ok((daemon, found))
    }

    /// Cuts the power at some moment of many writes.
    fn write_until_cut(&mut self, daemon: Daemon, disk: &Disk) -> Result<()> {
        let mut client = daemon.connect(self.device())?;
        let cut_at = 100 + self.random.below(400);
        let answers = &AtomicU64::new(0);
        let (area, written) = (&mut self.area, &mut self.written);
        std::thread::scope(|scope| {
            let writer = scope.spawn(move || {
                let before = written.writes;
                area.write(&mut client, written, |w| {
                    answers.fetch_max(w.writes - before, Ordering::Relaxed);
                    false
                })
            });
            while answers.load(Ordering::Relaxed) < cut_at && !writer.is_finished() {
                pause(Duration::from_micros(500));
            }
            let pid = i32::try_from(daemon.id()).ok().and_then(Pid::from_raw);
            let pid = pid.ok_or("the daemon has no number")?;
            // Nothing is acknowledged once the disk refuses.
            disk.cut(|| kill_process(pid, Signal::KILL).map_err(|e| e.to_string()))?;
            daemon.kill()?;
            let ended = writer.join().map_err(|_| "the writer has panicked")?;
            let text = ended.err().map(|e| e.to_string()).unwrap_or_default();
            if text.contains("the server says") { Err(text) } else { Ok(()) }
        })
    }
}

fn folder(path: &Path) -> Result<PathBuf> {
    std::fs::create_dir_all(path).map_err(|e| format!("{}: {e}", path.display()))?;
    Ok(path.to_owned())
}

/// The folder of the store, its name durable; and a mount over it that syncs nothing.
fn place(site: &Site, no_sync: bool) -> Result<(PathBuf, Option<Mounted>)> {
    let mount = site.mount();
    let store = folder(&mount.join("store"))?;
    if site.has_cache {
        let file = std::fs::File::create(mount.join("cache.img"));
        file.and_then(|f| f.set_len(16 << 20)).map_err(|e| e.to_string())?;
    }
    let (lower, work) = (folder(&mount.join("lower"))?, folder(&mount.join("work"))?);
    output("sync", &["-f", &mount.to_string_lossy()])?;
    if !no_sync {
        return Ok((store, None));
    }
    let merged = folder(&site.dir.path().join("merged"))?;
    let (lower, upper, work) = (lower.display(), store.display(), work.display());
    let options = format!("lowerdir={lower},upperdir={upper},workdir={work},volatile");
    let options = ["-t", "overlay", "-o", &options];
    let over = Mounted::new(&options, Path::new("overlay"), &merged)?;
    Ok((merged, Some(over)))
}

/// Returns what was seen, in words.
fn lives(args: &Args) -> Result<String> {
    let mut site = Site {
        program: millpond(Build::Workspace)?,
        dir: tempfile::tempdir().map_err(|e| e.to_string())?,
        has_cache: args.cache,
        area: Stamps::new(0..BLOCKS, args.seed),
        random: Random::new(args.seed),
        written: Written::default(),
        owed: 0,
    };
    let kind = ["-t", args.file_system.name()];
    let mount = folder(&site.mount())?;
    args.file_system.make(&args.disk)?;
    for life in 0..=args.cuts {
        let disk = Disk::on(&args.disk)?;
        let mounted = Mounted::new(&kind, &disk.node, &mount)?;
        let mut over = None;
        let daemon = if life == 0 {
            let (store, unsynced) = place(&site, args.no_sync)?;
            over = unsynced;
            let daemon = site.start(life, &store)?;
            site.add_cache(&daemon)?;
            site.area.lay(&mut daemon.connect(site.device())?).map_err(|e| e.to_string())?;
            if site.has_cache {
                daemon.verb(&["flush", "wc"])?; // the volume has version 0 of all blocks
            }
            if args.no_sync {
                output("sync", &["-f", &mount.to_string_lossy()])?; // the volume itself is there
            }
            daemon
        } else {
            let store = mount.join("store");
            match site.recover(life, &store) {
                Ok(_) if args.no_sync => return Err("nothing was lost without syncs".into()),
                Err(lost) if args.no_sync => {
                    mounted.unmount()?;
                    return Ok(format!("lost without syncs, as it must be: {lost}"));
                }
                found => {
                    let (daemon, found) = found.map_err(|e| format!("after cut {life}: {e}"))?;
                    site.owed += found.owed;
                    daemon
                }
            }
        };
        if life == args.cuts {
            daemon.terminate()?;
            mounted.unmount()?;
            args.file_system.check(&disk.node)?;
        } else {
            site.write_until_cut(daemon, &disk)?;
            over.map(Mounted::unmount).transpose()?;
            mounted.unmount()?;
        }
    }
    if site.written.flushes < args.cuts || site.owed < BLOCKS / 4 {
        return Err(format!("too little to prove: {:?}, {} owed", site.written, site.owed));
    }
    Ok(format!("{:?}, {} owed", site.written, site.owed))
}

fn main() -> ExitCode {
    match lives(&Args::parse()) {
        Ok(seen) => {
            println!("{seen}");
            ExitCode::SUCCESS
        }
        Err(e) => {
            eprintln!("power-cut: FAILED: {e}");
            ExitCode::FAILURE
        }
    }
}
