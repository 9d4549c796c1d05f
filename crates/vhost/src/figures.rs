// SPDX-License-Identifier: Apache-2.0 OR MIT
//! What the queues of a session on one core count. That core counts, and any core reads.
use std::sync::atomic::{AtomicU64, Ordering};

/// Figures of a session.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq)]
pub struct Stats {
    /// Requests answered.
    pub requests: u64,
    /// Data read, bytes.
    pub read_bytes: u64,
    /// Data written, bytes.
    pub write_bytes: u64,
    /// Requests answered with an error.
    pub errors: u64,
}

/// A number that one core changes, and that any core may read. It orders nothing else.
#[derive(Debug, Default)]
pub(crate) struct Counter(AtomicU64);

impl Counter {
    pub(crate) fn get(&self) -> u64 {
        self.0.load(Ordering::Relaxed)
    }

    fn set(&self, value: u64) {
        self.0.store(value, Ordering::Relaxed);
    }

    /// No atomic addition: only one core changes it.
    pub(crate) fn add(&self, more: u64) {
        self.set(self.get() + more);
    }

    pub(crate) fn subtract(&self, less: u64) {
        self.set(self.get() - less);
    }
}

/// See the module.
#[derive(Debug, Default)]
pub(crate) struct Figures {
    pub(crate) requests: Counter,
    pub(crate) read_bytes: Counter,
    pub(crate) write_bytes: Counter,
    pub(crate) errors: Counter,
    /// Requests in flight.
    pub(crate) in_flight: Counter,
    /// Queues that run.
    pub(crate) queues: Counter,
}

impl Figures {
    /// Adds these to `stats`.
    pub(crate) fn add_to(&self, stats: &mut Stats) {
        stats.requests += self.requests.get();
        stats.read_bytes += self.read_bytes.get();
        stats.write_bytes += self.write_bytes.get();
        stats.errors += self.errors.get();
    }
}
