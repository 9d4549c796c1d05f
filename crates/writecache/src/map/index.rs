// SPDX-License-Identifier: Apache-2.0 OR MIT
//! From block to slot: an open-addressing table of slot numbers, allocated once for all slots.
//!
//! ```text
//!   search: begin at hash(block), scaled to the table; go to the next cell until one is empty
//!   cell:   slot number, and above it a tag: as many bits of the hash as fit
//! ```
//!
//! Invariants
//! - WC-X1 There is no empty cell between the start of an entry and its cell. Removal moves later
//!   entries back instead of leaving a mark, so the table is never rebuilt: no stall.
//! - WC-X2 At most half of the cells are in use: a hit looks at 1.5 cells, a miss at 2.5. Cells
//!   whose tag differs are skipped without touching the slot array (a cache miss): with 2^25 slots
//!   all but one in 128.
//!
//! The hash tables of libraries need tombstones or grow by doubling: a cache of 100 GiB would stall
//! for seconds, and take more than the limit of 32 bytes a block.

const EMPTY: u32 = u32::MAX;
/// Bits of a hash: there are up to 2^33 cells, two for each of 2^32 slots, and twice as many
/// hashes.
pub(crate) const HASH_BITS: u32 = 34;

/// The low 32 bits of a number: as much of a block or an epoch as a slot or a cell stores.
pub(crate) fn low32(number: u64) -> u32 {
    (number & 0xffff_ffff) as u32
}

pub(crate) struct Index {
    cells: Vec<u32>,
    len: usize,
    /// Bits of a cell that hold the slot. All of them set is not a slot.
    slot_bits: u32,
}

impl Index {
    /// The hash that selects a block's cell: ascending hashes have ascending cells. No two blocks
    /// below 2^34 have the same hash, because each step is reversible. The lower 34 bits are mixed
    /// as in the finalizer of MurmurHash3, with the upper bits of its constants. The upper bits of
    /// a block are multiplied by the golden ratio and added.
    pub(crate) fn hash(block: u64) -> u64 {
        const MASK: u64 = (1 << HASH_BITS) - 1;
        let above = (block >> HASH_BITS).wrapping_mul(0x9e37_79b9_7f4a_7c15);
        let mut h = (block ^ above) & MASK;
        h ^= h >> (HASH_BITS / 2);
        h = h.wrapping_mul(0xff51_afd7_ed55_8ccd >> 30 | 1) & MASK;
        h ^= h >> (HASH_BITS / 2);
        h = h.wrapping_mul(0xc4ce_b9fe_1a85_ec53 >> 30 | 1) & MASK;
        h ^ h >> (HASH_BITS / 2)
    }

    /// A table for `slots` slots: 8 bytes each.
    pub(crate) fn new(slots: u32) -> Index {
        let slot_bits = u32::BITS - slots.leading_zeros();
        Index { cells: vec![EMPTY; 2 * slots as usize], len: 0, slot_bits }
    }

    /// The same entries in a table for more slots. Cells are read and filled in ascending order.
    pub(crate) fn grown(&self, slots: u32, block_of: impl Fn(u32) -> u64) -> Index {
        let mut grown = Index::new(slots);
        for &cell in self.cells.iter().filter(|cell| **cell != EMPTY) {
            let slot = self.slot(cell);
            grown.insert_hashed(Index::hash(block_of(slot)), slot);
        }
        grown
    }

    fn slot_mask(&self) -> u32 {
        low32((1 << self.slot_bits) - 1)
    }

    /// The lower bits of the hash, shifted to their place in a cell. The upper bits decide which
    /// cell.
    fn tag(&self, hash: u64) -> u32 {
        low32(hash << self.slot_bits)
    }

    /// The slot of a cell that is not empty.
    fn slot(&self, cell: u32) -> u32 {
        cell & self.slot_mask()
    }

    pub(crate) fn len(&self) -> usize {
        self.len
    }

    fn place(&self, hash: u64) -> usize {
        let scaled = u128::from(hash) * self.cells.len() as u128;
        usize::try_from(scaled >> HASH_BITS).expect("below the length")
    }

    fn after(&self, cell: usize) -> usize {
        if cell + 1 == self.cells.len() { 0 } else { cell + 1 }
    }

    /// The block's cell, or the empty one where it would go.
    fn cell_of(&self, block: u64, block_of: impl Fn(u32) -> u64) -> Result<usize, usize> {
        let hash = Index::hash(block);
        let (tag, slot_mask) = (self.tag(hash), self.slot_mask());
        let mut cell = self.place(hash);
        loop {
            let found = self.cells[cell];
            if found == EMPTY {
                return Err(cell);
            }
            if found & !slot_mask == tag && block_of(found & slot_mask) == block {
                return Ok(cell);
            }
            cell = self.after(cell);
        }
    }

    /// The slot of `block`; `block_of` returns the block of a slot that is in the table.
    pub(crate) fn find(&self, block: u64, block_of: impl Fn(u32) -> u64) -> Option<u32> {
        self.cell_of(block, block_of).ok().map(|cell| self.slot(self.cells[cell]))
    }

