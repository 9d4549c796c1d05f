// SPDX-License-Identifier: Apache-2.0 OR MIT
//! The status line: `STATE DIRTY WRITEBACK CACHED USED/LIMIT BANDWIDTH READ_HITS READ_MISSES
//! IOENDS ERRORS`, sizes in bytes, the bandwidth in bytes per second.
//!
//! `STATE` is `clean`, `dirty`, `writing`, or `failing` while there are pages that could not be
//! written and have not been since.
use block::PAGE;

use crate::PageCache;
use crate::attributes::Lines;

impl PageCache {
    pub(crate) fn status_line(&self) -> String {
        let now = reactor::now();
        let page = PAGE as u64;
        let cache = self.cache.borrow();
        let state = match (self.errors.is_failing(), cache.writing_pages(), cache.dirty_pages()) {
            (true, _, _) => "failing",
            (false, 0, 0) => "clean",
            (false, 0, _) => "dirty",
            (false, _, _) => "writing",
        };
        format!(
            "{state} {} {} {} {}/{} {} {} {} {} {}",
            cache.dirty_pages() * page,
            cache.writing_pages() * page,
            cache.pages() * page,
            self.memory.used_bytes(),
            self.memory.limit_bytes(),
            self.pacing.bandwidth().known(now.0).unwrap_or(0),
            self.hits.get(),
            self.misses.get(),
            self.writeback.counts.ioends.get(),
            self.errors.count(),
        )
    }

    /// What writeback has done: ioends by size, and questions for mappings.
    pub(crate) fn ioend_stats(&self) -> String {
        let counts = &self.writeback.counts;
        let mut lines = Lines::new();
        lines.add("ioends", counts.ioends.get());
        lines.add("ioend_bytes", counts.ioend_bytes.get());
        lines.add("folio_runs", counts.folios.get());
        lines.add("map_calls", counts.map_calls.get());
        lines.add("map_checks", counts.map_checks.get());
        lines.add("remaps", counts.remaps.get());
        lines.add("errors", counts.errors.get());
        lines.add("retries", counts.retries.get());
        for (class, count) in counts.sizes.iter().enumerate() {
            let name = format!("ioends_to_{}_kib", 4u64 << class);
            let last = class + 1 == counts.sizes.len();
            lines.add(if last { "ioends_larger" } else { &name }, count.get());
        }
        lines.text()
    }
}
