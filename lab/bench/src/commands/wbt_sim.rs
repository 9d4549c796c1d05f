// SPDX-License-Identifier: Apache-2.0 OR MIT
//! `make bench-wbt-sim`: writeback throttling in virtual time: a lone writer at several queue
//! depths, and a reader beside a heavy writer on models of disks, with wbt off, by the kernel's law
//! and by ours.
use std::process::ExitCode;

use bench::output::{finish, progress};
use clap::ValueEnum;
use reproduce::scenario::wbt::models::{Options, run};
use reproduce::wbt_sim;

/// What writes.
#[derive(Clone, Copy, Debug, ValueEnum)]
enum Writer {
    /// A client of a `buffered` device
    Buffered,
    /// A task that keeps writes in flight, much faster to simulate
    Flusher,
}

/// Shows writeback throttling on models of disks, in virtual time
///
/// The same arguments print the same figures on every machine. What is calibrated and what is a
/// prediction: docs/wbt-model.md. A goal that is missed makes the exit status 1.
#[derive(Debug, clap::Args)]
#[command(after_help = "\
Examples:
  make bench-wbt-sim
  make bench-wbt-sim ARGS='--scale 4'
  make bench-wbt-sim ARGS='--writer flusher'")]
pub(crate) struct Args {
    /// Sizes and times are divided by N
    #[arg(long, value_name = "N", default_value_t = 1,
          value_parser = clap::value_parser!(u64).range(1..=64))]
    scale: u64,
    /// What writes
    #[arg(long, value_enum, default_value = "buffered")]
    writer: Writer,
}

pub(crate) fn main(args: &Args) -> ExitCode {
    let writer = match args.writer {
        Writer::Buffered => wbt_sim::Writer::Buffered,
        Writer::Flusher => wbt_sim::Writer::Flusher,
    };
    finish("wbt-sim", run(&Options::all(args.scale, writer), &mut progress))
}
