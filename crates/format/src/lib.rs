// SPDX-License-Identifier: Apache-2.0 OR MIT
//! On-media structures: encode, decode, checksum, byte map; no I/O. Here those of the native write
//! cache; in [`dm`] those of the kernel's write cache; in [`zram`] those of a zram device; in
//! [`objvol`] the objects of a volume on an object store.
//!
//! ```text
//! offset 0      64K      128K     192K     256K
//!        │super 0│super 1│super 2 │super 3 │ checkpoint A │ checkpoint B │ record log │ slots …
//! ```
//!
//! All metadata is a sequence of 4096-byte units. Each unit carries a magic, a version, the
//! cache's UUID and a CRC-32C over the whole unit. The byte map with its promises is
//! `docs/format/writecache.md`; the code and that page change together.
//!
//! Invariants
//! - FM-F1 A decoder never panics, whatever the bytes; it returns [`Damage`] that says what is
//!   wrong.
//! - FM-F2 An encoder never writes what its decoder would refuse (asserted before encoding).
//! - FM-F3 One flipped bit anywhere in a unit is detected.
//! - FM-F4 Magic, version and checksum have the same place in every version of a unit.
//! - FM-F5 A header with bits of a later program is refused, or read, or ignored, as its feature
//!   words say ([`Later`]). The highest version of a header has these words: no other one follows.
//!
//! Absent on purpose: clocks, allocation on the record path, knowledge of devices or of replay
//! order. Offsets are bytes from the start of the cache area (table option `start_sector`).

use std::ops::{Range, RangeInclusive};

use crc_fast::{CrcAlgorithm, Digest};

mod damage;
pub mod dm;
mod features;
mod geometry;
mod gone;
mod guard;
mod journal;
pub mod objvol;
mod quorum;
mod record;
mod replaced;
mod signature;
mod superblock;
#[cfg(target_arch = "x86_64")]
mod unit_crc;
pub mod zram;

pub use damage::Damage;
pub use features::{Later, LaterFormat};
pub use geometry::{
    BLOCK_SIZE_MAX, BLOCK_SIZE_MIN, BLOCK_SIZE_SERVED_MAX, Geometry, GeometryError, MovedMetadata,
    SLOTS_MIN,
};
pub use gone::Gone;
pub use guard::{
    GUARD_HEAD_BYTES, GUARD_RANGES, GUARD_RECORD_BYTES, GUARD_TAIL_BYTES, GuardRange, GuardRecord,
    GuardSlot, GuardState, guard_record_offset, sector_crcs,
};
pub use journal::{
    FRAME_TAG_BYTES, FRAMES_MAX, FRAMES_PREFIX, FrameTag, JOURNAL_CAPACITY_MAX,
    JOURNAL_ENTRY_BYTES, JOURNAL_PREFIX, Journal, JournalChange, JournalEntry, JournalHeader,
    frame_offset, journal_bytes, journal_offset,
};
pub use quorum::{Copies, Generation, SUPERBLOCK_COPIES, elect};
pub use record::{
    BLOCK_LIMIT, ENTRIES_PER_UNIT, Entry, Kind, Op, Record, RecordHeader, decode_record,
    encode_record,
};
pub use replaced::{REPLACED_BYTES, ReplacedMark};
pub use signature::Signature;
pub use superblock::{ATOMIC_BYTES_MAX, CheckpointRef, Superblock, begin_superblock, is_begun};

/// Bytes in one metadata unit: the page and sector size that every cache device writes whole.
pub const UNIT: usize = 4096;

/// The place of the checksum in every kind of unit (FM-F4).
const CRC_RANGE: Range<usize> = 12..16;

/// CRC-32C (Castagnoli) of `data`: the checksum of cached blocks and of metadata units.
#[must_use]
pub fn checksum(data: &[u8]) -> u32 {
    #[cfg(target_arch = "x86_64")]
    if let Ok(unit) = <&[u8; UNIT]>::try_from(data)
        && let Some(crc) = unit_crc::fastest(unit, unit_crc::second_word(unit))
    {
        return crc;
    }
    crc_fast::crc32_iscsi(data)
}

/// A token that an operator repeats to confirm that `facts` were read; other facts have another
/// one.
#[must_use]
pub fn token(facts: &[u8]) -> String {
    format!("{:08x}", checksum(facts))
}

