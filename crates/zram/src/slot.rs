// SPDX-License-Identifier: Apache-2.0 OR MIT
//! Slot: the state of one page, in 16 bytes; and the table of a part's slots.
//!
//! ```text
//!   place     the repeated word (SAME), the place in memory, or that on the backing device
//!   (BACKED) bits      size of the object 13 | flags | priority of its algorithm 2
//!   accessed  seconds on the device's clock when it was last read or written
//! ```
//!
//! Invariants
//! - ZR-SL1 A slot without a page is all zeroes. The table is made in pieces as they are needed, so
//!   it takes memory only where pages were, and no piece is so large that the system would refuse
//!   it.
//! - ZR-SL2 SAME and BACKED exclude each other. A slot has a page when it has one of them or a
//!   size.
//! - ZR-SL3 Every access clears IDLE and PICKED. This is how an I/O in flight finds out that its
//!   page is not cold any more.
use bitflags::bitflags;

/// Bytes of a page: the unit of everything here.
pub(crate) const PAGE: usize = block::PAGE;

const SIZE_MASK: u32 = (1 << 13) - 1;
const PRIORITY_SHIFT: u32 = 30;

bitflags! {
    /// Flags of a slot. The letters of `block_state` are in brackets.
    #[derive(Clone, Copy, Debug, Default, PartialEq, Eq)]
    pub(crate) struct Flags: u32 {
        /// All words of the page are equal; it takes no memory. [s]
        const SAME = 1 << 13;
        /// Written back: the page is on the backing device, not in memory. [w]
        const BACKED = 1 << 14;
        /// Being written back.
        const PICKED = 1 << 15;
        /// Stored uncompressed, because compression saved too little. [h]
        const HUGE = 1 << 16;
        /// Not accessed since it was marked. [i]
        const IDLE = 1 << 17;
        /// All algorithms of the device have failed on it. [n]
        const INCOMPRESSIBLE = 1 << 18;
    }
}

/// See the module.
#[derive(Clone, Copy, PartialEq, Eq, Default)]
pub(crate) struct Slot {
    pub(crate) place: u64,
    bits: u32,
    pub(crate) accessed: u32,
}

impl Slot {
    /// A page whose words are all `word`.
    pub(crate) fn same(word: u64, accessed: u32) -> Slot {
        Slot { place: word, bits: Flags::SAME.bits(), accessed }
    }

    /// A page kept as an object of `size` bytes, compressed by the algorithm of `priority`;
    /// uncompressed when `size` is that of a page.
    pub(crate) fn object(place: u64, size: usize, priority: u8, accessed: u32) -> Slot {
        assert!(size > 0 && size <= PAGE && priority < 4, "object of {size}, {priority}");
        let huge = if size == PAGE { Flags::HUGE } else { Flags::empty() };
        let size = u32::try_from(size).expect("at most a page, asserted above");
        let bits = size | huge.bits() | u32::from(priority) << PRIORITY_SHIFT;
        Slot { place, bits, accessed }
    }

    /// Whether there is no page: it reads as zeroes.
    pub(crate) fn is_empty(self) -> bool {
        self.bits & (SIZE_MASK | Flags::SAME.bits() | Flags::BACKED.bits()) == 0
    }

    /// Whether it reads as zeroes: it has no page, or one of the word 0.
    pub(crate) fn is_zero(self) -> bool {
        self.is_empty() || (self.place == 0 && self.has(Flags::SAME))
    }

    pub(crate) fn has(self, flags: Flags) -> bool {
        self.flags().intersects(flags)
    }

    /// Whether its object is in memory.
    pub(crate) fn is_resident(self) -> bool {
        self.size() > 0 && !self.has(Flags::BACKED)
    }

    /// Bytes of its object; 0 for SAME and empty ones.
    pub(crate) fn size(self) -> usize {
        (self.bits & SIZE_MASK) as usize
    }

    /// The algorithm that has compressed it: 0 the primary one, 1 to 3 those of recompression.
    pub(crate) fn priority(self) -> u8 {
        (self.bits >> PRIORITY_SHIFT) as u8
    }

