// SPDX-License-Identifier: Apache-2.0 OR MIT
//! The published procedures in full, with only the path before `/dev` changed: figures for people,
//! and as the last line JSON.
use std::path::{Path, PathBuf};
use std::process::ExitCode;

use clap::Parser;
use e2e::binary::{Build, millpond};
use e2e::published::cache::{self, Filled, Order};
use e2e::published::filesystem::{self, Kind, Outcome};
use e2e::published::linear::{self, Reads};
use e2e::published::zram;
use e2e::published::{Site, obstacle};
use e2e::undo::{leave_on_signals, wait_if_interrupted};
use e2e::{Result, clock};
use serde_json::{Map, Value, json};

/// The procedures with which others have published their results, run as they wrote them
#[derive(Debug, Parser)]
#[command(
    name = "published",
    max_term_width = 100,
    after_help = "\
Needs FUSE, 6 GiB of disk and of memory; for the file systems root and loop devices.

Examples:
  make published
  make published ARGS='--rounds 3 --dir /mnt/disk'"
)]
struct Args {
    /// This procedure only: cache, linear, ext4, xfs or zram [default: all]
    #[arg(long, value_name = "NAME", value_parser = ["cache", "linear", "ext4", "xfs", "zram"])]
    only: Option<String>,
    /// Runs of the write cache in each order
    #[arg(long, value_name = "N", default_value_t = 1)]
    rounds: u32,
    /// Make the files in a folder of their own in here [default: $TMPDIR, else /tmp]
    #[arg(long, value_name = "DIR")]
    dir: Option<PathBuf>,
}

const ORDERS: [(Order, &str); 2] = [(Order::Sorted, "sorted"), (Order::Lru, "lru")];
const KINDS: [Kind; 2] = [Kind::Ext4, Kind::Xfs];
/// What one procedure needs at most: the backing file of zram.
const DISK_BYTES: u64 = zram::Sizes::FULL.backing_bytes() + (1 << 30);

/// All that was seen.
#[derive(Debug, Default)]
struct Figures {
    /// By order, then by round.
    cache: [Vec<Filled>; 2],
    linear: Reads,
    /// None with the reason.
    kept: Vec<(Kind, Result<Outcome>)>,
    zram_idle: Option<zram::Idle>,
    /// None with the reason.
    zram_kept: Option<Result<zram::Outcome>>,
}

fn main() -> ExitCode {
    let outcome = run(&Args::parse());
    wait_if_interrupted();
    match outcome {
        Ok(()) => ExitCode::SUCCESS,
        Err(e) => {
            eprintln!("published: FAILED: {e}");
            ExitCode::FAILURE
        }
    }
}

fn run(args: &Args) -> Result<()> {
    if let Some(why) = obstacle() {
        return Err(why);
    }
    let base = args.dir.clone().unwrap_or_else(std::env::temp_dir);
    let fs = rustix::fs::statvfs(&base).map_err(|e| format!("{}: {e}", base.display()))?;
    let free = fs.f_bavail * fs.f_frsize;
    if free < DISK_BYTES {
        let (free, need) = (free >> 20, DISK_BYTES >> 20);
        let base = base.display();
        return Err(format!("{base}: {free} MiB are free, {need} are needed: choose --dir"));
    }
    leave_on_signals("published")?;
    let program = millpond(Build::Alone)?;
    let figures = measure(&program, &base, args)?;
    print(&figures);
    println!("{}", line(&figures));
    Ok(())
}

impl Args {
    fn wants(&self, name: &str) -> bool {
        self.only.as_ref().is_none_or(|only| only == name)
    }
}

fn measure(program: &Path, base: &Path, args: &Args) -> Result<Figures> {
    let mut figures = Figures::default();
    let rounds = if args.wants("cache") { args.rounds } else { 0 };
    for round in 0..rounds {
        for (nth, (order, name)) in ORDERS.into_iter().enumerate() {
            let what = format!("write cache, {name}: fill, flush, verify");
            let filled = at_a_site(&what, program, base, |site| {
                cache::run(site, cache::Sizes::FULL, order, u64::from(round) + 1)
            })?;
            figures.cache[nth].push(filled);
        }
    }
    if args.wants("linear") {
        let what = "linear and the memory below it, 12 jobs";
        figures.linear =
            at_a_site(what, program, base, |site| linear::run(site, linear::Sizes::FULL))?;
    }
    for kind in KINDS.into_iter().filter(|kind| args.wants(kind.name())) {
        let name = kind.name();
        let kept = match kind.obstacle(base) {
            Some(why) => {
                eprintln!("published: {name} SKIPPED, it was NOT run: {why}");
                Err(why)
            }
            None => {
                let what = format!("{name} on linear, writecache, striped");
                Ok(at_a_site(&what, program, base, |site| {
                    filesystem::run(site, kind, filesystem::Sizes::FULL)
                })?)
            }
        };
        figures.kept.push((kind, kept));
    }
    if args.wants("zram") {
        measure_zram(&mut figures, program, base)?;
    }
    Ok(figures)
}

