// SPDX-License-Identifier: Apache-2.0 OR MIT
//! Latencies: how many requests of each operation took how long.
//!
//! The buckets are fixed: the first ends at 2^14 ns (16 us), each further one at twice the end of
//! the one before, the last but one at 2^34 ns (17 s). To record a time costs two additions to
//! memory and finds its bucket by its leading zeroes; nothing is allocated.
use std::cell::Cell;
use std::sync::atomic::{AtomicU64, Ordering::Relaxed};

use crate::{Nanos, Op};

/// Number of operations of [`Op`].
const OPS: usize = 5;
/// Ends of buckets; one more bucket has what took longer.
pub const BOUNDS: usize = 21;
/// The first bucket ends at this power of two, in nanoseconds.
const FIRST_BITS: u32 = 14;

/// Times of one operation. Any core may record.
#[derive(Debug, Default)]
struct Histogram {
    buckets: [AtomicU64; BOUNDS + 1],
    sum_ns: AtomicU64,
}

/// Times of requests, by operation.
#[derive(Debug, Default)]
pub struct Latencies([Histogram; OPS]);

/// What has been recorded of one operation.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq)]
pub struct LatencyCounts {
    /// Requests by bucket; the end of number `n` is [`bound`]`(n)`.
    pub buckets: [u64; BOUNDS + 1],
    /// All times together.
    pub sum: Nanos,
}

/// The longest time of bucket `nth`; the last bucket has none.
pub const fn bound(nth: usize) -> Nanos {
    Nanos(1 << (FIRST_BITS as usize + nth))
}

fn bucket_of(time: Nanos) -> usize {
    let beyond = time.0.saturating_sub(1) >> FIRST_BITS;
    ((u64::BITS - beyond.leading_zeros()) as usize).min(BOUNDS)
}

impl Latencies {
    /// A request of `op` took `time`.
    #[inline]
    pub fn record(&self, op: Op, time: Nanos) {
        let Histogram { buckets, sum_ns } = &self.0[op as usize];
        buckets[bucket_of(time)].fetch_add(1, Relaxed);
        sum_ns.fetch_add(time.0, Relaxed);
    }

    /// What has been recorded of `op`.
    pub fn counts(&self, op: Op) -> LatencyCounts {
        let Histogram { buckets, sum_ns } = &self.0[op as usize];
        let buckets = buckets.each_ref().map(|count| count.load(Relaxed));
        LatencyCounts { buckets, sum: Nanos(sum_ns.load(Relaxed)) }
    }
}

/// Requests of one core that ended in the turn of its loop in which they came. They are recorded
/// together, as other cores read the latencies.
#[derive(Debug, Default)]
pub struct TurnCounts([Cell<u64>; OPS]);

impl TurnCounts {
    /// A request of `op` ended at once.
    #[inline]
    pub fn count(&self, op: Op) {
        let requests = &self.0[op as usize];
        requests.set(requests.get() + 1);
    }

    /// Records all of the turn, and begins the next one.
    pub fn record(&self, latencies: &Latencies) {
        for (requests, histogram) in self.0.iter().zip(&latencies.0) {
            match requests.take() {
                0 => {}
                requests => drop(histogram.buckets[0].fetch_add(requests, Relaxed)),
            }
        }
    }
}

impl LatencyCounts {
    /// Number of requests.
    pub fn count(&self) -> u64 {
        self.buckets.iter().sum()
    }

    /// Both together.
    #[must_use]
    pub fn plus(mut self, other: &LatencyCounts) -> LatencyCounts {
        for (count, more) in self.buckets.iter_mut().zip(other.buckets) {
            *count += more;
        }
        self.sum = Nanos(self.sum.0.wrapping_add(other.sum.0));
        self
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn a_time_is_in_the_first_bucket_that_ends_at_or_after_it() {
        for (ns, bucket) in [
            (0, 0),
            (1, 0),
            (16_384, 0),
            (16_385, 1),
            (32_768, 1),
            (1 << 34, BOUNDS - 1),
            ((1 << 34) + 1, BOUNDS),
            (u64::MAX, BOUNDS),
        ] {
            assert_eq!(bucket_of(Nanos(ns)), bucket, "{ns}");
        }
        assert_eq!((bound(0), bound(BOUNDS - 1)), (Nanos(16_384), Nanos(1 << 34)));
    }

    #[test]
    fn operations_are_counted_apart() {
        let latencies = Latencies::default();
        latencies.record(Op::Read, Nanos(10));
        latencies.record(Op::Read, Nanos(20_000));
        latencies.record(Op::Flush, Nanos(7));
        let turn = TurnCounts::default();
        (0..3).for_each(|_| turn.count(Op::Discard));
        turn.record(&latencies);
        turn.record(&latencies);
        let discard = latencies.counts(Op::Discard);
        assert_eq!((discard.count(), discard.buckets[0], discard.sum), (3, 3, Nanos::ZERO));
        let read = latencies.counts(Op::Read);
        assert_eq!((read.count(), read.sum), (2, Nanos(20_010)));
        assert_eq!((read.buckets[0], read.buckets[1]), (1, 1));
        assert_eq!(latencies.counts(Op::Flush).count(), 1);
        assert_eq!(latencies.counts(Op::Write), LatencyCounts::default());
        let both = read.plus(&latencies.counts(Op::Flush));
        assert_eq!((both.count(), both.buckets[0]), (3, 2));
    }
}
