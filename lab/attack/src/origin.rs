// SPDX-License-Identifier: Apache-2.0 OR MIT
//! The judge of the origin of an `ordered` cache without its cache: its content must be one that a
//! plain disk could have after a power cut.
//!
//! ```text
//!   client   ── a ── b ── FLUSH ══════ done ── c ── d ── FLUSH ...
//!   origin   no c, no d                     anything of a and b, or nothing
//!            c or d is there                all of a and b, or newer ones of their sectors
//! ```
//!
//! Invariants
//! - AT-OR1 Where the origin holds a write that began after a FLUSH had succeeded, each sector
//!   holds the newest version that had ended when that FLUSH began, a concurrent or a newer one.
//! - AT-OR2 Where the origin holds a write that began after a FUA write had ended, each sector of
//!   the FUA write holds that write, a concurrent or a newer one.
//! - AT-OR3 The origin does not go back: what AT-OR1 and AT-OR2 once required stays required.
//! - AT-OR4 After a crash, what no FLUSH had covered may be there or not.
//!
//! A sector of zeroes may be the result of any zeroing of it: the judge assumes the one that
//! requires the least.

use std::collections::BTreeMap;

use crate::history::{Kind, NEVER, Outcome, Version};
use crate::pattern::Content;

/// Findings kept for the report.
const KEPT: usize = 5;

/// One version of a sector.
#[derive(Clone, Copy, Debug)]
struct Written {
    write: u64,
    kind: Kind,
    begun: u64,
    ended: u64,
    done: bool,
    fua: bool,
    /// Between which crashes.
    life: u64,
}

#[derive(Clone, Copy, Debug)]
struct Flushed {
    life: u64,
    begun: u64,
    ended: u64,
}

/// See the module.
#[derive(Debug)]
pub struct Origin {
    first: u64,
    sectors: Vec<Vec<Written>>,
    flushes: Vec<Flushed>,
    life: u64,
    /// Beginning of the newest write that was certainly there at some time (AT-OR3).
    floor: u64,
    /// What was found, in words.
    pub found: Vec<String>,
}

impl Origin {
    /// A blank origin of which sectors `first..first + count` are used.
    pub fn new(first: u64, count: u64) -> Origin {
        let blank = Written {
            write: 0,
            kind: Kind::Zeroes,
            begun: 0,
            ended: 0,
            done: true,
            fua: true,
            life: 0,
        };
        Origin {
            first,
            sectors: vec![vec![blank]; count as usize],
            flushes: Vec::new(),
            life: 0,
            floor: 0,
            found: Vec::new(),
        }
    }

    fn of(&mut self, sector: u64, count: u64) -> &mut [Vec<Written>] {
        let start = (sector - self.first) as usize;
        &mut self.sectors[start..start + count as usize]
    }

    /// A change is about to be sent.
    pub fn write_begins(&mut self, version: &Version, sector: u64, count: u64) {
        let Version { write, kind, begun, fua, .. } = *version;
        let life = self.life;
        let written = Written { write, kind, begun, ended: NEVER, done: false, fua, life };
        self.of(sector, count).iter_mut().for_each(|s| s.push(written));
    }

    /// Its answer has come.
    pub fn write_ends(&mut self, write: u64, at: u64, how: Outcome, sector: u64, count: u64) {
        let life = self.life;
        for versions in self.of(sector, count) {
            let ours = |v: &&mut Written| v.write == write && v.life == life;
            if let Some(version) = versions.iter_mut().rev().find(ours) {
                version.done = how == Outcome::Done;
                // What has failed may yet be there in part, at any time before the next crash.
                version.ended = if version.done { at } else { NEVER };
            }
        }
    }

    /// A FLUSH has succeeded, or an orderly end that is one.
    pub fn flushed(&mut self, begun: u64, ended: u64) {
        self.flushes.push(Flushed { life: self.life, begun, ended });
    }

    /// The program has ended, one way or the other.
    pub fn crashed(&mut self, tick: u64) {
        let life = self.life;
        for version in self.sectors.iter_mut().flatten().filter(|v| v.life == life) {
            version.ended = version.ended.min(tick);
        }
        self.life += 1; // AT-OR4: a FLUSH asks only for what its own life has written
    }

    /// By life: what ended before this has to be there, where a write of `newest` is.
    fn required(&self, newest: u64) -> BTreeMap<u64, u64> {
        let mut required = BTreeMap::new();
        for flush in self.flushes.iter().filter(|f| f.ended < newest) {
            let until: &mut u64 = required.entry(flush.life).or_default();
            *until = flush.begun.max(*until);
        }
        required
    }

