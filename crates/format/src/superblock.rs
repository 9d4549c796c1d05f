// SPDX-License-Identifier: Apache-2.0 OR MIT
//! The superblock of the write cache: what the cache is, whose it is, and which checkpoint replay
//! starts from. It has four copies; `quorum` elects the one that counts.
//!
//! Invariants
//! - FM-S1 A copy carries its own number: a copy written to another copy's place is refused.

use zerocopy::little_endian::{U16, U32, U64};
use zerocopy::{FromBytes, Immutable, IntoBytes, KnownLayout, Unaligned};

use crate::geometry::{
    Geometry, LOG_UNITS_MAX, LOG_UNITS_MIN, MovedMetadata, SLOTS_MAX, SLOTS_MIN,
    checkpoint_units_least, is_block_size,
};
use crate::quorum::{Generation, SUPERBLOCK_COPIES};
use crate::{BLOCK_LIMIT, Damage, UNIT, check_unit, is_blank, seal};

pub(crate) const MAGIC: [u8; 8] = *b"MPWCSUPR";
/// Version of a cache in one part, and of one part of several.
const VERSION: u16 = 1;
const VERSION_PART: u16 = 2;
/// Version of a cache that guards its origin: older programs would read the guard's bytes as data.
const VERSION_GUARD: u16 = 3;
/// Version of a cache that was resized: its metadata are elsewhere. It may guard its origin.
const VERSION_MOVED: u16 = 4;
/// Version of part 0 of a cache that guards its origin.
const VERSION_GUARD_PART: u16 = 5;
/// Version of a part that was resized, and of part 0 of a cache in parts that was. Part 0 may have
/// the records of a guard.
const VERSION_RESIZED_PART: u16 = 6;
/// The bit of `flags` in versions 4 and 6 that says that the cache guards its origin.
const GUARDS_ORIGIN: u8 = 1;
/// The bit of `flags` in version 6 that says that the other parts are still to be written.
const UNMADE: u8 = 2;
/// Parts that a cache may have.
pub const PARTS_MAX: u8 = 16;
/// How often a cache in parts may grow.
pub const ADDED_AREAS_MAX: usize = 32;

/// A superblock.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct Superblock {
    /// Identity of this cache, random, made when it is formatted; in every unit.
    pub uuid: [u8; 16],
    /// Counts superblock writes.
    pub generation: u64,
    /// Bytes in a block and in a slot.
    pub block_size: u32,
    /// Slots in the area.
    pub slots: u32,
    /// Units of the record log.
    pub log_units: u32,
    /// Units of one checkpoint area.
    pub checkpoint_units: u32,
    /// Size of the origin in 512-byte sectors; an origin of another size is refused.
    pub origin_sectors: u64,
    /// Identity of the origin, all zero if it has none.
    pub origin_id: [u8; 16],
    /// The newest complete checkpoint, and where the replay of the log starts.
    pub checkpoint: CheckpointRef,
    /// The part, of a cache in several parts; `None` of a cache in one part.
    pub part: Option<Part>,
    /// The area may have records of a guarded origin. Of a cache in parts only part 0 has them.
    pub guards_origin: bool,
    /// Where metadata and slots are, if the cache was resized.
    pub moved: Option<MovedMetadata>,
    /// What part 0 of a cache in parts says of the areas of all parts.
    pub areas: PartAreas,
}

/// A part of a cache in several parts: an area of its own, for its share of the origin's chunks.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct Part {
    /// Index of the part, from 0.
    pub nth: u8,
    /// Number of parts of the cache, 2 to [`PARTS_MAX`].
    pub of: u8,
    /// 512-byte sectors in a chunk. Chunk `c` of the origin belongs to part `c % of`.
    pub chunk_sectors: u32,
    /// 512-byte sectors of one area: part `n` begins `n * area_sectors` after part 0.
    pub area_sectors: u64,
}

/// What part 0 says of the areas of all parts; nothing, if they are those of the creation.
#[derive(Clone, Debug, Default, PartialEq, Eq)]
pub struct PartAreas {
    /// 512-byte sectors that each part got at each growth of the cache, in the order of time; at
    /// most [`ADDED_AREAS_MAX`].
    pub added: Vec<u64>,
    /// The cache was made smaller. It holds nothing, and its other parts are still to be written.
    pub is_unmade: bool,
}

