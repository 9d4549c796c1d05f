// SPDX-License-Identifier: Apache-2.0 OR MIT
//! Shared: data that all parts of a device use, and the numbers of its attributes.
//!
//! Invariants
//! - ZR-SH1 All of it are atomics: an attribute is read at any time, without waiting.
//! - ZR-SH2 The counters of a part are written by its core only.
//! - ZR-SH3 The budget never grants more than is left, also to concurrent callers.
use std::sync::Arc;
use std::sync::atomic::Ordering::{Relaxed, SeqCst};
use std::sync::atomic::{AtomicBool, AtomicU32, AtomicU64};

use block::Counter;

use crate::failures::Failures;
use crate::store::Memory;

/// Pages a backing write covers by default: 128 KiB.
pub(crate) const BATCH_PAGES: u32 = 32;
/// Backing writes in flight by default, of each part.
pub(crate) const INFLIGHT: u32 = 16;

/// Counters of one part, on cache lines of their own.
#[derive(Default)]
#[repr(align(128))]
pub(crate) struct Counters {
    /// Slots that have a page.
    pub(crate) pages: Counter,
    /// Bytes of the objects in memory.
    pub(crate) compr_bytes: Counter,
    pub(crate) same_pages: Counter,
    /// Pages in memory that are stored uncompressed.
    pub(crate) huge_pages: Counter,
    pub(crate) huge_pages_since: Counter,
    pub(crate) pages_compacted: Counter,
    /// Blocks of the backing device in use, 4 KiB.
    pub(crate) bd_count: Counter,
    /// Pages read back.
    pub(crate) bd_reads: Counter,
    /// Blocks written to the backing device, 4 KiB.
    pub(crate) bd_writes: Counter,
    /// Bytes of objects written to the backing device.
    pub(crate) bd_object_bytes: Counter,
    /// Slots whose page is on the backing device.
    pub(crate) backed_pages: Counter,
    pub(crate) failed_reads: Counter,
    pub(crate) failed_writes: Counter,
    pub(crate) invalid_io: Counter,
    pub(crate) notify_free: Counter,
    /// Pages that the running writeback or recompression has visited, and all that it will visit.
    pub(crate) done: Counter,
    pub(crate) to_do: Counter,
}

/// How many blocks may still be written back, when that is limited.
#[derive(Default)]
pub(crate) struct Budget {
    left: AtomicU64,
    /// Granted, and neither spent nor refunded yet.
    held: AtomicU64,
    on: AtomicBool,
}

impl Budget {
    /// Takes up to `blocks`. Returns how many were granted; the caller spends or refunds each.
    pub(crate) fn take(&self, blocks: u64) -> u64 {
        // Held first: a caller that finds nothing left and nothing held knows that no refund will
        // come.
        self.held.fetch_add(blocks, SeqCst);
        if !self.is_on() {
            return blocks;
        }
        let less = |left: u64| Some(left - left.min(blocks));
        let before = self.left.fetch_update(SeqCst, SeqCst, less);
        let granted = before.unwrap_or_else(|same| same).min(blocks);
        self.held.fetch_sub(blocks - granted, SeqCst);
        granted
    }

    /// Gives back blocks that were taken and not written.
    pub(crate) fn refund(&self, blocks: u64) {
        if self.is_on() {
            // The limit may have been set to any number meanwhile.
            let more = |left: u64| Some(left.saturating_add(blocks));
            let _always = self.left.fetch_update(SeqCst, SeqCst, more);
        }
        self.spend(blocks);
    }

    /// Blocks that were taken have been written.
    pub(crate) fn spend(&self, blocks: u64) {
        self.held.fetch_sub(blocks, SeqCst);
    }

    /// Blocks that were taken and may still be refunded.
    pub(crate) fn held(&self) -> u64 {
        self.held.load(SeqCst)
    }

    pub(crate) fn left(&self) -> u64 {
        self.left.load(Relaxed)
    }

    pub(crate) fn set_left(&self, blocks: u64) {
        self.left.store(blocks, Relaxed);
    }

    pub(crate) fn is_on(&self) -> bool {
        self.on.load(Relaxed)
    }

    pub(crate) fn set_on(&self, on: bool) {
        self.on.store(on, Relaxed);
    }
}