    /// Judges what all sectors hold; how many hold what they must not.
    pub fn judge(&mut self, contents: &[Content]) -> u64 {
        let mut picks = vec![0; self.sectors.len()];
        let mut wrong = BTreeMap::new();
        let mut newest = self.floor;
        let mut reason = None;
        for (index, content) in contents.iter().enumerate() {
            match next_of(&self.sectors[index], *content, 0) {
                Some(pick) => {
                    picks[index] = pick;
                    let begun = self.sectors[index][pick].begun;
                    if begun > newest {
                        (newest, reason) = (begun, Some(index));
                    }
                }
                None => {
                    wrong.insert(index, "of no version that may be there".to_owned());
                }
            }
        }
        loop {
            let before = newest;
            let required = self.required(newest);
            for (index, content) in contents.iter().enumerate() {
                let versions = &self.sectors[index];
                if wrong.contains_key(&index) {
                    continue;
                }
                let Some(asked) = newest_asked(versions, &required, newest) else { continue };
                // The least that is enough: from the oldest version on that looks so.
                let mut pick = Some(picks[index]);
                while let Some(at) = pick.filter(|at| versions[*at].ended < asked.begun) {
                    pick = next_of(versions, *content, at + 1);
                }
                let Some(pick) = pick else {
                    let seen = reason.map(|i: usize| (i, self.sectors[i][picks[i]]));
                    wrong.insert(index, self.told(&asked, seen, newest));
                    continue;
                };
                picks[index] = pick;
                if versions[pick].begun > newest {
                    (newest, reason) = (versions[pick].begun, Some(index));
                }
            }
            if newest == before {
                break;
            }
        }
        for (index, what) in wrong.iter().take(KEPT - self.found.len().min(KEPT)) {
            let sector = self.first + *index as u64;
            let holds = contents[*index];
            let place = format!("the origin alone holds {holds:?} in sector {sector}");
            self.found.push(format!("VIOLATION: {place}, {what}"));
        }
        if wrong.is_empty() {
            self.floor = newest;
            self.forget();
        }
        wrong.len() as u64
    }

    fn told(&self, asked: &Written, seen: Option<(usize, Written)>, newest: u64) -> String {
        let flush = self
            .flushes
            .iter()
            .filter(|f| f.ended < newest && f.life == asked.life && f.begun > asked.ended);
        let by = match flush.min_by_key(|f| f.begun) {
            Some(f) => format!("a FLUSH [{}..{}]", f.begun, f.ended),
            None => "its FUA".to_owned(),
        };
        let seen = match seen {
            Some((index, v)) => {
                let sector = self.first + index as u64;
                format!("write {} of sector {sector} [{}..]", v.write, v.begun)
            }
            None => "a newer write, some time ago,".to_owned(),
        };
        format!(
            "older than write {} [{}..{}], which {by} ordered before {seen}, which is there",
            asked.write, asked.begun, asked.ended
        )
    }

    /// Forgets what no origin that is right can show any more.
    fn forget(&mut self) {
        let required = self.required(self.floor);
        let floor = self.floor;
        for versions in &mut self.sectors {
            if let Some(asked) = newest_asked(versions, &required, floor) {
                versions.retain(|v| v.ended >= asked.begun);
            }
        }
        self.flushes.retain(|f| f.ended >= floor || required.get(&f.life) == Some(&f.begun));
    }
}

/// The next version, from an index on, of which this may be the content.
fn next_of(versions: &[Written], content: Content, from: usize) -> Option<usize> {
    let is = |v: &Written| match content {
        Content::Write(write) => v.kind == Kind::Data && v.write == write,
        Content::Zeroes => v.kind != Kind::Data,
        Content::Foreign { .. } | Content::Mixed { .. } => false,
    };
    (from..versions.len()).find(|at| is(&versions[*at]))
}

