// SPDX-License-Identifier: Apache-2.0 OR MIT
//! The discards and write zeroes that are in flight below (PC-PC5).
use std::cell::{Cell, RefCell};
use std::ops::Range;

use reactor::WaitList;

/// See the module.
#[derive(Default)]
pub(crate) struct ActiveDiscards {
    next: Cell<u64>,
    ranges: RefCell<Vec<(u64, Range<u64>)>>,
    given_back: Cell<u64>,
}

impl ActiveDiscards {
    /// Whether one of them covers any of `pages`.
    pub(crate) fn overlap(&self, pages: &Range<u64>) -> bool {
        let ranges = self.ranges.borrow();
        ranges.iter().any(|(_, range)| range.start < pages.end && pages.start < range.end)
    }

    /// Waits until none covers any of `pages`. `changed` is woken when one ends.
    pub(crate) async fn wait_for(&self, pages: &Range<u64>, changed: &WaitList) {
        if self.overlap(pages) {
            changed.wait_for(|| !self.overlap(pages)).await;
        }
    }

    pub(crate) fn begin(&self, pages: Range<u64>) -> u64 {
        let id = self.next.replace(self.next.get() + 1);
        self.ranges.borrow_mut().push((id, pages));
        id
    }

    pub(crate) fn end(&self, id: u64) {
        self.ranges.borrow_mut().retain(|(i, _)| *i != id);
    }

    /// One has failed, and pages that it had taken are dirty again.
    pub(crate) fn give_back(&self) {
        self.given_back.set(self.given_back.get() + 1);
    }

    /// How many have given pages back.
    pub(crate) fn given_back(&self) -> u64 {
        self.given_back.get()
    }
}
