// SPDX-License-Identifier: Apache-2.0 OR MIT
//! Errors of the control path: kind to match on, context to read, source for the rest.
use std::error::Error as StdError;
use std::fmt;

/// What sort of failure it was; decides errno, HTTP status and exit code.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
#[non_exhaustive]
pub enum ErrorKind {
    /// An argument was wrong (EINVAL).
    Invalid,
    /// No such device, target or attribute (ENXIO).
    NotFound,
    /// No such file (ENOENT).
    NoFile,
    /// In use, or in a state that forbids it (EBUSY).
    Busy,
    /// It is there already (EEXIST).
    Exists,
    /// A device failed (EIO).
    Io,
    /// Too small, or full (ENOSPC).
    NoSpace,
    /// More memory than may be used (ENOMEM).
    NoMemory,
    /// Not supported here (EOPNOTSUPP).
    NotSupported,
    /// The caller may not (EACCES).
    Denied,
    /// A number beyond the device's end (ERANGE).
    Range,
    /// A limit that was set is used up (EDQUOT).
    Limit,
    /// The device that it would need was never given (ENODEV).
    NoDevice,
}

impl ErrorKind {
    /// The kind of an error of the system about a file or a socket that the user has named.
    pub fn of_io(io: std::io::ErrorKind) -> ErrorKind {
        use std::io::ErrorKind as Io;
        let known = [
            (Io::NotFound, ErrorKind::NoFile),
            (Io::NotADirectory, ErrorKind::NoFile),
            (Io::PermissionDenied, ErrorKind::Denied),
            (Io::ReadOnlyFilesystem, ErrorKind::Denied),
            (Io::AlreadyExists, ErrorKind::Exists),
            (Io::AddrInUse, ErrorKind::Busy),
            (Io::InvalidInput, ErrorKind::Invalid),
        ];
        known.iter().find(|(kind, _)| *kind == io).map_or(ErrorKind::Io, |(_, kind)| *kind)
    }

    /// The errno that dmsetup or a system call would report.
    pub const fn errno(self) -> i32 {
        match self {
            ErrorKind::Invalid => 22,
            ErrorKind::NotFound => 6,
            ErrorKind::NoFile => 2,
            ErrorKind::Busy => 16,
            ErrorKind::Exists => 17,
            ErrorKind::Io => 5,
            ErrorKind::NoSpace => 28,
            ErrorKind::NoMemory => 12,
            ErrorKind::NotSupported => 95,
            ErrorKind::Denied => 13,
            ErrorKind::Range => 34,
            ErrorKind::Limit => 122,
            ErrorKind::NoDevice => 19,
        }
    }

    /// The symbolic name of [`ErrorKind::errno`].
    pub const fn errno_name(self) -> &'static str {
        match self {
            ErrorKind::Invalid => "EINVAL",
            ErrorKind::NotFound => "ENXIO",
            ErrorKind::NoFile => "ENOENT",
            ErrorKind::Busy => "EBUSY",
            ErrorKind::Exists => "EEXIST",
            ErrorKind::Io => "EIO",
            ErrorKind::NoSpace => "ENOSPC",
            ErrorKind::NoMemory => "ENOMEM",
            ErrorKind::NotSupported => "EOPNOTSUPP",
            ErrorKind::Denied => "EACCES",
            ErrorKind::Range => "ERANGE",
            ErrorKind::Limit => "EDQUOT",
            ErrorKind::NoDevice => "ENODEV",
        }
    }
}

/// The system's words for an error, without the number that Rust's library adds ("(os error 2)"):
/// the errno has a name at the end of every message.
pub fn without_errno(error: impl fmt::Display) -> String {
    let text = error.to_string();
    match text.split_once(" (os error ") {
        Some((words, number)) if number.ends_with(')') => words.to_owned(),
        Some(_) | None => text,
    }
}

/// An error of the control path. Display says what was wrong and where; it never repeats `source`.
#[derive(Debug)]
pub struct Error {
    kind: ErrorKind,
    context: String,
    token: Option<String>,
    source: Option<Box<dyn StdError + Send + Sync>>,
}

impl Error {
    /// An error of `kind`; `context` names the device, the argument and what is allowed.
    pub fn new(kind: ErrorKind, context: impl Into<String>) -> Error {
        Error { kind, context: context.into(), token: None, source: None }
    }

    /// `EINVAL`.
    pub fn invalid(context: impl Into<String>) -> Error {
        Error::new(ErrorKind::Invalid, context)
    }

    /// `ENXIO`.
    pub fn not_found(context: impl Into<String>) -> Error {
        Error::new(ErrorKind::NotFound, context)
    }

