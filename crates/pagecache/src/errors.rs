// SPDX-License-Identifier: Apache-2.0 OR MIT
//! What writeback could not write, and who has heard of it.
//!
//! A page that could not be written stays dirty and is tried again: by every FLUSH at once, by the
//! flusher after 100 ms, then 200 ms, and so on up to 10 s, in smaller ioends from the second time
//! on, so that the pages beside a bad one get through. Meanwhile all other pages go on. When
//! it has been written at last nothing is lost; yet every opener hears of the error, once, at its
//! next FLUSH, since what it has written may have been at risk.
//!
//! A flush of the device below that fails is worse: what it should have covered may be lost, and is
//! no longer here to be written again (point 7 of the border contract: it is not sent a second time
//! as if nothing had been lost). The FLUSHes that it was sent for fail, and so does the next one of
//! every other opener. Who gets the error must write again what it needs to keep. What was on its
//! way below meanwhile may be lost as well: it counts as not written (`ioend`, `discard`).
//!
//! Invariants
//! - PC-E1 What a FLUSH must tell is fixed when it is submitted: every error that its opener had
//!   not been told of then, and every one since. So each opener that was there before an error is
//!   told of it once, and by each FLUSH that it had submitted meanwhile. One that comes later is
//!   told only if nobody has been, or by PC-E3. If that error may have taken a write along that was
//!   acknowledged after such a FLUSH had been submitted, the next FLUSH tells of it once more.
//! - PC-E2 `failed` has every page whose last write below has failed and that is still dirty; more
//!   only until the next retry.
//! - PC-E3 When a flush below has failed and an opener goes, or is forgotten, that had written
//!   something since the last good one and was not told, the next opener that comes is told in its
//!   place: it may be the same client, connected again (PO-ES1 to PO-ES4 of `policy::ErrSeq`). A
//!   write that has failed is not handed on like that: nothing is lost, every FLUSH tries it again.
use std::cell::{Cell, RefCell};
use std::collections::BTreeMap;
use std::ops::Range;

use block::{IoError, Nanos, Opener, Status};
use policy::{ErrSeq, Sample};

/// First pause before a failed page is tried again, and the longest.
const PAUSE_FIRST: Nanos = Nanos(100_000_000);
const PAUSE_MAX: Nanos = Nanos(10_000_000_000);
/// So many failed pages are retried one by one, more than that some at a time. Chosen: 4 MiB and
/// 64 KiB, so that a device that was away is not asked for ten thousands of small writes.
const ALONE_PAGES_MAX: u64 = 1024;
const TOGETHER_PAGES: u64 = 16;

/// Pages as ranges, neither overlapping nor touching: end by start.
#[derive(Default)]
struct Pages {
    ends: BTreeMap<u64, u64>,
    count: u64,
}

impl Pages {
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

    /// The range that ends behind `page` and begins first.
    fn next(&self, page: u64) -> Option<Range<u64>> {
        let before = self.ends.range(..=page).next_back().filter(|(_, to)| **to > page);
        before.or_else(|| self.ends.range(page..).next()).map(|(from, to)| *from..*to)
    }

    fn put(&mut self, range: Range<u64>) {
        self.count += range.end - range.start;
        self.ends.insert(range.start, range.end);
    }

    fn take(&mut self, start: u64) {
        let end = self.ends.remove(&start).expect("a range that is there");
        self.count -= end - start;
    }
}

/// See the module.
#[derive(Default)]
pub(crate) struct Errors {
    /// Who was told of which error.
    openers: RefCell<ErrSeq<Opener>>,
    last: RefCell<Option<IoError>>,
    failed: RefCell<Pages>,
    any_failed: Cell<bool>,
    /// When the first of `failed` failed.
    since: Cell<Nanos>,
    /// When they are to be tried again, and how much later after that.
    retry_at: Cell<Nanos>,
    pause: Cell<Nanos>,
    /// How often they were looked for, to be tried again.
    retries: Cell<u64>,
    /// First and last failure since anything was written.
    row: Cell<Option<(Nanos, Nanos)>>,
    flush_errors: Cell<u64>,
    /// Only of the first so many changes some may be in the device below.
    below: Cell<u64>,
}

