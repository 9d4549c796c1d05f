// SPDX-License-Identifier: Apache-2.0 OR MIT
//! Histories made by hand: which the judge must flag, and which it must not.

use super::*;

const STRICT: Rules =
    Rules { error_scope: ErrorScope::Each, loss_is_visible: false, forgets_when_loaded: false };
const LOSSY: Rules =
    Rules { error_scope: ErrorScope::Each, loss_is_visible: true, forgets_when_loaded: false };

/// A judge of one sector, with words for what happens to it.
struct Case(Judge);

fn case(rules: Rules) -> Case {
    let mut judge = Judge::new(rules, 100, 4);
    for _ in 0..2 {
        let by = judge.open();
        judge.answered(by, 0);
    }
    Case(judge)
}

impl Case {
    fn begin(&mut self, fua: bool) -> u64 {
        self.0.write_begins(1, 100, 1, Kind::Data, fua)
    }
    fn end(&mut self, write: u64) {
        self.0.write_ends(write, 100, 1, Outcome::Done);
    }
    fn fail(&mut self, write: u64) {
        self.0.write_ends(write, 100, 1, Outcome::Failed);
    }
    fn write(&mut self) -> u64 {
        let write = self.begin(false);
        self.end(write);
        write
    }
    fn flush(&mut self, by: u64, outcome: Outcome) {
        let begun = self.0.flush_begins();
        self.0.flush_ends(by, begun, outcome);
    }
    fn flushed(&mut self) -> u64 {
        let write = self.write();
        self.flush(1, Outcome::Done);
        write
    }
    fn crash(&mut self) {
        self.0.crash(true);
    }
    fn find(&mut self, content: Content) -> bool {
        let before = self.0.counts.violations;
        let begun = self.0.read_begins();
        self.0.read_ends(begun, 100, &[content]);
        self.0.counts.violations == before
    }
    fn finds(&mut self, write: u64) -> bool {
        self.find(Content::Write(write))
    }
}

#[test]
fn a_read_finds_the_last_write_or_a_concurrent_one() {
    let mut case = case(STRICT);
    let (old, new) = (case.write(), case.write());
    assert!(case.finds(new));
    assert!(!case.finds(old));
    assert!(!case.find(Content::Zeroes));
    let begun = case.0.read_begins();
    let late = case.write();
    case.0.read_ends(begun, 100, &[Content::Write(new)]);
    assert_eq!(case.0.counts.violations, 2);
    assert!(!case.finds(new));
    assert!(case.finds(late));
}

#[test]
fn a_read_may_find_what_was_there_when_it_began() {
    let mut case = case(STRICT);
    let old = case.flushed();
    let begun = case.0.read_begins();
    case.flushed();
    case.0.read_ends(begun, 100, &[Content::Write(old)]);
    assert_eq!(case.0.counts.violations, 0, "a newer one was flushed meanwhile, not before");
    assert!(!case.finds(old));
}

#[test]
fn of_concurrent_writes_one_wins_and_stays() {
    let mut case = case(STRICT);
    let (a, b) = (case.begin(false), case.begin(false));
    case.end(b);
    case.end(a);
    assert!(case.finds(b));
    assert!(case.finds(b));
    assert!(!case.finds(a), "a read has found that b was the later one");
}

#[test]
fn nothing_foreign_mixed_or_unknown_is_right() {
    let mut case = case(STRICT);
    let write = case.write();
    assert!(!case.find(Content::Foreign { sector: 101, write }));
    assert!(!case.find(Content::Mixed { write, words: 32 }));
    assert!(!case.finds(write + 7));
}

#[test]
fn a_crash_takes_only_what_was_not_flushed() {
    for (content, right) in [(0, false), (1, true), (2, true), (3, true)] {
        let mut case = case(STRICT);
        let (older, flushed) = (case.write(), case.flushed());
        let (newer, under_way) = (case.write(), case.begin(false));
        case.crash();
        let content = [older, flushed, newer, under_way][content];
        assert_eq!(case.finds(content), right, "{content}");
    }
}

#[test]
fn a_flush_covers_what_had_ended_when_it_began() {
    let mut case = case(STRICT);
    let old = case.flushed();
    let under_way = case.begin(false);
    let flush = case.0.flush_begins();
    case.end(under_way);
    case.0.flush_ends(1, flush, Outcome::Done);
    case.crash();
    assert!(case.finds(old));
}

#[test]
fn fua_is_durable_when_it_has_ended() {
    let mut case = case(STRICT);
    let old = case.flushed();
    let fua = case.begin(true);
    case.end(fua);
    case.crash();
    assert!(!case.finds(old));
    assert!(case.finds(fua));
}

#[test]
fn what_was_found_after_a_crash_stays() {
    let mut case = case(STRICT);
    let (flushed, unflushed) = (case.flushed(), case.write());
    case.crash();
    assert!(case.finds(flushed));
    assert!(!case.finds(unflushed), "lost once, it does not come back");
    case.crash();
    assert!(!case.finds(unflushed), "after another crash neither");
}

#[test]
fn what_survived_by_luck_may_still_be_lost_until_flushed() {
    let mut case = case(STRICT);
    let (flushed, unflushed) = (case.flushed(), case.write());
    case.crash();
    assert!(case.finds(unflushed));
    case.crash();
    assert!(case.finds(flushed));
    case.crash();
    assert!(!case.finds(unflushed));

    let mut case = self::case(STRICT);
    let (flushed, unflushed) = (case.flushed(), case.write());
    case.crash();
    assert!(case.finds(unflushed));
    case.flush(1, Outcome::Done);
    case.crash();
    assert!(!case.finds(flushed));
}

