// SPDX-License-Identifier: Apache-2.0 OR MIT
//! The delay before a retry: one second, doubled after each failure.
//!
//! ```text
//! failures in a row   1    2    3    4    5    6    7 and more
//! wait, seconds       1    2    4    8   16   32   64
//! ```

/// The first wait. Chosen: a path that fails over, or a drive that resets its link, is back within
/// seconds; and a request that fails may have kept a disk busy for as long.
pub const BACKOFF_FIRST_NS: u64 = 1_000_000_000;
/// The longest wait. Chosen: an origin that is back is used again within about a minute.
pub const BACKOFF_MAX_NS: u64 = 64_000_000_000;

/// How long to wait after so many failures in a row.
#[must_use]
pub fn backoff_ns(failures: u32) -> u64 {
    let doublings = failures.saturating_sub(1).min(BACKOFF_MAX_NS.ilog2());
    BACKOFF_FIRST_NS.saturating_mul(1 << doublings).min(BACKOFF_MAX_NS)
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn each_failure_doubles_the_wait_up_to_the_longest() {
        let seconds: Vec<u64> = [0, 1, 2, 3, 4, 5, 6, 7, 8, 64, 1000, u32::MAX]
            .map(|n| backoff_ns(n) / 1_000_000_000)
            .into();
        assert_eq!(seconds, [1, 1, 2, 4, 8, 16, 32, 64, 64, 64, 64, 64]);
    }
}
