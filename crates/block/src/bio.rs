// SPDX-License-Identifier: Apache-2.0 OR MIT
//! Bio: one block request on its way down.
use std::fmt;

use bitflags::bitflags;

use crate::{Bufs, Completion, Sector, Status};

/// What a bio asks for.
#[derive(Clone, Copy, Debug, PartialEq, Eq, PartialOrd, Ord, Hash)]
#[repr(u8)]
pub enum Op {
    /// Fill the buffers from the device.
    Read,
    /// Put the buffers on the device.
    Write,
    /// Make every write that completed before durable. Carries no range.
    Flush,
    /// The range's contents no longer matter; afterwards it reads as anything once written or zero.
    Discard,
    /// The range reads as zeroes afterwards.
    WriteZeroes,
}

impl Op {
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

bitflags! {
    /// Modifiers of a bio, named as the kernel's `REQ_*`.
    #[derive(Clone, Copy, Debug, Default, PartialEq, Eq)]
    pub struct Flags: u8 {
        /// Durable when complete.
        const FUA = 1;
        /// Somebody waits for it.
        const SYNC = 1 << 1;
        /// A file system's metadata.
        const META = 1 << 2;
        /// Anticipates more I/O soon, as direct I/O does.
        const IDLE = 1 << 3;
        /// Background writeback: nobody waits.
        const BACKGROUND = 1 << 4;
        /// Write zeroes without giving the space back.
        const NOUNMAP = 1 << 5;
    }
}

/// Whose latency a bio is part of; the leaf's queue acts on it.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq, PartialOrd, Ord)]
#[repr(u8)]
pub enum Class {
    /// Reads, sync writes and flushes of clients.
    Foreground,
    /// Other writes of clients.
    #[default]
    Normal,
    /// Any engine's writeback.
    Background,
    /// Work that may wait for ever: scrubbing, prefetch.
    Idle,
}

/// Who opened a device: a connection of a client, an open file. It tells writers apart, who are
/// slowed each by its own share, and those who must each hear of an error once.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq, PartialOrd, Ord, Hash)]
pub struct Opener(pub u32);

impl Opener {
    /// Nobody in particular: engines, and who opens nothing. A mapped device puts an opener of its
    /// own in its place.
    pub const NONE: Opener = Opener(0);
}

/// One block request. It is remapped in place (`sector` rewritten) on its way to a leaf.
#[must_use = "a bio must be submitted or completed"]
pub struct Bio {
    /// What to do.
    pub op: Op,
    /// Modifiers.
    pub flags: Flags,
    /// Whose latency it is part of.
    pub class: Class,
    /// Who sent it.
    pub opener: Opener,
    /// First sector; zero for a flush.
    pub sector: Sector,
    /// Length; zero for a flush. Equals the buffers' length for reads and writes.
    pub len: Sector,
    /// The data of reads and writes; empty for the others.
    pub bufs: Bufs,
    /// The right to finish it.
    pub done: Completion,
}

impl Bio {
    /// Finishes the bio.
    pub fn complete(self, status: Status) {
        self.done.complete(status);
    }

    /// Whether the buffers of a read or write hold exactly its length.
    #[inline]
    pub fn check_bufs(&self) -> Result<(), Status> {
        let data = matches!(self.op, Op::Read | Op::Write);
        if data && self.bufs.len_bytes() as u64 != self.len.bytes() {
            return Err(Status::Invalid);
        }
        Ok(())
    }

    /// One past the last sector.
    pub fn end(&self) -> Sector {
        self.sector + self.len
    }
}

impl fmt::Debug for Bio {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        write!(f, "Bio({} {}+{} {:?} {:?})", self.op, self.sector, self.len, self.flags, self.class)
    }
}
