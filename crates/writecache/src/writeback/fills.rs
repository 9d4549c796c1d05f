// SPDX-License-Identifier: Apache-2.0 OR MIT
//! Fills: filled writes in flight, and which reads of the origin they make invalid.
//!
//! ```text
//!   read:   failed() ─▶ read of the origin ─▶ must_reread: waits for fills ─▶ again, or done
//!   write:  begin ─▶ filled write of the origin ─▶ its gaps are kept after an error ─▶ end
//! ```
//!
//! Invariant
//! - WC-SP2 Data that a client read from the origin count only if no filled write was in progress
//!   over them when they arrived, and none has failed since the read was submitted.
use std::cell::{Cell, RefCell};
use std::ops::Range;

use roaring::RoaringTreemap;

use crate::planted::Fault;
use crate::store::Store;

/// See the module.
#[derive(Default)]
pub(crate) struct Fills {
    /// The gaps of filled writes in flight.
    gaps: RefCell<RoaringTreemap>,
    /// How many filled writes have failed.
    failed: Cell<u64>,
}

impl Fills {
    /// A filled write over `gaps` begins.
    pub(super) fn begin(&self, gaps: &[Range<u64>]) {
        let mut filling = self.gaps.borrow_mut();
        for gap in gaps {
            filling.insert_range(gap.clone());
        }
    }

    /// A filled write has ended, and if it failed the data of its gaps are kept.
    pub(super) fn end(&self, gaps: &[Range<u64>], has_failed: bool, store: &Store) {
        for gap in gaps {
            self.gaps.borrow_mut().remove_range(gap.clone());
        }
        self.failed.set(self.failed.get() + u64::from(has_failed));
        store.waits.fills.wake_all();
    }

    /// A counter to be read before a read of the origin is submitted, for [`Fills::must_reread`].
    pub(crate) fn failed(&self) -> u64 {
        self.failed.get()
    }

    /// WC-SP2: whether no read of the origin that began when `failed` was read has to wait or to be
    /// repeated, whatever its blocks are.
    #[inline]
    pub(crate) fn cannot_affect(&self, failed: u64) -> bool {
        self.failed() == failed && self.gaps.borrow().is_empty()
    }

    /// WC-SP2. Waits while a filled write is in flight over any of `blocks`, which were read from
    /// the origin after `failed` was read. Returns whether they have to be read again.
    pub(crate) async fn must_reread(&self, blocks: Range<u64>, failed: u64, store: &Store) -> bool {
        if store.has_fault(Fault::ReadFailedGaps) {
            return false;
        }
        if !self.gaps.borrow().is_empty() {
            let filled = || self.gaps.borrow().range_cardinality(blocks.clone()) == 0;
            store.waits.fills.wait_for(filled).await;
        }
        self.failed() != failed
    }
}
