// SPDX-License-Identifier: Apache-2.0 OR MIT
//! The cache format of the kernel's dm-writecache, version 1: encode, decode, byte map.
//!
//! ```text
//! 0       64                         64 + 16 n, rounded up to a block
//! │header │ entry 0 │ entry 1 │ ...  │ block 0 │ block 1 │ ...  │ block n-1 │
//! ```
//!
//! Entry `i` names the origin sectors in block `i`, and the sequence number of their commit: below
//! the header's number the entry is committed, at or above it its commit never ended, and all ones
//! is a free block. There are no checksums. The byte map is `docs/format/writecache-dm.md`; the
//! code and that page change together.
//!
//! Invariants
//! - FM-K1 A decoder never panics, whatever the bytes; it returns a [`Refusal`] in the kernel's
//!   words.
//! - FM-K2 A decoder returns what its encoder has written.
//! - FM-K3 Of two committed entries of one sector, the one with the larger sequence number counts;
//!   two with equal numbers are damage.

mod contents;
mod entry;
mod geometry;
mod superblock;

use std::fmt;

pub use contents::{CacheContents, LiveBlock};
pub use entry::{ENTRY_BYTES, Entry, EntryState, entries};
pub use geometry::{BLOCKS_MAX, Geometry};
pub use superblock::{
    HEADER_BYTES, MAGIC, SEQ_COUNT_FOUND_MAX, Superblock, VERSION, has_magic, is_unformatted,
};

/// Why an area is refused. The caller adds the device. The texts begin as the kernel's do.
#[derive(Clone, Debug, PartialEq, Eq)]
pub enum Refusal {
    /// Fewer bytes than a header.
    Length {
        /// Bytes that were given.
        found_bytes: usize,
    },
    /// The first word is not the magic number.
    Magic {
        /// What it is.
        found: u32,
    },
    /// Another version than 1.
    Version {
        /// Version on the media.
        found: u32,
    },
    /// The table has another block size.
    BlockSize {
        /// Block size on the media.
        found: u32,
        /// Block size that was asked for.
        wanted: u32,
    },
    /// A block size that no version of the format has.
    BlockSizeRange {
        /// Block size.
        found: u32,
    },
    /// The number of blocks makes sizes that no number holds, or more than an entry can count.
    Overflow {
        /// Blocks on the media.
        n_blocks: u64,
    },
    /// The area ends before the last block.
    TooSmall {
        /// Bytes that there are.
        area_bytes: u64,
        /// Bytes that are needed.
        needed_bytes: u64,
    },
    /// A header with a number of blocks of 0.
    NoBlocks,
    /// A sequence number that no cache reaches: rot.
    SeqCount {
        /// Number on the media.
        found: u64,
    },
    /// Two committed entries of one sector carry the same sequence number.
    Identical {
        /// Number of the second entry.
        index: u64,
        /// The sector of both.
        sector: u64,
        /// The sequence number of both.
        seq: u64,
    },
    /// A committed entry of a sector where no block begins.
    Unaligned {
        /// Number of the entry.
        index: u64,
        /// Its sector.
        sector: u64,
    },
}

impl fmt::Display for Refusal {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        match self {
            Refusal::Length { found_bytes } => write!(
                f,
                "Invalid magic in the superblock: {found_bytes} bytes are no header, which has \
                 {HEADER_BYTES}"
            ),
            Refusal::Magic { found } => {
                write!(f, "Invalid magic in the superblock: {found:#010x} instead of {MAGIC:#010x}")
            }
            Refusal::Version { found } => {
                write!(
                    f,
                    "Invalid version in the superblock: {found}, this program reads {VERSION}"
                )
            }
            Refusal::BlockSize { found, wanted } => write!(
                f,
                "Block size does not match superblock: the cache has {found}, the table says \
                 {wanted}"
            ),
            Refusal::BlockSizeRange { found } => {
                write!(f, "Invalid block size {found}: a power of two from 512 to 4096 is allowed")
            }
            Refusal::Overflow { n_blocks } => {
                write!(f, "Overflow in size calculation: {n_blocks} blocks")
            }
            Refusal::TooSmall { area_bytes, needed_bytes } => write!(
                f,
                "Memory area is too small: {area_bytes} bytes, the cache needs {needed_bytes}"
            ),
            Refusal::NoBlocks => write!(f, "Invalid device size: the superblock says 0 blocks"),
            Refusal::SeqCount { found } => {
                write!(
                    f,
                    "impossible sequence number in the superblock: seq_count is {found}, at most \
                     {SEQ_COUNT_FOUND_MAX} is allowed"
                )
            }
            Refusal::Identical { index, sector, seq } => write!(
                f,
                "two identical entries, position {index}, sector {sector}, sequence {seq}"
            ),
            Refusal::Unaligned { index, sector } => {
                write!(f, "entry {index} is of sector {sector}, where no block begins")
            }
        }
    }
}

impl std::error::Error for Refusal {}

#[cfg(test)]
mod tests;
