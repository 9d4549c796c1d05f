// SPDX-License-Identifier: Apache-2.0 OR MIT
//! Rebuild: the map as recovery finds it, straight from checkpoint and log into its final place.
//!
//! ```text
//!   while slots are vacant ──▶ slot table ── index, all at once ──▶ finish: free map, dirty
//!   from then on           ──▶ slot table and index             ──▶   bitmap, epochs
//!                                  └─▶ displaced (a slot that two blocks claim for a while)
//! ```
//!
//! Invariants
//! - RB1 Of each block the last entry counts, wherever it points; nothing else of the order
//!   matters. So a slot may be claimed by two blocks while entries come in: a checkpoint is fuzzy,
//!   and may already know a later owner. Whoever is displaced waits beside the table, and gets its
//!   slot at the end, if that is vacant; two blocks that still claim a slot then are damage.
//! - RB2 There is no second copy of the map. Besides what the finished map takes, the entries of
//!   one reading are held, and one chunk of block numbers to be sorted; in a cache with epochs also
//!   4 bytes a slot, then 8 bytes a pending version, and 8 more while those of several epochs are
//!   sorted. Blocks that have a hash in common, as all versions of one have, take 16 bytes each
//!   while the index is made.
//! - RB3 A version that is superseded by one of a later epoch is kept, if its own is pending then.
//!   Its slot goes to whoever claims it: a slot changes hands only after a record that retires its
//!   epoch, which is among the entries too.
//! - RB4 No index is made before an entry needs it, which those of a checkpoint do not: until one
//!   names a slot that is not vacant, or says that a block left. The stamps of slots tell in which
//!   order their entries came, so that the last version of a block can be found out later.
use std::collections::BTreeMap;

use format::{BLOCK_LIMIT, Entry, Op};
use roaring::{RoaringBitmap, RoaringTreemap};
use smallvec::SmallVec;

use super::epochs::Epochs;
use super::said::Said;
use super::{Counts, Slot, Slots, State};
use crate::free::FreeMap;
use crate::index::{HASH_BITS, Index};
use crate::radix;

/// The index is made in parts, by the upper bits of the hash. Each part costs a look at all slots;
/// sorting it takes memory, twice 8 bytes for each of its blocks: 4 bytes a cached block.
const INDEX_PARTS: u64 = 1 << (HASH_BITS - 32);
/// Entries whose places are looked at together before they are applied: enough cache misses under
/// way at once to hide most of their time, few enough to stay in the first-level cache. Chosen.
const LOOKAHEAD: usize = 64;
/// Slots of each that are looked at: few blocks lie further from their place.
const CANDIDATES_MAX: usize = 4;
/// Dirty blocks sorted at once: twice 32 MiB. A bitmap grows by sorted runs several times as fast
/// as by blocks at random; the larger the runs the fewer the times it is merged.
const SORT_BLOCKS: usize = if cfg!(test) { 4 << 10 } else { 4 << 20 };

/// Numbers of epochs on the media are at most this: half of what an entry holds, so that no cache
/// counts beyond it.
pub(crate) const EPOCH_MAX: u64 = BLOCK_LIMIT / 2;
/// How far the newest epoch may be from the oldest that is pending: more could not be told apart by
/// their low halves. A cache has at least one slot for each.
pub(crate) const PENDING_EPOCHS_MAX: u64 = (1 << 31) - 1;

/// Why what was found is no map.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(crate) enum Contradiction {
    /// The block is beyond the end of the device.
    Beyond(u64),
    /// The slot of this block is another's, or there is no such slot.
    Slot { block: u64, slot: u32 },
    /// The block has two versions of this epoch, where the later one takes the place of the other.
    Twice { block: u64, epoch: u64 },
}

/// A map under construction. Slots in state `Free` are vacant.
pub(crate) struct Rebuild {
    slots: Vec<Slot>,
    index: Index,
    /// While there is no index (RB4): the entries so far that tell of a block.
    unindexed: Option<u32>,
    /// The entries of blocks that are not in the table (RB1): as many as the fuzzy part of a
    /// checkpoint makes, and never more than blocks were named.
    displaced: BTreeMap<u64, (Entry, u32)>,
    /// Once an entry has told of epochs.
    epochs: Option<Numbers>,
}

