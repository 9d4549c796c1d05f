// SPDX-License-Identifier: Apache-2.0 OR MIT
//! Memory: the frames of all stores of a device, and their limit.
//!
//! Invariants
//! - ZR-ME1 `used` exceeds the limit only when the limit is lowered below the current use.
//! - ZR-ME2 `max_used` is never less than any `used` since it was reset.
use std::sync::atomic::{AtomicU64, Ordering::Relaxed};

/// No limit.
const UNLIMITED: u64 = u64::MAX;

/// Pages of 4 KiB that the stores of a device hold, which may be on several cores.
#[derive(Debug)]
pub(crate) struct Memory {
    used: AtomicU64,
    max_used: AtomicU64,
    limit: AtomicU64,
}

impl Memory {
    /// Nothing used, no limit.
    pub(crate) fn new() -> Memory {
        let (used, max_used) = (AtomicU64::new(0), AtomicU64::new(0));
        Memory { used, max_used, limit: AtomicU64::new(UNLIMITED) }
    }

    /// Pages taken now.
    pub(crate) fn used(&self) -> u64 {
        self.used.load(Relaxed)
    }

    /// The most pages that were taken at once.
    pub(crate) fn max_used(&self) -> u64 {
        self.max_used.load(Relaxed)
    }

    /// Restarts `max_used`.
    pub(crate) fn reset_max_used(&self) {
        self.max_used.store(self.used(), Relaxed);
        // ZR-ME2: what was taken between the two.
        self.max_used.fetch_max(self.used(), Relaxed);
    }

    /// Pages that may be taken; `u64::MAX` when there is no limit.
    pub(crate) fn limit(&self) -> u64 {
        self.limit.load(Relaxed)
    }

    /// Sets the limit; what has been taken stays.
    pub(crate) fn set_limit(&self, pages: u64) {
        self.limit.store(pages, Relaxed);
    }

    /// ZR-ME1: takes pages, or nothing when that would pass the limit.
    pub(super) fn take(&self, pages: u64) -> bool {
        let more = |used: u64| used.checked_add(pages).filter(|&used| used <= self.limit());
        let taken = self.used.fetch_update(Relaxed, Relaxed, more);
        if let Ok(before) = taken {
            self.max_used.fetch_max(before + pages, Relaxed);
        }
        taken.is_ok()
    }

    /// Gives taken pages back.
    pub(super) fn give(&self, pages: u64) {
        let before = self.used.fetch_sub(pages, Relaxed);
        assert!(before >= pages, "gives back {pages} pages of {before}");
    }
}
