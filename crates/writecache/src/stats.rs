// SPDX-License-Identifier: Apache-2.0 OR MIT
//! Counters of a cache.
use std::cell::Cell;

/// A counter of one core.
#[derive(Default)]
pub(crate) struct Counter(Cell<u64>);

impl Counter {
    pub(crate) fn add(&self, n: u64) {
        self.0.set(self.0.get() + n);
    }
    pub(crate) fn get(&self) -> u64 {
        self.0.get()
    }
}

/// Counters since the cache was opened; the first ten are cleared by `clear_stats`.
#[derive(Default)]
pub(crate) struct Stats {
    pub(crate) reads: Counter,
    pub(crate) read_hits: Counter,
    pub(crate) writes: Counter,
    pub(crate) write_hits_uncommitted: Counter,
    pub(crate) write_hits_committed: Counter,
    pub(crate) writes_around: Counter,
    pub(crate) writes_allocated: Counter,
    pub(crate) writes_blocked: Counter,
    pub(crate) flushes: Counter,
    pub(crate) discards: Counter,
    pub(crate) commits: Counter,
    pub(crate) checkpoints: Counter,
    pub(crate) cache_flushes: Counter,
    pub(crate) origin_flushes: Counter,
    pub(crate) origin_writes: Counter,
    /// Bytes of the writes that were sent to the origin, and of those that it took.
    pub(crate) origin_write_bytes: Counter,
    pub(crate) written_back_bytes: Counter,
    pub(crate) gap_blocks_filled: Counter,
    pub(crate) gap_blocks_copied: Counter,
    pub(crate) gap_bytes_read: Counter,
    pub(crate) gap_bytes_written: Counter,
    pub(crate) slot_reads: Counter,
    pub(crate) slot_read_bytes: Counter,
    pub(crate) checksum_errors: Counter,
    pub(crate) scrubbed_blocks: Counter,
    pub(crate) scrub_errors: Counter,
    pub(crate) scrub_passes: Counter,
    pub(crate) writeback_errors: Counter,
    pub(crate) cache_read_errors: Counter,
    pub(crate) throttled_ns: Counter,
    pub(crate) writes_buffered: Counter,
    pub(crate) buffer_runs: Counter,
    pub(crate) buffer_run_bytes: Counter,
    pub(crate) buffer_write_errors: Counter,
    pub(crate) buffer_waits: Counter,
    pub(crate) buffer_paced_ns: Counter,
    pub(crate) read_admitted: Counter,
    pub(crate) read_refused_sequential: Counter,
    pub(crate) read_refused_once: Counter,
    pub(crate) read_refused_budget: Counter,
    pub(crate) read_admissions_lost: Counter,
    pub(crate) admitted_write_bytes: Counter,
    pub(crate) metadata_write_bytes: Counter,
    pub(crate) zeroes_installed: Counter,
    pub(crate) epochs_together: Counter,
}

impl Stats {
    /// Blocks that clients have written and the cache had.
    pub(crate) fn write_hits(&self) -> u64 {
        self.write_hits_uncommitted.get() + self.write_hits_committed.get()
    }

    pub(crate) fn kernel_fields(&self) -> [&Counter; 10] {
        [
            &self.reads,
            &self.read_hits,
            &self.writes,
            &self.write_hits_uncommitted,
            &self.write_hits_committed,
            &self.writes_around,
            &self.writes_allocated,
            &self.writes_blocked,
            &self.flushes,
            &self.discards,
        ]
    }

    pub(crate) fn clear(&self) {
        self.kernel_fields().iter().for_each(|c| c.0.set(0));
    }
}
