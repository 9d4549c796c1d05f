// SPDX-License-Identifier: Apache-2.0 OR MIT
//! The layout of an area in the kernel's format.

use super::{ENTRY_BYTES, HEADER_BYTES, Refusal};
use crate::geometry::{BLOCK_SIZE_SERVED_MAX, is_block_size};

/// Most blocks: an entry's number has 47 bits in the kernel.
pub const BLOCKS_MAX: u64 = 1 << 47;

/// The layout of one area; it follows from two numbers in the superblock.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct Geometry {
    block_size: u32,
    n_blocks: u64,
}

impl Geometry {
    /// The layout that a new cache gets: the most blocks whose entries and data fit.
    ///
    /// # Errors
    /// [`Refusal::BlockSizeRange`], or [`Refusal::TooSmall`] if not one block fits.
    pub fn compute(area_bytes: u64, block_size: u32) -> Result<Geometry, Refusal> {
        let one = Geometry::of(block_size, 1)?;
        // Upper bound: each block needs its entry. The header and the rounding reduce it by a few:
        // the loop runs at most four times for blocks of 512 bytes, else at most twice.
        let share = u64::from(block_size) + ENTRY_BYTES as u64;
        let mut n_blocks = (area_bytes / share).min(BLOCKS_MAX);
        while n_blocks > 0 {
            let geometry = Geometry::of(block_size, n_blocks)?;
            if geometry.end_bytes() <= area_bytes {
                return Ok(geometry);
            }
            n_blocks -= 1;
        }
        Err(Refusal::TooSmall { area_bytes, needed_bytes: one.end_bytes() })
    }

    /// The layout of a cache with these numbers.
    ///
    /// # Errors
    /// [`Refusal::BlockSizeRange`], [`Refusal::NoBlocks`] or [`Refusal::Overflow`].
    pub fn of(block_size: u32, n_blocks: u64) -> Result<Geometry, Refusal> {
        if !is_block_size(block_size, BLOCK_SIZE_SERVED_MAX) {
            return Err(Refusal::BlockSizeRange { found: block_size });
        }
        match n_blocks {
            0 => Err(Refusal::NoBlocks),
            // 2^47 blocks of 4096 bytes and their entries: below 2^60, so nothing overflows.
            1..=BLOCKS_MAX => Ok(Geometry { block_size, n_blocks }),
            _ => Err(Refusal::Overflow { n_blocks }),
        }
    }

    /// Bytes in a block.
    #[must_use]
    pub fn block_size(&self) -> u32 {
        self.block_size
    }

    /// Blocks, and entries.
    #[must_use]
    pub fn n_blocks(&self) -> u64 {
        self.n_blocks
    }

    /// Byte offset of entry `index`. An entry never crosses a sector.
    #[must_use]
    pub fn entry_offset(&self, index: u64) -> u64 {
        debug_assert!(index < self.n_blocks, "entry {index} of {}", self.n_blocks);
        HEADER_BYTES as u64 + index * ENTRY_BYTES as u64
    }

    /// First byte after the last entry.
    #[must_use]
    pub fn entries_end(&self) -> u64 {
        HEADER_BYTES as u64 + self.n_blocks * ENTRY_BYTES as u64
    }

    /// Byte offset of block 0: header and entries take up to here.
    #[must_use]
    pub fn data_offset(&self) -> u64 {
        self.entries_end().next_multiple_of(u64::from(self.block_size))
    }

    /// Byte offset of block `index`.
    #[must_use]
    pub fn block_offset(&self, index: u64) -> u64 {
        debug_assert!(index < self.n_blocks, "block {index} of {}", self.n_blocks);
        self.data_offset() + index * u64::from(self.block_size)
    }

    /// First byte after the last block: what the area must have.
    #[must_use]
    pub fn end_bytes(&self) -> u64 {
        self.data_offset() + self.n_blocks * u64::from(self.block_size)
    }
}
