// SPDX-License-Identifier: Apache-2.0 OR MIT
//! Rebuild: recovery makes the map from checkpoint and log.
//!
//! ```text
//!   entries ──▶ slot table ────────────────────┐
//!                  └─▶ displaced versions, drops ┴─▶ resolve: index ─▶ finish: free map, dirty
//!                                                                      bitmap, epochs
//! ```
//!
//! Invariants
//! - WC-RB1 The last entry of each block counts; no other order matters. So two blocks may claim a
//!   slot while entries are read: a checkpoint is fuzzy, and may already name a later owner of a
//!   slot. The displaced version is kept in a list, and gets its slot at the end if that is vacant.
//!   If two blocks claim a slot at the end, the media are damaged.
//! - WC-RB2 There is no second copy of the map. Besides the finished map recovery needs the entries
//!   of one read, and 20 bytes for each displaced version and each block of a short drop: at most
//!   as many as the log has entries, plus as many as there are slots. While the index is made, it
//!   needs 8 bytes for each of these and for each slot; then one chunk of block numbers to be
//!   sorted. With epochs it needs 4 bytes more for each of these and for each slot; then 8 bytes
//!   for a pending version, and 8 more while versions of several epochs are sorted.
//! - WC-RB3 A version that a version of a later epoch supersedes is kept if its own epoch is
//!   pending. If another block claims its slot, the slot belongs to that block: a slot is reused
//!   only after a record that retires its epoch, and that record is among the entries too. A block
//!   leaves a cache with epochs in two cases. It is clean: then all earlier epochs are retired, and
//!   no earlier version is kept. Or zeroes replace its version, as a later version would.
//! - WC-RB4 No block is looked up while entries are read. Each entry has a number, by which
//!   `resolve` finds the last one of a block: entries of the log come after those of the
//!   checkpoint.
//! - WC-RB5 Zeroes end every earlier version in their range, whether the zeroes are pending or not.
//!   Pending zeroes keep their slot; the slot of other zeroes is vacant.
//! - WC-RB6 A journal tells again what the log has of the same writes, with the slots of before, if
//!   a slot has refused its data since. Where it tells again of a version that was superseded and
//!   is kept, that version is in the slot that the journal names, as for the version that counts.
//!   It tells all to the end: a block whose last entry is of an earlier epoch than another is
//!   damage.
use block::Planted;
use format::{BLOCK_LIMIT, Entry, Op};
use roaring::{RoaringBitmap, RoaringTreemap};

use super::block_set::BlockSet;
use super::buffered::BufferedSlots;
use super::epoch_state::Epochs;
use super::oldest::Oldest;
use super::pending::PendingVersions;
use super::zero_ranges::ZeroRanges;
use super::{Counts, Slot, Slots, State};
use crate::map::free::FreeMap;
use crate::map::index::{Index, low32};
use crate::map::radix;

mod resolve;

use resolve::{Arrival, DisplacedVersions, SHORT_DROP_MAX};

/// Dirty blocks that are sorted at once: twice 32 MiB. A bitmap takes sorted runs several times as
/// fast as blocks in random order, and larger runs need fewer merges.
const SORT_BLOCKS: usize = if cfg!(test) { 4 << 10 } else { 4 << 20 };

/// Bytes of memory for a slot, without epochs: 16 in the table, 8 in the index, and 8 to sort the
/// versions, which the sets of dirty blocks use later.
const SLOT_BYTES: u64 = 32;
/// Further bytes with epochs: 4 for the epoch of each slot, then 16 while versions are sorted.
const EPOCH_BYTES: u64 = 20;
/// Bytes for a displaced version: 20, and 8 to sort it.
const DISPLACED_BYTES: u64 = 28;
/// Bytes for a long drop: its range, its boundaries, and the heap of drops that reach them.
const LONG_DROP_BYTES: u64 = 128;
/// Bytes for a zero range: 32, and 64 to sort it.
const ZERO_ENTRY_BYTES: u64 = 96;

