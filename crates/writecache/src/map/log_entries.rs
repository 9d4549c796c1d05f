// SPDX-License-Identifier: Apache-2.0 OR MIT
//! Log entries of a cache with epochs (WC-E5): what a batch of the log and a checkpoint contain;
//! and how ordered mode is switched on and off when a cache is opened.
//!
//! ```text
//!   a record:   Epoch (number, oldest) │ Clean, Drop ... │ Write, WriteNext ... in order of epochs
//! ```
use format::{ENTRIES_PER_UNIT, Entry, Op};

use super::epoch_state::Epochs;
use super::pending::{PendingVersions, Place};
use super::{Batch, Slot, Slots, State, next_in};

/// Most entries that one write adds: itself, its epoch, and the head of a new record.
const ENTRIES_PER_WRITE_MAX: usize = 3;

/// Changes for which every unit of the log has room. A change takes one entry. In ordered mode the
/// first entry of a unit is an epoch, and each change may need another one before it.
pub(crate) const fn changes_per_unit(ordered: bool) -> usize {
    if ordered { (ENTRIES_PER_UNIT - 1) / 2 } else { ENTRIES_PER_UNIT }
}

/// Builds the entries of records, each of which begins with its epoch.
struct RecordBuilder {
    entries: Vec<Entry>,
    max: usize,
    oldest: u64,
    epoch: u64,
}

impl RecordBuilder {
    fn new(max: usize, oldest: u64) -> RecordBuilder {
        RecordBuilder { entries: Vec::new(), max, oldest, epoch: oldest }
    }

    /// How many more writes fit in any case.
    fn room(&self) -> usize {
        self.max.saturating_sub(self.entries.len()) / ENTRIES_PER_WRITE_MAX
    }

    fn is_full(&self) -> bool {
        self.room() == 0
    }

    fn push(&mut self, entry: Entry) {
        if self.entries.len().is_multiple_of(ENTRIES_PER_UNIT) {
            self.entries.push(Entry::epoch(self.epoch, self.oldest));
        }
        self.entries.push(entry);
    }

    /// Adds a version or zeroes. Its epoch is not before that of the last write.
    fn write(&mut self, epoch: u64, slot: u32, s: Slot) {
        let mut op = if s.state == State::Zero { Op::Zero } else { Op::Write };
        let at_head = self.entries.len().is_multiple_of(ENTRIES_PER_UNIT);
        if !at_head && op == Op::Write && epoch == self.epoch + 1 {
            op = Op::WriteNext;
        } else if !at_head && epoch != self.epoch {
            self.entries.push(Entry::epoch(epoch, self.oldest));
        }
        self.epoch = epoch;
        self.push(Entry { op, block: s.block(), slot, crc: s.crc });
    }
}

impl Slots {
    /// As [`Slots::extend_batch`], for a cache with epochs: it logs versions, not blocks.
    pub(super) fn take_batch_of_epochs(&mut self, e: &mut Epochs, max: usize) -> Batch {
        let mut builder = RecordBuilder::new(max, e.oldest);
        let mut last_taken = None;
        for block in self.committing.iter() {
            if builder.is_full() {
                break;
            }
            last_taken = Some(block);
            let Some(slot) = self.slot_of(block) else {
                self.unlogged.remove(block);
                let last = builder.entries.last_mut();
                match last.filter(|l| l.op == Op::Drop && l.block + u64::from(l.slot) == block) {
                    Some(last) => last.slot += 1,
                    None => builder.push(Entry { op: Op::Drop, block, slot: 1, crc: 0 }),
                }
                continue;
            };
            let s = &mut self.slots[slot as usize];
            if s.state == State::Clean {
                s.logged = true;
                self.unlogged.remove(block);
                builder.push(Entry { op: Op::Clean, block, slot, crc: s.crc });
            } else if !s.logged {
                self.unlogged.insert(block); // logged below, or in the next batch
            }
        }
        if let Some(last) = last_taken {
            self.committing.remove_range(..=last);
        }
        while e.commit_target > 0 && !builder.is_full() {
            let f = e.unlogged.pop_front().expect("as many as are due");
            e.commit_target -= 1;
            if !self.is_unlogged(&f) {
                continue;
            }
            // A version that was unreadable when its epoch was retired joins the oldest epoch.
            let epoch = f.epoch.max(e.oldest);
            let s = self.slots[f.slot as usize];
            builder.write(epoch, f.slot, s);
            if e.is_pending(f.slot, s.state) {
                if e.pending.begins(epoch) {
                    e.seal_last(self);
                }
                e.pending.push(epoch, f.slot);
            }
            self.slots[f.slot as usize].logged = true;
            if matches!(s.state, State::Old | State::Zero) {
                e.unlogged_kept -= 1;
            } else {
                self.unlogged.remove(s.block());
                self.committing.remove(s.block());
            }
        }
        if builder.entries.is_empty() {
            builder.entries.push(Entry::epoch(e.oldest, e.oldest));
        }
        self.counts.unlogged = self.unlogged.len() + self.committing.len() + e.unlogged_kept;
        let mut freed = Vec::new();
        self.take_unnamed(&mut freed);
        Batch { entries: builder.entries, freed, oldest: Some(e.oldest) }
    }
}

