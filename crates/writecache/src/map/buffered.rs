// SPDX-License-Identifier: Apache-2.0 OR MIT
//! Buffered slots: slots whose data are in memory and not on the cache device yet
//! (`store::buffer`). The map has such a version like any other: it is dirty, belongs to an epoch,
//! is counted, superseded and logged.
//!
//! ```text
//!   enter ─▶ waiting ─ begin_write ─▶ writing ─ end_write ─▶ on the device
//!               │ freed                  │ freed
//!               ▼ a hole                 ▼ superseded: its slot is free when the write has ended
//! ```
//!
//! Invariants
//! - WC-BF1 The data of a buffered slot never change: a new version of the block has another slot
//!   and another place. So no version changes while it is being written, and none enters an epoch
//!   that was closed before.
//! - WC-BF2 A slot that is being written is not free, even if nothing refers to it any more: the
//!   data that are in flight would land over those of the next version in it.
//! - WC-BF3 A place is used again only when its version is on the device, or its slot is free.
//!
//! Memory: 13 bytes a place.
use block::Planted;

use super::index::Index;
use super::{Slots, State};
use crate::planted::Fault;

/// What is at a place of the buffer.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
enum PlaceState {
    /// Nothing, or a version that is not needed any more.
    Empty,
    /// A version that is not being written.
    Waiting,
    /// A version that is being written.
    Writing,
    /// A version that is being written, and whose slot nothing refers to.
    Superseded,
}

/// Which slot has its data at which place of the buffer.
pub(crate) struct BufferedSlots {
    places: Index,
    slots: Vec<u32>,
    states: Vec<PlaceState>,
    count: u32,
    planted: Planted<Fault>,
}

impl BufferedSlots {
    /// No slot is buffered; there are `places` places.
    pub(crate) fn new(places: u32, planted: Planted<Fault>) -> BufferedSlots {
        let count = places as usize;
        let (slots, states) = (vec![0; count], vec![PlaceState::Empty; count]);
        BufferedSlots { places: Index::new(places), slots, states, count: 0, planted }
    }

    fn find(&self, slot: u32) -> Option<u32> {
        self.places.find(slot.into(), |place| self.slots[place as usize].into())
    }

    fn take_out(&mut self, slot: u32, place: u32) {
        let slots = &self.slots;
        self.places.remove(slot.into(), |place| slots[place as usize].into());
        self.states[place as usize] = PlaceState::Empty;
        self.count -= 1;
    }

    /// The slot is about to be free. Returns whether it is being written (WC-BF2).
    fn supersede(&mut self, slot: u32) -> bool {
        let Some(place) = self.find(slot) else { return false };
        let is_waiting = self.states[place as usize] == PlaceState::Waiting;
        if is_waiting || self.planted.is(Fault::BufferSlotReused) {
            self.take_out(slot, place);
            return false;
        }
        self.states[place as usize] = PlaceState::Superseded;
        true
    }
}

impl Slots {
    /// Makes places for buffered slots. None is buffered.
    pub(crate) fn set_buffer_places(&mut self, places: u32, planted: Planted<Fault>) {
        assert_eq!(self.buffered.count, 0, "no place is in use");
        self.buffered = BufferedSlots::new(places, planted);
    }

    /// How many slots are buffered.
    pub(crate) fn buffered_count(&self) -> u32 {
        self.buffered.count
    }

    /// The place of the slot's data, if they are in the buffer.
    #[inline]
    pub(crate) fn place_of(&self, slot: u32) -> Option<u32> {
        if self.buffered.count == 0 { None } else { self.buffered.find(slot) }
    }

    /// The slot for the data at a place.
    pub(crate) fn slot_at(&self, place: u32) -> u32 {
        self.buffered.slots[place as usize]
    }

    /// The data for an allocated slot are at this place.
    pub(crate) fn enter_buffer(&mut self, slot: u32, place: u32) {
        let b = &mut self.buffered;
        assert_eq!(b.states[place as usize], PlaceState::Empty, "WC-BF3: place {place}");
        b.slots[place as usize] = slot;
        b.states[place as usize] = PlaceState::Waiting;
        b.count += 1;
        let slots = &b.slots;
        let old = b.places.replace(slot.into(), place, |place| slots[place as usize].into());
        assert_eq!(old, None, "slot {slot} is buffered already");
    }

