// SPDX-License-Identifier: Apache-2.0 OR MIT
//! The operations of a bio.
use std::fmt;

/// What a bio asks for.
#[derive(Clone, Copy, Debug, PartialEq, Eq, PartialOrd, Ord, Hash)]
#[repr(u8)]
pub enum Op {
    /// Read the range into the buffers.
    Read,
    /// Write the buffers to the range.
    Write,
    /// Make every write that completed before this was submitted durable. It has no range.
    Flush,
    /// The contents of the range no longer matter: afterwards a read of it may return zeroes or
    /// anything that was ever written there.
    Discard,
    /// The range reads as zeroes afterwards.
    WriteZeroes,
}

impl Op {
    /// All of them, in their order.
    pub const ALL: [Op; 5] = [Op::Read, Op::Write, Op::Flush, Op::Discard, Op::WriteZeroes];

    /// Whether the operation changes the device's contents.
    pub const fn is_write(self) -> bool {
        matches!(self, Op::Write | Op::Discard | Op::WriteZeroes)
    }
}

impl fmt::Display for Op {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.write_str(match self {
            Op::Read => "read",
            Op::Write => "write",
            Op::Flush => "flush",
            Op::Discard => "discard",
            Op::WriteZeroes => "write zeroes",
        })
    }
}
