// SPDX-License-Identifier: Apache-2.0 OR MIT
//! Pins: folios that a task refers to while it waits.
use block::crashing;
use smallvec::SmallVec;

use crate::folio_map::FolioId;
use crate::store::Store;

/// Folios that are not removed until this is dropped.
pub(crate) struct Pins<'a> {
    store: &'a Store,
    folios: SmallVec<[FolioId; 4]>,
}

impl<'a> Pins<'a> {
    pub(crate) fn none(store: &'a Store) -> Pins<'a> {
        Pins { store, folios: SmallVec::new() }
    }

    /// Adds a folio that lies after the others. Returns the end of the folio.
    pub(crate) fn add(&mut self, id: FolioId) -> u64 {
        self.folios.push(id);
        let mut folios = self.store.folios.borrow_mut();
        let folio = folios.folio_mut(id);
        folio.pins += 1;
        folio.end()
    }

    /// The folios, ascending. None of them is removed, so each keeps its pages.
    pub(crate) fn folios(&self) -> &[FolioId] {
        &self.folios
    }

    /// Removes the pins in the same step in which they were added. No other task has seen them, so
    /// none is woken.
    pub(crate) fn undo(mut self) {
        self.unpin();
    }

    /// Returns whether that leaves any folio without a pin.
    fn unpin(&mut self) -> bool {
        let mut folios = self.store.folios.borrow_mut();
        let mut free = false;
        for id in self.folios.drain(..) {
            let folio = folios.folio_mut(id);
            folio.pins -= 1;
            free |= folio.pins == 0;
        }
        free
    }
}

impl Drop for Pins<'_> {
    fn drop(&mut self) {
        if crashing() {
            return;
        }
        if self.unpin() {
            self.store.changed.wake_all();
        }
    }
}