/// A complete checkpoint, and the position in the log at which its replay starts.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq)]
pub struct CheckpointRef {
    /// Checkpoint area, 0 or 1.
    pub area: u8,
    /// Units written; 0: there is no checkpoint, and the map starts empty.
    pub units: u32,
    /// Identity of the checkpoint: the `incarnation` of its units.
    pub id: u64,
    /// First record to replay.
    pub log_start_seq: u64,
    /// Checksum of the record before `log_start_seq`: the link of the first record to replay. 0 if
    /// there is no such record.
    pub log_start_link: u32,
}

/// The bytes of a superblock. Offsets are in `docs/format/writecache.md`.
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
    block_size: U32,
    slots: U32,
    log_units: U32,
    checkpoint_units: U32,
    origin_sectors: U64,
    origin_id: [u8; 16],
    checkpoint_id: U64,
    log_start_seq: U64,
    log_start_link: U32,
    checkpoint_written_units: U32,
    checkpoint_area: u8,
    part: u8,
    parts: u8,
    flags: u8,
    chunk_sectors: U32,
    area_sectors: U64,
    metadata_start: U64,
    slots_start: U64,
    added_areas: [U64; ADDED_AREAS_MAX],
    reserved1: [u8; 3704],
}

const _: () = assert!(size_of::<SuperblockMedia>() == UNIT);

/// The place of the generation in a superblock.
const GENERATION: std::ops::Range<usize> = 32..40;
const _: () = assert!(std::mem::offset_of!(SuperblockMedia, generation) == GENERATION.start);

/// Makes the unit that a format writes first, in a unit of zeroes: only the magic.
pub fn begin_superblock(out: &mut [u8]) {
    out[..MAGIC.len()].copy_from_slice(&MAGIC);
}

/// Whether a unit may be the first superblock copy of an interrupted format: it begins with the
/// magic, and its generation is 0 or `first`, the one that a format writes.
pub fn is_begun(unit: &[u8], first: u64) -> bool {
    let generation = unit[GENERATION].try_into().map_or(0, u64::from_le_bytes);
    unit[..MAGIC.len()] == MAGIC && (generation == 0 || generation == first)
}

impl Superblock {
    /// Encodes the unit of `copy` into `out`, one unit.
    ///
    /// # Panics
    /// If a field has a value that `decode` would refuse, or `out` is not one unit.
    pub fn encode(&self, copy: u8, out: &mut [u8]) {
        assert!(copy < SUPERBLOCK_COPIES);
        assert_eq!(self.wrong_field(), None, "superblock would be refused on read"); // FM-F2
        let has_flags = matches!(self.version(), VERSION_MOVED | VERSION_RESIZED_PART);
        let guards = if has_flags && self.guards_origin { GUARDS_ORIGIN } else { 0 };
        let unmade = if self.areas.is_unmade { UNMADE } else { 0 };
        let mut added_areas = [U64::ZERO; ADDED_AREAS_MAX];
        for (place, sectors) in added_areas.iter_mut().zip(&self.areas.added) {
            *place = U64::new(*sectors);
        }
        let unmoved = MovedMetadata { metadata_start: 0, slots_start: 0 };
        let moved = self.moved.unwrap_or(unmoved);
        let none = Part { nth: 0, of: 0, chunk_sectors: 0, area_sectors: 0 };
        let part = self.part.unwrap_or(none);
        let media = SuperblockMedia {
            magic: MAGIC,
            version: U16::new(self.version()),
            copy,
            reserved0: 0,
            crc: U32::ZERO,
            uuid: self.uuid,
            generation: U64::new(self.generation),
            block_size: U32::new(self.block_size),
            slots: U32::new(self.slots),
            log_units: U32::new(self.log_units),
            checkpoint_units: U32::new(self.checkpoint_units),
            origin_sectors: U64::new(self.origin_sectors),
            origin_id: self.origin_id,
            checkpoint_id: U64::new(self.checkpoint.id),
            log_start_seq: U64::new(self.checkpoint.log_start_seq),
            log_start_link: U32::new(self.checkpoint.log_start_link),
            checkpoint_written_units: U32::new(self.checkpoint.units),
            checkpoint_area: self.checkpoint.area,
            part: part.nth,
            parts: part.of,
            flags: guards | unmade,
            chunk_sectors: U32::new(part.chunk_sectors),
            area_sectors: U64::new(part.area_sectors),
            metadata_start: U64::new(moved.metadata_start),
            slots_start: U64::new(moved.slots_start),
            added_areas,
            reserved1: [0; 3704],
        };
        let out: &mut [u8; UNIT] = out.try_into().expect("the caller gives one unit");
        out.copy_from_slice(media.as_bytes());
        seal(out);
    }

