// SPDX-License-Identifier: Apache-2.0 OR MIT
//! Pins: folios that a task refers to while it waits.
use std::rc::Rc;

use block::crashing;
use smallvec::SmallVec;

use crate::PageCache;
use crate::cache::FolioId;

/// Folios that stay until this is dropped.
pub(crate) struct Pins {
    of: Rc<PageCache>,
    folios: SmallVec<[FolioId; 4]>,
}

impl Pins {
    pub(crate) fn none(of: &Rc<PageCache>) -> Pins {
        Pins { of: of.clone(), folios: SmallVec::new() }
    }

    /// One more, which lies behind those that are there; where it ends.
    pub(crate) fn add(&mut self, id: FolioId) -> u64 {
        self.folios.push(id);
        let mut cache = self.of.cache.borrow_mut();
        let folio = cache.folio_mut(id);
        folio.pins += 1;
        folio.end()
    }

    /// Which they are, ascending. None of them goes, so each has the pages that it had.
    pub(crate) fn folios(&self) -> &[FolioId] {
        &self.folios
    }

    /// Takes them back in the same step in which they were added: nobody has seen them, so nobody
    /// is woken.
    pub(crate) fn undo(mut self) {
        self.unpin();
    }

    /// Whether that leaves any without a pin.
    fn unpin(&mut self) -> bool {
        let mut cache = self.of.cache.borrow_mut();
        let mut free = false;
        for id in self.folios.drain(..) {
            let folio = cache.folio_mut(id);
            folio.pins -= 1;
            free |= folio.pins == 0;
        }
        free
    }
}

impl Drop for Pins {
    fn drop(&mut self) {
        if crashing() {
            return;
        }
        if self.unpin() {
            self.of.changed.wake_all();
        }
    }
}
