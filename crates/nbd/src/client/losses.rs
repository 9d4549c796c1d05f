// SPDX-License-Identifier: Apache-2.0 OR MIT
//! Losses: what may have been lost of writes that were acknowledged and not flushed, and who has
//! heard of it.
//!
//! Invariants
//! - L1 Every opener that was there when something may have been lost hears of it at its next
//!   flush, and at every flush that it had under way; each loss once, or, if one of its changes was
//!   acknowledged after such a flush had come, once more (ES4 of `policy::ErrSeq`).
//! - L2 An opener that comes later hears of it in the place of one that had written what may be
//!   lost and has not heard: it may be the same client, connected again (ES1 to ES3 of
//!   `policy::ErrSeq`).
//! - L3 A write that is made durable by a flush of its own is not, if anything may have been lost
//!   since it was sent.
//! - L4 A change that is acknowledged after a loss, and of which a part was sent before it, may be
//!   lost, too: the server may have done it before its flush failed, and have answered only later.
//!   It owes us nothing more: a flush covers what it has answered before. So the opener hears of it
//!   at its next flush.
use block::Opener;
use policy::{ErrSeq, Sample};

/// See the module.
#[derive(Debug, Default)]
pub(crate) struct Losses {
    /// Its changes are those that were acknowledged and are not durable by themselves.
    openers: ErrSeq<Opener>,
    /// Of those, what a flush has covered, or what was told to be lost.
    settled: u64,
}

impl Losses {
    /// A change has been acknowledged, or a part of it.
    pub(crate) fn acknowledge(&mut self, opener: Opener) {
        self.openers.changed(opener);
    }

    /// A change has been acknowledged of which a part was sent before the newest loss (L4).
    pub(crate) fn doubt(&mut self, opener: Opener) {
        self.openers.doubt(opener);
    }

    /// What a flush that is sent now covers.
    pub(crate) fn covers(&self) -> u64 {
        self.openers.changes()
    }

    /// A flush has succeeded that covers so much.
    pub(crate) fn settle(&mut self, covers: u64) {
        self.settled = self.settled.max(covers);
        self.openers.durable(self.settled);
    }

    /// The server may have forgotten what no flush has covered.
    pub(crate) fn connection_lost(&mut self) {
        if self.openers.changes() > self.settled {
            self.flush_failed();
        }
    }

    /// A flush has failed at the server: all that was not durable is in doubt.
    pub(crate) fn flush_failed(&mut self) {
        let all = self.openers.changes();
        self.openers.lose(all);
        self.settle(all);
    }

    /// How often something may have been lost.
    pub(crate) fn count(&self) -> u64 {
        self.openers.count()
    }

    /// Of which losses the opener of a bio that comes has heard.
    pub(crate) fn known_to(&mut self, opener: Opener) -> Sample {
        self.openers.sample(opener)
    }

    /// Whether a flush whose opener had heard of these must fail (C5).
    pub(crate) fn concerns(&self, heard: Sample) -> bool {
        self.openers.is_news(heard)
    }

    /// A flush of the opener has failed.
    pub(crate) fn tell(&mut self, opener: Opener, heard: Sample) {
        self.openers.tell(opener, heard);
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn each_opener_hears_of_a_loss_once() {
        let mut losses = Losses::default();
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
    /// A client whose connection to us has gone before it heard is another opener when it is back.
    #[test]
    fn who_connects_again_hears_of_a_loss() {
        let mut losses = Losses::default();
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
    fn an_opener_that_is_active_is_not_forgotten() {
        let mut losses = Losses::default();
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
