// SPDX-License-Identifier: Apache-2.0 OR MIT
//! The map in memory: which block is in which slot, in which state, and what is not logged yet. It
//! does no I/O.
//!
//! ```text
//!            allocate          install              retire              evict
//!   Free ──────────────▶ Writing ────▶ Dirty ───────────────▶ Clean ────────────────┐
//!     ▲                │    └─ admit ─────┼─────────────────────▲                    │
//!     │                │                 │ superseded, dropped                     │
//!     └────────────────┼─────────────────┴──── Limbo ◀── the batch that logs it ◀──┘
//!                      │                 └──── Old: superseded, kept for its epoch (`epochs`)
//!                      └ Zero: stands for a range of zeroes, until its epoch is over (`zeroes`)
//! ```
//!
//! Invariants
//! - WC-M1 Every slot is in exactly one state; free + writing + dirty + clean + bad + old + zero +
//!   limbo = slots.
//! - WC-M2 The index holds exactly the dirty, clean and bad slots, one a block.
//! - WC-M3 `unlogged` and `committing` hold every block whose state differs from the durable log. A
//!   batch has the state of each block at the moment when the batch is built, each block once. With
//!   epochs it has versions, and may be built before the newest version exists (WC-E5).
//! - WC-M4 (WC-I2) A slot that a record names is freed only after a later record about its block is
//!   durable: it waits in limbo meanwhile. A slot that no record names is freed at once.
//! - WC-M5 The stamp of a slot changes whenever it is allocated: a task that keeps slot and stamp
//!   (`SlotRef`) across an await can tell whether the slot still holds the same version. A version
//!   that moves to another slot takes its stamp along: who drops that version, or makes it dirty,
//!   finds it there.
//!
//! Memory: 16 bytes a slot, 8 in the index, 1 bit in the free map and 1 bit for the mark, and about
//! 2 bytes for a dirty block in the bitmap: less than 27 bytes a block. 1 TiB of 4 KiB blocks: 2^28
//! slots, 7 GiB.
use std::ops::Range;

use format::{Entry, Op};
use roaring::{RoaringBitmap, RoaringTreemap};

use self::block_set::BlockSet;
pub(crate) use self::block_set::intersects;
use self::buffered::BufferedSlots;
use crate::map::free::FreeMap;
use crate::map::index::Index;

mod batch;
mod block_set;
pub(crate) mod buffered;
mod chunks;
mod clean;
mod entries;
mod epoch_state;
mod epoch_steps;
mod epochs;
mod free;
mod grow;
pub(crate) mod index;
pub(crate) mod journal;
mod log_entries;
#[cfg(test)]
mod log_entries_tests;
mod oldest;
mod pending;
mod planted;
mod radix;
mod rebuild;
mod slot;
#[cfg(test)]
mod unlogged_tests;
mod view;
mod zero_ranges;
mod zeroes;

pub(crate) use batch::Batch;
pub(crate) use entries::{EntryBatch, EntryVersions};
use epoch_state::Epochs;
pub(crate) use epochs::{MergeRule, PhaseState};
use journal::JournalWriter;
pub(crate) use log_entries::{Dump, changes_per_unit};
use oldest::Oldest;
pub(crate) use rebuild::{
    Contradiction, EPOCH_MAX, PENDING_EPOCHS_MAX, Rebuild, map_bytes, ordered_map_bytes,
};
use slot::Slot;
pub(crate) use slot::{Counts, CurrentVersion, SlotRef, State};
use zero_ranges::ZeroRanges;

/// What a new version of a block has replaced.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(crate) enum Replaced {
    /// The block was not in the cache.
    Nothing,
    /// A version that no record names.
    Uncommitted,
    /// A version that is logged, or in the batch that is being logged.
    Committed,
}

