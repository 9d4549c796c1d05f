// SPDX-License-Identifier: Apache-2.0 OR MIT
//! To which openers errors are reported while clients connect and leave.
use super::*;

const A: u32 = 1;
const B: u32 = 2;
const C: u32 = 3;
const D: u32 = 4;

/// A FLUSH that is submitted and ends at once; whether it fails.
fn fails(errors: &mut ErrSeq<u32>, opener: u32) -> bool {
    let sample = errors.sample(opener);
    let fails = errors.must_report(sample);
    if fails {
        errors.report(opener, sample);
    }
    fails
}

#[test]
fn each_opener_is_told_once_and_a_later_one_is_not() {
    let mut errors = ErrSeq::default();
    errors.note(A);
    errors.note(B);
    errors.raise();
    assert!(fails(&mut errors, A));
    assert!(!fails(&mut errors, A));
    assert!(!fails(&mut errors, C), "it came later, and somebody has been told");
    assert!(fails(&mut errors, B));
    assert!(!fails(&mut errors, B));
    assert_eq!(errors.count(), 1);
}

#[test]
fn an_error_that_nobody_was_told_of_is_told_to_who_comes() {
    let mut errors = ErrSeq::default();
    errors.raise();
    assert!(fails(&mut errors, A));
    assert!(!fails(&mut errors, B));
}

/// Found by an attack from outside: the second FLUSH succeeded, though it should have covered what
/// was lost, because the first one of the same opener had reported the error meanwhile.
#[test]
fn concurrent_flushes_of_one_opener_all_report_an_error() {
    let mut errors = ErrSeq::default();
    errors.changed(A);
    let samples = [errors.sample(A), errors.sample(A)];
    errors.lose(errors.changes());
    for sample in samples {
        assert!(errors.must_report(sample));
        errors.report(A, sample);
    }
    assert!(!fails(&mut errors, A));
}

/// A connection is lost before the loss was reported to its client, which connects again as a new
/// opener.
#[test]
fn a_loss_is_reported_to_a_client_that_connects_again() {
    let mut errors = ErrSeq::default();
    errors.changed(A);
    errors.note(B);
    errors.lose(errors.changes());
    assert!(fails(&mut errors, B));
    errors.note(C); // It comes and goes.
    assert!(fails(&mut errors, D), "in the place of A, after C");
    assert!(!fails(&mut errors, 5), "D was told");
    assert!(fails(&mut errors, A), "it was only idle");
}

#[test]
fn as_many_are_told_as_had_changes_at_risk() {
    let mut errors = ErrSeq::default();
    for opener in 0..10 {
        errors.changed(opener);
    }
    errors.lose(errors.changes());
    assert!(fails(&mut errors, 0));
    let told = (100..120).filter(|&later| fails(&mut errors, later)).count();
    assert_eq!(told, 9);
}

#[test]
fn nobody_takes_the_place_of_one_that_had_nothing_at_risk() {
    let mut errors = ErrSeq::default();
    errors.changed(A);
    errors.note(B);
    errors.durable(errors.changes());
    errors.lose(errors.changes());
    assert!(fails(&mut errors, B));
    assert!(!fails(&mut errors, C), "what A changed was durable");
    errors.changed(A);
    errors.raise();
    assert!(fails(&mut errors, B));
    assert!(!fails(&mut errors, D), "nothing was lost");
}

#[test]
fn an_heir_is_told_of_both_losses_at_once() {
    let mut errors = ErrSeq::default();
    errors.changed(A);
    errors.note(B);
    errors.lose(errors.changes());
    assert!(fails(&mut errors, B));
    errors.changed(C); // In the place of A.
    errors.lose(errors.changes());
    assert!(fails(&mut errors, B));
    assert!(fails(&mut errors, C));
    assert!(!fails(&mut errors, C));
    assert!(fails(&mut errors, D), "A and C had changes at risk the second time");
    assert!(!fails(&mut errors, 5), "C was told itself");
}

#[test]
fn what_was_not_told_is_told_when_all_is_durable() {
    let mut errors = ErrSeq::default();
    errors.changed(A);
    errors.changed(B);
    errors.lose(errors.changes());
    assert!(fails(&mut errors, B));
    errors.durable(errors.changes());
    errors.lose(errors.changes());
    assert!(fails(&mut errors, B));
    assert!(fails(&mut errors, C), "in the place of A");
    assert!(fails(&mut errors, A));
    assert!(!fails(&mut errors, D), "the second time nothing was at risk");
    errors.changed(A);
    errors.lose(errors.changes());
    assert!(fails(&mut errors, B) && fails(&mut errors, 5));
}

/// A FLUSH is under way when its opener changes something; the loss takes both. The FLUSH does not
/// cover the change, so it must not be the one that reports it.
#[test]
fn what_is_lost_beside_a_flush_is_told_by_the_next_one() {
    for other_comes in [false, true] {
        let mut errors = ErrSeq::default();
        errors.changed(A);
        errors.note(B);
        let first = errors.sample(A);
        errors.changed(A);
        errors.lose(errors.changes());
        if other_comes {
            assert!(fails(&mut errors, C), "in the place of A");
        }
        assert!(errors.must_report(first));
        errors.report(A, first);
        assert!(fails(&mut errors, A), "the second change");
        assert!(!fails(&mut errors, A));
        assert!(fails(&mut errors, B));
        assert!(!fails(&mut errors, D), "all were told");
    }
}

#[test]
fn a_flush_that_covers_what_is_lost_tells_for_those_before_it() {
    let mut errors = ErrSeq::default();
    let first = errors.sample(A);
    errors.changed(A);
    let second = errors.sample(A);
    errors.lose(errors.changes());
    for sample in [second, first] {
        assert!(errors.must_report(sample));
        errors.report(A, sample);
    }
    assert!(!fails(&mut errors, A));
    errors.changed(A);
    errors.durable(errors.changes());
    let third = errors.sample(A);
    errors.raise();
    errors.changed(A);
    errors.report(A, third);
    assert!(!fails(&mut errors, A), "nothing was lost this time");
}

