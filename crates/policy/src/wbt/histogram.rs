// SPDX-License-Identifier: Apache-2.0 OR MIT
//! A histogram of the latencies of one window.
//!
//! The buckets are log-linear, sixteen per power of two: a percentile is at most 1/16 too long,
//! from a microsecond to a minute.
use std::fmt;

/// Buckets per power of two.
const PER_OCTAVE: usize = 16;
/// log2 of [`PER_OCTAVE`].
const OCTAVE_BITS: u32 = 4;
/// Latencies below 2^10 ns share the first bucket.
const FIRST_BITS: u32 = 10;
/// Latencies of 2^36 ns (69 s) and more share the last bucket.
const LAST_BITS: u32 = 36;

/// Number of buckets.
pub const BUCKETS: usize = (LAST_BITS - FIRST_BITS) as usize * PER_OCTAVE + 2;

/// The bucket of a latency.
pub fn bucket_of(ns: u64) -> usize {
    if ns < 1 << FIRST_BITS {
        return 0;
    }
    if ns >= 1 << LAST_BITS {
        return BUCKETS - 1;
    }
    let octave = ns.ilog2();
    let within = (ns >> (octave - OCTAVE_BITS)) as usize - PER_OCTAVE;
    1 + (octave - FIRST_BITS) as usize * PER_OCTAVE + within
}

/// The end of a bucket's range, exclusive; `u64::MAX` for the last one.
pub fn bucket_end_ns(bucket: usize) -> u64 {
    if bucket == 0 {
        return 1 << FIRST_BITS;
    }
    if bucket + 1 >= BUCKETS {
        return u64::MAX;
    }
    let (octave, within) = ((bucket - 1) / PER_OCTAVE, (bucket - 1) % PER_OCTAVE);
    ((PER_OCTAVE + within + 1) as u64) << (octave as u32 + FIRST_BITS - OCTAVE_BITS)
}

/// Latencies, counted by bucket.
#[derive(Clone, PartialEq, Eq)]
pub struct LatencyHistogram {
    count: u64,
    min_ns: u64,
    max_ns: u64,
    buckets: [u32; BUCKETS],
}

impl Default for LatencyHistogram {
    fn default() -> LatencyHistogram {
        LatencyHistogram { count: 0, min_ns: u64::MAX, max_ns: 0, buckets: [0; BUCKETS] }
    }
}

impl LatencyHistogram {
    /// Counts one request that took `ns`.
    pub fn record(&mut self, ns: u64) {
        self.add(bucket_of(ns), 1);
        self.extend_range(ns, ns);
    }

    /// Counts `count` requests of one bucket. The caller must also call
    /// [`LatencyHistogram::extend_range`].
    pub fn add(&mut self, bucket: usize, count: u32) {
        self.count += u64::from(count);
        self.buckets[bucket] = self.buckets[bucket].saturating_add(count);
    }

    /// Extends the range of latencies to `min_ns` and `max_ns`.
    pub fn extend_range(&mut self, min_ns: u64, max_ns: u64) {
        self.min_ns = self.min_ns.min(min_ns);
        self.max_ns = self.max_ns.max(max_ns);
    }

    /// Adds the counts of `other`.
    pub fn merge(&mut self, other: &LatencyHistogram) {
        self.count += other.count;
        self.extend_range(other.min_ns, other.max_ns);
        for (mine, theirs) in self.buckets.iter_mut().zip(&other.buckets) {
            *mine = mine.saturating_add(*theirs);
        }
    }

    /// Number of requests.
    pub fn count(&self) -> u64 {
        self.count
    }

    /// The shortest; `None` without requests.
    pub fn min_ns(&self) -> Option<u64> {
        (self.count > 0).then_some(self.min_ns)
    }

    /// The longest; `None` without requests.
    pub fn max_ns(&self) -> Option<u64> {
        (self.count > 0).then_some(self.max_ns)
    }

    /// The latency that `per_mille` of a thousand requests do not exceed, at most 1/16 too long;
    /// `None` without requests. With few requests it is the longest.
    pub fn percentile_ns(&self, per_mille: u64) -> Option<u64> {
        // Rounded up: the 99th percentile of ten requests is the longest.
        let rank = (self.count * per_mille.min(1000)).div_ceil(1000).max(1);
        let mut seen = 0;
        for (bucket, count) in self.buckets.iter().enumerate() {
            seen += u64::from(*count);
            if seen >= rank {
                return Some((bucket_end_ns(bucket) - 1).clamp(self.min_ns, self.max_ns));
            }
        }
        None
    }
}

impl fmt::Debug for LatencyHistogram {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        let (min, max) = (self.min_ns(), self.max_ns());
        write!(f, "LatencyHistogram({} of {min:?} to {max:?} ns)", self.count)
    }
}

#[cfg(test)]
mod tests {
    use proptest::prelude::*;

    use super::*;

    #[test]
    fn without_requests_there_are_no_figures() {
        let reads = LatencyHistogram::default();
        assert_eq!(reads.percentile_ns(990), None);
        assert_eq!((reads.min_ns(), reads.max_ns()), (None, None));
    }

    #[test]
    fn the_tail_of_few_requests_is_the_longest() {
        let mut reads = LatencyHistogram::default();
        for ns in [100_000, 110_000, 5_000_000] {
            reads.record(ns);
        }
        assert_eq!(reads.percentile_ns(990), Some(5_000_000));
    }

    proptest! {
        #[test]
        fn a_length_lies_in_its_bucket(ns in 0_u64..1 << 40) {
            let bucket = bucket_of(ns);
            prop_assert!(ns < bucket_end_ns(bucket));
            prop_assert!(bucket == 0 || ns >= bucket_end_ns(bucket - 1));
        }

        #[test]
        fn a_percentile_is_at_most_a_sixteenth_too_long(
            mut all in prop::collection::vec(1_000_u64..50_000_000_000, 1..200),
            per_mille in 1_u64..=1000,
        ) {
            let mut reads = LatencyHistogram::default();
            all.iter().for_each(|ns| reads.record(*ns));
            all.sort_unstable();
            let rank = (all.len() as u64 * per_mille).div_ceil(1000);
            let exact = all[usize::try_from(rank).unwrap() - 1];
            let found = reads.percentile_ns(per_mille).unwrap();
            let longest = exact.max(1 << 10) + exact / 16;
            prop_assert!(found >= exact && found <= longest, "{found} {exact}");
        }

        #[test]
        fn merging_equals_counting_together(
            a in prop::collection::vec(0_u64..1 << 37, 0..50),
            b in prop::collection::vec(0_u64..1 << 37, 0..50),
        ) {
            let mut left = LatencyHistogram::default();
            let (mut right, mut both) = (left.clone(), left.clone());
            a.iter().for_each(|ns| left.record(*ns));
            b.iter().for_each(|ns| right.record(*ns));
            a.iter().chain(&b).for_each(|ns| both.record(*ns));
            left.merge(&right);
            prop_assert_eq!(left, both);
        }
    }
}
