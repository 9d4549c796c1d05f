// SPDX-License-Identifier: Apache-2.0 OR MIT
//! The outcome of a bio: one byte on the data path, a full sentence where it is reported.
use std::fmt;

use crate::{Op, Sector};

/// Outcome of one bio, as the kernel's `blk_status_t`.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
#[repr(u8)]
pub enum Status {
    /// Done; durable as the contract says.
    Ok,
    /// The device failed the request.
    Io,
    /// The device has no room for the write.
    NoSpace,
    /// The device does not know this operation.
    NotSupported,
    /// Range or alignment outside the device's limits.
    Invalid,
    /// Data read back does not match its checksum.
    Checksum,
    /// The device did not answer in time.
    Timeout,
    /// The device is gone.
    NoDevice,
    /// A resource is short for the moment; try again.
    Again,
    /// The device takes no writes.
    ReadOnly,
    /// Somebody else has taken the device over: nothing that it says counts any more.
    Stale,
}

impl Status {
    /// `Ok` when done, else the status as the error.
    pub fn ok(self) -> Result<(), Status> {
        if self == Status::Ok { Ok(()) } else { Err(self) }
    }

    /// The worse of two outcomes of one request that was split: the first failure, but any other
    /// failure is worse than `NotSupported`.
    pub const fn worst(self, next: Status) -> Status {
        match (self, next) {
            (Status::Ok, _) => next,
            (Status::NotSupported, Status::Ok | Status::NotSupported) => self,
            (Status::NotSupported, _) => next,
            (_, _) => self,
        }
    }

    /// The errno that a Linux client sees for it (0 for `Ok`).
    pub const fn errno(self) -> i32 {
        match self {
            Status::Ok => 0,
            Status::Io | Status::Checksum => 5,
            Status::NoSpace => 28,
            Status::NotSupported => 95,
            Status::Invalid => 22,
            Status::Timeout => 110,
            Status::NoDevice => 19,
            Status::Again => 11,
            Status::ReadOnly => 30,
            Status::Stale => 116,
        }
    }

    /// The status nearest to an errno that an I/O request returned.
    pub const fn from_errno(errno: i32) -> Status {
        match errno {
            0 => Status::Ok,
            27 | 28 | 122 => Status::NoSpace, // EFBIG: a limit of file sizes, or of the file system
            95 | 25 => Status::NotSupported,
            22 => Status::Invalid,
            110 => Status::Timeout,
            6 | 19 => Status::NoDevice,
            11 => Status::Again,
            // EPERM of a request: its disk was made read-only, or its file sealed, after the open.
            1 | 30 => Status::ReadOnly,
            116 => Status::Stale,
            _ => Status::Io,
        }
    }
}

impl From<Result<(), Status>> for Status {
    fn from(result: Result<(), Status>) -> Status {
        result.err().unwrap_or(Status::Ok)
    }
}

impl fmt::Display for Status {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.write_str(match self {
            Status::Ok => "ok",
            Status::Io => "I/O error",
            Status::NoSpace => "no space left on device",
            Status::NotSupported => "operation not supported",
            Status::Invalid => "invalid range or alignment",
            Status::Checksum => "checksum mismatch",
            Status::Timeout => "timed out",
            Status::NoDevice => "no such device",
            Status::Again => "resource temporarily unavailable",
            Status::ReadOnly => "read-only device",
            Status::Stale => "taken over by somebody else",
        })
    }
}

/// A failed request as it is reported: device, operation, sector and cause.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct IoError {
    /// The device that failed, by the name its table uses.
    pub device: String,
    /// What was asked of it.
    pub op: Op,
    /// Where the request began.
    pub sector: Sector,
    /// Why it failed.
    pub cause: Status,
}

impl fmt::Display for IoError {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        write!(f, "{}: {} at sector {}: {}", self.device, self.op, self.sector, self.cause)
    }
}
impl std::error::Error for IoError {}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn io_error_names_device_operation_sector_and_cause() {
        let e = IoError {
            device: "/dev/sdb".into(),
            op: Op::Write,
            sector: Sector(2048),
            cause: Status::Io,
        };
        assert_eq!(e.to_string(), "/dev/sdb: write at sector 2048: I/O error");
    }

    #[test]
    fn the_worst_status_is_the_first_real_failure() {
        const ALL: [Status; 11] = [
            Status::Ok,
            Status::NotSupported,
            Status::Io,
            Status::NoSpace,
            Status::Invalid,
            Status::Checksum,
            Status::Timeout,
            Status::NoDevice,
            Status::Again,
            Status::ReadOnly,
            Status::Stale,
        ];
        let rank = |status| [Status::Ok, Status::NotSupported].iter().position(|s| *s == status);
        let rank = |status| rank(status).unwrap_or(2);
        for (first, next) in ALL.iter().flat_map(|a| ALL.map(|b| (*a, b))) {
            let want = if rank(next) > rank(first) { next } else { first };
            assert_eq!(first.worst(next), want, "{first} and {next}");
        }
        let of = |all: &[Status]| all.iter().fold(Status::Ok, |worst, s| worst.worst(*s));
        assert_eq!(
            of(&[Status::NotSupported, Status::Ok, Status::NoSpace, Status::Io]),
            Status::NoSpace
        );
    }

    #[test]
    fn errno_round_trips_where_linux_has_one() {
        for s in [Status::Ok, Status::Io, Status::NoSpace, Status::NotSupported, Status::Invalid] {
            assert_eq!(Status::from_errno(s.errno()), s);
        }
    }
}
