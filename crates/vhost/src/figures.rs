// SPDX-License-Identifier: Apache-2.0 OR MIT
//! What the queues of a session on one core count. That core counts, and any core reads.
use block::Counter;

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
