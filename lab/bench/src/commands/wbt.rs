// SPDX-License-Identifier: Apache-2.0 OR MIT
//! `make bench-wbt`: a reader at a fixed rate and a heavy buffered writer on this machine's disk,
//! with writeback throttling off, with the kernel's algorithm, and with the one that limits the
//! tail of the reads.
//!
//! One file: `reader` is a linear device on its first half, `writer` a `buffered` one over a linear
//! one on the other half. Both are driven in this process; with
//! `--through daemon` over NBD, where two CPUs have more to do than the disk.
use std::process::ExitCode;

use bench::mixed_load::Daemon;
use bench::output::{Dir, ProgramOption, finish, positive, progress};
use clap::ValueEnum;
use reproduce::cpu::{cpus, pin};
use reproduce::report::Section;
use reproduce::scenario::wbt::local::{Options, run, run_on};

/// How both devices are driven.
#[derive(Clone, Copy, Debug, PartialEq, Eq, ValueEnum)]
enum Through {
    /// In this process
    Process,
    /// A daemon, over NBD
    Daemon,
}

/// Shows writeback throttling on this machine's disk
///
/// A reader alone, a writer alone and both, with throttling off, by the kernel's law and by the
/// tail of the reads, in turns within a round.
#[derive(Debug, clap::Args)]
#[command(after_help = "\
Examples:
  make bench-wbt
  make bench-wbt ARGS='--rates 100,500,2000 --dir /srv'
  make bench-wbt ARGS='--through daemon --rounds 3'")]
pub(crate) struct Args {
    #[command(flatten)]
    dir: Dir,
    #[command(flatten)]
    ours: ProgramOption,
    /// How often everything is run
    #[arg(long, default_value_t = 5, value_parser = clap::value_parser!(u16).range(1..))]
    rounds: u16,
    /// Seconds of each load in each round
    #[arg(long, default_value_t = 2.5, value_parser = positive)]
    seconds: f64,
    /// Seconds of each load before those, which do not count
    #[arg(long, default_value_t = 1.0, value_parser = positive)]
    warm_up: f64,
    /// Reads a second, of several readers
    #[arg(long, value_name = "R,R,...", value_delimiter = ',', default_value = "500",
          value_parser = positive)]
    rates: Vec<f64>,
    /// Size of the file in MiB
    #[arg(long, default_value_t = 2048, value_parser = clap::value_parser!(u64).range(16..1 << 20))]
    size_mib: u64,
    /// Page cache of the writer in MiB
    #[arg(long, default_value_t = 256, value_parser = clap::value_parser!(u64).range(1..1 << 20))]
    memory_mib: u64,
    /// How both devices are driven
    #[arg(long, value_enum, default_value = "process")]
    through: Through,
}

fn bench(args: &Args) -> Result<Section, String> {
    let options = Options {
        rounds: args.rounds.into(),
        time: (args.warm_up, args.seconds),
        rates: args.rates.clone(),
        // Whole MiB for both.
        file_bytes: (args.size_mib / 2) << 21,
        memory_mib: args.memory_mib,
    };
    if args.through == Through::Process {
        let mut section = run(&args.dir.dir, &options, &mut progress)?;
        section.notes.push("in process".to_owned());
        return Ok(section);
    }
    let [server_cpu, client_cpu, ..] = cpus()[..] else {
        return Err("needs two CPUs: one for the daemon, one for the clients".into());
    };
    let daemon = Daemon::start(&args.ours.program()?, &options, &args.dir.dir, server_cpu)?;
    pin(client_cpu).map_err(|e| format!("cannot pin to CPU {client_cpu}: {e}"))?;
    let mut section = run_on(&daemon, &options, &mut progress)?;
    section.notes.push("through a daemon, over NBD".to_owned());
    Ok(section)
}

pub(crate) fn main(args: &Args) -> ExitCode {
    finish("wbt", bench(args))
}