    pub(crate) fn flags(self) -> Flags {
        Flags::from_bits_truncate(self.bits)
    }

    pub(crate) fn with(self, flags: Flags) -> Slot {
        Slot { bits: self.bits | flags.bits(), ..self }
    }

    pub(crate) fn without(self, flags: Flags) -> Slot {
        Slot { bits: self.bits & !flags.bits(), ..self }
    }

    pub(crate) fn at(self, place: u64) -> Slot {
        Slot { place, ..self }
    }
}

impl std::fmt::Debug for Slot {
    fn fmt(&self, f: &mut std::fmt::Formatter<'_>) -> std::fmt::Result {
        let (size, priority) = (self.size(), self.priority());
        write!(f, "Slot({:#x}, {size} B, {priority}, {:?})", self.place, self.flags())
    }
}

/// Slots of a piece of the table: 1 MiB.
const PIECE: u32 = 1 << 16;

/// The slots of a part.
pub(crate) struct Slots {
    /// Empty where there was never a page (ZR-SL1).
    pieces: Vec<Vec<[u64; 2]>>,
    count: u32,
}

impl Slots {
    pub(crate) fn new(count: u32) -> Slots {
        Slots { pieces: vec![Vec::new(); count.div_ceil(PIECE) as usize], count }
    }

    pub(crate) fn len(&self) -> u32 {
        self.count
    }

    #[inline]
    pub(crate) fn get(&self, nth: u32) -> Slot {
        assert!(nth < self.count, "slot {nth} of {}", self.count);
        match self.pieces[(nth / PIECE) as usize].get((nth % PIECE) as usize) {
            Some([place, rest]) => {
                Slot { place: *place, bits: *rest as u32, accessed: (rest >> 32) as u32 }
            }
            None => Slot::default(),
        }
    }

    pub(crate) fn set(&mut self, nth: u32, slot: Slot) {
        assert!(nth < self.count, "slot {nth} of {}", self.count);
        let piece = &mut self.pieces[(nth / PIECE) as usize];
        if piece.is_empty() {
            // Zeroed by the system when it is first touched.
            *piece = vec![[0; 2]; PIECE.min(self.count - nth / PIECE * PIECE) as usize];
        }
        let rest = u64::from(slot.bits) | u64::from(slot.accessed) << 32;
        piece[(nth % PIECE) as usize] = [slot.place, rest];
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn the_table_returns_the_slot_that_was_set() {
        let mut slots = Slots::new(2);
        assert!(slots.get(1).is_empty());
        let slot = Slot::object(u64::MAX, PAGE, 3, u32::MAX).with(Flags::IDLE | Flags::PICKED);
        slots.set(1, slot);
        assert_eq!(slots.get(1), slot);
        assert_eq!((slot.size(), slot.priority()), (PAGE, 3));
        assert!(slot.has(Flags::HUGE) && slot.is_resident());
        assert_eq!(slots.get(0), Slot::default());
        assert_eq!(size_of::<[u64; 2]>(), 16);
    }

    #[test]
    fn a_large_table_takes_memory_only_where_pages_are() {
        let mut slots = Slots::new(1 << 31);
        let last = slots.len() - 1;
        assert!(slots.get(last).is_empty());
        slots.set(last, Slot::same(7, 1));
        assert_eq!(slots.get(last), Slot::same(7, 1));
        assert!(slots.get(last - 1).is_empty() && slots.get(0).is_empty());
        assert_eq!(slots.pieces.iter().filter(|piece| !piece.is_empty()).count(), 1);
        let mut odd = Slots::new(PIECE + 3);
        odd.set(PIECE + 2, Slot::same(7, 1));
        assert_eq!((odd.get(PIECE + 2), odd.len()), (Slot::same(7, 1), PIECE + 3));
    }

    #[test]
    fn kinds_exclude_each_other() {
        assert!(!Slot::same(0, 1).is_empty());
        assert!(!Slot::same(0, 1).is_resident());
        let backed = Slot::object(7, 100, 1, 0).with(Flags::BACKED);
        assert!(!backed.is_resident() && !backed.is_empty());
    }
}
