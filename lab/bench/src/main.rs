// SPDX-License-Identifier: Apache-2.0 OR MIT
//! The program `bench`: measures what `reproduce` has no options for, and what needs
//! outside programs.
use std::process::ExitCode;

use clap::Parser;

mod commands;

/// Measures the engines, the NBD server and the mappings of millpond
#[derive(Debug, Parser)]
#[command(name = "bench")]
struct Cli {
    #[command(subcommand)]
    command: commands::Command,
}

fn main() -> ExitCode {
    Cli::parse().command.run()
}
