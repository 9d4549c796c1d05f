// SPDX-License-Identifier: Apache-2.0 OR MIT
//! The history of the sectors of a device: versions, events, and the rules that the device
//! promises.

use crate::pattern::Content;

/// The end of what has not ended.
pub const NEVER: u64 = u64::MAX;

/// Which clients get the error of a failed FLUSH of a disk below.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum ErrorScope {
    /// Each connection or open file gets it once, at its own FLUSH.
    Each,
    /// The device returns it once, to whichever FLUSH comes next: mappings pass on the disk's
    /// answer. An order of the operator that fails may have consumed it.
    Device,
}

/// What a device promises.
#[derive(Clone, Copy, Debug)]
pub struct Rules {
    /// See [`ErrorScope`].
    pub error_scope: ErrorScope,
    /// What a disk loses in a failed FLUSH is out of sight at once.
    pub loss_is_visible: bool,
    /// When it is loaded again, after an error or without one, what is not durable may be gone.
    pub forgets_when_loaded: bool,
}

/// What a version is made of.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum Kind {
    /// A write's pattern.
    Data,
    /// Zeroes.
    Zeroes,
    /// A discard.
    Discard,
}

/// How a request ended.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum Outcome {
    /// It succeeded.
    Done,
    /// It was answered with an error.
    Failed,
}

/// One version of a sector.
#[derive(Clone, Copy, Debug)]
pub struct Version {
    /// Number of the write; 0 of the initial zeroes.
    pub write: u64,
    /// What it is made of.
    pub kind: Kind,
    /// When it began and ended.
    pub begun: u64,
    /// See `begun`; [`NEVER`] while it has not.
    pub ended: u64,
    /// Known once it has ended.
    pub outcome: Option<Outcome>,
    /// Durable when it succeeds.
    pub fua: bool,
    /// Known to be durable.
    pub durable: bool,
    /// A read that began after this had ended has found that write, and ended then.
    pub superseded_by: Option<(u64, u64)>,
}

/// Something that happened, for the report.
#[derive(Clone, Copy, Debug)]
pub struct Event {
    /// When.
    pub tick: u64,
    /// What happened.
    pub kind: EventKind,
}

/// Kinds of events.
#[derive(Clone, Copy, Debug)]
#[expect(missing_docs, reason = "the report spells them out")]
pub enum EventKind {
    Begun { write: u64, kind: Kind, fua: bool, by: u64 },
    Ended { write: u64, outcome: Outcome },
    Found { content: Content, since: u64 },
    FlushEnded { by: u64, since: u64, outcome: Outcome },
    Loss,
    Crash { power: bool },
    OrderlyEnd,
    Opened { by: u64 },
    OrderFailed,
}

/// A sector that held what it must not.
#[derive(Clone, Debug)]
pub struct Violation {
    /// The sector.
    pub sector: u64,
    /// What it held.
    pub content: Content,
    /// When the read began and ended.
    pub read: (u64, u64),
    /// Which versions it might have held.
    pub allowed: Vec<Version>,
    /// All that might matter, and what happened to the sector and to all, oldest first.
    pub versions: Vec<Version>,
    /// See `versions`.
    pub events: Vec<Event>,
}

/// What was judged.
#[derive(Clone, Copy, Debug, Default)]
pub struct Counts {
    /// Sectors written, zeroed or discarded.
    pub written: u64,
    /// Sectors read and judged.
    pub judged: u64,
    /// FLUSHes that succeeded and failed.
    pub flushes: u64,
    /// See `flushes`.
    pub flushes_failed: u64,
    /// Writes that failed.
    pub writes_failed: u64,
    /// Reads that failed.
    pub reads_failed: u64,
    /// Times that the origin alone was judged.
    pub origins: u64,
    /// Violations, of which the first are kept in full.
    pub violations: u64,
}
