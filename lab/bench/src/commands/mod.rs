// SPDX-License-Identifier: Apache-2.0 OR MIT
//! The benches: `bench NAME`, which `make bench-NAME` runs.

mod cache_scale;
mod doors;
mod flush;
mod flush_sim;
mod hop;
mod iomap;
mod nbd;
mod noclone;
mod objvol;
mod paths;
mod peers;
mod pmem_copy;
mod read_cache;
mod wbt;
mod wbt_sim;
mod zram;

use std::process::ExitCode;

use clap::Subcommand;

/// A bench and its options.
#[derive(Debug, Subcommand)]
pub(crate) enum Command {
    CacheScale(cache_scale::Args),
    Doors(doors::Args),
    Flush(flush::Args),
    FlushSim(flush_sim::Args),
    Hop(hop::Args),
    Iomap(iomap::Args),
    Nbd(nbd::Args),
    Noclone(noclone::Args),
    Objvol(objvol::Args),
    Paths(paths::Args),
    Peers(peers::Args),
    PmemCopy(pmem_copy::Args),
    ReadCache(read_cache::Args),
    Wbt(wbt::Args),
    WbtSim(wbt_sim::Args),
    Zram(zram::Args),
}

impl Command {
    /// Runs the bench.
    pub(crate) fn run(&self) -> ExitCode {
        match self {
            Command::CacheScale(args) => cache_scale::main(args),
            Command::Doors(args) => doors::main(args),
            Command::Flush(args) => flush::main(args),
            Command::FlushSim(args) => flush_sim::main(args),
            Command::Hop(args) => hop::main(args),
            Command::Iomap(args) => iomap::main(args),
            Command::Nbd(args) => nbd::main(args),
            Command::Noclone(args) => noclone::main(args),
            Command::Objvol(args) => objvol::main(args),
            Command::Paths(args) => paths::main(args),
            Command::Peers(args) => peers::main(args),
            Command::PmemCopy(args) => pmem_copy::main(args),
            Command::ReadCache(args) => read_cache::main(args),
            Command::Wbt(args) => wbt::main(args),
            Command::WbtSim(args) => wbt_sim::main(args),
            Command::Zram(args) => zram::main(args),
        }
    }
}
