// SPDX-License-Identifier: Apache-2.0 OR MIT
//! The guard of an origin: what takes the place of the beginning and of the end of an origin whose
//! cache has the option `guard_origin`, and the records of it on the cache device.
//!
//! ```text
//!   origin, a guarded range       [ slot 0: header, packed image ][ slot 1: the same ]
//!   cache device, gap after a     [ record: state, and the front half of the range while the
//!   superblock copy                 origin's first slot is being written or taken away ]
//! ```
//!
//! The *image* is what clients see of the range. Each slot has all of it, compressed, so that the
//! image survives without the cache. The slots are written in turn.
//!
//! Invariants
//! - FM-GU1 A slot carries its range and its number: one that is found elsewhere is refused.
//! - FM-GU2 Behind the header only packed bytes and zeroes follow: no superblock of a file system,
//!   RAID or partition table remains at its place.
use std::ops::Range;

use zerocopy::FromBytes;

use crate::features::Features;
use crate::{CRC_RANGE, Damage, UNIT, checksum, checksum_without, is_blank};

/// Bytes of the range at the beginning of an origin: file systems, RAID, volume managers and
/// partition tables have their superblocks there, btrfs the last one, at 64 KiB.
pub const GUARD_HEAD_BYTES: usize = 72 << 10;
/// Bytes of the range at the end: the second partition table, and RAID of version 1.0.
pub const GUARD_TAIL_BYTES: usize = 64 << 10;
/// Ranges of a guarded origin.
pub const GUARD_RANGES: u8 = 2;
/// Bytes of the longest record.
pub const GUARD_RECORD_BYTES: usize = UNIT + GUARD_HEAD_BYTES / 2;

const SLOT_MAGIC: [u8; 8] = *b"MPWCGRDO";
const RECORD_MAGIC: [u8; 8] = *b"MPWCGRDC";
const VERSION: u16 = 1;
/// Version of a slot with feature words, the last one. No bit is used yet.
const VERSION_FEATURES: u16 = 2;
const SECTOR: usize = 512;
/// Sectors of the longest slot.
const SLOT_SECTORS_MAX: usize = GUARD_HEAD_BYTES / 2 / SECTOR;

const VERSION_AT: Range<usize> = 8..10;
const RANGE_AT: usize = 10;
const NUMBER_AT: usize = 11;
const UUID_AT: Range<usize> = 16..32;
const SEQUENCE_AT: Range<usize> = 32..40;
const START_AT: Range<usize> = 40..48;
const LENGTH_AT: Range<usize> = 48..52;
/// Of a slot.
const PACKED_AT: Range<usize> = 52..55;
const ALONE_AT: usize = 55;
const ORIGIN_AT: Range<usize> = 56..64;
const TEXT_AT: Range<usize> = 64..512;
const CACHE_AT: Range<usize> = 512..1024;
/// Zeroes in every version, also in a slot that is torn: ext4 has its superblock there.
const ZEROES_AT: Range<usize> = 1024..3072;
const FEATURES_AT: Range<usize> = 3072..3096;
const ROOM_AT: Range<usize> = 3096..UNIT;
/// Of a record.
const STATE_AT: usize = 52;
const CRCS_AT: Range<usize> = 64..64 + 4 * SLOT_SECTORS_MAX;

/// What somebody reads who looks at the bytes of a guarded origin.
const TEXT: &str = "\
This disk is the origin of a write cache of millpond. A part of its newest data may be in the \
cache alone. Use the device of the cache. `millpond inspect DISK` shows more; if the cache is \
lost, `millpond recover --without-cache DISK` gives the disk back as it last was.";
const _: () = assert!(TEXT.len() <= TEXT_AT.end - TEXT_AT.start);

/// A range of an origin that is guarded.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct GuardRange {
    /// 0 the beginning, 1 the end.
    pub nth: u8,
    /// First sector of 512 bytes.
    pub start: u64,
    /// Length in bytes: two slots.
    pub bytes: usize,
}

impl GuardRange {
    /// The ranges of an origin of `sectors`; none if it is too small to have them apart.
    #[must_use]
    pub fn of_origin(sectors: u64) -> Vec<GuardRange> {
        let (head, tail) = (GUARD_HEAD_BYTES / SECTOR, GUARD_TAIL_BYTES / SECTOR);
        if sectors < (head + tail) as u64 {
            return Vec::new();
        }
        let end = GuardRange { nth: 1, start: sectors - tail as u64, bytes: GUARD_TAIL_BYTES };
        vec![GuardRange { nth: 0, start: 0, bytes: GUARD_HEAD_BYTES }, end]
    }