    /// Decodes the unit read from the place of `copy`.
    pub fn decode(copy: u8, unit: &[u8]) -> Result<Superblock, Damage> {
        let (unit, _) = check_unit(unit, &MAGIC, VERSION..=VERSION_RESIZED_PART)?;
        let media = SuperblockMedia::ref_from_bytes(unit)
            .map_err(|_| Damage::Length { found_bytes: UNIT })?;
        if media.copy != copy {
            return Err(Damage::WrongCopy { found: media.copy, wanted: copy }); // FM-S1
        }
        let version = media.version.get();
        let moved = MovedMetadata {
            metadata_start: media.metadata_start.get(),
            slots_start: media.slots_start.get(),
        };
        let has_offsets = (moved.metadata_start, moved.slots_start) != (0, 0);
        let (known_flags, is_moved) = match version {
            VERSION_MOVED => (GUARDS_ORIGIN, true),
            VERSION_RESIZED_PART => (GUARDS_ORIGIN | UNMADE, has_offsets),
            _ => (0, false),
        };
        let added = media.added_areas.iter().map(|sectors| sectors.get());
        let added: Vec<u64> = added.take_while(|sectors| *sectors > 0).collect();
        let behind = &media.added_areas[added.len()..];
        let is_rest_zero = behind.iter().all(|sectors| sectors.get() == 0)
            && (added.is_empty() || version == VERSION_RESIZED_PART)
            && (!has_offsets || is_moved);
        if media.reserved0 != 0
            || media.flags & !known_flags != 0
            || !is_rest_zero
            || !is_blank(&media.reserved1)
        {
            return Err(Damage::Field("reserved"));
        }
        let part = Part {
            nth: media.part,
            of: media.parts,
            chunk_sectors: media.chunk_sectors.get(),
            area_sectors: media.area_sectors.get(),
        };
        let is_part = matches!(version, VERSION_PART | VERSION_GUARD_PART | VERSION_RESIZED_PART);
        let is_guard = matches!(version, VERSION_GUARD | VERSION_GUARD_PART);
        if !is_part && (part.nth, part.of, part.chunk_sectors, part.area_sectors) != (0, 0, 0, 0) {
            return Err(Damage::Field("parts"));
        }
        let superblock = Superblock {
            uuid: media.uuid,
            generation: media.generation.get(),
            block_size: media.block_size.get(),
            slots: media.slots.get(),
            log_units: media.log_units.get(),
            checkpoint_units: media.checkpoint_units.get(),
            origin_sectors: media.origin_sectors.get(),
            origin_id: media.origin_id,
            checkpoint: CheckpointRef {
                area: media.checkpoint_area,
                units: media.checkpoint_written_units.get(),
                id: media.checkpoint_id.get(),
                log_start_seq: media.log_start_seq.get(),
                log_start_link: media.log_start_link.get(),
            },
            part: is_part.then_some(part),
            guards_origin: is_guard || media.flags & GUARDS_ORIGIN != 0,
            moved: is_moved.then_some(moved),
            areas: PartAreas { added, is_unmade: media.flags & UNMADE != 0 },
        };
        match superblock.wrong_field() {
            // Each content has one version.
            None if superblock.version() != version => Err(Damage::Field("version")),
            None => Ok(superblock),
            Some(name) => Err(Damage::Field(name)),
        }
    }

    /// The version of the format that says all of it: a program that knows no more refuses it.
    #[must_use]
    pub fn version(&self) -> u16 {
        let is_resized = self.moved.is_some() || self.areas != PartAreas::default();
        match (self.part, is_resized, self.guards_origin) {
            (Some(_), true, _) => VERSION_RESIZED_PART,
            (Some(_), false, true) => VERSION_GUARD_PART,
            (Some(_), false, false) => VERSION_PART,
            (None, true, _) => VERSION_MOVED,
            (None, false, true) => VERSION_GUARD,
            (None, false, false) => VERSION,
        }
    }

