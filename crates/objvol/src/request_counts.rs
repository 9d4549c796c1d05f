// SPDX-License-Identifier: Apache-2.0 OR MIT
//! `RequestCounts`: what a store's bill is made of.
use std::cell::Cell;

/// Requests that were sent, the repeated ones each time, and their bytes.
#[derive(Debug, Default)]
pub struct RequestCounts {
    /// Creations of objects.
    pub puts: Cell<u64>,
    /// Reads of parts of objects.
    pub gets: Cell<u64>,
    /// Pages of listings.
    pub lists: Cell<u64>,
    /// Deletions of objects.
    pub deletes: Cell<u64>,
    /// Bytes of the objects that were sent.
    pub put_bytes: Cell<u64>,
    /// Bytes that came.
    pub get_bytes: Cell<u64>,
    /// Repetitions among the requests.
    pub repeated: Cell<u64>,
}

impl RequestCounts {
    pub(crate) fn add(&self, counter: fn(&RequestCounts) -> &Cell<u64>, count: u64) {
        let counter = counter(self);
        counter.set(counter.get() + count);
    }
}