    /// Bytes of one slot.
    #[must_use]
    pub fn slot_bytes(&self) -> usize {
        self.bytes / 2
    }

    /// Whether a cache writes such ranges.
    fn is_known(&self) -> bool {
        match self.nth {
            0 => self.start == 0 && self.bytes == GUARD_HEAD_BYTES,
            1 => self.bytes == GUARD_TAIL_BYTES,
            _ => false,
        }
    }
}

/// The header of a slot on the origin.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct GuardSlot {
    /// The cache that guards the origin.
    pub uuid: [u8; 16],
    /// Counts the slots that are written to this range; the newest counts.
    pub sequence: u64,
    /// The range.
    pub range: GuardRange,
    /// The other slot may have what clients see there instead.
    pub is_alone: bool,
    /// Sectors of the origin that the cache maps.
    pub origin_sectors: u64,
    /// The cache device as the table named it, cut off after 480 bytes.
    pub cache: String,
}

impl GuardSlot {
    /// The bytes of slot `number`, 0 or 1, with `image`; `None` if the image does not compress
    /// enough.
    ///
    /// # Panics
    /// If `image` has another length than the range.
    #[must_use]
    pub fn encode(&self, number: u8, image: &[u8]) -> Option<Vec<u8>> {
        assert_eq!(image.len(), self.range.bytes);
        let packed = lz4_flex::block::compress(image);
        let mut out = vec![0; self.range.slot_bytes()];
        out.get_mut(UNIT..UNIT + packed.len())?.copy_from_slice(&packed);
        let packed = u32::try_from(packed.len()).expect("shorter than a slot");
        begin(&mut out, SLOT_MAGIC, &self.uuid, self.sequence, &self.range, number);
        out[PACKED_AT].copy_from_slice(&packed.to_le_bytes()[..PACKED_AT.len()]);
        out[ALONE_AT] = self.is_alone.into();
        out[ORIGIN_AT].copy_from_slice(&self.origin_sectors.to_le_bytes());
        out[TEXT_AT][..TEXT.len()].copy_from_slice(TEXT.as_bytes());
        let mut end = self.cache.len().min(CACHE_AT.len() - 1);
        while !self.cache.is_char_boundary(end) {
            end -= 1;
        }
        out[CACHE_AT][..end].copy_from_slice(&self.cache.as_bytes()[..end]);
        let crc = checksum_without(&out, CRC_RANGE);
        out[CRC_RANGE].copy_from_slice(&crc.to_le_bytes());
        Some(out)
    }

    /// Decodes the bytes of the slot `number` of the range `nth`: its header and the image.
    ///
    /// # Errors
    /// What is wrong; [`Damage::Magic`] where there is no slot.
    pub fn decode(nth: u8, number: u8, bytes: &[u8]) -> Result<(GuardSlot, Vec<u8>), Damage> {
        let version = check(bytes, SLOT_MAGIC, VERSION_FEATURES)?;
        let range = range_of(bytes, nth, number)?;
        if bytes.len() != range.slot_bytes() {
            return Err(Damage::Length { found_bytes: bytes.len() });
        }
        let [a, b, c] = bytes[PACKED_AT].try_into().expect("three bytes");
        let length = u32::from_le_bytes([a, b, c, 0]);
        let end = UNIT + usize::try_from(length).unwrap_or(usize::MAX - UNIT);
        let packed = bytes.get(UNIT..end).ok_or(Damage::Field("packed length"))?;
        if !is_blank(&bytes[ZEROES_AT]) || !is_blank(&bytes[end..]) {
            return Err(Damage::Field("reserved"));
        }
        check_features(version, bytes)?;
        let image = lz4_flex::block::decompress(packed, range.bytes);
        let image = image.map_err(|_| Damage::Field("packed image"))?;
        if image.len() != range.bytes {
            return Err(Damage::Field("packed image"));
        }
        let cache = bytes[CACHE_AT].split(|&byte| byte == 0).next().unwrap_or(&[]);
        let slot = GuardSlot {
            uuid: bytes[UUID_AT].try_into().expect("16 bytes"),
            sequence: le64(bytes, SEQUENCE_AT),
            range,
            is_alone: bytes[ALONE_AT] != 0,
            origin_sectors: le64(bytes, ORIGIN_AT),
            cache: String::from_utf8_lossy(cache).into_owned(),
        };
        Ok((slot, image))
    }