    /// The layout. The caller checks `end_bytes` against the device.
    #[must_use]
    pub fn geometry(&self) -> Geometry {
        Geometry {
            block_size: self.block_size,
            slots: self.slots,
            log_units: self.log_units,
            checkpoint_units: self.checkpoint_units,
            moved: self.moved,
        }
    }

    /// The first field with an invalid value.
    fn wrong_field(&self) -> Option<&'static str> {
        if !is_block_size(self.block_size) {
            return Some("block_size");
        }
        if !(SLOTS_MIN..=SLOTS_MAX).contains(&self.slots) {
            return Some("slots");
        }
        if !(LOG_UNITS_MIN..=LOG_UNITS_MAX).contains(&self.log_units) {
            return Some("log_units");
        }
        if self.checkpoint_units <= checkpoint_units_least(self.slots) {
            return Some("checkpoint_units");
        }
        if self.origin_sectors / u64::from(self.block_size / 512) >= BLOCK_LIMIT {
            return Some("origin_sectors");
        }
        if self.checkpoint.area >= 2 {
            return Some("checkpoint_area");
        }
        if self.checkpoint.units > self.checkpoint_units {
            return Some("checkpoint_written_units");
        }
        if self.part.is_some_and(|part| part.nth > 0) && self.guards_origin {
            return Some("guards_origin");
        }
        if self.part.is_none_or(|part| part.nth > 0) && self.areas != PartAreas::default() {
            return Some("added_areas");
        }
        if let Some(wrong) = self.moved.and_then(|moved| moved.wrong_field(&self.geometry())) {
            return Some(wrong);
        }
        self.part.and_then(|part| part.wrong_field(&self.geometry(), &self.areas.added))
    }
}

impl Part {
    /// Most sectors of an area: the byte offset of the last part must not overflow.
    pub const AREA_SECTORS_MAX: u64 = (u64::MAX >> 9) / PARTS_MAX as u64;

    /// Where this part lies: first sectors, counted from the beginning of part 0, and lengths, in
    /// the order of its bytes. At its creation, and then at each growth, all parts got an area of
    /// the same length, one behind the other.
    pub fn areas(&self, added: &[u64]) -> impl Iterator<Item = (u64, u64)> {
        let Part { nth, of, area_sectors, .. } = *self;
        let mut begin = 0;
        std::iter::once(area_sectors).chain(added.to_vec()).map(move |len| {
            let area = (begin + u64::from(nth) * len, len);
            begin += u64::from(of) * len;
            area
        })
    }

    /// 512-byte sectors of all areas of one part; `None` if they are more than there can be.
    fn sum(&self, added: &[u64]) -> Option<u64> {
        let sum = added.iter().try_fold(self.area_sectors, |sum, more| sum.checked_add(*more))?;
        (added.len() <= ADDED_AREAS_MAX && sum <= Part::AREA_SECTORS_MAX).then_some(sum)
    }

    fn wrong_field(&self, geometry: &Geometry, added: &[u64]) -> Option<&'static str> {
        if !(2..=PARTS_MAX).contains(&self.of) {
            return Some("parts");
        }
        if self.nth >= self.of {
            return Some("part");
        }
        let block_sectors = geometry.block_size / 512;
        if self.chunk_sectors == 0 || !self.chunk_sectors.is_multiple_of(block_sectors) {
            return Some("chunk_sectors");
        }
        let is_length = |sectors: &u64| *sectors > 0 && sectors.is_multiple_of(UNIT as u64 / 512);
        let has = self.sum(&[]).filter(|_| is_length(&self.area_sectors));
        let Some(all) = self.sum(added).filter(|_| added.iter().all(is_length)) else {
            return Some(if has.is_some() { "added_areas" } else { "area_sectors" });
        };
        // What the other parts got says part 0: who opens them compares.
        let is_judged = self.nth == 0 || geometry.moved.is_none();
        let fits = !is_judged || geometry.end_bytes().div_ceil(512) <= all;
        (has.is_none() || !fits).then_some("area_sectors")
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
