// SPDX-License-Identifier: Apache-2.0 OR MIT
//! Growth: the map takes more slots.
//!
//! The new slots are free, and follow those that there are. The index is made anew, twice as long
//! as there are slots (WC-X2), in one stall whose time is not measured yet.
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
}
