// SPDX-License-Identifier: Apache-2.0 OR MIT
//! `make bench-noclone`: what pure mappings cost a request, remapped in place and cloned, beside
//! the raw device; in process, counted, and through FUSE.
//!
//! In process all shapes are driven in short turns over the same memory, and compared turn by turn.
//! Instructions and allocations are counted by valgrind: two runs of different length, so that what
//! is done once cancels out.
use std::io::{self, Write, stderr, stdout};
use std::path::{Path, PathBuf};
use std::process::ExitCode;

use bench::counted::Count;
use bench::files::{self, Files};
use reproduce::mapped::{Group, RANDREAD_512, SHAPES, Shape, Timed, time};
use reproduce::median::{median, spread_percent};
use serde_json::{Map, Value, json};

const USAGE: &str = "usage: noclone [--turns N] [--turn-ms MS] [--rounds N] [--seconds S] \
                     [--ours PROGRAM] [--dir DIR]";

struct Args {
    /// Turns of each shape in process.
    turns: u32,
    turn_ms: u32,
    /// Runs of fio on each file.
    rounds: usize,
    seconds: f64,
    ours: PathBuf,
    dir: PathBuf,
}

fn args() -> Result<Args, String> {
    let here = std::env::current_exe().map_err(|e| e.to_string())?;
    let mut args = Args {
        turns: 15,
        turn_ms: 100,
        rounds: 5,
        seconds: 1.0,
        ours: here.with_file_name("millpond"),
        dir: std::env::temp_dir(),
    };
    let mut words = std::env::args().skip(1);
    while let Some(flag) = words.next() {
        let value = words.next().ok_or(USAGE)?;
        let bad = || format!("{flag} {value}: not understood; {USAGE}");
        match &flag[..] {
            "--turns" => args.turns = value.parse().map_err(|_| bad())?,
            "--turn-ms" => args.turn_ms = value.parse().map_err(|_| bad())?,
            "--rounds" => args.rounds = value.parse().map_err(|_| bad())?,
            "--seconds" => args.seconds = value.parse().map_err(|_| bad())?,
            "--ours" => args.ours = value.into(),
            "--dir" => args.dir = value.into(),
            _ => return Err(bad()),
        }
    }
    if !args.ours.exists() {
        let ours = args.ours.display();
        return Err(format!(
            "{ours}: not there; build it first: cargo build --release -p millpond"
        ));
    }
    Ok(args)
}

const GIB: u64 = 1 << 21;
const STRIPED: &[Shape] = &[Shape::Raw, Shape::Striped, Shape::CloneStriped];

fn groups() -> [Group; 4] {
    let memory = |key, what, load, shapes| Group {
        key,
        what,
        leaf: "mem:1G".into(),
        sectors: GIB,
        load,
        shapes,
    };
    [
        memory("", "memory, randread 512 B, depth 32, 1 job", RANDREAD_512, &SHAPES),
        memory(
            "jobs2_",
            "memory, randread 512 B, depth 32, 2 jobs",
            &["--rw", "randread", "--bs", "512", "--iodepth", "32", "--jobs", "2"],
            &SHAPES,
        ),
        memory(
            "bs64k_",
            "memory, randread 64 KiB, depth 32, 1 job",
            &["--rw", "randread", "--bs", "64K", "--iodepth", "32"],
            STRIPED,
        ),
        // Writes: the null device fills the buffers of reads with zeroes, SPDK's does not.
        Group {
            key: "null_",
            what: "null, randwrite 4 KiB, depth 64, 1 job",
            leaf: "null:1G".into(),
            sectors: GIB,
            load: &["--rw", "randwrite", "--bs", "4K", "--iodepth", "64"],
            shapes: &SHAPES,
        },
    ]
}

/// What valgrind has counted for a shape.
struct Counted {
    shape: Shape,
    instructions: f64,
    allocations: f64,
}

fn count(ours: &Path) -> Result<Vec<Counted>, String> {
    let one = |shape: Shape| {
        let instructions = Count::Instructions.per_request(ours, shape)?;
        let allocations = Count::Allocations.per_request(ours, shape)?;
        Ok(Counted { shape, instructions, allocations })
    };
    SHAPES.into_iter().map(one).collect()
}

