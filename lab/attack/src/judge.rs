// SPDX-License-Identifier: Apache-2.0 OR MIT
//! The judge: the history of each sector of a device, and which versions a read may find there.
//!
//! Time is a counter. A request begins at the tick taken before it is sent, and ends at the tick
//! taken after its reply arrives. So two requests that overlap in the program overlap here too.
//!
//! A version of a sector is its initial zeroes, a write, a write of zeroes, or a discard. It is
//! - *durable* once it has succeeded and either had FUA or is covered by a FLUSH. A FLUSH covers a
//!   version if it succeeded, began after the version had ended, and its connection got no error of
//!   another FLUSH in between (see [`ErrorScope`]). An error of another FLUSH under way counts,
//!   unless this FLUSH had certainly reached the program before the loss;
//! - *superseded* when a version that began after it had ended has succeeded, or when a read that
//!   began after it had ended has found another version;
//! - *at risk* when it is not durable, a disk has failed a FLUSH since it began, and the device
//!   keeps no copy to write again ([`Rules::loss_is_visible`]): then it supersedes nothing.
//!
//! For example, write 1 ends at tick 5, write 2 runs from 8 to 12. A read from 3 to 4 may find
//! write 1 or the zeroes; a read that begins at 13 must find write 2.
//!
//! Invariants
//! - AT-J1 A read finds a version that is not superseded when the read begins, or a concurrent one.
//! - AT-J2 After a crash a sector holds a version that no durable version is newer than. Later
//!   reads find the same version, and the next FLUSH makes it durable.
//! - AT-J3 After an orderly end everything that had succeeded counts as flushed, but for what the
//!   operator had given up with a token.
//! - AT-J4 A write that failed, or had no reply before a crash, may be there or not, sector by
//!   sector, and supersedes nothing. A sector never holds bytes of two writes, of another sector,
//!   or of no write.
//! - AT-J5 A discard leaves zeroes or any earlier version of the sector.

use std::collections::{BTreeMap, VecDeque};

use crate::history::{
    Counts, ErrorScope, Event, EventKind, Kind, NEVER, Outcome, Rules, Version, Violation,
};
use crate::origin::Origin;
use crate::pattern::Content;

/// Events kept for each sector, and for the whole device.
const TRACE_MAX: usize = 40;
const GLOBAL_MAX: usize = 20_000;
/// Replies kept for each connection, and losses kept.
const ANSWERS_MAX: usize = 256;
const LOSSES_MAX: usize = 256;
/// A longer history is searched for versions that no read and no crash can show any more.
const PRUNE_ABOVE: usize = 5;

#[derive(Debug, Default)]
struct Sector {
    versions: Vec<Version>,
    trace: VecDeque<Event>,
}

#[derive(Clone, Copy, Debug)]
struct FailedFlush {
    by: u64,
    begun: u64,
    ended: u64,
}

/// See the module.
#[derive(Debug)]
pub struct Judge {
    rules: Rules,
    first: u64,
    sectors: Vec<Sector>,
    global: VecDeque<Event>,
    tick: u64,
    last_write: u64,
    last_opener: u64,
    /// When each opener got its first answer: from then on it has certainly reached the program.
    first_answers: BTreeMap<u64, u64>,
    /// Beginnings of the reads and writes under way, with how many.
    active: BTreeMap<u64, u32>,
    failed: Vec<FailedFlush>,
    /// Orders under way, by when they began.
    orders: Vec<u64>,
    /// By connection, of the last answers: when the request was sent, and the answer came.
    answers: BTreeMap<u64, VecDeque<(u64, u64)>>,
    /// When disks lost data, the last ones.
    losses: VecDeque<u64>,
    /// Of what began since the key: FLUSHes cover what ended before the value.
    covered: BTreeMap<u64, u64>,
    last_loss: u64,
    /// Of what began before this, what was not durable was given up, with a token.
    given_up: u64,
    /// The table may be changing at the moment.
    loading: bool,
    /// Counts.
    pub counts: Counts,
    /// The first violations.
    pub violations: Vec<Violation>,
    /// The origin alone, of a cache that promises something of it.
    pub origin: Option<Origin>,
}

/// So many violations are kept in full.
const KEPT: usize = 5;