    /// `ENOENT`.
    pub fn no_file(context: impl Into<String>) -> Error {
        Error::new(ErrorKind::NoFile, context)
    }

    /// `EBUSY`.
    pub fn busy(context: impl Into<String>) -> Error {
        Error::new(ErrorKind::Busy, context)
    }

    /// The refusal (`EBUSY`) of what would do `harm`, unless `given` is the token that stands for
    /// just that: then nothing.
    pub fn require_token(
        token: String,
        given: Option<&str>,
        harm: impl fmt::Display,
    ) -> Result<(), Error> {
        let wrong = match given {
            Some(given) if given == token => return Ok(()),
            Some(given) => format!("; the token {given} does not stand for what is there now"),
            None => String::new(),
        };
        let context =
            format!("{harm}{wrong}; nothing was changed. `--force={token}` does it all the same");
        Err(Error { token: Some(token), ..Error::busy(context) })
    }

    /// The same error for what `token` forces all the same; `what` that would do.
    #[must_use]
    pub fn unless_forced(mut self, token: String, what: impl fmt::Display) -> Error {
        self.context.push_str(&format!("; nothing was changed. `--force={token}` {what}"));
        self.token = Some(token);
        self
    }

    /// `EIO`.
    pub fn io(context: impl Into<String>) -> Error {
        Error::new(ErrorKind::Io, context)
    }

    /// The same error with its cause attached.
    #[must_use]
    pub fn because(mut self, source: impl Into<Box<dyn StdError + Send + Sync>>) -> Error {
        self.source = Some(source.into());
        self
    }

    /// The same error with `prefix: ` before its context, as it passes a layer that knows more.
    #[must_use]
    pub fn within(mut self, prefix: impl fmt::Display) -> Error {
        self.context = format!("{prefix}: {}", self.context);
        self
    }

    /// The token that forces what was refused, if it can be forced.
    pub fn token(&self) -> Option<&str> {
        self.token.as_deref()
    }

    /// What sort of failure it was.
    pub fn kind(&self) -> ErrorKind {
        self.kind
    }

    /// Context and every cause behind it in one line, for people.
    pub fn chain(&self) -> String {
        let mut line = self.context.clone();
        let mut cause = self.source();
        while let Some(c) = cause {
            line.push_str(": ");
            line.push_str(&without_errno(c));
            cause = c.source();
        }
        line
    }
}

impl fmt::Display for Error {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.write_str(&self.context)
    }
}
impl StdError for Error {
    fn source(&self) -> Option<&(dyn StdError + 'static)> {
        self.source.as_ref().map(|s| {
            let s: &(dyn StdError + 'static) = &**s;
            s
        })
    }
}
impl From<crate::IoError> for Error {
    fn from(e: crate::IoError) -> Error {
        Error::io(e.to_string())
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn an_error_of_the_system_keeps_its_kind() {
        for (errno, kind) in [
            (2, ErrorKind::NoFile),
            (20, ErrorKind::NoFile),
            (13, ErrorKind::Denied),
            (30, ErrorKind::Denied),
            (17, ErrorKind::Exists),
            (98, ErrorKind::Busy),
            (22, ErrorKind::Invalid),
            (5, ErrorKind::Io),
        ] {
            let io = std::io::Error::from_raw_os_error(errno);
            assert_eq!(ErrorKind::of_io(io.kind()), kind, "{io}");
        }
    }

    #[test]
    fn only_the_token_of_the_refusal_forces_it() {
        let refused = |given| Error::require_token("1a2b".into(), given, "wc: all is lost");
        let e = refused(None).unwrap_err().within("line 1");
        assert_eq!((e.kind(), e.token()), (ErrorKind::Busy, Some("1a2b")));
        let text = "line 1: wc: all is lost; nothing was changed. `--force=1a2b` does it all the \
                    same";
        assert_eq!(e.to_string(), text);
        let e = refused(Some("1a2c")).unwrap_err().to_string();
        assert!(e.contains("the token 1a2c does not stand for what is there now"), "{e}");
        assert!(refused(Some("1a2b")).is_ok());
    }

    #[test]
    fn chain_reads_from_context_to_cause_without_repeating() {
        let e = Error::invalid("chunk size 0").because(std::io::Error::other("disk on fire"));
        let e = e.within("line 1: striped");
        assert_eq!(e.to_string(), "line 1: striped: chunk size 0");
        assert_eq!(e.chain(), "line 1: striped: chunk size 0: disk on fire");
        assert_eq!(e.kind().errno_name(), "EINVAL");
    }

    #[test]
    fn the_number_of_a_system_error_is_not_printed() {
        let e = Error::no_file("x").because(std::io::Error::from_raw_os_error(2));
        assert_eq!(e.chain(), "x: No such file or directory");
    }
}
