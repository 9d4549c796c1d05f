// SPDX-License-Identifier: Apache-2.0 OR MIT
//! A limit in bytes per second, kept as one time: when the next request may start.
//!
//! ```text
//!   bytes taken      ▇▇▇▇
//!   next moment  ────┤ now ├──────▶ now + bytes / rate
//! ```
//!
//! Invariants
//! - PO-RL1 In any time `t` at most `rate * (t + burst)` bytes start, plus one request.

/// Time that was not used is kept for so long: enough for a task that is late. Chosen.
const BURST_NS: u64 = 50_000_000;
const SECOND_NS: u128 = 1_000_000_000;

/// See the module.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq)]
pub struct RateLimit {
    next_ns: u64,
}

impl RateLimit {
    /// How long the next request has to wait; 0: it may go.
    #[must_use]
    pub fn wait_ns(&self, now_ns: u64) -> u64 {
        self.next_ns.saturating_sub(now_ns)
    }

    /// Takes a request of so many bytes, at a rate that may have changed. A rate of 0 is no limit.
    pub fn take(&mut self, bytes: u64, bytes_per_s: u64, now_ns: u64) {
        let from_ns = self.next_ns.max(now_ns.saturating_sub(BURST_NS));
        let cost_ns = (u128::from(bytes) * SECOND_NS)
            .checked_div(u128::from(bytes_per_s))
            .map_or(0, |ns| u64::try_from(ns).unwrap_or(u64::MAX));
        self.next_ns = from_ns.saturating_add(cost_ns);
    }

    /// The rate has been raised, or there is none any more: no request waits for the debt of the
    /// old one.
    pub fn forgive(&mut self) {
        self.next_ns = 0;
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    const MS: u64 = 1_000_000;

    /// Bytes that get through in `ms` milliseconds.
    fn passed(bytes: u64, bytes_per_s: u64, ms: u64) -> u64 {
        let mut limit = RateLimit::default();
        let mut passed = 0;
        for now_ms in 1000..1000 + ms {
            while limit.wait_ns(now_ms * MS) == 0 {
                limit.take(bytes, bytes_per_s, now_ms * MS);
                passed += bytes;
            }
        }
        passed
    }

    #[test]
    fn at_most_rate_and_burst_pass_whatever_the_requests() {
        // Bytes of a request, bytes a second, milliseconds.
        let table: [(u64, u64, u64); 5] = [
            (4096, 1_000_000, 10_000),
            (1 << 20, 1_000_000, 60_000),
            (4096, 100_000_000, 1000),
            (1 << 20, 1000, 1000),
            (512, 512, 5000),
        ];
        for (bytes, rate, ms) in table {
            let most = rate * (ms + 50) / 1000 + bytes;
            let least = (rate * ms / 1000).saturating_sub(bytes);
            let found = passed(bytes, rate, ms);
            assert!((least..=most).contains(&found), "{bytes} at {rate}: {found} of {most}");
        }
    }

    #[test]
    fn without_a_rate_nothing_waits() {
        let mut limit = RateLimit::default();
        limit.take(u64::MAX, 0, 5);
        assert_eq!(limit.wait_ns(5), 0);
    }

    #[test]
    fn what_cannot_be_counted_waits_long_and_is_forgiven() {
        let mut limit = RateLimit::default();
        limit.take(u64::MAX, 1, 7);
        assert!(limit.wait_ns(7) > 1_000_000_000 * MS);
        limit.forgive();
        assert_eq!(limit.wait_ns(7), 0);
    }

    #[test]
    fn time_that_was_not_used_is_kept_for_a_moment_only() {
        let mut limit = RateLimit::default();
        limit.take(1000, 1000, 1_000 * MS);
        // A second later, and then a minute: what may go at once is worth 50 ms.
        for now_ns in [2_000 * MS, 62_000 * MS] {
            let mut at_once = 0;
            while limit.wait_ns(now_ns) == 0 {
                limit.take(1, 1000, now_ns);
                at_once += 1;
            }
            assert!((1..=51).contains(&at_once), "{at_once}");
        }
    }
}
