// SPDX-License-Identifier: Apache-2.0 OR MIT
//! Pending versions: the logged versions of pending epochs, in the order of their epochs.
//!
//! ```text
//!   front                                              back
//!   │ slots of epoch 7 │ of 8 │ of 11 ............... │ of the epoch that is being logged
//!   popped when it is retired                          sealed when a later one begins
//! ```
//!
//! Invariants
//! - WC-SD1 A sealed segment holds exactly the slots of its epoch's pending versions (and holes, if
//!   it was sealed during a dump). No such slot is reused before the epoch is retired.
//! - WC-SD2 In the last segment a slot appears once, however often it is reused meanwhile.
//!
//! Memory: 4 bytes a version and 8 an epoch.
use std::collections::VecDeque;

use roaring::RoaringBitmap;

use super::chunks::Chunks;
use crate::map::index::low32;

/// Stands for a slot that is not pending any more.
const HOLE: u32 = u32::MAX;

#[derive(Clone, Copy)]
struct Segment {
    /// The low half of the epoch. It is enough: fewer epochs than slots are pending at the same
    /// time.
    epoch_low: u32,
    len: u32,
}

/// See the module.
#[derive(Default)]
pub(super) struct PendingVersions {
    slots: Chunks,
    segments: VecDeque<Segment>,
    /// Slots of the last segment (WC-SD2).
    listed: RoaringBitmap,
    sealed: bool,
    /// An epoch that is not after the first one.
    base: u64,
    /// Slots and segments popped so far: places in the queue keep their numbers.
    popped: u64,
    popped_segments: u64,
    /// A dump is reading the queue: no slot may move.
    pub(super) pinned: bool,
}

/// A place in the queue.
#[derive(Clone, Copy, Default)]
pub(super) struct Place {
    at: u64,
    segment: u64,
    in_segment: u32,
}

impl PendingVersions {
    /// A sealed queue of these versions, which are in the order of epochs and have each slot once
    /// in an epoch.
    pub(super) fn sealed(versions: impl Iterator<Item = (u64, u32)>) -> PendingVersions {
        let mut pending = PendingVersions::default();
        for (epoch, slot) in versions {
            pending.begin(epoch);
            pending.add(slot);
        }
        pending.sealed = true;
        pending
    }

    fn epoch_of(&self, s: Segment) -> u64 {
        self.base + u64::from(s.epoch_low.wrapping_sub(low32(self.base)))
    }

    pub(super) fn first_epoch(&self) -> Option<u64> {
        self.segments.front().map(|&s| self.epoch_of(s))
    }

    /// The second epoch, and how many slots the first and the second have.
    pub(super) fn second(&self) -> Option<(u64, u32, u32)> {
        let (first, second) = (self.segments.front()?, self.segments.get(1)?);
        Some((self.epoch_of(*second), first.len, second.len))
    }

    /// The epoch of the segment with this number, and how many slots it has.
    pub(super) fn nth(&self, nth: usize) -> Option<(u64, u32)> {
        self.segments.get(nth).map(|&segment| (self.epoch_of(segment), segment.len))
    }

    /// The slots of a segment that begins with slot number `from`.
    pub(super) fn members_at(&self, from: usize, len: u32) -> Vec<u32> {
        self.slots.range(from..from + len as usize).filter(|&slot| slot != HOLE).collect()
    }

    fn last_epoch(&self) -> Option<u64> {
        self.segments.back().map(|&s| self.epoch_of(s))
    }

    pub(super) fn is_empty(&self) -> bool {
        self.segments.is_empty()
    }

    /// Whether a push for `epoch` begins a new segment. If so, the caller must seal the last one
    /// first.
    pub(super) fn begins(&self, epoch: u64) -> bool {
        self.last_epoch() != Some(epoch)
    }

    /// Adds a version of `epoch`, which is not before the last one.
    pub(super) fn push(&mut self, epoch: u64, slot: u32) {
        if self.begins(epoch) {
            assert!(self.segments.is_empty() || self.sealed);
            self.begin(epoch);
            self.listed.clear();
            self.sealed = false;
        }
        if self.listed.insert(slot) {
            self.add(slot);
        }
    }