impl Judge {
    /// Of a device of zeroes, of which sectors `first..first + count` are used.
    pub fn new(rules: Rules, first: u64, count: u64) -> Judge {
        let zero = Version {
            write: 0,
            kind: Kind::Zeroes,
            begun: 0,
            ended: 0,
            outcome: Some(Outcome::Done),
            fua: false,
            durable: true,
            superseded_by: None,
        };
        let sector = || Sector { versions: vec![zero], trace: VecDeque::new() };
        Judge {
            rules,
            first,
            sectors: std::iter::repeat_with(sector).take(count as usize).collect(),
            global: VecDeque::new(),
            tick: 0,
            last_write: 0,
            last_opener: 0,
            first_answers: BTreeMap::new(),
            active: BTreeMap::new(),
            failed: Vec::new(),
            orders: Vec::new(),
            answers: BTreeMap::new(),
            losses: VecDeque::new(),
            covered: BTreeMap::new(),
            last_loss: 0,
            given_up: 0,
            loading: false,
            counts: Counts::default(),
            violations: Vec::new(),
            origin: None,
        }
    }

    /// Forgets all contents: from now on sectors are zeroes, or will be written before they are
    /// read. Nothing runs at the moment.
    pub fn begin_anew(&mut self) {
        let tick = self.now();
        self.settle_all(tick);
        let count = self.sectors.len() as u64;
        self.sectors = Judge::new(self.rules, self.first, count).sectors;
    }

    fn now(&mut self) -> u64 {
        self.tick += 1;
        self.tick
    }

    fn note(&mut self, tick: u64, kind: EventKind) {
        keep(&mut self.global, GLOBAL_MAX, Event { tick, kind });
    }

    fn sector(&mut self, sector: u64) -> &mut Sector {
        &mut self.sectors[(sector - self.first) as usize]
    }

    fn begin(&mut self) -> u64 {
        let tick = self.now();
        *self.active.entry(tick).or_default() += 1;
        tick
    }

    fn end(&mut self, begun: u64) {
        self.active.remove(&begun);
    }

    /// A connection or an open file is about to be made; its number.
    pub fn open(&mut self) -> u64 {
        let tick = self.now();
        self.last_opener += 1;
        self.note(tick, EventKind::Opened { by: self.last_opener });
        self.last_opener
    }

    /// A write is about to be sent; its number, with which its data are made.
    pub fn write_begins(&mut self, by: u64, sector: u64, count: u64, kind: Kind, fua: bool) -> u64 {
        let begun = self.begin();
        self.last_write += 1;
        let write = self.last_write;
        let version = Version {
            write,
            kind,
            begun,
            ended: NEVER,
            outcome: None,
            fua,
            durable: false,
            superseded_by: None,
        };
        self.counts.written += count;
        for at in sector..sector + count {
            let sector = self.sector(at);
            sector.versions.push(version);
            let begins = EventKind::Begun { write, kind, fua, by };
            keep(&mut sector.trace, TRACE_MAX, Event { tick: begun, kind: begins });
        }
        if let Some(origin) = &mut self.origin {
            origin.write_begins(&version, sector, count);
        }
        write
    }

    /// Its answer has come.
    pub fn write_ends(&mut self, write: u64, sector: u64, count: u64, outcome: Outcome) {
        let tick = self.now();
        self.counts.writes_failed += u64::from(outcome == Outcome::Failed);
        let mut begun = None;
        for at in sector..sector + count {
            let sector = self.sector(at);
            // After a crash there may be no version left to tell about.
            if let Some(version) = sector.versions.iter_mut().find(|v| v.write == write) {
                begun = Some(version.begun);
                version.ended = tick;
                version.outcome = Some(outcome);
                version.durable = version.fua && outcome == Outcome::Done;
            }
            keep(
                &mut sector.trace,
                TRACE_MAX,
                Event { tick, kind: EventKind::Ended { write, outcome } },
            );
        }
        if let Some(begun) = begun {
            self.end(begun);
        }
        for at in sector..sector + count {
            self.prune(at);
        }
        if let Some(origin) = &mut self.origin {
            origin.write_ends(write, tick, outcome, sector, count);
        }
    }