/// Bytes of memory that the map of `slots` slots takes, both in use and while the cache is opened.
pub(crate) fn map_bytes(slots: u64) -> u64 {
    slots.saturating_mul(SLOT_BYTES) + 16 * slots.min(SORT_BLOCKS as u64)
}

/// The same with epochs, whose queue of versions takes at most 8 bytes more for each slot.
pub(crate) fn ordered_map_bytes(slots: u64) -> u64 {
    map_bytes(slots).saturating_add(8 * slots)
}

/// Largest epoch on the media: half of what an entry can hold, so that no cache counts beyond the
/// other half.
pub(crate) const EPOCH_MAX: u64 = BLOCK_LIMIT / 2;
/// Most epochs from the oldest pending one to the newest: more could not be distinguished by their
/// low halves. Each takes at least one slot.
pub(crate) const PENDING_EPOCHS_MAX: u64 = (1 << 31) - 1;

/// Why the entries do not form a map.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(crate) enum Contradiction {
    /// The block is beyond the end of the device.
    OutOfRange(u64),
    /// The slot of this block belongs to another block, or there is no such slot.
    Slot { block: u64, slot: u32 },
    /// The block has two versions of this epoch, though a later version replaces the other one.
    Duplicate { block: u64, epoch: u64 },
}

/// A map under construction. Slots in state `Free` are vacant. In the others `logged` tells whether
/// their entry came from the log, and `stamp` is the number of that entry (WC-RB4).
pub(crate) struct Rebuild {
    slots: Vec<Slot>,
    displaced: DisplacedVersions,
    /// The place of the entry that is being applied.
    arrival: Arrival,
    /// The bits that are set in any block.
    block_bits: u64,
    /// Zeroes among the entries.
    zeroes: Vec<ZeroEntry>,
    /// The index of a map made by [`Rebuild::indexed`]; other maps get theirs at the end.
    index: Option<Index>,
    /// Set by the first entry with an epoch.
    epochs: Option<EpochNumbers>,
}

/// Zeroes, the place of their entry, and the low half of their epoch.
#[derive(Clone, Copy)]
struct ZeroEntry {
    arrival: Arrival,
    start: u64,
    blocks: u32,
    slot: u32,
    epoch: u32,
}

/// The epochs that the entries name.
struct EpochNumbers {
    /// The low half of each slot's epoch. It is enough: fewer epochs than slots are pending at the
    /// same time.
    of_slots: Vec<u32>,
    /// The epoch of the next write; `None` at the beginning of a record.
    current: Option<u64>,
    oldest: u64,
    newest: u64,
}

/// Whether epoch `a` is before `b`, compared by their low halves.
fn is_before(a: u32, b: u32) -> bool {
    a.wrapping_sub(b) >= 1 << 31
}

fn op_of(state: State) -> Op {
    match state {
        State::Dirty => Op::Write,
        State::Clean => Op::Clean,
        State::Bad => Op::Bad,
        State::Free | State::Writing | State::Old | State::Zero | State::Limbo => {
            unreachable!("not what an entry says")
        }
    }
}

fn state_of(op: Op) -> State {
    match op {
        // An unreadable block may be readable now: its checksum decides.
        Op::Write | Op::WriteNext | Op::Bad => State::Dirty,
        Op::Clean => State::Clean,
        Op::Zero => State::Zero,
        Op::Evict | Op::Drop | Op::Epoch => unreachable!("no state of a block"),
    }
}

impl Slot {
    /// The place of the entry that claimed the slot, while the map is made (WC-RB4).
    fn arrival(&self) -> Arrival {
        Arrival { from_log: self.logged, number: self.stamp }
    }
}

impl Rebuild {
    /// A map of `count` vacant slots.
    pub(crate) fn new(count: u32) -> Rebuild {
        Rebuild {
            slots: vec![Slot::VACANT; count as usize],
            displaced: DisplacedVersions::default(),
            arrival: Arrival { from_log: false, number: 0 },
            block_bits: 0,
            zeroes: Vec::new(),
            index: None,
            epochs: None,
        }
    }

    /// A map of `count` vacant slots for `find` and `put_dirty`, which look blocks up; it takes no
    /// entries.
    pub(crate) fn indexed(count: u32) -> Rebuild {
        Rebuild { index: Some(Index::new(count)), ..Rebuild::new(count) }
    }

