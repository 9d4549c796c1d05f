// SPDX-License-Identifier: Apache-2.0 OR MIT
//! The swarm profile: how hostile the world of a seed is.

use crate::rng::Rng;

/// The profile that a seed draws, so that each seed is hostile in another way (swarm testing). With
/// uniform latencies alone, races of three parties are never found.
#[derive(Clone, Copy, Debug)]
pub struct Swarm {
    /// Chance that a request stalls.
    pub stall_per_mille: u32,
    /// Factor by which a stalled request takes longer.
    pub stall_factor: u64,
    /// Chance that the next event is delivered although a task could run.
    pub preempt_per_mille: u32,
    /// Longest delay of a message between cores.
    pub message_ns_max: u64,
    /// Chance that a read sees the medium as it was when it was submitted.
    pub early_read_per_mille: u32,
    /// Chance that a discard leaves zeroes rather than the old data.
    pub discard_zeroes_per_mille: u32,
    /// Whether cores poll before they sleep: tasks wait by pollers, where they have some. No seed
    /// draws it.
    pub polls: bool,
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
        polls: false,
    };

    pub(super) fn draw(rng: &mut Rng) -> Swarm {
        Swarm {
            stall_per_mille: rng.pick(&[0, 5, 50, 300]),
            stall_factor: 1 << rng.below(8),
            preempt_per_mille: rng.pick(&[0, 0, 20, 200]),
            message_ns_max: rng.pick(&[300, 2_000, 50_000]),
            early_read_per_mille: rng.pick(&[0, 500, 1000]),
            discard_zeroes_per_mille: rng.pick(&[0, 500, 1000]),
            polls: false,
        }
    }
}
