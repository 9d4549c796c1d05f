// SPDX-License-Identifier: Apache-2.0 OR MIT
//! Errors of the system as failures of the control API.
use block::ErrorKind;
use control::Failure;

/// The failure of an operation on files or sockets; `what` names the one that failed.
pub fn io_failure(e: &std::io::Error, what: impl std::fmt::Display) -> Failure {
    let kind = ErrorKind::of_io(e.kind());
    Failure::new(kind, format!("{what}: {}", block::without_errno(e)))
}