    /// The identity of the cache in the header of a slot whose rest may be damaged; `None` where no
    /// slot begins.
    #[must_use]
    pub fn owner(bytes: &[u8]) -> Option<[u8; 16]> {
        if !bytes.starts_with(&SLOT_MAGIC) {
            return None;
        }
        bytes.get(UUID_AT)?.try_into().ok()
    }

    /// Whether somebody else has written into the header of a slot. One that is torn has its
    /// zeroes, where ext4 has a superblock.
    #[must_use]
    pub fn is_written_over(bytes: &[u8]) -> bool {
        bytes.get(ZEROES_AT).is_none_or(|zeroes| !is_blank(zeroes))
    }

    /// The sectors that the cache maps, as the header of a slot says whose rest is damaged: perhaps
    /// they are wrong.
    #[must_use]
    pub fn probable_origin_sectors(bytes: &[u8]) -> Option<u64> {
        GuardSlot::owner(bytes)?;
        Some(le64(bytes.get(..UNIT)?, ORIGIN_AT))
    }
}

/// How far the guard of a range is.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum GuardState {
    /// The first slot is being written; the front half of the range is in the record.
    Guarding,
    /// The origin has the slots.
    Guarded,
    /// The rear half of the origin is as clients see it; the front half is being written, and is in
    /// the record.
    Detaching,
    /// The origin has what clients see.
    Detached,
}

const STATES: [GuardState; 4] =
    [GuardState::Guarding, GuardState::Guarded, GuardState::Detaching, GuardState::Detached];

impl GuardState {
    fn number(self) -> u8 {
        STATES.iter().zip(1..).find(|(state, _)| **state == self).map_or(0, |(_, number)| number)
    }

    fn has_front(self) -> bool {
        matches!(self, GuardState::Guarding | GuardState::Detaching)
    }
}

/// The record of a range on the cache device.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct GuardRecord {
    /// The cache.
    pub uuid: [u8; 16],
    /// Counts the records of the range; the newest counts.
    pub sequence: u64,
    /// How far the guard is.
    pub state: GuardState,
    /// The range.
    pub range: GuardRange,
    /// While the front half is written: the checksums of the sectors of the first slot. Else empty.
    pub slot_crcs: Vec<u32>,
    /// While the front half is written: what clients see of it. Else empty.
    pub front: Vec<u8>,
}

impl GuardRecord {
    /// The bytes of copy `copy`, 0 or 1: whole units.
    ///
    /// # Panics
    /// If the front half and the checksums are there in other states than those that have them, or
    /// have another length.
    #[must_use]
    pub fn encode(&self, copy: u8) -> Vec<u8> {
        let front = if self.state.has_front() { self.range.slot_bytes() } else { 0 };
        assert_eq!((self.front.len(), self.slot_crcs.len()), (front, front / SECTOR));
        let mut out = vec![0; UNIT + front];
        begin(&mut out, RECORD_MAGIC, &self.uuid, self.sequence, &self.range, copy);
        out[STATE_AT] = self.state.number();
        let crcs = self.slot_crcs.iter().flat_map(|crc| crc.to_le_bytes());
        out[CRCS_AT].iter_mut().zip(crcs).for_each(|(out, byte)| *out = byte);
        out[UNIT..].copy_from_slice(&self.front);
        let crc = checksum_without(&out, CRC_RANGE);
        out[CRC_RANGE].copy_from_slice(&crc.to_le_bytes());
        out
    }

