// SPDX-License-Identifier: Apache-2.0 OR MIT
//! The superblock of a part's region: which part it belongs to, which checkpoint counts, and where
//! the chain of units continues. It has four copies; `quorum` elects the one that counts.
//!
//! Invariants
//! - FM-ZS1 A copy carries its own number: a copy written to another copy's place is refused.

use zerocopy::little_endian::{U16, U32, U64};
use zerocopy::{FromBytes, Immutable, IntoBytes, KnownLayout, Unaligned};

use super::geometry::{Geometry, REGION_BLOCKS_MAX};
use super::unit::UNIT_BLOCKS_MAX;
use crate::quorum::{Generation, SUPERBLOCK_COPIES};
use crate::{Damage, UNIT, check_unit, is_blank, seal};

pub(crate) const MAGIC: [u8; 8] = *b"MPZRSUPR";
const VERSION: u16 = 1;
/// Parts that a device has at most.
pub const PARTS_MAX: u16 = 64;
/// Most slots of a device: 2^31 per part, so that counts of its bytes and sectors do not overflow.
const SLOTS_MAX: u64 = (PARTS_MAX as u64) << 31;
/// Algorithms that a device has at most.
pub const CODECS: usize = 4;

/// The decompression of the pages of one priority.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq)]
pub struct CodecId {
    /// The algorithm, 0 if there is none.
    pub algorithm: u8,
    /// A parameter of the algorithm, 0 if it has none.
    pub parameter: u8,
    /// Checksum of the dictionary, 0 when there is none.
    pub dictionary: u32,
}

/// The newest complete checkpoint.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq)]
pub struct Checkpoint {
    /// Checkpoint area, 0 or 1.
    pub area: u8,
    /// Units written; 0 means that no slot has a page.
    pub units: u32,
    /// In each of its units.
    pub id: u64,
}

/// The place of the first unit after the checkpoint.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq)]
pub struct ChainStart {
    /// Its block, 0 if no place is known yet: then there is none.
    pub next: u32,
    /// End of the run of blocks that contains `next`, exclusive.
    pub next_end: u32,
    /// Its sequence number.
    pub sequence: u64,
    /// The value of its `link`: the checksum of the previous unit's header, or a start value.
    pub link: u32,
}

impl ChainStart {
    pub(super) fn is_place(next: u32, next_end: u32) -> bool {
        match next {
            0 => next_end == 0,
            _ => next < next_end && next_end - next <= UNIT_BLOCKS_MAX,
        }
    }
}

/// A superblock.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct Superblock {
    /// Identity of the device, drawn when it is formatted; in everything but objects.
    pub uuid: [u8; 16],
    /// Counts superblock writes.
    pub generation: u64,
    /// The part of this region.
    pub part: u16,
    /// Parts of the device.
    pub parts: u16,
    /// Slots of the whole device.
    pub slots: u64,
    /// Blocks of this region and of every other of the device.
    pub region_blocks: u32,
    /// Units of one checkpoint area.
    pub map_units: u32,
    /// Counts openings. Units of other openings do not belong to this chain.
    pub incarnation: u32,
    /// What decompresses the pages, by priority.
    pub codecs: [CodecId; CODECS],
    /// The newest complete checkpoint.
    pub checkpoint: Checkpoint,
    /// Where the units after it begin.
    pub chain: ChainStart,
}

#[derive(FromBytes, IntoBytes, KnownLayout, Immutable, Unaligned, Clone, Copy)]
#[repr(C)]
struct CodecMedia {
    algorithm: u8,
    parameter: u8,
    reserved: U16,
    dictionary: U32,
}

/// The bytes of a superblock. Offsets are in `docs/format/zram.md`.
#[derive(FromBytes, IntoBytes, KnownLayout, Immutable, Unaligned)]
#[repr(C)]
struct SuperblockMedia {
    magic: [u8; 8],
    version: U16,
    copy: u8,
    reserved0: u8,
    crc: U32,
    uuid: [u8; 16],
    generation: U64,
    slots: U64,
    region_blocks: U32,
    map_units: U32,
    part: U16,
    parts: U16,
    incarnation: U32,
    codecs: [CodecMedia; CODECS],
    checkpoint_id: U64,
    checkpoint_units: U32,
    checkpoint_area: u8,
    reserved1: [u8; 3],
    chain_sequence: U64,
    chain_next: U32,
    chain_next_end: U32,
    chain_link: U32,
    reserved2: [u8; 3964],
}

const _: () = assert!(size_of::<SuperblockMedia>() == UNIT);