#[test]
fn a_failed_write_leaves_old_or_new_until_rewritten() {
    let mut case = case(STRICT);
    let (older, old) = (case.write(), case.flushed());
    let failed = case.begin(false);
    case.fail(failed);
    assert!(case.finds(old));
    assert!(case.finds(failed));
    assert!(case.finds(old), "undefined until it is written again");
    assert!(!case.finds(older));
    let new = case.write();
    assert!(!case.finds(failed));
    assert!(case.finds(new));
}

#[test]
fn a_failed_flush_tells_its_own_connection_once() {
    let mut case = case(LOSSY);
    let (old, write) = (case.flushed(), case.write());
    case.0.loss();
    case.flush(1, Outcome::Failed);
    case.flush(1, Outcome::Done); // it was told before
    assert!(case.finds(old));
    case.crash();
    assert!(case.finds(old));
    assert!(!case.finds(write), "the read before has settled that it is lost");
}

#[test]
fn a_flush_under_way_beside_a_failed_one_must_not_succeed() {
    // What an attack from outside found in `buffered`: both cover the write, one tells of the loss.
    let mut case = case(LOSSY);
    let (old, write) = (case.flushed(), case.write());
    let (first, second) = (case.0.flush_begins(), case.0.flush_begins());
    // A read that was sent after both was answered: the program has taken both.
    let (sent, read) = (case.0.tick() + 1, case.0.read_begins());
    case.0.read_fails(read);
    case.0.answered(1, sent);
    case.0.loss();
    case.0.flush_ends(1, first, Outcome::Failed);
    case.0.flush_ends(1, second, Outcome::Done);
    case.crash();
    assert!(!case.finds(old));
    assert!(case.finds(write));
}

#[test]
fn a_flush_that_may_have_come_after_the_error_may_succeed() {
    let mut case = case(LOSSY);
    let (old, _) = (case.flushed(), case.write());
    let (first, second) = (case.0.flush_begins(), case.0.flush_begins());
    case.0.loss();
    case.0.flush_ends(1, first, Outcome::Failed);
    case.0.flush_ends(1, second, Outcome::Done);
    case.crash();
    assert!(case.finds(old));
}

/// On a busy machine the program took a connection only after a loss of which it had told all that
/// it knew; the judge took it for one that was there before.
#[test]
fn a_connection_counts_from_its_first_answer() {
    for is_there in [false, true] {
        let mut case = case(LOSSY);
        let late = case.0.open();
        if is_there {
            case.0.answered(late, 0);
        }
        let (old, _) = (case.flushed(), case.write());
        case.0.loss();
        case.flush(1, Outcome::Failed);
        case.flush(late, Outcome::Done);
        case.crash();
        assert_eq!(case.find(Content::Write(old)), !is_there);
    }
}

#[test]
fn each_connection_has_to_be_told() {
    let lost = |rules: Rules, told: &[u64]| {
        let mut case = case(rules);
        let old = case.flushed();
        case.write();
        case.0.loss();
        for by in told {
            case.flush(*by, Outcome::Failed);
        }
        case.flush(2, Outcome::Done);
        case.crash();
        case.finds(old)
    };
    assert!(!lost(LOSSY, &[1]), "the second one was not told");
    assert!(lost(LOSSY, &[1, 2]));
    assert!(lost(Rules { error_scope: ErrorScope::Device, ..LOSSY }, &[1]), "one is told for all");
    assert!(!lost(Rules { error_scope: ErrorScope::Device, ..LOSSY }, &[]), "nobody was told");
}

#[test]
fn losses_are_seen_only_where_a_device_keeps_nothing() {
    for (rules, right) in [(STRICT, false), (LOSSY, true)] {
        let mut case = case(rules);
        let old = case.flushed();
        case.write();
        case.0.loss();
        assert_eq!(case.finds(old), right);
    }
}

#[test]
fn an_orderly_end_is_a_flush() {
    let mut case = case(STRICT);
    let (old, new) = (case.flushed(), case.write());
    case.0.orderly_end();
    case.crash();
    assert!(!case.finds(old));
    assert!(case.finds(new));
}

#[test]
fn a_discard_leaves_zeroes_or_what_was_there() {
    let mut case = case(STRICT);
    let old = case.flushed();
    let discard = case.0.write_begins(1, 100, 1, Kind::Discard, false);
    case.end(discard);
    assert!(case.find(Content::Zeroes));
    assert!(case.finds(old));
    assert!(!case.find(Content::Mixed { write: old, words: 60 }));
    let new = case.flushed();
    assert!(!case.find(Content::Zeroes));
    assert!(case.finds(new));
}

#[test]
fn a_long_history_keeps_what_matters() {
    let mut case = case(STRICT);
    let read = case.0.read_begins();
    let first = case.flushed();
    let writes: Vec<u64> = (0..50).map(|_| case.flushed()).collect();
    case.0.read_ends(read, 100, &[Content::Write(first)]);
    assert_eq!(case.0.counts.violations, 0, "it was concurrent with all of them");
    let last = writes[49];
    for _ in 0..50 {
        case.flushed();
    }
    case.crash();
    assert!(!case.finds(last));
}

#[test]
fn what_a_token_gives_up_an_orderly_end_need_not_have() {
    for gives_up in [false, true] {
        let mut case = case(STRICT);
        let (old, new) = (case.flushed(), case.write());
        if gives_up {
            case.0.given_up();
        }
        let kept = case.0.write_begins(1, 101, 1, Kind::Data, false);
        case.0.write_ends(kept, 101, 1, Outcome::Done);
        case.0.orderly_end();
        assert_eq!(case.finds(old), gives_up);
        assert_eq!(case.finds(new), !gives_up, "the read before has settled it");
        let begun = case.0.read_begins();
        case.0.read_ends(begun, 101, &[Content::Zeroes]);
        assert_eq!(case.0.counts.violations, 2, "it began later");
    }
}
