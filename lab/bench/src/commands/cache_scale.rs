// SPDX-License-Identifier: Apache-2.0 OR MIT
//! `make bench-cache-scale`: what opening a large write cache costs, and what it takes of memory.
//!
//! The image is sparse and made by the format alone; the cache is opened through io_uring by a
//! process of its own for each measurement, so that the peak of one is not another's. CPU is that
//! of the whole process. Memory is told twice: resident, as the kernel counts, and allocated.
use std::io::{self, Write, stderr, stdout};
use std::path::{Path, PathBuf};
use std::process::{Command, ExitCode};
use std::rc::Rc;

use bench::cache_image::{BLOCK_SIZE, Contents, Made};
use bench::output::{Dir, ended};
use block::{CoreId, Sector, Target};
use queue::{FileLeaf, Null};
use reactor::Reactor;
use reproduce::clock;
use reproduce::cpu::cpu_seconds;
use reproduce::median::median;
use serde_json::{Map, Value, json};
use uring::{OpenOptions, Uring};
use writecache::{Config, WriteCache};

/// An image, and how it is opened.
struct Case {
    key: &'static str,
    dirty_percent: u32,
    log_percent: u32,
    /// In the order of epochs. Every block is pending then, which is the most that this takes.
    ordered: bool,
    /// The first opening with the option is not measured: it takes the order up, and writes a
    /// checkpoint that says so. Else each opening is of an image as it was made.
    again: bool,
}

const CASE: Case =
    Case { key: "dirty", dirty_percent: 100, log_percent: 0, ordered: false, again: false };
const CASES: [Case; 6] = [
    CASE,
    Case { key: "clean", dirty_percent: 0, ..CASE },
    Case { key: "dirty_log", log_percent: 49, ..CASE },
    Case { key: "to_ordered", ordered: true, ..CASE },
    Case { key: "ordered", ordered: true, again: true, ..CASE },
    Case { key: "ordered_log", dirty_percent: 0, log_percent: 49, ordered: true, ..CASE },
];
/// The figures of one opening, in the order of the table.
const FIGURES: [&str; 7] = [
    "cpu_s",
    "wall_s",
    "peak_rss_mib",
    "steady_rss_mib",
    "rss_bytes_per_block",
    "peak_bytes_per_block",
    "steady_bytes_per_block",
];

/// Measures what opening a large write cache costs: CPU, time, memory
#[derive(Debug, clap::Args)]
#[command(after_help = "\
Examples:
  make bench-cache-scale
  make bench-cache-scale ARGS='--blocks 1000000 --rounds 1'")]
pub(crate) struct Args {
    #[command(flatten)]
    dir: Dir,
    /// Slots of the cache
    #[arg(long, default_value_t = 25_000_000,
          value_parser = clap::value_parser!(u32).range(1000..=1_000_000_000))]
    blocks: u32,
    /// How often each image is opened
    #[arg(long, default_value_t = 3, value_parser = clap::value_parser!(u16).range(1..))]
    rounds: u16,
    /// Open this image in this process: what each measurement runs
    #[arg(long, hide = true, value_name = "IMAGE", requires = "origin_blocks")]
    open: Option<PathBuf>,
    /// The size of the origin for --open
    #[arg(long, hide = true, value_name = "N")]
    origin_blocks: Option<u64>,
    /// With the option `ordered`, for --open
    #[arg(long, hide = true)]
    ordered: bool,
}

/// A line of /proc/self/status, in bytes.
fn memory(line: &str) -> f64 {
    let status = std::fs::read_to_string("/proc/self/status").unwrap_or_default();
    let found = status.lines().find_map(|l| l.strip_prefix(line)?.strip_prefix(':'));
    let kib = found.and_then(|l| l.trim().trim_end_matches("kB").trim().parse::<f64>().ok());
    kib.unwrap_or(f64::NAN) * 1024.0
}

