// SPDX-License-Identifier: Apache-2.0 OR MIT
//! The kernel's format in memory: its geometry, and which units of metadata hold an entry.
use std::cell::Cell;
use std::ops::Range;

use format::UNIT;
use format::dm::Geometry;

/// Most unlogged blocks: the number at which the kernel commits by itself. Each may change a unit
/// of its own.
pub(crate) const UNLOGGED_MAX: u64 = 65536;

/// The kernel's format.
pub(crate) struct Dm {
    pub(crate) geometry: Geometry,
    /// Slots: as many as the geometry has blocks.
    pub(crate) slots: u32,
    /// The number in the superblock: how many commits have ended.
    pub(crate) seq: Cell<u64>,
}

/// The bytes of neighbouring units of metadata; the last unit ends where the data begin.
pub(crate) fn unit_bytes(geometry: &Geometry, units: Range<u64>) -> Range<u64> {
    let unit = UNIT as u64;
    units.start * unit..(units.end * unit).min(geometry.data_offset())
}

/// The units that hold the entries of ascending `slots`, as runs of at most `max` units.
pub(crate) fn touched_units(geometry: &Geometry, slots: &[u32], max: u64) -> Vec<Range<u64>> {
    let mut runs: Vec<Range<u64>> = Vec::new();
    for &slot in slots {
        let unit = geometry.entry_offset(u64::from(slot)) / UNIT as u64;
        match runs.last_mut() {
            Some(run) if unit < run.end => {}
            Some(run) if unit == run.end && run.end - run.start < max => run.end += 1,
            _ => runs.push(unit..unit + 1),
        }
    }
    runs
}
