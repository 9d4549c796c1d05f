// SPDX-License-Identifier: Apache-2.0 OR MIT
//! Growth: the map takes more slots, or fewer.
//!
//! The new slots are free, and follow those that there are. Slots that go are free, too, and are
//! the last ones. The index is made anew, twice as long as there are slots (WC-X2), in one stall
//! whose time is not measured yet.
use super::{Slot, Slots};

impl Slots {
    /// Adds free slots, so that there are `slots`.
    pub(crate) fn grow(&mut self, slots: u32) {
        let more = slots.checked_sub(self.counts.slots).expect("the caller takes no slot away");
        self.slots.reserve_exact(more as usize);
        self.slots.resize(slots as usize, Slot::VACANT);
        let table = &self.slots;
        self.index = self.index.grown(slots, |slot| table[slot as usize].block());
        self.oldest.resize(slots);
        self.free.grow(slots);
        self.counts.slots = slots;
        self.counts.free += more;
    }

    /// From now on slots from `first` on are not taken for new data.
    pub(crate) fn hold_from(&mut self, first: u32) {
        self.free.hold_from(first);
    }

    /// Slots from `first` on that are in use.
    pub(crate) fn used_from(&self, first: u32) -> u32 {
        let mut used = 0;
        let mut slot = self.free.next_used(first);
        while slot < self.counts.slots {
            used += 1;
            slot = self.free.next_used(slot + 1);
        }
        used
    }

    /// Drops clean blocks in slots from `first` on, at most `max`. Returns how many.
    pub(crate) fn evict_from(&mut self, first: u32, max: u32) -> u32 {
        let max = max.min(u32::try_from(self.journal_room()).unwrap_or(u32::MAX));
        let mut evicted = 0;
        let mut slot = self.free.next_used(first);
        while slot < self.counts.slots && evicted < max {
            evicted += u32::from(self.drop_if_clean(slot));
            slot = self.free.next_used(slot + 1);
        }
        evicted
    }

    /// Takes the slots from `slots` on away, which are free.
    pub(crate) fn shrink(&mut self, slots: u32) {
        self.counts.free -= self.counts.slots - slots;
        self.counts.slots = slots;
        self.free.shrink(slots);
        self.slots.truncate(slots as usize);
        self.slots.shrink_to_fit();
        let table = &self.slots;
        self.index = self.index.grown(slots, |slot| table[slot as usize].block());
        self.oldest.resize(slots);
        self.evict_cursor = 0;
    }
}
