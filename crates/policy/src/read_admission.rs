// SPDX-License-Identifier: Apache-2.0 OR MIT
//! Admission of reads: which blocks that clients read from a slow device a cache of them takes.
//!
//! ```text
//!   miss ─▶ of a long stream? ─▶ a ghost? ─▶ room, and budget? ─▶ admitted
//!              │ yes               │ no         │ no                  ▲
//!              │                   │            ▼                     │
//!              │                   │         refused, stays a ghost   │
//!              │                   └─▶ ample room, and half of the budget?
//!              ▼                         │ no
//!           refused                   refused, a ghost
//! ```
//!
//! S3-FIFO (`evict`) puts what is read once into a small queue, and keeps its name, a ghost, when
//! it leaves that queue. On flash the small queue would cost a write for each block that is read
//! once: here a block that is read once leaves a ghost and nothing else. What was admitted is the
//! main queue: the cache evicts it in the order of its slots, round and round, and passes over a
//! slot once for each use that was counted ([`UseCounts`]).
//!
//! While the cache has more room than it can fill with such blocks soon, one that is read once
//! enters, too: each slot is written once more by that, and the next pass over the same blocks
//! finds them.
//!
//! Invariants
//! - PO-RD1 A ghost takes 2 bytes. There are as many as the cache has slots, rounded up to a
//!   bucket; a bucket that is full forgets its oldest.
//! - PO-RD2 A block is admitted only if it missed before, and other blocks missed since: reads of a
//!   block in small pieces are one use. But for one that misses while there is ample room.
//! - PO-RD3 In no 24 hours more bytes are admitted than the budget has.
use std::ops::Range;

use crate::readahead::Streams;

/// Ghosts in a bucket: one line of the CPU cache.
const WAYS: usize = 32;
/// Two misses of a block are separate uses if so many other blocks missed between them. Chosen:
/// more than the requests of a client that reads in small pieces, and few beside any cache.
const APART: usize = 16;
/// Uses that are counted for a slot.
const USES_MAX: u64 = 3;
/// Counts in a word of [`UseCounts`], two bits each.
const COUNTS: u32 = 32;
const HOUR_NS: u64 = 3_600_000_000_000;
/// The hour that has begun, and 24 before it (PO-RD3).
const HOURS: usize = 25;

/// Names of blocks that were read once: fingerprints, in buckets, the newest first.
#[derive(Clone, Debug)]
pub struct Ghosts {
    buckets: Box<[[u16; WAYS]]>,
}

impl Ghosts {
    /// Bytes of the ghosts of a cache of `slots` blocks.
    #[must_use]
    pub fn bytes(slots: u64) -> u64 {
        slots.div_ceil(WAYS as u64).max(1) * (2 * WAYS as u64)
    }

    /// None yet, and room for `slots`.
    ///
    /// # Panics
    /// If they do not fit into the address space.
    #[must_use]
    pub fn new(slots: u64) -> Ghosts {
        let buckets = Ghosts::bytes(slots) / (2 * WAYS as u64);
        let buckets = usize::try_from(buckets).expect("fits into memory");
        Ghosts { buckets: vec![[0; WAYS]; buckets].into() }
    }

    /// The bucket of a block, and its fingerprint there. 0 is none.
    fn place(&self, block: u64) -> (usize, u16) {
        // The finaliser of MurmurHash3, a bijection that spreads neighbours.
        let mut h = block;
        h = (h ^ (h >> 33)).wrapping_mul(0xff51_afd7_ed55_8ccd);
        h = (h ^ (h >> 33)).wrapping_mul(0xc4ce_b9fe_1a85_ec53);
        h ^= h >> 33;
        let scaled = u128::from(h) * self.buckets.len() as u128;
        let bucket = usize::try_from(scaled >> 64).expect("below the length");
        let print = u16::try_from(h & 0xffff).expect("masked");
        (bucket, print.max(1))
    }

    /// Whether the block has a ghost.
    #[must_use]
    pub fn contains(&self, block: u64) -> bool {
        let (bucket, print) = self.place(block);
        self.buckets[bucket].contains(&print)
    }

    /// Leaves a ghost of the block, which has none. The oldest of its bucket may go.
    pub fn put(&mut self, block: u64) {
        let (bucket, print) = self.place(block);
        let bucket = &mut self.buckets[bucket];
        bucket.copy_within(..WAYS - 1, 1);
        bucket[0] = print;
    }

    /// Removes the ghost of the block, if there is one.
    pub fn remove(&mut self, block: u64) {
        let (bucket, print) = self.place(block);
        let bucket = &mut self.buckets[bucket];
        if let Some(at) = bucket.iter().position(|p| *p == print) {
            bucket.copy_within(at + 1.., at);
            bucket[WAYS - 1] = 0;
        }
    }
}

/// Bytes that may be admitted in a day.
#[derive(Clone, Debug)]
pub struct DailyBudget {
    /// Bytes of 24 hours; 0: no limit.
    limit: u64,
    hours: [u64; HOURS],
    /// The number of the newest hour.
    hour: u64,
    /// The sum of `hours`.
    spent: u64,
}

impl DailyBudget {
    /// Of so many bytes, of which none is spent; 0: no limit.
    #[must_use]
    pub fn new(limit: u64) -> DailyBudget {
        DailyBudget { limit, hours: [0; HOURS], hour: 0, spent: 0 }
    }

    /// Another limit; what was spent stays spent.
    pub fn set_limit(&mut self, limit: u64) {
        self.limit = limit;
    }

