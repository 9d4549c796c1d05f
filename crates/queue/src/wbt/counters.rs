// SPDX-License-Identifier: Apache-2.0 OR MIT
//! Counters: how long the requests of one leaf took, counted on its core and read by whichever
//! core closes a window.
//!
//! They only ever grow, written by one core with plain loads and stores; who closes a window takes
//! the difference to the last time. Only the shortest and the longest are taken away by the reader.
use std::sync::atomic::{AtomicU32, AtomicU64, Ordering::Relaxed};

use policy::wbt::{BUCKETS, Reads, bucket_of};

fn add(to: &AtomicU64, n: u64) {
    to.store(to.load(Relaxed).wrapping_add(n), Relaxed);
}

/// How long requests took.
struct Times {
    buckets: [AtomicU32; BUCKETS],
    sum_ns: AtomicU64,
    min_ns: AtomicU64,
    max_ns: AtomicU64,
}

impl Times {
    fn new() -> Times {
        Times {
            buckets: [const { AtomicU32::new(0) }; BUCKETS],
            sum_ns: AtomicU64::new(0),
            min_ns: AtomicU64::new(u64::MAX),
            max_ns: AtomicU64::new(0),
        }
    }

    fn record(&self, ns: u64) {
        let bucket = &self.buckets[bucket_of(ns)];
        bucket.store(bucket.load(Relaxed).wrapping_add(1), Relaxed);
        add(&self.sum_ns, ns);
        if ns < self.min_ns.load(Relaxed) {
            self.min_ns.fetch_min(ns, Relaxed);
        }
        if ns > self.max_ns.load(Relaxed) {
            self.max_ns.fetch_max(ns, Relaxed);
        }
    }
}

/// Of which [`Times`] what has been seen.
struct Seen {
    buckets: Box<[u32; BUCKETS]>,
    sum_ns: u64,
}

impl Seen {
    fn nothing() -> Seen {
        Seen { buckets: Box::new([0; BUCKETS]), sum_ns: 0 }
    }

    /// Adds what is new to `reads`.
    fn take(&mut self, times: &Times, reads: &mut Reads) {
        let sum_ns = times.sum_ns.load(Relaxed);
        let mut new_ns = sum_ns.wrapping_sub(self.sum_ns);
        let mut any = false;
        for (bucket, (now, seen)) in times.buckets.iter().zip(self.buckets.iter_mut()).enumerate() {
            let now = now.load(Relaxed);
            let new = now.wrapping_sub(std::mem::replace(seen, now));
            if new > 0 {
                // The sum is of all buckets: told with the first.
                reads.add(bucket, new, std::mem::take(&mut new_ns));
                any = true;
            }
        }
        self.sum_ns = sum_ns;
        let min_ns = times.min_ns.swap(u64::MAX, Relaxed);
        let max_ns = times.max_ns.swap(0, Relaxed);
        if any {
            reads.bound(min_ns, max_ns);
        }
    }
}

/// What one leaf counts.
pub(crate) struct Counters {
    reads: Times,
    clean_reads: Times,
    writes: AtomicU64,
    write_bytes: AtomicU64,
    /// When the read that is being watched was issued; 0 while none is.
    watched_ns: AtomicU64,
}

impl Counters {
    pub(crate) fn new() -> Counters {
        Counters {
            reads: Times::new(),
            clean_reads: Times::new(),
            writes: AtomicU64::new(0),
            write_bytes: AtomicU64::new(0),
            watched_ns: AtomicU64::new(0),
        }
    }

    pub(crate) fn read(&self, ns: u64, is_clean: bool) {
        self.reads.record(ns);
        if is_clean {
            self.clean_reads.record(ns);
        }
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
    reads: Seen,
    clean_reads: Seen,
    writes: u64,
    write_bytes: u64,
}

/// What is new of several.
#[derive(Default)]
pub(crate) struct News {
    pub(crate) reads: Reads,
    pub(crate) clean_reads: Reads,
    pub(crate) writes: u64,
    pub(crate) write_bytes: u64,
}

impl Snapshot {
    pub(crate) fn nothing() -> Snapshot {
        let (reads, clean_reads) = (Seen::nothing(), Seen::nothing());
        Snapshot { reads, clean_reads, writes: 0, write_bytes: 0 }
    }

    /// Adds what is new to `news`.
    pub(crate) fn take(&mut self, counters: &Counters, news: &mut News) {
        self.reads.take(&counters.reads, &mut news.reads);
        self.clean_reads.take(&counters.clean_reads, &mut news.clean_reads);
        let (writes, bytes) = (counters.writes.load(Relaxed), counters.write_bytes.load(Relaxed));
        news.writes += writes.wrapping_sub(std::mem::replace(&mut self.writes, writes));
        news.write_bytes += bytes.wrapping_sub(std::mem::replace(&mut self.write_bytes, bytes));
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn a_window_sees_what_has_come_since_the_last() {
        let counters = Counters::new();
        let mut seen = Snapshot::nothing();
        let mut window = || {
            let mut news = News::default();
            seen.take(&counters, &mut news);
            news
        };
        counters.read(100_000, true);
        counters.read(300_000, false);
        counters.write(4096);
        let news = window();
        assert_eq!((news.writes, news.write_bytes), (1, 4096));
        assert_eq!((news.reads.count(), news.clean_reads.count()), (2, 1));
        assert_eq!(news.reads.min_ns(), Some(100_000));
        assert_eq!(news.reads.mean_ns(), Some(200_000));
        counters.read(500_000, false);
        let news = window();
        assert_eq!((news.writes, news.reads.count(), news.clean_reads.count()), (0, 1, 0));
        assert_eq!((news.reads.min_ns(), news.reads.max_ns()), (Some(500_000), Some(500_000)));
        assert_eq!(window().reads.min_ns(), None);
    }
}