    /// The tick of now: what is sent next is sent after it.
    pub fn tick(&self) -> u64 {
        self.tick
    }

    /// A request that `by` sent at the tick `sent` was answered.
    pub fn answered(&mut self, by: u64, sent: u64) {
        let now = self.tick;
        self.first_answers.entry(by).or_insert(now);
        let answers = self.answers.entry(by).or_default();
        keep(answers, ANSWERS_MAX, (sent, now));
    }

    /// From when on an opener must get each error. A program that is slow to take a connection
    /// knows nothing of it before its first request.
    fn first_answer(&self, by: u64) -> u64 {
        self.first_answers.get(&by).copied().unwrap_or(NEVER)
    }

    /// Whether what `by` sent at `sent` had certainly reached the program before it was told of
    /// `failed`: a connection is read in order, and a later request of it was answered before the
    /// first loss that may have been told.
    fn reached_before(&self, by: u64, sent: u64, failed: &FailedFlush) -> bool {
        let earlier = self.failed.iter().filter(|f| f.by == by && f.ended < failed.begun);
        let told = earlier.map(|f| f.begun).max().unwrap_or(self.first_answer(by));
        let Some(loss) = self.losses.iter().find(|loss| **loss > told) else { return false };
        let answers = self.answers.get(&by);
        answers.is_some_and(|all| all.iter().any(|(later, at)| *later > sent && at < loss))
    }

    /// A read is about to be sent; when it begins.
    pub fn read_begins(&mut self) -> u64 {
        self.begin()
    }

    /// It failed.
    pub fn read_fails(&mut self, begun: u64) {
        self.end(begun);
        self.counts.reads_failed += 1;
    }

    /// It has found these contents from `sector` on.
    pub fn read_ends(&mut self, begun: u64, sector: u64, contents: &[Content]) {
        let ended = self.now();
        self.end(begun);
        for (content, at) in contents.iter().zip(sector..) {
            self.found(at, *content, begun, ended);
        }
    }

    /// Who asked has gone. So has who wrote: what became of a write nobody knows (AT-J4).
    pub fn read_is_left(&mut self, begun: u64) {
        self.end(begun);
    }

    /// Who asked has gone, and with it perhaps the news of a loss.
    pub fn flush_is_left(&mut self, by: u64, begun: u64) {
        let ended = self.now();
        self.failed.push(FailedFlush { by, begun, ended });
    }

    /// A FLUSH is about to be sent; when it begins.
    pub fn flush_begins(&mut self) -> u64 {
        self.now()
    }

    /// Its answer has come.
    pub fn flush_ends(&mut self, by: u64, begun: u64, outcome: Outcome) {
        let ended = self.now();
        self.note(ended, EventKind::FlushEnded { by, since: begun, outcome });
        if outcome == Outcome::Failed {
            self.counts.flushes_failed += 1;
            self.failed.push(FailedFlush { by, begun, ended });
            return;
        }
        self.counts.flushes += 1;
        if let Some(origin) = &mut self.origin {
            origin.flushed(begun, ended);
        }
        let since = self.told(by, begun);
        let until = self.covered.entry(since).or_default();
        *until = begun.max(*until);
    }

    /// Up to when `by` was told, before a FLUSH of its own began, that something may be lost.
    fn told(&self, by: u64, flush_begun: u64) -> u64 {
        let first_answer = self.first_answer(by);
        let told = self.failed.iter().filter(|f| {
            // Whoever comes later hears only of what nobody has heard.
            let before = f.begun < first_answer;
            let told = match self.rules.error_scope {
                // The program may tell of it before it takes this FLUSH from the socket.
                ErrorScope::Each => {
                    let certain = f.ended >= flush_begun && self.reached_before(by, flush_begun, f);
                    f.by == by && !certain
                }
                ErrorScope::Device => f.begun < flush_begun,
            };
            before || told
        });
        // An order under way may have heard it, and is yet to say so.
        let lost_since = |order: &u64| *order < self.last_loss;
        if self.rules.error_scope == ErrorScope::Device && self.orders.iter().any(lost_since) {
            return flush_begun;
        }
        told.map(|f| f.ended).max().unwrap_or(0)
    }

