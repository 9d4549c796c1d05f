// SPDX-License-Identifier: Apache-2.0 OR MIT
//! `Bio`: one block request on its way down.

use bitflags::bitflags;

use crate::{Bufs, Completion, Op, Sector, Status};

bitflags! {
    /// Modifiers of a bio, named as the kernel's `REQ_*`.
    #[derive(Clone, Copy, Debug, Default, PartialEq, Eq)]
    pub struct Flags: u8 {
        /// Durable when complete (force unit access).
        const FUA = 1;
        /// A client waits for it.
        const SYNC = 1 << 1;
        /// A file system's metadata.
        const META = 1 << 2;
        /// More I/O will follow soon, as in direct I/O.
        const IDLE = 1 << 3;
        /// Background writeback: nobody waits.
        const BACKGROUND = 1 << 4;
        /// Write zeroes without giving the space back.
        const NOUNMAP = 1 << 5;
    }
}

/// The purpose of a bio: how much its latency matters. The throttle at the leaf reads it.
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
    /// Work that may wait without limit: scrubbing, prefetch.
    Idle,
}

/// A client handle that sends requests: a connection, an open file, a job of a load generator. The
/// page cache slows each opener by its own share of the writes; an error of a FLUSH is reported
/// once to each opener.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq, PartialOrd, Ord, Hash)]
pub struct Opener(pub u32);

impl Opener {
    /// No opener: requests of an engine, or of code that opens no device. A mapped device puts an
    /// opener of its own in its place.
    pub const NONE: Opener = Opener(0);
    /// Nobody: a FLUSH by it reports to no opener, so all of them have still to hear of what it
    /// finds lost.
    pub const NOBODY: Opener = Opener(u32::MAX);
}

/// One block request. Mappings rewrite its `sector` in place on the way to a leaf.
#[must_use = "a bio must be submitted or completed"]
pub struct Bio {
    /// What to do.
    pub op: Op,
    /// Modifiers.
    pub flags: Flags,
    /// Its purpose.
    pub class: Class,
    /// The client handle that sent it.
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

crate::debug_as!(Bio, s => "Bio({} {}+{} {:?} {:?})", s.op, s.sector, s.len, s.flags, s.class);