    /// Decodes copy `copy` of the record of the range `nth`, from [`GUARD_RECORD_BYTES`] at its
    /// place.
    ///
    /// # Errors
    /// What is wrong; [`Damage::Magic`] where there is no record.
    pub fn decode(nth: u8, copy: u8, bytes: &[u8]) -> Result<GuardRecord, Damage> {
        if !bytes.starts_with(&RECORD_MAGIC) {
            return Err(Damage::Magic);
        }
        if bytes.len() != GUARD_RECORD_BYTES {
            return Err(Damage::Length { found_bytes: bytes.len() });
        }
        let state = STATES.get(usize::from(bytes[STATE_AT]).wrapping_sub(1));
        let state = *state.ok_or(Damage::Field("state"))?;
        let range = range_of(bytes, nth, copy)?;
        let front = if state.has_front() { range.slot_bytes() } else { 0 };
        let bytes = &bytes[..UNIT + front];
        check(bytes, RECORD_MAGIC, VERSION)?;
        let crcs = bytes[CRCS_AT].as_chunks::<4>().0;
        let slot_crcs = crcs.iter().take(front / SECTOR).map(|crc| u32::from_le_bytes(*crc));
        let record = GuardRecord {
            uuid: bytes[UUID_AT].try_into().expect("16 bytes"),
            sequence: le64(bytes, SEQUENCE_AT),
            state,
            range,
            slot_crcs: slot_crcs.collect(),
            front: bytes[UNIT..].to_vec(),
        };
        match record.encode(copy) == bytes {
            true => Ok(record),
            false => Err(Damage::Field("reserved")),
        }
    }
}

/// Where copy `copy` of the record of a range lies in the cache area: in the gap behind a copy of
/// the superblock.
#[must_use]
pub fn guard_record_offset(nth: u8, copy: u8) -> u64 {
    crate::Geometry::superblock_offset(2 * nth + copy) + UNIT as u64
}

/// The checksums of the sectors of a slot.
#[must_use]
pub fn sector_crcs(bytes: &[u8]) -> Vec<u32> {
    bytes.chunks(SECTOR).map(checksum).collect()
}

fn begin(
    out: &mut [u8],
    magic: [u8; 8],
    uuid: &[u8; 16],
    sequence: u64,
    range: &GuardRange,
    number: u8,
) {
    out[..magic.len()].copy_from_slice(&magic);
    out[VERSION_AT].copy_from_slice(&VERSION.to_le_bytes());
    (out[RANGE_AT], out[NUMBER_AT]) = (range.nth, number);
    out[UUID_AT].copy_from_slice(uuid);
    out[SEQUENCE_AT].copy_from_slice(&sequence.to_le_bytes());
    out[START_AT].copy_from_slice(&range.start.to_le_bytes());
    let length = u32::try_from(range.bytes).expect("at most 72 KiB");
    out[LENGTH_AT].copy_from_slice(&length.to_le_bytes());
}

/// Checks the feature words of a slot. Bits of `compat` and the room are ignored: no slot is
/// written from one that was read. Whoever reads a slot writes to the origin.
fn check_features(version: u16, bytes: &[u8]) -> Result<(), Damage> {
    let room = &bytes[ROOM_AT];
    if version != VERSION_FEATURES {
        let is_zero = is_blank(&bytes[FEATURES_AT.start..ROOM_AT.end]);
        return if is_zero { Ok(()) } else { Err(Damage::Field("reserved")) };
    }
    let words =
        Features::ref_from_bytes(&bytes[FEATURES_AT]).map_err(|_| Damage::Field("words"))?;
    words.check(room)
}

/// Magic, checksum and version, in this order; returns the version.
fn check(bytes: &[u8], magic: [u8; 8], newest: u16) -> Result<u16, Damage> {
    if !bytes.starts_with(&magic) {
        return Err(Damage::Magic);
    }
    if bytes.len() < UNIT {
        return Err(Damage::Length { found_bytes: bytes.len() });
    }
    if bytes[CRC_RANGE] != checksum_without(bytes, CRC_RANGE).to_le_bytes() {
        return Err(Damage::Checksum);
    }
    let found = u16::from_le_bytes([bytes[VERSION_AT.start], bytes[VERSION_AT.start + 1]]);
    if !(VERSION..=newest).contains(&found) {
        return Err(Damage::Version { found, known: newest });
    }
    Ok(found)
}

/// The range in the bytes, if they are at their place (FM-GU1).
fn range_of(bytes: &[u8], nth: u8, number: u8) -> Result<GuardRange, Damage> {
    if bytes[RANGE_AT] != nth {
        return Err(Damage::Field("range"));
    }
    if bytes[NUMBER_AT] != number {
        return Err(Damage::WrongCopy { found: bytes[NUMBER_AT], wanted: number });
    }
    let length = usize::try_from(le32(bytes, LENGTH_AT)).unwrap_or(usize::MAX);
    let range = GuardRange { nth, start: le64(bytes, START_AT), bytes: length };
    if !range.is_known() {
        return Err(Damage::Field("range"));
    }
    Ok(range)
}

fn le32(bytes: &[u8], at: Range<usize>) -> u32 {
    u32::from_le_bytes(bytes[at].try_into().expect("four bytes"))
}