    /// The operator is about to give an order; when.
    pub fn order_begins(&mut self) -> u64 {
        let tick = self.now();
        self.orders.push(tick);
        tick
    }

    /// It has ended. One that has failed may have heard what a device tells once.
    pub fn order_ends(&mut self, begun: u64, outcome: Outcome) {
        let ended = self.now();
        self.orders.retain(|o| *o != begun);
        if outcome == Outcome::Failed {
            self.note(ended, EventKind::OrderFailed);
            if self.rules.error_scope == ErrorScope::Device {
                self.failed.push(FailedFlush { by: 0, begun, ended });
            }
        }
    }

    /// The table that is loaded may go live from now on.
    pub fn loading_begins(&mut self) {
        self.loading = self.rules.forgets_when_loaded;
    }

    /// It has, or has not.
    pub fn loading_ends(&mut self) {
        if std::mem::take(&mut self.loading) {
            self.loss();
        }
    }

    /// The operator has given up, with a token, what a device holds and is not durable.
    pub fn given_up(&mut self) {
        self.given_up = self.now();
    }

    /// A disk is about to lose unflushed data in a FLUSH that fails.
    pub fn loss(&mut self) {
        let tick = self.now();
        self.last_loss = tick;
        keep(&mut self.losses, LOSSES_MAX, tick);
        self.note(tick, EventKind::Loss);
    }

    /// The program was killed, and with it whatever was under way. Nothing runs at the moment.
    pub fn crash(&mut self, power: bool) {
        let tick = self.now();
        self.note(tick, EventKind::Crash { power });
        self.settle_all(tick);
    }

    /// The program has ended as asked, or the device was removed; nothing runs at the moment.
    pub fn orderly_end(&mut self) {
        let tick = self.now();
        self.note(tick, EventKind::OrderlyEnd);
        for index in 0..self.sectors.len() {
            self.mark_durable(index);
            let given_up = |v: &&mut Version| !v.durable && v.begun < self.given_up;
            for v in self.sectors[index].versions.iter_mut().filter(given_up) {
                v.outcome = Some(Outcome::Failed); // AT-J4: it may be there or not
            }
        }
        self.covered.insert(0, tick); // AT-J3
        if let Some(origin) = &mut self.origin {
            origin.flushed(tick, tick);
        }
        self.settle_all(tick);
    }

    /// What the origin alone holds at the moment, or would after a power cut.
    pub fn judge_origin(&mut self, contents: &[Content]) {
        if let Some(origin) = &mut self.origin {
            self.counts.origins += 1;
            self.counts.violations += origin.judge(contents);
        }
    }

    /// What is allowed now is what all versions that are left have in common: nobody knows.
    fn settle_all(&mut self, tick: u64) {
        for index in 0..self.sectors.len() {
            self.mark_durable(index);
            let versions = &self.sectors[index].versions;
            let mut allowed: Vec<Version> =
                versions.iter().filter(|v| !is_durably_superseded(v, versions)).copied().collect();
            if allowed.is_empty() {
                // A read has found what a disk had lost, and a later FLUSH vouches for the loss:
                // only what it vouches for is right.
                allowed = versions.iter().filter(|v| v.durable).copied().collect();
            }
            let settled = allowed.into_iter().map(|v| Version {
                ended: tick,
                outcome: Some(Outcome::Done),
                superseded_by: None,
                ..v
            });
            self.sectors[index].versions = settled.collect();
        }
        if let Some(origin) = &mut self.origin {
            origin.crashed(tick);
        }
        self.active.clear();
        self.failed.clear();
        self.orders.clear();
        self.covered.clear();
        self.first_answers.clear();
        self.last_loss = 0;
        self.given_up = 0;
    }

    /// Marks what is durable by now.
    fn mark_durable(&mut self, index: usize) {
        for v in &mut self.sectors[index].versions {
            if v.durable || v.outcome != Some(Outcome::Done) {
                continue;
            }
            v.durable = self.covered.range(..=v.begun).any(|(_, until)| *until > v.ended);
        }
    }

    fn at_risk(&self, v: &Version) -> bool {
        let lost = self.rules.loss_is_visible && v.begun < self.last_loss;
        !v.durable && (lost || self.loading)
    }

