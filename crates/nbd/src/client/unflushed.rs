// SPDX-License-Identifier: Apache-2.0 OR MIT
//! Acknowledged writes that no flush covers: which of them may be lost, and to which openers that
//! was reported.
//!
//! Invariants
//! - NB-L1 A loss is reported to every current opener at its next flush, and at its flushes in
//!   flight: once, or twice if one of its changes was acknowledged after such a flush was submitted
//!   (PO-ES4 of `policy::ErrSeq`).
//! - NB-L2 A loss is reported to a later opener in place of one that had written lost data and got
//!   no report: it may be the same client, connected again (PO-ES1 to PO-ES3 of `policy::ErrSeq`).
//! - NB-L3 A write that is made durable by a flush of its own is not, if anything may have been
//!   lost since it was sent.
//! - NB-L4 A change that is acknowledged after a loss, and of which a part was sent before, may be
//!   lost, too: the server may have performed it before its flush failed, and have answered later.
//!   A later flush covers only what was answered before. So the opener's next flush reports it.
use std::cell::{Cell, RefCell};
use std::rc::Rc;

use block::{LostWrites, Opener};
use policy::{ErrSeq, ErrSeqSample};

/// See the module.
#[derive(Debug, Default)]
pub(crate) struct UnflushedWrites {
    /// Counts changes that were acknowledged and are not durable by FUA.
    openers: RefCell<ErrSeq<Opener>>,
    /// How many of those a flush has covered, or are recorded as lost.
    settled: Cell<u64>,
}

impl UnflushedWrites {
    /// Counts an acknowledged change, or a part of one.
    pub(crate) fn acknowledge(&self, opener: Opener) {
        self.openers.borrow_mut().changed(opener);
    }

    /// Records an acknowledged change of which a part was sent before the newest loss (NB-L4).
    pub(crate) fn doubt(&self, opener: Opener) {
        self.openers.borrow_mut().doubt(opener);
    }

    /// The number of changes that a flush sent now covers.
    pub(crate) fn covers(&self) -> u64 {
        self.openers.borrow().changes()
    }

    /// Records a successful flush that covers `covers` changes.
    pub(crate) fn settle(&self, covers: u64) {
        let settled = self.settled.get().max(covers);
        self.settled.set(settled);
        self.openers.borrow_mut().durable(settled);
    }

    /// Records a lost connection: the server may have lost unflushed changes.
    pub(crate) fn connection_lost(&self) {
        if self.has_unflushed() {
            self.flush_failed();
        }
    }

    /// Records a failed flush: all changes that were not durable may be lost.
    pub(crate) fn flush_failed(&self) {
        let all = self.covers();
        self.openers.borrow_mut().lose(all);
        self.settle(all);
    }

    /// Number of losses.
    pub(crate) fn count(&self) -> u64 {
        self.openers.borrow().count()
    }

    /// The losses that were reported to the opener of a submitted bio.
    pub(crate) fn known_to(&self, opener: Opener) -> ErrSeqSample {
        let mut openers = self.openers.borrow_mut();
        match opener {
            Opener::NOBODY => openers.sample_of_nobody(),
            _ => openers.sample(opener),
        }
    }

    /// Whether a flush must fail that was submitted with `heard` reported (NB-C5).
    pub(crate) fn concerns(&self, heard: ErrSeqSample) -> bool {
        self.openers.borrow().must_report(heard)
    }

    /// Records that a failed flush has reported the loss to the opener.
    pub(crate) fn tell(&self, opener: Opener, heard: ErrSeqSample) {
        if opener != Opener::NOBODY {
            self.openers.borrow_mut().report(opener, heard);
        }
    }
}

impl LostWrites for UnflushedWrites {
    fn has_unflushed(&self) -> bool {
        self.covers() > self.settled.get()
    }

    fn must_hear(self: Rc<Self>, opener: Opener) -> Option<Box<dyn FnOnce()>> {
        let heard = self.known_to(opener);
        let must_fail = self.concerns(heard);
        must_fail.then(|| Box::new(move || self.tell(opener, heard)) as Box<dyn FnOnce()>)
    }

    fn are_told(&self) -> bool {
        self.openers.borrow().all_are_told()
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn each_opener_gets_one_report_of_a_loss() {
        let losses = UnflushedWrites::default();
        let (a, b) = (Opener(1), Opener(2));
        for opener in [a, b] {
            losses.known_to(opener);
        }
        losses.connection_lost();
        let heard = losses.known_to(a);
        assert!(!losses.concerns(heard), "nothing was written");
        losses.acknowledge(a);
        let under_way = losses.known_to(a);
        losses.connection_lost();
        assert!(losses.concerns(under_way));
        let next = losses.known_to(a);
        assert!(losses.concerns(next));
        losses.tell(a, next);
        for (opener, concerned) in [(a, false), (b, true), (Opener(3), false)] {
            let heard = losses.known_to(opener);
            assert_eq!(losses.concerns(heard), concerned, "{opener:?}");
        }
        losses.connection_lost();
        let heard = losses.known_to(a);
        assert!(!losses.concerns(heard), "it was told, and nothing written since");
        losses.acknowledge(b);
        losses.settle(losses.covers());
        losses.connection_lost();
        assert!(!losses.concerns(heard), "it was flushed");
    }
    /// A client that disconnected before the loss was reported to it has another opener when it
    /// connects again.
    #[test]
    fn a_new_opener_gets_the_report_of_a_gone_one() {
        let losses = UnflushedWrites::default();
        let (a, b) = (Opener(1), Opener(2));
        for opener in [a, b] {
            losses.known_to(opener);
            losses.acknowledge(opener);
        }
        losses.flush_failed();
        let heard = losses.known_to(b);
        losses.tell(b, heard);
        for (opener, concerned) in [(Opener(3), true), (Opener(4), false), (a, true)] {
            let heard = losses.known_to(opener);
            assert_eq!(losses.concerns(heard), concerned, "{opener:?}");
            if concerned {
                losses.tell(opener, heard);
            }
        }
    }

    /// More openers than are remembered; one of those that were there first goes on to write.
    #[test]
    fn an_active_opener_is_kept() {
        let losses = UnflushedWrites::default();
        let active = Opener(1);
        for other in 0..10_000 {
            losses.acknowledge(active);
            losses.known_to(Opener(100 + other));
        }
        losses.connection_lost();
        let heard = losses.known_to(Opener(20_000));
        losses.tell(Opener(20_000), heard);
        let heard = losses.known_to(active);
        assert!(losses.concerns(heard));
    }
}
