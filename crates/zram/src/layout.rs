// SPDX-License-Identifier: Apache-2.0 OR MIT
//! Layout: how slots and the backing device are divided among shards.
//!
//! ```text
//!   device   | chunk 0 | chunk 1 | chunk 2 | chunk 3 | ...    256 slots each, 1 MiB
//!   shard        0         1         0         1              of two
//!   backing  | region of shard 0 | region of shard 1 |
//! ```
use std::ops::Range;

use block::Sector;
use format::zram::REGION_BLOCKS_MAX;

use crate::slot::PAGE;

/// Slots that lie on one shard in a row.
const CHUNK: u64 = 256;

/// Slots a shard has at most.
pub(crate) const SLOTS_MAX: u64 = 1 << 31;

/// Sectors of a page.
pub(crate) const PAGE_SECTORS: u64 = (PAGE as u64) >> block::SECTOR_SHIFT;

/// A part of the backing device, in blocks of 4 KiB.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(crate) struct Region {
    pub(crate) first: u64,
    pub(crate) blocks: u32,
}

/// How a device of so many slots is divided.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(crate) struct Layout {
    pub(crate) slots: u64,
    pub(crate) shards: u32,
}

impl Layout {
    /// The shard of a slot, and which of its slots it is there.
    pub(crate) fn local(self, slot: u64) -> (u32, u32) {
        let (chunk, within) = (slot / CHUNK, slot % CHUNK);
        let shards = u64::from(self.shards);
        let local = chunk / shards * CHUNK + within;
        let shard = u32::try_from(chunk % shards).expect("less than a u32");
        (shard, u32::try_from(local).expect("checked when the device was made"))
    }

    /// The slot that is `local` on `shard`.
    pub(crate) fn global(self, shard: u32, local: u32) -> u64 {
        let (round, within) = (u64::from(local) / CHUNK, u64::from(local) % CHUNK);
        (round * u64::from(self.shards) + u64::from(shard)) * CHUNK + within
    }

    /// How many slots a shard has.
    pub(crate) fn slots_of(self, shard: u32) -> u32 {
        let (full, rest) = (self.slots / CHUNK, self.slots % CHUNK);
        let (shards, nth) = (u64::from(self.shards), u64::from(shard));
        let chunks = full / shards + u64::from(nth < full % shards);
        let rest = if full % shards == nth { rest } else { 0 };
        u32::try_from(chunks * CHUNK + rest).expect("checked when the device was made")
    }

    /// Which slots of a shard those from `slot` to before `end` are.
    pub(crate) fn part_of(self, shard: u32, slot: u64, end: u64) -> Range<u32> {
        let before = |at| Layout { slots: at, ..self }.slots_of(shard);
        before(slot)..before(end)
    }

    /// How far a run of slots stays on one shard in a row.
    pub(crate) fn run(self, slot: u64, len: u64) -> u64 {
        if self.shards == 1 { len } else { len.min(CHUNK - slot % CHUNK) }
    }

    /// A shard's part of a backing device of this capacity.
    pub(crate) fn region(self, shard: u32, capacity: Sector) -> Region {
        let blocks = capacity.0 / PAGE_SECTORS;
        let each = blocks / u64::from(self.shards);
        let most = u64::from(REGION_BLOCKS_MAX);
        Region {
            first: each * u64::from(shard),
            blocks: u32::try_from(each.min(most)).expect("bounded"),
        }
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn every_slot_lies_on_one_shard_and_the_shards_have_no_others() {
        for (slots, shards) in [(1, 1), (255, 2), (256, 2), (257, 2), (5000, 3), (4096, 4)] {
            let layout = Layout { slots, shards };
            let mut seen = vec![0; shards as usize];
            for slot in 0..slots {
                let (shard, local) = layout.local(slot);
                assert_eq!(layout.global(shard, local), slot);
                assert_eq!(local, seen[shard as usize], "in order, without holes: {layout:?}");
                seen[shard as usize] += 1;
                let end = slot + layout.run(slot, slots - slot) - 1;
                assert_eq!(layout.local(end).0, shard);
                let is_part = |s| layout.part_of(s, slot, slot + 1).contains(&local);
                assert!((0..shards).all(|s| is_part(s) == (s == shard)));
            }
            for shard in 0..shards {
                assert_eq!(layout.slots_of(shard), seen[shard as usize], "{layout:?} {shard}");
            }
        }
    }

    #[test]
    fn regions_do_not_overlap_and_lie_on_the_device() {
        let layout = Layout { slots: 1, shards: 3 };
        let regions: Vec<Region> = (0..3).map(|s| layout.region(s, Sector(8 * 100))).collect();
        assert_eq!(regions[2], Region { first: 66, blocks: 33 });
        assert_eq!(regions[1].first, u64::from(regions[0].blocks));
        let most = Layout { slots: 1, shards: 1 }.region(0, Sector(1 << 40)).blocks;
        assert!((most - 1) / 64 < u32::MAX / 64, "the word after the last one has a number");
    }
}
