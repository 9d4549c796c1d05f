// SPDX-License-Identifier: Apache-2.0 OR MIT
//! The mark of a cache that another one has replaced. It takes the place of each superblock copy of
//! the native format, and of the superblock of the kernel's.
//!
//! Invariant
//! - FM-RM1 The mark is one sector of 512 bytes, and its magic is none of a superblock: a device
//!   that has it is no cache, also for programs that do not know the mark.
use std::ops::Range;

use crate::{Part, checksum_without};

/// Bytes of a mark: what a device writes whole.
pub const REPLACED_BYTES: usize = 512;

const MAGIC: [u8; 8] = *b"MPWCGONE";
const VERSION: u16 = 1;
const VERSION_AT: Range<usize> = 8..10;
const CRC_AT: Range<usize> = 12..16;
const LENGTH_AT: Range<usize> = 16..18;
const PARTS_AT: usize = 18;
const AREA_AT: Range<usize> = 24..32;
const TEXT_AT: Range<usize> = 32..REPLACED_BYTES;

/// The mark: which cache device has taken the place.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct ReplacedMark {
    /// Its name, as a table has it; cut off where it is too long.
    pub successor: String,
    /// Number of parts of the cache that was replaced, 1 if it was not divided: only the first has
    /// a mark.
    pub parts: u8,
    /// 512-byte sectors from one part to the next; 0 if it was not divided.
    pub area_sectors: u64,
}

impl ReplacedMark {
    /// The mark of a cache that `successor` replaces; of a divided one `part` is its first.
    #[must_use]
    pub fn new(successor: String, part: Option<Part>) -> ReplacedMark {
        let (parts, area_sectors) = part.map_or((1, 0), |part| (part.of, part.area_sectors));
        ReplacedMark { successor, parts, area_sectors }
    }

    /// Encodes the mark into the first [`REPLACED_BYTES`] of `out`.
    ///
    /// # Panics
    /// If `out` is shorter.
    pub fn encode(&self, out: &mut [u8]) {
        let out = &mut out[..REPLACED_BYTES];
        let mut len = self.successor.len().min(TEXT_AT.len());
        while !self.successor.is_char_boundary(len) {
            len -= 1;
        }
        out.fill(0);
        out[..MAGIC.len()].copy_from_slice(&MAGIC);
        out[VERSION_AT].copy_from_slice(&VERSION.to_le_bytes());
        let length = u16::try_from(len).expect("shorter than a sector");
        out[LENGTH_AT].copy_from_slice(&length.to_le_bytes());
        out[PARTS_AT] = self.parts;
        out[AREA_AT].copy_from_slice(&self.area_sectors.to_le_bytes());
        out[TEXT_AT][..len].copy_from_slice(&self.successor.as_bytes()[..len]);
        let crc = checksum_without(out, CRC_AT);
        out[CRC_AT].copy_from_slice(&crc.to_le_bytes());
    }

    /// Decodes the mark at the beginning of `bytes`; `None` if it is none, or damaged.
    #[must_use]
    pub fn decode(bytes: &[u8]) -> Option<ReplacedMark> {
        let bytes = bytes.get(..REPLACED_BYTES)?;
        let crc = checksum_without(bytes, CRC_AT);
        let is_mark = bytes[..MAGIC.len()] == MAGIC
            && bytes[CRC_AT] == crc.to_le_bytes()
            && bytes[VERSION_AT] == VERSION.to_le_bytes();
        if !is_mark {
            return None;
        }
        let len = usize::from(u16::from_le_bytes([bytes[LENGTH_AT.start], bytes[17]]));
        let text = bytes[TEXT_AT].get(..len)?;
        let area_sectors = u64::from_le_bytes(bytes[AREA_AT].try_into().ok()?);
        let successor = String::from_utf8(text.to_vec()).ok()?;
        Some(ReplacedMark { successor, parts: bytes[PARTS_AT], area_sectors })
    }

    /// The mark at the beginning of `bytes`, also one of which a power cut has left the first word
    /// alone: nobody has used the successor then, and its name is not known.
    #[must_use]
    pub fn find(bytes: &[u8]) -> Option<ReplacedMark> {
        let unnamed = || ReplacedMark::new("another cache device".to_owned(), None);
        ReplacedMark::decode(bytes).or_else(|| bytes.starts_with(&MAGIC).then(unnamed))
    }

    /// Puts the first word of a mark over that of a superblock, which is no cache from then on. One
    /// word is never torn; what follows it stays.
    pub fn begin(out: &mut [u8]) {
        out[..MAGIC.len()].copy_from_slice(&MAGIC);
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    fn encoded(successor: &str) -> [u8; REPLACED_BYTES] {
        let mut bytes = [0x5a; REPLACED_BYTES];
        ReplacedMark::new(successor.to_owned(), None).encode(&mut bytes);
        bytes
    }

    #[test]
    fn a_mark_names_its_successor() {
        for name in ["", "/srv/new.img", "pmem:/mnt/ä b"] {
            let decoded = ReplacedMark::decode(&encoded(name));
            assert_eq!(decoded, Some(ReplacedMark::new(name.to_owned(), None)));
        }
        let part = Part { nth: 0, of: 3, chunk_sectors: 8, area_sectors: 0x0102 };
        let mark = ReplacedMark::new("/srv/n".to_owned(), Some(part));
        let mut golden = [0; REPLACED_BYTES];
        mark.encode(&mut golden);
        assert_eq!(ReplacedMark::decode(&golden), Some(mark));
        assert_eq!(golden[..12], *b"MPWCGONE\x01\0\0\0");
        let rest = *b"\x06\0\x03\0\0\0\0\0\x02\x01\0\0\0\0\0\0/srv/n\0";
        assert_eq!(golden[16..39], rest);
    }

    #[test]
    fn a_long_name_is_cut_between_characters() {
        let cut = ReplacedMark::decode(&encoded(&format!("x{}", "ä".repeat(400)))).unwrap();
        assert_eq!(cut.successor, format!("x{}", "ä".repeat(239)));
    }

    #[test]
    fn any_flipped_bit_makes_it_no_mark() {
        let good = encoded("/srv/new.img");
        for bit in 0..REPLACED_BYTES * 8 {
            let mut bad = good;
            bad[bit / 8] ^= 1 << (bit % 8);
            assert_eq!(ReplacedMark::decode(&bad), None, "bit {bit}");
        }
        assert_eq!(ReplacedMark::decode(&good[..100]), None);
        let begun = ReplacedMark::find(&good[..100]).unwrap();
        assert_eq!(begun.successor, "another cache device");
        assert_eq!(ReplacedMark::find(&[0; REPLACED_BYTES]), None);
    }
}
