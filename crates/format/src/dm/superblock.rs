// SPDX-License-Identifier: Apache-2.0 OR MIT
//! The header: the geometry of the cache, and the number of commits that have ended.

use zerocopy::little_endian::{U32, U64};
use zerocopy::{FromBytes, Immutable, IntoBytes, KnownLayout, Unaligned};

use super::{Geometry, Refusal};

/// First word of a formatted area.
pub const MAGIC: u32 = 0x2348_9321;
/// The only version there is.
pub const VERSION: u32 = 1;
/// Bytes of the header; the entries follow at once.
pub const HEADER_BYTES: usize = 64;

/// The counter stays below half of its range.
const SEQ_COUNT_MAX: u64 = u64::MAX / 2;
/// Most commits of a cache that is opened: as many remain. A cache that commits every microsecond
/// reaches this after 140,000 years.
pub const SEQ_COUNT_FOUND_MAX: u64 = SEQ_COUNT_MAX / 2;

/// The header.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct Superblock {
    /// Bytes in a block.
    pub block_size: u32,
    /// Blocks, and entries.
    pub n_blocks: u64,
    /// Commits that have ended: an entry with a smaller number is committed.
    pub seq_count: u64,
}

/// The bytes of a header. Offsets are in `docs/format/writecache-dm.md`.
#[derive(FromBytes, IntoBytes, KnownLayout, Immutable, Unaligned)]
#[repr(C)]
struct SuperblockMedia {
    magic: U32,
    version: U32,
    block_size: U32,
    padding0: U32,
    n_blocks: U64,
    seq_count: U64,
    padding1: [u8; 32],
}

const _: () = assert!(size_of::<SuperblockMedia>() == HEADER_BYTES);

/// Whether an area that begins with these bytes is marked as of this format.
#[must_use]
pub fn has_magic(bytes: &[u8]) -> bool {
    bytes.starts_with(&MAGIC.to_le_bytes())
}

/// Whether the kernel would format an area that begins with these bytes: no magic, no version.
#[must_use]
pub fn is_unformatted(bytes: &[u8]) -> bool {
    bytes.starts_with(&[0; 8])
}

impl Superblock {
    /// Makes the header in `out`, which is [`HEADER_BYTES`] long.
    ///
    /// # Panics
    /// If a field has a value that `decode` would refuse, or `out` has another length.
    pub fn encode(&self, out: &mut [u8]) {
        assert_eq!(self.refusal(), None, "superblock would be refused on read"); // FM-K2
        let media = SuperblockMedia {
            magic: U32::new(MAGIC),
            version: U32::new(VERSION),
            block_size: U32::new(self.block_size),
            padding0: U32::ZERO,
            n_blocks: U64::new(self.n_blocks),
            seq_count: U64::new(self.seq_count),
            padding1: [0; 32],
        };
        out.copy_from_slice(media.as_bytes());
    }

    /// Reads the header at the start of `bytes`. The padding is not looked at, as in the kernel.
    ///
    /// # Errors
    /// What is wrong with it, in the order in which the kernel looks.
    pub fn decode(bytes: &[u8]) -> Result<Superblock, Refusal> {
        let (media, _) = SuperblockMedia::read_from_prefix(bytes)
            .map_err(|_| Refusal::Length { found_bytes: bytes.len() })?;
        if media.magic.get() != MAGIC {
            return Err(Refusal::Magic { found: media.magic.get() });
        }
        if media.version.get() != VERSION {
            return Err(Refusal::Version { found: media.version.get() });
        }
        let superblock = Superblock {
            block_size: media.block_size.get(),
            n_blocks: media.n_blocks.get(),
            seq_count: media.seq_count.get(),
        };
        match superblock.refusal() {
            None => Ok(superblock),
            Some(refusal) => Err(refusal),
        }
    }

    fn refusal(&self) -> Option<Refusal> {
        let odd = || Refusal::SeqCount { found: self.seq_count };
        let layout = Geometry::of(self.block_size, self.n_blocks).err();
        layout.or_else(|| (self.seq_count > SEQ_COUNT_MAX).then(odd))
    }

    /// The layout of the area.
    #[must_use]
    pub fn geometry(&self) -> Geometry {
        Geometry::of(self.block_size, self.n_blocks).expect("checked by decode")
    }

    /// The layout of an area of `area_bytes` that is opened with `block_size`.
    ///
    /// # Errors
    /// [`Refusal::BlockSize`], [`Refusal::TooSmall`] or [`Refusal::SeqCount`].
    pub fn fit(&self, block_size: u32, area_bytes: u64) -> Result<Geometry, Refusal> {
        if self.block_size != block_size {
            return Err(Refusal::BlockSize { found: self.block_size, wanted: block_size });
        }
        let geometry = self.geometry();
        let needed_bytes = geometry.end_bytes();
        if needed_bytes > area_bytes {
            return Err(Refusal::TooSmall { area_bytes, needed_bytes });
        }
        if self.seq_count > SEQ_COUNT_FOUND_MAX {
            return Err(Refusal::SeqCount { found: self.seq_count });
        }
        Ok(geometry)
    }
}
