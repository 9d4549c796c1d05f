// SPDX-License-Identifier: Apache-2.0 OR MIT
//! Trust in read-ahead: how much of a stream must have been seen before anything is read ahead of
//! it, and how much is read ahead then, by what became of what was read ahead before.
//!
//! ```text
//!   doubt 0: two reads in order, full windows ─▶ 1: 8 pages, half of it ─▶ ... ─▶ DOUBT_MAX
//!                     ▲ a piece was used                  │ most of a piece was not
//!                     └───────────────────────────────────┘ one step
//! ```
//!
//! Windows of one stream grow while it goes on (`readahead`, as in the kernel). This is what they
//! have in common: clients that read two blocks in order and then leave cost a piece each, and the
//! kernel reads it again and again.

/// A piece of which less than one part in so many was used is waste. Chosen: a disk that spins
/// reads four blocks in a row in less time than two of them apart.
const WASTE_PART: u64 = 4;
/// Steps of doubt: then 8 MiB of 4 KiB must have been read in order.
const DOUBT_MAX: u8 = 9;
/// Pages that must have been read in order at doubt 1.
const RUN_FIRST: u64 = 8;

/// See the module.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq)]
pub struct ReadAheadTrust {
    doubt: u8,
}

impl ReadAheadTrust {
    /// A piece of `pages` has gone, of which clients have read `used`.
    pub fn judge(&mut self, used: u64, pages: u64) {
        let is_waste = used.saturating_mul(WASTE_PART) < pages;
        self.doubt = match is_waste {
            true => (self.doubt + 1).min(DOUBT_MAX),
            false => self.doubt.saturating_sub(1),
        };
    }

    /// Pages that a stream must have before anything is read ahead of it; 0: it must be one.
    #[must_use]
    pub fn run_min(self) -> u64 {
        if self.doubt == 0 { 0 } else { RUN_FIRST << (self.doubt - 1) }
    }

    /// Pages of the largest window, of `max` with full trust.
    #[must_use]
    pub fn window_max(self, max: u32) -> u32 {
        (max >> self.doubt).max(max.min(1))
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn waste_costs_trust_and_use_brings_it_back() {
        let mut trust = ReadAheadTrust::default();
        assert_eq!((trust.run_min(), trust.window_max(256)), (0, 256));
        trust.judge(1, 4);
        assert_eq!(trust.run_min(), 0, "a quarter is enough");
        let mut runs = Vec::new();
        for _ in 0..12 {
            trust.judge(3, 16);
            runs.push((trust.run_min(), trust.window_max(256)));
        }
        assert_eq!(runs[..3], [(8, 128), (16, 64), (32, 32)]);
        assert_eq!(runs[8..], [(2048, 1); 4], "it has a bound");
        for _ in 0..9 {
            trust.judge(256, 256);
        }
        assert_eq!(trust, ReadAheadTrust::default());
        assert_eq!(trust.window_max(0), 0);
    }
}
