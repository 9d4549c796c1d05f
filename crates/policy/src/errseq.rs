// SPDX-License-Identifier: Apache-2.0 OR MIT
//! The errors of a device as numbers, and up to which number they were reported to each opener;
//! after the kernel's `errseq_t`.
//!
//! A failing FLUSH reports an error. A FLUSH takes a *sample* when it is submitted: the newest
//! error that was reported to its opener, and the number of changes so far. It fails if there is a
//! newer error when it ends. So its result depends on the time of its submission: a concurrent
//! FLUSH of the same opener that reports an error does not hide it from FLUSHes that were submitted
//! before.
//!
//! A *loss* is an error after which acknowledged changes may be gone: a failed flush below, or a
//! lost connection. Only their sender can write them again. The error of a FLUSH covers the changes
//! that were acknowledged before its submission; a later FLUSH must report later ones (PO-ES4).
//!
//! A client that connects again after a loss is a new opener, and nothing identifies it as the
//! earlier one; nor is it known when an opener leaves. So a new opener is treated as one that got
//! no report.
//!
//! Invariants
//! - PO-ES1 An error is reported once to each opener that existed before it, and by each FLUSH that
//!   it had submitted before; twice only by PO-ES4. It is reported to a later opener only if it was
//!   reported to no one, or by PO-ES2.
//! - PO-ES2 For each opener with changes that may be lost and that got no report, one later opener
//!   gets the report in its place. While that one got none, the next new opener takes its place in
//!   turn.
//! - PO-ES3 At most [`OPENERS_MAX`] openers are kept. Those without changes at risk are evicted
//!   first; evicted openers with changes at risk are counted, so that PO-ES2 holds for them, too.
//! - PO-ES4 A change that may be lost is reported by a FLUSH that was submitted after the change
//!   was acknowledged. If a FLUSH that was submitted before reports the error, the next one does as
//!   well.
//!
//! Limits of PO-ES2: if other clients connect and FLUSH before the client that lost changes, they
//! get its report. If all clients with changes at risk connect again, all get one.
use std::collections::BTreeMap;

/// Openers that are kept; beyond that the least recently seen ones are evicted.
pub const OPENERS_MAX: usize = 4096;

/// The state of an opener.
#[derive(Clone, Copy, Debug)]
struct Opener {
    /// The newest error that was reported to it, or that came before it.
    reported: u64,
    /// The newest loss that concerns it, and the last of its changes that may be lost by it.
    loss: u64,
    lost: u64,
    /// A later opener gets the report in its place (PO-ES2).
    is_replaced: bool,
    /// Its last change.
    changed: u64,
    /// When it was last seen, counted in switches of the current opener.
    last_seen: u64,
}

impl Opener {
    fn needs_report(&self) -> bool {
        self.loss > self.reported && !self.is_replaced
    }

    fn is_at_risk(&self, durable: u64) -> bool {
        self.changed > durable
    }
}

/// The evicted openers (PO-ES3).
#[derive(Debug, Default)]
struct Evicted {
    /// Number of those with changes at risk, and the last of those changes.
    at_risk: u64,
    changed: u64,
    /// Number of those in whose place another opener must get a report, and the newest error that
    /// was reported to them.
    pending: u64,
    reported: u64,
}

/// The sample of a FLUSH, taken at its submission.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct ErrSeqSample {
    /// The newest error that was reported to its opener.
    reported: u64,
    /// Number of changes before.
    changes: u64,
}

impl ErrSeqSample {
    /// Number of changes before the submission: the FLUSH covers these.
    pub fn changes(self) -> u64 {
        self.changes
    }
}

/// See the module. `K` identifies an opener. Changes are numbered in the order of the calls.
#[derive(Debug)]
pub struct ErrSeq<K> {
    newest: u64,
    /// The newest error that was reported to any opener.
    reported: u64,
    changes: u64,
    durable: u64,
    openers: BTreeMap<K, Opener>,
    /// The current opener is not in `openers`: usually it is also the next one.
    recent: Option<(K, Opener)>,
    switches: u64,
    evicted: Evicted,
}

impl<K> Default for ErrSeq<K> {
    fn default() -> ErrSeq<K> {
        ErrSeq {
            newest: 0,
            reported: 0,
            changes: 0,
            durable: 0,
            openers: BTreeMap::new(),
            recent: None,
            switches: 0,
            evicted: Evicted::default(),
        }
    }
}

impl<K: Copy + Ord> ErrSeq<K> {
    /// Registers `opener`: every error from now on is reported to it.
    pub fn note(&mut self, opener: K) {
        self.opener(opener);
    }

    /// Counts a change of `opener` that is not durable.
    pub fn changed(&mut self, opener: K) {
        self.changed_often(opener, 1);
    }

    /// Counts `times` consecutive changes of `opener`.
    pub fn changed_often(&mut self, opener: K, times: u64) {
        self.changes += times;
        let changes = self.changes;
        self.opener(opener).changed = changes;
    }

    /// Counts an acknowledged change of `opener` that began before the newest loss: it may be lost,
    /// and no FLUSH that was submitted before reports that (PO-ES4).
    pub fn doubt(&mut self, opener: K) {
        self.changed(opener);
        let (newest, changes) = (self.newest, self.changes);
        let known = self.opener(opener);
        (known.loss, known.lost, known.is_replaced) = (newest, changes, false);
        known.reported = known.reported.min(newest.saturating_sub(1));
    }

    /// Number of changes.
    pub fn changes(&self) -> u64 {
        self.changes
    }

