// SPDX-License-Identifier: Apache-2.0 OR MIT
//! `make bench-flush-sim`: how long the flush of a write cache takes in virtual time, on two models
//! of a rotating disk, what a full cache sustains, and how long a reader waits beside a flush.
use std::process::ExitCode;

use bench::output::{finish, progress};
use reproduce::scenario::writecache::models::{Options, run};

/// Times the flush of a write cache on models of rotating disks, in virtual time
///
/// The same arguments print the same figures on every machine. What is calibrated and what is a
/// prediction: docs/hdd-model.md. At the published sizes goals are judged: exit status 1 when one
/// is missed.
#[derive(Debug, clap::Args)]
#[command(after_help = "\
Examples:
  make bench-flush-sim
  make bench-flush-sim ARGS='--scale 8'")]
pub(crate) struct Args {
    /// The published sizes are divided by N
    #[arg(long, value_name = "N", default_value_t = 1,
          value_parser = clap::value_parser!(u64).range(1..=512))]
    scale: u64,
}

pub(crate) fn main(args: &Args) -> ExitCode {
    finish("flush-sim", run(&Options::divided(args.scale), &mut progress))
}