impl Errors {
    /// Goes on with what clients have not been told of the cache that was here before, all of whose
    /// pages are durable. This one has told nobody of anything.
    pub(crate) fn take_over(&self, before: &Errors) {
        let mut openers = before.openers.take();
        openers.durable(openers.changes());
        *self.openers.borrow_mut() = openers;
        *self.last.borrow_mut() = before.last.take();
    }

    /// `opener` is here: from now on it is told of every error.
    pub(crate) fn note(&self, opener: Opener) {
        self.openers.borrow_mut().note(opener);
    }

    /// `opener` has changed something.
    pub(crate) fn changed(&self, opener: Opener) {
        self.openers.borrow_mut().changed(opener);
    }

    /// What `opener` had changed some time ago is acknowledged now; it may be below already
    /// (PC-E1).
    pub(crate) fn acknowledged(&self, opener: Opener) {
        let mut openers = self.openers.borrow_mut();
        openers.changed(opener);
        self.below.set(openers.changes());
    }

    /// As [`Errors::acknowledged`], and a flush below has failed meanwhile.
    pub(crate) fn acknowledged_in_doubt(&self, opener: Opener) {
        let mut openers = self.openers.borrow_mut();
        openers.doubt(opener);
        self.below.set(openers.changes());
    }

    /// Of the first so many changes some are in the device below now.
    pub(crate) fn went_below(&self, changes: u64) {
        self.below.set(self.below.get().max(changes));
    }

    /// How many changes there were.
    pub(crate) fn changes(&self) -> u64 {
        self.openers.borrow().changes()
    }

    /// The first so many changes are durable.
    pub(crate) fn durable(&self, changes: u64) {
        self.openers.borrow_mut().durable(changes);
    }

    /// What a FLUSH knows when it is submitted (PC-E1).
    pub(crate) fn sample(&self, opener: Opener) -> Sample {
        self.openers.borrow_mut().sample(opener)
    }

    /// The outcome of a FLUSH: that of its own work, or what there is to be told since `sample`.
    pub(crate) fn outcome(
        &self,
        opener: Opener,
        sample: Sample,
        done: Result<(), Status>,
    ) -> Result<(), Status> {
        let mut openers = self.openers.borrow_mut();
        let outcome = done.and_then(|()| match openers.is_news(sample) {
            true => Err(self.last.borrow().as_ref().map_or(Status::Io, |e| e.cause)),
            false => Ok(()),
        });
        if outcome.is_err() {
            openers.tell(opener, sample);
        }
        outcome
    }

    /// An ioend has failed, with these pages in it.
    pub(crate) fn write_failed(&self, error: IoError, now: Nanos, pages: &[Range<u64>]) {
        self.openers.borrow_mut().raise();
        *self.last.borrow_mut() = Some(error);
        if !self.any_failed.replace(true) {
            self.since.set(now);
            self.pause.set(PAUSE_FIRST);
            self.retry_at.set(now + PAUSE_FIRST);
            self.retries.set(0);
        } else if now >= self.retry_at.get() {
            self.retry_at.set(now + self.pause.get());
        }
        let first = self.row.get().map_or(now, |(first, _)| first);
        self.row.set(Some((first, now)));
        let mut failed = self.failed.borrow_mut();
        pages.iter().for_each(|run| failed.insert(run));
    }

    /// Something has been written.
    pub(crate) fn write_done(&self) {
        self.row.set(None);
    }

    /// Pages have been written, or are not dirty any more.
    pub(crate) fn settled(&self, pages: &Range<u64>) {
        if self.any_failed.get() {
            let mut failed = self.failed.borrow_mut();
            failed.remove(pages);
            if failed.ends.is_empty() {
                self.any_failed.set(false);
                self.row.set(None);
            }
        }
    }