fn le64(bytes: &[u8], at: Range<usize>) -> u64 {
    u64::from_le_bytes(bytes[at].try_into().expect("eight bytes"))
}

#[cfg(test)]
mod tests {
    use proptest::prelude::*;

    use super::*;

    fn slot(range: GuardRange) -> GuardSlot {
        let cache = "/dev/nvme0n1p4".to_owned();
        let (uuid, sequence, is_alone) = ([7; 16], 3, range.nth == 1);
        GuardSlot { uuid, sequence, range, is_alone, origin_sectors: 4096, cache }
    }

    fn ranges() -> [GuardRange; 2] {
        GuardRange::of_origin(4096).try_into().unwrap()
    }

    /// As a superblock is: some bytes, and zeroes.
    fn image(range: &GuardRange) -> Vec<u8> {
        let bytes = (0..range.bytes).map(|n| if n % 8192 < 900 { (n * 7 % 251) as u8 } else { 0 });
        bytes.collect()
    }

    fn record(state: GuardState, range: GuardRange) -> GuardRecord {
        let front =
            if state.has_front() { image(&range)[..range.slot_bytes()].to_vec() } else { vec![] };
        let slot_crcs = sector_crcs(&front);
        GuardRecord { uuid: [9; 16], sequence: 5, state, range, slot_crcs, front }
    }

    #[test]
    fn a_slot_gives_back_header_and_image() {
        for range in ranges() {
            for number in [0, 1] {
                let bytes = slot(range).encode(number, &image(&range)).unwrap();
                assert_eq!(bytes.len(), range.slot_bytes());
                let (found, content) = GuardSlot::decode(range.nth, number, &bytes).unwrap();
                assert_eq!((found, content), (slot(range), image(&range)));
                assert_eq!(GuardSlot::owner(&bytes), Some([7; 16]));
            }
        }
    }

    /// A slot of a later program: feature words, and a room.
    fn later_slot(words: [u64; 3], room: u8) -> Result<(GuardSlot, Vec<u8>), Damage> {
        let [head, _] = ranges();
        let mut bytes = slot(head).encode(0, &image(&head)).unwrap();
        bytes[VERSION_AT].copy_from_slice(&VERSION_FEATURES.to_le_bytes());
        bytes[FEATURES_AT].copy_from_slice(&words.map(u64::to_le_bytes).concat());
        bytes[ROOM_AT].fill(room);
        assert!(!GuardSlot::is_written_over(&bytes), "its words are not somebody's file system");
        let crc = checksum_without(&bytes, CRC_RANGE);
        bytes[CRC_RANGE].copy_from_slice(&crc.to_le_bytes());
        GuardSlot::decode(0, 0, &bytes)
    }

    #[test]
    fn a_slot_of_a_later_program_is_read_as_its_words_say() {
        let [head, _] = ranges();
        assert_eq!(later_slot([0, 0, 4], 7), Ok((slot(head), image(&head))));
        for words in [[2, 0, 4], [0, 2, 4]] {
            let found = later_slot(words, 7);
            let Err(Damage::Later(later)) = found else { panic!("{words:?}: {found:?}") };
            assert_eq!([later.incompat, later.ro_compat], words[..2]);
        }
        assert_eq!(later_slot([0, 0, 0], 7), Err(Damage::Field("reserved")));
        assert!(later_slot([0, 0, 0], 0).is_ok());
    }

    #[test]
    fn words_of_a_slot_without_them_are_refused() {
        let [head, _] = ranges();
        let mut bytes = slot(head).encode(0, &image(&head)).unwrap();
        bytes[FEATURES_AT.start + 16] = 1;
        let crc = checksum_without(&bytes, CRC_RANGE);
        bytes[CRC_RANGE].copy_from_slice(&crc.to_le_bytes());
        assert_eq!(GuardSlot::decode(0, 0, &bytes), Err(Damage::Field("reserved")));
    }

    #[test]
    fn an_image_that_does_not_compress_has_no_slot() {
        let [head, _] = ranges();
        let mut seed = 1_u64;
        let noise = (0..head.bytes).map(|_| {
            seed = seed.wrapping_mul(6_364_136_223_846_793_005).wrapping_add(1);
            (seed >> 56) as u8
        });
        let noise: Vec<u8> = noise.collect();
        assert_eq!(slot(head).encode(0, &noise), None);
    }

