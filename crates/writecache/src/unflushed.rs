// SPDX-License-Identifier: Apache-2.0 OR MIT
//! UnflushedWrites: changes that a cache had acknowledged, and had not made durable, when it
//! failed.
//!
//! A cache that has failed fails every FLUSH (WC-I8), so nobody takes such a change for durable.
//! When its table is loaded again a new cache knows what the media know: the changes are lost, and
//! FLUSH works. So each client that had changed something, and had no failed FLUSH since, gets one
//! from the new cache.
//!
//! ```text
//!   failed cache: UnflushedWrites ─ take ─▶ LostWrites ─ restore ─▶ cache of the next table
//! ```
//!
//! Invariants (PO-ES1 to PO-ES4 are those of `policy::ErrSeq`)
//! - WC-LO1 A FLUSH that the cache of the next table ends with success was sent by an opener that
//!   has lost nothing, or that has been told (PO-ES1, PO-ES2). That goes for all tables after it,
//!   as long as each has a cache at the same sector.
//!
//! What was made durable by a commit that no FLUSH asked for counts as lost: then an opener is told
//! that has lost nothing.
use std::cell::{Cell, RefCell};

use block::{Opener, Status};
use policy::{ErrSeq, Sample};

/// See the module. Of a divided cache each part has its own.
#[derive(Default)]
pub(crate) struct UnflushedWrites {
    openers: RefCell<ErrSeq<Opener>>,
    /// How many changes were lost when the cache failed.
    lost: Cell<u64>,
}

/// What clients have not been told.
pub(crate) struct LostWrites {
    openers: ErrSeq<Opener>,
    /// How many writes, zeroes and discards the cache before has lost.
    pub(crate) requests: u64,
}

impl UnflushedWrites {
    /// A change of `opener` has ended, and is about to be acknowledged or fails.
    #[inline]
    pub(crate) fn changed(&self, opener: Opener) {
        self.openers.borrow_mut().changed(opener);
    }

    /// What a FLUSH of `opener` knows that begins now.
    pub(crate) fn sample(&self, opener: Opener) -> Sample {
        self.openers.borrow_mut().sample(opener)
    }

    /// It has ended with `outcome`; returns how it ends for its opener (WC-LO1).
    pub(crate) fn flushed(
        &self,
        opener: Opener,
        sample: Sample,
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

    /// What clients have not been told, for the cache of the next table. This one is suspended.
    pub(crate) fn take(&self, has_failed: bool) -> LostWrites {
        if has_failed {
            self.fail(); // What was acknowledged while the cache failed.
        }
        let mut openers = self.openers.take();
        openers.durable(openers.changes());
        LostWrites { openers, requests: self.lost.take() }
    }

    /// Goes on with what the cache before has not told.
    pub(crate) fn restore(&self, lost: LostWrites) {
        *self.openers.borrow_mut() = lost.openers;
    }

    /// The cache fails: what is not durable is lost, and that is not to be told again.
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
