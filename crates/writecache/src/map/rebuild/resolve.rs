// SPDX-License-Identifier: Apache-2.0 OR MIT
//! Resolve: which version of each block counts, once all entries have been read.
//!
//! ```text
//!   slot table ─┐  distributed by                       ┌─▶ the last counts ─▶ index, ascending
//!               ├─▶ hash, sorted ─▶ versions of a block ─┤
//!   displaced ──┘                                       └─▶ slots of the others are free, or kept
//! ```
//!
//! Looking up a slot or a displaced version by its block takes 50 ns, because it waits for memory
//! and for the page tables. So no block is looked up. The versions are sorted by the hash of their
//! block, which is one to one (`Index::hash`): this brings the versions of a block together.
//! Usually one bit decides which is the last one: only one of them is from the log. Otherwise their
//! slots are read and compared.
use std::collections::BinaryHeap;
use std::ops::Range;

use format::{Entry, Op};
use smallvec::SmallVec;

use super::{Contradiction, Rebuild, ZeroEntry, is_before};
use crate::map::index::{HASH_BITS, Index, low32};
use crate::map::radix;
use crate::map::{Slot, State};

/// Versions that are sorted and put into the index together. They, the memory to sort them and
/// their part of the index fit in the second-level cache of one core.
const BUCKET: usize = if cfg!(test) { 4 } else { 8 << 10 };
/// Most buckets: with more of them each store would wait for the translation of its page.
const BUCKET_BITS_MAX: u32 = 11;
/// A drop of at most so many blocks is stored as one drop for each block. Chosen: longer drops are
/// rare.
pub(super) const SHORT_DROP_MAX: u64 = 64;

/// Drops, and versions that are not in the slot table because another block claimed their slot
/// later.
#[derive(Default)]
pub(super) struct DisplacedVersions {
    list: Vec<DisplacedVersion>,
    /// The epoch of each, if any entry has an epoch.
    epochs: Option<Vec<u32>>,
    /// Longer drops, with the places of their entries.
    long_drops: Vec<(Arrival, Range<u64>)>,
}

/// An entry, and its place.
struct DisplacedVersion {
    block_low: u32,
    block_high: u16,
    op: Op,
    logged: bool,
    crc: u32,
    slot: u32,
    stamp: u32,
}
const _: () = assert!(size_of::<DisplacedVersion>() == 20);

/// The place of an entry: those of the log come after those of the checkpoint, then by number
/// (WC-RB4).
#[derive(Clone, Copy, Debug, PartialEq, Eq, PartialOrd, Ord)]
pub(super) struct Arrival {
    pub(super) from_log: bool,
    pub(super) number: u32,
}

impl DisplacedVersion {
    fn block(&self) -> u64 {
        u64::from(self.block_high) << 32 | u64::from(self.block_low)
    }
    fn arrival(&self) -> Arrival {
        Arrival { from_log: self.logged, number: self.stamp }
    }
}

impl DisplacedVersions {
    /// From now on versions have epochs; the versions so far get the epoch `before`.
    pub(super) fn begin_epochs(&mut self, before: u32) {
        self.epochs = Some(vec![before; self.list.len()]);
    }

    pub(super) fn long_drops(&self) -> usize {
        self.long_drops.len()
    }

    pub(super) fn len(&self) -> usize {
        self.list.len()
    }

    pub(super) fn push(&mut self, e: &Entry, arrival: Arrival, epoch: u32) {
        self.list.push(DisplacedVersion {
            block_low: low32(e.block),
            block_high: u16::try_from(e.block >> 32).expect("blocks are below 2^48"),
            op: e.op,
            logged: arrival.from_log,
            crc: e.crc,
            slot: e.slot,
            stamp: arrival.number,
        });
        if let Some(epochs) = &mut self.epochs {
            epochs.push(epoch);
        }
    }

