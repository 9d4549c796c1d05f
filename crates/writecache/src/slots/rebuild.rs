// SPDX-License-Identifier: Apache-2.0 OR MIT
//! Rebuild: the map as recovery finds it, straight from checkpoint and log into its final place.
//!
//! ```text
//!   a checkpoint, in slot order ──▶ slot table ── index, all at once ──▶ finish: free map, dirty
//!   what follows, in any order  ──▶ slot table and index           ──▶            bitmap
//!                                     └─▶ displaced (a slot that two blocks claim for a while)
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
use crate::index::{HASH_BITS, Index};
use crate::radix;

/// The index is made in parts, by the upper bits of the hash. Each part costs a look at all slots;
/// sorting it takes memory, twice 8 bytes for each of its blocks: 4 bytes a cached block.
const INDEX_PARTS: u64 = 1 << (HASH_BITS - 32);
/// Entries whose cells are looked at together before they are applied: enough cache misses under
/// way at once to hide most of their time, few enough to stay in the first-level cache. Chosen.
const LOOKAHEAD: usize = 64;
/// Dirty blocks sorted at once: twice 32 MiB. A bitmap grows by sorted runs several times as fast as
/// by blocks at random; the larger the runs the fewer the times it is merged.
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
    /// While entries come in ascending order of their slots they need no index, and none is made:
    /// the first slot that may follow.
    in_order: Option<u32>,
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
            in_order: Some(0),
            displaced: BTreeMap::new(),
        }
    }

    /// A map of `count` vacant slots that is looked into while it is made: see `find`.
    pub(crate) fn indexed(count: u32) -> Rebuild {
        Rebuild { in_order: None, ..Rebuild::new(count) }
    }

    /// Applies entries in their order.
    pub(crate) fn apply(&mut self, entries: impl Iterator<Item = Entry>) {
        let mut entries = entries.peekable();
        while let (Some(from), Some(e)) = (self.in_order, entries.peek()) {
            let is_state = matches!(e.op, Op::Write | Op::Clean | Op::Bad);
            if !is_state || e.slot < from || e.slot as usize >= self.slots.len() {
                self.make_index();
                break;
            }
            self.fill(e);
            self.in_order = Some(e.slot + 1);
            entries.next();
        }
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

    fn fill(&mut self, e: &Entry) {
        let s = &mut self.slots[e.slot as usize];
        s.set_block(e.block);
        (s.state, s.crc, s.logged) = (state_of(e.op), e.crc, true);
    }

    /// Makes the index of what came in order. In the order of its cells: at random each block would
    /// wait for a line of a table of hundreds of megabytes, and more often than not for its page.
    fn make_index(&mut self) {
        self.in_order = None;
        // A little more than a fair part of the hashes: a vector that grows would double.
        let fair = self.slots.len() / INDEX_PARTS as usize;
        let (mut found, mut spare) = (Vec::with_capacity(fair + fair / 64), Vec::new());
        for part in 0..INDEX_PARTS {
            for (slot, s) in (0u32..).zip(&self.slots) {
                let hash = Index::hash(s.block());
                if s.state != State::Free && hash >> 32 == part {
                    found.push(hash << 32 | u64::from(slot));
                }
            }
            radix::sort(&mut found, &mut spare, 32..64);
            for (nth, packed) in found.iter().enumerate() {
                let slot = (packed & 0xffff_ffff) as u32;
                if self.is_said_again(*packed, &found[nth + 1..]) {
                    self.slots[slot as usize].state = State::Free;
                } else {
                    self.index.insert_hashed(part << 32 | packed >> 32, slot);
                }
            }
            found.clear();
        }
    }

    /// Whether the block has a later entry, of which these are some: with the same hash, and in the
    /// order of slots, in which they came (RB1).
    fn is_said_again(&self, packed: u64, following: &[u64]) -> bool {
        let block = |packed: u64| self.slots[(packed & 0xffff_ffff) as usize].block();
        let mut same = following.iter().take_while(|&&next| next >> 32 == packed >> 32);
        same.any(|&next| block(next) == block(packed))
    }

    /// Brings the memory that the entries need nearer, many of them at once: each would otherwise
    /// wait for two or three lines, one after the other, of tables of hundreds of megabytes.
    fn look_ahead(&self, entries: &[Entry]) {
        let mut cells = [None; LOOKAHEAD];
        for (cell, e) in cells.iter_mut().zip(entries) {
            *cell = self.index.first_slot(e.block);
        }
        let found = cells.iter().flatten().map(|&slot| self.slots[slot as usize].block_low);
        let named = entries.iter().filter_map(|e| Some(self.slots.get(e.slot as usize)?.crc));
        std::hint::black_box(found.chain(named).fold(0, u32::wrapping_add));
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
        self.fill(e);
    }

    /// The slot of a block, and what was put there as its checksum, in an `indexed` map.
    pub(crate) fn find(&self, block: u64) -> Option<(u32, u32)> {
        let slot = self.slot_of(block)?;
        Some((slot, self.slots[slot as usize].crc))
    }

    /// Puts a dirty block into a vacant slot; an older slot of the block becomes vacant.
    pub(crate) fn put_dirty(&mut self, block: u64, slot: u32, crc: u32) {
        assert!(self.in_order.is_none(), "the index would be made a second time");
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
        if self.in_order.is_some() {
            self.make_index();
        }
        let mut last = self.displaced.last_key_value().map(|(&block, _)| block);
        let mut taken = None;
        for (block, e) in std::mem::take(&mut self.displaced) {
            match self.slots.get(e.slot as usize) {
                Some(slot) if slot.state == State::Free => self.put(&e),
                _ => taken = taken.or(Some(Contradiction::Slot { block, slot: e.slot })),
            }
        }
        let count = u32::try_from(self.slots.len()).expect("made for that many");
        let mut counts = Counts { slots: count, ..Counts::default() };
        let mut free = FreeMap::new(count);
        let mut dirty = RoaringTreemap::new();
        let mut bad = RoaringTreemap::new();
        let (mut unsorted, mut spare) = (Vec::new(), Vec::new());
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
                        merge(&mut dirty, &mut unsorted, &mut spare);
                    }
                }
                State::Clean => counts.clean += 1,
                State::Bad => {
                    counts.bad += 1;
                    bad.insert(s.block());
                }
                State::Writing | State::Limbo => unreachable!("never put"),
            }
            stamp = stamp.wrapping_add(1);
            s.stamp = stamp;
            last = last.max(Some(s.block()));
        }
        if let Some(last) = last.filter(|&last| last >= blocks) {
            return Err(Contradiction::Beyond(last));
        }
        if let Some(taken) = taken {
            return Err(taken);
        }
        merge(&mut dirty, &mut unsorted, &mut spare);
        Ok(Slots {
            slots: self.slots,
            index: self.index,
            free,
            dirty,
            bad,
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

/// Adds blocks, each once, and leaves none.
fn merge(dirty: &mut RoaringTreemap, blocks: &mut Vec<u64>, spare: &mut Vec<u64>) {
    let used = blocks.iter().fold(0, |bits, block| bits | block);
    radix::sort(blocks, spare, 0..64 - used.leading_zeros());
    let sorted = RoaringTreemap::from_sorted_iter(blocks.drain(..));
    *dirty |= sorted.expect("sorted above, and each block is in one slot");
}

#[cfg(test)]
#[path = "rebuild_tests.rs"]
mod tests;
