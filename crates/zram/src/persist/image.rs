// SPDX-License-Identifier: Apache-2.0 OR MIT
//! Image: the state of a slot according to the chain of units; ten bytes each.
//!
//! Invariants
//! - ZR-IM1 The image of a slot is its state in the last unit that names the slot. The slot differs
//!   from its image only while it is dirty.
//! - ZR-IM2 The blocks of an image lie in the data blocks of its region, so that no sum of block
//!   numbers wraps: images of a checkpoint are checked, those of a unit lie within the unit.
use std::ops::Range;

use format::zram::{self, MapEntry};

use crate::backing::Address;
use crate::pack::blocks_of;
use crate::slot::{Flags, Slot};

const SIZE: u16 = (1 << 13) - 1;
const SAME: u16 = 1 << 13;
const PRIORITY_SHIFT: u32 = 14;

/// See the module. The default is a slot without a page.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq)]
pub(crate) struct Image {
    /// The repeated word, or the address of the object.
    place: u64,
    /// Size of the object 13, SAME 1, priority 2.
    meta: u16,
}

impl Image {
    pub(super) fn same(word: u64) -> Image {
        Image { place: word, meta: SAME }
    }

    pub(super) fn page(at: Address, size: usize, priority: u8) -> Image {
        let size = u16::try_from(size).expect("at most a page");
        Image { place: at.0, meta: size | u16::from(priority) << PRIORITY_SHIFT }
    }

    pub(super) fn is_none(self) -> bool {
        self.meta == 0
    }

    pub(super) fn is_page(self) -> bool {
        self.meta & SIZE != 0
    }

    pub(super) fn size(self) -> usize {
        usize::from(self.meta & SIZE)
    }

    pub(super) fn priority(self) -> u8 {
        u8::try_from(self.meta >> PRIORITY_SHIFT).expect("2 bits are left")
    }

    /// Where the object is; only of a page.
    pub(super) fn address(self) -> Address {
        Address(self.place)
    }

    /// Bytes of its object with header and padding.
    pub(super) fn bytes(self) -> usize {
        zram::object_bytes(self.size())
    }

    /// The blocks in which its object lies, none if it has none.
    pub(super) fn blocks(self) -> Range<u32> {
        if !self.is_page() {
            return 0..0;
        }
        let at = self.address();
        let blocks = u32::try_from(blocks_of(at.offset(), self.size())).expect("three at most");
        at.block()..at.block() + blocks
    }

    /// The slot that has this image, not in memory.
    pub(super) fn slot(self, accessed: u32) -> Slot {
        if self.is_none() {
            Slot::default()
        } else if self.is_page() {
            let slot = Slot::object(self.place, self.size(), self.priority(), accessed);
            slot.with(Flags::BACKED)
        } else {
            Slot::same(self.place, accessed)
        }
    }

    pub(super) fn entry(self, slot: u32) -> Option<MapEntry> {
        if self.is_none() {
            return None;
        }
        let image = if self.is_page() {
            let at = self.address();
            zram::Image::Page {
                block: at.block(),
                offset: u16::try_from(at.offset()).expect("below a block's bytes"),
                check: at.object_check(),
                size: self.meta & SIZE,
                priority: self.priority(),
            }
        } else {
            zram::Image::Same(self.place)
        };
        Some(MapEntry { slot, image })
    }

    /// The image of a checkpoint's entry; `None` if its object is not within `data` (ZR-IM2).
    pub(super) fn of_entry(entry: &MapEntry, data: &Range<u32>) -> Option<Image> {
        match entry.image {
            zram::Image::Same(word) => Some(Image::same(word)),
            zram::Image::Page { block, offset, check, size, priority } => {
                let (offset, size) = (usize::from(offset), usize::from(size));
                let blocks = u32::try_from(blocks_of(offset, size)).expect("three at most");
                let end = block.checked_add(blocks)?;
                let lies_there = data.start <= block && end <= data.end;
                let at = Address::packed(block, offset, check);
                lies_there.then(|| Image::page(at, size, priority))
            }
        }
    }
}

/// The images of a part's slots.
pub(super) struct Images {
    places: Vec<u64>,
    metas: Vec<u16>,
}

impl Images {
    pub(super) fn new(slots: u32) -> Images {
        // Zeroed by the system when it is first touched.
        Images { places: vec![0; slots as usize], metas: vec![0; slots as usize] }
    }

    pub(super) fn len(&self) -> u32 {
        u32::try_from(self.metas.len()).expect("made from a u32")
    }

    pub(super) fn get(&self, slot: u32) -> Image {
        Image { place: self.places[slot as usize], meta: self.metas[slot as usize] }
    }

    pub(super) fn set(&mut self, slot: u32, image: Image) -> Image {
        let old = self.get(slot);
        self.places[slot as usize] = image.place;
        self.metas[slot as usize] = image.meta;
        old
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    /// An entry with a right checksum and a block number near `u32::MAX`: the end of its object
    /// wrapped to a small number, and the check took it for one within the data.
    #[test]
    fn an_object_beyond_the_data_has_no_image() {
        let entry = |block| Image::page(Address::packed(block, 4088, 0), 4096, 0).entry(5).unwrap();
        for data in [64..73, 71..80, 64..u32::MAX - 1, 0..u32::MAX] {
            let found = Image::of_entry(&entry(70), &data).is_some();
            assert_eq!(found, data.start <= 70, "{data:?}");
            for block in [data.end - 2, data.end - 1, u32::MAX - 2, u32::MAX] {
                assert_eq!(Image::of_entry(&entry(block), &data), None, "{block} of {data:?}");
            }
        }
    }

    #[test]
    fn an_image_survives_a_checkpoint_and_makes_its_slot() {
        let page = Image::page(Address::packed(70, 4088, 0xf_00ff), 4096, 3);
        assert_eq!(page.blocks(), 70..73);
        for image in [page, Image::same(u64::MAX), Image::same(0)] {
            let entry = image.entry(5).unwrap();
            assert_eq!(Image::of_entry(&entry, &(70..73)), Some(image));
        }
        assert_eq!(Image::default().entry(5), None);
        assert!(Image::default().is_none() && !Image::same(0).is_none());
        let slot = page.slot(9);
        assert!(slot.has(Flags::BACKED) && slot.has(Flags::HUGE));
        assert_eq!((slot.place, slot.size(), slot.priority()), (page.address().0, 4096, 3));
        assert!(Image::default().slot(9).is_empty());
        let mut images = Images::new(7);
        assert_eq!(images.set(6, page), Image::default());
        assert_eq!((images.get(6), images.len()), (page, 7));
    }
}
