// SPDX-License-Identifier: Apache-2.0 OR MIT
//! Live: which cache a device has, so that the one of its next table goes on with what clients have
//! not been told yet.
//!
//! A new table makes new targets. What a failed flush has lost is lost all the same, and a client
//! that was not told before must be told by the cache that it meets then.
//!
//! Invariants
//! - LV1 A cache takes over when it is resumed, from the one that was resumed last for the same
//!   place, if that is still there: it has been suspended, so everything it had is durable.
use std::cell::RefCell;
use std::collections::BTreeMap;
use std::rc::{Rc, Weak};

use block::Sector;

use crate::PageCache;

/// A device's name, and where on it a cache begins.
type Place = (String, Sector);

/// The caches of a program. It has as many as there are, and those that have gone since.
#[derive(Debug, Default)]
pub struct Live(RefCell<BTreeMap<Place, Weak<PageCache>>>);

/// Where a cache is to be known.
pub(crate) struct Home {
    live: Rc<Live>,
    place: Place,
}

impl PageCache {
    /// From its first resume on it is known in `live` as the cache of `device` at `start`.
    pub fn live_in(&self, live: Rc<Live>, device: &str, start: Sector) {
        *self.home.borrow_mut() = Some(Home { live, place: (device.to_owned(), start) });
    }

    /// LV1
    pub(crate) fn take_over(&self) {
        let Some(Home { live, place }) = self.home.take() else { return };
        let mut caches = live.0.borrow_mut();
        caches.retain(|_, cache| cache.strong_count() > 0);
        let before = caches.insert(place, self.me.clone()).and_then(|cache| cache.upgrade());
        if let Some(before) = before {
            self.errors.take_over(&before.errors);
        }
    }
}
