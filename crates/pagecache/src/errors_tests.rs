// SPDX-License-Identifier: Apache-2.0 OR MIT
//! Which opener gets which error.
use super::*;

const A: Opener = Opener(1);
const B: Opener = Opener(2);
const C: Opener = Opener(3);

fn error(cause: Status) -> IoError {
    IoError { device: "disk".into(), op: block::Op::Write, sector: block::Sector(8), cause }
}

fn fail(errors: &Errors) {
    errors.write_failed(error(Status::Io));
}

/// A FLUSH that is submitted and ends at once.
fn flush(errors: &Errors, opener: Opener) -> Result<(), Status> {
    errors.outcome(opener, errors.sample(opener), Ok(()))
}

#[test]
fn each_opener_that_existed_before_an_error_gets_it_once() {
    let errors = Errors::default();
    errors.register(A);
    errors.register(B);
    fail(&errors);
    assert_eq!(flush(&errors, A), Err(Status::Io));
    assert_eq!(flush(&errors, A), Ok(()));
    errors.register(C);
    assert_eq!(flush(&errors, C), Ok(()), "it came later, and another opener has got it");
    assert_eq!(flush(&errors, B), Err(Status::Io));
    assert_eq!(flush(&errors, B), Ok(()));
}

#[test]
fn a_new_opener_gets_an_error_that_no_opener_has_got() {
    let errors = Errors::default();
    fail(&errors);
    errors.register(A);
    errors.flush_failed(error(Status::Timeout));
    assert_eq!(flush(&errors, A), Err(Status::Timeout), "the last one");
    assert_eq!(flush(&errors, B), Ok(()));
    assert_eq!((errors.count(), errors.flush_errors()), (2, 1));
}

/// A client that connects again after a failed flush below, which another opener has got, gets it
/// in the place of the opener that it was. After a failed write it does not.
#[test]
fn a_client_that_reconnects_gets_the_error_of_a_failed_flush() {
    let errors = Errors::default();
    errors.changed(A);
    errors.register(B);
    fail(&errors);
    assert_eq!(flush(&errors, B), Err(Status::Io));
    assert_eq!(flush(&errors, C), Ok(()));
    errors.flush_failed(error(Status::Timeout));
    assert_eq!(flush(&errors, B), Err(Status::Timeout));
    let again = Opener(4);
    assert_eq!(flush(&errors, again), Err(Status::Timeout));
    assert_eq!(flush(&errors, again), Ok(()));
}
