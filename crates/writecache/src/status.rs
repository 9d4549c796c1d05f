// SPDX-License-Identifier: Apache-2.0 OR MIT
//! The kernel's fourteen status fields, and attributes.
use block::{Error, Status};

use crate::cache::Cache;

/// Attribute names, in the order in which they are listed.
const ATTRIBUTES: [&str; 30] = [
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

/// Attributes about errors and about a drain, in the order in which they are listed.
const EVENT_ATTRIBUTES: [&str; 8] = [
    "writeback_error",
    "writeback_error_sector",
    "writeback_errors",
    "failing_blocks",
    "cache_read_errors",
    "bad_block_list",
    "drain_only",
    "drain_state",
];

/// Sectors that the attribute `bad_block_list` shows at most.
const BAD_LIST_MAX: usize = 256;

/// The attributes that can only be read.
pub(crate) fn attributes() -> impl Iterator<Item = &'static str> {
    ATTRIBUTES.into_iter().chain(EVENT_ATTRIBUTES)
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
            self.store.geometry.slots,
            self.store.free_blocks(),
            self.writeback.blocks()
        );
        for counter in self.store.stats.kernel_fields() {
            line.push_str(&format!(" {}", counter.get()));
        }
        line
    }

    pub(crate) fn attribute(&self, name: &str) -> Result<String, Error> {
        let c = self.store.counts();
        let (done, total) = self.writeback.progress().unwrap_or((0, 0));
        let s = &self.store.stats;
        let costs = self.writeback.costs();
        let value = match name {
            "error" => return Ok(self.errno().to_string()),
            "format" => return Ok(self.store.media.format().to_owned()),
            "total_blocks" => u64::from(self.store.geometry.slots),
            "free_blocks" => u64::from(self.store.free_blocks()),
            "writeback_blocks" => self.writeback.blocks(),
            "block_size" => u64::from(self.store.config.block_size),
            "dirty_blocks" => u64::from(c.dirty),
            "clean_blocks" => u64::from(c.clean),
            "bad_blocks" => u64::from(c.bad),
            "unsaved_blocks" => u64::from(c.dirty) + u64::from(c.bad) + self.zero_blocks(),
            "zero_blocks" => self.zero_blocks(),
            "old_blocks" => u64::from(c.old),
            "pending_epochs" => self.store.slots.borrow().pending_epochs(),
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
            "log_used_units" => self.store.media.log_used_units(),
            _ => {
                return self.event_attribute(name).ok_or_else(|| no_attribute(name));
            }
        };
        Ok(value.to_string())
    }

    /// Blocks of zeroes that the origin may not hold; of some the cache may have newer versions.
    fn zero_blocks(&self) -> u64 {
        self.store.slots.borrow().zero_ranges().map(|range| range.end - range.start).sum()
    }

    /// Runs of dirty sectors in a range, as (first, length).
    pub(crate) fn dirty_runs(
        &self,
        at: block::Sector,
        len: block::Sector,
    ) -> Vec<(block::Sector, block::Sector)> {
        let sectors = self.store.config.block_sectors();
        let end = (at + len).0.div_ceil(sectors);
        let runs = self.store.slots.borrow().unsaved_runs(at.0 / sectors..end);
        let sector = |b: u64| block::Sector(b * sectors).max(at).min(at + len);
        runs.into_iter().map(|(s, e)| (sector(s), sector(e) - sector(s))).collect()
    }

    /// Status field 1.
    pub(crate) fn errno(&self) -> i32 {
        let failing = self.writeback.retry.error().map(|(status, _)| status);
        let status = self.store.failure().or(failing).or(self.store.health.drain_only.get());
        status.map_or(0, Status::errno)
    }

    /// The value of one of [`EVENT_ATTRIBUTES`].
    pub(crate) fn event_attribute(&self, name: &str) -> Option<String> {
        let error = self.writeback.retry.error();
        let none = || "none".to_owned();
        Some(match name {
            "writeback_error" => error.map_or_else(none, |(status, _)| status.to_string()),
            "writeback_error_sector" => {
                let block = error.and_then(|(_, block)| block);
                block.map_or_else(none, |block| self.store.sector_of(block).to_string())
            }
            "writeback_errors" => self.store.stats.writeback_errors.get().to_string(),
            "failing_blocks" => self.writeback.retry.blocks().to_string(),
            "cache_read_errors" => self.store.stats.cache_read_errors.get().to_string(),
            "bad_block_list" => self.bad_block_list(),
            "drain_state" => self.writeback.drain_state(),
            "drain_only" => u8::from(self.store.is_drain_only()).to_string(),
            _ => return None,
        })
    }

    /// First sectors of the blocks that can't be read; `none`, or `+N` for those left out.
    fn bad_block_list(&self) -> String {
        let slots = self.store.slots.borrow();
        let bad = slots.bad();
        let mut list: Vec<String> =
            bad.iter().take(BAD_LIST_MAX).map(|b| self.store.sector_of(b).to_string()).collect();
        let more = bad.len().saturating_sub(BAD_LIST_MAX as u64);
        if more > 0 {
            list.push(format!("+{more}"));
        }
        if list.is_empty() { "none".to_owned() } else { list.join(" ") }
    }
}
