// SPDX-License-Identifier: Apache-2.0 OR MIT
//! FLUSH and FUA: make written data durable.
//!
//! ```text
//!   FLUSH ─┐                    ┌─ dirty in this round or before: ioends ─▶ wait ─▶ again, for
//!   FLUSH ─┼─ share a round ────┤                             pages that were in flight at first
//!   FLUSH ─┘                    └─ wait for all ioends ─▶ one flush below ─▶ each opener's errors
//! ```
//!
//! Each write belongs to a round. A FLUSH ends the current round and writes everything that became
//! dirty in it or before. It passes over the device twice at most. A page of the round that is
//! still dirty after the first pass was in flight when that began, and had been written again; that
//! write has ended by then, so the second pass takes it. Writers that never stop do not keep a
//! FLUSH from ending, because each pass takes a folio once. A discard that fails during the second
//! pass may give such a page back: then there is another pass, and after [`PASSES_MAX`] of them the
//! FLUSH fails.
//!
//! Cost of a lone FLUSH: one write for each ioend, and one flush below if that has a volatile
//! cache. N concurrent FLUSHes share this cost, or that of the next round. A FUA write that is no
//! larger than an ioend costs one write with FUA for each base.
//!
//! Invariants
//! - PC-FL1 A FLUSH succeeds only if three conditions hold: a flush below succeeded that began
//!   after all ioends with a page of its round had ended; none of them failed; and no flush below
//!   failed since the FLUSH was submitted (PC-E1), because a round before its own may have lost
//!   data that were written before it was submitted.
//! - PC-FL2 One flush below is in flight at a time. A flush that fails may destroy the data that
//!   another one, which succeeds, should have saved: the failure must be known before the next
//!   begins.
//! - PC-FL3 A FLUSH that could not write some pages flushes the device below all the same: what is
//!   lost there by then is reported by this FLUSH, not by one more after it.
use std::cell::RefCell;
use std::ops::Range;

use block::{Class, IoError, Op, OpenDevice, Opener, Sector, Status};
use policy::ErrSeqSample;

use crate::collector::Collector;
use crate::flusher::CHUNK_PAGES;
use crate::folio::Folio;
use crate::gather::Limit;
use crate::ioend::Purpose;
use crate::planted::Fault;
use crate::store::Store;
use crate::writeback::Writeback;

/// The whole device.
const ALL: Range<u64> = 0..u64::MAX;

/// Passes of a FLUSH over what its first one has left. Chosen: one is enough unless discards fail,
/// and clients that send such discards without end must not keep the FLUSHes of others from ending.
const PASSES_MAX: u32 = 8;

impl Writeback {
    /// FLUSH: when it succeeds, everything is durable that had completed before `round`, which is
    /// what `rounds.next_run()` was when it was submitted. Fails if that could not be done, and if
    /// there is an error newer than `sample`, of the same time: also one that another FLUSH of
    /// `opener` has reported since. That FLUSH's round may have begun later and not know of the
    /// error.
    pub(crate) async fn flush(
        &self,
        store: &Store,
        opener: Opener,
        round: u64,
        sample: ErrSeqSample,
    ) -> Result<(), Status> {
        let done = self.join_round(store, round).await;
        let late = store.is_planted(Fault::SampleAtEnd);
        let sample = if late { store.errors.sample(opener) } else { sample };
        let outcome = store.errors.outcome(opener, sample, done);
        if outcome.is_err() && store.is_planted(Fault::ReportLaterErrors) {
            let _ = store.errors.outcome(opener, store.errors.sample(opener), outcome);
        }
        outcome
    }

    /// As a FLUSH that reports only the failures of its own work.
    pub(crate) async fn write_back_all(&self, store: &Store) -> Result<(), Status> {
        self.join_round(store, self.rounds.next_run()).await
    }

    async fn join_round(&self, store: &Store, round: u64) -> Result<(), Status> {
        self.rounds.join_fallible(round, async || self.flush_round(store).await).await
    }

    async fn flush_round(&self, store: &Store) -> Result<(), Status> {
        let ioends = &self.ioends;
        let flush_errors = store.errors.flush_errors();
        let changes = store.errors.changes();
        let round = store.round.get();
        store.round.set(round + 1);
        let watch = ioends.watch(ALL);
        let of_round = |folio: &Folio| folio.dirty_round <= round;
        self.write_out(store, &ALL, &ioends.sync, Purpose::Sync, of_round).await;
        ioends.wait_ended(|| store.is_planted(Fault::FlushWithoutWaiting)).await;
        let rest = self.write_rest(store, round, watch).await;
        let written = ioends.unwatch(watch).and(rest);
        // Also after an error: if something is lost below, this FLUSH reports that as well, and
        // not the next one (PC-FL3).
        let flushed = self.flush_below(store, flush_errors).await; // PC-FL1
        written.and(flushed)?;
        store.errors.durable(changes);
        Ok(())
    }

