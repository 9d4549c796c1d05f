// SPDX-License-Identifier: Apache-2.0 OR MIT
//! Reads: how long the requests of one window took, as counts by length.
//!
//! The buckets are log-linear: sixteen to each doubling, so a percentile is at most a sixteenth too
//! long, from a microsecond to a minute.
use std::fmt;

/// Buckets to each doubling.
const PER_OCTAVE: usize = 16;
/// log2 of [`PER_OCTAVE`].
const OCTAVE_BITS: u32 = 4;
/// Lengths below 2^10 ns share the first bucket.
const FIRST_BITS: u32 = 10;
/// Lengths from 2^36 ns (69 s) on share the last bucket.
const LAST_BITS: u32 = 36;

/// Number of buckets.
pub const BUCKETS: usize = (LAST_BITS - FIRST_BITS) as usize * PER_OCTAVE + 2;

/// The bucket of a length.
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

/// The shortest length that is longer than all of a bucket. The last has none.
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

/// Lengths of requests.
#[derive(Clone, PartialEq, Eq)]
pub struct Reads {
    count: u64,
    sum_ns: u64,
    min_ns: u64,
    max_ns: u64,
    buckets: [u32; BUCKETS],
}

impl Default for Reads {
    fn default() -> Reads {
        Reads { count: 0, sum_ns: 0, min_ns: u64::MAX, max_ns: 0, buckets: [0; BUCKETS] }
    }
}

impl Reads {
    /// Counts one that took `ns`.
    pub fn record(&mut self, ns: u64) {
        self.add(bucket_of(ns), 1, ns);
        self.bound(ns, ns);
    }

    /// Counts `count` of one bucket that took `sum_ns` together. Whoever counts so tells
    /// [`Reads::bound`], too.
    pub fn add(&mut self, bucket: usize, count: u32, sum_ns: u64) {
        self.count += u64::from(count);
        self.sum_ns = self.sum_ns.saturating_add(sum_ns);
        self.buckets[bucket] = self.buckets[bucket].saturating_add(count);
    }

    /// All took at least `min_ns` and at most `max_ns`.
    pub fn bound(&mut self, min_ns: u64, max_ns: u64) {
        self.min_ns = self.min_ns.min(min_ns);
        self.max_ns = self.max_ns.max(max_ns);
    }

    /// Counts all of `other`, too.
    pub fn merge(&mut self, other: &Reads) {
        self.count += other.count;
        self.sum_ns = self.sum_ns.saturating_add(other.sum_ns);
        self.bound(other.min_ns, other.max_ns);
        for (mine, theirs) in self.buckets.iter_mut().zip(&other.buckets) {
            *mine = mine.saturating_add(*theirs);
        }
    }

    /// Forgets half of all, so that newer ones weigh more.
    pub fn halve(&mut self) {
        self.count = 0;
        for bucket in &mut self.buckets {
            *bucket /= 2;
            self.count += u64::from(*bucket);
        }
        self.sum_ns /= 2;
    }

    /// Number of requests.
    pub fn count(&self) -> u64 {
        self.count
    }

    /// The shortest; nothing without requests.
    pub fn min_ns(&self) -> Option<u64> {
        (self.count > 0).then_some(self.min_ns)
    }

    /// The longest; nothing without requests.
    pub fn max_ns(&self) -> Option<u64> {
        (self.count > 0).then_some(self.max_ns)
    }

    /// The mean; nothing without requests.
    pub fn mean_ns(&self) -> Option<u64> {
        self.sum_ns.checked_div(self.count)
    }

    /// The length that `per_mille` of a thousand do not exceed, up to a sixteenth too long; nothing
    /// without requests. With few requests that is the longest.
    pub fn percentile_ns(&self, per_mille: u64) -> Option<u64> {
        // Rounded up: of ten requests the 99th percentile is the longest.
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

impl fmt::Debug for Reads {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        let (min, max) = (self.min_ns(), self.max_ns());
        write!(f, "Reads({} of {min:?} to {max:?} ns)", self.count)
    }
}

#[cfg(test)]
mod tests {
    use proptest::prelude::*;

    use super::*;

    #[test]
    fn nothing_is_known_of_no_requests() {
        let reads = Reads::default();
        assert_eq!(reads.percentile_ns(990), None);
        assert_eq!((reads.min_ns(), reads.max_ns(), reads.mean_ns()), (None, None, None));
    }

    #[test]
    fn the_tail_of_few_requests_is_the_longest() {
        let mut reads = Reads::default();
        for ns in [100_000, 110_000, 5_000_000] {
            reads.record(ns);
        }
        assert_eq!(reads.percentile_ns(990), Some(5_000_000));
        assert_eq!(reads.mean_ns(), Some(5_210_000 / 3));
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
            let mut reads = Reads::default();
            all.iter().for_each(|ns| reads.record(*ns));
            all.sort_unstable();
            let rank = (all.len() as u64 * per_mille).div_ceil(1000);
            let exact = all[usize::try_from(rank).unwrap() - 1];
            let told = reads.percentile_ns(per_mille).unwrap();
            let longest = exact.max(1 << 10) + exact / 16;
            prop_assert!(told >= exact && told <= longest, "{told} {exact}");
        }

        #[test]
        fn merged_is_as_if_counted_together(
            a in prop::collection::vec(0_u64..1 << 37, 0..50),
            b in prop::collection::vec(0_u64..1 << 37, 0..50),
        ) {
            let (mut left, mut right, mut both) = <(Reads, Reads, Reads)>::default();
            a.iter().for_each(|ns| left.record(*ns));
            b.iter().for_each(|ns| right.record(*ns));
            a.iter().chain(&b).for_each(|ns| both.record(*ns));
            left.merge(&right);
            prop_assert_eq!(left, both);
        }
    }
}
