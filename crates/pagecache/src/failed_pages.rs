// SPDX-License-Identifier: Apache-2.0 OR MIT
//! Failed pages: what could not be written and is still dirty, and when it is written again.
//!
//! The flusher retries failed pages 100 ms after the first failure, then after 200 ms more, and so
//! on up to 10 s. A FLUSH retries them at once. From the second retry on they go in small ioends,
//! because one bad page makes its whole ioend fail.
//!
//! Invariants
//! - PC-FP1 The set contains every page whose last write failed and that is still dirty. It may
//!   contain more until the next retry.
use std::cell::{Cell, RefCell};
use std::collections::BTreeMap;
use std::ops::Range;

use block::Nanos;

/// First pause before a failed page is retried, and the longest.
const PAUSE_FIRST: Nanos = Nanos(100_000_000);
const PAUSE_MAX: Nanos = Nanos(10_000_000_000);
/// Up to so many failed pages are retried one by one (4 MiB), more than that in ioends of 64 KiB.
/// Chosen: a device that was unplugged should not get ten thousands of small writes.
const ALONE_PAGES_MAX: u64 = 1024;
const TOGETHER_PAGES: u64 = 16;

/// A set of pages, kept as ranges that neither overlap nor touch: end by start.
#[derive(Default)]
struct RangeSet {
    ends: BTreeMap<u64, u64>,
    count: u64,
}

impl RangeSet {
    fn insert(&mut self, new: &Range<u64>) {
        let (mut start, mut end) = (new.start, new.end);
        while let Some((&from, &to)) = self.ends.range(..=end).next_back() {
            if to < start {
                break;
            }
            self.take(from);
            (start, end) = (start.min(from), end.max(to));
        }
        self.put(start..end);
    }

    fn remove(&mut self, old: &Range<u64>) {
        while let Some((&from, &to)) = self.ends.range(..old.end).next_back() {
            if to <= old.start {
                break;
            }
            self.take(from);
            if from < old.start {
                self.put(from..old.start);
            }
            if to > old.end {
                self.put(old.end..to);
            }
        }
    }

    /// The first range that ends after `page`.
    fn next(&self, page: u64) -> Option<Range<u64>> {
        let before = self.ends.range(..=page).next_back().filter(|(_, to)| **to > page);
        before.or_else(|| self.ends.range(page..).next()).map(|(from, to)| *from..*to)
    }

    fn put(&mut self, range: Range<u64>) {
        self.count += range.end - range.start;
        self.ends.insert(range.start, range.end);
    }

    fn take(&mut self, start: u64) {
        let end = self.ends.remove(&start).expect("a range of the set");
        self.count -= end - start;
    }
}

/// See the module.
#[derive(Default)]
pub(crate) struct FailedPages {
    pages: RefCell<RangeSet>,
    /// Whether `pages` has any: looked at for every ioend.
    any: Cell<bool>,
    /// When the first of them failed.
    since: Cell<Nanos>,
    /// When they are retried, and the pause after that.
    retry_at: Cell<Nanos>,
    pause: Cell<Nanos>,
    /// Retries since the first failure.
    retries: Cell<u64>,
    /// First and last failure since the last write that succeeded.
    streak: Cell<Option<(Nanos, Nanos)>>,
}

impl FailedPages {
    /// An ioend with these pages has failed.
    pub(crate) fn insert(&self, pages: &[Range<u64>], now: Nanos) {
        if !self.any.replace(true) {
            self.since.set(now);
            self.pause.set(PAUSE_FIRST);
            self.retry_at.set(now + PAUSE_FIRST);
            self.retries.set(0);
        } else if now >= self.retry_at.get() {
            self.retry_at.set(now + self.pause.get());
        }
        let first = self.streak.get().map_or(now, |(first, _)| first);
        self.streak.set(Some((first, now)));
        let mut set = self.pages.borrow_mut();
        pages.iter().for_each(|run| set.insert(run));
    }

    /// These pages have been written, or are no longer dirty.
    pub(crate) fn remove(&self, pages: &Range<u64>) {
        if self.any.get() {
            let mut set = self.pages.borrow_mut();
            set.remove(pages);
            if set.ends.is_empty() {
                self.any.set(false);
                self.streak.set(None);
            }
        }
    }

    /// Any write has succeeded.
    pub(crate) fn end_streak(&self) {
        self.streak.set(None);
    }

    /// Whether there are failed pages.
    pub(crate) fn any(&self) -> bool {
        self.any.get()
    }

