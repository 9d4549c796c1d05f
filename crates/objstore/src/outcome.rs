// SPDX-License-Identifier: Apache-2.0 OR MIT
//! What an error of the library means to a volume: the table at the head of the crate.
use std::error::Error as StdError;
use std::io;

use object_store::Error as LibraryError;
use objvol::StoreError;

use crate::guard::Refusal;

/// AWS's codes for another request that is under way, with 409. Other stores answer 409 for what
/// stays: a part of the name that is an object, or that is too long.
const RACES: [&str; 2] = ["ConditionalRequestConflict", "OperationAborted"];

/// The error and all causes behind it, each said once.
pub(crate) fn text(error: &(dyn StdError + 'static)) -> String {
    let mut text = error.to_string();
    let mut cause = error.source();
    while let Some(c) = cause {
        let words = c.to_string();
        if !text.contains(&words) {
            text = format!("{text}: {words}");
        }
        cause = c.source();
    }
    block::without_errno(text.split_whitespace().collect::<Vec<_>>().join(" "))
}

/// The first cause of this type.
fn cause<'e, T: StdError + 'static>(error: &'e (dyn StdError + 'static)) -> Option<&'e T> {
    let mut at = Some(error);
    while let Some(e) = at {
        if let Some(found) = e.downcast_ref() {
            return Some(found);
        }
        at = e.source();
    }
    None
}

/// Whether the answer may mean that the store does not know conditional writes.
pub(crate) fn may_lack_conditions(refusal: &str) -> bool {
    let is_other = |code: &str| refusal.contains(code);
    match status(refusal) {
        Some(501) => true,
        Some(400) => !["Authorization", "Expired", "Token", "Signature"].into_iter().any(is_other),
        Some(_) | None => false,
    }
}

/// The status of the answer. The library's own type for it is private, so its text is read; a test
/// of the client goes through all statuses that matter.
fn status(text: &str) -> Option<u16> {
    let (_, rest) = text.split_once("status code: ")?;
    rest.get(..3)?.parse().ok()
}

/// Whether nothing is decided: the request is repeated, and somebody must say why nothing moves.
pub(crate) fn is_open(outcome: &StoreError) -> bool {
    matches!(outcome, StoreError::Unknown | StoreError::Throttled | StoreError::Conflict)
}

/// The system's error, of a store that is a directory.
pub(crate) fn errno(error: &LibraryError) -> Option<i32> {
    cause::<io::Error>(error)?.raw_os_error()
}

/// A directory refuses until somebody helps.
pub(crate) fn is_refusal(e: &io::Error) -> bool {
    use io::ErrorKind as Kind;
    matches!(
        e.kind(),
        Kind::PermissionDenied
            | Kind::StorageFull
            | Kind::QuotaExceeded
            | Kind::ReadOnlyFilesystem
            | Kind::NotADirectory
            | Kind::FileTooLarge
    )
}

/// OC-C1.
pub(crate) fn of(error: &LibraryError) -> StoreError {
    if let Some(refusal) = cause::<Refusal>(error) {
        return StoreError::Denied(refusal.to_string());
    }
    let text = text(error);
    let status = status(&text);
    if status == Some(404) && text.contains("NoSuchBucket") {
        return StoreError::NoBucket;
    }
    match error {
        LibraryError::NotFound { .. } => return StoreError::NotFound,
        // The library has one error for 409 and 412.
        LibraryError::AlreadyExists { .. } if status == Some(409) => {
            let is_race = RACES.into_iter().any(|code| text.contains(code));
            return if is_race { StoreError::Conflict } else { StoreError::Denied(text) };
        }
        LibraryError::AlreadyExists { .. }
        | LibraryError::Precondition { .. }
        | LibraryError::NotModified { .. } => return StoreError::Exists,
        LibraryError::PermissionDenied { .. }
        | LibraryError::Unauthenticated { .. }
        | LibraryError::NotImplemented { .. }
        | LibraryError::NotSupported { .. }
        | LibraryError::InvalidPath { .. }
        | LibraryError::UnknownConfigurationKey { .. } => return StoreError::Denied(text),
        // These say nothing by themselves, and the library may get more kinds.
        LibraryError::Generic { .. } | LibraryError::JoinError { .. } | _ => {}
    }
    match status {
        Some(416) => return StoreError::NotFound,
        Some(429 | 503) => return StoreError::Throttled,
        // Timeouts: 408 of the server, 425 too early.
        Some(408 | 425) => return StoreError::Unknown,
        Some(301 | 307 | 308 | 400..=499 | 501) => return StoreError::Denied(text),
        Some(_) | None => {}
    }
    // A range behind the end of a file.
    if text.contains("but object was only") {
        return StoreError::NotFound;
    }
    match cause::<io::Error>(error) {
        Some(e) if status.is_none() && is_refusal(e) => StoreError::Denied(text),
        Some(_) | None => StoreError::Unknown,
    }
}
