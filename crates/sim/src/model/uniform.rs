// SPDX-License-Identifier: Apache-2.0 OR MIT
//! Every command takes a random time, independent of others: the widest reordering.

use std::collections::BTreeMap;

use super::{Cmd, Kind, Model};
use crate::rng::Rng;

/// Latency drawn evenly from a range; flushes take up to eight times as long.
#[derive(Debug)]
pub struct Uniform {
    rng: Rng,
    latency_ns: (u64, u64),
    due: BTreeMap<(u64, u64), u64>,
    seq: u64,
}

impl Uniform {
    /// Latencies in `min_ns..max_ns`, drawn by `seed`.
    pub fn new(seed: u64, min_ns: u64, max_ns: u64) -> Uniform {
        assert!(min_ns < max_ns, "latency range {min_ns}..{max_ns} ns is empty");
        let latency_ns = (min_ns, max_ns);
        Uniform { rng: Rng::new(seed), latency_ns, due: BTreeMap::new(), seq: 0 }
    }
}

impl Model for Uniform {
    fn submit(&mut self, now_ns: u64, id: u64, cmd: Cmd) {
        let (min, max) = self.latency_ns;
        let mut latency = self.rng.range(min, max);
        if cmd.kind == Kind::Flush {
            latency *= self.rng.range(1, 9);
        }
        self.seq += 1;
        self.due.insert((now_ns + latency, self.seq), id);
    }

    fn next_event(&self) -> Option<u64> {
        self.due.keys().next().map(|k| k.0)
    }

    fn pop_done(&mut self, now_ns: u64, done: &mut Vec<u64>) {
        while let Some(entry) = self.due.first_entry().filter(|e| e.key().0 <= now_ns) {
            done.push(entry.remove());
        }
    }

    fn power_cut(&mut self) {
        self.due.clear();
    }
}
