// SPDX-License-Identifier: Apache-2.0 OR MIT
//! Who hears of an error, when failed pages are tried again, and when a cache is stuck.
use proptest::prelude::*;

use super::*;

const A: Opener = Opener(1);
const B: Opener = Opener(2);
const C: Opener = Opener(3);
const MS: u64 = 1_000_000;

fn error(cause: Status) -> IoError {
    IoError { device: "disk".into(), op: block::Op::Write, sector: block::Sector(8), cause }
}

fn fail(errors: &Errors, at_ms: u64, pages: Range<u64>) {
    errors.write_failed(error(Status::Io), Nanos(at_ms * MS), &[pages]);
}

/// A FLUSH that is submitted and ends at once.
fn hear(errors: &Errors, opener: Opener) -> Result<(), Status> {
    errors.outcome(opener, errors.sample(opener), Ok(()))
}

#[test]
fn each_opener_that_was_there_before_an_error_hears_of_it_once() {
    let errors = Errors::default();
    errors.note(A);
    errors.note(B);
    fail(&errors, 0, 0..1);
    assert_eq!(hear(&errors, A), Err(Status::Io));
    assert_eq!(hear(&errors, A), Ok(()));
    errors.note(C);
    assert_eq!(hear(&errors, C), Ok(()), "it came later, and somebody has heard");
    assert_eq!(hear(&errors, B), Err(Status::Io));
    assert_eq!(hear(&errors, B), Ok(()));
}

#[test]
fn who_comes_after_an_error_that_nobody_has_heard_of_hears_of_it() {
    let errors = Errors::default();
    fail(&errors, 0, 0..1);
    errors.note(A);
    errors.flush_failed(error(Status::Timeout));
    assert_eq!(hear(&errors, A), Err(Status::Timeout), "the last one");
    assert_eq!(hear(&errors, B), Ok(()));
    assert_eq!((errors.count(), errors.flush_errors()), (2, 1));
}

/// A client that connects again after a failed flush below, of which another one has been told, is
/// told in the place of the opener that it was; one that comes after a failed write is not.
#[test]
fn who_connects_again_hears_of_what_was_lost() {
    let errors = Errors::default();
    errors.changed(A);
    errors.note(B);
    fail(&errors, 0, 0..1);
    assert_eq!(hear(&errors, B), Err(Status::Io));
    assert_eq!(hear(&errors, C), Ok(()));
    errors.flush_failed(error(Status::Timeout));
    assert_eq!(hear(&errors, B), Err(Status::Timeout));
    let again = Opener(4);
    assert_eq!(hear(&errors, again), Err(Status::Timeout));
    assert_eq!(hear(&errors, again), Ok(()));
}

#[test]
fn retries_come_later_each_time_up_to_ten_seconds() {
    let errors = Errors::default();
    let (mut now, mut pauses) = (1000, Vec::new());
    fail(&errors, now, 0..4);
    for _ in 0..9 {
        let at = errors.retry_at().unwrap().0 / MS;
        pauses.push(at - now);
        now = at;
        errors.retry_begins(Nanos(now * MS));
        fail(&errors, now, 0..2);
        fail(&errors, now, 2..4);
    }
    assert_eq!(pauses, [100, 200, 400, 800, 1600, 3200, 6400, 10_000, 10_000]);
    errors.settled(&(0..4));
    assert_eq!(errors.retry_at(), None);
    fail(&errors, now, 0..1);
    assert_eq!(errors.retry_at(), Some(Nanos((now + 100) * MS)), "from the beginning");
}

#[test]
fn it_is_stuck_when_nothing_is_written_between_failure_and_retry() {
    let errors = Errors::default();
    fail(&errors, 0, 0..1);
    fail(&errors, 99, 1..2);
    assert!(errors.is_failing() && !errors.is_stuck());
    fail(&errors, 100, 0..1);
    assert!(errors.is_stuck());
    errors.write_done();
    assert!(!errors.is_stuck());
    fail(&errors, 500, 0..1);
    assert!(!errors.is_stuck());
    errors.settled(&(0..2));
    assert!(!errors.is_failing());
    assert_eq!(errors.failing(), None);
}

proptest! {
    #[test]
    fn pages_are_as_a_list_of_flags(
        changes in prop::collection::vec((any::<bool>(), 0u64..40, 1u64..12), 1..60)
    ) {
        let (mut pages, mut flags) = (Pages::default(), [false; 64]);
        for (insert, from, len) in changes {
            let range = from..from + len;
            if insert { pages.insert(&range) } else { pages.remove(&range) }
            range.for_each(|page| flags[usize::try_from(page).unwrap()] = insert);
            prop_assert_eq!(pages.count, flags.iter().filter(|f| **f).count() as u64);
            let mut ends = None;
            for (from, to) in &pages.ends {
                prop_assert!(from < to && ends.is_none_or(|end| end < *from));
                ends = Some(*to);
            }
            for page in 0..64 {
                let next = (page..64).find(|p| flags[usize::try_from(*p).unwrap()]);
                prop_assert_eq!(pages.next(page).map(|r| r.start.max(page)), next);
            }
        }
    }
}
