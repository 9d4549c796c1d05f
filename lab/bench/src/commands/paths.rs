// SPDX-License-Identifier: Apache-2.0 OR MIT
//! `make bench-paths`: what one operation of 4 KiB takes on the hot paths of the engines, counted.
//!
//! ```text
//!   instructions   callgrind, of two runs that differ only in length: what both do cancels out
//!   allocations    in the part that only the longer one has
//!   clock reads    the same
//! ```
//!
//! An engine stands on disks that end every request at once. Copies, checksums and compression
//! count; the row `memory` is a write without an engine.
use std::process::{Command, ExitCode};

use bench::counted::Count;
use bench::counting_core::{COUNTED, CountingCore, DEPTH, Failure, MIB, in_order, random};
use bench::counting_doors::Direction;
use bench::output::finish;
use block::{Flags, Sector};
use reproduce::compressed::data::Data;
use reproduce::report::Section;
use reproduce::table::{Table, fixed};

/// Counts instructions, allocations and clock reads of one operation on each hot path
#[derive(Debug, clap::Args)]
#[command(after_help = "\
Examples:
  make bench-paths
  make bench-paths ARGS='wc-write zram-read'")]
pub(crate) struct Args {
    /// Only these paths
    #[arg(value_name = "NAME")]
    names: Vec<String>,
    /// Run so many operations of the one path in this process: what each measurement counts
    #[arg(long, hide = true, value_name = "OPERATIONS")]
    run: Option<u64>,
}

const PATHS: [(&str, &str); 44] = [
    ("memory", "write of memory, no engine"),
    ("leaf-read", "file: read, one at a time"),
    ("leaf-read-wbt", "the same, throttled"),
    ("leaf-write", "write, one at a time"),
    ("leaf-write-wbt", "the same, throttled"),
    ("leaf-mixed", "a read and a write by turns, each"),
    ("leaf-mixed-wbt", "the same, throttled"),
    ("leaf-reads", "16 reads at once, each"),
    ("leaf-reads-wbt", "the same, throttled"),
    ("leaf-writes", "16 writes at once, each"),
    ("leaf-writes-wbt", "the same, throttled"),
    ("leaf-waits-wbt", "the same, of which 13 have to wait"),
    ("leaf-read-4k", "file of 4096-byte blocks: read of a block"),
    ("leaf-write-4k", "write of a block"),
    ("wc-write", "write cache: write over a dirty block"),
    ("wc-write-journal", "the same, with a journal in memory"),
    ("wc-write-buffer", "the same, with a write buffer: a write of memory later"),
    ("wc-write-buffer-journal", "the same, with a journal in memory, too"),
    ("wc-flush-buffer", "write, then flush, alone, with a write buffer"),
    ("wc-write-new", "write of a new block, and a writeback"),
    ("wc-write-new-journal", "the same, with a journal in memory"),
    ("wc-writeback", "flush of many blocks, a quarter of their neighbourhood: each"),
    ("wc-write-pmem", "the same in mode p"),
    ("wc-write-fua", "write with FUA, alone"),
    ("wc-flush", "write, then flush, alone"),
    ("wc-read-hit", "read of a cached block"),
    ("wc-read-miss", "read of another"),
    ("buf-read-hit", "page cache: read of a cached page"),
    ("buf-read-miss", "read of another, and a reclaim"),
    ("buf-read-order", "read in order, with read-ahead"),
    ("buf-write-hit", "write of a cached page"),
    ("buf-write-order", "write in order, and a writeback"),
    ("buf-write-new", "write of another page, and a writeback"),
    ("lz4", "the compressor alone, a page that half compresses"),
    ("zram-write", "zram, lz4: write that half compresses, over another"),
    ("zram-write-same", "write of one word, over another"),
    ("zram-write-huge", "write that does not compress, over another"),
    ("zram-read", "read of a page that half compresses"),
    ("zram-read-same", "read of a page of one word"),
    ("zram-writeback", "writeback of an idle page, packed"),
    ("ublk-read", "queue of a block device, without the kernel's part: read"),
    ("ublk-write", "write"),
    ("vhost-read", "queue of a virtual machine: read"),
    ("vhost-write", "write"),
];
/// The default size of a write buffer.
const BUFFER: u32 = 32 << 20;
/// Of page caches: nothing but the limits starts writeback.
const SMALL: &str = "4 memory 16M dirty_writeback_centisecs 0";
const LARGE: &str = "8 memory 1G dirty_writeback_centisecs 0 dirty_bytes 400M \
                     dirty_background_bytes 380M";