    /// Adds a block, or changes its slot; returns its old slot.
    pub(crate) fn replace(
        &mut self,
        block: u64,
        slot: u32,
        block_of: impl Fn(u32) -> u64,
    ) -> Option<u32> {
        match self.cell_of(block, block_of) {
            Ok(cell) => {
                let found = self.cells[cell];
                self.cells[cell] = found & !self.slot_mask() | slot;
                Some(self.slot(found))
            }
            Err(empty) => {
                assert!(2 * self.len < self.cells.len(), "WC-X2: more entries than slots");
                self.cells[empty] = self.tag(Index::hash(block)) | slot;
                self.len += 1;
                None
            }
        }
    }

    /// Adds the block that has this hash, and is not in the table.
    pub(crate) fn insert_hashed(&mut self, hash: u64, slot: u32) {
        assert!(2 * self.len < self.cells.len(), "WC-X2: more entries than slots");
        let mut cell = self.place(hash);
        while self.cells[cell] != EMPTY {
            cell = self.after(cell);
        }
        self.cells[cell] = self.tag(hash) | slot;
        self.len += 1;
    }

    /// Removes a block and returns its slot.
    pub(crate) fn remove(&mut self, block: u64, block_of: impl Fn(u32) -> u64) -> Option<u32> {
        let mut hole = self.cell_of(block, &block_of).ok()?;
        let removed = self.slot(self.cells[hole]);
        let mut cell = self.after(hole);
        while self.cells[cell] != EMPTY {
            // WC-X1: the entry moves into the hole, unless its search begins behind the hole.
            let place = self.place(Index::hash(block_of(self.slot(self.cells[cell]))));
            let stays = if hole <= cell {
                hole < place && place <= cell
            } else {
                hole < place || place <= cell
            };
            if !stays {
                self.cells[hole] = self.cells[cell];
                hole = cell;
            }
            cell = self.after(cell);
        }
        self.cells[hole] = EMPTY;
        self.len -= 1;
        Some(removed)
    }
}

#[cfg(test)]
mod tests {
    use std::collections::BTreeMap;

    use format::BLOCK_LIMIT;

    use super::*;

    /// Random insertions and removals in a full table give the same as a map of the library.
    #[test]
    fn agrees_with_a_map_through_many_changes() {
        for slots in [1u32, 2, 3, 16, 100] {
            let mut index = Index::new(slots);
            let mut blocks = vec![0u64; slots as usize];
            let mut free: Vec<u32> = (0..slots).collect();
            let mut model = BTreeMap::new();
            let mut chance = 1u64;
            for _ in 0..20_000 {
                chance = Index::hash(chance.wrapping_add(0x9e37_79b9_7f4a_7c15));
                let block = chance % (3 * u64::from(slots));
                assert_eq!(index.find(block, |s| blocks[s as usize]), model.get(&block).copied());
                if let Some(slot) = model.remove(&block) {
                    assert_eq!(index.remove(block, |s| blocks[s as usize]), Some(slot));
                    free.push(slot);
                } else if let Some(slot) = free.pop() {
                    blocks[slot as usize] = block;
                    assert_eq!(index.replace(block, slot, |s| blocks[s as usize]), None);
                    model.insert(block, slot);
                }
                assert_eq!(index.len(), model.len());
            }
        }
    }

    /// Blocks at regular distances, as clients write them: a table that is half full needs 1.5
    /// cells.
    #[test]
    fn blocks_at_regular_distances_are_spread_like_others() {
        let slots = 1 << 12;
        for shift in 0..=36 {
            for factor in [1, 3, 5, 127] {
                let block = |slot: u32| (u64::from(slot) * factor) << shift;
                if block(slots) > BLOCK_LIMIT {
                    break;
                }
                let mut index = Index::new(slots);
                (0..slots).for_each(|slot| index.insert_hashed(Index::hash(block(slot)), slot));
                let mut looks = 0;
                for slot in 0..slots {
                    let mut cell = index.place(Index::hash(block(slot)));
                    looks += 1;
                    while index.slot(index.cells[cell]) != slot {
                        cell = index.after(cell);
                        looks += 1;
                    }
                }
                assert!(looks * 10 < slots * 17, "{looks} looks, {factor} << {shift}");
            }
        }
    }

    /// As far as a test can check it: for blocks that differ in one bit, and for small ones.
    #[test]
    fn blocks_below_2_to_the_34_have_each_their_own_hash() {
        let mut rng = sim::Rng::new(9);
        for _ in 0..1_000 {
            let block = rng.below(1 << HASH_BITS);
            let mut hashes: Vec<u64> =
                (0..HASH_BITS).map(|bit| Index::hash(block ^ 1 << bit)).collect();
            hashes.push(Index::hash(block));
            hashes.sort_unstable();
            assert!(hashes.last().is_some_and(|&h| h < 1 << HASH_BITS));
            assert!(hashes.windows(2).all(|pair| pair[0] < pair[1]), "{block}");
        }
        let mut hashes: Vec<u64> = (0..1 << 18).map(Index::hash).collect();
        hashes.sort_unstable();
        assert!(hashes.windows(2).all(|pair| pair[0] < pair[1]));
    }
}
