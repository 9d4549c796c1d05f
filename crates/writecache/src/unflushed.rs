// SPDX-License-Identifier: Apache-2.0 OR MIT
//! Unflushed writes: changes that a cache had acknowledged and not made durable when it failed.
//!
//! A cache that has failed fails every FLUSH (WC-I8), so no client takes such a change for durable.
//! When its table is loaded again, the new cache has what the media have: the changes are lost, and
//! FLUSH succeeds again. So each client that had changed something, and has had no failed FLUSH
//! since, gets one from the new cache.
//!
//! ```text
//!   failed cache: UnflushedWrites ─ take ─▶ LostWrites ─ restore ─▶ cache of the next table
//! ```
//!
//! Invariants (PO-ES1 to PO-ES4 are those of `policy::ErrSeq`)
//! - WC-LO1 If the cache of the next table ends a FLUSH with success, its opener has lost nothing,
//!   or has had an error for it (PO-ES1, PO-ES2). That holds for all later tables too, as long as
//!   each has a cache at the same sector.
//!
//! A change that a commit made durable without any FLUSH counts as lost: then an opener that has
//! lost nothing gets an error too.
use std::cell::{Cell, RefCell};

use block::{Opener, Status};
use policy::{ErrSeq, ErrSeqSample};

/// See the module.
#[derive(Default)]
pub(crate) struct UnflushedWrites {
    openers: RefCell<ErrSeq<Opener>>,
    /// How many changes were lost when the cache failed.
    lost: Cell<u64>,
}

/// Lost writes that clients have had no error for yet.
pub(crate) struct LostWrites {
    openers: ErrSeq<Opener>,
    /// How many writes, zeroes and discards the cache before has lost.
    pub(crate) requests: u64,
}

impl UnflushedWrites {
    /// A change by `opener` has ended, with success or an error, and is not acknowledged yet.
    #[inline]
    pub(crate) fn changed(&self, opener: Opener) {
        self.openers.borrow_mut().changed(opener);
    }

    /// The state at the beginning of a FLUSH of `opener`.
    pub(crate) fn sample(&self, opener: Opener) -> ErrSeqSample {
        self.openers.borrow_mut().sample(opener)
    }

    /// A FLUSH that began with `sample` has ended with `outcome`; returns the outcome for its
    /// opener (WC-LO1).
    pub(crate) fn flushed(
        &self,
        opener: Opener,
        sample: ErrSeqSample,
        outcome: Result<(), Status>,
    ) -> Result<(), Status> {
        let mut openers = self.openers.borrow_mut();
        if outcome.is_ok() {
            openers.durable(sample.changes());
        }
        let news = if openers.must_report(sample) { Err(Status::Io) } else { Ok(()) };
        let outcome = outcome.and(news);
        if outcome.is_err() {
            openers.report(opener, sample);
        }
        outcome
    }

    /// Lost writes that clients have had no error for, for the cache of the next table. This one is
    /// suspended.
    pub(crate) fn take(&self, has_failed: bool) -> LostWrites {
        if has_failed {
            self.fail(); // changes that were acknowledged while the cache failed
        }
        let mut openers = self.openers.take();
        openers.durable(openers.changes());
        LostWrites { openers, requests: self.lost.take() }
    }

    /// Takes over the lost writes of the cache before.
    pub(crate) fn restore(&self, lost: LostWrites) {
        *self.openers.borrow_mut() = lost.openers;
    }

    /// The cache fails: changes that are not durable are lost. Each counts once.
    pub(crate) fn fail(&self) {
        let mut openers = self.openers.borrow_mut();
        let requests = openers.at_risk();
        if requests > 0 {
            let all = openers.changes();
            openers.lose(all);
            openers.durable(all);
            self.lost.set(self.lost.get() + requests);
        }
    }
}
