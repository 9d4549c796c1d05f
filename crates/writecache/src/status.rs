// SPDX-License-Identifier: Apache-2.0 OR MIT
//! The kernel's fourteen status fields, and attributes by name.
use block::attr;
use block::value::Value;
use block::{Error, Status};

use crate::cache::Cache;
use crate::events::{BAD_LIST_MAX, BadBlocks};
use crate::figures::FIGURES;
use crate::stats::Counter;

impl Cache {
    /// The status line: the errno, three counts of blocks, ten counters.
    pub(crate) fn status_line(&self) -> String {
        let counts = [
            u64::from(self.store.slot_count()),
            u64::from(self.store.free_blocks()),
            self.writeback.blocks(),
        ];
        let counters = self.store.stats.kernel_fields().into_iter().map(Counter::get);
        let numbers = counts.into_iter().chain(counters).map(|number| number.to_string());
        [self.errno().to_string()].into_iter().chain(numbers).collect::<Vec<_>>().join(" ")
    }

    pub(crate) fn attribute(&self, name: &str) -> Result<Value, Error> {
        if name == "format" {
            return Ok(self.store.media.format().into());
        }
        let known = || attr::names(&attr::specs(&FIGURES));
        let value = attr::get(&FIGURES, name, self);
        value.ok_or_else(|| attr::unknown("writecache", name, &known()))
    }

    /// Blocks of zeroes that the origin may not have. The cache may have newer versions of some of
    /// them.
    pub(crate) fn zero_blocks(&self) -> u64 {
        self.store.slots.borrow().zero_ranges().map(|range| range.end - range.start).sum()
    }

    /// Blocks that are in memory alone: those that a cache device which fails has refused, and
    /// without a journal also those that no commit has that succeeded.
    pub(crate) fn unwritten_blocks(&self) -> u64 {
        if self.store.failure().is_none() {
            return 0;
        }
        let refused = self.store.slots.borrow().buffered_count().into();
        if self.has_journal() {
            refused
        } else {
            self.store.slots.borrow().uncommitted_count().max(refused)
        }
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

    /// Dirty bytes in each of `cells` equal parts of a device of `sectors`.
    pub(crate) fn dirty_map(&self, sectors: block::Sector, cells: u32) -> Vec<u64> {
        let block_sectors = self.store.config.block_sectors();
        let blocks = u128::from(sectors.0.div_ceil(block_sectors));
        let begin = |cell: u32| {
            let block = blocks * u128::from(cell) / u128::from(cells);
            u64::try_from(block).expect("a block of the device")
        };
        let slots = self.store.slots.borrow();
        let dirty = |cell| slots.dirty().range_cardinality(begin(cell)..begin(cell + 1));
        (0..cells).map(|cell| dirty(cell) * block::Sector(block_sectors).bytes()).collect()
    }

    /// Status field 1.
    pub(crate) fn errno(&self) -> i32 {
        let failing = self.writeback.retry.error().map(|(status, _)| status);
        let status = self.store.failure().or(failing).or(self.store.health.drain_only.get());
        status.map_or(0, Status::errno)
    }

    /// The blocks that can't be read.
    pub(crate) fn bad_blocks(&self) -> BadBlocks {
        let slots = self.store.slots.borrow();
        let bad = slots.bad();
        let sectors = bad.iter().take(BAD_LIST_MAX).map(|b| self.store.sector_of(b).0).collect();
        BadBlocks { sectors, left_out: bad.len().saturating_sub(BAD_LIST_MAX as u64) }
    }
}