#[test]
fn what_no_loss_can_have_taken_needs_no_other_flush() {
    let mut errors = ErrSeq::default();
    errors.changed(A);
    let first = errors.sample(A);
    let below = errors.changes();
    errors.changed(A);
    errors.lose(below);
    errors.report(A, first);
    assert!(!fails(&mut errors, A), "the second change is still above what was lost");
}

#[test]
fn two_losses_beside_a_flush_are_told_by_one_that_covers_both() {
    let mut errors = ErrSeq::default();
    let first = errors.sample(A);
    errors.changed(A);
    errors.lose(errors.changes());
    let second = errors.sample(A);
    errors.changed(A);
    errors.lose(errors.changes());
    for sample in [first, second] {
        errors.report(A, sample);
    }
    assert!(fails(&mut errors, A), "the second loss has what was changed after the second FLUSH");
    assert!(!fails(&mut errors, A));
}

/// Found by the simulation of a leaf's openers, seed 83: one loss was reported, and a
/// FLUSH that came before it was acknowledged reported the next loss; then a third one failed, too.
#[test]
fn a_change_that_was_told_of_needs_no_other_flush() {
    let mut errors = ErrSeq::default();
    let first = errors.sample(A);
    errors.changed(A);
    errors.lose(errors.changes());
    errors.durable(errors.changes());
    assert!(fails(&mut errors, A), "it covers the change");
    errors.raise();
    errors.report(A, first);
    assert!(!fails(&mut errors, A), "it was told of both");
}

/// A write is in flight when data are lost, and is acknowledged after the loss was reported to its
/// opener.
#[test]
fn a_change_in_doubt_is_told_by_a_flush_that_comes_after_it() {
    let mut errors = ErrSeq::default();
    errors.changed(A);
    errors.note(B);
    errors.lose(errors.changes());
    assert!(fails(&mut errors, A) && fails(&mut errors, B));
    let before = errors.sample(A);
    errors.doubt(A);
    assert!(!errors.must_report(before), "it does not cover the change");
    assert!(!fails(&mut errors, B), "not its change");
    assert!(fails(&mut errors, A));
    assert!(!fails(&mut errors, A));
    errors.doubt(A);
    assert!(fails(&mut errors, C), "in the place of A");
    assert!(fails(&mut errors, A), "it was only idle");
    assert!(!fails(&mut errors, D));
}

const MAX: u32 = 4096;

/// Clients that come once; `B` is here between them.
fn many(errors: &mut ErrSeq<u32>, count: u32) {
    for opener in 0..count {
        errors.note(B);
        errors.note(1_000_000 + opener);
    }
    assert!(errors.openers.len() <= OPENERS_MAX);
}

#[test]
fn openers_that_are_here_often_are_remembered() {
    let mut errors = ErrSeq::default();
    errors.note(A);
    many(&mut errors, 2 * MAX);
    errors.raise();
    assert!(fails(&mut errors, C));
    assert!(fails(&mut errors, B));
    assert!(!fails(&mut errors, A), "forgotten, and it has lost nothing");
}

#[test]
fn openers_with_changes_at_risk_are_remembered() {
    let mut errors = ErrSeq::default();
    errors.changed(A);
    many(&mut errors, 3 * MAX);
    errors.lose(errors.changes());
    assert!(fails(&mut errors, B));
    assert!(fails(&mut errors, A));
    many(&mut errors, 3 * MAX);
    assert!(!fails(&mut errors, A) && !fails(&mut errors, B));
}

/// More openers have changes at risk than can be remembered.
#[test]
fn forgotten_openers_are_told_when_they_come_again() {
    for forgotten_first in [true, false] {
        let mut errors = ErrSeq::default();
        for opener in 1000..1000 + MAX {
            errors.changed(opener);
        }
        if forgotten_first {
            many(&mut errors, 1);
            assert!(errors.openers.len() < OPENERS_MAX, "some were forgotten");
        }
        errors.lose(errors.changes());
        many(&mut errors, 1);
        assert!(errors.openers.len() < OPENERS_MAX, "some were forgotten");
        assert!(fails(&mut errors, B));
        let told = (1000..1000 + MAX).filter(|&opener| fails(&mut errors, opener)).count();
        assert_eq!(told, OPENERS_MAX, "each of them");
        let told = (1000..1000 + MAX).filter(|&opener| fails(&mut errors, opener)).count();
        assert!(told <= 2, "once, and in the place of those two that came and sent no FLUSH");
    }
}

#[test]
fn all_are_told_when_each_opener_of_before_is() {
    let mut errors = ErrSeq::default();
    errors.changed(A);
    errors.note(B);
    assert!(errors.all_are_told(), "there is no error");
    errors.lose(1);
    assert!(fails(&mut errors, C), "in the place of A, which may still be there");
    assert!(fails(&mut errors, B));
    assert!(!errors.all_are_told());
    assert!(fails(&mut errors, A));
    assert!(errors.all_are_told());
}

#[test]
fn a_flush_of_nobody_fails_by_later_errors_and_takes_no_report() {
    let mut errors = ErrSeq::default();
    errors.changed(A);
    let before = errors.sample_of_nobody();
    errors.lose(1);
    assert!(errors.must_report(before));
    assert!(!errors.must_report(errors.sample_of_nobody()));
    assert!(fails(&mut errors, B), "in the place of A");
    assert!(!fails(&mut errors, C));
    assert!(fails(&mut errors, A));
}
