// SPDX-License-Identifier: Apache-2.0 OR MIT
//! Statistics: the status line `STATE DIRTY WRITEBACK CACHED USED/LIMIT BANDWIDTH READ_HITS
//! READ_MISSES IOENDS ERRORS`, sizes in bytes, the bandwidth in bytes per second.
//!
//! `STATE` is `clean`, `dirty`, `writing`, or `failing` while there are pages that could not be
//! written and have not been since.
use block::PAGE;

use crate::device::PageCache;

impl PageCache {
    pub(crate) fn status_line(&self) -> String {
        let now = reactor::now();
        let page = PAGE as u64;
        let store = &self.store;
        let folios = store.folios.borrow();
        let state = match (store.errors.failed.any(), folios.writing_pages(), folios.dirty_pages())
        {
            (true, _, _) => "failing",
            (false, 0, 0) => "clean",
            (false, 0, _) => "dirty",
            (false, _, _) => "writing",
        };
        format!(
            "{state} {} {} {} {}/{} {} {} {} {} {}",
            folios.dirty_pages() * page,
            folios.writing_pages() * page,
            folios.pages() * page,
            store.memory.used_bytes(),
            store.memory.limit_bytes(),
            store.pacing.bandwidth().known(now.0).unwrap_or(0),
            self.hits.get(),
            self.misses.get(),
            self.writeback.ioends.stats.ioends.get(),
            store.errors.count(),
        )
    }
}