/// How far a checkpoint has been written.
#[derive(Default)]
pub(crate) struct Dump {
    slot: u32,
    /// Slots that the checkpoint has. If such a slot has another block by now, that change is in
    /// the log.
    written: SlotSet,
    place: Place,
    end: u64,
    /// The epoch of the last version that was written; the epochs never descend.
    epoch: u64,
    /// Unreadable blocks from this one on are not written yet.
    bad_from: u64,
}

/// A bit for each slot.
#[derive(Default)]
struct SlotSet(Vec<u64>);

impl SlotSet {
    fn new(slots: u32) -> SlotSet {
        SlotSet(vec![0; slots.div_ceil(64) as usize])
    }

    /// Marks a slot; returns whether it was not marked before.
    fn mark(&mut self, slot: u32) -> bool {
        let (word, bit) = (&mut self.0[(slot / 64) as usize], 1 << (slot % 64));
        let is_new = *word & bit == 0;
        *word |= bit;
        is_new
    }
}

impl Slots {
    /// Begins a checkpoint; the caller must call [`Slots::end_dump`], also after an error.
    pub(crate) fn begin_dump(&mut self) -> Dump {
        let Some(e) = &mut self.epochs else { return Dump::default() };
        e.pending.pinned = true;
        Dump { end: e.pending.end(), written: SlotSet::new(self.counts.slots), ..Dump::default() }
    }

    pub(crate) fn end_dump(&mut self) {
        if let Some(e) = &mut self.epochs {
            e.pending.pinned = false;
        }
    }

    /// Returns the next entries of a checkpoint, at most `max`; none at its end. Clean blocks come
    /// first, in the order of slots; then pending versions, in the order of epochs; then unreadable
    /// blocks. Versions that were logged since the dump began may be missing.
    pub(crate) fn dump(&mut self, dump: &mut Dump, max: usize) -> Vec<Entry> {
        let Some(e) = self.epochs.take() else {
            let mut entries = Vec::with_capacity(max);
            while dump.slot < self.counts.slots && entries.len() < max {
                let entry = self.checkpoint_entry(dump.slot);
                dump.slot = self.after(dump.slot, entry.is_some());
                entries.extend(entry);
            }
            return entries;
        };
        let mut builder = RecordBuilder::new(max, e.oldest);
        while dump.slot < self.counts.slots && !builder.is_full() {
            let slot = dump.slot;
            dump.slot = self.after(slot, self.slots[slot as usize].state != State::Free);
            let s = &self.slots[slot as usize];
            // Of one that the log does not name the data may not be durable yet (WC-RA2).
            if s.state == State::Clean && s.logged {
                builder.push(Entry { op: Op::Clean, block: s.block(), slot, crc: s.crc });
                dump.written.mark(slot);
            }
        }
        let oldest = e.oldest;
        self.epochs = Some(e);
        while !builder.is_full() {
            let e = self.epochs.as_ref().expect("put back above");
            let Some((epoch, slots)) = e.pending.next(&mut dump.place, dump.end, builder.room())
            else {
                break;
            };
            for slot in slots {
                if self.is_pending_of(epoch, slot) && dump.written.mark(slot) {
                    dump.epoch = epoch.max(e.oldest);
                    builder.write(dump.epoch, slot, self.slots[slot as usize]);
                }
            }
        }
        // Unreadable blocks are read again at the next start; their epochs are retired without
        // them. They come last: such a block may have been dirty when the dump passed its slot, and
        // its epoch may be retired since.
        while !builder.is_full()
            && let Some(block) = next_in(&self.bad, dump.bad_from)
        {
            dump.bad_from = block + 1;
            let slot = self.slot_of(block).expect("WC-M2: it is in the index");
            if dump.written.mark(slot) {
                let s = &mut self.slots[slot as usize];
                s.logged = true;
                builder.write(dump.epoch.max(oldest), slot, *s);
            }
        }
        builder.entries
    }

