// SPDX-License-Identifier: Apache-2.0 OR MIT
//! A set of blocks that usually has few members, as the blocks that changed since the last commit
//! of a client that flushes after each write. A bitmap takes memory for its first member and gives
//! it back with the last one; a short list keeps it.
use std::ops::{Bound, Range, RangeBounds};

use roaring::RoaringTreemap;

/// Members of the list. Chosen: a search in it is shorter than one in the tree of a bitmap.
const FEW_MAX: usize = 32;

/// See the module. One of the two is empty.
#[derive(Default)]
pub(super) struct BlockSet {
    /// In order.
    few: Vec<u64>,
    many: RoaringTreemap,
    /// Members of either.
    len: u64,
}

impl BlockSet {
    pub(super) fn is_empty(&self) -> bool {
        self.len == 0
    }

    pub(super) fn len(&self) -> u64 {
        self.len
    }

    /// Whether the members are in the bitmap.
    fn has_many(&self) -> bool {
        self.few.len() as u64 != self.len
    }

    pub(super) fn contains(&self, block: u64) -> bool {
        match self.has_many() {
            true => self.many.contains(block),
            false => self.few.binary_search(&block).is_ok(),
        }
    }

    /// Returns whether the block is new.
    pub(super) fn insert(&mut self, block: u64) -> bool {
        let is_new =
            if self.has_many() { self.many.insert(block) } else { self.insert_in_list(block) };
        self.len += u64::from(is_new);
        is_new
    }

    fn insert_in_list(&mut self, block: u64) -> bool {
        let Err(at) = self.few.binary_search(&block) else { return false };
        if self.few.len() < FEW_MAX {
            self.few.insert(at, block);
        } else {
            self.many.extend(self.few.drain(..));
            self.many.insert(block);
        }
        true
    }

    /// Returns whether the set had the block.
    pub(super) fn remove(&mut self, block: u64) -> bool {
        let had = match self.has_many() {
            true => self.many.remove(block),
            false => self.few.binary_search(&block).map(|at| self.few.remove(at)).is_ok(),
        };
        self.len -= u64::from(had);
        had
    }

    /// Removes all blocks of a range; returns how many there were.
    pub(super) fn remove_range(&mut self, range: impl RangeBounds<u64>) -> u64 {
        let removed = if self.has_many() {
            self.many.remove_range(range)
        } else {
            let members = self.members(&range);
            self.few.drain(members).len() as u64
        };
        self.len -= removed;
        removed
    }

    pub(super) fn has_any(&self, range: &Range<u64>) -> bool {
        match self.has_many() {
            true => intersects(&self.many, range),
            false => !self.members(range).is_empty(),
        }
    }

    /// Where the members of a range are in the list.
    fn members(&self, range: &impl RangeBounds<u64>) -> Range<usize> {
        let is_before = |&block: &u64| match range.start_bound() {
            Bound::Included(&first) => block < first,
            Bound::Excluded(&before) => block <= before,
            Bound::Unbounded => false,
        };
        let start = self.few.partition_point(is_before);
        start..start + self.few[start..].partition_point(|block| range.contains(block))
    }

    /// In order.
    pub(super) fn iter(&self) -> Members<'_> {
        let (few, bitmaps) = (self.few.iter(), self.many.bitmaps());
        Members { few, bitmaps, of_bitmap: None, taken: [0; TAKEN_MAX], taken_len: 0, next: 0 }
    }

    /// Moves all blocks of `other` here.
    pub(super) fn append(&mut self, other: &mut BlockSet) {
        if self.is_empty() {
            return std::mem::swap(self, other);
        }
        if other.has_many() {
            self.many.extend(self.few.drain(..));
            self.many |= std::mem::take(&mut other.many);
            self.len = self.many.len();
        }
        for block in other.few.drain(..) {
            self.insert(block);
        }
        other.len = 0;
    }
}

/// Members of a bitmap that are taken together.
const TAKEN_MAX: usize = 32;

/// All members in order. The iterator of the library takes 80 instructions for each.
pub(super) struct Members<'a> {
    few: std::slice::Iter<'a, u64>,
    bitmaps: roaring::treemap::BitmapIter<'a>,
    /// The bitmap that is being read: its upper half of the numbers, and the lower ones.
    of_bitmap: Option<(u64, roaring::bitmap::Iter<'a>)>,
    taken: [u32; TAKEN_MAX],
    taken_len: usize,
    next: usize,
}

impl Iterator for Members<'_> {
    type Item = u64;

    #[inline]
    fn next(&mut self) -> Option<u64> {
        if self.next == self.taken_len && !self.take_more() {
            return self.few.next().copied();
        }
        let (high, _) = self.of_bitmap.as_ref()?;
        let block = high | u64::from(self.taken[self.next]);
        self.next += 1;
        Some(block)
    }
}

impl Members<'_> {
    /// Takes more of the bitmaps; false if there are none.
    fn take_more(&mut self) -> bool {
        loop {
            if let Some((_, members)) = &mut self.of_bitmap {
                (self.taken_len, self.next) = (members.next_many(&mut self.taken).len(), 0);
                if self.taken_len > 0 {
                    return true;
                }
            }
            let Some((high, bitmap)) = self.bitmaps.next() else { return false };
            self.of_bitmap = Some((u64::from(high) << 32, bitmap.iter()));
        }
    }
}

/// Whether a set has any block of a range. A count would go through all that lies before it in the
/// same 65,536 blocks.
pub(crate) fn intersects(set: &RoaringTreemap, range: &Range<u64>) -> bool {
    let mut from = set.iter();
    from.advance_to(range.start);
    from.next().is_some_and(|block| block < range.end)
}

#[cfg(test)]
mod tests {
    use std::collections::BTreeSet;

    use super::*;

    /// Small and large sets do the same as a set of the library.
    #[test]
    fn agrees_with_a_set_of_the_library() {
        let mut rng = sim::Rng::new(12);
        let (mut set, mut model) = (BlockSet::default(), BTreeSet::new());
        let (mut other, mut other_model) = (BlockSet::default(), BTreeSet::new());
        let mut largest = 0;
        for step in 0..60_000u64 {
            // Grows and shrinks by turns.
            let grows = step / 3_000 % 2 == 0;
            let block = rng.below(150);
            let range = block..block + rng.below(12);
            match rng.below(16) {
                0 if !grows => {
                    let all = model.len();
                    model.retain(|block| !range.contains(block));
                    assert_eq!(set.remove_range(range), (all - model.len()) as u64);
                }
                1 if !grows => {
                    let all = model.len();
                    model.retain(|&other| other > block);
                    assert_eq!(set.remove_range(..=block), (all - model.len()) as u64);
                }
                2 => assert_eq!(set.has_any(&range), range.clone().any(|b| model.contains(&b))),
                3 => assert_eq!(other.insert(block), other_model.insert(block)),
                4 if rng.below(20) == 0 => {
                    set.append(&mut other);
                    model.append(&mut other_model);
                    assert!(other.is_empty());
                }
                5..12 if grows => assert_eq!(set.insert(block), model.insert(block)),
                _ => assert_eq!(set.remove(block), model.remove(&block)),
            }
            assert_eq!(set.contains(block), model.contains(&block));
            assert_eq!((set.len(), set.is_empty()), (model.len() as u64, model.is_empty()));
            assert!(set.iter().eq(model.iter().copied()));
            largest = largest.max(model.len());
        }
        assert!(largest > 2 * FEW_MAX, "{largest}");
    }
}
