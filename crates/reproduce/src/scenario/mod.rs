// SPDX-License-Identifier: Apache-2.0 OR MIT
//! The published results, each as one function from a plan to rows, plots and keys.
mod iomap;
mod noclone;
mod wbt;
mod writecache;
mod zram;

use std::path::Path;

use crate::report::Section;

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

/// Told how much of a scenario is done, 0 to 1, and what comes next.
pub type Told<'a> = &'a mut dyn FnMut(f64, &str);

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
            (Scenario::Writecache, _) => 60.0,
            (Scenario::Wbt, true) => 90.0,
            (Scenario::Wbt, false) => 45.0,
            (Scenario::Iomap, true) | (Scenario::Noclone, true) => 2.0,
            (Scenario::Iomap, false) => 30.0,
            (Scenario::Zram, _) => 30.0,
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

    /// Bytes of memory that it takes on this machine with so much data, roughly.
    pub fn memory_bytes(self, size_bytes: u64) -> u64 {
        match self {
            Scenario::Writecache => size_bytes / 16 + 64 * MIB,
            Scenario::Wbt => size_bytes + 64 * MIB,
            Scenario::Iomap => 4 * size_bytes,
            Scenario::Zram => 2 * size_bytes,
            Scenario::Noclone => size_bytes,
        }
    }

    /// Runs it.
    ///
    /// # Errors
    /// Why it can't be run here, or what went wrong.
    pub fn run(self, plan: &Plan<'_>, told: Told<'_>) -> Result<Section, String> {
        let size = plan.size_bytes.unwrap_or_else(|| self.default_bytes(plan.is_simulated));
        match (self, plan.is_simulated) {
            (Scenario::Writecache, true) => writecache::simulated(size, told),
            (Scenario::Writecache, false) => writecache::real(plan.dir, size, told),
            (Scenario::Wbt, true) => wbt::simulated(size, told),
            (Scenario::Wbt, false) => wbt::real(plan.dir, size, told),
            (Scenario::Iomap, true) => iomap::simulated(size, told),
            (Scenario::Iomap, false) => iomap::real(plan.dir, size, told),
            (Scenario::Zram, true) => zram::simulated(size, told),
            (Scenario::Zram, false) => zram::real(plan.dir, size, told),
            (Scenario::Noclone, true) => noclone::simulated(size, told),
            (Scenario::Noclone, false) => noclone::real(plan.program, size, told),
        }
    }
}

/// A size as people say it.
fn mib(bytes: u64) -> String {
    format!("{:.0} MiB", bytes as f64 / MIB as f64)
}
