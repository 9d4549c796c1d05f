// SPDX-License-Identifier: Apache-2.0 OR MIT
//! A counter of one core that all cores read.
use std::sync::atomic::{AtomicU64, Ordering::Relaxed};

/// A number that one core changes, and that any core may read. It orders nothing else.
#[derive(Debug, Default)]
pub struct Counter(AtomicU64);

impl Counter {
    /// The number now.
    #[inline]
    pub fn get(&self) -> u64 {
        self.0.load(Relaxed)
    }

    /// Makes it `value`.
    #[inline]
    pub fn set(&self, value: u64) {
        self.0.store(value, Relaxed);
    }

    /// Adds `more`, without atomic addition: only one core changes it.
    #[inline]
    pub fn add(&self, more: u64) {
        self.set(self.get().wrapping_add(more));
    }

    /// Takes `less` away.
    #[inline]
    pub fn subtract(&self, less: u64) {
        self.set(self.get().wrapping_sub(less));
    }
}
