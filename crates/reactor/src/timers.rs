// SPDX-License-Identifier: Apache-2.0 OR MIT
//! The timers of one core.
use std::collections::BTreeMap;
use std::task::Waker;

use block::Nanos;

/// Sleeping tasks by due time; the second part of the key keeps sleepers of one instant in order.
#[derive(Default)]
pub(crate) struct Timers {
    due: BTreeMap<(Nanos, u64), Waker>,
    seq: u64,
}

impl Timers {
    /// When the next one is due.
    pub(crate) fn next(&self) -> Option<Nanos> {
        self.due.first_key_value().map(|((due, _), _)| *due)
    }

    /// Removes the first one, if it is due.
    pub(crate) fn pop_due(&mut self, now: Nanos) -> Option<Waker> {
        let first = self.due.first_entry().filter(|e| e.key().0 <= now)?;
        Some(first.remove())
    }

    pub(crate) fn insert(&mut self, due: Nanos, waker: Waker) -> (Nanos, u64) {
        self.seq += 1;
        self.due.insert((due, self.seq), waker);
        (due, self.seq)
    }

    pub(crate) fn remove(&mut self, entry: (Nanos, u64)) {
        self.due.remove(&entry);
    }
}
