// SPDX-License-Identifier: Apache-2.0 OR MIT
//! Layout: how pages are counted, and how slots and the backing device are divided among parts.
//!
//! ```text
//!   device   | chunk 0 | chunk 1 | chunk 2 | chunk 3 | ...    256 slots each, 1 MiB
//!   part         0         1         0         1              of two
//!   backing  | region of part  0 | region of part  1 |
//! ```
use std::ops::Range;

use block::{Bio, Sector};

use crate::slot::PAGE;

/// Slots that lie on one part in a row.
const CHUNK: u64 = 256;

/// Most blocks of a region: a multiple of 64, so that in a bitmap of 64-bit words the index after
/// the last word is still a block number.
const REGION_BLOCKS_MAX: u32 = u32::MAX / 64 * 64;

/// Slots a part has at most.
pub(crate) const SLOTS_MAX: u64 = 1 << 31;

/// Sectors of a page.
pub(crate) const PAGE_SECTORS: u64 = (PAGE as u64) >> block::SECTOR_SHIFT;

/// Whether a bio begins and ends at page boundaries.
#[inline]
pub(crate) fn is_whole(bio: &Bio) -> bool {
    (bio.sector.0 | bio.len.0) & (PAGE_SECTORS - 1) == 0
}

/// The slots of a bio of whole pages.
pub(crate) fn slots_of(bio: &Bio) -> Range<u32> {
    slot(bio.sector)..slot(bio.end())
}

fn slot(sector: Sector) -> u32 {
    u32::try_from(sector.0 / PAGE_SECTORS).expect("within the part, checked at its entry")
}

/// A part's region of the backing device, in blocks of 4 KiB.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(crate) struct Region {
    pub(crate) first: u64,
    pub(crate) blocks: u32,
}

/// How a device of so many slots is divided.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(crate) struct Layout {
    pub(crate) slots: u64,
    pub(crate) parts: u32,
}

impl Layout {
    /// The part of a slot, and which of its slots it is there.
    pub(crate) fn local(self, slot: u64) -> (u32, u32) {
        let (chunk, within) = (slot / CHUNK, slot % CHUNK);
        let parts = u64::from(self.parts);
        let local = chunk / parts * CHUNK + within;
        let part = u32::try_from(chunk % parts).expect("less than a u32");
        (part, u32::try_from(local).expect("checked when the device was made"))
    }

    /// The slot that is `local` on `part`.
    pub(crate) fn global(self, part: u32, local: u32) -> u64 {
        let (round, within) = (u64::from(local) / CHUNK, u64::from(local) % CHUNK);
        (round * u64::from(self.parts) + u64::from(part)) * CHUNK + within
    }

    /// How many slots a part has.
    pub(crate) fn slots_of(self, part: u32) -> u32 {
        let (full, rest) = (self.slots / CHUNK, self.slots % CHUNK);
        let (parts, nth) = (u64::from(self.parts), u64::from(part));
        let chunks = full / parts + u64::from(nth < full % parts);
        let rest = if full % parts == nth { rest } else { 0 };
        u32::try_from(chunks * CHUNK + rest).expect("checked when the device was made")
    }

    /// Which slots of a part those from `slot` to before `end` are.
    pub(crate) fn part_of(self, part: u32, slot: u64, end: u64) -> Range<u32> {
        let before = |at| Layout { slots: at, ..self }.slots_of(part);
        before(slot)..before(end)
    }

    /// How far a run of slots stays on one part in a row.
    pub(crate) fn run(self, slot: u64, len: u64) -> u64 {
        if self.parts == 1 { len } else { len.min(CHUNK - slot % CHUNK) }
    }

    /// A part's part of a backing device of this capacity.
    pub(crate) fn region(self, part: u32, capacity: Sector) -> Region {
        let blocks = capacity.0 / PAGE_SECTORS;
        let each = blocks / u64::from(self.parts);
        let most = u64::from(REGION_BLOCKS_MAX);
        Region {
            first: each * u64::from(part),
            blocks: u32::try_from(each.min(most)).expect("bounded"),
        }
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn every_slot_lies_on_exactly_one_part() {
        for (slots, parts) in [(1, 1), (255, 2), (256, 2), (257, 2), (5000, 3), (4096, 4)] {
            let layout = Layout { slots, parts };
            let mut seen = vec![0; parts as usize];
            for slot in 0..slots {
                let (part, local) = layout.local(slot);
                assert_eq!(layout.global(part, local), slot);
                assert_eq!(local, seen[part as usize], "in order, without holes: {layout:?}");
                seen[part as usize] += 1;
                let end = slot + layout.run(slot, slots - slot) - 1;
                assert_eq!(layout.local(end).0, part);
                let is_part = |s| layout.part_of(s, slot, slot + 1).contains(&local);
                assert!((0..parts).all(|s| is_part(s) == (s == part)));
            }
            for part in 0..parts {
                assert_eq!(layout.slots_of(part), seen[part as usize], "{layout:?} {part}");
            }
        }
    }

    #[test]
    fn regions_do_not_overlap_and_lie_on_the_device() {
        let layout = Layout { slots: 1, parts: 3 };
        let regions: Vec<Region> = (0..3).map(|s| layout.region(s, Sector(8 * 100))).collect();
        assert_eq!(regions[2], Region { first: 66, blocks: 33 });
        assert_eq!(regions[1].first, u64::from(regions[0].blocks));
        let most = Layout { slots: 1, parts: 1 }.region(0, Sector(1 << 40)).blocks;
        assert!((most - 1) / 64 < u32::MAX / 64, "the word after the last one has a number");
    }
}