/// What came of one file under fio: a key and the runs.
struct Through {
    key: &'static str,
    what: &'static str,
    runs: Vec<f64>,
}

fn through_fuse(args: &Args, dir: &Path, errors: &mut Vec<String>) -> Vec<Through> {
    let mut told = |e: String| errors.push(e);
    let ours = Files::ours(&args.ours, &dir.join("ours")).map_err(&mut told).ok();
    let qsd = Files::qsd(&dir.join("qsd")).map_err(&mut told).ok();
    let mut cells: Vec<(Through, &Path, &[&str])> = Vec::new();
    let mut cell = |key, what, file, job| {
        cells.push((Through { key, what, runs: Vec::new() }, file, job));
    };
    if let Some((_, raw, linear)) = &ours {
        cell("fuse_raw", "mem:1G, published job", raw, files::PUBLISHED);
        cell("fuse_linear", "linear on it, published job", linear, files::PUBLISHED);
        cell("fuse_randread", "linear, 4 KiB randread", linear, files::RANDREAD);
        cell("fuse_randwrite", "linear, 4 KiB randwrite", linear, files::RANDWRITE);
    }
    if let Some((_, file)) = &qsd {
        cell("qsd_fuse_randread", "qsd null-co, 4 KiB randread", file, files::RANDREAD);
        cell("qsd_fuse_randwrite", "qsd null-co, 4 KiB randwrite", file, files::RANDWRITE);
    }
    for round in 0..args.rounds {
        for nth in 0..cells.len() {
            let at = (round + nth) % cells.len();
            let (through, file, job) = &mut cells[at];
            match files::fio(file, job, args.seconds) {
                Ok(iops) => through.runs.push(iops),
                Err(e) => errors.push(e),
            }
        }
    }
    errors.dedup();
    cells.into_iter().map(|(through, _, _)| through).collect()
}

fn print_timed(out: &mut impl Write, group: &Group, timed: &[Timed]) -> io::Result<()> {
    writeln!(out, "\n{}", group.what)?;
    let head = ["IOPS", "+-%", "to raw", "ns", "ns over raw", "ns a layer"];
    write!(out, "  {:16}", "")?;
    for title in head {
        write!(out, " {title:>12}")?;
    }
    writeln!(out)?;
    for t in timed {
        let (ns, spread) = (1e9 / t.iops, spread_percent(&t.turns_iops));
        let layer = t.more_ns / f64::from(t.shape.layers().max(1));
        let key = t.shape.key();
        write!(out, "  {key:16} {:12.0} {spread:12.0} {:12.3} {ns:12.1}", t.iops, t.ratio)?;
        writeln!(out, " {:12.1} {layer:12.1}", t.more_ns)?;
    }
    Ok(())
}

fn print_counted(out: &mut impl Write, counted: &[Counted]) -> io::Result<()> {
    writeln!(out, "\ncounted, a request of 512 B (valgrind)")?;
    let head = ["instructions", "over raw", "a layer", "allocations"];
    writeln!(out, "  {:16} {:>12} {:>12} {:>12} {:>12}", "", head[0], head[1], head[2], head[3])?;
    let raw = counted.first().map_or(f64::NAN, |c| c.instructions);
    for c in counted {
        let more = c.instructions - raw;
        let layer = more / f64::from(c.shape.layers().max(1));
        let (key, instructions) = (c.shape.key(), c.instructions);
        write!(out, "  {key:16} {instructions:12.1} {more:12.1} {layer:12.1}")?;
        writeln!(out, " {:12.3}", c.allocations)?;
    }
    Ok(())
}

const BESIDE: &str = "
beside it, published:
  Linux, dm-linear on a RAM disk, 512 B psync reads, 12 jobs, 12 cores (MiB/s): raw 2449,
    with clone 1970 (0.804), without 2238 (0.914)
  SPDK, bdevperf, null device, 4 KiB, depth 64, one core: 64 ns; passthru +70, raid0 +82,
    split +60 ns a layer
