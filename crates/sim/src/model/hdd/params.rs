// SPDX-License-Identifier: Apache-2.0 OR MIT
//! The parameters of a rotating disk, and the two presets. Reasons: `docs/hdd-model.md`.

/// What makes a rotating disk.
#[derive(Clone, Copy, Debug)]
pub struct HddParams {
    /// Sustained rate of the medium, skew included.
    pub bytes_per_s: u64,
    pub rpm: u64,
    /// Turn of one track against the last: time of a head switch or of a step to the next track.
    pub skew_ns: u64,
    /// The shortest seek beyond the next track.
    pub seek_settle_ns: u64,
    /// `k` of the seek curve: per square root of the distance in tracks.
    pub seek_sqrt_ns: u64,
    /// Between two pieces that do not touch.
    pub media_command_ns: u64,
    /// A command on the link, and the link's rate.
    pub link_command_ns: u64,
    pub link_bytes_per_s: u64,
    /// Commands the drive chooses from when it has no write cache, and reads at once.
    pub queue_depth: usize,
    /// Write cache; 0: a write is acknowledged when it is on the medium.
    pub cache_bytes: u64,
    /// Pieces of the sweep among which the head takes the nearest.
    pub nearest_of: usize,
}

impl HddParams {
    const COMMON: HddParams = HddParams {
        bytes_per_s: 150_000_000,
        rpm: 7200,
        skew_ns: 900_000,
        seek_settle_ns: 900_000,
        seek_sqrt_ns: 15_000,
        media_command_ns: 200_000,
        link_command_ns: 10_000,
        link_bytes_per_s: 550_000_000,
        queue_depth: 32,
        cache_bytes: 0,
        nearest_of: 32,
    };

    /// A plain 7200 rpm disk with textbook parameters and nothing fitted.
    pub const fn textbook() -> HddParams {
        HddParams::COMMON
    }

    /// The disk of the published dm-writecache run: 44.0 s sorted, 99.2 s in LRU order. Fitted to
    /// these two numbers are the cost of a command and the drive's reordering (the write cache and
    /// how far the head looks ahead in it); all else is the textbook's.
    pub const fn published() -> HddParams {
        HddParams {
            media_command_ns: 120_000,
            cache_bytes: 304 << 20,
            nearest_of: 48,
            ..HddParams::COMMON
        }
    }
}
