// SPDX-License-Identifier: Apache-2.0 OR MIT
//! The age of the oldest dirty block, without a clock for each block.
//!
//! ```text
//!   marked at t1: A B C      A, C written    B written: marked again at t2: D E
//!   ├───────────────────────────────────────┼──────────────────────────────────────▶
//!                      age: now - t1                       age: now - t2
//! ```
//!
//! All blocks that are dirty at one moment are *marked*; a block that is written back or dropped
//! loses its mark. While a mark is left, the oldest dirty block is at least as old as the marks,
//! and at most as old as the marks before them. When no mark is left, all dirty blocks are marked
//! anew: that copies the bitmap of dirty blocks once, and each of its blocks has to be written back
//! before the next copy. So a block costs one entry of a bitmap, and nothing is ever searched.
//!
//! A block that clients overwrite all the time loses its mark when any of its versions has been
//! written: the origin then has what the client wrote in the meantime.
use block::Nanos;
use roaring::RoaringTreemap;

use super::Slots;

/// The marked blocks.
#[derive(Default)]
pub(super) struct Oldest {
    marked: RoaringTreemap,
    since: Nanos,
}

impl Oldest {
    /// The origin has a version of the block, or the cache has none any more.
    pub(super) fn forget(&mut self, block: u64) {
        self.marked.remove(block);
    }
}

impl Slots {
    /// Marks all dirty blocks if none is marked.
    #[inline(always)]
    pub(crate) fn mark_oldest(&mut self, now: impl FnOnce() -> Nanos) {
        if self.oldest.marked.is_empty() && !self.dirty.is_empty() {
            self.oldest = Oldest { marked: self.dirty.clone(), since: now() };
        }
    }

    /// Since when, at least, the oldest dirty block is dirty; `None` without dirty blocks.
    pub(crate) fn oldest_since(&mut self, now: Nanos) -> Option<Nanos> {
        self.mark_oldest(|| now);
        (!self.oldest.marked.is_empty()).then_some(self.oldest.since)
    }
}

#[cfg(test)]
mod tests {
    use super::super::{Rebuild, SlotRef};
    use super::*;

    fn write(map: &mut Slots, block: u64, now: u64) -> SlotRef {
        let slot = map.allocate(1).unwrap().start;
        map.install(block, slot, 0);
        map.mark_oldest(|| Nanos(now));
        map.find(block).unwrap().slot_ref
    }

    fn since(map: &mut Slots, now: u64) -> Option<u64> {
        map.oldest_since(Nanos(now)).map(|at| at.0)
    }

    #[test]
    fn the_age_is_that_of_the_oldest_block() {
        let mut map = Rebuild::new(16).finish(1000).unwrap();
        assert_eq!(since(&mut map, 1), None);
        let first = write(&mut map, 7, 10);
        let second = write(&mut map, 8, 20);
        assert_eq!(since(&mut map, 30), Some(10));
        map.retire(7, first);
        map.mark_oldest(|| Nanos(40));
        assert_eq!(since(&mut map, 50), Some(40), "the age of the others is not known");
        map.drop_block(8, second);
        assert_eq!(since(&mut map, 60), None);
        assert_eq!(write(&mut map, 9, 70).slot, map.find(9).unwrap().slot_ref.slot);
        assert_eq!(since(&mut map, 80), Some(70));
    }

    #[test]
    fn an_overwritten_block_is_old_until_a_version_is_written() {
        let mut map = Rebuild::new(16).finish(1000).unwrap();
        let first = write(&mut map, 7, 10);
        write(&mut map, 7, 20);
        assert_eq!(since(&mut map, 30), Some(10));
        map.retire(7, first);
        assert!(map.is_dirty(7));
        assert_eq!(since(&mut map, 40), Some(40));
    }
}