    /// Applies the entries of a record of the checkpoint, in their order.
    pub(crate) fn apply(&mut self, entries: impl Iterator<Item = Entry>) {
        self.apply_from(false, entries);
    }

    /// Applies the entries of a record of the log, in their order; after those of the checkpoint.
    pub(crate) fn apply_log(&mut self, entries: &[Entry]) {
        // Loads the slots into the CPU cache, many at once: one after the other each would wait for
        // memory.
        let named = entries.iter().filter_map(|e| Some(self.slots.get(e.slot as usize)?.block_low));
        std::hint::black_box(named.fold(0, u32::wrapping_add));
        self.apply_from(true, entries.iter().copied());
    }

    fn apply_from(&mut self, log: bool, entries: impl Iterator<Item = Entry>) {
        if let Some(epochs) = &mut self.epochs {
            epochs.current = None;
        }
        if log != self.arrival.from_log {
            self.arrival = Arrival { from_log: log, number: 0 };
        }
        for mut e in entries {
            // A log has fewer entries than that. A checkpoint of 16 TiB of blocks has more: entries
            // beyond the limit have equal numbers, and their slots decide the order.
            self.arrival.number = self.arrival.number.saturating_add(1);
            match e.op {
                Op::Epoch => {
                    self.note_epoch(e.block, e.block - u64::from(e.slot));
                    continue;
                }
                Op::Drop => {
                    let blocks = e.block..e.block + u64::from(e.slot);
                    self.displaced.push_drop(blocks, self.arrival, self.slots.len());
                    continue;
                }
                Op::WriteNext => {
                    self.note_next_epoch();
                    e.op = Op::Write;
                }
                Op::Write | Op::Clean | Op::Bad | Op::Evict | Op::Zero => {}
            }
            self.block_bits |= e.block;
            let epoch = self.next_epoch();
            if e.op == Op::Zero {
                let Entry { block: start, slot, crc: blocks, .. } = e;
                self.zeroes.push(ZeroEntry { arrival: self.arrival, start, blocks, slot, epoch });
            }
            let claimed = self.slots.get(e.slot as usize).filter(|_| e.op != Op::Evict);
            let Some(s) = claimed else {
                if e.op != Op::Zero {
                    self.displaced.push(&e, self.arrival, epoch);
                }
                continue;
            };
            // A block gets the slot of zeroes only after their epoch was retired (WC-RB5).
            let is_block = !matches!(s.state, State::Free | State::Zero);
            if is_block && (s.block() != e.block || e.op == Op::Zero) {
                let owner =
                    Entry { op: op_of(s.state), block: s.block(), slot: e.slot, crc: s.crc };
                let arrival = s.arrival();
                let epoch = self.epochs.as_ref().map_or(0, |n| n.of_slots[e.slot as usize]);
                self.displaced.push(&owner, arrival, epoch);
            }
            self.fill(&e, epoch);
        }
    }

    fn fill(&mut self, e: &Entry, epoch: u32) {
        let s = &mut self.slots[e.slot as usize];
        s.set_block(e.block);
        (s.state, s.crc) = (state_of(e.op), e.crc);
        (s.logged, s.stamp) = (self.arrival.from_log, self.arrival.number);
        if let Some(epochs) = &mut self.epochs {
            epochs.of_slots[e.slot as usize] = epoch;
        }
    }

    fn note_epoch(&mut self, number: u64, oldest: u64) {
        let slots = self.slots.len();
        let displaced = &mut self.displaced;
        let epochs = self.epochs.get_or_insert_with(|| {
            // Earlier writes without an epoch get one that is before all pending ones; `finish`
            // handles them.
            let before = low32(oldest.wrapping_sub(1));
            displaced.begin_epochs(before);
            EpochNumbers { of_slots: vec![before; slots], current: None, oldest, newest: 0 }
        });
        epochs.current = Some(number);
        epochs.oldest = epochs.oldest.max(oldest);
        epochs.newest = epochs.newest.max(number);
    }

