// SPDX-License-Identifier: Apache-2.0 OR MIT
//! Errseq: the errors of a device as numbers, and up to which of them each opener has been told.
//!
//! An error is told by a FLUSH that fails. A FLUSH takes a *sample* when it is submitted: the
//! newest error that its opener has been told of, and how many changes there were. It fails if
//! there is a newer error when it ends. So what it must tell is fixed at its submission: another
//! FLUSH of the same opener that tells of an error meanwhile hides it from none that had been
//! submitted before.
//!
//! A *loss* is an error after which changes that were acknowledged may be gone for good: a failed
//! flush below, a lost connection. Nobody can write them again but who has sent them. Who gets the
//! error of a FLUSH knows of the changes that had been acknowledged when it was submitted, not of
//! later ones: of those a later FLUSH must tell (ES4).
//!
//! A client that connects again after a loss is a new opener, and no number says which one it was
//! before; openers are not seen to leave either. So whoever comes is taken for one that has not
//! been told yet.
//!
//! Invariants
//! - ES1 Each opener that was there before an error is told of it once, and by each FLUSH that it
//!   had submitted before; twice only by ES4. One that comes later is told only if nobody has been,
//!   or by ES2.
//! - ES2 For each opener whose changes a loss has put at risk and that has not been told, one
//!   opener that comes later is told in its place; while that one has not been told, the next one
//!   that comes takes its place in turn.
//! - ES3 At most [`OPENERS_MAX`] openers are remembered. Those go first that have nothing at risk;
//!   of others that go it is counted how many there are, so that ES2 holds for them, too.
//! - ES4 A change that may be lost is told of by a FLUSH that was submitted after the change had
//!   been acknowledged: one that was submitted before tells of the error, and the next one does.
//!
//! What ES2 can't do: when other clients than the one that connects again come first, and send a
//! FLUSH, those are told. When all that had changes at risk connect again, all are told.
use std::collections::BTreeMap;

/// Openers that are remembered; of more than these, those that were here last.
pub const OPENERS_MAX: usize = 4096;

/// What is known of an opener.
#[derive(Clone, Copy, Debug)]
struct Opener {
    /// The newest error that it has been told of, or that came before it.
    told: u64,
    /// The newest loss that concerns it, and the last of its changes that may be gone by then.
    loss: u64,
    lost: u64,
    /// Another one that came later takes its place (ES2).
    has_heir: bool,
    /// Its last change.
    changed: u64,
    /// When it was here last, counted in changes of who is here.
    here: u64,
}

impl Opener {
    fn is_owed(&self) -> bool {
        self.loss > self.told && !self.has_heir
    }

    fn is_at_risk(&self, durable: u64) -> bool {
        self.changed > durable
    }
}

/// Openers that were forgotten (ES3).
#[derive(Debug, Default)]
struct Forgotten {
    /// How many had changes at risk, and the last of those changes.
    at_risk: u64,
    changed: u64,
    /// In place of how many another opener must be told, and of what those had been told.
    owed: u64,
    told: u64,
}

/// What a FLUSH knows from its submission on.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct Sample {
    /// The newest error that its opener had been told of.
    told: u64,
    /// How many changes there had been.
    changes: u64,
}

impl Sample {
    /// How many changes there had been at the submission: what the FLUSH covers.
    pub fn changes(self) -> u64 {
        self.changes
    }
}

/// See the module. `K` names an opener. Changes have numbers, in the order they are told of.
#[derive(Debug)]
pub struct ErrSeq<K> {
    newest: u64,
    /// The newest error that any opener has been told of.
    told: u64,
    changes: u64,
    durable: u64,
    openers: BTreeMap<K, Opener>,
    /// Who was here last is not among `openers`: usually it is the one that comes next.
    recent: Option<(K, Opener)>,
    turns: u64,
    forgotten: Forgotten,
}

impl<K> Default for ErrSeq<K> {
    fn default() -> ErrSeq<K> {
        ErrSeq {
            newest: 0,
            told: 0,
            changes: 0,
            durable: 0,
            openers: BTreeMap::new(),
            recent: None,
            turns: 0,
            forgotten: Forgotten::default(),
        }
    }
}

impl<K: Copy + Ord> ErrSeq<K> {
    /// `opener` is here: from now on it is told of every error.
    pub fn note(&mut self, opener: K) {
        self.opener(opener);
    }

    /// `opener` has changed something that is not durable.
    pub fn changed(&mut self, opener: K) {
        self.changed_often(opener, 1);
    }

    /// The same so many times, and nobody else has in between.
    pub fn changed_often(&mut self, opener: K, times: u64) {
        self.changes += times;
        let changes = self.changes;
        self.opener(opener).changed = changes;
    }

    /// A change of `opener` is acknowledged that had begun before the newest loss: it may be gone,
    /// and no FLUSH that was submitted before tells of that (ES4).
    pub fn doubt(&mut self, opener: K) {
        self.changed(opener);
        let (newest, changes) = (self.newest, self.changes);
        let known = self.opener(opener);
        (known.loss, known.lost, known.has_heir) = (newest, changes, false);
        known.told = known.told.min(newest.saturating_sub(1));
    }

