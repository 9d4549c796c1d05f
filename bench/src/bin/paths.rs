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
use bench::lab::{COUNTED, DEPTH, Failure, Lab, MIB, by_chance, in_order};
use bench::told::finish;
use block::{Flags, Sector};
use reproduce::compressed::data::Data;
use reproduce::report::Section;
use reproduce::table::{Table, fixed};

const USAGE: &str = "usage: paths [NAME...]   or, what is counted: paths --run NAME OPERATIONS";

const PATHS: [(&str, &str); 33] = [
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
    ("wc-write-new", "write of a new block, and a writeback"),
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
    ("zram-write", "zram, lz4: write that half compresses, over another"),
    ("zram-write-same", "write of one word, over another"),
    ("zram-write-huge", "write that does not compress, over another"),
    ("zram-read", "read of a page that half compresses"),
    ("zram-read-same", "read of a page of one word"),
    ("zram-writeback", "writeback of an idle page, packed"),
];
/// Of page caches: nothing but the limits starts writeback.
const SMALL: &str = "4 memory 16M dirty_writeback_centisecs 0";
const LARGE: &str = "8 memory 1G dirty_writeback_centisecs 0 dirty_bytes 400M \
                     dirty_background_bytes 380M";

/// Counts a path of so many operations.
fn run(path: &str, counted: u64) -> Result<(), Failure> {
    let lab = Lab::new(counted);
    let (half, same, huge) = (Some(Data::Half), None, Some(Data::Random));
    let (few, many) = (by_chance(4096), by_chance(1 << 18));
    match path {
        "memory" => lab.writes(lab.memory()?, few, half),
        "leaf-read" => lab.beside(lab.leaf(false)?, 1, (true, false)),
        "leaf-read-wbt" => lab.beside(lab.leaf(true)?, 1, (true, false)),
        "leaf-write" => lab.beside(lab.leaf(false)?, 1, (false, true)),
        "leaf-write-wbt" => lab.beside(lab.leaf(true)?, 1, (false, true)),
        "leaf-mixed" => lab.beside(lab.leaf(false)?, 1, (true, true)),
        "leaf-mixed-wbt" => lab.beside(lab.leaf(true)?, 1, (true, true)),
        "leaf-reads" => lab.beside(lab.leaf(false)?, DEPTH, (true, false)),
        "leaf-reads-wbt" => lab.beside(lab.leaf(true)?, DEPTH, (true, false)),
        "leaf-writes" => lab.beside(lab.leaf(false)?, DEPTH, (false, true)),
        "leaf-writes-wbt" => lab.beside(lab.leaf(true)?, DEPTH, (false, true)),
        "leaf-waits-wbt" => lab.beside(lab.narrow_leaf()?, DEPTH, (false, true)),
        "leaf-read-4k" => lab.beside(lab.merging_leaf()?, 1, (true, false)),
        "leaf-write-4k" => lab.beside(lab.merging_leaf()?, 1, (false, true)),
        "wc-write" => lab.writes(lab.cache("s", 512 * MIB)?, few, half),
        "wc-write-new" => lab.writes(lab.cache("s", 32 * MIB)?, many, half),
        "wc-write-pmem" => lab.writes(lab.cache("p", 32 * MIB)?, many, half),
        "wc-write-fua" => lab.durable_writes(lab.cache("s", 512 * MIB)?, Flags::FUA),
        "wc-flush" => lab.durable_writes(lab.cache("s", 512 * MIB)?, Flags::empty()),
        "wc-read-hit" => {
            let cache = lab.cache("s", 512 * MIB)?;
            lab.fill(cache.clone(), 4096, half)?;
            lab.reads(cache, few)
        }
        "wc-read-miss" => lab.reads(lab.cache("s", 512 * MIB)?, few),
        "buf-read-hit" | "buf-write-hit" => {
            let cache = lab.page_cache(LARGE, Some(Sector(32 * MIB)))?;
            lab.fill(cache.clone(), 4096, half)?;
            if path == "buf-read-hit" {
                lab.reads(cache, few)
            } else {
                lab.writes(cache, few, half)
            }
        }
        "buf-read-miss" => lab.reads(lab.page_cache(SMALL, Some(Sector(1024 * MIB)))?, many),
        "buf-read-order" => lab.reads(lab.page_cache(SMALL, Some(Sector(256 * MIB)))?, in_order),
        "buf-write-order" => lab.writes(lab.page_cache(LARGE, None)?, in_order, half),
        "buf-write-new" => lab.writes(lab.page_cache(LARGE, None)?, by_chance(25 << 20), half),
        "zram-write" => lab.writes(lab.zram()?, by_chance(1 << 14), half),
        "zram-write-same" => lab.writes(lab.zram()?, by_chance(1 << 14), same),
        "zram-write-huge" => lab.writes(lab.zram()?, by_chance(1 << 14), huge),
        "zram-read" | "zram-read-same" => {
            let zram = lab.zram()?;
            lab.fill(zram.clone(), 1 << 14, if path == "zram-read" { half } else { same })?;
            lab.reads(zram, by_chance(1 << 14))
        }
        "zram-writeback" => lab.write_back(&lab.zram()?),
        other => Err(format!("{other}: no such path; {USAGE}").into()),
    }
}

