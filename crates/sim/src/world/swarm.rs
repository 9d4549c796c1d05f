// SPDX-License-Identifier: Apache-2.0 OR MIT
//! What kind of bad day a seed has.

use crate::rng::Rng;

/// What a seed draws for itself, so that each seed is another kind of bad day (swarm testing).
/// With uniform latencies alone, races of three parties are not found at all.
#[derive(Clone, Copy, Debug)]
pub struct Swarm {
    /// Requests that take longer, of a thousand.
    pub stall_per_mille: u32,
    /// How many times longer.
    pub stall_factor: u64,
    /// Chance that the world goes on although a task could run.
    pub preempt_per_mille: u32,
    /// Messages between cores take up to this.
    pub message_ns_max: u64,
    /// Chance that a read sees the medium as it was when it was submitted.
    pub early_read_per_mille: u32,
    /// Chance that a discard leaves zeroes rather than what was there.
    pub discard_zeroes_per_mille: u32,
}

impl Swarm {
    /// No stalls, no preemption: for benchmarks.
    pub const CALM: Swarm = Swarm {
        stall_per_mille: 0,
        stall_factor: 1,
        preempt_per_mille: 0,
        message_ns_max: 1_000,
        early_read_per_mille: 0,
        discard_zeroes_per_mille: 1000,
    };

    pub(super) fn draw(rng: &mut Rng) -> Swarm {
        Swarm {
            stall_per_mille: rng.pick(&[0, 5, 50, 300]),
            stall_factor: 1 << rng.below(8),
            preempt_per_mille: rng.pick(&[0, 0, 20, 200]),
            message_ns_max: rng.pick(&[300, 2_000, 50_000]),
            early_read_per_mille: rng.pick(&[0, 500, 1000]),
            discard_zeroes_per_mille: rng.pick(&[0, 500, 1000]),
        }
    }
}