    /// The data at this place are about to be written. Returns the slot for them, or `None` if they
    /// are not needed any more.
    pub(crate) fn begin_buffer_write(&mut self, place: u32) -> Option<u32> {
        let state = &mut self.buffered.states[place as usize];
        if *state == PlaceState::Empty {
            return None;
        }
        assert_eq!(*state, PlaceState::Waiting, "place {place} is written once");
        *state = PlaceState::Writing;
        Some(self.buffered.slots[place as usize])
    }

    /// Whether the version at this place, which is being written, is still needed.
    pub(crate) fn is_needed(&self, place: u32) -> bool {
        self.buffered.states[place as usize] == PlaceState::Writing
    }

    /// The data at this place are on the device, or nobody needs them: the slot is buffered no
    /// longer. Returns whether this has set it free.
    pub(crate) fn end_buffer_write(&mut self, place: u32) -> bool {
        let slot = self.buffered.slots[place as usize];
        if self.buffered.planted.is(Fault::BufferSlotReused) && !self.is_needed(place) {
            return false; // the fault has taken it out
        }
        let is_superseded = self.buffered.states[place as usize] == PlaceState::Superseded;
        self.buffered.take_out(slot, place);
        if is_superseded {
            self.abandon(slot);
        }
        is_superseded
    }

    /// Planted fault: the version at this place has other data.
    pub(crate) fn set_checksum(&mut self, place: u32, crc: u32) {
        let slot = self.slot_at(place);
        self.slots[slot as usize].crc = crc;
    }

    /// A slot that nothing refers to is about to be free; returns whether it must wait for the end
    /// of a write (WC-BF2).
    #[inline]
    pub(super) fn is_held_by_buffer(&mut self, slot: u32) -> bool {
        self.buffered.count > 0 && self.supersede_buffered(slot)
    }

    #[inline(never)]
    fn supersede_buffered(&mut self, slot: u32) -> bool {
        let is_held = self.buffered.supersede(slot);
        if is_held {
            self.set_state(slot, State::Writing);
            self.slots[slot as usize].logged = false;
        }
        is_held
    }

    /// The device refuses the data for slot `from`, which are at this place: the version moves to
    /// slot `to`, which has them. Slot `from` stays allocated, without a version: the journal names
    /// it until the next commit is durable. References find the version in `to` (WC-M5). Returns
    /// `from`.
    pub(crate) fn move_version(&mut self, place: u32, to: u32) -> u32 {
        let from = self.buffered.slots[place as usize];
        assert!(self.is_needed(place) && self.slots[to as usize].state == State::Writing);
        self.buffered.take_out(from, place);
        let old = self.slots[from as usize];
        let stamp = match self.buffered.planted.is(Fault::MovedVersionLost) {
            true => self.slots[to as usize].stamp,
            false => old.stamp,
        };
        let block = old.block();
        let slots = &self.slots;
        if self.index.find(block, |s| slots[s as usize].block()) == Some(from) {
            self.index.replace(block, to, |s| slots[s as usize].block());
        }
        if old.state == State::Dirty {
            self.oldest.enter(to, Some(from));
        }
        self.limbo.iter_mut().filter(|slot| **slot == from).for_each(|slot| *slot = to);
        let s = &mut self.slots[to as usize];
        (s.block_low, s.block_high) = (old.block_low, old.block_high);
        (s.logged, s.crc, s.stamp) = (old.logged, old.crc, stamp);
        self.set_state(to, old.state);
        self.set_state(from, State::Writing);
        let forgotten = self.stamp(); // WC-M5: the version is not in this slot any more
        (self.slots[from as usize].stamp, self.slots[from as usize].logged) = (forgotten, false);
        if let Some(e) = &mut self.epochs {
            e.move_slot((from, old.stamp), (to, stamp));
        }
        from
    }
}

#[cfg(test)]
#[path = "buffered_tests.rs"]
mod tests;