    #[test]
    fn a_slot_at_another_place_is_refused() {
        let [head, tail] = ranges();
        let bytes = slot(head).encode(0, &image(&head)).unwrap();
        let wrong_copy = Damage::WrongCopy { found: 0, wanted: 1 };
        assert_eq!(GuardSlot::decode(0, 1, &bytes), Err(wrong_copy));
        assert_eq!(GuardSlot::decode(tail.nth, 0, &bytes), Err(Damage::Field("range")));
    }

    #[test]
    fn nothing_of_the_image_stays_at_its_place() {
        let [head, _] = ranges();
        let mut content = vec![0; head.bytes];
        for (at, magic) in [
            (1080, &[0x53, 0xef][..]),
            (0, b"XFSB"),
            (512, b"EFI PART"),
            (4086, b"SWAPSPACE2"),
            (4096, &[0xfc, 0x4e, 0x2b, 0xa9]),
            (0x1_0040, b"_BHRfS_M"),
        ] {
            content[at..at + magic.len()].copy_from_slice(magic);
        }
        let slots = [0, 1].map(|number| slot(head).encode(number, &content).unwrap());
        let origin = slots.concat();
        assert!(is_blank(&origin[1024..UNIT]), "the rest of the first unit");
        for at in [512, 1080, 4086, 4096, 0x1_0040] {
            assert_ne!(origin[at..at + 2], content[at..at + 2], "byte {at}");
        }
    }

    #[test]
    fn a_record_gives_back_its_state() {
        for range in ranges() {
            for state in STATES {
                let record = record(state, range);
                let mut bytes = record.encode(1);
                bytes.resize(GUARD_RECORD_BYTES, 0xaa);
                assert_eq!(GuardRecord::decode(range.nth, 1, &bytes), Ok(record));
            }
        }
    }

    #[test]
    fn records_lie_in_the_gaps_between_superblocks() {
        for nth in 0..GUARD_RANGES {
            for copy in [0, 1] {
                let begin = guard_record_offset(nth, copy);
                let end = begin + GUARD_RECORD_BYTES as u64;
                assert_eq!(begin % UNIT as u64, 0);
                let before = crate::Geometry::superblock_offset(2 * nth + copy);
                assert!(before + UNIT as u64 <= begin && end <= before + (64 << 10));
            }
        }
    }

    #[test]
    fn small_origins_have_no_ranges() {
        assert_eq!(GuardRange::of_origin(271), []);
        let [head, tail] = GuardRange::of_origin(272).try_into().unwrap();
        assert_eq!((head.start, tail.start), (0, 144));
    }

    proptest! {
        #[test]
        fn one_flipped_bit_is_damage(at in 0..GUARD_HEAD_BYTES / 2, bit in 0..8_u8) {
            let [head, _] = ranges();
            let mut bytes = slot(head).encode(0, &image(&head)).unwrap();
            bytes[at] ^= 1 << bit;
            prop_assert!(GuardSlot::decode(0, 0, &bytes).is_err());
            let mut bytes = record(GuardState::Detaching, head).encode(0);
            if at < bytes.len() {
                bytes[at] ^= 1 << bit;
                prop_assert!(GuardRecord::decode(0, 0, &bytes).is_err());
            }
        }

        #[test]
        fn any_bytes_are_decoded_or_refused(
            mut bytes in proptest::collection::vec(any::<u8>(), 0..6000),
            record in any::<bool>(),
            fix in any::<bool>(),
        ) {
            let magic = if record { RECORD_MAGIC } else { SLOT_MAGIC };
            let n = bytes.len().min(magic.len());
            bytes[..n].copy_from_slice(&magic[..n]);
            let wanted = if record { GUARD_RECORD_BYTES } else { GUARD_HEAD_BYTES / 2 };
            if fix {
                bytes.resize(wanted, 0);
                bytes[VERSION_AT].copy_from_slice(&VERSION.to_le_bytes());
                let crc = checksum_without(&bytes, CRC_RANGE);
                bytes[CRC_RANGE].copy_from_slice(&crc.to_le_bytes());
            }
            let _ = GuardSlot::decode(0, 0, &bytes);
            let _ = GuardRecord::decode(0, 0, &bytes);
            let _ = GuardSlot::owner(&bytes);
            let _ = GuardSlot::is_written_over(&bytes);
            let _ = GuardSlot::probable_origin_sectors(&bytes);
        }
    }
}