    /// Whether the device refuses every write: a page has failed, has failed again when it was
    /// retried, and no write has succeeded meanwhile. Then waiting for room is of no use.
    pub(crate) fn is_stuck(&self) -> bool {
        let retried = |(first, last): (Nanos, Nanos)| last.0 - first.0 >= PAUSE_FIRST.0;
        self.any() && self.streak.get().is_some_and(retried)
    }

    /// When the first page failed, and how many pages have failed.
    pub(crate) fn since(&self) -> Option<(Nanos, u64)> {
        self.any().then(|| (self.since.get(), self.pages.borrow().count))
    }

    /// The first failed range that ends after `page`.
    pub(crate) fn next(&self, page: u64) -> Option<Range<u64>> {
        if self.any() { self.pages.borrow().next(page) } else { None }
    }

    /// When failed pages are to be retried.
    pub(crate) fn retry_at(&self) -> Option<Nanos> {
        self.any().then(|| self.retry_at.get())
    }

    /// Counts a retry, which begins now.
    pub(crate) fn count_retry(&self) {
        self.retries.set(self.retries.get() + 1);
    }

    /// The first failed page is being sent again. The next retry comes after twice the pause.
    pub(crate) fn double_pause(&self, now: Nanos) {
        self.pause.set(Nanos(self.pause.get().0 * 2).min(PAUSE_MAX));
        self.retry_at.set(now + self.pause.get());
    }

    /// No page could be sent again, because all of them are in flight already.
    pub(crate) fn postpone_retry(&self, now: Nanos) {
        self.retry_at.set(now + self.pause.get());
    }

    /// How many failed pages go in one ioend of at most `pages_max` (see the module).
    pub(crate) fn pages_per_ioend(&self, pages_max: u64) -> u64 {
        if self.retries.get() < 2 {
            return pages_max;
        }
        let few = self.pages.borrow().count <= ALONE_PAGES_MAX;
        if few { 1 } else { TOGETHER_PAGES.min(pages_max) }
    }
}

#[cfg(test)]
mod tests {
    use proptest::prelude::*;

    use super::*;

    const MS: u64 = 1_000_000;

    fn fail(failed: &FailedPages, at_ms: u64, pages: Range<u64>) {
        failed.insert(&[pages], Nanos(at_ms * MS));
    }

    #[test]
    fn retries_come_later_each_time_up_to_ten_seconds() {
        let failed = FailedPages::default();
        let (mut now, mut pauses) = (1000, Vec::new());
        fail(&failed, now, 0..4);
        for _ in 0..9 {
            let at = failed.retry_at().unwrap().0 / MS;
            pauses.push(at - now);
            now = at;
            failed.double_pause(Nanos(now * MS));
            fail(&failed, now, 0..2);
            fail(&failed, now, 2..4);
        }
        assert_eq!(pauses, [100, 200, 400, 800, 1600, 3200, 6400, 10_000, 10_000]);
        failed.remove(&(0..4));
        assert_eq!(failed.retry_at(), None);
        fail(&failed, now, 0..1);
        assert_eq!(failed.retry_at(), Some(Nanos((now + 100) * MS)), "from the beginning");
    }

    #[test]
    fn a_device_is_stuck_when_only_failures_follow_a_failure() {
        let failed = FailedPages::default();
        fail(&failed, 0, 0..1);
        fail(&failed, 99, 1..2);
        assert!(failed.any() && !failed.is_stuck());
        fail(&failed, 100, 0..1);
        assert!(failed.is_stuck());
        failed.end_streak();
        assert!(!failed.is_stuck());
        fail(&failed, 500, 0..1);
        assert!(!failed.is_stuck());
        failed.remove(&(0..2));
        assert!(!failed.any());
        assert_eq!(failed.since(), None);
    }

    proptest! {
        #[test]
        fn a_range_set_equals_a_list_of_flags(
            changes in prop::collection::vec((any::<bool>(), 0u64..40, 1u64..12), 1..60)
        ) {
            let (mut pages, mut flags) = (RangeSet::default(), [false; 64]);
            for (insert, from, len) in changes {
                let range = from..from + len;
                if insert { pages.insert(&range) } else { pages.remove(&range) }
                range.for_each(|page| flags[usize::try_from(page).unwrap()] = insert);
                prop_assert_eq!(pages.count, flags.iter().filter(|f| **f).count() as u64);
                let mut ends = None;
                for (from, to) in &pages.ends {
                    prop_assert!(from < to && ends.is_none_or(|end| end < *from));
                    ends = Some(*to);
                }
                for page in 0..64 {
                    let next = (page..64).find(|p| flags[usize::try_from(*p).unwrap()]);
                    prop_assert_eq!(pages.next(page).map(|r| r.start.max(page)), next);
                }
            }
        }
    }
}