fn all_paths() -> String {
    PATHS.map(|(path, _)| path).join(", ")
}

/// Runs a path of so many operations.
fn run(path: &str, counted: u64) -> Result<(), Failure> {
    let core = CountingCore::new(counted);
    let (half, same, huge) = (Some(Data::Half), None, Some(Data::Random));
    let (few, many) = (random(4096), random(1 << 18));
    match path {
        "memory" => core.writes(core.memory()?, few, half),
        "leaf-read" => core.beside(core.leaf(false)?, 1, (true, false)),
        "leaf-read-wbt" => core.beside(core.leaf(true)?, 1, (true, false)),
        "leaf-write" => core.beside(core.leaf(false)?, 1, (false, true)),
        "leaf-write-wbt" => core.beside(core.leaf(true)?, 1, (false, true)),
        "leaf-mixed" => core.beside(core.leaf(false)?, 1, (true, true)),
        "leaf-mixed-wbt" => core.beside(core.leaf(true)?, 1, (true, true)),
        "leaf-reads" => core.beside(core.leaf(false)?, DEPTH, (true, false)),
        "leaf-reads-wbt" => core.beside(core.leaf(true)?, DEPTH, (true, false)),
        "leaf-writes" => core.beside(core.leaf(false)?, DEPTH, (false, true)),
        "leaf-writes-wbt" => core.beside(core.leaf(true)?, DEPTH, (false, true)),
        "leaf-waits-wbt" => core.beside(core.narrow_leaf()?, DEPTH, (false, true)),
        "leaf-read-4k" => core.beside(core.merging_leaf()?, 1, (true, false)),
        "leaf-write-4k" => core.beside(core.merging_leaf()?, 1, (false, true)),
        "wc-write" => core.writes(core.cache("s", 512 * MIB)?, few, half),
        "wc-write-journal" => {
            let core = core.with_shared_memory();
            core.writes(core.cache("s", 512 * MIB)?, few, half)
        }
        "wc-write-buffer" => {
            core.writes(core.cache_with_buffer("s", 512 * MIB, BUFFER)?, few, half)
        }
        "wc-write-buffer-journal" => {
            let core = core.with_shared_memory();
            core.writes(core.cache_with_buffer("s", 512 * MIB, BUFFER)?, few, half)
        }
        "wc-flush-buffer" => {
            let cache = core.cache_with_buffer("s", 512 * MIB, BUFFER)?;
            core.durable_writes(cache, Flags::empty())
        }
        "wc-write-new-journal" => {
            let core = core.with_shared_memory();
            core.writes(core.cache("s", 32 * MIB)?, many, half)
        }
        "wc-writeback" => core.write_back_cache(),
        "wc-write-new" => core.writes(core.cache("s", 32 * MIB)?, many, half),
        "wc-write-pmem" => core.writes(core.cache("p", 32 * MIB)?, many, half),
        "wc-write-fua" => core.durable_writes(core.cache("s", 512 * MIB)?, Flags::FUA),
        "wc-flush" => core.durable_writes(core.cache("s", 512 * MIB)?, Flags::empty()),
        "wc-read-hit" => {
            let cache = core.cache("s", 512 * MIB)?;
            core.fill(cache.clone(), 4096, half)?;
            core.reads(cache, few)
        }
        "wc-read-miss" => core.reads(core.cache("s", 512 * MIB)?, few),
        "buf-read-hit" | "buf-write-hit" => {
            let cache = core.page_cache(LARGE, Some(Sector(32 * MIB)))?;
            core.fill(cache.clone(), 4096, half)?;
            if path == "buf-read-hit" {
                core.reads(cache, few)
            } else {
                core.writes(cache, few, half)
            }
        }
        "buf-read-miss" => core.reads(core.page_cache(SMALL, Some(Sector(1024 * MIB)))?, many),
        "buf-read-order" => core.reads(core.page_cache(SMALL, Some(Sector(256 * MIB)))?, in_order),
        "buf-write-order" => core.writes(core.page_cache(LARGE, None)?, in_order, half),
        "buf-write-new" => core.writes(core.page_cache(LARGE, None)?, random(25 << 20), half),
        "lz4" => core.compress(Data::Half),
        "zram-write" => core.writes(core.zram()?, random(1 << 14), half),
        "zram-write-same" => core.writes(core.zram()?, random(1 << 14), same),
        "zram-write-huge" => core.writes(core.zram()?, random(1 << 14), huge),
        "zram-read" | "zram-read-same" => {
            let zram = core.zram()?;
            core.fill(zram.clone(), 1 << 14, if path == "zram-read" { half } else { same })?;
            core.reads(zram, random(1 << 14))
        }
        "zram-writeback" => core.write_back(&core.zram()?),
        "ublk-read" => core.ublk(Direction::Read),
        "ublk-write" => core.ublk(Direction::Write),
        "vhost-read" => core.vhost(Direction::Read),
        "vhost-write" => core.vhost(Direction::Write),
        other => Err(format!("{other}: no such path; there are {}", all_paths()).into()),
    }
}

