// SPDX-License-Identifier: Apache-2.0 OR MIT
//! The figures of queues. The core that serves a queue counts, and core 0 reads.

use block::{Counter, Op, Status};

/// Figures of a queue: of requests that were committed.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq)]
pub struct Stats {
    /// All of them.
    pub requests: u64,
    /// Those that failed.
    pub errors: u64,
    /// Data that clients have read.
    pub read_bytes: u64,
    /// Data that clients have written.
    pub write_bytes: u64,
}

impl std::ops::AddAssign for Stats {
    fn add_assign(&mut self, other: Stats) {
        self.requests += other.requests;
        self.errors += other.errors;
        self.read_bytes += other.read_bytes;
        self.write_bytes += other.write_bytes;
    }
}

/// What one queue counts.
#[derive(Debug, Default)]
pub(crate) struct Figures {
    requests: Counter,
    errors: Counter,
    read_bytes: Counter,
    write_bytes: Counter,
    /// Requests that were taken, committed or not.
    taken: Counter,
}

impl Figures {
    pub(crate) fn take(&self) {
        self.taken.add(1);
    }

    /// A request that was taken is committed. `op` is absent if it was none that we know.
    pub(crate) fn commit(&self, op: Option<Op>, result: Result<i32, Status>) {
        let bytes = result.map_or(0, |bytes| u64::from(bytes.unsigned_abs()));
        if result.is_err() {
            self.errors.add(1);
        }
        match op {
            Some(Op::Read) => self.read_bytes.add(bytes),
            Some(Op::Write) => self.write_bytes.add(bytes),
            Some(Op::Flush | Op::Discard | Op::WriteZeroes) | None => {}
        }
        self.requests.add(1);
    }

    pub(crate) fn stats(&self) -> Stats {
        Stats {
            requests: self.requests.get(),
            errors: self.errors.get(),
            read_bytes: self.read_bytes.get(),
            write_bytes: self.write_bytes.get(),
        }
    }

    /// Requests that were taken and not committed.
    pub(crate) fn in_flight(&self) -> u64 {
        // Another core may count between the two loads.
        let committed = self.requests.get();
        self.taken.get().saturating_sub(committed)
    }
}