pub(crate) struct Slots {
    slots: Vec<Slot>,
    index: Index,
    free: FreeMap,
    dirty: RoaringTreemap,
    oldest: Oldest,
    bad: RoaringTreemap,
    unlogged: BlockSet,
    committing: BlockSet,
    /// Blocks of a commit that has failed: the cache device need not have what it was about.
    given_up: RoaringTreemap,
    limbo: Vec<u32>,
    zeroes: ZeroRanges,
    /// The last batch, emptied: the next one reuses its memory.
    spare: Batch,
    /// Slots whose checksum is not known: the kernel's format has none, and the slot was not
    /// written since the cache was opened. Native caches have no such slot.
    unchecked: RoaringBitmap,
    counts: Counts,
    next_stamp: u32,
    evict_cursor: u32,
    /// Only with the option `ordered`.
    epochs: Option<Box<Epochs>>,
    /// Where changes are stored at once, if there is memory for it.
    journal: Option<Box<JournalWriter>>,
    /// Slots whose data are in memory only.
    buffered: BufferedSlots,
}

impl Slots {
    fn stamp(&mut self) -> u32 {
        self.next_stamp = self.next_stamp.wrapping_add(1);
        self.next_stamp
    }

    fn count(&mut self, state: State) -> &mut u32 {
        match state {
            State::Free => &mut self.counts.free,
            State::Writing => &mut self.counts.writing,
            State::Dirty => &mut self.counts.dirty,
            State::Clean => &mut self.counts.clean,
            State::Bad => &mut self.counts.bad,
            State::Old => &mut self.counts.old,
            State::Zero => &mut self.counts.zero,
            State::Limbo => &mut self.counts.limbo,
        }
    }

    pub(crate) fn counts(&self) -> Counts {
        self.counts
    }

    fn set_state(&mut self, slot: u32, state: State) {
        let old = std::mem::replace(&mut self.slots[slot as usize].state, state);
        *self.count(old) -= 1;
        *self.count(state) += 1;
    }

    fn remove_index(&mut self, block: u64) -> Option<u32> {
        let slots = &self.slots;
        self.index.remove(block, |s| slots[s as usize].block())
    }

    /// The newest version of the block, in `slot`, is about to be no longer dirty, if it was.
    fn remove_dirty(&mut self, block: u64, slot: u32) {
        if self.slots[slot as usize].state == State::Dirty {
            self.dirty.remove(block);
            self.oldest.forget(slot);
        }
    }

    fn slot_of(&self, block: u64) -> Option<u32> {
        self.index.find(block, |s| self.slots[s as usize].block())
    }

    /// The newest version of the block; `None` if the origin holds it.
    #[inline(always)]
    pub(crate) fn find(&self, block: u64) -> Option<CurrentVersion> {
        let Some(slot) = self.slot_of(block) else {
            return if self.counts.zero == 0 { None } else { self.find_zero(block) };
        };
        let s = &self.slots[slot as usize];
        let slot_ref = SlotRef { slot, stamp: s.stamp };
        let is_known = self.unchecked.is_empty() || !self.unchecked.contains(slot);
        let crc = is_known.then_some(s.crc);
        Some(CurrentVersion { slot_ref, state: s.state, crc })
    }

    /// Whether the slot still holds the same version (WC-M5). The block may have a newer version in
    /// another slot.
    pub(crate) fn is_intact(&self, slot_ref: SlotRef) -> bool {
        self.slots[slot_ref.slot as usize].stamp == slot_ref.stamp
    }

    /// Whether this is the newest version of the block, and still in its slot. Without the index,
    /// which is in no cache of the processor (WC-M2: a live slot is in it).
    fn is_newest(&self, block: u64, slot_ref: SlotRef) -> bool {
        let slot = &self.slots[slot_ref.slot as usize];
        slot.stamp == slot_ref.stamp && slot.block() == block && self.is_live(slot_ref.slot)
    }

    /// The same, and it is dirty.
    fn is_newest_and_dirty(&self, block: u64, slot_ref: SlotRef) -> bool {
        let state = self.slots[slot_ref.slot as usize].state;
        state == State::Dirty && self.is_newest(block, slot_ref)
    }

