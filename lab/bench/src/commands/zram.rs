// SPDX-License-Identifier: Apache-2.0 OR MIT
//! `make bench-zram`: compressed RAM disks and their writeback, as ratios of one run.
use std::process::ExitCode;

use bench::compressed::{served, speed};
use bench::output::{Dir, ProgramOption, finish, positive, progress};
use clap::ValueEnum;
use reproduce::report::Section;
use reproduce::scenario::zram::{Options, SMALL_BYTES, run_local, run_memory, run_simulated};

/// A part of it.
#[derive(Clone, Copy, Debug, PartialEq, Eq, ValueEnum)]
enum Part {
    /// Page by page, in batches, packed, and the disk's plain sequential writes
    Writeback,
    /// The same on a model of an NVMe drive in virtual time
    Simulated,
    /// Memory used against bytes stored
    Memory,
    /// A page in process, against the bare compressor
    Speed,
    /// 4 KiB over NBD, against nbdkit's memory with allocator=zstd
    Served,
}

/// Shows compressed RAM disks and their writeback
///
/// What is compared alternates; figures are medians, ratios those of the runs of one round.
#[derive(Debug, clap::Args)]
#[command(after_help = "\
Examples:
  make bench-zram
  make bench-zram ARGS='--size-mib 4096 --only writeback --dir /srv'
  make bench-zram ARGS='--only served --seconds 2'")]
pub(crate) struct Args {
    #[command(flatten)]
    dir: Dir,
    #[command(flatten)]
    ours: ProgramOption,
    /// Idle pages that are written back, in MiB
    #[arg(long, default_value_t = 1024, value_parser = clap::value_parser!(u64).range(1..1 << 20))]
    size_mib: u64,
    /// How often everything is run
    #[arg(long, default_value_t = 5, value_parser = clap::value_parser!(u16).range(1..))]
    rounds: u16,
    /// Seconds of each load over NBD in each round
    #[arg(long, default_value_t = 0.5, value_parser = positive)]
    seconds: f64,
    /// Only this part
    #[arg(long, value_enum, value_name = "PART")]
    only: Option<Part>,
}

fn bench(args: &Args) -> Result<Section, String> {
    let wants = |part| args.only.is_none_or(|only| only == part);
    let rounds = args.rounds.into();
    let mut section = Section::default();
    if wants(Part::Writeback) {
        let options = Options { size_bytes: args.size_mib << 20, rounds, prefix: "" };
        section.append(run_local(&args.dir.dir, &options, &mut progress)?);
    }
    if wants(Part::Simulated) {
        let options = Options::simulated(SMALL_BYTES, "sim_");
        section.append(run_simulated(&options, &mut progress)?);
    }
    if wants(Part::Memory) {
        section.append(run_memory(SMALL_BYTES, &mut progress)?);
    }
    if wants(Part::Speed) {
        section.append(speed::section(&args.dir.dir, SMALL_BYTES, rounds)?);
    }
    if wants(Part::Served) {
        let program = args.ours.program()?;
        let served = served::section(&program, &args.dir.dir, rounds, args.seconds);
        // What has been seen so far is not lost because of a peer.
        section.append(served.unwrap_or_else(|why| Section {
            notes: vec![format!("not measured: over NBD: {why}")],
            ..Section::default()
        }));
    }
    Ok(section)
}

pub(crate) fn main(args: &Args) -> ExitCode {
    finish("zram", bench(args))
}
