// SPDX-License-Identifier: Apache-2.0 OR MIT
//! When writeback by occupancy starts and stops, as in the kernel's dm-writecache.
//!
//! ```text
//! free blocks   total ──────── low level ──────── high level ──────── 0
//!               idle           │ goes on if begun │ starts            │ full
//! ```
//!
//! The kernel's levels may leave little room between writers and writeback, at 100 % none: then
//! each write waits for a flush of the origin. [`Watermarks::with_room`] lowers such levels.
//!
//! Invariants
//! - PO-W1 `free_at_high <= free_at_low`: writeback that starts also continues.

/// The two levels, in free blocks.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct Watermarks {
    free_at_high: u64,
    free_at_low: u64,
}

impl Watermarks {
    /// The levels for a cache of `total` blocks; the percentages, of which the high one is at most
    /// 100 and not below the other, count used blocks.
    pub fn new(total: u64, high_percent: u8, low_percent: u8) -> Watermarks {
        debug_assert!(low_percent <= high_percent && high_percent <= 100);
        let (free_at_high, free_at_low) =
            (free_at(total, high_percent), free_at(total, low_percent));
        Watermarks { free_at_high, free_at_low }
    }

    /// The same levels, but at least `room` blocks are free when writeback stops, and half of them
    /// when it starts.
    #[must_use]
    pub fn with_room(self, room: u64) -> Watermarks {
        Watermarks {
            free_at_high: self.free_at_high.max(room / 2),
            free_at_low: self.free_at_low.max(room),
        }
    }

    /// The blocks that writers and writeback share while both are busy: free ones, and those that
    /// are being written back. No more than twice what is free when writeback starts, so that
    /// writers are not yet slowed much at that moment, however low it stops.
    #[must_use]
    pub fn room(&self) -> u64 {
        self.free_at_low.min(self.free_at_high.saturating_mul(2))
    }

    /// True if an idle writeback begins. `free` counts blocks already on their way out as free,
    /// as the kernel adds `writeback_size`.
    #[must_use]
    pub fn should_start(&self, free: u64) -> bool {
        free <= self.free_at_high
    }

    /// True if a writeback that has begun goes on.
    #[must_use]
    pub fn should_continue(&self, free: u64) -> bool {
        free <= self.free_at_low
    }
}

/// The kernel's rounding: `(n * (100 - percent) + 50) / 100`, in 128 bits so that it holds for
/// any number of blocks.
fn free_at(total: u64, percent: u8) -> u64 {
    let free = (u128::from(total) * u128::from(100 - percent) + 50) / 100;
    u64::try_from(free).expect("at most total")
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn levels_are_those_of_the_kernel() {
        // Blocks, level at 50 %, level at 45 %: the kernel's formula for caches of 1 MiB to
        // 100 GiB with 512 and 4096-byte blocks.
        let table = [
            (1985, 993, 1092),
            (254, 127, 140),
            (31774, 15887, 17476),
            (4080, 2040, 2244),
            (127_100, 63550, 69905),
            (16320, 8160, 8976),
            (2_033_601, 1_016_801, 1_118_481),
            (261_123, 130_562, 143_618),
            (1_997_854, 998_927, 1_098_820),
            (256_533, 128_267, 141_093),
            (203_360_193, 101_680_097, 111_848_106),
            (26_112_398, 13_056_199, 14_361_819),
        ];
        for (total, high, low) in table {
            let marks = Watermarks::new(total, 50, 45);
            assert_eq!((marks.free_at_high, marks.free_at_low), (high, low), "{total}");
        }
    }

    #[test]
    fn writeback_starts_at_the_high_level_stops_past_the_low() {
        let marks = Watermarks::new(254, 50, 45);
        // Free blocks, starts, goes on.
        let table = [(0, true, true), (127, true, true), (128, false, true), (140, false, true)];
        for (free, start, go_on) in table {
            assert_eq!(marks.should_start(free), start, "{free}");
            assert_eq!(marks.should_continue(free), go_on, "{free}");
        }
        assert!(!marks.should_continue(141));
    }

    #[test]
    fn the_extremes_write_back_always_or_only_when_full() {
        let always = Watermarks::new(1000, 0, 0);
        assert!(always.should_start(1000));
        let full = Watermarks::new(1000, 100, 100);
        assert!(!full.should_start(1));
        assert!(full.should_start(0));
    }

    #[test]
    fn levels_are_lowered_only_where_they_leave_too_little_room() {
        // Watermarks, room asked for; free at high and at low, room found.
        let table = [
            ((50, 45), 125, (500, 550, 550)),
            ((90, 80), 125, (100, 200, 200)),
            ((90, 80), 256, (128, 256, 256)),
            ((95, 45), 125, (62, 550, 124)),
            ((100, 100), 125, (62, 125, 124)),
            ((100, 0), 125, (62, 1000, 124)),
            ((100, 100), 0, (0, 0, 0)),
        ];
        for ((high, low), room, (free_at_high, free_at_low, found)) in table {
            let marks = Watermarks::new(1000, high, low).with_room(room);
            assert_eq!((marks.free_at_high, marks.free_at_low), (free_at_high, free_at_low));
            assert_eq!(marks.room(), found, "{high}/{low}");
        }
    }

    #[test]
    fn levels_of_the_largest_count_do_not_overflow() {
        assert_eq!(Watermarks::new(u64::MAX, 0, 0).free_at_high, u64::MAX);
    }
}
