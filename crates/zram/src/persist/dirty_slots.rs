// SPDX-License-Identifier: Apache-2.0 OR MIT
//! Dirty slots: a pass over ranges of slots, which visits those that are dirty.
use std::ops::Range;

use super::state::Persist;

/// Ranges of slots, ascending, and how far the pass has come. A slot that becomes dirty after the
/// pass is over it is not visited, so every pass ends.
pub(super) struct DirtySlots {
    ranges: Vec<Range<u32>>,
    nth: usize,
}

impl DirtySlots {
    pub(super) fn new(ranges: Vec<Range<u32>>) -> DirtySlots {
        DirtySlots { ranges, nth: 0 }
    }

    /// A pass over single slots, ascending.
    pub(super) fn of_slots(slots: &[u32]) -> DirtySlots {
        let mut ranges: Vec<Range<u32>> = Vec::new();
        for &slot in slots {
            match ranges.last_mut() {
                Some(last) if last.end == slot => last.end += 1,
                Some(_) | None => ranges.push(slot..slot + 1),
            }
        }
        DirtySlots::new(ranges)
    }

    /// The next dirty slot.
    pub(super) fn next(&mut self, persist: &Persist) -> Option<u32> {
        let dirty = persist.dirty.borrow();
        while let Some(range) = self.ranges.get_mut(self.nth) {
            if let Some(slot) = dirty.first(range) {
                range.start = slot;
                return Some(slot);
            }
            self.nth += 1;
        }
        None
    }

    /// The pass is over the next `slots` slots.
    pub(super) fn pass(&mut self, slots: u32) {
        let range = &mut self.ranges[self.nth];
        range.start = range.end.min(range.start + slots);
    }

    /// The end of the range that has the next slot.
    pub(super) fn end(&self) -> u32 {
        self.ranges[self.nth].end
    }
}
