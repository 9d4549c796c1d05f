// SPDX-License-Identifier: Apache-2.0 OR MIT
//! Counters: how long the requests of one leaf took, counted on its core and read by whichever
//! core closes a window.
//!
//! They only ever grow, written by one core with plain loads and stores; who closes a window takes
//! the difference to the last time. Only the shortest and the longest are taken away by the reader.
use std::sync::atomic::{AtomicU32, AtomicU64, Ordering::Relaxed};

use policy::wbt::{BUCKETS, LatencyHistogram, bucket_end_ns, bucket_of};

fn add(to: &AtomicU64, n: u64) {
    to.store(to.load(Relaxed).wrapping_add(n), Relaxed);
}

/// How long requests took.
struct TimeBuckets {
    buckets: [AtomicU32; BUCKETS],
    min_ns: AtomicU64,
    max_ns: AtomicU64,
}

impl TimeBuckets {
    fn new() -> TimeBuckets {
        TimeBuckets {
            buckets: [const { AtomicU32::new(0) }; BUCKETS],
            min_ns: AtomicU64::new(u64::MAX),
            max_ns: AtomicU64::new(0),
        }
    }

    fn record(&self, ns: u64) {
        let bucket = &self.buckets[bucket_of(ns)];
        bucket.store(bucket.load(Relaxed).wrapping_add(1), Relaxed);
        if ns < self.min_ns.load(Relaxed) {
            self.min_ns.fetch_min(ns, Relaxed);
        }
        if ns > self.max_ns.load(Relaxed) {
            self.max_ns.fetch_max(ns, Relaxed);
        }
    }
}

/// Of which [`TimeBuckets`] what has been seen.
struct SeenBuckets(Box<[u32; BUCKETS]>);

impl SeenBuckets {
    fn nothing() -> SeenBuckets {
        SeenBuckets(Box::new([0; BUCKETS]))
    }

    /// Adds what is new to `reads`.
    fn take(&mut self, times: &TimeBuckets, reads: &mut LatencyHistogram) {
        let mut new_buckets: Option<(usize, usize)> = None;
        for (bucket, (now, seen)) in times.buckets.iter().zip(self.0.iter_mut()).enumerate() {
            let now = now.load(Relaxed);
            let new = now.wrapping_sub(std::mem::replace(seen, now));
            if new > 0 {
                reads.add(bucket, new);
                let first = new_buckets.map_or(bucket, |(first, _)| first);
                new_buckets = Some((first, bucket));
            }
        }
        let min_ns = times.min_ns.swap(u64::MAX, Relaxed);
        let max_ns = times.max_ns.swap(0, Relaxed);
        if let Some((first, last)) = new_buckets {
            // The core that counts may be half way: then its buckets say what bounds there are.
            let min_ns = min_ns.min(bucket_end_ns(first) - 1);
            let from_ns = last.checked_sub(1).map_or(0, bucket_end_ns);
            reads.extend_range(min_ns, max_ns.max(from_ns).max(min_ns));
        }
    }
}

/// What one leaf counts.
pub(crate) struct Counters {
    clean_reads: TimeBuckets,
    /// The other reads.
    other_reads: TimeBuckets,
    writes: AtomicU64,
    write_bytes: AtomicU64,
    /// When the read that is being watched was issued; 0 while none is.
    watched_ns: AtomicU64,
}

impl Counters {
    pub(crate) fn new() -> Counters {
        Counters {
            clean_reads: TimeBuckets::new(),
            other_reads: TimeBuckets::new(),
            writes: AtomicU64::new(0),
            write_bytes: AtomicU64::new(0),
            watched_ns: AtomicU64::new(0),
        }
    }

    pub(crate) fn read(&self, ns: u64, is_clean: bool) {
        let reads = if is_clean { &self.clean_reads } else { &self.other_reads };
        reads.record(ns);
    }

    pub(crate) fn write(&self, bytes: u64) {
        add(&self.writes, 1);
        add(&self.write_bytes, bytes);
    }

    pub(crate) fn watch(&self, issued_ns: u64) {
        self.watched_ns.store(issued_ns, Relaxed);
    }

    pub(crate) fn watched_ns(&self) -> Option<u64> {
        Some(self.watched_ns.load(Relaxed)).filter(|ns| *ns > 0)
    }
}