/// [`checksum`] of bytes, with the four bytes of `field` taken as zero.
fn checksum_without(bytes: &[u8], field: Range<usize>) -> u32 {
    let mut digest = Digest::new(CrcAlgorithm::Crc32Iscsi);
    digest.update(&bytes[..field.start]);
    digest.update(&[0; 4]);
    digest.update(&bytes[field.end..]);
    (digest.finalize() & 0xffff_ffff) as u32
}

/// The identity of an origin in a superblock: 128-bit FNV-1a over `identity`, never all zero. It
/// detects mix-ups, not malice.
#[must_use]
pub fn origin_id(identity: &str) -> [u8; 16] {
    const BASIS: u128 = 0x6c62_272e_07bb_0142_62b8_2175_6295_c58d;
    const PRIME: u128 = 0x0000_0000_0100_0000_0000_0000_0000_013b;
    let mix = |hash: u128, &byte: &u8| (hash ^ u128::from(byte)).wrapping_mul(PRIME);
    let hash = identity.as_bytes().iter().fold(BASIS, mix);
    hash.max(1).to_be_bytes()
}

/// True if every byte of `unit` is zero, as on a device that was never formatted.
#[must_use]
pub fn is_blank(unit: &[u8]) -> bool {
    unit.iter().all(|&byte| byte == 0)
}

/// CRC-32C of a whole unit with the checksum field taken as zero.
fn unit_checksum(unit: &[u8; UNIT]) -> u32 {
    #[cfg(target_arch = "x86_64")]
    {
        const { assert!(CRC_RANGE.start == 12 && CRC_RANGE.end == 16) };
        let second = unit_crc::second_word(unit) & 0xffff_ffff;
        if let Some(crc) = unit_crc::fastest(unit, second) {
            return crc;
        }
    }
    checksum_without(unit, CRC_RANGE)
}

/// Stores the checksum in a finished unit and returns it.
fn seal(unit: &mut [u8; UNIT]) -> u32 {
    let crc = unit_checksum(unit);
    unit[CRC_RANGE].copy_from_slice(&crc.to_le_bytes());
    crc
}

/// The checks that all units share, cheapest first: length, magic, checksum, version.
///
/// The checksum is checked before the version, so that a flipped bit in the version field is
/// reported as damage and not as an unknown version.
fn check_unit<'a>(
    bytes: &'a [u8],
    magic: &[u8; 8],
    versions: RangeInclusive<u16>,
) -> Result<(&'a [u8; UNIT], u32), Damage> {
    let unit: &[u8; UNIT] =
        bytes.try_into().map_err(|_| Damage::Length { found_bytes: bytes.len() })?;
    if unit[..8] != magic[..] {
        return Err(Damage::Magic);
    }
    let crc = unit_checksum(unit);
    if unit[CRC_RANGE] != crc.to_le_bytes() {
        return Err(Damage::Checksum);
    }
    let found = u16::from_le_bytes([unit[8], unit[9]]);
    if !versions.contains(&found) {
        return Err(Damage::Version { found, known: *versions.end() });
    }
    Ok((unit, crc))
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn checksum_is_crc32c_of_rfc_3720() {
        // RFC 3720 appendix B.4: 32 bytes of zero, and the ascending pattern.
        assert_eq!(checksum(&[0; 32]), 0x8a91_36aa);
        let ascending: Vec<u8> = (0..32).collect();
        assert_eq!(checksum(&ascending), 0x46dd_794e);
    }

    #[test]
    fn the_unit_checksum_takes_its_own_field_as_zero() {
        let mut unit = [0x5a; UNIT];
        unit[CRC_RANGE].fill(0);
        let plain = checksum(&unit);
        unit[CRC_RANGE].fill(0xff);
        assert_eq!(unit_checksum(&unit), plain);
    }

    #[test]
    fn an_origin_id_is_fnv_1a_of_128_bits() {
        // The published test vectors of FNV.
        assert_eq!(origin_id(""), 0x6c62_272e_07bb_0142_62b8_2175_6295_c58d_u128.to_be_bytes());
        assert_eq!(origin_id("a"), 0xd228_cb69_6f1a_8caf_7891_2b70_4e4a_8964_u128.to_be_bytes());
    }

    #[test]
    fn only_all_zero_is_blank() {
        let mut unit = [0; UNIT];
        assert!(is_blank(&unit));
        unit[UNIT - 1] = 1;
        assert!(!is_blank(&unit));
    }
}