    fn note_next_epoch(&mut self) {
        if let Some(epochs) = &mut self.epochs {
            let next = epochs.current.map_or(epochs.oldest, |c| c + 1);
            epochs.current = Some(next);
            epochs.newest = epochs.newest.max(next);
        }
    }

    /// The low half of the epoch of the next write; without an epoch, one before all pending
    /// epochs.
    fn next_epoch(&self) -> u32 {
        let of = |e: &EpochNumbers| low32(e.current.unwrap_or(e.oldest.wrapping_sub(1)));
        self.epochs.as_ref().map_or(0, of)
    }

    /// Bytes of memory that it takes, including the temporary memory of `finish`.
    pub(crate) fn bytes(&self) -> u64 {
        let slots = self.slots.len() as u64;
        let displaced = self.displaced.len() as u64;
        let of_epochs = if self.epochs.is_some() { EPOCH_BYTES * slots + 4 * displaced } else { 0 };
        let zeroes = self.zeroes.len() as u64 * ZERO_ENTRY_BYTES;
        let drops = self.displaced.long_drops() as u64 * LONG_DROP_BYTES;
        map_bytes(slots) + displaced * DISPLACED_BYTES + of_epochs + zeroes + drops
    }

    /// Whether there are more displaced versions than a log of `log_entries` entries can cause:
    /// each entry displaces one, or is one, and [`DisplacedVersions::push_drop`] limits short
    /// drops. A checkpoint names each slot once, and displaces none.
    pub(crate) fn has_too_many(&self, log_entries: u64) -> bool {
        let most = 3 * self.slots.len() as u64 + log_entries + SHORT_DROP_MAX;
        self.displaced.len() as u64 > most.min(u64::from(u32::MAX))
    }

    /// The slot and the checksum of a block of an `indexed` map.
    pub(crate) fn find(&self, block: u64) -> Option<(u32, u32)> {
        let slot = self.index.as_ref()?.find(block, |s| self.slots[s as usize].block())?;
        Some((slot, self.slots[slot as usize].crc))
    }

    /// Puts a dirty block into a vacant slot of an `indexed` map; an older slot of the block
    /// becomes vacant.
    pub(crate) fn put_dirty(&mut self, block: u64, slot: u32, crc: u32) {
        debug_assert!(self.slots[slot as usize].state == State::Free, "slot {slot} is taken");
        let (index, slots) = (self.index.as_mut().expect("made so"), &self.slots);
        let old = index.replace(block, slot, |s| slots[s as usize].block());
        self.fill(&Entry { op: Op::Write, block, slot, crc }, 0);
        if let Some(old) = old {
            self.slots[old as usize].state = State::Free;
        }
    }

    /// The oldest epoch that may be pending and the newest, if any entry has an epoch.
    pub(crate) fn pending_epochs(&self) -> Option<(u64, u64)> {
        self.epochs.as_ref().map(|e| (e.oldest, e.newest.max(e.oldest)))
    }

    /// Planted fault: zeroes do not end earlier versions.
    pub(crate) fn forget_zeroes(&mut self) {
        self.zeroes.clear();
    }