    /// The version in slot `from` is in slot `to` now, which was free. Cost: a look at all slots.
    pub(super) fn rename(&mut self, from: u32, to: u32) {
        // WC-SD2: what slot `to` had before is not pending any more.
        if let Some(last) = self.segments.back().filter(|_| !self.sealed) {
            for at in self.slots.len() - last.len as usize..self.slots.len() {
                if self.slots[at] == to {
                    self.slots[at] = HOLE;
                }
            }
            self.listed.remove(to);
        }
        for at in 0..self.slots.len() {
            if self.slots[at] == from {
                self.slots[at] = to;
            }
        }
        if self.listed.remove(from) {
            self.listed.insert(to);
        }
    }

    /// Begins a segment, unless the last one is of this epoch.
    fn begin(&mut self, epoch: u64) {
        if self.begins(epoch) {
            assert!(self.last_epoch().is_none_or(|last| last < epoch));
            if self.segments.is_empty() {
                self.base = epoch;
            }
            self.segments.push_back(Segment { epoch_low: low32(epoch), len: 0 });
        }
    }

    fn add(&mut self, slot: u32) {
        self.slots.push_back(slot);
        self.segments.back_mut().expect("begun before").len += 1;
    }

    /// Seals the last segment and drops the slots that are not pending (WC-SD1).
    pub(super) fn seal(&mut self, is_pending: impl Fn(u32) -> bool) {
        let Some(last) = self.segments.back_mut().filter(|_| !self.sealed) else { return };
        self.sealed = true;
        let start = self.slots.len() - last.len as usize;
        let mut end = start;
        for at in start..self.slots.len() {
            let slot = self.slots[at];
            if slot != HOLE && is_pending(slot) {
                self.slots[end] = slot;
                end += 1;
            } else if self.pinned {
                self.slots[end] = HOLE;
                end += 1;
            }
        }
        self.slots.truncate(end);
        last.len = u32::try_from(end - start).expect("no more than it was");
    }