    /// Adds a drop of blocks. A log drops only blocks that were in the cache, so a genuine log has
    /// fewer short drops than it and the slot table have blocks.
    pub(super) fn push_drop(&mut self, blocks: Range<u64>, arrival: Arrival, slots: usize) {
        let count = blocks.end - blocks.start;
        if count == 1 || count <= SHORT_DROP_MAX && self.list.len() < 2 * slots {
            let end = |block| Entry { op: Op::Drop, block, slot: 0, crc: 0 };
            blocks.for_each(|block| self.push(&end(block), arrival, 0));
        } else {
            self.long_drops.push((arrival, blocks));
        }
    }
}

/// Which blocks drops cover: for each boundary the place of the last drop that covers it.
struct Coverage(Vec<(u64, Option<Arrival>)>);

impl Coverage {
    fn of(mut drops: Vec<(Arrival, Range<u64>)>) -> Coverage {
        let mut bounds: Vec<u64> = drops.iter().flat_map(|(_, b)| [b.start, b.end]).collect();
        bounds.sort_unstable();
        bounds.dedup();
        drops.sort_unstable_by_key(|(_, blocks)| blocks.start);
        let mut begun = drops.into_iter().peekable();
        let mut reaching = BinaryHeap::new(); // the latest first
        let step = |bound: u64| {
            while let Some((arrival, blocks)) = begun.next_if(|(_, blocks)| blocks.start == bound) {
                reaching.push((arrival, blocks.end));
            }
            while reaching.peek().is_some_and(|&(_, end)| end <= bound) {
                reaching.pop();
            }
            (bound, reaching.peek().map(|&(arrival, _)| arrival))
        };
        Coverage(bounds.into_iter().map(step).collect())
    }

    /// The place of the last drop that covers the block.
    fn last(&self, block: u64) -> Option<Arrival> {
        let after = self.0.partition_point(|&(bound, _)| bound <= block);
        self.0[..after].last().and_then(|&(_, last)| last)
    }

    /// Whether a drop of the block came after `arrival`.
    fn ends(&self, block: u64, arrival: Arrival) -> bool {
        self.last(block).is_some_and(|dropped| dropped > arrival)
    }
}

/// Which blocks zeroes cover, and the epochs of the zeroes.
struct ZeroCoverage {
    reach: Coverage,
    /// In the order of their places.
    epochs: Vec<(Arrival, u32)>,
}

impl ZeroCoverage {
    fn by(zeroes: &[ZeroEntry]) -> Option<ZeroCoverage> {
        let range = |z: &ZeroEntry| z.start..z.start + u64::from(z.blocks);
        let reach = || Coverage::of(zeroes.iter().map(|z| (z.arrival, range(z))).collect());
        let epochs = || zeroes.iter().map(|z| (z.arrival, z.epoch)).collect();
        (!zeroes.is_empty()).then(|| ZeroCoverage { reach: reach(), epochs: epochs() })
    }

    /// The last zeroes over the block: their place, and the low half of their epoch.
    fn last(&self, block: u64) -> Option<(Arrival, u32)> {
        let arrival = self.reach.last(block)?;
        let at = self.epochs.partition_point(|&(of, _)| of < arrival);
        Some(self.epochs[at])
    }
}

/// The first contradiction, and the last block that has one.
pub(super) type Conflict = (Contradiction, u64);

/// A packed version. From the top: the bits of the hash that its bucket leaves open; whether it is
/// displaced; whether it came from the log; its slot, or its number among the displaced versions.
#[derive(Clone, Copy)]
struct Version(u64);

impl Version {
    const HASH_SHIFT: u32 = 34;

    fn is_displaced(self) -> bool {
        self.0 >> 33 & 1 != 0
    }
    fn is_logged(self) -> bool {
        self.0 >> 32 & 1 != 0
    }
    fn number(self) -> u32 {
        low32(self.0)
    }
}

/// Calls `each` with the hash and the packed rest of every version.
fn each_version(slots: &[Slot], displaced: &[DisplacedVersion], mut each: impl FnMut(u64, u64)) {
    for (slot, s) in (0u64..).zip(slots) {
        if !matches!(s.state, State::Free | State::Zero) {
            each(Index::hash(s.block()), u64::from(s.logged) << 32 | slot);
        }
    }
    for (number, displaced) in (0u64..).zip(displaced) {
        each(Index::hash(displaced.block()), 1 << 33 | u64::from(displaced.logged) << 32 | number);
    }
}

