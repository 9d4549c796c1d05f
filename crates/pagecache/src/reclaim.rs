// SPDX-License-Identifier: Apache-2.0 OR MIT
//! Clean pages go when memory is needed, those first that are least likely to be read again.
//!
//! Invariants
//! - PC-RC1 Only folios that are idle go: nothing of them is dirty, in flight or referred to.
//! - PC-RC2 For one folio no more than twice its size is let go.
use crate::PageCache;
use crate::arena::{Piece, bytes_of, charge_of};

impl PageCache {
    /// Lets folios go until a piece of `order` can be had; `None` when as many were let go as that
    /// is worth, or none can be.
    pub(crate) fn make_room(&self, order: u8) -> Option<Piece> {
        let mut freed = 0;
        // Pieces lie scattered: after twice as much the caller tries a smaller one.
        while freed < 2 * bytes_of(order) {
            freed += self.evict_one()?;
            if let Some(piece) = self.memory.take(order) {
                return Some(piece);
            }
        }
        None
    }

    /// Lets one idle folio go; how many bytes that sets free.
    fn evict_one(&self) -> Option<u64> {
        let order = self.cache.borrow_mut().evict()?; // PC-RC1
        self.evicted.set(self.evicted.get() + 1);
        Some(charge_of(order))
    }
}
