// SPDX-License-Identifier: Apache-2.0 OR MIT
//! Ranges of blocks that read as zeroes, each with its slot.
use std::collections::BTreeMap;
use std::ops::Range;

/// The newest zeroes of each block, as ranges that don't overlap, by their start.
#[derive(Default)]
pub(super) struct ZeroRanges {
    cover: BTreeMap<u64, (u64, u32)>,
}

impl ZeroRanges {
    pub(super) fn slot_at(&self, block: u64) -> Option<u32> {
        let (_, &(end, slot)) = self.cover.range(..=block).next_back()?;
        (block < end).then_some(slot)
    }

    /// Adds zeroes that are newer than all others.
    pub(super) fn insert(&mut self, range: Range<u64>, slot: u32) {
        for (start, end, older) in self.over(&range) {
            self.cover.remove(&start);
            if start < range.start {
                self.cover.insert(start, (range.start, older));
            }
            if range.end < end {
                self.cover.insert(range.end, (end, older));
            }
        }
        self.cover.insert(range.start, (range.end, slot));
    }

    /// Removes the zeroes of `slot`, which were inserted as `range`.
    pub(super) fn remove(&mut self, range: &Range<u64>, slot: u32) {
        for (start, _, of) in self.over(range) {
            if of == slot {
                self.cover.remove(&start);
            }
        }
    }

    /// The ranges that overlap with `range`: start, end and slot.
    fn over(&self, range: &Range<u64>) -> Vec<(u64, u64, u32)> {
        let before = self.cover.range(..=range.start).next_back();
        let first = before.map_or(range.start, |(&start, _)| start);
        let of = self.cover.range(first..range.end).map(|(&start, &(end, of))| (start, end, of));
        of.filter(|&(_, end, _)| end > range.start).collect()
    }

    /// The blocks that read as zeroes unless the index has them, ascending.
    pub(super) fn ranges(&self) -> impl Iterator<Item = Range<u64>> {
        self.cover.iter().map(|(&start, &(end, _))| start..end)
    }
}

#[cfg(test)]
mod tests {
    use proptest::prelude::*;

    use super::*;

    proptest! {
        #[test]
        fn the_newest_zeroes_of_each_block_are_found(
            ranges in prop::collection::vec((0u64..60, 1u64..20), 1..12),
            gone in prop::collection::vec(0u32..12, 0..6),
        ) {
            let (mut zeroes, mut model) = (ZeroRanges::default(), [None; 80]);
            for (slot, &(start, len)) in (0u32..).zip(&ranges) {
                zeroes.insert(start..start + len, slot);
                (start..start + len).for_each(|block| model[block as usize] = Some(slot));
            }
            for &slot in gone.iter().filter(|&&slot| (slot as usize) < ranges.len()) {
                let (start, len) = ranges[slot as usize];
                zeroes.remove(&(start..start + len), slot);
                model.iter_mut().for_each(|of| *of = of.filter(|of| *of != slot));
            }
            for (block, of) in (0u64..).zip(model) {
                prop_assert_eq!(zeroes.slot_at(block), of);
            }
            let covered: u64 = zeroes.ranges().map(|r| r.end - r.start).sum();
            prop_assert_eq!(covered, model.iter().flatten().count() as u64);
        }
    }
}
