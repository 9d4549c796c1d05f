// SPDX-License-Identifier: Apache-2.0 OR MIT
//! `make bench-iomap`: what writing back dirty pages costs, with the mapping called for each page
//! (`map_blocks=single`) and for each run (`multi`), in turns on the same cache.
use std::process::ExitCode;

use bench::output::{Dir, finish, progress};
use clap::ValueEnum;
use reproduce::iomap::test_bed::LeafKind;
use reproduce::scenario::iomap::{Case, Options, run};

/// What takes the writes in the end.
#[derive(Clone, Copy, Debug, ValueEnum)]
enum Leaf {
    /// Everything at once: what is left is our own CPU
    Null,
    /// A file: the kernel's CPU counts, too
    File,
}

impl Leaf {
    fn cases(self) -> Vec<Case> {
        match self {
            Leaf::Null => Case::all(LeafKind::Null),
            Leaf::File => Case::all(LeafKind::File),
        }
    }
}

/// Shows what writing back the dirty pages of a page cache costs
///
/// The mapping below is called for each page, and once a run, in turns on the same cache. CPU is
/// that of the process with all its threads.
#[derive(Debug, clap::Args)]
#[command(after_help = "\
Examples:
  make bench-iomap
  make bench-iomap ARGS='--only null --size-mib 1024'
  make bench-iomap ARGS='--dir /srv --rounds 11'")]
pub(crate) struct Args {
    #[command(flatten)]
    dir: Dir,
    /// Dirty pages in MiB; device and cache are four times as large
    #[arg(long, default_value_t = 256, value_parser = clap::value_parser!(u64).range(8..1 << 20))]
    size_mib: u64,
    /// How often everything is run
    #[arg(long, default_value_t = 7, value_parser = clap::value_parser!(u16).range(1..))]
    rounds: u16,
    /// Only what lies on this [default: both]
    #[arg(long, value_enum)]
    only: Option<Leaf>,
}

pub(crate) fn main(args: &Args) -> ExitCode {
    let leaves = args.only.map_or_else(|| vec![Leaf::Null, Leaf::File], |only| vec![only]);
    let cases = leaves.into_iter().flat_map(Leaf::cases).collect();
    let options = Options { cases, size_mib: args.size_mib, rounds: args.rounds.into() };
    finish("iomap", run(&args.dir.dir, &options, &mut progress))
}