    /// Writes what the first pass of a round has left. An error of an ioend is in its `watch`.
    async fn write_rest(&self, store: &Store, round: u64, watch: usize) -> Result<(), Status> {
        let ioends = &self.ioends;
        let of_round = |folio: &Folio| folio.dirty_round <= round;
        for _ in 0..PASSES_MAX {
            if ioends.watched(watch).is_err() {
                return Ok(());
            }
            let given_back = store.discards.given_back();
            let again = store.folios.borrow().is_dirty_since(round);
            if again {
                self.write_out(store, &ALL, &ioends.sync, Purpose::Sync, of_round).await;
            }
            // The flusher may have taken such pages as soon as their first write had ended.
            ioends.wait_ended(|| false).await;
            if store.discards.given_back() == given_back {
                return Ok(());
            }
        }
        Err(Status::Io)
    }

    /// FUA: `pages` are durable when this succeeds. `flush_errors` is the count of
    /// [`crate::errors::Errors::flush_errors`] from before they became dirty.
    pub(crate) async fn sync_range(
        &self,
        store: &Store,
        pages: Range<u64>,
        flush_errors: u64,
    ) -> Result<(), Status> {
        let given_back = store.discards.given_back();
        self.sync_pages(store, pages, flush_errors).await?;
        if store.discards.given_back() == given_back {
            return Ok(());
        }
        // A discard had taken some of the pages, so they were not sent, and has failed.
        self.write_back_all(store).await?;
        if store.errors.flush_errors() == flush_errors { Ok(()) } else { Err(Status::Io) }
    }

    /// As [`Writeback::sync_range`], while no discard gives pages back.
    async fn sync_pages(
        &self,
        store: &Store,
        pages: Range<u64>,
        flush_errors: u64,
    ) -> Result<(), Status> {
        let ioends = &self.ioends;
        let watch = ioends.watch(pages.clone());
        let is_writing = || store.folios.borrow().is_writing_in(&pages);
        // Pages that writeback has taken already are in no FUA write: they need a flush.
        let all_dirty = store.folios.borrow().is_all_dirty(&pages);
        let small = pages.end - pages.start <= ioends.pages_max(store);
        let volatile = store.below.limits().volatile_cache;
        if volatile && small && all_dirty {
            let own = RefCell::new(Collector::new(Purpose::Fua));
            let sent = self.write_out(store, &pages, &own, Purpose::Fua, |_| true).await;
            ioends.wait_ended(|| !is_writing()).await;
            ioends.unwatch(watch)?;
            if sent == pages.end - pages.start {
                return Ok(());
            }
            // The flusher took some of them first.
            return self.flush_below(store, flush_errors).await;
        }
        let before = is_writing();
        self.write_out(store, &pages, &ioends.sync, Purpose::Sync, |_| true).await;
        ioends.wait_ended(|| !is_writing()).await;
        if before && ioends.watched(watch).is_ok() {
            self.write_out(store, &pages, &ioends.sync, Purpose::Sync, |_| true).await;
            ioends.wait_ended(|| !is_writing()).await;
        }
        ioends.unwatch(watch)?;
        self.flush_below(store, flush_errors).await
    }

    /// Sends all dirty pages of a range for which `wanted` holds, except those that are being
    /// written, and all ioends that the flusher has open. Returns how many pages it took itself.
    async fn write_out(
        &self,
        store: &Store,
        pages: &Range<u64>,
        collector: &RefCell<Collector>,
        purpose: Purpose,
        wanted: impl Fn(&Folio) -> bool,
    ) -> u64 {
        let ioends = &self.ioends;
        let (mut from, mut sent, mut since) = (pages.start, 0, 0);
        loop {
            ioends.wait_for_room(store, purpose).await;
            let limit = Limit::all_to(pages.end);
            let found = ioends.gather(store, collector, &mut from, limit, &wanted);
            ioends.send_ready(store, collector);
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
        ioends.close(store, collector);
        // Some of the flusher's pages may be of this range, and are waited for now (PC-WB3).
        ioends.background.borrow_mut().hand_over(&mut ioends.sync.borrow_mut());
        ioends.send_ready(store, &ioends.sync);
        sent
    }

    /// Flushes the device below, if it has a volatile cache.
    async fn flush_below(&self, store: &Store, flush_errors: u64) -> Result<(), Status> {
        if !store.below.limits().volatile_cache || store.is_planted(Fault::SkipFlush) {
            return Ok(());
        }
        let flush = async || {
            let below = OpenDevice::new(store.below.clone(), store.opener);
            let flushed = reactor::flush(&below, Class::Foreground).await;
            flushed.inspect_err(|&cause| {
                let device = store.below.name().to_owned();
                let error = IoError { device, op: Op::Flush, sector: Sector::ZERO, cause };
                if store.is_planted(Fault::SkipNewOpeners) {
                    return store.errors.flush_failed_for_known_openers(error);
                }
                store.errors.flush_failed(error);
            })
        };
        self.device_flush.join_fallible(self.device_flush.next_run(), flush).await?; // PC-FL2
        // PC-FL1: another flush that failed may have destroyed this data.
        if store.errors.flush_errors() == flush_errors { Ok(()) } else { Err(Status::Io) }
    }
}

#[cfg(test)]
#[path = "flush_tests.rs"]
mod tests;