/// The cost of one operation of a path.
struct Cost {
    instructions: f64,
    allocations: f64,
    clock_reads: f64,
}

fn measure(path: &str) -> Result<Cost, Failure> {
    let total = |operations: u64| {
        let mut command = Command::new(std::env::current_exe()?);
        command.args(["paths", path, "--run", &operations.to_string()]);
        let (instructions, output) = Count::Instructions.of(&command)?;
        let mut numbers = output.split_whitespace().map(str::parse::<f64>);
        let mut next = || numbers.next().ok_or("two numbers were expected");
        Ok::<_, Failure>((instructions, next()??, next()??))
    };
    let (short, long) = (total(0)?, total(COUNTED)?);
    let each = |short: f64, long: f64| (long - short) / COUNTED as f64;
    Ok(Cost {
        instructions: each(short.0, long.0),
        allocations: each(short.1, long.1),
        clock_reads: each(short.2, long.2),
    })
}

/// Measures all paths, or those of these names.
fn bench(names: &[String]) -> Result<Section, Failure> {
    if let Some(other) = names.iter().find(|name| PATHS.iter().all(|(path, _)| path != name)) {
        return Err(format!("{other}: no such path; there are {}", all_paths()).into());
    }
    let wanted = |path: &str| names.is_empty() || names.iter().any(|name| name == path);
    let (mut section, title) = (Section::default(), "one operation of 4 KiB, counted (valgrind)");
    let mut table =
        Table::new(title, &["path", "what"], &["instructions", "allocations", "clock reads"]);
    for (path, what) in PATHS.iter().filter(|(path, _)| wanted(path)) {
        let cost = measure(path)?;
        let figures = [(cost.instructions, 1), (cost.allocations, 3), (cost.clock_reads, 2)];
        table.row(&[path, what], figures.map(|(figure, digits)| fixed(figure, digits)));
        let key = path.replace('-', "_");
        section.put(format!("{key}_instructions"), cost.instructions);
        section.put(format!("{key}_allocations"), cost.allocations);
    }
    section.tables.push(table);
    Ok(section)
}

pub(crate) fn main(args: &Args) -> ExitCode {
    let done = match (args.run, &args.names[..]) {
        (Some(operations), [path]) => match run(path, operations) {
            Ok(()) => return ExitCode::SUCCESS,
            Err(e) => Err(e),
        },
        (_, names) => bench(names),
    };
    finish("paths", done.map_err(|e| e.to_string()))
}