    /// The slot that a dump looks at next: after one that is not in use it skips all free ones.
    fn after(&self, slot: u32, is_used: bool) -> u32 {
        if is_used { slot + 1 } else { self.free.next_used(slot + 1) }
    }

    /// Switches ordered mode on or off when a cache is opened. Returns true if a checkpoint must be
    /// written before the cache is used, because the media have other epochs than the map.
    pub(crate) fn set_ordered(&mut self, ordered: bool) -> bool {
        match (ordered, self.epochs.take()) {
            (true, Some(epochs)) => {
                let mend = epochs.repaired;
                self.epochs = Some(epochs);
                mend
            }
            (true, None) => {
                // All dirty blocks form the first epoch.
                let any = !self.dirty.is_empty();
                let mut e = Epochs::new(1, if any { 2 } else { 1 });
                let dirty = |&slot: &u32| self.slots[slot as usize].state == State::Dirty;
                let dirty = (0..self.counts.slots).filter(dirty);
                e.pending = PendingVersions::sealed(dirty.map(|slot| (1, slot)));
                self.epochs = Some(Box::new(e));
                any
            }
            (false, None) => false,
            (false, Some(epochs)) => {
                let olds: Vec<u32> = (0..self.counts.slots)
                    .filter(|&slot| self.slots[slot as usize].state == State::Old)
                    .collect();
                olds.iter().for_each(|&slot| self.release(slot));
                // Zeroes are kept until the origin has them.
                !epochs.pending.is_empty()
            }
        }
    }
}

impl Epochs {
    /// The epochs that recovery has found, with their pending versions. `repaired`: recovery has
    /// put a version into another epoch than that on the media.
    pub(super) fn found(
        pending: PendingVersions,
        (oldest, newest): (u64, u64),
        repaired: bool,
    ) -> Epochs {
        let mut e = Epochs::new(oldest, newest + 1);
        (e.pending, e.repaired) = (pending, repaired);
        e
    }
}

#[cfg(test)]
mod tests {
    use proptest::prelude::*;

    use super::*;

    proptest! {
        /// WC-LR2: whatever the epochs are, and however many blocks are clean before.
        #[test]
        fn a_unit_has_room_for_as_many_changes_as_are_reckoned_with(
            clean in 0..300usize,
            steps in prop::collection::vec(0u64..3, 0..1000),
        ) {
            let mut builder = RecordBuilder::new(usize::MAX, 5);
            for block in 0..clean {
                let op = Op::Clean;
                builder.push(Entry { op, block: 2 * block as u64, slot: 0, crc: 0 });
            }
            let mut epoch = 5;
            for step in &steps {
                epoch += step;
                builder.write(epoch, 0, Slot::VACANT);
            }
            let units = (clean + steps.len()).div_ceil(changes_per_unit(true));
            prop_assert!(builder.entries.len() <= units * ENTRIES_PER_UNIT);
        }
    }

    #[test]
    fn a_unit_has_room_for_writes_of_epochs_with_gaps() {
        let per_unit = changes_per_unit(true);
        for count in [1, per_unit, per_unit + 1, 4 * per_unit, 1000] {
            let mut builder = RecordBuilder::new(usize::MAX, 1);
            (1..=count as u64).for_each(|n| builder.write(3 * n, 0, Slot::VACANT));
            assert!(builder.entries.len() <= count.div_ceil(per_unit) * ENTRIES_PER_UNIT);
        }
    }
}
