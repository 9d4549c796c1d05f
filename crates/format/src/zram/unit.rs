// SPDX-License-Identifier: Apache-2.0 OR MIT
//! Units of the chain: a header with the place of the next unit, then objects.
//!
//! ```text
//! 0       8     10      12    16     32         40        48
//! │ magic │ ver │ part │ crc │ uuid │ sequence │ durable │
//! 48     52         56     60         64       68     72         80
//! │ next │ next_end │ link │ body_crc │ blocks │ incarnation │ reserved │ objects …
//! ```
//!
//! `crc` covers the header, and `body_crc` in it covers the rest: so a header is valid even if the
//! objects behind it are torn.
//!
//! Invariants
//! - FM-U1 `link` is the `crc` of the previous unit: a chain has only one history.
//! - FM-U2 A unit never states that it is durable itself: `durable < sequence`, so the first
//!   sequence is 1.
//! - FM-U3 The place of the next unit is determined before this one is written.

use zerocopy::little_endian::{U16, U32, U64};
use zerocopy::{FromBytes, Immutable, IntoBytes, KnownLayout, Unaligned};

use super::superblock::ChainStart;
use crate::{Damage, UNIT, checksum, is_blank};

/// Bytes of a unit's header.
pub const UNIT_HEADER: usize = 80;
/// Blocks of a unit, and of a run that units are laid in, at most.
pub const UNIT_BLOCKS_MAX: u32 = 256;

const MAGIC: [u8; 8] = *b"MPZRUNIT";
const VERSION: u16 = 1;
const CRC: std::ops::Range<usize> = 12..16;

/// The header of a unit.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct UnitHeader {
    /// Identity of the device.
    pub uuid: [u8; 16],
    /// The part that it belongs to.
    pub part: u16,
    /// Number of the opening in which it was written.
    pub incarnation: u32,
    /// Counts units, from 1.
    pub sequence: u64,
    /// Every unit up to this one is durable.
    pub durable: u64,
    /// First block of the next unit, 0 if no place was free: then the chain continues only after a
    /// checkpoint.
    pub next: u32,
    /// Behind the last block of the run that `next` lies in.
    pub next_end: u32,
    /// Checksum of the header of the unit before.
    pub link: u32,
    /// Blocks of this unit.
    pub blocks: u32,
}

/// A unit's header with a good checksum and valid values.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct StoredUnit {
    /// Its header.
    pub header: UnitHeader,
    /// Its checksum: the `link` of the next unit.
    pub crc: u32,
    body_crc: u32,
}

#[derive(FromBytes, IntoBytes, KnownLayout, Immutable, Unaligned)]
#[repr(C)]
struct HeaderMedia {
    magic: [u8; 8],
    version: U16,
    part: U16,
    crc: U32,
    uuid: [u8; 16],
    sequence: U64,
    durable: U64,
    next: U32,
    next_end: U32,
    link: U32,
    body_crc: U32,
    blocks: U32,
    incarnation: U32,
    reserved: [u8; 8],
}

const _: () = assert!(size_of::<HeaderMedia>() == UNIT_HEADER);

/// CRC-32C of the header with its checksum field taken as zero.
fn header_checksum(header: &[u8]) -> u32 {
    crate::checksum_without(&header[..UNIT_HEADER], CRC)
}

impl UnitHeader {
    fn wrong_field(&self) -> Option<&'static str> {
        if self.durable >= self.sequence {
            return Some("durable"); // FM-U2
        }
        if !(1..=UNIT_BLOCKS_MAX).contains(&self.blocks) {
            return Some("blocks");
        }
        (!ChainStart::is_place(self.next, self.next_end)).then_some("next")
    }

    /// Puts the header before the objects that lie in `unit`, all its blocks; returns the header's
    /// checksum, the `link` of the next unit.
    ///
    /// # Panics
    /// If a field has a value that [`decode_unit`] would refuse, or `unit` has another length.
    pub fn seal(&self, unit: &mut [u8]) -> u32 {
        assert_eq!(unit.len(), self.blocks as usize * UNIT, "length of a unit");
        assert_eq!(self.wrong_field(), None, "{self:?} would be refused"); // FM-ZF2
        let media = HeaderMedia {
            magic: MAGIC,
            version: U16::new(VERSION),
            part: U16::new(self.part),
            crc: U32::ZERO,
            uuid: self.uuid,
            sequence: U64::new(self.sequence),
            durable: U64::new(self.durable),
            next: U32::new(self.next),
            next_end: U32::new(self.next_end),
            link: U32::new(self.link),
            body_crc: U32::new(checksum(&unit[UNIT_HEADER..])),
            blocks: U32::new(self.blocks),
            incarnation: U32::new(self.incarnation),
            reserved: [0; 8],
        };
        unit[..UNIT_HEADER].copy_from_slice(media.as_bytes());
        let crc = header_checksum(unit);
        unit[CRC].copy_from_slice(&crc.to_le_bytes());
        crc
    }
}

/// Reads the header of a unit of the device `uuid` from the first bytes of `unit`. The caller
/// checks that part, incarnation, sequence and link are those that belong in this place, blocks
/// against its geometry, and the objects by [`StoredUnit::is_whole`].
///
/// # Errors
/// [`Damage`] names the reason why it is none.
pub fn decode_unit(unit: &[u8], uuid: &[u8; 16]) -> Result<StoredUnit, Damage> {
    let (media, _) = HeaderMedia::ref_from_prefix(unit)
        .map_err(|_| Damage::Length { found_bytes: unit.len() })?;
    if media.magic != MAGIC {
        return Err(Damage::Magic);
    }
    let crc = header_checksum(unit);
    if media.crc.get() != crc {
        return Err(Damage::Checksum);
    }
    if media.version.get() != VERSION {
        return Err(Damage::Version { found: media.version.get(), known: VERSION });
    }
    if media.uuid != *uuid {
        return Err(Damage::WrongCache { found: media.uuid });
    }
    if !is_blank(&media.reserved) {
        return Err(Damage::Field("reserved"));
    }
    let header = UnitHeader {
        uuid: media.uuid,
        part: media.part.get(),
        incarnation: media.incarnation.get(),
        sequence: media.sequence.get(),
        durable: media.durable.get(),
        next: media.next.get(),
        next_end: media.next_end.get(),
        link: media.link.get(),
        blocks: media.blocks.get(),
    };
    match header.wrong_field() {
        None => Ok(StoredUnit { header, crc, body_crc: media.body_crc.get() }),
        Some(name) => Err(Damage::Field(name)),
    }
}

impl StoredUnit {
    /// Whether `unit`, all blocks of the unit, is as it was written.
    #[must_use]
    pub fn is_whole(&self, unit: &[u8]) -> bool {
        unit.len() == self.header.blocks as usize * UNIT
            && checksum(&unit[UNIT_HEADER..]) == self.body_crc
    }
}

#[cfg(test)]
#[path = "unit_tests.rs"]
mod tests;
