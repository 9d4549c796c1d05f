// SPDX-License-Identifier: Apache-2.0 OR MIT
//! The benches at a small scale, through the program.
use std::process::Command;

mod cache_scale;
mod doors;
mod flush_sim;
mod iomap;
mod objvol;
mod read_cache;
mod wbt;
mod wbt_sim;

/// The program with the name of a bench.
fn bench(name: &str) -> Command {
    let mut command = Command::new(env!("CARGO_BIN_EXE_bench"));
    command.arg(name);
    command
}