    /// The slots of the first segment, or with `second` of the second.
    pub(super) fn members(&self, second: bool) -> impl Iterator<Item = u32> + '_ {
        let len = |n: usize| self.segments.get(n).map_or(0, |s| s.len as usize);
        let from = if second { len(0) } else { 0 };
        let to = from + len(usize::from(second));
        self.slots.range(from..to).filter(|&slot| slot != HOLE)
    }

    /// All slots, in the order of epochs.
    pub(super) fn all(&self) -> Vec<u32> {
        self.slots.range(0..self.slots.len()).filter(|&slot| slot != HOLE).collect()
    }

    /// How many slots the first segment has, and all later ones.
    pub(super) fn lens(&self) -> (usize, usize) {
        let first = self.segments.front().map_or(0, |s| s.len as usize);
        (first, self.slots.len() - first)
    }

    /// The slots of all segments but the first.
    pub(super) fn later(&self) -> impl Iterator<Item = u32> + '_ {
        self.slots.range(self.lens().0..self.slots.len()).filter(|&slot| slot != HOLE)
    }

    /// Drops all segments up to `epoch`.
    pub(super) fn pop_through(&mut self, epoch: u64) {
        while let Some(first) = self.segments.front().filter(|s| self.epoch_of(**s) <= epoch) {
            let len = first.len as usize;
            self.slots.drop_front(len);
            self.segments.pop_front();
            self.popped += len as u64;
            self.popped_segments += 1;
        }
        match self.first_epoch() {
            Some(first) => self.base = first,
            None => self.listed.clear(),
        }
    }

    /// The place behind the last slot.
    pub(super) fn end(&self) -> u64 {
        self.popped + self.slots.len() as u64
    }

    /// The next at most `max` slots of one epoch, and that epoch, skipping holes; `None` at `end`.
    /// Moves `place` behind them.
    pub(super) fn next(
        &self,
        place: &mut Place,
        end: u64,
        max: usize,
    ) -> Option<(u64, impl Iterator<Item = u32> + '_)> {
        loop {
            if place.segment < self.popped_segments {
                let (at, segment) = (self.popped, self.popped_segments);
                *place = Place { at, segment, in_segment: 0 };
            }
            let left = end.checked_sub(place.at).filter(|&left| left > 0)?;
            let number = usize::try_from(place.segment - self.popped_segments).ok()?;
            let segment = *self.segments.get(number)?;
            if place.in_segment == segment.len {
                *place = Place { segment: place.segment + 1, in_segment: 0, ..*place };
                continue;
            }
            let of_segment = segment.len - place.in_segment;
            let len = u64::from(of_segment).min(left).min(max as u64);
            let from = usize::try_from(place.at - self.popped).ok()?;
            place.at += len;
            place.in_segment += u32::try_from(len).expect("at most the segment's");
            let slots = self.slots.range(from..from + usize::try_from(len).ok()?);
            return Some((self.epoch_of(segment), slots.filter(|&slot| slot != HOLE)));
        }
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    fn all(pending: &PendingVersions) -> Vec<(u64, u32)> {
        let (mut place, mut all) = (Place::default(), Vec::new());
        while let Some((epoch, slots)) = pending.next(&mut place, pending.end(), 3) {
            all.extend(slots.map(|slot| (epoch, slot)));
        }
        all
    }

    /// The next slot that is no hole.
    fn next(pending: &PendingVersions, place: &mut Place, end: u64) -> Option<(u64, u32)> {
        loop {
            let (epoch, mut slots) = pending.next(place, end, 1)?;
            if let Some(slot) = slots.next() {
                return Some((epoch, slot));
            }
        }
    }

    #[test]
    fn a_slot_is_in_an_epoch_once_and_only_pending_ones_stay() {
        let mut pending = PendingVersions::default();
        let far = u64::from(u32::MAX) - 1;
        for slot in [5, 6, 5, 7] {
            pending.push(far, slot);
        }
        pending.seal(|slot| slot != 6);
        pending.push(far + 3, 6);
        assert_eq!(all(&pending), [(far, 5), (far, 7), (far + 3, 6)]);
        assert_eq!(pending.second(), Some((far + 3, 2, 1)));
        assert!(pending.members(false).eq([5, 7]) && pending.members(true).eq([6]));
        pending.pop_through(far + 2);
        assert_eq!((pending.first_epoch(), pending.is_empty()), (Some(far + 3), false));
        assert_eq!(all(&pending), [(far + 3, 6)]);
    }

    #[test]
    fn a_version_that_moves_is_there_once_in_its_own_epoch() {
        let mut pending = PendingVersions::default();
        for (epoch, slot) in [(1, 5), (1, 6), (2, 7), (2, 8), (2, 9)] {
            if pending.begins(epoch) {
                pending.seal(|_| true);
            }
            pending.push(epoch, slot);
        }
        // Slots 7 and 8 were set free since, and versions of both epochs have moved there.
        pending.rename(5, 7);
        pending.rename(9, 8);
        pending.push(2, 8);
        pending.seal(|_| true);
        assert_eq!(all(&pending), [(1, 7), (1, 6), (2, 8)]);
    }

    #[test]
    fn a_dump_keeps_its_place_while_epochs_are_sealed_and_popped() {
        let mut pending = PendingVersions::default();
        for (epoch, slot) in [(1, 10), (1, 11), (2, 20), (2, 21)] {
            if pending.begins(epoch) {
                pending.seal(|_| true);
            }
            pending.push(epoch, slot);
        }
        pending.pinned = true;
        let (mut place, end) = (Place::default(), pending.end());
        assert_eq!(next(&pending, &mut place, end), Some((1, 10)));
        pending.seal(|slot| slot != 20);
        pending.push(3, 30);
        assert_eq!(next(&pending, &mut place, end), Some((1, 11)));
        pending.pop_through(1);
        assert_eq!(next(&pending, &mut place, end), Some((2, 21)));
        assert_eq!(next(&pending, &mut place, end), None, "what came after the dump began");
        let mut from_start = Place::default();
        assert_eq!(next(&pending, &mut from_start, end), Some((2, 21)), "the first epoch is gone");
    }
}
