// SPDX-License-Identifier: Apache-2.0 OR MIT
//! What an error of the library means to a volume: the table at the head of the crate.
use std::error::Error as StdError;
use std::io;

use object_store::Error as LibraryError;
use objvol::StoreError;

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

/// The status of the answer. The library's own type for it is private, so its text is read; a test
/// of the client goes through all statuses that matter.
fn status(text: &str) -> Option<u16> {
    let (_, rest) = text.split_once("status code: ")?;
    rest.get(..3)?.parse().ok()
}

/// The system's error, of a store that is a directory.
pub(crate) fn errno(error: &LibraryError) -> Option<i32> {
    cause::<io::Error>(error)?.raw_os_error()
}

/// A directory refuses until somebody helps.
fn is_refusal(e: &io::Error) -> bool {
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
    let text = text(error);
    let status = status(&text);
    match error {
        LibraryError::NotFound { .. } => return StoreError::NotFound,
        // The library has one error for 409 and 412.
        LibraryError::AlreadyExists { .. } if status == Some(409) => return StoreError::Conflict,
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
