// SPDX-License-Identifier: Apache-2.0 OR MIT
//! FLUSH and FUA: what has been written is made durable.
//!
//! ```text
//!   FLUSH ─┐                    ┌─ dirty in this round or before: ioends ─▶ wait ─▶ once more
//!   FLUSH ─┼─ share a round ────┤                                     what was on its way before
//!   FLUSH ─┘                    └─ wait for all ioends ─▶ one flush below ─▶ each opener's errors
//! ```
//!
//! Each write belongs to a round; a FLUSH ends the one that runs and writes all that became dirty
//! in it or before. It goes over the device twice at most. After the first time a page of the round
//! that is still dirty is one that was on its way below, from before, and had been written again:
//! all of that has ended by then, so the second time takes it. Writers that go on and on keep no
//! FLUSH from ending: each time takes a folio once.
//!
//! Cost of a lone FLUSH: one write for each ioend, and one flush below if it has a volatile cache.
//! N concurrent FLUSHes share that, or the next. A FUA write that is no larger than an ioend costs
//! one write with FUA for each base.
//!
//! Invariants
//! - PC-FL1 A FLUSH succeeds only if a flush below has that began when all ioends had ended that
//!   had any page of its round, none of them failed, and no flush below failed since it was
//!   submitted (PC-E1): a round before its own may have lost what was written before it came.
//! - PC-FL2 One flush below is in flight at a time: one that fails may take with it what another
//!   one, which succeeds, was sent to save; so the failure must be known before the next begins.
use std::cell::{Cell, RefCell};
use std::ops::Range;

use block::{Class, IoError, Op, OpenedBy, Opener, Sector, Status};
use policy::Sample;
use reactor::WaitList;

use crate::folio::Folio;
use crate::ioend::{Collector, Purpose};
use crate::writeback::CHUNK_PAGES;
use crate::{Mutation, PageCache};

/// Work that must begin after its caller asked for it, and may serve many callers: whoever comes
/// while it runs shares the next run.
#[derive(Default)]
pub(crate) struct Group {
    begun: Cell<u64>,
    ended: Cell<u64>,
    running: Cell<bool>,
    /// The last run that failed.
    failed: Cell<Option<(u64, Status)>>,
    wait: WaitList,
}

impl Group {
    /// The first run that will begin after this call.
    pub(crate) fn next(&self) -> u64 {
        self.begun.get() + 1
    }

    /// Returns after run `need` of `work` has ended, with its outcome; or with an error, if a later
    /// one that has ended too had one.
    pub(crate) async fn join(
        &self,
        need: u64,
        work: impl AsyncFnOnce() -> Result<(), Status>,
    ) -> Result<(), Status> {
        self.wait.wait_for(|| self.ended.get() >= need || !self.running.get()).await;
        if self.ended.get() < need {
            self.running.set(true);
            let mine = self.next();
            self.begun.set(mine);
            if let Err(status) = work().await {
                self.failed.set(Some((mine, status)));
            }
            self.ended.set(mine);
            self.running.set(false);
            self.wait.wake_all();
        }
        match self.failed.get() {
            Some((run, status)) if run >= need => Err(status),
            Some(_) | None => Ok(()),
        }
    }
}

impl PageCache {
    /// FLUSH: everything that had completed before `round`, which is what [`Group::next`] told when
    /// it came, is durable when this succeeds. Fails if that could not be done, and if there is an
    /// error that is newer than `sample`, of when it came: also one that another FLUSH of `opener`
    /// has told of since. Its round may have begun after that and know nothing of it.
    pub(crate) async fn flush(
        &self,
        opener: Opener,
        round: u64,
        sample: Sample,
    ) -> Result<(), Status> {
        let done = self.join_round(round).await;
        let late = self.has(Mutation::SampleAtEnd);
        let sample = if late { self.errors.sample(opener) } else { sample };
        let outcome = self.errors.outcome(opener, sample, done);
        if outcome.is_err() && self.has(Mutation::TellsOfLater) {
            let _ = self.errors.outcome(opener, self.errors.sample(opener), outcome);
        }
        outcome
    }

    /// As a FLUSH, whatever failed before and was written since.
    pub(crate) async fn write_back_all(&self) -> Result<(), Status> {
        self.join_round(self.writeback.rounds.next()).await
    }

    async fn join_round(&self, round: u64) -> Result<(), Status> {
        self.writeback.rounds.join(round, async || self.flush_round().await).await
    }

    async fn flush_round(&self) -> Result<(), Status> {
        let wb = &self.writeback;
        let flush_errors = self.errors.flush_errors();
        let changes = self.errors.changes();
        let round = self.round.get();
        self.round.set(round + 1);
        let watch = wb.watch(0..u64::MAX);
        let of_round = |folio: &Folio| folio.dirty_round <= round;
        self.write_out(&(0..u64::MAX), &wb.sync, Purpose::Sync, of_round).await;
        wb.wait_ended(|| self.has(Mutation::FlushWithoutWaiting)).await;
        let again = || self.cache.borrow().is_dirty_since(round);
        if wb.watched(watch).is_ok() {
            if again() {
                self.write_out(&(0..u64::MAX), &wb.sync, Purpose::Sync, of_round).await;
            }
            // Or the flusher has taken it as soon as the first write had ended.
            wb.wait_ended(|| false).await;
        }
        wb.unwatch(watch)?;
        self.flush_below(flush_errors).await?; // PC-FL1
        self.errors.durable(changes);
        Ok(())
    }