/// What one operation of a path takes.
struct Taken {
    instructions: f64,
    allocations: f64,
    clock_reads: f64,
}

fn measure(path: &str) -> Result<Taken, Failure> {
    let total = |operations: u64| {
        let mut command = Command::new(std::env::current_exe()?);
        command.args(["--run", path, &operations.to_string()]);
        let (instructions, said) = Count::Instructions.of(&command)?;
        let mut numbers = said.split_whitespace().map(str::parse::<f64>);
        let mut next = || numbers.next().ok_or("two numbers were to come");
        Ok::<_, Failure>((instructions, next()??, next()??))
    };
    let (short, long) = (total(0)?, total(COUNTED)?);
    let each = |short: f64, long: f64| (long - short) / COUNTED as f64;
    Ok(Taken {
        instructions: each(short.0, long.0),
        allocations: each(short.1, long.1),
        clock_reads: each(short.2, long.2),
    })
}

/// Measures all paths, or those of these names.
fn bench(names: &[String]) -> Result<Section, Failure> {
    if let Some(other) = names.iter().find(|name| PATHS.iter().all(|(path, _)| path != name)) {
        return Err(format!("{other}: no such path; {USAGE}").into());
    }
    let wanted = |path: &str| names.is_empty() || names.iter().any(|name| name == path);
    let (mut section, title) = (Section::default(), "one operation of 4 KiB, counted (valgrind)");
    let mut table =
        Table::new(title, &["path", "what"], &["instructions", "allocations", "clock reads"]);
    for (path, what) in PATHS.iter().filter(|(path, _)| wanted(path)) {
        let taken = measure(path)?;
        let figures = [(taken.instructions, 1), (taken.allocations, 3), (taken.clock_reads, 2)];
        table.row(&[path, what], figures.map(|(figure, digits)| fixed(figure, digits)));
        let key = path.replace('-', "_");
        section.put(format!("{key}_instructions"), taken.instructions);
        section.put(format!("{key}_allocations"), taken.allocations);
    }
    section.tables.push(table);
    Ok(section)
}

fn main() -> ExitCode {
    let words: Vec<String> = std::env::args().skip(1).collect();
    let run = |path: &str, count: &str| run(path, count.parse()?);
    let done = match &words[..] {
        [word, path, count] if word == "--run" => match run(path, count) {
            Ok(()) => return ExitCode::SUCCESS,
            Err(e) => Err(e),
        },
        names => bench(names),
    };
    finish("paths", done.map_err(|e| e.to_string()))
}