/// The versions of a block that were superseded and are kept.
#[derive(Default)]
struct Olds {
    /// In the order of their epochs.
    kept: SmallVec<[Version; 4]>,
    /// Those of which a later entry tells again (WC-RB6).
    told_again: SmallVec<[Version; 4]>,
    /// The latest epoch that has come.
    newest: Option<u32>,
}

impl Rebuild {
    /// Makes the index, and assigns each slot to the version that counts.
    pub(super) fn resolve(&mut self) -> (Index, Option<Conflict>) {
        self.drop_long();
        let beyond = self.free_zeroes();
        let zeroes = ZeroCoverage::by(&self.zeroes);
        let mut index = Index::new(u32::try_from(self.slots.len()).expect("made for that many"));
        let versions = self.slots.len() + self.displaced.list.len();
        let buckets = (versions / BUCKET).max(1).ilog2();
        let bucket_bits =
            buckets.clamp(Version::HASH_SHIFT + HASH_BITS - u64::BITS, BUCKET_BITS_MAX);
        let hash_bits = HASH_BITS - bucket_bits;
        let (mut found, ends) = self.distribute(hash_bits, 1 << bucket_bits);
        let (mut spare, mut waiting, mut stale) = (Vec::new(), Vec::new(), Vec::new());
        let mut start = 0;
        for (bucket, end) in (0u64..).zip(ends) {
            let found = &mut found[start..end];
            start = end;
            let shift = Version::HASH_SHIFT;
            radix::sort(found, &mut spare, shift..shift + hash_bits);
            for same in found.chunk_by(|a, b| a >> shift == b >> shift) {
                let hash = bucket << hash_bits | same[0] >> shift;
                match *same {
                    [alone] if !Version(alone).is_displaced() && zeroes.is_none() => {
                        index.insert_hashed(hash, Version(alone).number());
                    }
                    _ => self.choose(same, zeroes.as_ref(), &mut stale, |version| {
                        match version.is_displaced() {
                            true => waiting.push((hash, version.number())),
                            false => index.insert_hashed(hash, version.number()),
                        }
                    }),
                }
            }
        }
        drop(found);
        radix::sort(&mut stale, &mut spare, 0..u32::BITS);
        for slot in stale {
            self.slots[slot as usize].state = State::Free;
        }
        let conflict = self.place_displaced(&mut index, waiting).or(beyond);
        self.displaced = DisplacedVersions::default();
        (index, conflict)
    }

    /// Removes versions that came before a long drop that covers their block.
    fn drop_long(&mut self) {
        let long_drops = std::mem::take(&mut self.displaced.long_drops);
        if long_drops.is_empty() {
            return;
        }
        let reach = Coverage::of(long_drops);
        for s in &mut self.slots {
            let is_version = !matches!(s.state, State::Free | State::Zero);
            if is_version && reach.ends(s.block(), s.arrival()) {
                s.state = State::Free;
            }
        }
        for displaced in &mut self.displaced.list {
            if reach.ends(displaced.block(), displaced.arrival()) {
                displaced.op = Op::Drop; // earlier versions are dropped, too
            }
        }
    }

    /// WC-RB5: frees the slots of zeroes that are not pending. Returns a conflict if pending zeroes
    /// have no valid slot.
    fn free_zeroes(&mut self) -> Option<Conflict> {
        let numbers = self.epochs.as_ref();
        let is_pending = |epoch| numbers.is_some_and(|n| n.relative(epoch).is_some());
        let epoch = |slot: usize| numbers.map_or(0, |n| n.of_slots[slot]);
        for (slot, s) in self.slots.iter_mut().enumerate() {
            if s.state == State::Zero && !is_pending(epoch(slot)) {
                s.state = State::Free;
            }
        }
        let is_beyond = |z: &&ZeroEntry| z.slot as usize >= self.slots.len() && is_pending(z.epoch);
        let beyond = self.zeroes.iter().find(is_beyond)?;
        let this = Contradiction::Slot { block: beyond.start, slot: beyond.slot };
        Some((this, beyond.start))
    }