    /// A flush of the device below has failed.
    pub(crate) fn flush_failed(&self, error: IoError) {
        self.flush_errors.set(self.flush_errors.get() + 1);
        self.openers.borrow_mut().lose(self.below.get());
        *self.last.borrow_mut() = Some(error);
    }

    /// As [`Errors::flush_failed`], but who comes later is told nothing.
    pub(crate) fn flush_failed_for_those_here(&self, error: IoError) {
        self.flush_errors.set(self.flush_errors.get() + 1);
        self.openers.borrow_mut().raise();
        *self.last.borrow_mut() = Some(error);
    }

    /// How many flushes of the device below have failed.
    pub(crate) fn flush_errors(&self) -> u64 {
        self.flush_errors.get()
    }

    /// When failed pages are to be tried again.
    pub(crate) fn retry_at(&self) -> Option<Nanos> {
        self.is_failing().then(|| self.retry_at.get())
    }

    /// They are about to be tried again.
    pub(crate) fn retry_is_due(&self) {
        self.retries.set(self.retries.get() + 1);
    }

    /// They are tried now; the next time, should it fail again, twice as late.
    pub(crate) fn retry_begins(&self, now: Nanos) {
        self.pause.set(Nanos(self.pause.get().0 * 2).min(PAUSE_MAX));
        self.retry_at.set(now + self.pause.get());
    }

    /// How many failed pages go in one ioend of at most `pages_max`. From the second retry on they
    /// go alone, or with few: a bad page takes all of its ioend with it.
    pub(crate) fn retry_pages(&self, pages_max: u64) -> u64 {
        if self.retries.get() < 2 {
            return pages_max;
        }
        let few = self.failed.borrow().count <= ALONE_PAGES_MAX;
        if few { 1 } else { TOGETHER_PAGES.min(pages_max) }
    }

    /// Nothing could be tried: all of it is on its way already.
    pub(crate) fn retry_later(&self, now: Nanos) {
        self.retry_at.set(now + self.pause.get());
    }

    /// The first failed range that ends behind a page.
    pub(crate) fn next_failed(&self, page: u64) -> Option<Range<u64>> {
        if self.is_failing() { self.failed.borrow().next(page) } else { None }
    }

    /// Whether there are pages that could not be written and have not been since.
    pub(crate) fn is_failing(&self) -> bool {
        self.any_failed.get()
    }

    /// Whether nothing at all gets written any more: pages have failed, and failed again when they
    /// were retried, and nothing was written meanwhile. Who waits for room need wait no longer.
    pub(crate) fn is_stuck(&self) -> bool {
        let again = |(first, last): (Nanos, Nanos)| last.0 - first.0 >= PAUSE_FIRST.0;
        self.is_failing() && self.row.get().is_some_and(again)
    }

    /// Since when, and how many pages.
    pub(crate) fn failing(&self) -> Option<(Nanos, u64)> {
        self.is_failing().then(|| (self.since.get(), self.failed.borrow().count))
    }

    /// How many writes and flushes below have failed.
    pub(crate) fn count(&self) -> u64 {
        self.openers.borrow().count()
    }

    /// For people: how many errors, the last one, and what has become of the pages. Nothing when
    /// there was none.
    pub(crate) fn describe(&self) -> Option<String> {
        let last = self.last.borrow();
        let last = last.as_ref()?;
        let count = self.count();
        let plural = if count == 1 { "" } else { "s" };
        let lasts = match self.failing() {
            Some((since, pages)) => {
                let seconds = reactor::now().0.saturating_sub(since.0) / 1_000_000_000;
                format!("{pages} pages could not be written for {seconds} s")
            }
            None => "all pages could be written since".to_owned(),
        };
        Some(format!("{count} error{plural}, the last: {last}; {lasts}"))
    }
}

#[cfg(test)]
#[path = "errors_tests.rs"]
mod tests;