fn measure_zram(figures: &mut Figures, program: &Path, base: &Path) -> Result<()> {
    let what = "zram: 4 GiB filled, written back, verified";
    let sizes = zram::Sizes::FULL;
    figures.zram_idle = Some(at_a_site(what, program, base, |site| zram::idle(site, sizes))?);
    at_a_site("zram: a limit of 1002 pages", program, base, zram::limit)?;
    figures.zram_kept = Some(match zram::obstacle(base) {
        Some(why) => {
            eprintln!("published: zram's tarball SKIPPED, it was NOT run: {why}");
            Err(why)
        }
        None => Ok(at_a_site("zram: a tarball on ext4", program, base, |site| {
            zram::tarball(site, zram::TREE_FULL)
        })?),
    });
    Ok(())
}

/// Runs a procedure with a daemon of its own; says what is done, and how long it took.
fn at_a_site<T>(
    what: &str,
    program: &Path,
    base: &Path,
    procedure: impl FnOnce(&Site) -> Result<T>,
) -> Result<T> {
    eprintln!("published: {what} ...");
    let began = clock();
    let work = || {
        let site = Site::start(program, base)?;
        let done = procedure(&site)?;
        site.end().map(|()| done)
    };
    let done = work().map_err(|e| format!("{what}: {e}"))?;
    eprintln!("published: {what}: the data are right ({:.1} s in all)", clock() - began);
    Ok(done)
}

/// Middle value; the upper one of two.
fn median(values: impl IntoIterator<Item = f64>) -> f64 {
    let mut values: Vec<f64> = values.into_iter().collect();
    values.sort_by(f64::total_cmp);
    values.get(values.len() / 2).copied().unwrap_or(f64::NAN)
}

fn print_cache(figures: &Figures) {
    let row = |name: &str, unit: &str, digits: usize, of: fn(&Filled) -> f64| {
        let [sorted, lru] = [0, 1].map(|nth| median(figures.cache[nth].iter().map(of)));
        println!("  {name:<22} {unit:<7} {sorted:12.digits$} {lru:12.digits$}");
    };
    let sizes = cache::Sizes::FULL;
    let (origin, cache) = (sizes.origin_bytes >> 20, sizes.cache_bytes >> 20);
    println!("\nwrite cache: {cache} MiB before {origin} MiB, fio randwrite 4 KiB, depth 20");
    println!("  {:<22} {:<7} {:>12} {:>12}", "", "", "sorted", "lru");
    row("filling", "IOPS", 0, |f| f.fill_iops);
    row("dirty at the flush", "MiB", 1, |f| f.dirty_blocks as f64 / 256.0);
    row("message flush", "s", 2, |f| f.flush_s);
    row("writes of the flush", "", 0, |f| f.origin_writes as f64);
    println!("  published (hard disk, pmem cache): flush 44.0 s and 99.2 s, 5306 and 4969 IOPS");
}

fn print_linear(reads: &Reads) {
    let rate = |iops: &[f64]| (median(iops.iter().copied()), median(iops.iter().copied()) / 2048.0);
    let ratios = reads.ratios();
    let (low, high) = ratios.iter().fold((f64::MAX, f64::MIN), |(l, h), r| (l.min(*r), h.max(*r)));
    println!("\nlinear on memory: fio psync 512 B reads, 12 jobs, {} runs each", ratios.len());
    println!("  {:<22} {:>12} {:>12}", "", "IOPS", "MiB/s");
    for (name, iops) in [("mem:1G", &reads.raw_iops), ("linear on it", &reads.linear_iops)] {
        let (iops, mib) = rate(iops);
        println!("  {name:<22} {iops:12.0} {mib:12.1}");
    }
    let ratio = median(ratios.iter().copied());
    println!("  ratio, median          {ratio:12.3} ({low:.3} to {high:.3})");
    println!("  published (RAM disk): 0.804 with a clone of each request, 0.914 without");
}