/// Opens the image once, in this process, and prints what that took as JSON.
fn open(image: &Path, origin_blocks: u64, ordered: bool) -> Result<(), String> {
    let sectors = Sector(origin_blocks * u64::from(BLOCK_SIZE) / 512);
    let uring = Uring::new().map_err(|e| e.chain())?;
    let opened = uring.files().open_path(image, OpenOptions::default()).map_err(|e| e.chain())?;
    if let Some(warning) = &opened.warning {
        writeln!(stderr(), "{warning}").ok();
    }
    let reactor = Reactor::enter(CoreId(0), Box::new(uring));
    let device = Rc::new(FileLeaf::new("cache", opened.file, opened.limits));
    let origin = Rc::new(Null::new("origin", sectors));
    // Nothing is written back: the slots are holes, whose blocks match no checksum.
    let mut line = vec!["s", "origin", "cache", "4096", if ordered { "5" } else { "4" }];
    line.extend(["high_watermark", "100", "low_watermark", "100"]);
    line.extend(ordered.then_some("ordered"));
    let config = Config::parse(&line).map_err(|e| e.chain())?;
    let cache = reactor.on(|| WriteCache::new("wc", config, origin, device, sectors));
    let cache = cache.map_err(|e| e.chain())?;
    let base = memory("VmRSS");
    let (cpu, wall) = (cpu_seconds(), clock());
    let mut resumed = Ok(());
    let target = cache.clone();
    let heap = allocation_counter::measure(|| resumed = reactor.block_on(target.resume()));
    let (cpu, wall) = (cpu_seconds() - cpu, clock() - wall);
    resumed.map_err(|e| e.chain())?;
    let (peak, steady) = (memory("VmHWM") - base, memory("VmRSS") - base);
    let status = cache.status();
    let field = |n: usize| status.split(' ').nth(n).and_then(|f| f.parse::<f64>().ok());
    let slots = field(1).ok_or("the status has no number of blocks")?;
    let figures = json!({
        "cpu_s": cpu, "wall_s": wall, "peak_rss_mib": peak / 1048576.0,
        "steady_rss_mib": steady / 1048576.0, "rss_bytes_per_block": steady / slots,
        "peak_bytes_per_block": heap.bytes_max as f64 / slots,
        "steady_bytes_per_block": heap.bytes_current as f64 / slots,
        "slots": slots,
        "dirty": cache.attribute("dirty_blocks").map_err(|e| e.chain())?.to_string(),
    });
    writeln!(stdout(), "{figures}").map_err(|e| e.to_string())
}

/// Has a process of its own open the image.
fn measure(
    image: &Path,
    contents: &Contents,
    expected: u64,
    ordered: bool,
) -> Result<Value, String> {
    let program = std::env::current_exe().map_err(|e| e.to_string())?;
    let mut command = Command::new(program);
    command.args(["cache-scale", "--open"]).arg(image);
    command.args(["--origin-blocks", &contents.origin_blocks().to_string()]);
    command.args(ordered.then_some("--ordered"));
    let output = command.output().map_err(|e| e.to_string())?;
    if !output.status.success() {
        return Err(String::from_utf8_lossy(&output.stderr).trim().to_owned());
    }
    let figures: Value = serde_json::from_slice(&output.stdout).map_err(|e| e.to_string())?;
    let dirty = figures["dirty"].as_str().and_then(|d| d.parse::<u64>().ok());
    if dirty != Some(expected) {
        return Err(format!("{figures}: {expected} blocks should be dirty"));
    }
    Ok(figures)
}

/// The median of a figure over the rounds.
fn of(rounds: &[Value], figure: &str) -> f64 {
    median(&rounds.iter().filter_map(|r| r[figure].as_f64()).collect::<Vec<_>>())
}

fn run(args: &Args, image: &Path) -> Result<(), String> {
    let failed = |e: io::Error| format!("{}: {e}", image.display());
    let mut table = stdout();
    let mut last = Map::new();
    last.insert("bench".into(), json!("cache-scale"));
    last.insert("blocks".into(), json!(args.blocks));
    let head = ["cpu s", "wall s", "peak MiB", "steady MiB", "RSS B/blk", "peak B/blk", "B/blk"];
    let head: String = head.iter().map(|h| format!(" {h:>10}")).collect();
    writeln!(table, "{:<10} {:>9} {:>9}{head}", "image", "entries", "log").map_err(failed)?;
    for Case { key, dirty_percent, log_percent, ordered, again } in CASES {
        let epochs = ordered && log_percent > 0;
        let contents =
            Contents { blocks: args.blocks, dirty_percent, log_percent, ordered: epochs };
        let (mut made, mut rounds) = (Made { records: 0, dirty: 0 }, Vec::new());
        for round in 0..args.rounds {
            if round == 0 || !again {
                made = contents.make(image).map_err(failed)?;
            }
            if round == 0 && again {
                measure(image, &contents, made.dirty, ordered)?;
            }
            rounds.push(measure(image, &contents, made.dirty, ordered)?);
        }
        let row: String = FIGURES.iter().map(|f| format!(" {:>10.2}", of(&rounds, f))).collect();
        writeln!(table, "{key:<10} {:>9} {:>9}{row}", args.blocks, made.records).map_err(failed)?;
        for figure in FIGURES {
            last.insert(format!("{key}_{figure}"), json!(of(&rounds, figure)));
        }
        last.insert(format!("{key}_log_records"), json!(made.records));
    }
    writeln!(table, "{}", Value::Object(last)).map_err(failed)
}

fn bench(args: &Args) -> Result<(), String> {
    if let (Some(image), Some(origin_blocks)) = (&args.open, args.origin_blocks) {
        return open(image, origin_blocks, args.ordered);
    }
    let image = args.dir.dir.join(format!("millpond-bench-cache-scale-{}", std::process::id()));
    let outcome = run(args, &image);
    std::fs::remove_file(&image).ok();
    outcome
}

pub(crate) fn main(args: &Args) -> ExitCode {
    ended("cache-scale", bench(args))
}