";

fn print_through(out: &mut impl Write, through: &[Through]) -> io::Result<()> {
    writeln!(out, "\nthrough FUSE, fio (IOPS)")?;
    for t in through {
        let (iops, spread) = (median(&t.runs), spread_percent(&t.runs));
        writeln!(out, "  {:32} {iops:12.0} +-{spread:.0} %", t.what)?;
    }
    Ok(())
}

/// Middle one of the ratios of neighbouring runs.
fn ratio(through: &[Through], a: &str, b: &str) -> Option<f64> {
    let runs = |key| through.iter().find(|t| t.key == key).map(|t| &t.runs);
    let pairs = runs(a)?.iter().zip(runs(b)?);
    Some(median(&pairs.map(|(a, b)| a / b).collect::<Vec<_>>()))
}

fn bench(args: &Args) -> Result<(), String> {
    let mut errors = Vec::new();
    let mut keys = Map::new();
    let mut out = stdout().lock();
    let io = |e: io::Error| e.to_string();
    for group in groups() {
        let timed = time(&args.ours, &group, args.turns, args.turn_ms)?;
        print_timed(&mut out, &group, &timed).map_err(io)?;
        for t in &timed {
            let key = |what: &str| format!("{}{}_{what}", group.key, t.shape.key());
            keys.insert(key("iops"), json!(t.iops.round()));
            if t.shape != Shape::Raw {
                keys.insert(key("ratio"), json!(t.ratio));
                keys.insert(key("more_ns"), json!(t.more_ns));
            }
            if t.shape == Shape::Layers3 && group.key.is_empty() {
                keys.insert("ns_per_layer".into(), json!(t.more_ns / 3.0));
            }
        }
    }
    match count(&args.ours) {
        Ok(counted) => {
            print_counted(&mut out, &counted).map_err(io)?;
            let raw = counted[0].instructions;
            for c in &counted {
                let key = |what: &str| format!("{what}_{}", c.shape.key());
                keys.insert(key("instructions"), json!(c.instructions));
                keys.insert(key("allocations"), json!(c.allocations));
                if c.shape == Shape::Layers3 {
                    let more = c.instructions - raw;
                    keys.insert("instructions_layers3_over_raw".into(), json!(more));
                    keys.insert("allocations_per_io".into(), json!(c.allocations));
                }
            }
        }
        Err(e) => errors.push(e),
    }
    let dir = args.dir.join(format!("millpond-bench-noclone-{}", std::process::id()));
    let through = through_fuse(args, &dir, &mut errors);
    let _ = std::fs::remove_dir_all(&dir);
    print_through(&mut out, &through).map_err(io)?;
    for t in &through {
        keys.insert(format!("{}_iops", t.key), json!(median(&t.runs).round()));
    }
    let linear = ratio(&through, "fuse_linear", "fuse_raw");
    let read = ratio(&through, "fuse_randread", "qsd_fuse_randread");
    let write = ratio(&through, "fuse_randwrite", "qsd_fuse_randwrite");
    for (key, what, ratio) in [
        ("fuse_linear_ratio", "linear to raw", linear),
        ("fuse_randread_over_qsd", "4 KiB randread, ours to qsd", read),
        ("fuse_randwrite_over_qsd", "4 KiB randwrite, ours to qsd", write),
    ] {
        if let Some(ratio) = ratio {
            writeln!(out, "  {what:32} {ratio:12.3}").map_err(io)?;
        }
        keys.insert(key.into(), json!(ratio));
    }
    write!(out, "{BESIDE}").map_err(io)?;
    for error in &errors {
        writeln!(out, "not measured: {error}").map_err(io)?;
    }
    keys.insert("errors".into(), json!(errors));
    writeln!(out, "{}", Value::Object(keys)).map_err(io)
}

fn main() -> ExitCode {
    let done = args().and_then(|args| bench(&args));
    match done {
        Ok(()) => ExitCode::SUCCESS,
        Err(e) => {
            let _ = writeln!(stderr(), "bench-noclone: {e}");
            ExitCode::FAILURE
        }
    }
}
