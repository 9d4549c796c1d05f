// SPDX-License-Identifier: Apache-2.0 OR MIT
//! The layout of a part's region, in blocks of 4 KiB from its start.
//!
//! ```text
//!   0       16      32      48      64
//!   │super 0│super 1│super 2│super 3│ checkpoint A │ checkpoint B │ data: units anywhere ...
//! ```
//!
//! Everything follows from the numbers in the superblock, never from the size of the device.

use std::ops::Range;

use super::map::MAP_ENTRIES;

/// Most blocks of a region: a multiple of 64, so that in a bitmap of 64-bit words the index after
/// the last word is still a block number.
pub const REGION_BLOCKS_MAX: u32 = u32::MAX / 64 * 64;
/// Blocks of data that a region has at least.
pub const DATA_BLOCKS_MIN: u32 = 16;

const COPY_DISTANCE: u32 = 16;
const MAPS: u32 = 64;

/// The layout of a region.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct Geometry {
    /// Blocks of the region.
    pub region_blocks: u32,
    /// Units, which are blocks, of one checkpoint area.
    pub map_units: u32,
}

impl Geometry {
    /// The layout of a new region for `slots` slots.
    #[must_use]
    pub fn of_slots(slots: u32, region_blocks: u32) -> Geometry {
        let entries = u32::try_from(MAP_ENTRIES).expect("less than a unit's bytes");
        Geometry { region_blocks, map_units: slots.div_ceil(entries).max(1) }
    }

    /// The block of a superblock copy, independent of the layout.
    #[must_use]
    pub const fn superblock(copy: u8) -> u32 {
        copy as u32 * COPY_DISTANCE
    }

    /// The first block of a checkpoint area.
    #[must_use]
    pub const fn map(self, area: u8) -> u32 {
        MAPS + area as u32 * self.map_units
    }

    /// The blocks of the data.
    #[must_use]
    pub fn data(self) -> Range<u32> {
        MAPS + 2 * self.map_units..self.region_blocks
    }

    /// Blocks that a region with these checkpoint areas has at least.
    #[must_use]
    pub const fn blocks_least(self) -> u64 {
        (MAPS + DATA_BLOCKS_MIN) as u64 + 2 * self.map_units as u64
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn a_region_is_as_on_the_format_page() {
        let geometry = Geometry::of_slots(1000, 400);
        assert_eq!(geometry.map_units, 4);
        assert_eq!((Geometry::superblock(3), geometry.map(0), geometry.map(1)), (48, 64, 68));
        assert_eq!(geometry.data(), 72..400);
        assert_eq!(geometry.blocks_least(), 88);
        assert_eq!(Geometry::of_slots(252, 400).map_units, 1);
    }
}