    /// Spends `bytes`, or returns false if they are too many.
    pub fn spend(&mut self, bytes: u64, now_ns: u64) -> bool {
        self.forget_before(now_ns);
        let spent = self.spent.saturating_add(bytes);
        if self.limit > 0 && spent > self.limit {
            return false;
        }
        self.hours[DailyBudget::at(self.hour)] += spent - self.spent;
        self.spent = spent;
        true
    }

    /// Whether half of it is left.
    pub fn has_half(&mut self, now_ns: u64) -> bool {
        self.forget_before(now_ns);
        self.limit == 0 || self.spent < self.limit.div_ceil(2)
    }

    /// What was spent in hours that are no longer of the last day is no longer spent.
    fn forget_before(&mut self, now_ns: u64) {
        let now = now_ns / HOUR_NS;
        for passed in (self.hour + 1..=now).take(HOURS) {
            self.spent -= std::mem::take(&mut self.hours[DailyBudget::at(passed)]);
        }
        self.hour = self.hour.max(now);
    }

    fn at(hour: u64) -> usize {
        usize::try_from(hour % HOURS as u64).expect("below HOURS")
    }
}

/// How much room a cache has for what is read.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum Room {
    /// None now.
    None,
    /// Some, for blocks that are read again.
    Some,
    /// So much that blocks that are read once may have it, too.
    Ample,
}

/// Why a block that missed is not admitted.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum Refusal {
    /// It belongs to a long stream.
    Sequential,
    /// It was not read before, as far as the ghosts go back, and there is no ample room.
    Once,
    /// The bytes of the day are spent.
    Budget,
    /// The caller has no room now.
    NoRoom,
}

/// Decides about the misses of one cache.
#[derive(Clone, Debug)]
pub struct ReadAdmission {
    ghosts: Ghosts,
    streams: Streams,
    budget: DailyBudget,
    /// The blocks that missed last, and where the next one goes (PO-RD2).
    last: [u64; APART],
    at: usize,
    block_bytes: u64,
}

impl ReadAdmission {
    /// For a cache of `slots` blocks of `block_bytes`.
    #[must_use]
    pub fn new(slots: u64, block_bytes: u64) -> ReadAdmission {
        ReadAdmission {
            ghosts: Ghosts::new(slots),
            streams: Streams::new(),
            budget: DailyBudget::new(0),
            last: [u64::MAX; APART],
            at: 0,
            block_bytes,
        }
    }

    /// Bytes that may be admitted in 24 hours; 0: no limit.
    pub fn set_budget(&mut self, bytes: u64) {
        self.budget.set_limit(bytes);
    }

    /// `opener` reads `blocks`: how many bytes the stream has that they go on with, with them.
    pub fn bytes_of_stream(&mut self, opener: u32, blocks: &Range<u64>) -> u64 {
        self.streams.run_of(opener, blocks).saturating_mul(self.block_bytes)
    }

    /// Whether the block is admitted at its next miss, if there is room and budget; or if
    /// `is_ample` says that there is ample room.
    #[must_use]
    pub fn is_wanted(&self, block: u64, is_ample: impl FnOnce() -> bool) -> bool {
        !self.last.contains(&block) && (self.ghosts.contains(block) || is_ample())
    }

    /// A block has missed that is not of a long stream.
    ///
    /// # Errors
    /// Why it is not to be admitted.
    pub fn miss(&mut self, block: u64, now_ns: u64, room: Room) -> Result<(), Refusal> {
        if self.last.contains(&block) {
            return Err(Refusal::Once);
        }
        self.last[self.at] = block;
        self.at = (self.at + 1) % APART;
        let enters_once = room == Room::Ample && self.budget.has_half(now_ns);
        if !self.ghosts.contains(block) && !enters_once {
            self.ghosts.put(block);
            return Err(Refusal::Once);
        }
        if room == Room::None {
            return Err(Refusal::NoRoom);
        }
        if !self.budget.spend(self.block_bytes, now_ns) {
            return Err(Refusal::Budget);
        }
        Ok(())
    }

    /// The block was admitted: its next miss is a first one.
    pub fn admitted(&mut self, block: u64) {
        self.ghosts.remove(block);
    }
}

/// How often the block in each slot was used since the order of eviction has passed it: up to three
/// times.
#[derive(Clone, Debug)]
pub struct UseCounts {
    words: Vec<u64>,
}

impl UseCounts {
    /// Bytes of the counts of `slots` slots.
    #[must_use]
    pub fn bytes(slots: u32) -> u64 {
        8 * u64::from(slots.div_ceil(COUNTS))
    }

    /// All 0.
    #[must_use]
    pub fn new(slots: u32) -> UseCounts {
        UseCounts { words: vec![0; slots.div_ceil(COUNTS) as usize] }
    }

    fn at(slot: u32) -> (usize, u32) {
        ((slot / COUNTS) as usize, 2 * (slot % COUNTS))
    }

    /// The block in `slot` was used.
    pub fn count(&mut self, slot: u32) {
        let (word, shift) = UseCounts::at(slot);
        let word = &mut self.words[word];
        if (*word >> shift) & USES_MAX < USES_MAX {
            *word += 1 << shift;
        }
    }

    /// `slot` has another block.
    pub fn clear(&mut self, slot: u32) {
        let (word, shift) = UseCounts::at(slot);
        self.words[word] &= !(USES_MAX << shift);
    }

    /// The order of eviction passes `slot`: takes off one use. Returns whether there was one.
    pub fn pass(&mut self, slot: u32) -> bool {
        let (word, shift) = UseCounts::at(slot);
        let word = &mut self.words[word];
        let was_used = (*word >> shift) & USES_MAX > 0;
        if was_used {
            *word -= 1 << shift;
        }
        was_used
    }
}

#[cfg(test)]
#[path = "read_admission_tests.rs"]
mod tests;
