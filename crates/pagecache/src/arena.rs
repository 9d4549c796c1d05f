// SPDX-License-Identifier: Apache-2.0 OR MIT
//! Memory of the cache: slabs of 2 MiB, cut by a buddy allocator into pieces of 4 KiB to 2 MiB.
//!
//! ```text
//!   slab 0   [ 64 KiB | 64 KiB |    128 KiB    |          256 KiB          |  ...         ]
//!   slab 1   [                              2 MiB                                        ]
//! ```
//! A slab is allocated when no other has room. The lowest free places are taken first. An empty
//! slab is given back to the system when the cache is above its limit. The bookkeeping of a folio
//! is charged to the limit in addition to its piece.
//!
//! Invariants
//! - PC-M1 Pieces do not overlap; a piece lies at a multiple of its own size in its slab.
//! - PC-M2 What is charged never exceeds the limit. The memory that the system sees may exceed it
//!   by the bookkeeping of one slab's pieces, while no slab is empty.
use std::cell::{Cell, RefCell};
use std::collections::BTreeSet;
use std::ops::Range;
use std::rc::Rc;

use block::{Buf, Bufs, PAGE, Slice};

/// Orders of pieces: 4 KiB << 0 to 4 KiB << 9.
pub(crate) const ORDER_MAX: u8 = 9;
const SLAB_PAGES: u32 = 1 << ORDER_MAX;
const SLAB_BYTES: usize = PAGE << ORDER_MAX;
/// The memory of a slab as the system sees it: a page more, as any large buffer (`Buf::alloc`).
const SLAB_TAKES_BYTES: u64 = (SLAB_BYTES + PAGE) as u64;

/// Bookkeeping of a folio: itself, and its entries in the indices.
const OVERHEAD_BYTES: u64 = size_of::<crate::folio::Folio>() as u64 + 64;

/// The memory of one cache.
pub(crate) struct Memory(Rc<Inner>);

struct Inner {
    limit_bytes: Cell<u64>,
    charged_bytes: Cell<u64>,
    pieces: Cell<u64>,
    slabs: RefCell<Slabs>,
}

#[derive(Default)]
struct Slabs {
    /// Empty places where a slab has gone back.
    bufs: Vec<Option<Buf>>,
    made: usize,
    /// First pages of what is free, by order. Pages count on from slab to slab.
    free: [BTreeSet<u32>; ORDER_MAX as usize + 1],
}

/// Some pages of memory, freed when dropped.
pub(crate) struct Piece {
    of: Rc<Inner>,
    /// One slice.
    bufs: Bufs,
    first: u32,
    order: u8,
}

/// Bytes that a piece of `order` has.
pub(crate) fn bytes_of(order: u8) -> u64 {
    (PAGE as u64) << order
}

/// What a piece of `order` is charged with.
pub(crate) fn charge_of(order: u8) -> u64 {
    bytes_of(order) + OVERHEAD_BYTES
}

impl Slabs {
    fn take(&mut self, order: u8) -> Option<u32> {
        let found = (order..=ORDER_MAX).find_map(|o| {
            let first = self.free[usize::from(o)].pop_first()?;
            Some((o, first))
        });
        let (mut have, first) = found?;
        while have > order {
            have -= 1;
            self.free[usize::from(have)].insert(first + (1 << have));
        }
        Some(first)
    }

    /// Puts pages back, together with free neighbours.
    fn put(&mut self, mut first: u32, mut order: u8) {
        while order < ORDER_MAX && self.free[usize::from(order)].remove(&(first ^ (1 << order))) {
            first &= !(1 << order);
            order += 1;
        }
        self.free[usize::from(order)].insert(first);
    }

    fn add(&mut self) {
        let place = self.bufs.iter().position(Option::is_none).unwrap_or(self.bufs.len());
        if place == self.bufs.len() {
            self.bufs.push(None);
        }
        self.bufs[place] = Some(Buf::alloc(SLAB_BYTES));
        self.made += 1;
        let first = u32::try_from(place).expect("a slab of 2 MiB each") * SLAB_PAGES;
        self.free[usize::from(ORDER_MAX)].insert(first);
    }

    fn slice(&self, first: u32, order: u8) -> Slice {
        let buf = self.bufs[(first / SLAB_PAGES) as usize].as_ref().expect("its slab is there");
        let at = (first % SLAB_PAGES) as usize * PAGE;
        buf.slice(at..at + (PAGE << order))
    }
}

impl Inner {
    /// Bytes that the system sees.
    fn resident_bytes(&self, slabs: &Slabs) -> u64 {
        slabs.made as u64 * SLAB_TAKES_BYTES + self.pieces.get() * OVERHEAD_BYTES
    }

    /// Gives empty slabs back to the system while the cache is above its limit.
    fn trim(&self) {
        let mut slabs = self.slabs.borrow_mut();
        while self.resident_bytes(&slabs) > self.limit_bytes.get() {
            let Some(first) = slabs.free[usize::from(ORDER_MAX)].pop_last() else { return };
            slabs.bufs[(first / SLAB_PAGES) as usize] = None;
            slabs.made -= 1;
        }
    }
}

impl Memory {
    /// No memory yet, and at most `limit_bytes` of it.
    pub(crate) fn new(limit_bytes: u64) -> Memory {
        Memory(Rc::new(Inner {
            limit_bytes: Cell::new(limit_bytes),
            charged_bytes: Cell::new(0),
            pieces: Cell::new(0),
            slabs: RefCell::default(),
        }))
    }