    /// All versions, packed and distributed to buckets by their hash, and where each bucket ends.
    fn distribute(&self, hash_bits: u32, buckets: usize) -> (Vec<u64>, Vec<usize>) {
        let bucket = |hash: u64| (hash >> hash_bits) as usize;
        let mut places = vec![0; buckets];
        each_version(&self.slots, &self.displaced.list, |hash, _| places[bucket(hash)] += 1);
        let mut before = 0;
        for place in &mut places {
            before += std::mem::replace(place, before);
        }
        // `has_too_many` refuses more.
        assert!(u32::try_from(self.displaced.list.len()).is_ok(), "they have numbers of 32 bits");
        let mut found = vec![0; before];
        each_version(&self.slots, &self.displaced.list, |hash, rest| {
            let place = &mut places[bucket(hash)];
            found[*place] = hash << Version::HASH_SHIFT | rest;
            *place += 1;
        });
        (found, places)
    }

    /// Chooses among versions with the same hash: calls `take` with those that count. Slots of
    /// other versions that can simply be freed are added to `stale`.
    fn choose(
        &mut self,
        same: &[u64],
        zeroes: Option<&ZeroCoverage>,
        stale: &mut Vec<u64>,
        mut take: impl FnMut(Version),
    ) {
        let versions = same.iter().map(|&packed| Version(packed));
        let mut of_log = versions.clone().filter(|version| version.is_logged());
        let in_table = versions.clone().filter(|version| !version.is_displaced());
        // Only the last version is in the table, or no other one can be kept.
        let is_plain = self.block_bits >> HASH_BITS == 0
            && zeroes.is_none()
            && (self.epochs.is_none() || in_table.clone().count() == 1);
        if let (Some(last), None) = (of_log.next(), of_log.next())
            && is_plain
            && !last.is_displaced()
        {
            let others = in_table.filter(|version| version.0 != last.0);
            stale.extend(others.map(|version| u64::from(version.number())));
            return take(last);
        }
        let key = |version: Version| match version.is_displaced() {
            false => {
                let s = &self.slots[version.number() as usize];
                (s.block(), s.arrival(), version.0)
            }
            true => {
                let displaced = &self.displaced.list[version.number() as usize];
                (displaced.block(), displaced.arrival(), version.0)
            }
        };
        let mut ordered: SmallVec<[_; 8]> = versions.map(key).collect();
        ordered.sort_unstable();
        for of_block in ordered.chunk_by(|a, b| a.0 == b.0) {
            let versions = of_block.iter().map(|&(_, _, packed)| Version(packed));
            let zeroes = zeroes.and_then(|zeroes| zeroes.last(of_block[0].0));
            self.choose_of_block(versions, zeroes).into_iter().for_each(&mut take);
        }
    }

    /// Goes through the versions of one block and the last zeroes that cover it, in the order of
    /// their places; returns the version that counts, if any. Earlier zeroes may be left out:
    /// whether a version is kept depends only on a later epoch that follows it, and the next
    /// version has one.
    fn choose_of_block(
        &mut self,
        versions: impl Iterator<Item = Version>,
        mut zeroes: Option<(Arrival, u32)>,
    ) -> Option<Version> {
        let mut current = None;
        let mut olds = Olds::default();
        for version in versions {
            if let Some((_, epoch)) =
                zeroes.take_if(|(arrival, _)| *arrival < self.arrival(version))
            {
                self.end_by_zeroes(current.take(), epoch, &mut olds);
            }
            let displaced =
                version.is_displaced().then(|| &self.displaced.list[version.number() as usize]);
            let (ended, kept) = match displaced.map_or(Op::Write, |displaced| displaced.op) {
                Op::Drop => (current.take(), false),
                Op::Evict => {
                    let is_there = |at: &mut Version| self.slot(*at) == self.slot(version);
                    (current.take_if(is_there), false)
                }
                Op::Write | Op::Clean | Op::Bad => {
                    let ended = current.replace(version);
                    let by = self.epoch(version);
                    if olds.newest.is_none_or(|newest| is_before(newest, by)) {
                        olds.newest = Some(by);
                    }
                    (ended, ended.is_some_and(|ended| self.is_kept(ended, by)))
                }
                Op::WriteNext | Op::Epoch | Op::Zero => unreachable!("never displaced"),
            };
            self.end(ended, kept, &mut olds);
        }
        if let Some((_, epoch)) = zeroes {
            self.end_by_zeroes(current.take(), epoch, &mut olds);
        }
        let epoch = current.map(|current| self.epoch(current));
        let is_told_to_the_end = !epoch
            .zip(olds.newest)
            .is_some_and(|(own, newest)| self.epochs.is_some() && is_before(own, newest));
        if is_told_to_the_end {
            let slots = olds.told_again.iter().map(|told| told.number() as usize);
            slots.for_each(|slot| self.slots[slot].state = State::Free);
        }
        current
    }

