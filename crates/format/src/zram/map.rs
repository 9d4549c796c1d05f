// SPDX-License-Identifier: Apache-2.0 OR MIT
//! Checkpoint units: the page of each slot, up to 252 slots per unit, in ascending order.
//!
//! ```text
//! 0       8     10     12    16      32    40      44     48      50         64
//! │ magic │ ver │part │ crc │ uuid  │ id  │ index │ link │ count │ reserved │ entries …
//! ```
//!
//! Invariants
//! - FM-M1 `link` is the checksum of the previous unit, 0 in the first: the units of a checkpoint
//!   have only one history.
//! - FM-M2 Slots ascend, so no slot is twice in a unit.

use zerocopy::little_endian::{U16, U32, U64};
use zerocopy::{FromBytes, Immutable, IntoBytes, KnownLayout, Unaligned};

use super::object::{CHECK_MASK, OBJECT_MAX, PRIORITIES};
use crate::{Damage, UNIT, check_unit, is_blank, seal};

/// Entries that one unit holds.
pub const MAP_ENTRIES: usize = 252;

const MAGIC: [u8; 8] = *b"MPZRMAPS";
const VERSION: u16 = 1;
const SAME: u32 = 1 << 13;
const PRIORITY_SHIFT: u32 = 30;

/// The page of a slot.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum Image {
    /// Its object is at `offset` bytes from the start of `block` of the region.
    Page {
        /// Block of the region.
        block: u32,
        /// Below a block's bytes, a multiple of 8.
        offset: u16,
        /// 20 bits of the object's checksum.
        check: u32,
        /// Bytes of the object without its header.
        size: u16,
        /// Algorithm.
        priority: u8,
    },
    /// It repeats one word.
    Same(u64),
}

/// A slot and its page.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct MapEntry {
    /// Slot of the part.
    pub slot: u32,
    /// Where its page is.
    pub image: Image,
}

/// The header of a checkpoint unit.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct MapHeader {
    /// Identity of the device.
    pub uuid: [u8; 16],
    /// Part that it belongs to.
    pub part: u16,
    /// The checkpoint.
    pub id: u64,
    /// Which unit of it, from 0.
    pub index: u32,
    /// Checksum of the unit before, 0 in the first (FM-M1).
    pub link: u32,
}

#[derive(FromBytes, IntoBytes, KnownLayout, Immutable, Unaligned)]
#[repr(C)]
struct HeaderMedia {
    magic: [u8; 8],
    version: U16,
    part: U16,
    crc: U32,
    uuid: [u8; 16],
    id: U64,
    index: U32,
    link: U32,
    count: U16,
    reserved: [u8; 14],
}

#[derive(FromBytes, IntoBytes, KnownLayout, Immutable, Unaligned, Debug)]
#[repr(C)]
struct EntryMedia {
    /// The repeated word, or block << 32 | offset << 20 | check.
    place: U64,
    slot: U32,
    /// Size in the low 13 bits, [`SAME`], priority in the high 2.
    bits: U32,
}

const HEADER_BYTES: usize = size_of::<HeaderMedia>();
const ENTRY_BYTES: usize = size_of::<EntryMedia>();
const _: () = assert!(HEADER_BYTES + MAP_ENTRIES * ENTRY_BYTES == UNIT);
/// Cannot happen after `check_unit`; an error rather than a panic.
const LENGTH: Damage = Damage::Length { found_bytes: UNIT };

fn low32(word: u64) -> u32 {
    u32::try_from(word & u64::from(u32::MAX)).expect("32 bits are left")
}

impl EntryMedia {
    fn encode(entry: &MapEntry) -> EntryMedia {
        let (place, bits) = match entry.image {
            Image::Same(word) => (word, SAME),
            Image::Page { block, offset, check, size, priority } => (
                u64::from(block) << 32 | u64::from(offset) << 20 | u64::from(check),
                u32::from(size) | u32::from(priority) << PRIORITY_SHIFT,
            ),
        };
        EntryMedia { place: U64::new(place), slot: U32::new(entry.slot), bits: U32::new(bits) }
    }

    fn decode(&self) -> MapEntry {
        let (place, bits) = (self.place.get(), self.bits.get());
        let image = if bits & SAME != 0 {
            Image::Same(place)
        } else {
            let size = u16::try_from(bits & (SAME - 1)).expect("13 bits are left");
            let priority = u8::try_from(bits >> PRIORITY_SHIFT).expect("2 bits are left");
            let offset = u16::try_from(place >> 20 & 0xfff).expect("12 bits are left");
            let block = low32(place >> 32);
            Image::Page { block, offset, check: low32(place) & CHECK_MASK, size, priority }
        };
        MapEntry { slot: self.slot.get(), image }
    }
}

