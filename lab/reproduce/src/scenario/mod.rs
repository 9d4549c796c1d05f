// SPDX-License-Identifier: Apache-2.0 OR MIT
//! The scenarios, one for each published result. Each is a function from options to a [`Section`].
//! `make bench-*` offer all options and print all tables; `reproduce` chooses the options
//! by a size and prints the rows.
pub mod iomap;
pub mod noclone;
mod units;
pub mod wbt;
pub mod writecache;
pub mod zram;

use std::path::Path;

use self::units::MIB;
use crate::report::Section;
use crate::rounds::{Progress, parallel_max};

/// A published result that can be reproduced.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum Scenario {
    Writecache,
    Wbt,
    Iomap,
    Zram,
    Noclone,
}

/// How a scenario is run.
#[derive(Clone, Copy, Debug)]
pub struct Plan<'a> {
    /// Whether it runs in virtual time.
    pub is_simulated: bool,
    /// The folder of the unnamed files.
    pub dir: &'a Path,
    /// Bytes of data in each scenario; if none, [`Scenario::default_bytes`].
    pub size_bytes: Option<u64>,
}

/// The smallest and largest size that is allowed.
pub const SIZES: (u64, u64) = (4 * MIB, 64 << 30);

impl Scenario {
    pub const ALL: [Scenario; 5] =
        [Scenario::Writecache, Scenario::Wbt, Scenario::Iomap, Scenario::Zram, Scenario::Noclone];

    /// Its name on the command line.
    pub fn name(self) -> &'static str {
        match self {
            Scenario::Writecache => "writecache",
            Scenario::Wbt => "wbt",
            Scenario::Iomap => "iomap",
            Scenario::Zram => "zram",
            Scenario::Noclone => "noclone",
        }
    }

    /// The size by default: in virtual time the published one, or one that gives figures of the
    /// same precision; in real time one with which all scenarios take a few minutes.
    pub fn default_bytes(self, is_simulated: bool) -> u64 {
        match (self, is_simulated) {
            (_, false) => 256 * MIB,
            (Scenario::Writecache, true) => writecache::PUBLISHED_BYTES,
            (Scenario::Wbt, true) => crate::wbt_sim::LONE_BYTES,
            (Scenario::Zram, true) => 256 * MIB,
            (Scenario::Iomap | Scenario::Noclone, true) => 64 * MIB,
        }
    }

    /// Its approximate duration, relative to the others, on 2 cores with default sizes.
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

    /// Bytes of disk space that it needs for so much data.
    pub fn disk_bytes(self, size_bytes: u64) -> u64 {
        match self {
            Scenario::Writecache => writecache::disk_bytes(size_bytes),
            Scenario::Wbt | Scenario::Iomap => 4 * size_bytes,
            Scenario::Zram => size_bytes + 64 * MIB,
            Scenario::Noclone => 0,
        }
    }

    /// Approximate bytes of memory that it needs for so much data.
    pub fn memory_bytes(self, size_bytes: u64, is_simulated: bool) -> u64 {
        let worlds = parallel_max() as u64;
        match (self, is_simulated) {
            // Measured with two worlds at the published sizes: 953 MB and 1143 MB resident. The
            // memory of a page cache does not grow with the bytes written.
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
    /// Why it could not be run.
    pub fn run(self, plan: &Plan<'_>, progress: Progress<'_>) -> Result<Section, String> {
        let size = plan.size_bytes.unwrap_or_else(|| self.default_bytes(plan.is_simulated));
        let dir = plan.dir;
        match (self, plan.is_simulated) {
            (Scenario::Writecache, true) => {
                writecache::models::run(&writecache::models::Options::of_dirty(size), progress)
            }
            (Scenario::Writecache, false) => {
                writecache::local::run(&writecache::local::Options::of_dirty(dir, size), progress)
            }
            (Scenario::Wbt, true) => {
                wbt::models::run(&wbt::models::Options::of_bytes(size), progress)
            }
            (Scenario::Wbt, false) => {
                wbt::local::run(dir, &wbt::local::Options::of_bytes(size), progress)
            }
            (Scenario::Iomap, true) => iomap::run(dir, &iomap::Options::on_models(size), progress),
            (Scenario::Iomap, false) => iomap::run(dir, &iomap::Options::of_bytes(size), progress),
            (Scenario::Zram, true) => zram::scenario(None, size, progress),
            (Scenario::Zram, false) => zram::scenario(Some(dir), size, progress),
            (Scenario::Noclone, true) => noclone::simulated(size, progress),
            (Scenario::Noclone, false) => noclone::run(&noclone::Options::of_bytes(size), progress),
        }
    }
}
