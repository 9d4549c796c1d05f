// SPDX-License-Identifier: Apache-2.0 OR MIT
//! Errors of writeback, and which openers have got them.
//!
//! A page that could not be written stays dirty and is retried ([`FailedPages`]); all other pages
//! go on. When it has been written at last nothing is lost. Still every opener gets the error,
//! once, at its next FLUSH, because its data have been at risk.
//!
//! A failed flush of the device below is worse: the data that it should have made durable may be
//! lost, and are no longer dirty here, so they cannot be written again (point 7 of the border
//! contract: the flush is not repeated as if nothing had been lost). The FLUSHes that it was sent
//! for fail, and so does the next FLUSH of every other opener. A client that gets the error must
//! write again what it needs to keep. Data that were in flight below at that time may be lost as
//! well: they count as not written (`ioends`, `discard`).
//!
//! Invariants
//! - PC-E1 What a FLUSH reports is fixed when it is submitted: every error that its opener has not
//!   got by then, and every later one. So each opener that existed before an error gets it once,
//!   and by each FLUSH that it had submitted meanwhile. An opener that comes later gets it only if
//!   no opener has got it, or by PC-E2. If the error may have destroyed a write that was
//!   acknowledged after such a FLUSH was submitted, the next FLUSH reports it once more.
//! - PC-E2 Suppose that a flush below has failed, and that an opener which wrote something since
//!   the last good flush closes, or is forgotten, before it got the error. Then the next new opener
//!   gets the error in its place: it may be the same client, connected again (PO-ES1 to PO-ES4 of
//!   `policy::ErrSeq`). A failed write is not passed on in this way: nothing is lost, and every
//!   FLUSH retries it.
use std::cell::{Cell, RefCell};
use std::rc::Rc;

use block::{IoError, Opener, Status};
use policy::{ErrSeq, ErrSeqSample};

use crate::failed_pages::FailedPages;

/// See the module.
#[derive(Default)]
pub(crate) struct Errors {
    /// Which opener has got which error.
    openers: RefCell<ErrSeq<Opener>>,
    last: RefCell<Option<IoError>>,
    pub(crate) failed: FailedPages,
    flush_errors: Cell<u64>,
    /// Of the first so many changes, some may have reached the device below; of later ones none.
    changes_below: Cell<u64>,
    on_failure: RefCell<Option<Rc<dyn Fn()>>>,
}

impl Errors {
    /// Takes over the unreported errors of the cache that this one replaces, all of whose pages are
    /// durable. This cache has reported nothing yet.
    pub(crate) fn take_over(&self, before: &Errors) {
        let mut openers = before.openers.take();
        openers.durable(openers.changes());
        *self.openers.borrow_mut() = openers;
        *self.last.borrow_mut() = before.last.take();
    }

    /// Has `callback` called whenever writeback begins to fail.
    pub(crate) fn set_on_failure(&self, callback: impl Fn() + 'static) {
        *self.on_failure.borrow_mut() = Some(Rc::new(callback));
    }

    /// Calls the callback.
    pub(crate) fn notify_failure(&self) {
        let callback = self.on_failure.borrow().clone();
        if let Some(callback) = callback {
            callback();
        }
    }

    /// `opener` exists: from now on it gets every error.
    pub(crate) fn register(&self, opener: Opener) {
        self.openers.borrow_mut().note(opener);
    }

    /// `opener` has changed something.
    pub(crate) fn changed(&self, opener: Opener) {
        self.openers.borrow_mut().changed(opener);
    }

    /// A change that `opener` made some time ago is acknowledged now; it may be below already
    /// (PC-E1).
    pub(crate) fn acknowledged(&self, opener: Opener) {
        let mut openers = self.openers.borrow_mut();
        openers.changed(opener);
        self.changes_below.set(openers.changes());
    }

    /// As [`Errors::acknowledged`], when a flush below has failed meanwhile.
    pub(crate) fn acknowledged_in_doubt(&self, opener: Opener) {
        let mut openers = self.openers.borrow_mut();
        openers.doubt(opener);
        self.changes_below.set(openers.changes());
    }

    /// Some of the first `changes` changes have reached the device below.
    pub(crate) fn reached_below(&self, changes: u64) {
        self.changes_below.set(self.changes_below.get().max(changes));
    }

    /// How many changes were made.
    pub(crate) fn changes(&self) -> u64 {
        self.openers.borrow().changes()
    }

    /// The first `changes` changes are durable.
    pub(crate) fn durable(&self, changes: u64) {
        self.openers.borrow_mut().durable(changes);
    }

    /// What a FLUSH of `opener` will report, as it is fixed when it is submitted (PC-E1).
    pub(crate) fn sample(&self, opener: Opener) -> ErrSeqSample {
        self.openers.borrow_mut().sample(opener)
    }

    /// The outcome of a FLUSH: the error of its own work, or one that is newer than `sample`.
    pub(crate) fn outcome(
        &self,
        opener: Opener,
        sample: ErrSeqSample,
        done: Result<(), Status>,
    ) -> Result<(), Status> {
        let mut openers = self.openers.borrow_mut();
        let outcome = done.and_then(|()| match openers.must_report(sample) {
            true => Err(self.last.borrow().as_ref().map_or(Status::Io, |e| e.cause)),
            false => Ok(()),
        });
        if outcome.is_err() {
            openers.report(opener, sample);
        }
        outcome
    }

    /// An ioend has failed.
    pub(crate) fn write_failed(&self, error: IoError) {
        self.openers.borrow_mut().raise();
        *self.last.borrow_mut() = Some(error);
    }

    /// A flush of the device below has failed.
    pub(crate) fn flush_failed(&self, error: IoError) {
        self.flush_errors.set(self.flush_errors.get() + 1);
        self.openers.borrow_mut().lose(self.changes_below.get());
        *self.last.borrow_mut() = Some(error);
    }

    /// For a planted fault: as [`Errors::flush_failed`], but later openers do not get the error.
    pub(crate) fn flush_failed_for_known_openers(&self, error: IoError) {
        self.flush_errors.set(self.flush_errors.get() + 1);
        self.openers.borrow_mut().raise();
        *self.last.borrow_mut() = Some(error);
    }

    /// How many flushes of the device below have failed.
    pub(crate) fn flush_errors(&self) -> u64 {
        self.flush_errors.get()
    }

    /// How many writes and flushes below have failed.
    pub(crate) fn count(&self) -> u64 {
        self.openers.borrow().count()
    }

    /// For people: how many errors, the last one, and the state of the pages. `None` without
    /// errors.
    pub(crate) fn describe(&self) -> Option<String> {
        let last = self.last.borrow();
        let last = last.as_ref()?;
        let count = self.count();
        let plural = if count == 1 { "" } else { "s" };
        let pages = match self.failed.since() {
            Some((since, pages)) => {
                let seconds = reactor::now().0.saturating_sub(since.0) / 1_000_000_000;
                format!("{pages} pages could not be written for {seconds} s")
            }
            None => "all pages could be written since".to_owned(),
        };
        Some(format!("{count} error{plural}, the last: {last}; {pages}"))
    }
}

#[cfg(test)]
#[path = "errors_tests.rs"]
mod tests;
