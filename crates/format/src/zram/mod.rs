// SPDX-License-Identifier: Apache-2.0 OR MIT
//! On-media structures of a zram device's backing area.
//!
//! ```text
//!   superblock ─▶ checkpoint: slot ─▶ object       the map, as it was
//!        └──────▶ unit ─▶ unit ─▶ unit ...         what has changed since, objects in them
//! ```
//!
//! Compressed writeback packs objects, with and without persistence; the other structures are only
//! for persistence. The byte map is `docs/format/zram.md`; the code and that page change together.
//!
//! Invariants
//! - FM-ZF1 A decoder never panics, whatever the bytes; it returns the reason.
//! - FM-ZF2 An encoder never writes what its decoder would refuse (asserted before bytes are made).
//! - FM-ZF3 One flipped bit anywhere in what is read is detected.
//! - FM-ZF4 Magic, version and checksum stay where they are in every version of a unit.

mod geometry;
mod map;
mod object;
mod superblock;
mod unit;

pub use crate::quorum::{elect, highest_generation};
pub use geometry::{DATA_BLOCKS_MIN, Geometry, REGION_BLOCKS_MAX};
pub use map::{Image, MAP_ENTRIES, MapEntry, MapHeader, MapUnit, decode_map, encode_map};
pub use object::{
    CHECK_MASK, OBJECT_ALIGN, OBJECT_HEADER, OBJECT_MAX, Object, ObjectDamage, StoredObject,
    encode_with, object_bytes, verify, walk,
};
pub(crate) use superblock::MAGIC as SUPERBLOCK_MAGIC;
pub use superblock::{CODECS, ChainStart, Checkpoint, CodecId, PARTS_MAX, Superblock};
pub use unit::{StoredUnit, UNIT_BLOCKS_MAX, UNIT_HEADER, UnitHeader, decode_unit};
