// SPDX-License-Identifier: Apache-2.0 OR MIT
//! Entries: what each block of the cache holds.

use zerocopy::little_endian::U64;
use zerocopy::{FromBytes, Immutable, IntoBytes, KnownLayout, Unaligned};

/// Bytes of an entry.
pub const ENTRY_BYTES: usize = 16;

/// What a block of the cache holds.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct Entry {
    /// First sector of the origin's block, in units of 512 bytes.
    pub original_sector: u64,
    /// The commit that made it valid.
    pub seq_count: u64,
}

/// The state of an entry, given the header's sequence number.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum EntryState {
    /// The block is free.
    Free,
    /// Of a commit that never ended, or half erased: the block is free after the entry was erased.
    /// Without that the next commit would make it valid.
    Leftover,
    /// The block holds these sectors.
    Committed,
}

#[derive(FromBytes, IntoBytes, KnownLayout, Immutable, Unaligned)]
#[repr(C)]
struct EntryMedia {
    original_sector: U64,
    seq_count: U64,
}

const _: () = assert!(size_of::<EntryMedia>() == ENTRY_BYTES);

impl Entry {
    /// The entry of a free block. The kernel erases by the sequence number alone, and formats with
    /// both all ones.
    pub const FREE: Entry = Entry { original_sector: u64::MAX, seq_count: u64::MAX };

    /// The bytes of the entry.
    #[must_use]
    pub fn encode(&self) -> [u8; ENTRY_BYTES] {
        let media = EntryMedia {
            original_sector: U64::new(self.original_sector),
            seq_count: U64::new(self.seq_count),
        };
        media.as_bytes().try_into().expect("16 bytes")
    }

    /// Reads an entry.
    #[must_use]
    pub fn decode(bytes: &[u8; ENTRY_BYTES]) -> Entry {
        let media = EntryMedia::read_from_bytes(bytes).expect("16 bytes");
        Entry { original_sector: media.original_sector.get(), seq_count: media.seq_count.get() }
    }

    /// The state of the entry if the header has `seq_count`.
    ///
    /// On persistent memory an entry may be half erased, its sector first: no block begins at that
    /// sector, so it counts as erased.
    #[must_use]
    pub fn state(&self, seq_count: u64) -> EntryState {
        if self.seq_count == u64::MAX {
            EntryState::Free
        } else if self.seq_count >= seq_count || self.original_sector == u64::MAX {
            EntryState::Leftover
        } else {
            EntryState::Committed
        }
    }
}

/// The entries in `bytes`, which begin with one; a part of an entry at the end is left out.
pub fn entries(bytes: &[u8]) -> impl Iterator<Item = Entry> {
    bytes.as_chunks::<ENTRY_BYTES>().0.iter().map(Entry::decode)
}