    /// Where this version is now, if it is the newest of its block (WC-M5).
    fn newest_slot(&self, block: u64, slot_ref: SlotRef) -> Option<u32> {
        if self.is_newest(block, slot_ref) {
            return Some(slot_ref.slot);
        }
        self.slot_of(block).filter(|slot| self.slots[*slot as usize].stamp == slot_ref.stamp)
    }

    /// Takes a run of at most `max` free slots for data that is about to be written.
    pub(crate) fn allocate(&mut self, max: u32) -> Option<Range<u32>> {
        let run = self.free.take_run(max)?;
        if !self.unchecked.is_empty() {
            self.unchecked.remove_range(run.clone());
        }
        for slot in run.clone() {
            self.set_state(slot, State::Writing);
            let stamp = self.stamp();
            let s = &mut self.slots[slot as usize];
            (s.stamp, s.logged) = (stamp, false);
        }
        Some(run)
    }

    /// Frees a slot whose data were not written.
    pub(crate) fn abandon(&mut self, slot: u32) {
        assert_eq!(self.slots[slot as usize].state, State::Writing);
        self.make_free(slot);
    }

    fn make_free(&mut self, slot: u32) {
        if self.is_held_by_buffer(slot) {
            return;
        }
        self.set_state(slot, State::Free);
        self.slots[slot as usize].logged = false;
        self.free.put(slot);
    }

    /// Takes a slot out of the map: it is free at once if no record names it (WC-M4).
    fn release(&mut self, slot: u32) {
        if self.slots[slot as usize].state == State::Bad {
            let block = self.slots[slot as usize].block();
            self.bad.remove(block);
        }
        if self.slots[slot as usize].state == State::Zero {
            let range = self.zero_range(slot);
            self.zeroes.remove(&range, slot);
        }
        if let Some(epochs) = &mut self.epochs {
            epochs.forget_slot(slot);
        }
        if self.slots[slot as usize].logged {
            self.set_state(slot, State::Limbo);
            self.limbo.push(slot);
        } else {
            self.make_free(slot);
        }
    }

    fn mark_unlogged(&mut self, block: u64) {
        if self.unlogged.insert(block) {
            self.counts.unlogged += 1;
        }
    }

    /// The data of a new version of `block` are on the cache device at `slot`: enters it into the
    /// map.
    pub(crate) fn install(&mut self, block: u64, slot: u32, crc: u32) -> Replaced {
        assert_eq!(self.slots[slot as usize].state, State::Writing);
        let s = &mut self.slots[slot as usize];
        s.set_block(block);
        s.crc = crc;
        let slots = &self.slots;
        let old = self.index.replace(block, slot, |s| slots[s as usize].block());
        let (mut was_dirty, mut replaced) = (false, Replaced::Nothing);
        if let Some(old) = old {
            let s = &self.slots[old as usize];
            was_dirty = s.state == State::Dirty;
            replaced = if s.logged { Replaced::Committed } else { Replaced::Uncommitted };
            self.supersede(block, old);
        }
        self.set_state(slot, State::Dirty);
        self.oldest.enter(slot, old.filter(|_| was_dirty));
        if !was_dirty {
            self.dirty.insert(block);
        }
        // WC-M3: if the replaced version was dirty and not logged, the block is queued for logging
        // already.
        let is_queued =
            was_dirty && replaced == Replaced::Uncommitted && self.committing.is_empty();
        if !is_queued {
            self.mark_unlogged(block);
        }
        if self.epochs.is_some() {
            self.enter_epoch(slot);
        }
        self.note_version(block, slot, crc);
        replaced
    }

    /// The origin holds this version of the block durably (WC-I3). If the block has a newer version
    /// nothing changes, unless an epoch has kept this one.
    pub(crate) fn retire(&mut self, block: u64, slot_ref: SlotRef) {
        if self.is_newest_and_dirty(block, slot_ref) {
            self.oldest.forget(slot_ref.slot);
            self.set_state(slot_ref.slot, State::Clean);
            self.dirty.remove(block);
            self.mark_unlogged(block);
        } else {
            let is_dirty = |slot: &u32| self.slots[*slot as usize].state == State::Dirty;
            if let Some(newer) = self.slot_of(block).filter(is_dirty) {
                self.oldest.forget(newer);
            }
        }
        self.complete_in_phase(block, slot_ref);
    }

