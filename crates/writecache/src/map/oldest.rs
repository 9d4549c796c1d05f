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
//! anew.
//!
//! A mark is one bit of the slot. No dirty block is marked when the next marking begins, so that
//! the bits of all dirty slots are equal then: the marking changes the value that means "marked"
//! and sets the count of marks, and touches no slot.
//!
//! A block that clients overwrite all the time loses its mark when any of its versions has been
//! written: the origin then has what the client wrote in the meantime.
//!
//! Invariants
//! - WC-OD1 `marks` is the number of dirty slots whose bit says "marked".
use block::Nanos;

use super::{Slots, State};

/// Which dirty slots are marked, and since when.
pub(super) struct Oldest {
    /// One bit a slot; only those of dirty slots mean something.
    words: Vec<u64>,
    /// The value of the bit of a marked slot.
    marked: bool,
    marks: u32,
    since: Nanos,
}

impl Oldest {
    /// No slot of `slots` is marked.
    pub(super) fn new(slots: u32) -> Oldest {
        let words = vec![0; slots.div_ceil(64) as usize];
        Oldest { words, marked: true, marks: 0, since: Nanos(0) }
    }

    /// Adds slots, none of them marked, or takes some away that are free.
    pub(super) fn resize(&mut self, slots: u32) {
        self.words.resize(slots.div_ceil(64) as usize, 0);
    }

    fn is_marked(&self, slot: u32) -> bool {
        (self.words[(slot / 64) as usize] >> (slot % 64) & 1 != 0) == self.marked
    }

    fn set(&mut self, slot: u32, marked: bool) {
        let (word, bit) = (&mut self.words[(slot / 64) as usize], 1 << (slot % 64));
        *word = if marked == self.marked { *word | bit } else { *word & !bit };
    }

    /// The slot becomes dirty; `superseded` is the dirty slot of the same block that it replaces,
    /// whose mark it takes over.
    #[inline(always)]
    pub(super) fn enter(&mut self, slot: u32, superseded: Option<u32>) {
        self.set(slot, superseded.is_some_and(|old| self.is_marked(old)));
    }

    /// The origin has a version of the block whose dirty slot this is, or the slot is about to be
    /// no longer dirty.
    #[inline(always)]
    pub(super) fn forget(&mut self, slot: u32) {
        if self.is_marked(slot) {
            self.set(slot, false);
            self.marks -= 1;
        }
    }
}

impl Slots {
    /// Marks all dirty blocks if none is marked.
    #[inline(always)]
    pub(crate) fn mark_oldest(&mut self, now: impl FnOnce() -> Nanos) {
        if self.oldest.marks == 0 && self.counts.dirty > 0 {
            self.oldest.marked = !self.oldest.marked;
            self.oldest.marks = self.counts.dirty;
            self.oldest.since = now();
        }
    }

    /// Since when, at least, the oldest dirty block is dirty; `None` without dirty blocks.
    pub(crate) fn oldest_since(&mut self, now: Nanos) -> Option<Nanos> {
        self.mark_oldest(|| now);
        (self.oldest.marks > 0).then_some(self.oldest.since)
    }

    /// Checks WC-OD1 by counting.
    pub(super) fn check_marks(&self) {
        let is_dirty = |slot: u32| self.slots[slot as usize].state == State::Dirty;
        let marked = |&slot: &u32| is_dirty(slot) && self.oldest.is_marked(slot);
        let marks = (0..self.counts.slots).filter(marked).count();
        assert_eq!(marks, self.oldest.marks as usize, "WC-OD1");
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

    #[test]
    fn marks_are_counted_over_many_markings() {
        let mut map = Rebuild::new(64).finish(1000).unwrap();
        let draws = (1..4000u64).map(|n| n.wrapping_mul(0x9e37_79b9_7f4a_7c15) >> 33);
        let mut markings = 0;
        for draw in draws {
            let (block, now) = (draw / 8 % 24, draw);
            let before = map.oldest.since;
            let found = map.find(block).map(|found| found.slot_ref);
            match (draw % 8, found) {
                (0..3, _) if map.counts.free > 0 => _ = write(&mut map, block, now),
                (3, Some(slot_ref)) => _ = map.drop_block(block, slot_ref),
                (4, Some(slot_ref)) => map.make_dirty(block, slot_ref),
                (5, Some(slot_ref)) => _ = map.quarantine(block, slot_ref),
                (_, Some(slot_ref)) => map.retire(block, slot_ref),
                (_, None) => map.retire(block, SlotRef { slot: 0, stamp: 0 }),
            }
            map.mark_oldest(|| Nanos(now));
            markings += u32::from(map.oldest.since != before);
            map.begin_commit();
            let batch = map.take_batch(100);
            map.complete_batch(batch);
            map.check();
        }
        assert!(markings > 20, "{markings}");
    }
}
