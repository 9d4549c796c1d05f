// SPDX-License-Identifier: Apache-2.0 OR MIT
//! Rebuild: the map as recovery finds it, straight from checkpoint and log into its final place.
//!
//! ```text
//!   checkpoint entries, then log entries ──▶ slot table + index ──▶ finish: free map, dirty bitmap
//!                                     └───▶ displaced (a slot that two blocks claim for a while)
//! ```
//!
//! Invariants
//! - RB1 Of each block the last entry counts, wherever it points; nothing else of the order matters.
//!   So a slot may be claimed by two blocks while entries come in: a checkpoint is fuzzy, and may
//!   already know a later owner. Whoever is displaced waits beside the table, and gets its slot at
//!   the end, if that is vacant; two blocks that still claim a slot then are damage.
//! - RB2 There is no second copy of the map. Besides what the finished map takes, the entries of
//!   one reading are held, and one chunk of block numbers to be sorted.
use std::collections::BTreeMap;

use format::{Entry, Op};
use roaring::{RoaringBitmap, RoaringTreemap};
use smallvec::SmallVec;

use super::{Counts, Slot, Slots, State};
use crate::free::FreeMap;
use crate::index::Index;

/// Entries whose cells are looked at together before they are applied: enough cache misses under
/// way at once to hide most of their time, few enough to stay in the first-level cache. Chosen.
const LOOKAHEAD: usize = 64;
/// Dirty blocks sorted at once: 32 MiB. A bitmap grows by sorted runs an order of magnitude faster
/// than by blocks at random; the larger the runs the fewer the times it is merged.
const SORT_BLOCKS: usize = if cfg!(test) { 4 << 10 } else { 4 << 20 };

/// Why what was found is no map.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(crate) enum Contradiction {
    /// The block is beyond the end of the device.
    Beyond(u64),
    /// The slot of this block is another's, or there is no such slot.
    Slot { block: u64, slot: u32 },
}

/// A map under construction. Slots in state `Free` are vacant.
pub(crate) struct Rebuild {
    slots: Vec<Slot>,
    index: Index,
    /// The entries of blocks that are not in the table (RB1): as many as the fuzzy part of a
    /// checkpoint makes, and never more than blocks were named.
    displaced: BTreeMap<u64, Entry>,
}

fn state_of(op: Op) -> State {
    match op {
        Op::Write => State::Dirty,
        Op::Clean => State::Clean,
        Op::Bad => State::Bad,
        Op::Evict | Op::Drop => unreachable!("no state of a block"),
    }
}

fn op_of(state: State) -> Op {
    match state {
        State::Dirty => Op::Write,
        State::Clean => Op::Clean,
        State::Bad => Op::Bad,
        State::Free | State::Writing | State::Limbo => unreachable!("holds no block"),
    }
}

impl Rebuild {
    /// A map of `count` vacant slots.
    pub(crate) fn new(count: u32) -> Rebuild {
        Rebuild {
            slots: vec![Slot::VACANT; count as usize],
            index: Index::new(count),
            displaced: BTreeMap::new(),
        }
    }

    /// Applies entries in their order.
    pub(crate) fn apply(&mut self, entries: impl Iterator<Item = Entry>) {
        let mut entries = entries.peekable();
        while entries.peek().is_some() {
            let part: SmallVec<[Entry; LOOKAHEAD]> = entries.by_ref().take(LOOKAHEAD).collect();
            self.look_ahead(&part);
            for e in &part {
                match e.op {
                    Op::Write | Op::Clean | Op::Bad => self.put(e),
                    Op::Evict => {
                        if self.slot_of(e.block) == Some(e.slot) {
                            self.forget(e.block);
                        }
                    }
                    Op::Drop => self.drop_range(e.block, u64::from(e.slot)),
                }
            }
        }
    }

    /// Brings the memory that the entries need nearer, many of them at once: each would otherwise
    /// wait for two or three lines, one after the other, of tables of hundreds of megabytes.
    fn look_ahead(&self, entries: &[Entry]) {
        let mut cells = [None; LOOKAHEAD];
        for (cell, e) in cells.iter_mut().zip(entries) {
            *cell = self.index.first_slot(e.block);
        }
        let found = cells.iter().flatten().map(|&slot| self.slots[slot as usize].block_low);
        std::hint::black_box(found.fold(0, u32::wrapping_add));
    }

