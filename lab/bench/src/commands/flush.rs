// SPDX-License-Identifier: Apache-2.0 OR MIT
//! `make bench-flush`: how long the flush of a write cache takes on this machine's disk, and how
//! long a reader waits beside it. The same scenario as `make bench-flush-sim`, on files.
use std::process::ExitCode;

use bench::output::{Dir, finish, progress};
use block::Nanos;
use clap::ValueEnum;
use reproduce::flush::{BLOCK_BYTES, Reads, Scale, Strategy};
use reproduce::scenario::writecache::local::{Options, READ_STRATEGIES, run};

/// Whether the origin is taken for a disk that moves a head.
#[derive(Clone, Copy, Debug, ValueEnum)]
enum Rotational {
    /// As the disk says.
    Auto,
    Yes,
    No,
}

/// A strategy of writeback, as the command line names it.
#[derive(Clone, Copy, Debug, PartialEq, Eq, ValueEnum)]
enum WritebackStrategy {
    Lru,
    Sorted,
    /// Sorted; each run reads its own slots.
    SortedAlone,
    GapFill,
    GapKnown,
}

impl WritebackStrategy {
    fn strategy(self) -> Strategy {
        match self {
            WritebackStrategy::Lru => Strategy::Lru,
            WritebackStrategy::Sorted => Strategy::Sorted,
            WritebackStrategy::SortedAlone => Strategy::SortedAlone,
            WritebackStrategy::GapFill => Strategy::GapFill,
            WritebackStrategy::GapKnown => Strategy::GapKnown,
        }
    }
}

/// Times the flush of a write cache on files of this machine's disk
///
/// In LRU order, sorted, with gaps filled, with gaps filled from clean copies, in turns within a
/// round; figures are the medians of the rounds'.
#[derive(Debug, clap::Args)]
#[command(after_help = "\
Examples:
  make bench-flush
  make bench-flush ARGS='--size-mib 2048 --dir /srv'
  make bench-flush ARGS='--jobs 1 --rotational no --rounds 3'
  make bench-flush ARGS='--ways sorted,sorted-alone --size-mib 523'")]
pub(crate) struct Args {
    #[command(flatten)]
    dir: Dir,
    /// Size of the origin in MiB; the published run has 2048
    #[arg(long, default_value_t = 1024, value_parser = clap::value_parser!(u64).range(16..1 << 20))]
    size_mib: u64,
    /// How much of the origin is dirty, in per cent
    #[arg(long, default_value_t = 49, value_parser = clap::value_parser!(u64).range(1..=90))]
    dirty_percent: u64,
    /// How often everything is run
    #[arg(long, default_value_t = 5, value_parser = clap::value_parser!(u16).range(1..))]
    rounds: u16,
    /// Writes of writeback in flight; 0 is no limit but the cache's own
    #[arg(long, default_value_t = 0)]
    jobs: u32,
    /// Reads a second, beside the flush and before it
    #[arg(long, default_value_t = 500, value_parser = clap::value_parser!(u64).range(1..100_000))]
    reads: u64,
    /// Reads before the flush, of which the latencies at rest come
    #[arg(long, default_value_t = 2000)]
    idle_reads: usize,
    /// Take the origin for a disk that rotates, or for one that does not, whatever it says
    #[arg(long, value_enum, default_value = "auto")]
    rotational: Rotational,
    /// The ways of writing back that are run; some of them beside a reader, too
    #[arg(long, value_enum, value_delimiter = ',',
          default_values = ["lru", "sorted", "sorted-alone", "gap-fill", "gap-known"])]
    ways: Vec<WritebackStrategy>,
}

impl Args {
    fn options<'a>(&'a self, ways: &'a [Strategy], read_ways: &'a [Strategy]) -> Options<'a> {
        let origin_blocks = (self.size_mib << 20) / BLOCK_BYTES;
        let cache_blocks = origin_blocks * self.dirty_percent / 100;
        Options {
            dir: &self.dir.dir,
            scale: Scale { origin_blocks, cache_blocks },
            dirty_percent: self.dirty_percent,
            rounds: self.rounds.into(),
            jobs: self.jobs,
            strategies: ways,
            read_strategies: read_ways,
            reads: Reads { every: Nanos(1_000_000_000 / self.reads), idle: self.idle_reads },
            rotational: match self.rotational {
                Rotational::Auto => None,
                Rotational::Yes => Some(true),
                Rotational::No => Some(false),
            },
        }
    }
}

pub(crate) fn main(args: &Args) -> ExitCode {
    let ways: Vec<Strategy> = args.ways.iter().map(|way| way.strategy()).collect();
    let read_ways: Vec<Strategy> =
        READ_STRATEGIES.into_iter().filter(|way| ways.contains(way)).collect();
    finish("flush", run(&args.options(&ways, &read_ways), &mut progress))
}
