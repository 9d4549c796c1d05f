// SPDX-License-Identifier: Apache-2.0 OR MIT
//! `make bench-flush`: how long the flush of a write cache takes on this machine's disk: in LRU
//! order, sorted, with gaps filled, with gaps filled from clean copies; and how long a reader waits
//! beside it.
//!
//! The same scenario as `make bench-flush-sim`, on files instead of models. All ways alternate
//! within a round; figures are the medians of the rounds'.
use std::io::{self, Write, stderr, stdout};
use std::path::PathBuf;
use std::process::ExitCode;

use block::Nanos;
use clap::{Parser, ValueEnum};
use reproduce::flush::{BLOCK_BYTES, Outcome, Plan, Reads, Scale, Way, percentile};
use reproduce::flush_disk::Ground;
use reproduce::median::{median, spread_percent};
use serde_json::{Map, Value, json};

const MIB: u64 = 1 << 20;
const WAYS: [Way; 4] = [Way::Lru, Way::Sorted, Way::GapFill, Way::GapKnown];
/// The reader is beside the default way.
const READER_WAY: Way = Way::GapFill;

/// Whether the origin is taken for a disk that moves a head: gaps are filled only there.
#[derive(Clone, Copy, Debug, ValueEnum)]
enum Rotational {
    /// As the disk says.
    Auto,
    Yes,
    No,
}

/// Times the flush of a write cache on files of this machine's disk.
#[derive(Debug, Parser)]
#[command(name = "flush")]
struct Args {
    /// Where the files are made; they are gone afterwards.
    #[arg(long, default_value_os_t = std::env::temp_dir())]
    dir: PathBuf,
    /// Size of the origin in MiB; the published run has 2048.
    #[arg(long, default_value_t = 1024, value_parser = clap::value_parser!(u64).range(16..1 << 20))]
    size_mib: u64,
    /// How much of the origin is dirty, in per cent.
    #[arg(long, default_value_t = 49, value_parser = clap::value_parser!(u64).range(1..=90))]
    dirty_percent: u64,
    /// How often everything is run.
    #[arg(long, default_value_t = 5, value_parser = clap::value_parser!(u64).range(1..))]
    rounds: u64,
    /// Writes of writeback in flight; 0 is no limit but the cache's own.
    #[arg(long, default_value_t = 0)]
    jobs: u32,
    /// Reads a second, beside the flush and before it.
    #[arg(long, default_value_t = 500, value_parser = clap::value_parser!(u64).range(1..100_000))]
    reads: u64,
    /// Reads before the flush, of which the latencies at rest come.
    #[arg(long, default_value_t = 2000)]
    idle_reads: usize,
    /// Take the origin for a disk that rotates, or for one that does not, whatever it says.
    #[arg(long, value_enum, default_value = "auto")]
    rotational: Rotational,
}

impl Args {
    fn scale(&self) -> Scale {
        let origin_blocks = self.size_mib * MIB / BLOCK_BYTES;
        Scale { origin_blocks, cache_blocks: origin_blocks * self.dirty_percent / 100 }
    }

    fn plan(&self, way: Way, reader: bool, nth: u64) -> Plan {
        let every = Nanos(1_000_000_000 / self.reads);
        let reads = reader.then_some(Reads { every, idle: self.idle_reads });
        let (scale, jobs) = (self.scale(), self.jobs);
        Plan { scale, way, fill_percent: self.dirty_percent, reads, jobs, nth, watched: false }
    }

    fn rotational(&self) -> Option<bool> {
        match self.rotational {
            Rotational::Auto => None,
            Rotational::Yes => Some(true),
            Rotational::No => Some(false),
        }
    }
}

/// Outcomes of the rounds.
#[derive(Default)]
struct Results {
    /// By [`WAYS`].
    ways: [Vec<Outcome>; WAYS.len()],
    reader: Vec<Outcome>,
}

fn middle(outcomes: &[Outcome], figure: impl Fn(&Outcome) -> f64) -> f64 {
    median(&outcomes.iter().map(figure).collect::<Vec<_>>())
}

fn percentile_us(read_ns: &[u64], per_cent: usize) -> f64 {
    percentile(read_ns, per_cent).map_or(f64::NAN, |ns| ns as f64 / 1e3)
}

fn measure(args: &Args, ground: &Ground) -> Result<Results, String> {
    let mut results = Results::default();
    let (steps, mut step) = ((args.rounds + 1) * (WAYS.len() as u64 + 1), 0);
    // What is first pays for what nobody has written before: the first round does not count.
    for round in 0..=args.rounds {
        for turn in 0..=WAYS.len() {
            step += 1;
            let at = (turn + usize::try_from(round).unwrap_or(0)) % (WAYS.len() + 1);
            let way = WAYS.get(at).copied();
            let plan = args.plan(way.unwrap_or(READER_WAY), way.is_none(), step);
            let outcome = ground.run(plan)?;
            let (name, seconds) = (plan.way.name(), outcome.seconds());
            let beside = if way.is_none() { " beside a reader" } else { "" };
            let counts = if round == 0 { " (warm-up, not counted)" } else { "" };
            let _ = writeln!(stderr(), "{step} of {steps}: {name}{beside}: {seconds:.3} s{counts}");
            if round > 0 {
                let into = results.ways.get_mut(at).unwrap_or(&mut results.reader);
                into.push(outcome);
            }
        }
    }
    Ok(results)
}