    fn put(&mut self, e: &Entry) {
        if !self.displaced.is_empty() {
            self.displaced.remove(&e.block);
        }
        let Some(claimed) = self.slots.get(e.slot as usize).copied() else {
            self.forget(e.block);
            self.displaced.insert(e.block, *e);
            return;
        };
        if claimed.state != State::Free && claimed.block() != e.block {
            let (block, op) = (claimed.block(), op_of(claimed.state));
            let owner = Entry { op, block, slot: e.slot, crc: claimed.crc };
            self.forget(block);
            self.displaced.insert(block, owner);
        }
        let slots = &self.slots;
        let old = self.index.replace(e.block, e.slot, |s| slots[s as usize].block());
        if let Some(old) = old.filter(|&old| old != e.slot) {
            self.slots[old as usize].state = State::Free;
        }
        let s = &mut self.slots[e.slot as usize];
        s.set_block(e.block);
        (s.state, s.crc, s.logged) = (state_of(e.op), e.crc, true);
    }

    /// The slot of a block, and what was put there as its checksum.
    pub(crate) fn find(&self, block: u64) -> Option<(u32, u32)> {
        let slot = self.slot_of(block)?;
        Some((slot, self.slots[slot as usize].crc))
    }

    /// Puts a dirty block into a vacant slot; an older slot of the block becomes vacant.
    pub(crate) fn put_dirty(&mut self, block: u64, slot: u32, crc: u32) {
        self.put(&Entry { op: Op::Write, block, slot, crc });
    }

    fn slot_of(&self, block: u64) -> Option<u32> {
        let found = self.index.find(block, |s| self.slots[s as usize].block());
        found.or_else(|| self.displaced.get(&block).map(|e| e.slot))
    }

    fn forget(&mut self, block: u64) {
        let slots = &self.slots;
        match self.index.remove(block, |s| slots[s as usize].block()) {
            Some(slot) => self.slots[slot as usize].state = State::Free,
            None => drop(self.displaced.remove(&block)),
        }
    }

    fn drop_range(&mut self, first: u64, count: u64) {
        let range = first..first + count;
        if count <= self.slots.len() as u64 {
            range.for_each(|block| self.forget(block));
            return;
        }
        let held = self.slots.iter().filter(|s| s.state != State::Free).map(Slot::block);
        let gone: Vec<u64> = held.filter(|block| range.contains(block)).collect();
        gone.into_iter().for_each(|block| self.forget(block));
        self.displaced.retain(|block, _| !range.contains(block));
    }

    /// The finished map of a device of `blocks` blocks.
    pub(crate) fn finish(mut self, blocks: u64) -> Result<Slots, Contradiction> {
        let held = self.slots.iter().filter(|s| s.state != State::Free).map(Slot::block);
        let last = held.max().max(self.displaced.last_key_value().map(|(&block, _)| block));
        if let Some(last) = last.filter(|&last| last >= blocks) {
            return Err(Contradiction::Beyond(last));
        }
        for (block, e) in std::mem::take(&mut self.displaced) {
            match self.slots.get(e.slot as usize) {
                Some(slot) if slot.state == State::Free => self.put(&e),
                _ => return Err(Contradiction::Slot { block, slot: e.slot }),
            }
        }
        let count = u32::try_from(self.slots.len()).expect("made for that many");
        let mut counts = Counts { slots: count, ..Counts::default() };
        let mut free = FreeMap::new(count);
        let mut dirty = RoaringTreemap::new();
        let mut unsorted = Vec::new();
        let mut stamp = 1u32;
        for (slot, s) in (0..count).zip(&mut self.slots) {
            match s.state {
                State::Free => {
                    counts.free += 1;
                    free.put(slot);
                    s.logged = false; // it may have been claimed for a while
                    continue;
                }
                State::Dirty => {
                    counts.dirty += 1;
                    unsorted.push(s.block());
                    if unsorted.len() == SORT_BLOCKS {
                        merge_sorted(&mut dirty, &mut unsorted);
                    }
                }
                State::Clean => counts.clean += 1,
                State::Bad => counts.bad += 1,
                State::Writing | State::Limbo => unreachable!("never put"),
            }
            stamp = stamp.wrapping_add(1);
            s.stamp = stamp;
        }
        merge_sorted(&mut dirty, &mut unsorted);
        Ok(Slots {
            slots: self.slots,
            index: self.index,
            free,
            dirty,
            changed: RoaringTreemap::new(),
            committing: RoaringTreemap::new(),
            limbo: Vec::new(),
            unchecked: RoaringBitmap::new(),
            counts,
            next_stamp: stamp,
            evict_cursor: 0,
        })
    }
}

fn merge_sorted(dirty: &mut RoaringTreemap, blocks: &mut Vec<u64>) {
    blocks.sort_unstable();
    let sorted = RoaringTreemap::from_sorted_iter(blocks.drain(..));
    *dirty |= sorted.expect("sorted above, and each block is in one slot");
}

#[cfg(test)]
#[path = "rebuild_tests.rs"]
mod tests;