impl Superblock {
    /// Makes the unit of `copy` in `out`, which is one unit long.
    ///
    /// # Panics
    /// If a field has a value that `decode` would refuse, or `out` is not one unit.
    pub fn encode(&self, copy: u8, out: &mut [u8]) {
        assert!(copy < SUPERBLOCK_COPIES);
        assert_eq!(self.wrong_field(), None, "superblock would be refused on read"); // FM-ZF2
        let media = SuperblockMedia {
            magic: MAGIC,
            version: U16::new(VERSION),
            copy,
            reserved0: 0,
            crc: U32::ZERO,
            uuid: self.uuid,
            generation: U64::new(self.generation),
            slots: U64::new(self.slots),
            region_blocks: U32::new(self.region_blocks),
            map_units: U32::new(self.map_units),
            part: U16::new(self.part),
            parts: U16::new(self.parts),
            incarnation: U32::new(self.incarnation),
            codecs: self.codecs.map(|codec| CodecMedia {
                algorithm: codec.algorithm,
                parameter: codec.parameter,
                reserved: U16::ZERO,
                dictionary: U32::new(codec.dictionary),
            }),
            checkpoint_id: U64::new(self.checkpoint.id),
            checkpoint_units: U32::new(self.checkpoint.units),
            checkpoint_area: self.checkpoint.area,
            reserved1: [0; 3],
            chain_sequence: U64::new(self.chain.sequence),
            chain_next: U32::new(self.chain.next),
            chain_next_end: U32::new(self.chain.next_end),
            chain_link: U32::new(self.chain.link),
            reserved2: [0; 3964],
        };
        let out: &mut [u8; UNIT] = out.try_into().expect("the caller gives one unit");
        out.copy_from_slice(media.as_bytes());
        seal(out);
    }

    /// Reads the unit found in the place of `copy`.
    ///
    /// # Errors
    /// [`Damage`] names the reason why it is no superblock of this copy.
    pub fn decode(copy: u8, unit: &[u8]) -> Result<Superblock, Damage> {
        let (unit, _) = check_unit(unit, &MAGIC, VERSION..=VERSION)?;
        let media = SuperblockMedia::ref_from_bytes(unit)
            .map_err(|_| Damage::Length { found_bytes: UNIT })?;
        if media.copy != copy {
            return Err(Damage::WrongCopy { found: media.copy, wanted: copy }); // FM-ZS1
        }
        let codecs_are_plain = media.codecs.iter().all(|codec| codec.reserved == U16::ZERO);
        let reserved = [&media.reserved1[..], &media.reserved2];
        let is_plain = media.reserved0 == 0 && reserved.into_iter().all(is_blank);
        if !is_plain || !codecs_are_plain {
            return Err(Damage::Field("reserved"));
        }
        let superblock = Superblock {
            uuid: media.uuid,
            generation: media.generation.get(),
            part: media.part.get(),
            parts: media.parts.get(),
            slots: media.slots.get(),
            region_blocks: media.region_blocks.get(),
            map_units: media.map_units.get(),
            incarnation: media.incarnation.get(),
            codecs: media.codecs.map(|codec| CodecId {
                algorithm: codec.algorithm,
                parameter: codec.parameter,
                dictionary: codec.dictionary.get(),
            }),
            checkpoint: Checkpoint {
                area: media.checkpoint_area,
                units: media.checkpoint_units.get(),
                id: media.checkpoint_id.get(),
            },
            chain: ChainStart {
                next: media.chain_next.get(),
                next_end: media.chain_next_end.get(),
                sequence: media.chain_sequence.get(),
                link: media.chain_link.get(),
            },
        };
        match superblock.wrong_field() {
            None => Ok(superblock),
            Some(name) => Err(Damage::Field(name)),
        }
    }

    /// The layout of the region.
    #[must_use]
    pub fn geometry(&self) -> Geometry {
        Geometry { region_blocks: self.region_blocks, map_units: self.map_units }
    }

    /// The first field whose value no writer makes.
    fn wrong_field(&self) -> Option<&'static str> {
        if !(1..=PARTS_MAX).contains(&self.parts) {
            return Some("parts");
        }
        if self.part >= self.parts {
            return Some("part");
        }
        if !(1..=SLOTS_MAX).contains(&self.slots) {
            return Some("slots");
        }
        if self.chain.sequence == 0 {
            return Some("chain_sequence");
        }
        if self.region_blocks > REGION_BLOCKS_MAX {
            return Some("region_blocks");
        }
        let geometry = self.geometry();
        if self.map_units == 0 || geometry.blocks_least() > u64::from(self.region_blocks) {
            return Some("map_units");
        }
        if self.checkpoint.area >= 2 {
            return Some("checkpoint_area");
        }
        if self.checkpoint.units > self.map_units {
            return Some("checkpoint_units");
        }
        let ChainStart { next, next_end, .. } = self.chain;
        let is_data = next == 0 || geometry.data().contains(&next);
        if !ChainStart::is_place(next, next_end) || !is_data || next_end > self.region_blocks {
            return Some("chain_next");
        }
        None
    }
}

impl Generation for Superblock {
    fn generation(&self) -> u64 {
        self.generation
    }
}

#[cfg(test)]
#[path = "superblock_tests.rs"]
mod tests;
