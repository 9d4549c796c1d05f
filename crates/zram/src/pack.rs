// SPDX-License-Identifier: Apache-2.0 OR MIT
//! Packing: compressed objects one after the other in a unit, which is one write to the device.
//!
//! ```text
//!  │ object │ object │ object │ object │ object │ zeroes │
//!  └───── block ──┴────── block ───────────┴── block ────┘
//! ```
//!
//! Invariants
//! - ZR-P1 Every byte of a finished unit was written by us: no stale memory reaches the media.
//! - ZR-P2 Objects may cross blocks but not units.

use block::Buf;
use format::zram::{encode_object, object_bytes};

pub(crate) use format::zram::{OBJECT_HEADER, verify};

/// Bytes of a backing block.
pub(crate) const BLOCK: usize = 4096;
/// Largest unit.
pub(crate) const UNIT_BYTES_MAX: usize = 1 << 20;

/// Where an object lies in its unit, and the bits of its checksum that its address keeps.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(crate) struct Offset {
    /// Bytes from the start of the unit; a multiple of 8.
    pub(crate) at: usize,
    /// 20 bits of the checksum, for [`verify`].
    pub(crate) check: u32,
}

/// Blocks that hold an object of `len` bytes which begins at byte `offset` of the first of them.
pub(crate) const fn blocks_of(offset: usize, len: usize) -> usize {
    (offset % BLOCK + OBJECT_HEADER + len).div_ceil(BLOCK)
}

/// A unit in the making.
#[derive(Debug)]
pub(crate) struct Packer {
    buf: Buf,
    at: usize,
    generation: u32,
}

impl Packer {
    /// An empty unit of at most `max_bytes` (whole blocks, at most [`UNIT_BYTES_MAX`]). All its
    /// objects carry `generation`, which distinguishes them from older objects in the same place.
    pub(crate) fn new(max_bytes: usize, generation: u32) -> Packer {
        assert!(max_bytes.is_multiple_of(BLOCK) && (1..=UNIT_BYTES_MAX).contains(&max_bytes));
        Packer { buf: Buf::alloc(max_bytes), at: 0, generation }
    }

    /// Whether an object of `len` bytes still fits.
    pub(crate) fn fits(&self, len: usize) -> bool {
        self.at + object_bytes(len) <= self.buf.len()
    }

    /// Blocks used so far.
    pub(crate) fn blocks(&self) -> usize {
        self.at.div_ceil(BLOCK)
    }

    /// Appends a page of `len` bytes, which must fit; `fill` puts them in their place.
    pub(crate) fn push_page(
        &mut self,
        slot: u32,
        priority: u8,
        len: usize,
        fill: impl FnOnce(&mut [u8]),
    ) -> Offset {
        let (at, generation) = (self.at, self.generation);
        let encode = |b: &mut [u8]| encode_object(slot, priority, generation, len, b, fill);
        let check = self.buf.write(|b| encode(&mut b[at..]));
        self.at += object_bytes(len);
        Offset { at, check }
    }

    /// The unit, and the number of its blocks. The buffer beyond these blocks is not written.
    pub(crate) fn finish(self) -> (Buf, usize) {
        let blocks = self.blocks();
        self.buf.write(|b| b[self.at..blocks * BLOCK].fill(0)); // ZR-P1
        (self.buf, blocks)
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn packed_objects_are_found_again_and_the_tail_is_zero() {
        // A pooled buffer that holds something else.
        Buf::alloc(4 * BLOCK).write(|b| b.fill(0xa5));
        let mut packer = Packer::new(4 * BLOCK, 9);
        let pages: Vec<Vec<u8>> = (0..6).map(|n| vec![n + 1; 100 + 795 * usize::from(n)]).collect();
        let mut placed = Vec::new();
        for (slot, bytes) in (10..).zip(&pages) {
            if packer.fits(bytes.len()) {
                let priority = 1;
                let fill = |to: &mut [u8]| to.copy_from_slice(bytes);
                placed.push((slot, bytes, packer.push_page(slot, priority, bytes.len(), fill)));
            }
        }
        let (buf, blocks) = packer.finish();
        assert_eq!((placed.len(), blocks), (6, 4));
        buf.read(|b| {
            for (slot, bytes, offset) in &placed {
                let found = verify(&b[offset.at..], *slot, offset.check).unwrap();
                assert_eq!((found.priority, found.bytes, found.generation), (1, &bytes[..], 9));
                // The blocks that its address leads to are enough.
                let first = offset.at / BLOCK * BLOCK;
                let end = first + blocks_of(offset.at, bytes.len()) * BLOCK;
                assert!(verify(&b[offset.at..end], *slot, offset.check).is_ok());
            }
            let (last, bytes, offset) = placed.last().map(|(s, b, o)| (s, b, o)).unwrap();
            assert_eq!(*last, 15);
            assert!(b[offset.at + object_bytes(bytes.len())..].iter().all(|byte| *byte == 0));
        });
    }

    #[test]
    fn a_unit_takes_no_more_than_it_was_made_for() {
        let mut packer = Packer::new(BLOCK, 0);
        assert!(!packer.fits(BLOCK - OBJECT_HEADER + 1));
        assert!(packer.fits(BLOCK - OBJECT_HEADER));
        packer.push_page(3, 0, BLOCK - OBJECT_HEADER, |out| out.fill(1));
        assert_eq!(packer.blocks(), 1);
        assert!(!packer.fits(1));
    }

    #[test]
    fn blocks_of_an_object_count_its_header() {
        assert_eq!(blocks_of(0, BLOCK - OBJECT_HEADER), 1);
        assert_eq!(blocks_of(0, BLOCK), 2);
        assert_eq!(blocks_of(4088, 1), 2);
        assert_eq!(blocks_of(5 * BLOCK + 8, 4064), 1);
    }
}
