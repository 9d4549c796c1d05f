// SPDX-License-Identifier: Apache-2.0 OR MIT
//! An error as it travels: kind, errno and one line for people; its HTTP status and exit code.
use std::fmt;

use block::{Error, ErrorKind};
use serde::{Deserialize, Serialize};

use crate::plain;

/// Exit code: done.
pub const EXIT_DONE: u8 = 0;
/// Exit code: failed.
pub const EXIT_FAILED: u8 = 1;
/// Exit code: the command line was wrong.
pub const EXIT_USAGE: u8 = 2;
/// Exit code: no such device, attribute or file.
pub const EXIT_NOT_FOUND: u8 = 3;
/// Exit code: in use.
pub const EXIT_BUSY: u8 = 4;

/// Body of every answer that is not 2xx, and the error type of floors 3 and 4's control path.
#[derive(Clone, Debug, PartialEq, Eq, Serialize, Deserialize)]
pub struct Failure {
    /// One of the words in `KINDS`.
    pub kind: String,
    /// Linux errno.
    pub errno: i32,
    /// What was wrong, where, and the allowed values.
    pub message: String,
    /// What `force` has to be for the request to be done all the same, if it can be forced.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub token: Option<String>,
}

/// Kinds with their words on the wire and HTTP statuses.
const KINDS: [(ErrorKind, &str, u16); 13] = [
    (ErrorKind::Invalid, "invalid", 400),
    (ErrorKind::NotFound, "not_found", 404),
    (ErrorKind::NoFile, "no_file", 404),
    (ErrorKind::Busy, "busy", 409),
    (ErrorKind::Exists, "exists", 409),
    (ErrorKind::Io, "io", 500),
    (ErrorKind::NoSpace, "no_space", 507),
    (ErrorKind::NoMemory, "no_memory", 507),
    (ErrorKind::NotSupported, "not_supported", 501),
    (ErrorKind::Denied, "denied", 403),
    (ErrorKind::Range, "range", 400),
    (ErrorKind::Limit, "limit", 507),
    (ErrorKind::NoDevice, "no_device", 409),
];

/// The word, errno (EAGAIN) and HTTP status of [`Failure::handed_over`].
const HANDED_OVER: (&str, i32, u16) = ("handed_over", 11, 503);

/// Why no daemon answers: no such socket, no process listens there, the connection was lost.
const UNREACHABLE: [(i32, &str); 3] = [(2, "ENOENT"), (111, "ECONNREFUSED"), (104, "ECONNRESET")];

fn unreachable_name(errno: i32) -> Option<&'static str> {
    UNREACHABLE.iter().find(|(known, _)| *known == errno).map(|(_, name)| *name)
}

impl Failure {
    /// A failure of `kind`.
    pub fn new(kind: ErrorKind, message: impl Into<String>) -> Failure {
        let word = KINDS.iter().find(|k| k.0 == kind).map_or("io", |k| k.1);
        Failure { kind: word.into(), errno: kind.errno(), message: message.into(), token: None }
    }

    /// No daemon answers at the control socket; `errno` is one of `UNREACHABLE`. Never on the wire.
    pub fn unreachable(errno: i32, message: impl Into<String>) -> Failure {
        Failure { kind: "unreachable".into(), errno, message: message.into(), token: None }
    }

    /// Whether the daemon was there and has closed the connection before its answer.
    pub fn is_lost_connection(&self) -> bool {
        self.kind().is_none() && unreachable_name(self.errno) == Some("ECONNRESET")
    }

    /// A successor has the devices: the same request is to be sent again, to it.
    pub fn handed_over() -> Failure {
        let (kind, errno, _) = HANDED_OVER;
        let message = "a successor has the devices, by a live upgrade: send the request again";
        Failure { kind: kind.into(), errno, message: message.into(), token: None }
    }

    /// Whether it is [`Failure::handed_over`].
    pub fn is_handed_over(&self) -> bool {
        self.kind == HANDED_OVER.0
    }

    /// The kind, if this version knows the word.
    pub fn kind(&self) -> Option<ErrorKind> {
        KINDS.iter().find(|k| k.1 == self.kind).map(|k| k.0)
    }

    /// HTTP status of the answer that carries it.
    pub fn http_status(&self) -> u16 {
        let (word, _, status) = HANDED_OVER;
        let status = if self.kind == word { status } else { 500 };
        KINDS.iter().find(|k| k.1 == self.kind).map_or(status, |k| k.2)
    }

    /// Exit code of the command that failed so.
    pub fn exit_code(&self) -> u8 {
        match self.kind() {
            Some(ErrorKind::NotFound | ErrorKind::NoFile) => EXIT_NOT_FOUND,
            Some(ErrorKind::Busy) => EXIT_BUSY,
            _ => EXIT_FAILED,
        }
    }

    /// The same failure with `prefix: ` before its message.
    #[must_use]
    pub fn within(mut self, prefix: impl fmt::Display) -> Failure {
        self.message = format!("{prefix}: {}", self.message);
        self
    }
}

impl fmt::Display for Failure {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        match self.kind() {
            Some(kind) => write!(f, "{} ({})", plain(&self.message), kind.errno_name()),
            None => match unreachable_name(self.errno) {
                Some(name) => write!(f, "{} ({name})", plain(&self.message)),
                None => write!(f, "{} (errno {})", plain(&self.message), self.errno),
            },
        }
    }
}
impl std::error::Error for Failure {}

impl From<Error> for Failure {
    fn from(e: Error) -> Failure {
        Failure { token: e.token().map(str::to_owned), ..Failure::new(e.kind(), e.chain()) }
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn every_kind_keeps_its_meaning_across_the_wire() {
        for (kind, word, _) in KINDS {
            let sent = Failure::new(kind, "x");
            assert_eq!((sent.kind.as_str(), sent.errno), (word, kind.errno()));
            let json = serde_json::to_string(&sent).unwrap();
            let got: Failure = serde_json::from_str(&json).unwrap();
            assert_eq!(got.kind(), Some(kind));
        }
    }

    #[test]
    fn display_ends_with_the_errno_name_and_busy_exits_4() {
        let f: Failure = Error::busy("device is open by 2 clients").into();
        let f = f.within("remove wc");
        assert_eq!(f.to_string(), "remove wc: device is open by 2 clients (EBUSY)");
        assert_eq!((f.exit_code(), f.http_status()), (EXIT_BUSY, 409));
    }

    #[test]
    fn what_a_successor_has_is_asked_again() {
        let sent = serde_json::to_string(&Failure::handed_over()).unwrap();
        let got: Failure = serde_json::from_str(&sent).unwrap();
        assert!(got.is_handed_over() && got.kind().is_none());
        assert_eq!(got.http_status(), 503);
        assert!(!Failure::new(ErrorKind::Busy, "x").is_handed_over());
    }

    #[test]
    fn a_kind_from_a_newer_daemon_is_still_a_readable_failure() {
        let f = Failure { kind: "quantum".into(), errno: 71, message: "odd".into(), token: None };
        assert_eq!(f.to_string(), "odd (errno 71)");
        assert_eq!(f.exit_code(), EXIT_FAILED);
    }
}
