// SPDX-License-Identifier: Apache-2.0 OR MIT
//! Judge: who must be told of which loss, and who may be, from the whole history of a run. It
//! shares no state with the leaves: it keeps what came when, and looks all of it up again for each
//! FLUSH that ends.
//!
//! A *loss* is a FLUSH or a FUA write that the driver fails. A leaf *tells* an opener by a FLUSH of
//! it that fails. All that follows is for one leaf; the losses are those of its file since the leaf
//! was made.
//!
//! A FLUSH that the driver ends well must fail for one of these reasons, and for no other:
//! - QU-J1 Its opener was there before a loss and was not told of it before the FLUSH came.
//! - QU-J2 It covers a change of its opener that may be lost, and no FLUSH that has covered the
//!   change had told of that when this one came. May be lost: it came before a loss and was
//!   acknowledged after it, or it was acknowledged before a loss and no FLUSH that covers it had
//!   succeeded.
//! - QU-J3 Its opener came after a loss of which nobody had been told, and has not been told
//!   either.
//! - QU-J4 Its opener came when another one had not been told of a change that may be lost, and has
//!   not been told of anything since. (It must fail if it was the first to come since then; of
//!   those who come later one is told for each of them, which is for `policy` to test.)
use block::Opener;

/// Nobody has more of these than a run is long, so all are looked through each time.
#[derive(Default)]
pub(crate) struct Judge {
    now: u64,
    losses: Vec<Loss>,
    changes: Vec<Change>,
    flushes: Vec<Flush>,
    /// Which opener came to which leaf when, and whether QU-J4 allows to report errors to it.
    visits: Vec<Visit>,
    pub(crate) counts: FlushCounts,
}

/// An opener at a leaf.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(crate) struct LeafOpener {
    pub(crate) leaf: usize,
    pub(crate) opener: Opener,
}

/// A leaf: the losses of its file count from when it was made.
#[derive(Clone, Copy, Debug)]
pub(crate) struct Home {
    pub(crate) file: u32,
    pub(crate) made: u64,
}

#[derive(Clone, Copy, Debug)]
struct Loss {
    file: u32,
    at: u64,
}

/// A change that was acknowledged and is not durable by itself.
#[derive(Clone, Copy, Debug)]
struct Change {
    by: LeafOpener,
    begun: u64,
    acknowledged: u64,
}

/// A FLUSH that has ended, so at the driver and so for its opener.
#[derive(Clone, Copy, Debug)]
struct Flush {
    by: LeafOpener,
    begun: u64,
    ended: u64,
    is_done: bool,
    fails: bool,
}

#[derive(Clone, Copy, Debug)]
struct Visit {
    by: LeafOpener,
    at: u64,
    may_inherit: bool,
    must_inherit: bool,
}

/// How often a FLUSH has failed that succeeded at the driver, by the first reason; and FUA writes.
#[derive(Clone, Copy, Debug, Default)]
pub(crate) struct FlushCounts {
    pub(crate) there: u64,
    pub(crate) changed: u64,
    pub(crate) came: u64,
    pub(crate) inherited: u64,
    pub(crate) fua: u64,
    pub(crate) good: u64,
}

/// Which FLUSH counts as one that made changes durable.
#[derive(Clone, Copy, PartialEq, Eq)]
enum DurableBy {
    /// One that has succeeded at the driver: less must be told.
    AtDriver,
    /// One that its opener has seen succeed: more may be told.
    ForOpener,
}

impl Judge {
    /// Something happens now: at another time than all before.
    pub(crate) fn tick(&mut self) -> u64 {
        self.now += 1;
        self.now
    }

    /// The driver has failed what promises durability.
    pub(crate) fn lose(&mut self, file: u32) {
        self.losses.push(Loss { file, at: self.now });
    }

    /// A FLUSH is submitted.
    pub(crate) fn flush_begins(&mut self, by: LeafOpener, home: Home) {
        self.comes(by, home);
    }

    /// A change that is not FUA is acknowledged.
    pub(crate) fn acknowledge(&mut self, by: LeafOpener, home: Home, begun: u64) {
        self.comes(by, home);
        self.changes.push(Change { by, begun, acknowledged: self.now });
    }

    /// A FUA write that the driver has ended well. QU-FE3.
    pub(crate) fn fua_ends(&mut self, home: Home, begun: u64, fails: bool) -> Result<(), String> {
        let file = home.file;
        let must = self.losses.iter().any(|loss| loss.file == file && loss.at > begun);
        self.counts.fua += u64::from(must);
        match (must, fails) {
            (true, false) => Err("a FUA write succeeds though a loss came after it".into()),
            (false, true) => Err("a FUA write fails for nothing".into()),
            _ => Ok(()),
        }
    }

    /// A FLUSH has ended, so at the driver and so for its opener.
    pub(crate) fn flush_ends(
        &mut self,
        by: LeafOpener,
        home: Home,
        begun: u64,
        (is_done, fails): (bool, bool),
    ) -> Result<(), String> {
        let flush = Flush { by, begun, ended: self.now, is_done, fails };
        let judged = if is_done { self.judge(&flush, home) } else { Ok(()) };
        self.flushes.push(flush);
        judged
    }

