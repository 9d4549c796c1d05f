// SPDX-License-Identifier: Apache-2.0 OR MIT
//! `make bench-flush`: how long the flush of a write cache takes on this machine's disk, and how
//! long a reader waits beside it. The same scenario as `make bench-flush-sim`, on files.
use std::process::ExitCode;

use bench::output::{Dir, finish, progress};
use block::Nanos;
use clap::ValueEnum;
use reproduce::flush::{BLOCK_BYTES, Reads, Scale};
use reproduce::scenario::writecache::local::{Options, run};

/// Whether the origin is taken for a disk that moves a head: gaps are filled only there.
#[derive(Clone, Copy, Debug, ValueEnum)]
enum Rotational {
    /// As the disk says.
    Auto,
    Yes,
    No,
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
  make bench-flush ARGS='--jobs 1 --rotational no --rounds 3'")]
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
}

impl Args {
    fn options(&self) -> Options<'_> {
        let origin_blocks = (self.size_mib << 20) / BLOCK_BYTES;
        let cache_blocks = origin_blocks * self.dirty_percent / 100;
        Options {
            dir: &self.dir.dir,
            scale: Scale { origin_blocks, cache_blocks },
            dirty_percent: self.dirty_percent,
            rounds: self.rounds.into(),
            jobs: self.jobs,
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
    finish("flush", run(&args.options(), &mut progress))
}