fn print(out: &mut impl Write, args: &Args, ground: &Ground, results: &Results) -> io::Result<()> {
    let limits = ground.limits().map_err(io::Error::other)?;
    let says = if limits.rotational { "rotates" } else { "does not rotate" };
    let whose = if args.rotational().is_some() { "taken for one that" } else { "says that it" };
    writeln!(
        out,
        "Random dirty 4 KiB blocks, {} % of {} MiB, each written once; then one `flush`.\n\
         Files in {}; the disk {whose} {says}. Medians of {} rounds.\n",
        args.dirty_percent,
        args.size_mib,
        args.dir.display(),
        args.rounds
    )?;
    writeln!(
        out,
        "{:10} {:>8} {:>5} {:>7} {:>7} {:>11} {:>12} {:>11} {:>8} {:>8}",
        "way",
        "seconds",
        "+-%",
        "of lru",
        "MiB/s",
        "origin I/Os",
        "bytes an I/O",
        "MiB written",
        "MiB read",
        "flushes"
    )?;
    let lru = &results.ways[0];
    for (way, outcomes) in WAYS.iter().zip(&results.ways) {
        let of = |figure: fn(&Outcome) -> f64| middle(outcomes, figure);
        let seconds: Vec<f64> = outcomes.iter().map(Outcome::seconds).collect();
        // Ratios of one round, in which the disk was the same.
        let gains = lru.iter().zip(outcomes).map(|(lru, o)| lru.seconds() / o.seconds());
        let gain = median(&gains.collect::<Vec<_>>());
        writeln!(
            out,
            "{:10} {:8.3} {:5.0} {gain:7.2} {:7.1} {:11.0} {:12.0} {:11.0} {:8.0} {:8.0}",
            way.name(),
            median(&seconds),
            spread_percent(&seconds),
            of(Outcome::mib_per_s),
            of(|o| o.origin_writes as f64),
            of(|o| o.mean_io_bytes() as f64),
            of(|o| o.origin_write_bytes as f64 / MIB as f64),
            of(|o| o.origin_read_bytes as f64 / MIB as f64),
            of(|o| o.origin_flushes as f64),
        )?;
    }
    let us = |of: fn(&Outcome) -> &[u64], p| middle(&results.reader, |o| percentile_us(of(o), p));
    let seconds = middle(&results.reader, Outcome::seconds);
    writeln!(out, "\nA reader of random blocks, {} a second, us", args.reads)?;
    writeln!(out, "{:10} {:>9} {:>9}", "", "p50", "p99")?;
    for (name, of) in [
        ("at rest", idle as fn(&Outcome) -> &[u64]),
        ("in flush", in_flush as fn(&Outcome) -> &[u64]),
    ] {
        writeln!(out, "{name:10} {:9.0} {:9.0}", us(of, 50), us(of, 99))?;
    }
    let ratio = us(in_flush, 99) / us(idle, 99);
    writeln!(out, "p99 in flush over p99 at rest: {ratio:.2}; that flush: {seconds:.3} s\n")
}

fn idle(outcome: &Outcome) -> &[u64] {
    &outcome.idle_read_ns
}

fn in_flush(outcome: &Outcome) -> &[u64] {
    &outcome.flush_read_ns
}

fn summary(args: &Args, results: &Results) -> Value {
    let mut keys = Map::new();
    keys.insert("bench".to_owned(), json!("flush"));
    keys.insert("size_mib".to_owned(), json!(args.size_mib));
    keys.insert("dirty_percent".to_owned(), json!(args.dirty_percent));
    keys.insert("jobs".to_owned(), json!(args.jobs));
    let mut put = |name: &str, what: &str, value: f64| {
        keys.insert(format!("{name}_{what}"), json!(value));
    };
    for (way, outcomes) in WAYS.iter().zip(&results.ways) {
        let name = way.name();
        put(name, "s", (middle(outcomes, Outcome::seconds) * 1e6).round() / 1e6);
        put(name, "ios", middle(outcomes, |o| o.origin_writes as f64));
        put(name, "mean_io_bytes", middle(outcomes, |o| o.mean_io_bytes() as f64));
        put(name, "write_bytes", middle(outcomes, |o| o.origin_write_bytes as f64));
        put(name, "read_bytes", middle(outcomes, |o| o.origin_read_bytes as f64));
    }
    let p99 = |of: fn(&Outcome) -> &[u64]| middle(&results.reader, |o| percentile_us(of(o), 99));
    put("foreground", "p99_idle_us", p99(idle).round());
    put("foreground", "p99_flush_us", p99(in_flush).round());
    Value::Object(keys)
}

fn main() -> ExitCode {
    let args = Args::parse();
    let origin_blocks = args.scale().origin_blocks;
    let done = Ground::new(&args.dir, origin_blocks, args.rotational()).and_then(|ground| {
        let results = measure(&args, &ground)?;
        let mut out = stdout().lock();
        let printed = print(&mut out, &args, &ground, &results)
            .and_then(|()| writeln!(out, "{}", summary(&args, &results)));
        printed.map_err(|e| e.to_string())
    });
    match done {
        Ok(()) => ExitCode::SUCCESS,
        Err(why) => {
            let _ = writeln!(stderr(), "flush: {why}");
            ExitCode::FAILURE
        }
    }
}
