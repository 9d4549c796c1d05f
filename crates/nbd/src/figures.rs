// SPDX-License-Identifier: Apache-2.0 OR MIT
//! The figures of connections and servers. The core that serves a connection counts, and core 0
//! reads.

use block::{Counter, Nanos};
use reactor::now;

/// Counters of a server.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq)]
pub struct Stats {
    /// Connections now.
    pub connections: u64,
    /// Connections accepted since the start.
    pub connections_total: u64,
    /// Connections refused because there were too many.
    pub refused_total: u64,
    /// Connections cut off because they received no replies, or sent no data of a write.
    pub stalled_total: u64,
    /// Idle connections replaced by a new one.
    pub displaced_total: u64,
    /// Requests taken.
    pub requests_total: u64,
    /// Requests answered with an error.
    pub errors_total: u64,
    /// Data sent to readers.
    pub read_bytes_total: u64,
    /// Data received from writers.
    pub write_bytes_total: u64,
    /// Receives done in sessions.
    pub receives_total: u64,
    /// Sends done in sessions.
    pub sends_total: u64,
}

/// What a connection counts.
#[derive(Debug)]
pub(crate) struct Figures {
    pub(crate) id: u64,
    pub(crate) accepted_at: Nanos,
    /// How old it was then: it has been a connection of another process before.
    pub(crate) age_before: Nanos,
    /// Admitted requests whose reply has not left.
    pub(crate) in_flight: Counter,
    /// Not zero while a request waits for the budget.
    pub(crate) waits: Counter,
    /// When it was accepted, or last received from, in nanoseconds.
    pub(crate) received_at: Counter,
    pub(crate) requests: Counter,
    pub(crate) read_bytes: Counter,
    pub(crate) write_bytes: Counter,
    pub(crate) errors: Counter,
}

impl Figures {
    pub(crate) fn new(id: u64) -> Figures {
        let received_at = Counter::default();
        received_at.set(now().0);
        Figures {
            id,
            accepted_at: now(),
            age_before: Nanos::ZERO,
            in_flight: Counter::default(),
            waits: Counter::default(),
            received_at,
            requests: Counter::default(),
            read_bytes: Counter::default(),
            write_bytes: Counter::default(),
            errors: Counter::default(),
        }
    }

    /// Those of a connection that another process had.
    pub(crate) fn adopted(id: u64, age_before: Nanos) -> Figures {
        Figures { age_before, ..Figures::new(id) }
    }

    /// Time since its client has connected.
    pub(crate) fn age(&self) -> Nanos {
        now().saturating_sub(self.accepted_at) + self.age_before
    }
}

/// What the connections that one core serves count together. See [`Stats`].
#[derive(Debug, Default)]
pub(crate) struct Counters {
    pub(crate) stalled: Counter,
    pub(crate) requests: Counter,
    pub(crate) errors: Counter,
    pub(crate) read_bytes: Counter,
    pub(crate) write_bytes: Counter,
    pub(crate) receives: Counter,
    pub(crate) sends: Counter,
}

impl Counters {
    /// Adds these to `stats`.
    pub(crate) fn add_to(&self, stats: &mut Stats) {
        stats.stalled_total += self.stalled.get();
        stats.requests_total += self.requests.get();
        stats.errors_total += self.errors.get();
        stats.read_bytes_total += self.read_bytes.get();
        stats.write_bytes_total += self.write_bytes.get();
        stats.receives_total += self.receives.get();
        stats.sends_total += self.sends.get();
    }
}
