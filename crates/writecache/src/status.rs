// SPDX-License-Identifier: Apache-2.0 OR MIT
//! Counters, the kernel's fourteen status fields, and attributes.
use std::cell::Cell;

use block::Error;

use crate::cache::Cache;

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
    pub(crate) origin_write_bytes: Counter,
    pub(crate) gap_blocks_filled: Counter,
    pub(crate) gap_blocks_copied: Counter,
    pub(crate) gap_bytes_read: Counter,
    pub(crate) checksum_errors: Counter,
    pub(crate) writeback_errors: Counter,
    pub(crate) cache_read_errors: Counter,
    pub(crate) throttled_ns: Counter,
}

impl Stats {
    fn kernel_fields(&self) -> [&Counter; 10] {
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

/// Attribute names, in the order in which they are listed.
pub(crate) const ATTRIBUTES: [&str; 30] = [
    "error",
    "total_blocks",
    "free_blocks",
    "writeback_blocks",
    "block_size",
    "dirty_blocks",
    "clean_blocks",
    "bad_blocks",
    "unsaved_blocks",
    "zero_blocks",
    "old_blocks",
    "pending_epochs",
    "uncommitted_blocks",
    "flush_done_blocks",
    "flush_total_blocks",
    "commits",
    "checkpoints",
    "cache_flushes",
    "origin_flushes",
    "origin_writes",
    "origin_write_bytes",
    "gap_blocks_filled",
    "gap_blocks_copied",
    "gap_bytes_read",
    "origin_command_ns",
    "origin_read_rate",
    "origin_write_rate",
    "checksum_errors",
    "throttled_us",
    "log_used_units",
];

/// The attributes that only tell.
pub(crate) fn attributes() -> impl Iterator<Item = &'static str> {
    ATTRIBUTES.into_iter().chain(crate::events::ATTRIBUTES)
}

pub(crate) fn no_attribute(name: &str) -> Error {
    let names: Vec<&str> = attributes().collect();
    let hint = block::name_hint(name, &names);
    Error::not_found(format!("writecache: no attribute `{name}`: {hint}"))
}

impl Cache {
    /// `error total free writeback` and the ten counters. Field 1 is the errno.
    pub(crate) fn status_line(&self) -> String {
        let mut line = format!(
            "{} {} {} {}",
            self.errno(),
            self.geometry.slots,
            self.free_blocks(),
            self.writeback.blocks()
        );
        for counter in self.stats.kernel_fields() {
            line.push_str(&format!(" {}", counter.get()));
        }
        line
    }

    pub(crate) fn attribute(&self, name: &str) -> Result<String, Error> {
        let c = self.counts();
        let (done, total) = self.writeback.progress().unwrap_or((0, 0));
        let s = &self.stats;
        let costs = self.writeback.costs();
        let value = match name {
            "error" => return Ok(self.errno().to_string()),
            "format" => return Ok(self.media.format().to_owned()),
            "total_blocks" => u64::from(self.geometry.slots),
            "free_blocks" => u64::from(self.free_blocks()),
            "writeback_blocks" => self.writeback.blocks(),
            "block_size" => u64::from(self.config.block_size),
            "dirty_blocks" => u64::from(c.dirty),
            "clean_blocks" => u64::from(c.clean),
            "bad_blocks" => u64::from(c.bad),
            "unsaved_blocks" => u64::from(c.dirty) + u64::from(c.bad) + self.zero_blocks(),
            "zero_blocks" => self.zero_blocks(),
            "old_blocks" => u64::from(c.old),
            "pending_epochs" => self.slots.borrow().pending_epochs(),
            "uncommitted_blocks" => c.unlogged,
            "flush_done_blocks" => done,
            "flush_total_blocks" => total,
            "commits" => s.commits.get(),
            "checkpoints" => s.checkpoints.get(),
            "cache_flushes" => s.cache_flushes.get(),
            "origin_flushes" => s.origin_flushes.get(),
            "origin_writes" => s.origin_writes.get(),
            "origin_write_bytes" => s.origin_write_bytes.get(),
            "gap_blocks_filled" => s.gap_blocks_filled.get(),
            "gap_blocks_copied" => s.gap_blocks_copied.get(),
            "gap_bytes_read" => s.gap_bytes_read.get(),
            "origin_command_ns" => costs.map_or(0, |c| c.command_ns),
            "origin_read_rate" => costs.map_or(0, |c| c.read_bytes_per_s()),
            "origin_write_rate" => costs.map_or(0, |c| c.write_bytes_per_s()),
            "checksum_errors" => s.checksum_errors.get(),
            "throttled_us" => s.throttled_ns.get() / 1000,
            "log_used_units" => self.media.log_used_units(),
            _ => {
                return self.event_attribute(name).ok_or_else(|| no_attribute(name));
            }
        };
        Ok(value.to_string())
    }

    /// Blocks of zeroes that the origin may not hold; of some the cache may have newer versions.
    fn zero_blocks(&self) -> u64 {
        self.slots.borrow().zero_ranges().map(|range| range.end - range.start).sum()
    }

    /// Runs of dirty sectors in a range, as (first, length).
    pub(crate) fn dirty_runs(
        &self,
        at: block::Sector,
        len: block::Sector,
    ) -> Vec<(block::Sector, block::Sector)> {
        let sectors = self.config.block_sectors();
        let end = (at + len).0.div_ceil(sectors);
        let runs = self.slots.borrow().unsaved_runs(at.0 / sectors..end);
        let sector = |b: u64| block::Sector(b * sectors).max(at).min(at + len);
        runs.into_iter().map(|(s, e)| (sector(s), sector(e) - sector(s))).collect()
    }
}