    fn end_by_zeroes(&mut self, ended: Option<Version>, epoch: u32, olds: &mut Olds) {
        let kept = ended.is_some_and(|ended| self.is_kept(ended, epoch));
        self.end(ended, kept, olds);
    }

    /// A version is superseded or dropped.
    fn end(&mut self, ended: Option<Version>, kept: bool, olds: &mut Olds) {
        let Some(ended) = ended.filter(|ended| !ended.is_displaced()) else { return };
        self.slots[ended.number() as usize].state = if kept { State::Old } else { State::Free };
        if kept {
            let own = self.epoch(ended);
            let is_again = |told: &Version| !is_before(self.epoch(*told), own);
            while olds.kept.last().is_some_and(is_again) {
                let told = olds.kept.pop();
                olds.told_again.extend(told);
            }
            olds.kept.push(ended);
        }
    }

    fn arrival(&self, version: Version) -> Arrival {
        let number = version.number() as usize;
        match version.is_displaced() {
            true => self.displaced.list[number].arrival(),
            false => self.slots[number].arrival(),
        }
    }

    /// The low half of its epoch.
    fn epoch(&self, version: Version) -> u32 {
        let number = version.number() as usize;
        match (version.is_displaced(), &self.displaced.epochs, &self.epochs) {
            (true, Some(epochs), _) => epochs[number],
            (false, _, Some(numbers)) => numbers.of_slots[number],
            (_, _, _) => 0,
        }
    }

    fn slot(&self, version: Version) -> u32 {
        let number = version.number();
        if version.is_displaced() { self.displaced.list[number as usize].slot } else { number }
    }

    /// Whether a version is kept in its slot when a version or zeroes of epoch `by` supersede it:
    /// it must not be displaced, and its own epoch must be earlier and pending (WC-RB3).
    fn is_kept(&self, ended: Version, by: u32) -> bool {
        let Some(numbers) = self.epochs.as_ref().filter(|_| !ended.is_displaced()) else {
            return false;
        };
        let own = numbers.of_slots[ended.number() as usize];
        self.slots[ended.number() as usize].state == State::Dirty
            && is_before(own, by)
            && numbers.relative(own).is_some()
    }

    /// Gives the displaced versions that count their slots, if these are vacant (WC-RB1).
    fn place_displaced(&mut self, index: &mut Index, waiting: Vec<(u64, u32)>) -> Option<Conflict> {
        let mut conflict: Option<Conflict> = None;
        for (hash, number) in waiting {
            let displaced = &self.displaced.list[number as usize];
            let e = Entry {
                op: displaced.op,
                block: displaced.block(),
                slot: displaced.slot,
                crc: displaced.crc,
            };
            if self.slots.get(e.slot as usize).is_some_and(|s| s.state == State::Free) {
                let epochs = self.displaced.epochs.as_ref();
                self.fill(&e, epochs.map_or(0, |epochs| epochs[number as usize]));
                index.insert_hashed(hash, e.slot);
            } else {
                let this = Contradiction::Slot { block: e.block, slot: e.slot };
                let (first, last) = conflict.unwrap_or((this, 0));
                conflict = Some((first, last.max(e.block)));
            }
        }
        conflict
    }
}