impl MapEntry {
    fn wrong_field(&self) -> Option<&'static str> {
        if self.slot == u32::MAX {
            return Some("slot");
        }
        match self.image {
            Image::Same(_) => None,
            Image::Page { block, offset, check, size, priority } => {
                if block == 0 || block == u32::MAX {
                    Some("block")
                } else if offset >= 4096 || offset % 8 != 0 {
                    Some("offset")
                } else if !(1..=OBJECT_MAX).contains(&usize::from(size)) {
                    Some("size")
                } else if priority >= PRIORITIES || check > CHECK_MASK {
                    Some("priority")
                } else {
                    None
                }
            }
        }
    }
}

/// A checkpoint unit with a good checksum and only possible values.
#[derive(Debug)]
pub struct MapUnit<'a> {
    /// Its header.
    pub header: MapHeader,
    /// Its checksum: the `link` of the next.
    pub crc: u32,
    entries: &'a [EntryMedia],
}

impl<'a> MapUnit<'a> {
    /// The entries, their slots ascending.
    pub fn entries(&self) -> impl ExactSizeIterator<Item = MapEntry> + use<'a> {
        self.entries.iter().map(EntryMedia::decode)
    }
}

/// Makes a checkpoint unit in `out`, which is one unit long; returns its checksum, the `link` of
/// the next.
///
/// # Panics
/// If there are more than [`MAP_ENTRIES`] entries, a value that [`decode_map`] would refuse, or
/// `out` is not one unit.
pub fn encode_map(header: &MapHeader, entries: &[MapEntry], out: &mut [u8]) -> u32 {
    assert!(entries.len() <= MAP_ENTRIES, "{} entries in a checkpoint unit", entries.len());
    assert!(entries.is_sorted_by(|a, b| a.slot < b.slot), "FM-M2");
    let media = HeaderMedia {
        magic: MAGIC,
        version: U16::new(VERSION),
        part: U16::new(header.part),
        crc: U32::ZERO,
        uuid: header.uuid,
        id: U64::new(header.id),
        index: U32::new(header.index),
        link: U32::new(header.link),
        count: U16::new(u16::try_from(entries.len()).expect("at most MAP_ENTRIES")),
        reserved: [0; 14],
    };
    let out: &mut [u8; UNIT] = out.try_into().expect("the caller gives one unit");
    let (head, body) = out.split_at_mut(HEADER_BYTES);
    head.copy_from_slice(media.as_bytes());
    let (used, unused) = body.split_at_mut(entries.len() * ENTRY_BYTES);
    for (entry, bytes) in entries.iter().zip(used.chunks_exact_mut(ENTRY_BYTES)) {
        assert_eq!(entry.wrong_field(), None, "{entry:?} would be refused"); // FM-ZF2
        bytes.copy_from_slice(EntryMedia::encode(entry).as_bytes());
    }
    unused.fill(0);
    seal(out)
}

/// Reads a checkpoint unit of the device `uuid`. The caller checks that part, id, index and link
/// are those that belong in this place, and blocks and slots against its geometry.
///
/// # Errors
/// [`Damage`] names the reason why it is none.
pub fn decode_map<'a>(unit: &'a [u8], uuid: &[u8; 16]) -> Result<MapUnit<'a>, Damage> {
    let (unit, crc) = check_unit(unit, &MAGIC, VERSION..=VERSION)?;
    let (head, body) = unit.split_at(HEADER_BYTES);
    let head = HeaderMedia::ref_from_bytes(head).map_err(|_| LENGTH)?;
    if head.uuid != *uuid {
        return Err(Damage::WrongCache { found: head.uuid });
    }
    let count = head.count.get();
    if usize::from(count) > MAP_ENTRIES {
        return Err(Damage::Field("count"));
    }
    let (used, unused) = body.split_at(usize::from(count) * ENTRY_BYTES);
    if !is_blank(&head.reserved) || !is_blank(unused) {
        return Err(Damage::Field("reserved"));
    }
    let entries = <[EntryMedia]>::ref_from_bytes(used).map_err(|_| LENGTH)?;
    let mut least = 0;
    for (index, media) in (0..count).zip(entries) {
        let entry = media.decode();
        let is_plain = EntryMedia::encode(&entry).as_bytes() == media.as_bytes();
        let wrong = match entry.wrong_field() {
            None if !is_plain => Some("bits"),
            None if u64::from(entry.slot) < least => Some("slot"), // FM-M2
            other => other,
        };
        if let Some(field) = wrong {
            return Err(Damage::Entry { index, field });
        }
        least = u64::from(entry.slot) + 1;
    }
    let header = MapHeader {
        uuid: head.uuid,
        part: head.part.get(),
        id: head.id.get(),
        index: head.index.get(),
        link: head.link.get(),
    };
    Ok(MapUnit { header, crc, entries })
}

#[cfg(test)]
#[path = "map_tests.rs"]
mod tests;