fn print_kept(figures: &Figures) {
    println!("\nfile systems through losetup, on linear, writecache, striped");
    let titles = ["tarball MiB", "write s", "flush s", "read s"];
    println!("  {:<8} {:>12} {:>12} {:>12} {:>12}", "", titles[0], titles[1], titles[2], titles[3]);
    for (kind, kept) in &figures.kept {
        let name = kind.name();
        match kept {
            Ok(Outcome { tarball_bytes, write_s, flush_s, read_s, .. }) => {
                let mib = *tarball_bytes as f64 / f64::from(1 << 20);
                println!("  {name:<8} {mib:12.1} {write_s:12.2} {flush_s:12.2} {read_s:12.2}");
            }
            Err(why) => println!("  {name:<8} skipped: {why}"),
        }
    }
    println!(
        "  write: mkfs to umount, tarball copied and unpacked; read: mount to the last sha256"
    );
}

fn print_zram(figures: &Figures) {
    let mib = zram::Sizes::FULL.written_mib;
    println!("\nzram: {mib} MiB, fio randwrite 4 KiB, depth 16; idle writeback; fio verifies");
    if let Some(idle) = figures.zram_idle {
        println!("  filling                IOPS    {:12.0}", idle.fill_iops);
        println!("  echo idle > writeback  s       {:12.2}", idle.writeback_s);
        println!("  reading back           IOPS    {:12.0}", idle.read_back_iops);
        println!("  published (NVMe): 68.648 s page by page, 15.496 s in batches");
    }
    match &figures.zram_kept {
        Some(Ok(zram::Outcome { tarball_bytes, writeback_s, pages, read_back_s })) => {
            let mib = tarball_bytes >> 20;
            println!("  ext4, a tarball of {mib} MiB: {pages} pages written back in");
            println!("  {writeback_s:.2} s, read back in {read_back_s:.2} s, sums the same");
        }
        Some(Err(why)) => println!("  ext4: skipped: {why}"),
        None => {}
    }
}

fn print(figures: &Figures) {
    if !figures.cache[0].is_empty() {
        print_cache(figures);
    }
    if !figures.linear.raw_iops.is_empty() {
        print_linear(&figures.linear);
    }
    if !figures.kept.is_empty() {
        print_kept(figures);
    }
    if figures.zram_idle.is_some() {
        print_zram(figures);
    }
    println!();
}

fn line(figures: &Figures) -> Value {
    let mut keys = Map::new();
    for ((_, name), filled) in ORDERS.into_iter().zip(&figures.cache) {
        let mut put = |key: &str, of: fn(&Filled) -> f64| {
            keys.insert(format!("{name}_{key}"), json!(median(filled.iter().map(of))));
        };
        put("s", |f| f.flush_s);
        put("fill_iops", |f| f.fill_iops.round());
        put("dirty_blocks", |f| f.dirty_blocks as f64);
        put("ios", |f| f.origin_writes as f64);
    }
    let mut put = |key: &str, values: &[f64]| {
        keys.insert(key.into(), json!(median(values.iter().copied())));
    };
    put("fuse_raw_iops", &figures.linear.raw_iops);
    put("fuse_linear_iops", &figures.linear.linear_iops);
    put("fuse_linear_ratio", &figures.linear.ratios());
    for (kind, kept) in &figures.kept {
        let name = kind.name();
        let kept = kept.as_ref().ok();
        keys.insert(format!("{name}_write_s"), json!(kept.map(|k| k.write_s)));
        keys.insert(format!("{name}_flush_s"), json!(kept.map(|k| k.flush_s)));
        keys.insert(format!("{name}_read_s"), json!(kept.map(|k| k.read_s)));
    }
    if let Some(idle) = figures.zram_idle {
        keys.insert("zram_fill_iops".into(), json!(idle.fill_iops.round()));
        keys.insert("zram_writeback_s".into(), json!(idle.writeback_s));
        keys.insert("zram_read_back_iops".into(), json!(idle.read_back_iops.round()));
        let kept = figures.zram_kept.as_ref().and_then(|k| k.as_ref().ok());
        keys.insert("zram_ext4_writeback_s".into(), json!(kept.map(|k| k.writeback_s)));
        keys.insert("zram_ext4_read_back_s".into(), json!(kept.map(|k| k.read_back_s)));
    }
    Value::Object(keys)
}