    /// The origin is about to change: a clean block becomes dirty again, so that after a crash the
    /// cached version counts.
    pub(crate) fn make_dirty(&mut self, block: u64, slot_ref: SlotRef) {
        let slot = self.newest_slot(block, slot_ref);
        if let Some(slot) = slot.filter(|slot| self.slots[*slot as usize].state == State::Clean) {
            self.set_state(slot, State::Dirty);
            self.oldest.enter(slot, None);
            self.dirty.insert(block);
            self.mark_unlogged(block);
        }
    }

    /// This version of the block is unreadable in its slot: reads of the block fail until it is
    /// written again. Returns false, and changes nothing, if the block has a newer version, or the
    /// version has moved to another slot.
    pub(crate) fn quarantine(&mut self, block: u64, slot_ref: SlotRef) -> bool {
        let current = self.newest_slot(block, slot_ref) == Some(slot_ref.slot);
        if current {
            if self.slots[slot_ref.slot as usize].state == State::Dirty {
                self.bad_in_epoch(block, slot_ref.slot);
            }
            self.remove_dirty(block, slot_ref.slot);
            self.set_state(slot_ref.slot, State::Bad);
            self.bad.insert(block);
        }
        current
    }

    /// The data of an unreadable version were read after all, and are right: it is dirty again.
    /// Returns false, and changes nothing, if the block has a newer version; and in order, if the
    /// origin gets its epoch without it: later epochs may be there before it.
    pub(crate) fn restore(&mut self, block: u64, slot_ref: SlotRef) -> bool {
        let current = self.newest_slot(block, slot_ref) == Some(slot_ref.slot);
        if !current || self.slots[slot_ref.slot as usize].state != State::Bad {
            return false;
        }
        if let Some(epochs) = &mut self.epochs
            && !epochs.restore(slot_ref.slot)
        {
            return false;
        }
        self.bad.remove(block);
        self.set_state(slot_ref.slot, State::Dirty);
        self.dirty.insert(block);
        self.oldest.enter(slot_ref.slot, None);
        true
    }

    /// Drops the block from the cache, if this is its newest version and is clean.
    pub(crate) fn drop_clean(&mut self, block: u64, slot_ref: SlotRef) -> bool {
        let slot = self.newest_slot(block, slot_ref);
        let is_clean = slot.is_some_and(|slot| self.slots[slot as usize].state == State::Clean);
        is_clean && self.drop_block(block, slot_ref)
    }

    /// Drops the block from the cache, if this is its newest version.
    pub(crate) fn drop_block(&mut self, block: u64, slot_ref: SlotRef) -> bool {
        let Some(slot) = self.newest_slot(block, slot_ref) else { return false };
        self.remove_index(block);
        self.remove_dirty(block, slot);
        self.remove_version(block, slot);
        self.mark_unlogged(block);
        self.note_drop(block);
        true
    }

    /// Whether a commit still has to log the block.
    pub(crate) fn needs_logging(&self, block: u64) -> bool {
        let any = self.counts.unlogged > 0;
        let noted = || self.unlogged.contains(block) || self.committing.contains(block);
        any && (noted() || self.is_zero_unlogged(block))
    }

    /// Whether a commit still has to log any of the blocks.
    pub(crate) fn any_needs_logging(&self, range: &Range<u64>) -> bool {
        self.unlogged.has_any(range) || self.committing.has_any(range)
    }

    /// Begins a commit, which must log all changes up to now.
    pub(crate) fn begin_commit(&mut self) {
        self.journal_commit_begins();
        self.committing.append(&mut self.unlogged);
        if let Some(e) = &mut self.epochs {
            (e.commit_target, e.commit_oldest) = (e.unlogged.len(), e.oldest);
        }
    }

