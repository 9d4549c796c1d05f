// SPDX-License-Identifier: Apache-2.0 OR MIT
//! The mark of a cache that another one has replaced. It takes the place of each superblock copy of
//! the native format, and of the superblock of the kernel's.
//!
//! Invariant
//! - FM-RM1 The mark is one sector of 512 bytes, and its magic is none of a superblock: a device
//!   that has it is no cache, also for programs that do not know the mark.
use std::ops::Range;

use crate::checksum_without;

/// Bytes of a mark: what a device writes whole.
pub const REPLACED_BYTES: usize = 512;

const MAGIC: [u8; 8] = *b"MPWCGONE";
const VERSION: u16 = 1;
const VERSION_AT: Range<usize> = 8..10;
const CRC_AT: Range<usize> = 12..16;
const LENGTH_AT: Range<usize> = 16..18;
/// How many parts the cache had: version 0.2 looks at it, and in bytes 24 to 31 for their length.
const PARTS_AT: usize = 18;
const TEXT_AT: Range<usize> = 32..REPLACED_BYTES;

/// The mark: which cache device has taken the place.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct ReplacedMark {
    /// Its name, as a table has it; cut off where it is too long.
    pub successor: String,
}

impl ReplacedMark {
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
        out[PARTS_AT] = 1;
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
        let successor = String::from_utf8(text.to_vec()).ok()?;
        Some(ReplacedMark { successor })
    }

    /// The mark at the beginning of `bytes`, also one of which a power cut has left the first word
    /// alone: nobody has used the successor then, and its name is not known.
    #[must_use]
    pub fn find(bytes: &[u8]) -> Option<ReplacedMark> {
        let unnamed = || ReplacedMark { successor: "another cache device".to_owned() };
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

    fn mark(successor: &str) -> ReplacedMark {
        ReplacedMark { successor: successor.to_owned() }
    }

    fn encoded(successor: &str) -> [u8; REPLACED_BYTES] {
        let mut bytes = [0x5a; REPLACED_BYTES];
        mark(successor).encode(&mut bytes);
        bytes
    }

    #[test]
    fn a_mark_names_its_successor() {
        for name in ["", "/srv/new.img", "pmem:/mnt/ä b"] {
            assert_eq!(ReplacedMark::decode(&encoded(name)), Some(mark(name)));
        }
        let golden = encoded("/srv/n");
        assert_eq!(golden[..12], *b"MPWCGONE\x01\0\0\0");
        assert_eq!(golden[16..39], *b"\x06\0\x01\0\0\0\0\0\0\0\0\0\0\0\0\0/srv/n\0");
    }

    /// Version 0.2 has marked divided caches, too.
    #[test]
    fn the_mark_of_a_divided_cache_is_one() {
        let mut bytes = encoded("/srv/n");
        bytes[16..32].copy_from_slice(b"\x06\0\x03\0\0\0\0\0\x02\x01\0\0\0\0\0\0");
        let crc = checksum_without(&bytes, CRC_AT);
        bytes[CRC_AT].copy_from_slice(&crc.to_le_bytes());
        assert_eq!(ReplacedMark::decode(&bytes), Some(mark("/srv/n")));
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
