// SPDX-License-Identifier: Apache-2.0 OR MIT
//! The superblock of the write cache: what the cache is, whose it is, and which checkpoint replay
//! starts from. It has four copies; `quorum` elects the one that counts.
//!
//! Invariants
//! - FM-S1 A copy carries its own number: a copy written to another copy's place is refused.
//! - FM-S2 A superblock has feature words (version 7) if, and only if, it says something that
//!   versions 1, 3 and 4 can't.

use zerocopy::little_endian::{U16, U32, U64};
use zerocopy::{FromBytes, Immutable, IntoBytes, KnownLayout, Unaligned};

use crate::features::{Features, Later, LaterFormat, Unreadable};
use crate::geometry::{
    BLOCK_SIZE_MAX, BLOCK_SIZE_SERVED_MAX, Geometry, LOG_UNITS_MAX, LOG_UNITS_MIN, MovedMetadata,
    SLOTS_MAX, SLOTS_MIN, checkpoint_units_least, is_block_size,
};
use crate::quorum::{Generation, SUPERBLOCK_COPIES};
use crate::{BLOCK_LIMIT, Damage, Gone, UNIT, check_unit, is_blank, seal};

pub(crate) const MAGIC: [u8; 8] = *b"MPWCSUPR";
/// Version of a cache that is as it was made.
const VERSION: u16 = 1;
/// Version of a cache that guards its origin: older programs would read the guard's bytes as data.
const VERSION_GUARD: u16 = 3;
/// Version of a cache that was resized: its metadata are elsewhere. It may guard its origin.
const VERSION_MOVED: u16 = 4;
/// Version with feature words, the last one; 2, 5 and 6 are `Gone::DividedCache`.
const VERSION_FEATURES: u16 = 7;
/// The bit of `flags` in version 4 that says that the cache guards its origin.
const GUARDS_ORIGIN: u8 = 1;
/// Bits of `incompat`: the cache guards its origin; it was resized; its blocks are larger than
/// [`BLOCK_SIZE_SERVED_MAX`].
const INCOMPAT_GUARD: u64 = 1;
const INCOMPAT_MOVED: u64 = 2;
const INCOMPAT_LARGE_BLOCKS: u64 = 4;
const INCOMPAT_KNOWN: u64 = INCOMPAT_GUARD | INCOMPAT_MOVED | INCOMPAT_LARGE_BLOCKS;
/// The bit of `ro_compat` of a cache with an atomic unit.
const RO_COMPAT_ATOMIC: u64 = 1;
/// The bit of `compat` that says that the room begins with the name of the program.
const COMPAT_WRITTEN_BY: u64 = 1;
/// Bytes of that name at most.
const WRITTEN_BY_BYTES: usize = 32;
/// Bytes of the largest atomic unit.
pub const ATOMIC_BYTES_MAX: u32 = 16384;
/// Bytes of the room.
const ROOM: usize = 3936;

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
    /// The area may have records of a guarded origin.
    pub guards_origin: bool,
    /// Where metadata and slots are, if the cache was resized.
    pub moved: Option<MovedMetadata>,
    /// Bytes of aligned writes that are never torn; 0: a block. More than a block, and at most
    /// [`ATOMIC_BYTES_MAX`]. No engine makes one yet.
    pub atomic_bytes: u32,
    /// What later programs have said.
    pub later: Option<Later>,
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
    reserved1: [u8; 2],
    flags: u8,
    atomic_bytes: U32,
    reserved2: [u8; 8],
    metadata_start: U64,
    slots_start: U64,
    features: Features,
    room: [u8; ROOM],
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
        let version = self.version();
        let features = match version {
            VERSION_FEATURES => {
                Features::new(self.incompat(), self.ro_compat(), self.later.as_ref())
            }
            _ => Features::default(),
        };
        let mut room = [0; ROOM];
        if let Some(later) = &self.later {
            room.copy_from_slice(&later.room);
        }
        let unmoved = MovedMetadata { metadata_start: 0, slots_start: 0 };
        let moved = self.moved.unwrap_or(unmoved);
        let media = SuperblockMedia {
            magic: MAGIC,
            version: U16::new(version),
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
            reserved1: [0; 2],
            flags: if version == VERSION_MOVED { self.guards_origin.into() } else { 0 },
            atomic_bytes: U32::new(self.atomic_bytes),
            reserved2: [0; 8],
            metadata_start: U64::new(moved.metadata_start),
            slots_start: U64::new(moved.slots_start),
            features,
            room,
        };
        let out: &mut [u8; UNIT] = out.try_into().expect("the caller gives one unit");
        out.copy_from_slice(media.as_bytes());
        seal(out);
    }

    /// Decodes the unit read from the place of `copy`.
    ///
    /// # Errors
    /// [`Damage::Gone`] of an intact unit of a version that earlier programs wrote, and this one
    /// can't open; [`Damage::Later`] of one that this program is too old for.
    pub fn decode(copy: u8, unit: &[u8]) -> Result<Superblock, Damage> {
        let (unit, _) = check_unit(unit, &MAGIC, VERSION..=VERSION_FEATURES)?;
        if let Some(gone) = Gone::of(unit) {
            return Err(Damage::Gone(gone));
        }
        let media = SuperblockMedia::ref_from_bytes(unit)
            .map_err(|_| Damage::Length { found_bytes: UNIT })?;
        if media.copy != copy {
            return Err(Damage::WrongCopy { found: media.copy, wanted: copy }); // FM-S1
        }
        let version = media.version.get();
        let known_flags = if version == VERSION_MOVED { GUARDS_ORIGIN } else { 0 };
        let (incompat, later) = match version {
            VERSION_FEATURES => (media.features.incompat.get(), later(media)?),
            _ => (legacy_incompat(version, media.flags), None),
        };
        let is_moved = incompat & INCOMPAT_MOVED != 0;
        let has_words = version == VERSION_FEATURES;
        let moved = MovedMetadata {
            metadata_start: media.metadata_start.get(),
            slots_start: media.slots_start.get(),
        };
        if media.reserved0 != 0
            || media.flags & !known_flags != 0
            || (!is_moved && (moved.metadata_start, moved.slots_start) != (0, 0))
            || !is_blank(&media.reserved1)
            || !is_blank(&media.reserved2)
            || (!has_words && media.atomic_bytes != U32::ZERO)
            || (!has_words && !is_blank(media.features.as_bytes()))
            || (!has_words && !is_blank(&media.room))
        {
            return Err(Damage::Field("reserved"));
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
            guards_origin: incompat & INCOMPAT_GUARD != 0,
            moved: is_moved.then_some(moved),
            atomic_bytes: media.atomic_bytes.get(),
            later,
        };
        if let Some(name) = superblock.wrong_field() {
            return Err(Damage::Field(name));
        }
        // FM-S2, FM-F2: the version, and the words, are those that the fields need.
        let ro_compat = media.features.ro_compat.get() & RO_COMPAT_ATOMIC;
        let is_as_written = superblock.version() == version
            && (!has_words
                || (superblock.incompat(), superblock.ro_compat()) == (incompat, ro_compat));
        if is_as_written { Ok(superblock) } else { Err(Damage::Field("version")) }
    }

    /// The version of the format that says all of it: a program that knows no more refuses it.
    #[must_use]
    pub fn version(&self) -> u16 {
        let has_words = self.later.is_some() || self.ro_compat() != 0;
        match (self.moved, self.guards_origin) {
            _ if has_words || self.incompat() & INCOMPAT_LARGE_BLOCKS != 0 => VERSION_FEATURES,
            (Some(_), _) => VERSION_MOVED,
            (None, true) => VERSION_GUARD,
            (None, false) => VERSION,
        }
    }

    /// The bits of `incompat` of what it says.
    fn incompat(&self) -> u64 {
        let is_large = self.block_size > BLOCK_SIZE_SERVED_MAX;
        bit(self.guards_origin, INCOMPAT_GUARD)
            | bit(self.moved.is_some(), INCOMPAT_MOVED)
            | bit(is_large, INCOMPAT_LARGE_BLOCKS)
    }

    fn ro_compat(&self) -> u64 {
        bit(self.atomic_bytes != 0, RO_COMPAT_ATOMIC)
    }

    /// What this program must know before it writes to the cache, and does not; `None` if it may.
    #[must_use]
    pub fn unwritable(&self) -> Option<LaterFormat> {
        let later = self.later.as_ref().map_or(0, |later| later.ro_compat);
        let ro_compat = self.ro_compat() | later;
        let incompat = self.incompat() & INCOMPAT_LARGE_BLOCKS;
        let written_by = self
            .later
            .as_ref()
            .map_or_else(String::new, |later| written_by(later.compat, &later.room));
        let found = LaterFormat { generation: self.generation, incompat, ro_compat, written_by };
        ((incompat, ro_compat) != (0, 0)).then_some(found)
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
        if !is_block_size(self.block_size, BLOCK_SIZE_MAX) {
            return Some("block_size");
        }
        let atomic = self.atomic_bytes;
        let is_unit =
            atomic.is_power_of_two() && (self.block_size + 1..=ATOMIC_BYTES_MAX).contains(&atomic);
        if atomic != 0 && !is_unit {
            return Some("atomic_bytes");
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
        self.moved.and_then(|moved| moved.wrong_field(&self.geometry()))
    }
}

