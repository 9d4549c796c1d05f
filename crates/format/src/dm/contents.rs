// SPDX-License-Identifier: Apache-2.0 OR MIT
//! The contents of a cache, from all of its entries. For tools and tests; an engine with millions
//! of blocks has a map of its own.

use std::collections::BTreeMap;

use super::{Entry, EntryState, Refusal, Superblock};

/// Where the data of a sector lie.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct LiveBlock {
    /// Number of the entry, and of the block.
    pub index: u64,
    /// Its sequence number.
    pub seq: u64,
}

/// The entries of one cache, added in order.
#[derive(Clone, Debug)]
pub struct CacheContents {
    seq_count: u64,
    block_sectors: u64,
    next: u64,
    /// The block of each cached sector (the first of its origin block).
    pub live: BTreeMap<u64, LiveBlock>,
    /// Entries to erase because no commit made them valid.
    pub leftovers: Vec<u64>,
    /// Entries to erase because a newer one of the same sector is committed.
    pub superseded: Vec<u64>,
}

impl CacheContents {
    /// Nothing yet, of a cache with this header.
    #[must_use]
    pub fn new(superblock: &Superblock) -> CacheContents {
        CacheContents {
            seq_count: superblock.seq_count,
            block_sectors: u64::from(superblock.block_size / 512),
            next: 0,
            live: BTreeMap::new(),
            leftovers: Vec::new(),
            superseded: Vec::new(),
        }
    }

    /// Entries seen so far.
    #[must_use]
    pub fn seen(&self) -> u64 {
        self.next
    }

    /// Adds the next entry.
    ///
    /// # Errors
    /// [`Refusal::Unaligned`], or [`Refusal::Identical`] (FM-K3). The entry counts as read; a tool
    /// may report it and continue.
    pub fn add(&mut self, entry: Entry) -> Result<(), Refusal> {
        let (index, sector, seq) = (self.next, entry.original_sector, entry.seq_count);
        self.next += 1;
        match entry.state(self.seq_count) {
            EntryState::Free => return Ok(()),
            EntryState::Leftover => {
                self.leftovers.push(index);
                return Ok(());
            }
            EntryState::Committed => {}
        }
        if !sector.is_multiple_of(self.block_sectors) {
            return Err(Refusal::Unaligned { index, sector });
        }
        let new = LiveBlock { index, seq };
        match self.live.get_mut(&sector) {
            Some(old) if old.seq == seq => return Err(Refusal::Identical { index, sector, seq }),
            Some(old) if old.seq > seq => self.superseded.push(index),
            Some(old) => {
                self.superseded.push(old.index);
                *old = new;
            }
            None => {
                self.live.insert(sector, new);
            }
        }
        Ok(())
    }
}