/// What the entries say of epochs.
struct Numbers {
    /// The low half of each slot's: those that are pending together are fewer than slots.
    of_slots: Vec<u32>,
    /// Of the next write; none at the beginning of a record.
    current: Option<u64>,
    oldest: u64,
    newest: u64,
}

/// The low half of an epoch or of a block, or the slot of what is packed to be sorted.
fn low(number: u64) -> u32 {
    (number & 0xffff_ffff) as u32
}

/// Whether epoch `a` is before `b`, both by their low half.
fn is_before(a: u32, b: u32) -> bool {
    a.wrapping_sub(b) >= 1 << 31
}

fn state_of(op: Op) -> State {
    match op {
        Op::Write | Op::WriteNext => State::Dirty,
        Op::Clean => State::Clean,
        Op::Bad => State::Bad,
        Op::Evict | Op::Drop | Op::Epoch => unreachable!("no state of a block"),
    }
}

fn op_of(state: State) -> Op {
    match state {
        State::Dirty => Op::Write,
        State::Clean => Op::Clean,
        State::Bad => Op::Bad,
        State::Free | State::Writing | State::Old | State::Limbo => {
            unreachable!("not what a block holds")
        }
    }
}

impl Rebuild {
    /// A map of `count` vacant slots.
    pub(crate) fn new(count: u32) -> Rebuild {
        Rebuild {
            slots: vec![Slot::VACANT; count as usize],
            index: Index::new(count),
            unindexed: Some(0),
            displaced: BTreeMap::new(),
            epochs: None,
        }
    }

    /// A map of `count` vacant slots that is looked into while it is made: see `find`.
    pub(crate) fn indexed(count: u32) -> Rebuild {
        Rebuild { unindexed: None, ..Rebuild::new(count) }
    }

    /// Applies the entries of a record, in their order.
    pub(crate) fn apply(&mut self, mut entries: impl Iterator<Item = Entry>) {
        if let Some(epochs) = &mut self.epochs {
            epochs.current = None;
        }
        while let Some(before) = self.unindexed
            && let Some(e) = entries.next()
        {
            if !self.fill_vacant(&e, before) {
                self.make_index();
                self.apply_each(std::iter::once(e));
            }
        }
        self.apply_each(entries);
    }