/// See the module.
pub(crate) struct Shared {
    pub(crate) memory: Arc<Memory>,
    pub(crate) budget: Budget,
    /// Pages that one backing write covers at most, 1 to 256.
    pub(crate) batch_pages: AtomicU32,
    /// Backing writes that a part has in flight at most.
    pub(crate) inflight: AtomicU32,
    /// Stops the running writeback or recompression at the next page.
    pub(crate) cancel: AtomicBool,
    pub(crate) failures: Failures,
    counters: Vec<Arc<Counters>>,
}

impl Shared {
    pub(crate) fn new(memory: Arc<Memory>, parts: usize) -> Arc<Shared> {
        Arc::new(Shared {
            memory,
            budget: Budget::default(),
            batch_pages: AtomicU32::new(BATCH_PAGES),
            inflight: AtomicU32::new(INFLIGHT),
            cancel: AtomicBool::new(false),
            failures: Failures::default(),
            counters: (0..parts).map(|_| Arc::default()).collect(),
        })
    }

    /// The counters of the `nth` part.
    pub(crate) fn counters(&self, nth: usize) -> Arc<Counters> {
        self.counters[nth].clone()
    }

    fn sum(&self, of: impl Fn(&Counters) -> &Counter) -> u64 {
        self.counters.iter().map(|c| of(c).get()).sum()
    }

    /// Everything that attributes and status show, as of now.
    pub(crate) fn totals(&self) -> Totals {
        Totals {
            orig_pages: self.sum(|c| &c.pages),
            compr_bytes: self.sum(|c| &c.compr_bytes),
            mem_pages: self.memory.used(),
            mem_limit_pages: self.memory.limit(),
            mem_max_pages: self.memory.max_used(),
            same_pages: self.sum(|c| &c.same_pages),
            pages_compacted: self.sum(|c| &c.pages_compacted),
            huge_pages: self.sum(|c| &c.huge_pages),
            huge_pages_since: self.sum(|c| &c.huge_pages_since),
            bd_count: self.sum(|c| &c.bd_count),
            bd_reads: self.sum(|c| &c.bd_reads),
            bd_writes: self.sum(|c| &c.bd_writes),
            bd_object_bytes: self.sum(|c| &c.bd_object_bytes),
            backed_pages: self.sum(|c| &c.backed_pages),
            failed_reads: self.sum(|c| &c.failed_reads),
            failed_writes: self.sum(|c| &c.failed_writes),
            invalid_io: self.sum(|c| &c.invalid_io),
            notify_free: self.sum(|c| &c.notify_free),
            done: self.sum(|c| &c.done),
            to_do: self.sum(|c| &c.to_do),
        }
    }
}

/// The numbers of a device, summed over its parts. Pages and blocks have 4 KiB.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq)]
pub(crate) struct Totals {
    pub(crate) orig_pages: u64,
    pub(crate) compr_bytes: u64,
    pub(crate) mem_pages: u64,
    /// `u64::MAX` when there is none.
    pub(crate) mem_limit_pages: u64,
    pub(crate) mem_max_pages: u64,
    pub(crate) same_pages: u64,
    pub(crate) pages_compacted: u64,
    pub(crate) huge_pages: u64,
    pub(crate) huge_pages_since: u64,
    pub(crate) bd_count: u64,
    pub(crate) bd_reads: u64,
    pub(crate) bd_writes: u64,
    pub(crate) bd_object_bytes: u64,
    pub(crate) backed_pages: u64,
    pub(crate) failed_reads: u64,
    pub(crate) failed_writes: u64,
    pub(crate) invalid_io: u64,
    pub(crate) notify_free: u64,
    pub(crate) done: u64,
    pub(crate) to_do: u64,
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn a_budget_grants_what_is_left_and_takes_refunds() {
        let budget = Budget::default();
        assert_eq!(budget.take(7), 7, "off: everything");
        budget.set_left(10);
        budget.set_on(true);
        assert_eq!((budget.take(7), budget.take(7), budget.take(7)), (7, 3, 0));
        budget.refund(2);
        assert_eq!((budget.left(), budget.take(7)), (2, 2));
        assert_eq!(budget.held(), 17 - 2 + 2);
        budget.spend(10);
        assert_eq!((budget.held(), budget.left()), (7, 0));
        budget.set_left(u64::MAX);
        budget.refund(7);
        assert_eq!((budget.held(), budget.left()), (0, u64::MAX), "no wrap");
    }
}
