// SPDX-License-Identifier: Apache-2.0 OR MIT
//! Free slots as a bitmap with a cursor: space is taken in ascending runs, so that a burst of
//! random writes reaches the cache device as large sequential writes.
use std::ops::Range;

pub(crate) struct FreeMap {
    /// One bit a slot, set while the slot is free.
    words: Vec<u64>,
    free: u32,
    slots: u32,
    cursor: u32,
}

impl FreeMap {
    /// A map in which all `slots` slots are in use.
    pub(crate) fn new(slots: u32) -> FreeMap {
        let words = vec![0; slots.div_ceil(64) as usize];
        FreeMap { words, free: 0, slots, cursor: 0 }
    }

    pub(crate) fn len(&self) -> u32 {
        self.free
    }

    /// Adds free slots, so that there are `slots`.
    pub(crate) fn grow(&mut self, slots: u32) {
        let old = std::mem::replace(&mut self.slots, slots);
        self.words.resize(slots.div_ceil(64) as usize, 0);
        (old..slots).for_each(|slot| self.put(slot));
    }

    fn bit(slot: u32) -> (usize, u64) {
        ((slot / 64) as usize, 1 << (slot % 64))
    }

    pub(crate) fn is_free(&self, slot: u32) -> bool {
        let (word, bit) = Self::bit(slot);
        self.words[word] & bit != 0
    }

    pub(crate) fn put(&mut self, slot: u32) {
        assert!(slot < self.slots, "slot {slot} of {}", self.slots);
        let (word, bit) = Self::bit(slot);
        assert!(self.words[word] & bit == 0, "slot {slot} was freed twice");
        self.words[word] |= bit;
        self.free += 1;
    }

    /// Takes the next run of at most `max` free slots after the run that was taken last. At the end
    /// it continues from slot 0.
    pub(crate) fn take_run(&mut self, max: u32) -> Option<Range<u32>> {
        if self.free == 0 || max == 0 {
            return None;
        }
        let start = self.next_free(self.cursor).or_else(|| self.next_free(0))?;
        let mut end = start;
        while end < self.slots && end - start < max && self.is_free(end) {
            let (word, bit) = Self::bit(end);
            self.words[word] &= !bit;
            end += 1;
        }
        self.free -= end - start;
        self.cursor = if end == self.slots { 0 } else { end };
        Some(start..end)
    }

    /// The first slot from `from` on that is not free, or the number of slots.
    pub(crate) fn next_used(&self, from: u32) -> u32 {
        let mut slot = from;
        while slot < self.slots {
            let (word, _) = Self::bit(slot);
            let used = !self.words[word] & (u64::MAX << (slot % 64));
            let first = slot - slot % 64;
            if used != 0 {
                return self.slots.min(first + used.trailing_zeros());
            }
            slot = first.saturating_add(64);
        }
        self.slots
    }

    fn next_free(&self, from: u32) -> Option<u32> {
        let (mut word, _) = Self::bit(from);
        let mut masked = *self.words.get(word)? & (u64::MAX << (from % 64));
        loop {
            if masked != 0 {
                let base = u32::try_from(word * 64).expect("slots are counted in u32");
                return Some(base + masked.trailing_zeros());
            }
            word += 1;
            masked = *self.words.get(word)?;
        }
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn runs_ascend_and_go_round() {
        let mut free = FreeMap::new(130);
        for slot in (0..130).filter(|s| *s != 70) {
            free.put(slot);
        }
        assert_eq!(free.take_run(40), Some(0..40));
        assert_eq!(free.take_run(1000), Some(40..70));
        free.put(3);
        assert_eq!(free.take_run(1000), Some(71..130));
        assert_eq!(free.take_run(1000), Some(3..4));
        assert_eq!(free.take_run(1), None);
        assert_eq!(free.len(), 0);
    }

    #[test]
    fn used_slots_are_found_in_order() {
        for slots in [1, 63, 64, 65, 200, 256] {
            let mut free = FreeMap::new(slots);
            let is_used = |slot: u32| slot % 7 == 3 || (100..130).contains(&slot);
            (0..slots).filter(|&slot| !is_used(slot)).for_each(|slot| free.put(slot));
            for from in 0..=slots {
                let next = (from..slots).find(|&slot| is_used(slot)).unwrap_or(slots);
                assert_eq!(free.next_used(from), next, "from {from} of {slots}");
            }
        }
    }

    #[test]
    fn slots_that_are_added_follow_those_that_there_are() {
        let mut free = FreeMap::new(70);
        (0..70).for_each(|slot| free.put(slot));
        assert_eq!(free.take_run(1000), Some(0..70));
        free.grow(130);
        assert_eq!((free.len(), free.take_run(1000)), (60, Some(70..130)));
    }

    #[test]
    #[should_panic(expected = "freed twice")]
    fn a_slot_is_freed_once() {
        let mut free = FreeMap::new(10);
        free.put(1);
        free.put(1);
    }
}