/// The newest version that must be there, or a newer one (AT-OR1, AT-OR2).
fn newest_asked(
    versions: &[Written],
    required: &BTreeMap<u64, u64>,
    newest: u64,
) -> Option<Written> {
    let asked = |v: &&Written| {
        let flushed = required.get(&v.life).is_some_and(|until| v.ended < *until);
        v.done && (flushed || v.fua && v.ended < newest)
    };
    versions.iter().rev().find(asked).copied()
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::history::{ErrorScope, Rules};
    use crate::judge::Judge;

    const RULES: Rules = Rules {
        error_scope: ErrorScope::Device,
        loss_is_visible: false,
        forgets_when_loaded: false,
    };

    /// Sectors 100 to 103, and what was asked of them.
    struct Case(Judge);

    impl Case {
        fn new() -> Case {
            let mut judge = Judge::new(RULES, 100, 4);
            judge.origin = Some(Origin::new(100, 4));
            judge.open();
            Case(judge)
        }
        fn change(&mut self, sector: u64, count: u64, kind: Kind, fua: bool) -> u64 {
            let write = self.0.write_begins(1, sector, count, kind, fua);
            self.0.write_ends(write, sector, count, Outcome::Done);
            write
        }
        fn write(&mut self, sector: u64) -> Content {
            Content::Write(self.change(sector, 1, Kind::Data, false))
        }
        fn flush(&mut self) {
            let begun = self.0.flush_begins();
            self.0.flush_ends(1, begun, Outcome::Done);
        }
        /// Whether the origin may hold that.
        fn may_hold(&mut self, contents: [Content; 4]) -> bool {
            let before = self.0.counts.violations;
            self.0.judge_origin(&contents);
            self.0.counts.violations == before
        }
    }

    const NO: Content = Content::Zeroes;

    #[test]
    fn what_no_flush_has_parted_may_be_there_in_any_part() {
        let mut case = Case::new();
        let (a, b) = (case.write(100), case.write(101));
        assert!(case.may_hold([NO, NO, NO, NO]));
        assert!(case.may_hold([NO, b, NO, NO]));
        assert!(case.may_hold([a, NO, NO, NO]));
    }

    #[test]
    fn what_comes_after_a_flush_asks_for_all_before_it() {
        let mut case = Case::new();
        let (a, b) = (case.write(100), case.write(101));
        case.flush();
        let c = case.write(102);
        assert!(case.may_hold([a, NO, NO, NO]));
        assert!(case.may_hold([a, b, NO, NO]));
        assert!(!case.may_hold([a, NO, c, NO]));
        assert!(case.may_hold([a, b, c, NO]));
        assert!(!case.may_hold([a, NO, NO, NO]), "it has gone back");
    }

    #[test]
    fn a_newer_version_of_a_sector_stands_for_the_older_one() {
        let mut case = Case::new();
        let a = case.write(100);
        case.flush();
        let (newer, c) = (case.write(100), case.write(102));
        assert!(case.may_hold([newer, NO, c, NO]));
        assert!(case.may_hold([a, NO, c, NO]));
    }

    #[test]
    fn a_write_beside_a_flush_belongs_before_it_or_behind_it() {
        let mut case = Case::new();
        let a = case.0.write_begins(1, 100, 1, Kind::Data, false);
        case.flush();
        case.0.write_ends(a, 100, 1, Outcome::Done);
        let c = case.write(102);
        assert!(case.may_hold([NO, NO, c, NO]));
        assert!(case.may_hold([Content::Write(a), NO, c, NO]));
    }

    #[test]
    fn fua_orders_itself_before_what_comes_later() {
        let mut case = Case::new();
        let a = case.write(100);
        let f = Content::Write(case.change(101, 1, Kind::Data, true));
        let c = case.write(102);
        assert!(!case.may_hold([a, NO, c, NO]));
        assert!(case.may_hold([NO, f, c, NO]));
    }

    #[test]
    fn zeroes_are_the_ones_that_ask_for_least() {
        let mut case = Case::new();
        let a = case.write(100);
        case.flush();
        case.change(101, 3, Kind::Zeroes, false);
        assert!(case.may_hold([NO, NO, NO, NO]), "the blank ones");
        let b = case.write(101);
        case.flush();
        case.change(101, 1, Kind::Zeroes, false);
        let c = case.write(102);
        assert!(!case.may_hold([NO, NO, c, NO]), "without what came first");
        assert!(!case.may_hold([NO, b, c, NO]));
        assert!(case.may_hold([a, NO, c, NO]), "the last ones");
    }

    #[test]
    fn a_crash_leaves_what_was_not_flushed_in_doubt() {
        let mut case = Case::new();
        let a = case.write(100);
        case.flush();
        case.write(101);
        case.0.crash(true);
        case.0.open();
        case.flush();
        let c = case.write(102);
        assert!(case.may_hold([a, NO, c, NO]));
        assert!(!case.may_hold([NO, NO, c, NO]));
    }

    #[test]
    fn what_failed_or_was_not_answered_may_be_there_or_not() {
        let mut case = Case::new();
        let failed = case.0.write_begins(1, 100, 1, Kind::Data, false);
        case.0.write_ends(failed, 100, 1, Outcome::Failed);
        let cut = case.0.write_begins(1, 101, 1, Kind::Data, true);
        case.flush();
        let c = case.write(102);
        assert!(case.may_hold([NO, NO, c, NO]));
        assert!(case.may_hold([Content::Write(failed), Content::Write(cut), c, NO]));
    }

    #[test]
    fn what_nobody_has_written_is_never_right() {
        let mut case = Case::new();
        assert!(!case.may_hold([Content::Mixed { write: 1, words: 3 }, NO, NO, NO]));
        assert!(!case.may_hold([Content::Write(7), NO, NO, NO]));
    }
}
