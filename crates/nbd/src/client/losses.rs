// SPDX-License-Identifier: Apache-2.0 OR MIT
//! Losses: what may have been lost of writes that were acknowledged and not flushed, and who has
//! heard of it.
//!
//! Invariants
//! - L1 Every opener that was there when something may have been lost hears of it at its next
//!   flush, and at every flush that it had under way; each loss once.
use std::collections::BTreeMap;

use block::Opener;

/// Openers that are remembered. One more takes the place of the oldest, which then counts as new.
const OPENERS_MAX: usize = 1024;

/// See the module.
#[derive(Debug, Default)]
pub(crate) struct Losses {
    /// Changes that were acknowledged and are not durable by themselves.
    acknowledged: u64,
    /// Of those, what a flush has covered, or what was told to be lost.
    settled: u64,
    /// How often something may have been lost.
    count: u64,
    heard: BTreeMap<Opener, u64>,
    last: Option<(Opener, u64)>,
}

impl Losses {
    /// A change has been acknowledged.
    pub(crate) fn acknowledge(&mut self) {
        self.acknowledged += 1;
    }

    /// What a flush that is sent now covers.
    pub(crate) fn covers(&self) -> u64 {
        self.acknowledged
    }

    /// A flush has succeeded that covers so much.
    pub(crate) fn settle(&mut self, covers: u64) {
        self.settled = self.settled.max(covers);
    }

    /// The server may have forgotten what no flush has covered.
    pub(crate) fn connection_lost(&mut self) {
        if self.acknowledged > self.settled {
            self.flush_failed();
        }
    }

    /// A flush has failed at the server: all that was not durable is in doubt.
    pub(crate) fn flush_failed(&mut self) {
        self.settled = self.acknowledged;
        self.count += 1;
    }

    /// Of how many losses the opener of a bio that comes has heard; one who is new, of all.
    pub(crate) fn known_to(&mut self, opener: Opener) -> u64 {
        if let Some((_, heard)) = self.last.filter(|(last, _)| *last == opener) {
            return heard;
        }
        let heard = *self.heard.entry(opener).or_insert(self.count);
        if self.heard.len() > OPENERS_MAX {
            self.heard.pop_first();
        }
        self.last = Some((opener, heard));
        heard
    }

    /// Whether a flush whose opener had heard of so many must fail (C5).
    pub(crate) fn concerns(&self, heard: u64) -> bool {
        heard < self.count
    }

    /// A flush of the opener has failed.
    pub(crate) fn tell(&mut self, opener: Opener) {
        self.heard.insert(opener, self.count);
        self.last = None;
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
        assert!(!losses.concerns(losses.count), "nothing was written");
        losses.acknowledge();
        let under_way = losses.known_to(a);
        losses.connection_lost();
        assert!(losses.concerns(under_way));
        let next = losses.known_to(a);
        assert!(losses.concerns(next));
        losses.tell(a);
        for (opener, concerned) in [(a, false), (b, true), (Opener(3), false)] {
            let heard = losses.known_to(opener);
            assert_eq!(losses.concerns(heard), concerned, "{opener:?}");
        }
        losses.connection_lost();
        let heard = losses.known_to(a);
        assert!(!losses.concerns(heard), "it was told, and nothing written since");
        losses.acknowledge();
        losses.settle(losses.covers());
        losses.connection_lost();
        assert!(!losses.concerns(heard), "it was flushed");
    }
}