    /// Whether a read that begins at `begun` can't find `v` any more.
    fn is_superseded(&self, v: &Version, versions: &[Version], begun: u64) -> bool {
        versions.iter().any(|w| {
            if w.write == v.write || w.outcome == Some(Outcome::Failed) || self.at_risk(w) {
                return false;
            }
            let replaced = w.outcome.is_some() && v.ended < w.begun && w.ended < begun;
            let superseded_by = v.superseded_by.is_some_and(|(by, at)| by == w.write && at < begun);
            replaced || superseded_by
        })
    }

    fn found(&mut self, at: u64, content: Content, begun: u64, ended: u64) {
        self.counts.judged += 1;
        let index = (at - self.first) as usize;
        self.mark_durable(index);
        let event = Event { tick: ended, kind: EventKind::Found { content, since: begun } };
        keep(&mut self.sectors[index].trace, TRACE_MAX, event);
        let versions = &self.sectors[index].versions;
        let allowed: Vec<Version> =
            versions.iter().filter(|v| !self.is_superseded(v, versions, begun)).copied().collect();
        let is = |v: &Version| match (content, v.kind) {
            (Content::Write(write), Kind::Data) => v.write == write,
            (Content::Zeroes, Kind::Zeroes) => true,
            (Content::Write(_) | Content::Zeroes, Kind::Discard) => true, // AT-J5
            _ => false,
        };
        let found: Vec<Version> = allowed.iter().filter(|v| is(v)).copied().collect();
        match found.as_slice() {
            [] => self.violated(at, content, (begun, ended), allowed),
            [one] if one.kind != Kind::Discard => self.supersede(index, *one, begun, ended),
            _ => {} // which of them it was is not known
        }
    }

    /// A read has found `found`: what had ended before is over, unless something is undefined.
    fn supersede(&mut self, index: usize, found: Version, begun: u64, ended: u64) {
        if found.outcome == Some(Outcome::Failed) {
            return; // AT-J4
        }
        for v in &mut self.sectors[index].versions {
            let certain = v.outcome == Some(Outcome::Done) && v.ended < begun;
            if v.write != found.write && certain && v.superseded_by.is_none() {
                v.superseded_by = Some((found.write, ended));
            }
        }
    }

    fn violated(&mut self, at: u64, content: Content, read: (u64, u64), allowed: Vec<Version>) {
        self.counts.violations += 1;
        if self.violations.len() == KEPT {
            return;
        }
        let sector = &self.sectors[(at - self.first) as usize];
        let mut events: Vec<Event> = sector.trace.iter().copied().collect();
        let from = events.first().map_or(0, |e| e.tick);
        events.extend(self.global.iter().filter(|e| e.tick > from));
        events.sort_by_key(|e| e.tick);
        let versions = sector.versions.clone();
        self.violations.push(Violation { sector: at, content, read, allowed, versions, events });
    }

    /// Forgets what no read and no crash can show any more.
    fn prune(&mut self, at: u64) {
        let index = (at - self.first) as usize;
        if self.sectors[index].versions.len() <= PRUNE_ABOVE {
            return;
        }
        self.mark_durable(index);
        let oldest = self.active.keys().next().copied().unwrap_or(NEVER);
        let versions = &self.sectors[index].versions;
        let gone = |v: &Version| {
            versions.iter().any(|w| {
                let settled = w.durable && w.ended < oldest && v.ended <= w.begun;
                settled && w.write != v.write
            })
        };
        let left = versions.iter().filter(|v| !gone(v)).copied().collect();
        self.sectors[index].versions = left;
    }
}

/// Whether a durable version is newer than `v`: then no crash can show `v`.
fn is_durably_superseded(v: &Version, versions: &[Version]) -> bool {
    versions.iter().any(|w| {
        let newer = v.ended <= w.begun || v.superseded_by.is_some_and(|(by, _)| by == w.write);
        w.durable && w.write != v.write && newer
    })
}

fn keep<T>(events: &mut VecDeque<T>, max: usize, event: T) {
    if events.len() == max {
        events.pop_front();
    }
    events.push_back(event);
}

#[cfg(test)]
#[path = "judge_tests.rs"]
mod tests;