    /// A piece of `order`, contents unspecified; `None` when the limit has no room for it or no
    /// free pages lie together.
    pub(crate) fn take(&self, order: u8) -> Option<Piece> {
        let inner = &self.0;
        let charged = inner.charged_bytes.get() + charge_of(order);
        if charged > inner.limit_bytes.get() {
            return None;
        }
        let mut slabs = inner.slabs.borrow_mut();
        let first = match slabs.take(order) {
            Some(first) => first,
            None => {
                let more = SLAB_TAKES_BYTES + OVERHEAD_BYTES;
                if inner.resident_bytes(&slabs) + more > inner.limit_bytes.get() {
                    return None;
                }
                slabs.add();
                slabs.take(order)?
            }
        };
        inner.charged_bytes.set(charged);
        inner.pieces.set(inner.pieces.get() + 1);
        let bufs = slabs.slice(first, order).into();
        drop(slabs);
        inner.trim();
        Some(Piece { of: inner.clone(), bufs, first, order })
    }

    /// Bytes charged: pages in use and their bookkeeping.
    pub(crate) fn used_bytes(&self) -> u64 {
        self.0.charged_bytes.get()
    }

    pub(crate) fn limit_bytes(&self) -> u64 {
        self.0.limit_bytes.get()
    }
}

impl Piece {
    /// Pages `range` of it.
    pub(crate) fn pages(&self, range: &Range<u32>) -> Slice {
        let slice = self.bufs.iter().next().expect("a piece has one slice");
        slice.slice(range.start as usize * PAGE..range.end as usize * PAGE)
    }

    /// All of it.
    pub(crate) fn bufs(&self) -> &Bufs {
        &self.bufs
    }

    pub(crate) fn order(&self) -> u8 {
        self.order
    }
}

impl Drop for Piece {
    fn drop(&mut self) {
        let of = &self.of;
        of.charged_bytes.set(of.charged_bytes.get() - charge_of(self.order));
        of.pieces.set(of.pieces.get() - 1);
        let whole = {
            let mut slabs = of.slabs.borrow_mut();
            slabs.put(self.first, self.order);
            !slabs.free[usize::from(ORDER_MAX)].is_empty()
        };
        if whole {
            of.trim();
        }
    }
}

#[cfg(test)]
mod tests {
    use proptest::prelude::*;

    use super::*;

    const MIB: u64 = 1 << 20;

    #[test]
    fn the_limit_holds_for_pages_and_what_is_known_about_them() {
        let memory = Memory::new(8 * MIB);
        let mut pieces = Vec::new();
        while let Some(piece) = memory.take(0) {
            pieces.push(piece);
        }
        assert!(memory.used_bytes() <= 8 * MIB);
        // Less than a slab is left, as the last one does not fit beside what is known.
        assert!(memory.used_bytes() > 6 * MIB, "{} used", memory.used_bytes());
        drop(pieces);
        assert_eq!(memory.used_bytes(), 0);
        let large: Vec<_> = std::iter::from_fn(|| memory.take(ORDER_MAX)).collect();
        assert_eq!(large.len(), 3);
    }

    #[test]
    fn what_comes_back_joins_its_neighbours() {
        let memory = Memory::new(3 * MIB);
        let small: Vec<_> = (0..300).map(|_| memory.take(0).unwrap()).collect();
        assert!(memory.take(ORDER_MAX).is_none());
        drop(small);
        assert!(memory.take(ORDER_MAX).is_some());
    }

    #[test]
    fn empty_slabs_make_room_for_what_is_known_about_many_pages() {
        let memory = Memory::new(64 * MIB);
        let large: Vec<_> = std::iter::from_fn(|| memory.take(ORDER_MAX)).collect();
        assert_eq!(large.len(), 31);
        drop(large);
        let small: Vec<_> = std::iter::from_fn(|| memory.take(0)).collect();
        let resident = memory.0.resident_bytes(&memory.0.slabs.borrow());
        assert!(resident <= 64 * MIB, "{resident} B");
        assert!(memory.used_bytes() > 61 * MIB, "{small} pages", small = small.len());
    }

    proptest! {
        /// PC-M1.
        #[test]
        fn pieces_never_overlap(steps in prop::collection::vec((0u8..=9, any::<bool>()), 1..200)) {
            let memory = Memory::new(12 * MIB);
            let mut held: Vec<Piece> = Vec::new();
            for (order, give_back) in steps {
                if give_back && !held.is_empty() {
                    held.swap_remove(usize::from(order) % held.len());
                } else if let Some(piece) = memory.take(order) {
                    held.push(piece);
                }
                let mut spans: Vec<_> =
                    held.iter().map(|p| (p.first, p.first + (1 << p.order))).collect();
                spans.sort_unstable();
                prop_assert!(spans.windows(2).all(|w| w[0].1 <= w[1].0), "{spans:?}");
                prop_assert!(spans.iter().all(|(from, to)| from % (to - from) == 0));
                let charged: u64 = held.iter().map(|p| charge_of(p.order)).sum();
                prop_assert_eq!(memory.used_bytes(), charged);
                prop_assert!(charged <= 12 * MIB);
            }
        }
    }
}