    fn apply_each(&mut self, mut entries: impl Iterator<Item = Entry>) {
        loop {
            let part: SmallVec<[Entry; LOOKAHEAD]> = entries.by_ref().take(LOOKAHEAD).collect();
            if part.is_empty() {
                return;
            }
            self.look_ahead(&part);
            for e in &part {
                match e.op {
                    Op::Write | Op::Clean | Op::Bad => {
                        let epoch = self.next_epoch();
                        self.put(e, epoch);
                    }
                    Op::WriteNext => {
                        self.tell_next_epoch();
                        let epoch = self.next_epoch();
                        self.put(&Entry { op: Op::Write, ..*e }, epoch);
                    }
                    Op::Epoch => self.tell_epoch(e.block, e.block - u64::from(e.slot)),
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

    /// Applies an entry if it needs no index (RB4); `before` came before it.
    fn fill_vacant(&mut self, e: &Entry, before: u32) -> bool {
        match e.op {
            Op::Epoch => {
                self.tell_epoch(e.block, e.block - u64::from(e.slot));
                return true;
            }
            Op::Evict | Op::Drop => return false,
            Op::Write | Op::WriteNext | Op::Clean | Op::Bad => {}
        }
        if self.slots.get(e.slot as usize).is_none_or(|s| s.state != State::Free) {
            return false;
        }
        let mut e = *e;
        if e.op == Op::WriteNext {
            self.tell_next_epoch();
            e.op = Op::Write;
        }
        let epoch = self.next_epoch();
        self.fill(&e, epoch);
        self.slots[e.slot as usize].stamp = before;
        self.unindexed = Some(before + 1);
        true
    }

    fn fill(&mut self, e: &Entry, epoch: u32) {
        let s = &mut self.slots[e.slot as usize];
        s.set_block(e.block);
        (s.state, s.crc, s.logged) = (state_of(e.op), e.crc, true);
        if let Some(epochs) = &mut self.epochs {
            epochs.of_slots[e.slot as usize] = epoch;
        }
    }

    /// Makes the index of what came so far. In the order of its cells: at random each block would
    /// wait for a line of a table of hundreds of megabytes, and more often than not for its page.
    fn make_index(&mut self) {
        self.unindexed = None;
        // A little more than a fair part of the hashes: a vector that grows would double.
        let fair = self.slots.len() / INDEX_PARTS as usize;
        let (mut found, mut spare) = (Vec::new(), Vec::new());
        found.reserve_exact(fair + fair / 64 + LOOKAHEAD);
        for part in 0..INDEX_PARTS {
            self.hashes_of(part, &mut found);
            radix::sort(&mut found, &mut spare, 32..64);
            for same in found.chunk_by(|a, b| a >> 32 == b >> 32) {
                match same {
                    [alone] => self.index.insert_hashed(part << 32 | alone >> 32, low(*alone)),
                    _ => self.insert_last(part, same),
                }
            }
        }
    }

    /// Puts blocks that have the same hash into the index, each by its last version.
    fn insert_last(&mut self, part: u64, same: &[u64]) {
        let version = |&packed: &u64| {
            let s = &self.slots[low(packed) as usize];
            (s.block(), s.stamp, low(packed))
        };
        let mut versions: Vec<(u64, u32, u32)> = same.iter().map(version).collect();
        versions.sort_unstable();
        for (nth, &(block, _, slot)) in versions.iter().enumerate() {
            // The state of both is still what their entries say.
            match versions.get(nth + 1).filter(|next| next.0 == block) {
                Some(&(_, _, next)) => {
                    self.slots[slot as usize].state = self.superseded(slot, next);
                }
                None => self.index.insert_hashed(part << 32 | same[0] >> 32, slot),
            }
        }
    }

    /// Finds the hashes of the blocks that are in this part of the index, with their slots.
    fn hashes_of(&self, part: u64, found: &mut Vec<u64>) {
        let mut len = 0;
        let mut slot = 0u64;
        for slots in self.slots.chunks(LOOKAHEAD) {
            found.resize(len + LOOKAHEAD, 0);
            for s in slots {
                // Written in any case, and kept if it belongs: a branch would be guessed wrong for
                // every third slot or so.
                let hash = Index::hash(s.block());
                found[len] = hash << 32 | slot;
                len += usize::from((s.state != State::Free) & (hash >> 32 == part));
                slot += 1;
            }
        }
        found.truncate(len);
    }

    /// Brings the memory that the entries need nearer, many of them at once: each would otherwise
    /// wait for one to three lines, one after the other, of tables of hundreds of megabytes.
    fn look_ahead(&self, entries: &[Entry]) {
        // One kind after the other, and no branch that depends on what has still to come: who
        // guesses wrong waits for it.
        let named = entries.iter().filter_map(|e| Some(self.slots.get(e.slot as usize)?.block_low));
        let cells = entries.iter().map(|e| self.index.touch(e.block));
        std::hint::black_box(named.chain(cells).fold(0, u32::wrapping_add));
        let mut candidates: SmallVec<[u32; 4 * LOOKAHEAD]> = SmallVec::new();
        for e in entries.iter().filter(|e| !self.holds(e.slot, e.block)) {
            candidates.extend(self.index.candidates(e.block).take(CANDIDATES_MAX));
        }
        let found = candidates.iter().map(|&slot| self.slots[slot as usize].block_low);
        std::hint::black_box(found.fold(0, u32::wrapping_add));
    }

    /// Whether the slot is where the block is.
    fn holds(&self, slot: u32, block: u64) -> bool {
        let is_there = |s: &Slot| {
            s.block() == block && matches!(s.state, State::Dirty | State::Clean | State::Bad)
        };
        self.slots.get(slot as usize).is_some_and(is_there)
    }

    fn tell_epoch(&mut self, number: u64, oldest: u64) {
        let slots = self.slots.len();
        let epochs = self.epochs.get_or_insert_with(|| Numbers {
            // What was written before without an epoch is of none that is pending: `finish` finds
            // it out.
            of_slots: vec![low(oldest.wrapping_sub(1)); slots],
            current: None,
            oldest,
            newest: 0,
        });
        epochs.current = Some(number);
        epochs.oldest = epochs.oldest.max(oldest);
        epochs.newest = epochs.newest.max(number);
    }

    fn tell_next_epoch(&mut self) {
        if let Some(epochs) = &mut self.epochs {
            let next = epochs.current.map_or(epochs.oldest, |c| c + 1);
            epochs.current = Some(next);
            epochs.newest = epochs.newest.max(next);
        }
    }

    /// The epoch of a write that comes now, by its low half; before all that is pending if it has
    /// none.
    fn next_epoch(&self) -> u32 {
        let of = |e: &Numbers| low(e.current.unwrap_or(e.oldest.wrapping_sub(1)));
        self.epochs.as_ref().map_or(0, of)
    }

    /// What becomes of the version at `slot` that the one at `next` supersedes: it stays if its own
    /// epoch, an earlier one, is pending (RB3).
    fn superseded(&self, slot: u32, next: u32) -> State {
        let is_dirty = |slot: u32| self.slots[slot as usize].state == State::Dirty;
        let kept = is_dirty(slot)
            && is_dirty(next)
            && self.epochs.as_ref().is_some_and(|e| {
                let (own, later) = (e.of_slots[slot as usize], e.of_slots[next as usize]);
                is_before(own, later) && !is_before(own, low(e.oldest))
            });
        if kept { State::Old } else { State::Free }
    }

    fn put(&mut self, e: &Entry, epoch: u32) {
        if self.holds(e.slot, e.block) {
            return self.fill(e, epoch); // said again, as when it was written back
        }
        if !self.displaced.is_empty() {
            self.displaced.remove(&e.block);
        }
        let Some(claimed) = self.slots.get(e.slot as usize).copied() else {
            self.forget(e.block);
            self.displaced.insert(e.block, (*e, epoch));
            return;
        };
        if claimed.state != State::Free && claimed.state != State::Old {
            let (block, op) = (claimed.block(), op_of(claimed.state));
            let owner = Entry { op, block, slot: e.slot, crc: claimed.crc };
            let epoch = self.epochs.as_ref().map_or(0, |n| n.of_slots[e.slot as usize]);
            self.forget(block);
            self.displaced.insert(block, (owner, epoch));
        }
        let slots = &self.slots;
        let old = self.index.replace(e.block, e.slot, |s| slots[s as usize].block());
        self.fill(e, epoch);
        if let Some(old) = old {
            self.slots[old as usize].state = self.superseded(old, e.slot);
        }
    }

    /// The slot of a block, and what was put there as its checksum, in an `indexed` map.
    pub(crate) fn find(&self, block: u64) -> Option<(u32, u32)> {
        let slot = self.slot_of(block)?;
        Some((slot, self.slots[slot as usize].crc))
    }

    /// Puts a dirty block into a vacant slot; an older slot of the block becomes vacant.
    pub(crate) fn put_dirty(&mut self, block: u64, slot: u32, crc: u32) {
        assert!(self.unindexed.is_none(), "the index would be made a second time");
        self.put(&Entry { op: Op::Write, block, slot, crc }, 0);
    }

    fn slot_of(&self, block: u64) -> Option<u32> {
        let found = self.index.find(block, |s| self.slots[s as usize].block());
        found.or_else(|| self.displaced.get(&block).map(|(e, _)| e.slot))
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

    /// The oldest epoch that may be pending and the newest, once an entry has told of epochs.
    pub(crate) fn pending_epochs(&self) -> Option<(u64, u64)> {
        self.epochs.as_ref().map(|e| (e.oldest, e.newest.max(e.oldest)))
    }

    /// The finished map of a device of `blocks` blocks.
    pub(crate) fn finish(mut self, blocks: u64) -> Result<Slots, Contradiction> {
        if self.unindexed.is_some() {
            self.make_index();
        }
        self.free_retired();
        let mut last = self.displaced.last_key_value().map(|(&block, _)| block);
        let mut taken = None;
        for (block, (e, epoch)) in std::mem::take(&mut self.displaced) {
            match self.slots.get(e.slot as usize) {
                Some(slot) if slot.state == State::Free => self.put(&e, epoch),
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
                        add_blocks(&mut dirty, &mut unsorted, &mut spare);
                    }
                }
                State::Clean => counts.clean += 1,
                State::Bad => {
                    counts.bad += 1;
                    bad.insert(s.block());
                }
                State::Old => counts.old += 1,
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
        add_blocks(&mut dirty, &mut unsorted, &mut spare);
        drop(unsorted);
        let epochs = match self.epochs.take() {
            Some(numbers) => Some(Box::new(self.find_epochs(numbers, counts, spare)?)),
            None => None,
        };
        Ok(Slots {
            slots: self.slots,
            index: self.index,
            free,
            dirty,
            bad,
            changed: RoaringTreemap::new(),
            committing: RoaringTreemap::new(),
            limbo: Vec::new(),
            spare: Default::default(),
            unchecked: RoaringBitmap::new(),
            counts,
            next_stamp: stamp,
            evict_cursor: 0,
            epochs,
        })
    }

    /// The versions that are pending, in the order of their epochs.
    fn find_epochs(
        &self,
        numbers: Numbers,
        counts: Counts,
        mut spare: Vec<u64>,
    ) -> Result<Epochs, Contradiction> {
        let (oldest, newest) = (numbers.oldest.max(1), numbers.newest.max(numbers.oldest));
        let is_pending = |s: &Slot| matches!(s.state, State::Dirty | State::Old);
        let mut pending = Vec::with_capacity(counts.dirty as usize + counts.old as usize);
        let (mut mended, mut last) = (false, 0);
        for (slot, s) in (0u32..).zip(&self.slots).filter(|(_, s)| is_pending(s)) {
            let relative = numbers.relative(slot);
            mended |= relative.is_none() && s.state == State::Dirty;
            let after = relative.unwrap_or(0);
            last = last.max(after);
            pending.push(u64::from(after) << 32 | u64::from(slot));
        }
        drop(numbers);
        radix::sort(&mut pending, &mut spare, 32..64 - last.leading_zeros());
        drop(spare);
        if counts.old > 0
            && let Some((block, after)) = self.twice(&pending)
        {
            return Err(Contradiction::Twice { block, epoch: oldest + u64::from(after) });
        }
        let versions = pending.iter().map(|&packed| (oldest + (packed >> 32), low(packed)));
        Ok(Epochs::found(Said::sealed(versions), (oldest, newest), mended))
    }

    /// A block with two versions of one epoch, of which one is superseded, and which: `pending` are
    /// epochs and slots, in order.
    fn twice(&self, pending: &[u64]) -> Option<(u64, u32)> {
        let version = |&packed: &u64| &self.slots[low(packed) as usize];
        for same in pending.chunk_by(|a, b| a >> 32 == b >> 32) {
            let mut olds = RoaringTreemap::new();
            let is_old = |s: &&Slot| s.state == State::Old;
            let twice = same.iter().map(version).filter(is_old).find(|s| !olds.insert(s.block()));
            let current = || {
                let mut current = same.iter().map(version).filter(|s| !is_old(s));
                current.find(|s| olds.contains(s.block()))
            };
            let found = twice.or_else(|| if olds.is_empty() { None } else { current() });
            if let Some(s) = found {
                return Some((s.block(), low(same[0] >> 32)));
            }
        }
        None
    }

    /// Superseded versions of epochs that have been retired since.
    fn free_retired(&mut self) {
        let Some(epochs) = &self.epochs else { return };
        for (slot, s) in (0u32..).zip(&mut self.slots) {
            if s.state == State::Old && epochs.relative(slot).is_none() {
                s.state = State::Free;
            }
        }
    }
}

impl Numbers {
    /// How far the slot's epoch is from the oldest that is pending; none if it is not pending.
    fn relative(&self, slot: u32) -> Option<u32> {
        let after = self.of_slots[slot as usize].wrapping_sub(low(self.oldest));
        // What would be of an epoch that has not begun is of one long ago.
        (u64::from(after) <= self.newest.saturating_sub(self.oldest)).then_some(after)
    }
}

/// Adds blocks, each once, and leaves none.
pub(super) fn add_blocks(dirty: &mut RoaringTreemap, blocks: &mut Vec<u64>, spare: &mut Vec<u64>) {
    let used = blocks.iter().fold(0, |bits, block| bits | block);
    radix::sort(blocks, spare, 0..64 - used.leading_zeros());
    let same_high = blocks.chunk_by(|a, b| a >> 32 == b >> 32);
    *dirty |= RoaringTreemap::from_bitmaps(same_high.map(|blocks| {
        let sorted = RoaringBitmap::from_sorted_iter(blocks.iter().map(|&block| low(block)));
        (low(blocks[0] >> 32), sorted.expect("sorted above, and each block is in one slot"))
    }));
    blocks.clear();
}

#[cfg(test)]
#[path = "rebuild_tests.rs"]
mod tests;
