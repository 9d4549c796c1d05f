// SPDX-License-Identifier: Apache-2.0 OR MIT
//! The published results. Each is run by a function from options to a [`Section`]: `make bench-*`
//! have all options and print at length, `millpond reproduce` has a size and prints rows.
pub mod iomap;
pub mod noclone;
pub mod wbt;
pub mod writecache;
pub mod zram;

use std::path::Path;

use crate::report::Section;
use crate::rounds::{Told, side_by_side_at_most};

const MIB: u64 = 1 << 20;
const GIB: f64 = (1_u64 << 30) as f64;
/// Rounds on this machine: off and on alternate in each.
const ROUNDS: usize = 3;

/// A published result.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum Scenario {
    Writecache,
    Wbt,
    Iomap,
    Zram,
    Noclone,
}

/// How it is run.
#[derive(Clone, Copy, Debug)]
pub struct Plan<'a> {
    /// In virtual time.
    pub is_simulated: bool,
    /// Where files without names are made.
    pub dir: &'a Path,
    /// Bytes of data in each scenario; what [`Scenario::default_bytes`] says when nothing.
    pub size_bytes: Option<u64>,
    /// Our program, for its verb `bench`.
    pub program: &'a Path,
}

/// The smallest and largest size that is allowed.
pub const SIZES: (u64, u64) = (4 * MIB, 64 << 30);

impl Scenario {
    pub const ALL: [Scenario; 5] =
        [Scenario::Writecache, Scenario::Wbt, Scenario::Iomap, Scenario::Zram, Scenario::Noclone];

    /// As on the command line.
    pub fn name(self) -> &'static str {
        match self {
            Scenario::Writecache => "writecache",
            Scenario::Wbt => "wbt",
            Scenario::Iomap => "iomap",
            Scenario::Zram => "zram",
            Scenario::Noclone => "noclone",
        }
    }

    /// The size where none is given: in virtual time as much as was published, or so much that a
    /// run is as precise as that; else what makes all of them take a few minutes.
    pub fn default_bytes(self, is_simulated: bool) -> u64 {
        match (self, is_simulated) {
            (_, false) => 256 * MIB,
            (Scenario::Writecache, true) => writecache::PUBLISHED_BYTES,
            (Scenario::Wbt, true) => crate::wbt_sim::LONE_BYTES,
            (Scenario::Zram, true) => 256 * MIB,
            (Scenario::Iomap | Scenario::Noclone, true) => 64 * MIB,
        }
    }

    /// Part of the time that all take, roughly: 2 cores, default sizes.
    pub fn weight(self, is_simulated: bool) -> f64 {
        match (self, is_simulated) {
            (Scenario::Writecache, true) => 30.0,
            (Scenario::Writecache, false) | (Scenario::Wbt, _) => 60.0,
            (Scenario::Iomap, true) | (Scenario::Noclone, true) => 2.0,
            (Scenario::Iomap, false) => 30.0,
            (Scenario::Zram, _) => 45.0,
            (Scenario::Noclone, false) => 10.0,
        }
    }

    /// Bytes of disk that it takes with so much data.
    pub fn disk_bytes(self, size_bytes: u64) -> u64 {
        match self {
            Scenario::Writecache => writecache::disk_bytes(size_bytes),
            Scenario::Wbt | Scenario::Iomap => 4 * size_bytes,
            Scenario::Zram => size_bytes + 64 * MIB,
            Scenario::Noclone => 0,
        }
    }

    /// Bytes of memory that it takes with so much data, roughly.
    pub fn memory_bytes(self, size_bytes: u64, is_simulated: bool) -> u64 {
        let worlds = side_by_side_at_most() as u64;
        match (self, is_simulated) {
            // With two worlds 953 MB and 1143 MB resident were seen at the published sizes: the
            // memory of a page cache does not grow with what is written.
            (Scenario::Writecache, true) => worlds * (size_bytes / 2 + 64 * MIB),
            (Scenario::Wbt, true) => worlds * 600 * MIB,
            (Scenario::Writecache, false) => size_bytes / 16 + 64 * MIB,
            (Scenario::Wbt, false) => size_bytes.min(wbt::local::MEMORY_MIB_MAX * MIB) + 64 * MIB,
            (Scenario::Iomap, _) => 4 * size_bytes,
            (Scenario::Zram, _) => 2 * size_bytes,
            (Scenario::Noclone, _) => size_bytes,
        }
    }

    /// Runs it.
    ///
    /// # Errors
    /// Why it can't be run here, or what went wrong.
    pub fn run(self, plan: &Plan<'_>, told: Told<'_>) -> Result<Section, String> {
        let size = plan.size_bytes.unwrap_or_else(|| self.default_bytes(plan.is_simulated));
        let dir = plan.dir;
        match (self, plan.is_simulated) {
            (Scenario::Writecache, true) => {
                writecache::models::run(&writecache::models::Options::of_dirty(size), told)
            }
            (Scenario::Writecache, false) => {
                writecache::local::run(&writecache::local::Options::of_dirty(dir, size), told)
            }
            (Scenario::Wbt, true) => wbt::models::run(&wbt::models::Options::of_bytes(size), told),
            (Scenario::Wbt, false) => {
                wbt::local::run(dir, &wbt::local::Options::of_bytes(size), told)
            }
            (Scenario::Iomap, true) => iomap::run(dir, &iomap::Options::on_models(size), told),
            (Scenario::Iomap, false) => iomap::run(dir, &iomap::Options::of_bytes(size), told),
            (Scenario::Zram, true) => zram::scenario(None, size, told),
            (Scenario::Zram, false) => zram::scenario(Some(dir), size, told),
            (Scenario::Noclone, true) => noclone::simulated(size, told),
            (Scenario::Noclone, false) => {
                noclone::run(plan.program, &noclone::Options::of_bytes(size), told)
            }
        }
    }
}

/// A size as people say it.
fn mib(bytes: u64) -> String {
    format!("{:.0} MiB", bytes as f64 / MIB as f64)
}