    /// How many changes there were.
    pub fn changes(&self) -> u64 {
        self.changes
    }

    /// How many changes are not known to be durable.
    pub fn at_risk(&self) -> u64 {
        self.changes - self.durable
    }

    /// The first so many changes are durable.
    pub fn durable(&mut self, changes: u64) {
        self.durable = self.durable.max(changes);
    }

    /// What a FLUSH of `opener` that is submitted now knows.
    pub fn sample(&mut self, opener: K) -> Sample {
        let changes = self.changes;
        Sample { told: self.opener(opener).told, changes }
    }

    /// Whether a FLUSH with this sample must fail.
    pub fn is_news(&self, sample: Sample) -> bool {
        sample.told < self.newest
    }

    /// A FLUSH of `opener` with this sample fails now, whatever for.
    pub fn tell(&mut self, opener: K, sample: Sample) {
        let newest = self.newest;
        let known = self.opener(opener);
        let covers = known.loss <= known.told || sample.changes >= known.lost;
        let told = if covers { newest } else { known.loss.saturating_sub(1) }; // ES4
        known.told = known.told.max(told);
        self.told = newest;
    }

    /// An error that has lost nothing: what it was about will be written again.
    pub fn raise(&mut self) {
        self.newest += 1;
    }

    /// An error after which those of the first `changes` changes may be lost that are not durable.
    pub fn lose(&mut self, changes: u64) {
        let forgotten = &mut self.forgotten;
        if forgotten.changed > self.durable {
            let told = if forgotten.owed > 0 { forgotten.told } else { self.newest };
            (forgotten.owed, forgotten.told) = (forgotten.owed.max(forgotten.at_risk), told);
        }
        self.newest += 1;
        let recent = self.recent.as_mut().map(|(_, opener)| opener);
        for opener in self.openers.values_mut().chain(recent) {
            if opener.is_at_risk(self.durable) {
                (opener.loss, opener.lost) = (self.newest, opener.changed.min(changes));
                opener.has_heir = false;
            }
        }
    }

    /// How many errors there were.
    pub fn count(&self) -> u64 {
        self.newest
    }

    fn opener(&mut self, key: K) -> &mut Opener {
        if self.recent.as_ref().is_none_or(|(recent, _)| *recent != key) {
            self.switch(key);
        }
        &mut self.recent.as_mut().expect("it is here now").1
    }

    #[cold]
    fn switch(&mut self, key: K) {
        self.turns += 1;
        if let Some((before, opener)) = self.recent.take() {
            self.openers.insert(before, Opener { here: self.turns, ..opener });
        }
        let known = self.openers.remove(&key);
        if known.is_none() && self.openers.len() >= OPENERS_MAX {
            self.forget_some();
        }
        let opener = known.unwrap_or_else(|| self.come());
        self.recent = Some((key, opener));
    }

    /// One that was not here before (ES1, ES2).
    fn come(&mut self) -> Opener {
        let new =
            Opener { told: self.told, loss: 0, lost: 0, has_heir: false, changed: 0, here: 0 };
        if self.newest == 0 {
            return new;
        }
        // What it has lost was changed before it came (ES4).
        let new = Opener { lost: self.changes, ..new };
        if self.forgotten.owed > 0 {
            self.forgotten.owed -= 1;
            let told = self.forgotten.told.min(new.told);
            return Opener { told, loss: self.newest, ..new };
        }
        let owed = self.openers.values_mut().filter(|o| o.is_owed());
        let Some(before) = owed.min_by_key(|o| o.told) else { return new };
        before.has_heir = true;
        Opener { told: before.told.min(new.told), loss: before.loss, ..new }
    }

    /// A quarter of the openers goes: first those that have nothing at risk, and of these, and of
    /// the others, those first that were away for longest (ES3).
    fn forget_some(&mut self) {
        let durable = self.durable;
        let order = |o: &Opener| (o.is_at_risk(durable) || o.is_owed(), o.here);
        let mut all: Vec<(bool, u64)> = self.openers.values().map(order).collect();
        let (_, quarter, _) = all.select_nth_unstable(OPENERS_MAX / 4);
        let quarter = *quarter;
        let forgotten = &mut self.forgotten;
        if forgotten.changed <= durable {
            forgotten.at_risk = 0;
        }
        self.openers.retain(|_, gone| {
            if order(gone) > quarter {
                return true;
            }
            if gone.is_at_risk(durable) {
                forgotten.at_risk += 1;
                forgotten.changed = forgotten.changed.max(gone.changed);
            }
            if gone.is_owed() {
                let told = if forgotten.owed > 0 { forgotten.told } else { gone.told };
                forgotten.owed += 1;
                forgotten.told = told.min(gone.told);
            }
            false
        });
    }
}

#[cfg(test)]
#[path = "errseq_tests.rs"]
mod tests;