    /// The finished map of a device of `blocks` blocks.
    pub(crate) fn finish(mut self, blocks: u64) -> Result<Slots, Contradiction> {
        let (index, conflict) = match self.index.take() {
            Some(index) => (index, None),
            None => self.resolve(),
        };
        let mut last = conflict.map(|(_, last)| last);
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
                    s.logged = false; // its block may have a newer version
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
                State::Zero => counts.zero += 1,
                State::Writing | State::Limbo => unreachable!("never put"),
            }
            stamp = stamp.wrapping_add(1);
            (s.stamp, s.logged) = (stamp, true);
            let more = if s.state == State::Zero { u64::from(s.crc) - 1 } else { 0 };
            last = last.max(Some(s.block() + more));
        }
        if let Some(last) = last.filter(|&last| last >= blocks) {
            return Err(Contradiction::OutOfRange(last));
        }
        if let Some((first, _)) = conflict {
            return Err(first);
        }
        add_blocks(&mut dirty, &mut unsorted, &mut spare);
        drop(unsorted);
        let epochs = match self.epochs.take() {
            Some(numbers) => Some(Box::new(self.find_epochs(numbers, counts, spare)?)),
            None => None,
        };
        let mut slots = Slots {
            slots: self.slots,
            index,
            free,
            dirty,
            oldest: Oldest::new(count),
            bad,
            unlogged: BlockSet::default(),
            committing: BlockSet::default(),
            given_up: RoaringTreemap::new(),
            limbo: Vec::new(),
            zeroes: ZeroRanges::default(),
            spare: Default::default(),
            unchecked: RoaringBitmap::new(),
            counts,
            next_stamp: stamp,
            evict_cursor: 0,
            epochs,
            journal: None,
            buffered: BufferedSlots::new(0, Planted::NONE),
        };
        slots.restore_zero_ranges();
        Ok(slots)
    }

    /// Finds the pending versions, in the order of their epochs.
    fn find_epochs(
        &self,
        numbers: EpochNumbers,
        counts: Counts,
        mut spare: Vec<u64>,
    ) -> Result<Epochs, Contradiction> {
        let (oldest, newest) = (numbers.oldest.max(1), numbers.newest.max(numbers.oldest));
        let is_pending = |s: &Slot| matches!(s.state, State::Dirty | State::Old | State::Zero);
        let count = counts.dirty as usize + counts.old as usize + counts.zero as usize;
        let mut pending = Vec::with_capacity(count);
        let (mut repaired, mut last) = (false, 0);
        for (slot, s) in (0u32..).zip(&self.slots).filter(|(_, s)| is_pending(s)) {
            let relative = numbers.relative(numbers.of_slots[slot as usize]);
            repaired |= relative.is_none() && s.state == State::Dirty;
            let after = relative.unwrap_or(0);
            last = last.max(after);
            pending.push(u64::from(after) << 32 | u64::from(slot));
        }
        drop(numbers);
        radix::sort(&mut pending, &mut spare, 32..64 - last.leading_zeros());
        drop(spare);
        if counts.old > 0
            && let Some((block, after)) = self.duplicate(&pending)
        {
            return Err(Contradiction::Duplicate { block, epoch: oldest + u64::from(after) });
        }
        let versions = pending.iter().map(|&packed| (oldest + (packed >> 32), low32(packed)));
        Ok(Epochs::found(PendingVersions::sealed(versions), (oldest, newest), repaired))
    }

    /// A block with two versions of one epoch, one of them superseded, and that epoch. `pending`
    /// has epochs and slots, in order.
    fn duplicate(&self, pending: &[u64]) -> Option<(u64, u32)> {
        let version = |&packed: &u64| &self.slots[low32(packed) as usize];
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
                return Some((s.block(), low32(same[0] >> 32)));
            }
        }
        None
    }
}

impl EpochNumbers {
    /// The distance of an epoch (given by its low half) from the oldest pending one; `None` if it
    /// is not pending.
    fn relative(&self, epoch: u32) -> Option<u32> {
        let after = epoch.wrapping_sub(low32(self.oldest));
        // A number after the newest epoch is that of an epoch long ago.
        (u64::from(after) <= self.newest.saturating_sub(self.oldest)).then_some(after)
    }
}

/// Moves all of `blocks`, which are distinct, into `dirty`.
pub(super) fn add_blocks(dirty: &mut RoaringTreemap, blocks: &mut Vec<u64>, spare: &mut Vec<u64>) {
    let used = blocks.iter().fold(0, |bits, block| bits | block);
    radix::sort(blocks, spare, 0..64 - used.leading_zeros());
    let same_high = blocks.chunk_by(|a, b| a >> 32 == b >> 32);
    *dirty |= RoaringTreemap::from_bitmaps(same_high.map(|blocks| {
        let sorted = RoaringBitmap::from_sorted_iter(blocks.iter().map(|&block| low32(block)));
        (low32(blocks[0] >> 32), sorted.expect("sorted above, and each block is in one slot"))
    }));
    blocks.clear();
}

#[cfg(test)]
#[path = "rebuild_tests.rs"]
mod tests;
