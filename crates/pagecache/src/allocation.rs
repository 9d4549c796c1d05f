// SPDX-License-Identifier: Apache-2.0 OR MIT
//! Which runs of the device read as zeroes: those of the device below that no page is held of.
//!
//! Invariants
//! - PC-ZR1 A run counts only where no page was held before the device below was asked: such a
//!   sector read then as below. One that was held then may have been written back and evicted
//!   since, after the device below had been looked at.
//! - PC-ZR2 And only where none is held afterwards: a write below that fails leaves its range
//!   undefined, and its pages are dirty again.
//! - PC-ZR3 A page is held while it is dirty or in an ioend or a discard; once there was an error,
//!   every page that is up to date is: the device below may have lost it.
use block::runs::{Runs, joined, without};
use block::{Sector, ZeroRuns};

use crate::device::PageCache;
use crate::planted::Fault;
use crate::store::Store;
use crate::units::PAGE_SECTORS;

impl PageCache {
    /// See [`block::BlockDevice::zero_runs`].
    pub(crate) fn find_zero_runs(&self, at: Sector, len: Sector) -> ZeroRuns {
        let me = self.rc();
        Box::pin(async move {
            let mut held = match me.store.is_planted(Fault::ZeroRunsLookLate) {
                true => Runs::new(),
                false => held_runs(&me.store, at, len),
            };
            let zeroes = me.store.below.zero_runs(at, len).await;
            if !me.store.is_planted(Fault::ZeroRunsLookEarly) {
                held.extend(held_runs(&me.store, at, len));
            }
            without(&zeroes, &joined(held))
        })
    }
}

/// PC-ZR3
fn held_runs(store: &Store, at: Sector, len: Sector) -> Runs {
    let pages = at.0 / PAGE_SECTORS..(at + len).0.div_ceil(PAGE_SECTORS);
    let any_error = store.errors.count() > 0;
    let folios = store.folios.borrow();
    let mut runs = Runs::new();
    for (_, folio, inside) in folios.folios_in(&pages) {
        for nth in inside {
            let is_held = folio.dirty.get(nth)
                || folio.writing.get(nth)
                || any_error && folio.uptodate.get(nth);
            if is_held {
                let page = Sector((folio.start + u64::from(nth)) * PAGE_SECTORS);
                runs.push((page, Sector(PAGE_SECTORS)));
            }
        }
    }
    joined(runs)
}