    /// Number of changes that are not known to be durable.
    pub fn at_risk(&self) -> u64 {
        self.changes - self.durable
    }

    /// Records that the first `changes` changes are durable.
    pub fn durable(&mut self, changes: u64) {
        self.durable = self.durable.max(changes);
    }

    /// The sample of a FLUSH of `opener` that is submitted now.
    pub fn sample(&mut self, opener: K) -> ErrSeqSample {
        let changes = self.changes;
        ErrSeqSample { reported: self.opener(opener).reported, changes }
    }

    /// The sample of a FLUSH that is submitted now and is no opener's: it must fail by errors that
    /// come later. Its failure is reported to nobody.
    pub fn sample_of_nobody(&self) -> ErrSeqSample {
        ErrSeqSample { reported: self.newest, changes: self.changes }
    }

    /// Whether a FLUSH with this sample must fail.
    pub fn must_report(&self, sample: ErrSeqSample) -> bool {
        sample.reported < self.newest
    }

    /// Records that a FLUSH of `opener` with this sample fails now, for any reason.
    pub fn report(&mut self, opener: K, sample: ErrSeqSample) {
        let newest = self.newest;
        let known = self.opener(opener);
        let covers = known.loss <= known.reported || sample.changes >= known.lost;
        let reported = if covers { newest } else { known.loss.saturating_sub(1) }; // PO-ES4
        known.reported = known.reported.max(reported);
        self.reported = newest;
    }

    /// Counts an error without a loss: its data will be written again.
    pub fn raise(&mut self) {
        self.newest += 1;
    }

    /// Counts an error by which the first `changes` changes may be lost, except durable ones.
    pub fn lose(&mut self, changes: u64) {
        let evicted = &mut self.evicted;
        if evicted.changed > self.durable {
            let reported = if evicted.pending > 0 { evicted.reported } else { self.newest };
            (evicted.pending, evicted.reported) = (evicted.pending.max(evicted.at_risk), reported);
        }
        self.newest += 1;
        let recent = self.recent.as_mut().map(|(_, opener)| opener);
        for opener in self.openers.values_mut().chain(recent) {
            if opener.is_at_risk(self.durable) {
                (opener.loss, opener.lost) = (self.newest, opener.changed.min(changes));
                opener.is_replaced = false;
            }
        }
    }

    /// Whether every opener that was there has got the report itself: one in whose place another
    /// has got it may still be there.
    pub fn all_are_told(&self) -> bool {
        let recent = self.recent.as_ref().map(|(_, opener)| opener);
        let mut all = self.openers.values().chain(recent);
        self.evicted.pending == 0 && all.all(|opener| opener.reported == self.newest)
    }

    /// Number of errors.
    pub fn count(&self) -> u64 {
        self.newest
    }

    fn opener(&mut self, key: K) -> &mut Opener {
        if self.recent.as_ref().is_none_or(|(recent, _)| *recent != key) {
            self.switch(key);
        }
        &mut self.recent.as_mut().expect("just switched to it").1
    }

    #[cold]
    fn switch(&mut self, key: K) {
        self.switches += 1;
        if let Some((before, opener)) = self.recent.take() {
            self.openers.insert(before, Opener { last_seen: self.switches, ..opener });
        }
        let known = self.openers.remove(&key);
        if known.is_none() && self.openers.len() >= OPENERS_MAX {
            self.evict_some();
        }
        let opener = known.unwrap_or_else(|| self.new_opener());
        self.recent = Some((key, opener));
    }

    /// The state of a new opener (PO-ES1, PO-ES2).
    fn new_opener(&mut self) -> Opener {
        let new = Opener {
            reported: self.reported,
            loss: 0,
            lost: 0,
            is_replaced: false,
            changed: 0,
            last_seen: 0,
        };
        if self.newest == 0 {
            return new;
        }
        // Changes that are lost in its place were made before it existed (PO-ES4).
        let new = Opener { lost: self.changes, ..new };
        if self.evicted.pending > 0 {
            self.evicted.pending -= 1;
            let reported = self.evicted.reported.min(new.reported);
            return Opener { reported, loss: self.newest, ..new };
        }
        let pending = self.openers.values_mut().filter(|o| o.needs_report());
        let Some(before) = pending.min_by_key(|o| o.reported) else { return new };
        before.is_replaced = true;
        Opener { reported: before.reported.min(new.reported), loss: before.loss, ..new }
    }

    /// Evicts a quarter of the openers: first those without changes at risk; among equals the least
    /// recently seen ones (PO-ES3).
    fn evict_some(&mut self) {
        let durable = self.durable;
        let order = |o: &Opener| (o.is_at_risk(durable) || o.needs_report(), o.last_seen);
        let mut all: Vec<(bool, u64)> = self.openers.values().map(order).collect();
        let (_, quarter, _) = all.select_nth_unstable(OPENERS_MAX / 4);
        let quarter = *quarter;
        let evicted = &mut self.evicted;
        if evicted.changed <= durable {
            evicted.at_risk = 0;
        }
        self.openers.retain(|_, gone| {
            if order(gone) > quarter {
                return true;
            }
            if gone.is_at_risk(durable) {
                evicted.at_risk += 1;
                evicted.changed = evicted.changed.max(gone.changed);
            }
            if gone.needs_report() {
                let reported = if evicted.pending > 0 { evicted.reported } else { gone.reported };
                evicted.pending += 1;
                evicted.reported = reported.min(gone.reported);
            }
            false
        });
    }
}

#[cfg(test)]
#[path = "errseq_tests.rs"]
mod tests;