/// What has been seen of the counters of one leaf.
pub(crate) struct Snapshot {
    clean_reads: SeenBuckets,
    other_reads: SeenBuckets,
    writes: u64,
    write_bytes: u64,
}

/// What is new of several.
#[derive(Default)]
pub(crate) struct Delta {
    pub(crate) clean_reads: LatencyHistogram,
    pub(crate) other_reads: LatencyHistogram,
    pub(crate) writes: u64,
    pub(crate) write_bytes: u64,
}

impl Snapshot {
    pub(crate) fn nothing() -> Snapshot {
        let (clean_reads, other_reads) = (SeenBuckets::nothing(), SeenBuckets::nothing());
        Snapshot { clean_reads, other_reads, writes: 0, write_bytes: 0 }
    }

    /// Adds what is new to `delta`.
    pub(crate) fn take(&mut self, counters: &Counters, delta: &mut Delta) {
        self.clean_reads.take(&counters.clean_reads, &mut delta.clean_reads);
        self.other_reads.take(&counters.other_reads, &mut delta.other_reads);
        let (writes, bytes) = (counters.writes.load(Relaxed), counters.write_bytes.load(Relaxed));
        delta.writes += writes.wrapping_sub(std::mem::replace(&mut self.writes, writes));
        delta.write_bytes += bytes.wrapping_sub(std::mem::replace(&mut self.write_bytes, bytes));
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    /// Another core counts while a window is closed: whatever is seen of it has bounds in order.
    #[test]
    fn what_is_half_counted_has_bounds_in_order() {
        let half = |count: fn(&TimeBuckets)| {
            let (times, mut seen) = (TimeBuckets::new(), SeenBuckets::nothing());
            let mut reads = LatencyHistogram::default();
            count(&times);
            seen.take(&times, &mut reads);
            let (min_ns, max_ns) = (reads.min_ns().unwrap(), reads.max_ns().unwrap());
            let tail_ns = reads.percentile_ns(990).unwrap();
            assert!(min_ns <= tail_ns && tail_ns <= max_ns, "{reads:?}");
            let octave = 1 << 20..1 << 21;
            assert!(octave.contains(&min_ns) && octave.contains(&max_ns), "{reads:?}");
        };
        half(|times| times.buckets[bucket_of(1_500_000)].store(1, Relaxed));
        half(|times| {
            times.buckets[bucket_of(1_500_000)].store(1, Relaxed);
            times.min_ns.store(1_500_000, Relaxed);
        });
        // The bounds were taken away before the bucket was seen.
        let (times, mut seen) = (TimeBuckets::new(), SeenBuckets::nothing());
        times.record(1_500_000);
        times.buckets[bucket_of(1_500_000)].store(0, Relaxed);
        seen.take(&times, &mut LatencyHistogram::default());
        times.buckets[bucket_of(1_500_000)].store(1, Relaxed);
        let mut reads = LatencyHistogram::default();
        seen.take(&times, &mut reads);
        assert!(reads.percentile_ns(990).is_some_and(|ns| bucket_of(ns) == bucket_of(1_500_000)));
    }

    #[test]
    fn a_window_sees_what_has_come_since_the_last() {
        let counters = Counters::new();
        let mut seen = Snapshot::nothing();
        let mut window = || {
            let mut delta = Delta::default();
            seen.take(&counters, &mut delta);
            delta
        };
        counters.read(100_000, true);
        counters.read(300_000, false);
        counters.read(400_000, false);
        counters.write(4096);
        let delta = window();
        assert_eq!((delta.writes, delta.write_bytes), (1, 4096));
        assert_eq!((delta.clean_reads.count(), delta.other_reads.count()), (1, 2));
        assert_eq!(delta.clean_reads.min_ns(), Some(100_000));
        assert_eq!(delta.other_reads.min_ns(), Some(300_000));
        assert_eq!(delta.other_reads.max_ns(), Some(400_000));
        counters.read(500_000, false);
        let delta = window();
        assert_eq!((delta.writes, delta.clean_reads.count(), delta.other_reads.count()), (0, 0, 1));
        let (min_ns, max_ns) = (delta.other_reads.min_ns(), delta.other_reads.max_ns());
        assert_eq!((min_ns, max_ns), (Some(500_000), Some(500_000)));
        assert_eq!(window().other_reads.min_ns(), None);
    }
}
