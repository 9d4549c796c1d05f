// SPDX-License-Identifier: Apache-2.0 OR MIT
//! Losses: changes that a cache had acknowledged, and had not made durable, when it failed.
//!
//! A cache that has failed fails every FLUSH (I8), so nobody takes such a change for durable. When
//! its table is loaded again a new cache knows what the media know: the changes are lost, and
//! FLUSH works. So each client that had changed something, and had no failed FLUSH since, gets one
//! from the new cache.
//!
//! ```text
//!   cache that fails: Losses ── take ──▶ Lost ── add ──▶ Losses of the cache of the next table
//! ```
//!
//! Invariants (ES1 to ES4 are those of `policy::ErrSeq`)
//! - LO1 A FLUSH that the cache of the next table ends with success was sent by an opener that has
//!   lost nothing, or that has been told (ES1, ES2). That goes for all tables after it.
//!
//! What was made durable by a commit that no FLUSH asked for counts as lost: then an opener is told
//! that has lost nothing.
use std::cell::{Cell, RefCell};

use block::{Opener, Status};
use policy::{ErrSeq, Sample};

/// See the module.
#[derive(Default)]
pub(crate) struct Losses {
    openers: RefCell<ErrSeq<Opener>>,
    /// How many changes were lost when the cache failed.
    lost: Cell<Option<u64>>,
    /// What caches that were here before have lost.
    before: RefCell<Vec<Lost>>,
}

/// What a cache has lost.
pub(crate) struct Lost {
    openers: ErrSeq<Opener>,
    /// How many writes, zeroes and discards.
    pub(crate) requests: u64,
}

/// What a FLUSH knows from its submission on.
pub(crate) struct Samples {
    here: Sample,
    before: Vec<Sample>,
}

impl Losses {
    /// A change of `opener` has ended, and is about to be acknowledged or fails.
    #[inline]
    pub(crate) fn changed(&self, opener: Opener) {
        self.openers.borrow_mut().changed(opener);
    }

    /// A FLUSH of `opener` begins.
    pub(crate) fn sample(&self, opener: Opener) -> Samples {
        let mut before = self.before.borrow_mut();
        Samples {
            here: self.openers.borrow_mut().sample(opener),
            before: before.iter_mut().map(|lost| lost.openers.sample(opener)).collect(),
        }
    }

    /// It has ended with `outcome` here; returns how it ends.
    pub(crate) fn flushed(
        &self,
        opener: Opener,
        samples: Samples,
        outcome: Result<(), Status>,
    ) -> Result<(), Status> {
        let (here, mut before) = (samples.here, self.before.borrow_mut());
        match outcome {
            Ok(()) => self.openers.borrow_mut().durable(here.changes()),
            Err(_) => self.openers.borrow_mut().tell(opener, here),
        }
        let mut all = before.iter().zip(&samples.before);
        let has_news = all.any(|(lost, sample)| lost.openers.is_news(*sample));
        let outcome = if has_news { outcome.and(Err(Status::Io)) } else { outcome };
        if outcome.is_err() {
            let all = before.iter_mut().zip(samples.before);
            all.for_each(|(lost, sample)| lost.openers.tell(opener, sample));
        }
        outcome
    }

    /// The cache fails.
    pub(crate) fn fail(&self) {
        let mut openers = self.openers.borrow_mut();
        self.lost.set(Some(openers.at_risk()));
        lose_all(&mut openers);
    }

    /// What clients have not been told, for the cache of the next table.
    pub(crate) fn take(&self) -> Vec<Lost> {
        let mut all = self.before.take();
        all.iter_mut().for_each(|lost| lost.requests = 0); // The operator knows.
        if let Some(lost) = self.lost.get() {
            let mut openers = self.openers.take();
            // What was acknowledged while the cache failed.
            let later = openers.at_risk();
            if later > 0 {
                lose_all(&mut openers);
            }
            let requests = lost + later;
            all.extend((requests > 0).then_some(Lost { openers, requests }));
        }
        all
    }

    /// Caches that were here before have lost this.
    pub(crate) fn add(&self, lost: Vec<Lost>) {
        self.before.borrow_mut().extend(lost);
    }
}

fn lose_all(openers: &mut ErrSeq<Opener>) {
    let all = openers.changes();
    openers.lose(all);
    openers.durable(all); // That they are lost is not to be told again.
}