    fn judge(&mut self, flush: &Flush, home: Home) -> Result<(), String> {
        let visit = *self.visit(flush.by).expect("it came with its first FLUSH or change");
        let there = self.losses_of(home).find(|&at| at > visit.at && !self.knows(flush, at));
        let came = self.losses_of(home).find(|&at| {
            at < visit.at && !self.anybody_knew(flush.by, at, visit.at) && !self.knows(flush, at)
        });
        let covers = |c: &&Change| c.by == flush.by && c.acknowledged < flush.begun;
        let changed = |sure| {
            self.changes.iter().filter(covers).find(|c| self.is_owed(c, home, sure, flush.begun))
        };
        let inherits = !self.knows(flush, visit.at);
        let counts = &mut self.counts.clone();
        let must = if let Some(at) = there {
            counts.there += 1;
            Some(format!("QU-J1: of the loss at {at}"))
        } else if let Some(change) = changed(DurableBy::AtDriver) {
            counts.changed += 1;
            Some(format!("QU-J2: of {change:?}"))
        } else if let Some(at) = came {
            counts.came += 1;
            Some(format!("QU-J3: of the loss at {at}"))
        } else if visit.must_inherit && inherits {
            counts.inherited += 1;
            Some(format!("QU-J4: it came at {}", visit.at))
        } else {
            None
        };
        counts.good += u64::from(!flush.fails);
        let may = changed(DurableBy::ForOpener).is_some() || visit.may_inherit && inherits;
        self.counts = *counts;
        match (must, flush.fails) {
            (Some(why), false) => Err(format!("{flush:?} does not tell; {why}")),
            (None, true) if !may => Err(format!("{flush:?} tells what its opener knows")),
            _ => Ok(()),
        }
    }

    /// When the losses came.
    fn losses_of(&self, home: Home) -> impl Iterator<Item = u64> {
        let of = move |loss: &&Loss| loss.file == home.file && loss.at > home.made;
        self.losses.iter().filter(of).map(|loss| loss.at)
    }

    fn told(&self, by: LeafOpener, before: u64) -> impl Iterator<Item = &Flush> {
        self.flushes.iter().filter(move |f| f.fails && f.by == by && f.ended < before)
    }

    /// Whether the opener had been told of what was at this time when its FLUSH came.
    fn knows(&self, flush: &Flush, at: u64) -> bool {
        self.told(flush.by, flush.begun).any(|told| told.ended >= at)
    }

    /// Whether anybody at its leaf had been told of a loss before this time.
    fn anybody_knew(&self, by: LeafOpener, at: u64, before: u64) -> bool {
        let told = |f: &&Flush| f.fails && f.by.leaf == by.leaf && f.ended < before;
        self.flushes.iter().filter(told).any(|f| f.ended >= at)
    }

    /// From which times on this change may be lost.
    fn may_be_lost(&self, change: &Change, home: Home, sure: DurableBy) -> [Option<u64>; 2] {
        let Change { by, begun, acknowledged } = *change;
        // Losses before the leaf was made count for no change at it.
        let doubt = self.losses_of(home).any(|at| begun < at && at < acknowledged);
        let good = |f: &&Flush| match sure {
            DurableBy::AtDriver => f.is_done,
            DurableBy::ForOpener => !f.fails,
        };
        let covers = |f: &&Flush| f.by.leaf == by.leaf && f.begun > acknowledged;
        let durable = self.flushes.iter().filter(good).filter(covers).map(|f| f.ended).min();
        // Later losses take nothing that this one has not taken.
        let next = self.losses_of(home).find(|&at| at > acknowledged);
        let lost = next.filter(|&at| durable.is_none_or(|durable| durable > at));
        match (doubt, sure) {
            // It is told already.
            (true, DurableBy::AtDriver) => [Some(acknowledged), None],
            _ => [doubt.then_some(acknowledged), lost],
        }
    }

    /// Whether the change may be lost and its opener was not told before this time.
    fn is_owed(&self, change: &Change, home: Home, sure: DurableBy, before: u64) -> bool {
        let since = self.may_be_lost(change, home, sure);
        since.into_iter().flatten().any(|since| self.is_untold(change, since, before))
    }

    fn is_untold(&self, change: &Change, since: u64, before: u64) -> bool {
        let covers = |f: &Flush| f.begun > change.acknowledged && f.ended >= since;
        !self.told(change.by, before).any(covers)
    }

    fn visit(&self, by: LeafOpener) -> Option<&Visit> {
        self.visits.iter().find(|visit| visit.by == by)
    }

    fn comes(&mut self, by: LeafOpener, home: Home) {
        if self.visit(by).is_some() {
            return;
        }
        let now = self.now;
        let here = || self.visits.iter().filter(|visit| visit.by.leaf == by.leaf);
        let last = here().map(|visit| visit.at).max().unwrap_or(0);
        let mut changes = self.changes.iter().filter(|c| c.by.leaf == by.leaf);
        let must_inherit = changes.clone().any(|c| {
            let since = self.may_be_lost(c, home, DurableBy::AtDriver);
            since.into_iter().flatten().any(|at| at > last && self.is_untold(c, at, now))
        });
        let heir_untold =
            |v: &Visit| v.may_inherit && !self.told(v.by, now).any(|told| told.ended > v.at);
        let may_inherit = changes.any(|c| self.is_owed(c, home, DurableBy::ForOpener, now))
            || here().any(heir_untold);
        self.visits.push(Visit { by, at: now, may_inherit, must_inherit });
    }
}