fn bit(is_set: bool, bit: u64) -> u64 {
    if is_set { bit } else { 0 }
}

/// The bits of `incompat` that a superblock without words stands for.
fn legacy_incompat(version: u16, flags: u8) -> u64 {
    match version {
        VERSION_GUARD => INCOMPAT_GUARD,
        VERSION_MOVED => INCOMPAT_MOVED | bit(flags & GUARDS_ORIGIN != 0, INCOMPAT_GUARD),
        _ => 0,
    }
}

/// What later programs have said in a superblock with feature words.
fn later(media: &SuperblockMedia) -> Result<Option<Later>, Damage> {
    let features = &media.features;
    features.later(INCOMPAT_KNOWN, RO_COMPAT_ATOMIC, &media.room).map_err(|why| match why {
        Unreadable::Room => Damage::Field("reserved"),
        Unreadable::Incompat(incompat) => Damage::Later(LaterFormat {
            generation: media.generation.get(),
            incompat,
            ro_compat: 0,
            written_by: written_by(features.compat.get(), &media.room),
        }),
    })
}

/// The program that wrote a superblock, as its room has it: for people.
fn written_by(compat: u64, room: &[u8]) -> String {
    let name = &room[..if compat & COMPAT_WRITTEN_BY == 0 { 0 } else { WRITTEN_BY_BYTES }];
    let name = name.split(|&byte| byte == 0).next().unwrap_or(&[]);
    let text = String::from_utf8_lossy(name);
    text.chars().filter(|c| c.is_ascii_graphic() || *c == ' ').collect()
}

impl Generation for Superblock {
    fn generation(&self) -> u64 {
        self.generation
    }
}

#[cfg(test)]
#[path = "superblock_tests.rs"]
mod tests;