    /// Whether the commit that was begun has logged everything that was unlogged then (WC-LR3).
    pub(crate) fn is_commit_complete(&self) -> bool {
        let is_logged = |e: &Epochs| e.commit_target == 0 && e.oldest_logged >= e.commit_oldest;
        self.committing.is_empty() && self.epochs.as_ref().is_none_or(|e| is_logged(e))
    }

    /// Whether a new commit would have anything to log.
    pub(crate) fn has_unlogged(&self) -> bool {
        let unlogged = |e: &Epochs| !e.unlogged.is_empty() || e.oldest_logged != e.oldest;
        self.counts.unlogged > 0 || self.epochs.as_ref().is_some_and(|e| unlogged(e))
    }

    pub(crate) fn dirty(&self) -> &RoaringTreemap {
        &self.dirty
    }

    /// Whether the origin lacks the newest version of the block.
    pub(crate) fn is_dirty(&self, block: u64) -> bool {
        // The bitmap of a region is in the processor's cache while a sweep passes it: the index and
        // the slot are not.
        self.dirty.contains(block)
    }

    /// Unreadable blocks.
    pub(crate) fn bad(&self) -> &RoaringTreemap {
        &self.bad
    }

    /// The first dirty block at or after `from`.
    pub(crate) fn next_dirty(&self, from: u64) -> Option<u64> {
        next_in(&self.dirty, from)
    }

    /// How many slots were allocated after this block's: its age, for oldest-first order.
    pub(crate) fn age_of(&self, block: u64) -> u32 {
        let stamp = self.slot_of(block).map(|s| self.slots[s as usize].stamp);
        stamp.map_or(0, |s| self.next_stamp.wrapping_sub(s))
    }

    /// Every live version within `range`.
    pub(crate) fn live_in(&self, range: Range<u64>) -> Vec<(u64, SlotRef)> {
        let live = |slot: u32| {
            let s = &self.slots[slot as usize];
            (s.block(), SlotRef { slot, stamp: s.stamp })
        };
        if range.end - range.start <= u64::from(self.counts.slots) {
            return range.filter_map(|b| self.slot_of(b).map(live)).collect();
        }
        (0..self.counts.slots)
            .filter(|&slot| self.is_live(slot))
            .map(live)
            .filter(|(block, _)| range.contains(block))
            .collect()
    }

    fn is_live(&self, slot: u32) -> bool {
        match self.slots[slot as usize].state {
            State::Dirty | State::Clean | State::Bad => true,
            State::Free | State::Writing | State::Old | State::Zero | State::Limbo => false,
        }
    }

    /// The checkpoint entry of a slot, if it is live. From now on the log names the slot (WC-M4).
    fn checkpoint_entry(&mut self, slot: u32) -> Option<Entry> {
        let s = &mut self.slots[slot as usize];
        let op = match s.state {
            // The next start reads an unreadable block again.
            State::Dirty | State::Bad => Op::Write,
            // Its data may not be durable yet (WC-RA2).
            State::Clean if !s.logged => return None,
            State::Clean => Op::Clean,
            State::Free | State::Writing | State::Old | State::Zero | State::Limbo => {
                return None;
            }
        };
        s.logged = true;
        Some(Entry { op, block: s.block(), slot, crc: s.crc })
    }
}

/// The first member of `set` that is not below `from`.
pub(crate) fn next_in(set: &RoaringTreemap, from: u64) -> Option<u64> {
    // The iterator over all 64 bits costs twice as much to make as the search in one bitmap, and of
    // these there are few: one for 2^32 blocks.
    let high = (from >> 32) as u32;
    set.bitmaps().skip_while(|&(at, _)| at < high).find_map(|(at, bitmap)| {
        let low = if at == high { from as u32 } else { 0 };
        let found = bitmap.range(low..).next()?;
        Some(u64::from(at) << 32 | u64::from(found))
    })
}