    /// FUA: `pages` are durable when this succeeds. `flush_errors` is what
    /// [`crate::errors::Errors::flush_errors`] told before they became dirty.
    pub(crate) async fn sync_range(
        &self,
        pages: Range<u64>,
        flush_errors: u64,
    ) -> Result<(), Status> {
        let wb = &self.writeback;
        let watch = wb.watch(pages.clone());
        // What has been taken by writeback already is in no FUA write: a flush is needed then.
        let all_dirty = self.is_all_dirty(&pages);
        let small = pages.end - pages.start <= self.ioend_pages();
        let volatile = self.below.limits().volatile_cache;
        if volatile && small && all_dirty {
            let own = RefCell::new(Collector::new(Purpose::Fua));
            let sent = self.write_out(&pages, &own, Purpose::Fua, |_| true).await;
            wb.wait_ended(|| !self.is_writing_in(&pages)).await;
            wb.unwatch(watch)?;
            if sent == pages.end - pages.start {
                return Ok(());
            }
            // The flusher was quicker with some of them.
            return self.flush_below(flush_errors).await;
        }
        let before = self.is_writing_in(&pages);
        self.write_out(&pages, &wb.sync, Purpose::Sync, |_| true).await;
        wb.wait_ended(|| !self.is_writing_in(&pages)).await;
        if before && wb.watched(watch).is_ok() {
            self.write_out(&pages, &wb.sync, Purpose::Sync, |_| true).await;
            wb.wait_ended(|| !self.is_writing_in(&pages)).await;
        }
        wb.unwatch(watch)?;
        self.flush_below(flush_errors).await
    }

    /// Sends all dirty pages of a range for which `wanted` holds, but those that are being written,
    /// and what the flusher has collected so far. Returns how many pages it has taken itself.
    async fn write_out(
        &self,
        pages: &Range<u64>,
        collector: &RefCell<Collector>,
        purpose: Purpose,
        wanted: impl Fn(&Folio) -> bool,
    ) -> u64 {
        let wb = &self.writeback;
        let (mut from, mut sent, mut since) = (pages.start, 0, 0);
        loop {
            self.wait_for_ioends(purpose).await;
            let found = self.gather(collector, &mut from, pages.end, u64::MAX, false, &wanted);
            self.send_ready(collector);
            sent += found.pages;
            since += found.pages;
            if found.end {
                break;
            }
            if since >= CHUNK_PAGES {
                since = 0;
                reactor::yield_now().await;
            }
        }
        self.close(collector);
        // Some of the flusher's pages may be ours: they are waited for now (PC-WB3).
        wb.background.borrow_mut().hand_over(&mut wb.sync.borrow_mut());
        self.send_ready(&wb.sync);
        sent
    }

    /// Makes durable what the device below has been told, if it does not do so by itself.
    async fn flush_below(&self, flush_errors: u64) -> Result<(), Status> {
        if !self.below.limits().volatile_cache || self.has(Mutation::SkipFlush) {
            return Ok(());
        }
        let flush = async || {
            let below = OpenedBy::new(self.below.clone(), self.opener);
            let flushed = reactor::flush(&below, Class::Foreground).await;
            flushed.inspect_err(|&cause| {
                let device = self.below.name().to_owned();
                let error = IoError { device, op: Op::Flush, sector: Sector::ZERO, cause };
                if self.has(Mutation::NewcomersUntold) {
                    return self.errors.flush_failed_for_those_here(error);
                }
                self.errors.flush_failed(error);
            })
        };
        let device_flush = &self.writeback.device_flush;
        device_flush.join(device_flush.next(), flush).await?; // PC-FL2
        // PC-FL1. What another one lost may have been ours.
        if self.errors.flush_errors() == flush_errors { Ok(()) } else { Err(Status::Io) }
    }

    fn is_all_dirty(&self, pages: &Range<u64>) -> bool {
        let cache = self.cache.borrow();
        let mut at = pages.start;
        while at < pages.end {
            let Some(id) = cache.find(at) else { return false };
            let folio = cache.folio(id);
            let inside = folio.inside(&(at..pages.end));
            if !folio.dirty.all_in(&inside) || folio.writing.any_in(&inside) {
                return false;
            }
            at = folio.end();
        }
        true
    }

    fn is_writing_in(&self, pages: &Range<u64>) -> bool {
        let cache = self.cache.borrow();
        let mut at = pages.start;
        while let Some(id) = cache.find_from(at) {
            let folio = cache.folio(id);
            if folio.start >= pages.end {
                return false;
            }
            if folio.writing.any_in(&folio.inside(pages)) {
                return true;
            }
            at = folio.end();
        }
        false
    }
}

#[cfg(test)]
#[path = "flush_tests.rs"]
mod tests;
