// SPDX-License-Identifier: Apache-2.0 OR MIT
//! Events: errors of the origin and of the cache device, and their end, as they are reported to the
//! operator.
//!
//! ```text
//!   origin: write, flush fails  ──▶ kept dirty, tried again (`writeback::retry`); status field 1
//!                                   is the errno until the blocks are written
//!   cache device: read fails    ──▶ that block is bad; the cache can only be drained
//!   cache device: anything else ──▶ the cache has failed (WC-I8)
//!   a block does not match its checksum ──▶ that block is bad
//! ```
use std::cell::{Cell, RefCell};
use std::fmt;
use std::rc::Rc;

use block::{Error, ErrorKind, Nanos, Sector, Status};
use format::{FRAMES_PREFIX, JOURNAL_PREFIX};

/// Sectors that the attribute `bad_block_list` shows at most.
pub(crate) const BAD_LIST_MAX: usize = 256;

/// What stands before the name of a journal, and of its buffer, that was set aside (WC-JR5).
pub(crate) const DAMAGED_PREFIX: &str = "damaged-";

fn write_damaged(f: &mut fmt::Formatter<'_>, uuid: [u8; 16]) -> fmt::Result {
    let uuid = u128::from_be_bytes(uuid);
    write!(
        f,
        "writecache: a journal in memory has a damaged header, and was ignored: writes that the \
         process before had acknowledged and no FLUSH had followed may be lost. It is kept in the \
         run directory as {DAMAGED_PREFIX}{JOURNAL_PREFIX}{uuid:032x}, and its write buffer as \
         {DAMAGED_PREFIX}{FRAMES_PREFIX}{uuid:032x}, in place of those of a damage before"
    )
}

/// Why a journal with changes was not applied.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum IgnoredJournal {
    /// It was written before the machine started.
    OtherBoot,
    /// The cache was opened since, by a process that did not have the journal.
    Older,
    /// The cache device is older than the journal: a copy of an earlier time.
    Newer,
    /// It is of another cache.
    OtherCache,
    /// Its header is damaged: what it had is not known.
    Damaged {
        /// Of the cache, as in the name of the file.
        uuid: [u8; 16],
    },
}

impl fmt::Display for IgnoredJournal {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.write_str(match self {
            IgnoredJournal::OtherBoot => "it was written before this start of the machine",
            IgnoredJournal::Older => "the cache was opened since by a process without this journal",
            IgnoredJournal::Newer => "the cache device is older than it: a copy of an earlier time",
            IgnoredJournal::OtherCache => "it is of another cache",
            IgnoredJournal::Damaged { .. } => "its header is damaged",
        })
    }
}

/// Why a range of an origin has no guard.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum UnguardedReason {
    /// The origin is too small.
    SmallOrigin,
    /// What the range holds does not compress enough.
    Incompressible,
    /// A device has failed.
    Failed(ErrorKind),
}

impl fmt::Display for UnguardedReason {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        match self {
            UnguardedReason::SmallOrigin => f.write_str("it is smaller than 136 KiB"),
            UnguardedReason::Incompressible => {
                f.write_str("what they hold does not compress to less than half")
            }
            UnguardedReason::Failed(kind) => {
                write!(f, "an error of a device ({kind:?}); the next open tries again")
            }
        }
    }
}

/// A callback that gets each event.
pub(crate) type OnEvent = Rc<dyn Fn(CacheEvent)>;

/// Something that is reported to the operator.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum CacheEvent {
    /// The cache has failed: it serves reads only, until its table is loaded again.
    Failed {
        /// The first error.
        status: Status,
    },
    /// A state that must not occur was detected: a bug. The cache fails.
    Bug {
        /// The state.
        what: &'static str,
    },
    /// The cache of the previous table had failed: changes that it had acknowledged and not made
    /// durable are lost.
    Lost {
        /// How many writes, zeroes and discards: all after which no FLUSH had succeeded.
        requests: u64,
    },
    /// A large cache is read, which takes a while.
    Opening {
        /// Blocks that the cache device has room for.
        blocks: u64,
    },
    /// The cache is open: a large one, one that was slow to read, or one with dirty blocks.
    Opened {
        /// Blocks that the origin does not hold.
        dirty: u64,
        /// Blocks that the origin holds, too.
        clean: u64,
        /// How long that took.
        time: Nanos,
    },
    /// Changes that the process before had acknowledged, and that the cache device did not know,
    /// were found in the journal in memory.
    JournalApplied {
        /// How many.
        changes: u64,
    },
    /// The cache device does not have data that the journal in memory names: it has lost power, and
    /// the machine has not.
    JournalDataLost {
        /// Of how many blocks the version before counts.
        blocks: u64,
    },
    /// A journal in memory was found and does not count.
    JournalIgnored {
        /// How many changes it had.
        changes: u64,
        /// Why it does not count.
        why: IgnoredJournal,
    },
    /// There is no memory for a journal: the attribute `journal` says why.
    NoJournal,
    /// There is no memory for the write buffer: the attribute `journal` says why.
    NoBuffer,
    /// The origin has refused a write; the blocks are kept and tried again.
    Writeback {
        /// The error.
        status: Status,
        /// The first sector of the write.
        sector: Sector,
    },
    /// A flush of the origin has failed; the blocks are kept and written again.
    OriginFlush {
        /// The error.
        status: Status,
    },
    /// Every block that had failed is durable on the origin, or has left the cache.
    Recovered,
    /// The origin has refused a write over blocks that only the origin had, and the cache had no
    /// room to keep them.
    GapLost {
        /// The error.
        status: Status,
        /// The first sector of what may be lost.
        sector: Sector,
    },
    /// The origin has a guard from now on.
    Guarded,
    /// A range of the origin has no guard, although the table asks for one.
    Unguarded {
        /// The first sector of the range.
        sector: Sector,
        /// Why.
        why: UnguardedReason,
    },
    /// The cache device can't read a block of which it has the only copy.
    BadBlock {
        /// The error.
        status: Status,
        /// The block's first sector.
        sector: Sector,
    },
    /// The cache device can read blocks again that it could not read before.
    ReadAgain {
        /// How many.
        blocks: u64,
        /// How many it still can't read.
        unreadable: u64,
    },
    /// The data of a block of which the cache device has the only copy do not match their checksum.
    RottenBlock {
        /// The block's first sector.
        sector: Sector,
    },
}

impl CacheEvent {
    /// For an event about a single block: its kind, in the plural, and the block's first sector.
    /// There may be as many of these events as blocks. `None` for events about the whole cache.
    pub fn block(&self) -> Option<(&'static str, Sector)> {
        match self {
            CacheEvent::Writeback { sector, .. } => {
                Some(("writes that the origin refused", *sector))
            }
            CacheEvent::GapLost { sector, .. } => {
                Some(("writes that the origin refused over blocks that it alone has", *sector))
            }
            CacheEvent::BadBlock { sector, .. } => {
                Some(("blocks that the cache device can't read", *sector))
            }
            CacheEvent::RottenBlock { sector } => {
                Some(("blocks that do not match their checksum", *sector))
            }
            CacheEvent::Failed { .. }
            | CacheEvent::Lost { .. }
            | CacheEvent::Bug { .. }
            | CacheEvent::OriginFlush { .. }
            | CacheEvent::Opening { .. }
            | CacheEvent::Opened { .. }
            | CacheEvent::JournalApplied { .. }
            | CacheEvent::JournalDataLost { .. }
            | CacheEvent::JournalIgnored { .. }
            | CacheEvent::NoJournal
            | CacheEvent::NoBuffer
            | CacheEvent::Guarded
            | CacheEvent::Unguarded { .. }
            | CacheEvent::ReadAgain { .. }
            | CacheEvent::Recovered => None,
        }
    }

    /// Whether the event reports the end of an error.
    pub fn is_over(&self) -> bool {
        matches!(self, CacheEvent::Recovered | CacheEvent::ReadAgain { .. })
    }

    /// Whether the event reports work, which is no error, nor the end of one.
    pub fn is_progress(&self) -> bool {
        match self {
            CacheEvent::Opening { .. }
            | CacheEvent::Opened { .. }
            | CacheEvent::JournalApplied { .. }
            | CacheEvent::NoJournal
            | CacheEvent::NoBuffer
            | CacheEvent::Guarded
            | CacheEvent::Unguarded { .. } => true,
            CacheEvent::Failed { .. }
            | CacheEvent::Lost { .. }
            | CacheEvent::Bug { .. }
            | CacheEvent::JournalDataLost { .. }
            | CacheEvent::JournalIgnored { .. }
            | CacheEvent::Writeback { .. }
            | CacheEvent::OriginFlush { .. }
            | CacheEvent::GapLost { .. }
            | CacheEvent::BadBlock { .. }
            | CacheEvent::RottenBlock { .. }
            | CacheEvent::ReadAgain { .. }
            | CacheEvent::Recovered => false,
        }
    }
}

impl fmt::Display for CacheEvent {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        match self {
            CacheEvent::Failed { status } => write!(
                f,
                "writecache has failed ({status}): it serves reads only and keeps its dirty \
                 blocks until its table is loaded again"
            ),
            CacheEvent::Bug { what } => write!(
                f,
                "writecache: this is a bug, please report it: {what}; the cache stops so that \
                 no data are damaged"
            ),
            CacheEvent::Lost { requests } => write!(
                f,
                "writecache: the cache of the previous table had failed: up to {requests} writes \
                 that it had acknowledged, and that no FLUSH had made durable, are lost; the next \
                 FLUSH of each client that had sent some of them fails, if none has failed yet"
            ),
            CacheEvent::Opening { blocks } => {
                write!(f, "writecache: the cache is being read: it has room for {blocks} blocks")
            }
            CacheEvent::Opened { dirty, clean, time } => write!(
                f,
                "writecache: the cache is open after {:.3} s: {dirty} dirty blocks, {clean} clean \
                 ones",
                time.as_secs_f64()
            ),
            CacheEvent::JournalApplied { changes } => write!(
                f,
                "writecache: the process before ended without a commit: {changes} changes that it \
                 had acknowledged were found in the journal in memory, and are applied"
            ),
            CacheEvent::JournalDataLost { blocks } => write!(
                f,
                "writecache: the cache device does not have the newest versions of {blocks} blocks \
                 that the journal in memory names, and that no FLUSH covered: it has lost power, \
                 or the data are damaged. The versions before count"
            ),
            CacheEvent::JournalIgnored { why: IgnoredJournal::Damaged { uuid }, .. } => {
                write_damaged(f, *uuid)
            }
            CacheEvent::JournalIgnored { changes, why } => write!(
                f,
                "writecache: a journal in memory with {changes} changes was ignored: {why}. What \
                 clients had written and not flushed by then may be lost"
            ),
            CacheEvent::NoJournal => write!(
                f,
                "writecache: there is no journal in memory (the attribute `journal` says why): if \
                 this process is killed, writes that no FLUSH followed may be lost, those of the \
                 last `autocommit_time` at most"
            ),
            CacheEvent::NoBuffer => write!(
                f,
                "writecache: there is no memory for the write buffer (the attribute `journal` says \
                 why): each write waits for the cache device"
            ),
            CacheEvent::Writeback { status, sector } => write!(
                f,
                "writecache: the origin refused a write at sector {sector} ({status}): the blocks \
                 are kept in the cache and tried again; everything else goes on"
            ),
            CacheEvent::OriginFlush { status } => write!(
                f,
                "writecache: the origin failed a flush ({status}): what it may have lost is kept \
                 in the cache and written again"
            ),
            CacheEvent::Recovered => {
                write!(f, "writecache: the origin holds every block now that it had refused before")
            }
            CacheEvent::GapLost { status, sector } => write!(
                f,
                "writecache: the origin refused a write at sector {sector} ({status}) over blocks \
                 that were on the origin alone, and the cache has no free slot to keep them: what \
                 the origin holds there is not defined until it is written again"
            ),
            CacheEvent::Guarded => write!(
                f,
                "writecache: the origin is guarded: nobody finds a file system on it without its \
                 cache; `uncache`, `recover` and the option no_guard give it back"
            ),
            CacheEvent::Unguarded { sector, why } => write!(
                f,
                "writecache: the origin's sectors from {sector} on have no guard: {why}; take care \
                 that nobody uses the origin without its cache"
            ),
            CacheEvent::BadBlock { status, sector } => write_bad_block(f, *status, *sector),
            CacheEvent::ReadAgain { blocks, unreadable } => write!(
                f,
                "writecache: the cache device can read {blocks} blocks again that it could not \
                 read before; {unreadable} are left"
            ),
            CacheEvent::RottenBlock { sector } => write!(
                f,
                "writecache: the block at sector {sector}, which the origin does not hold, does \
                 not match its checksum on the cache device: it reads as an error until it is \
                 written again. If there is a copy elsewhere, write it"
            ),
        }
    }
}

fn write_bad_block(f: &mut fmt::Formatter<'_>, status: Status, sector: Sector) -> fmt::Result {
    write!(
        f,
        "writecache: the cache device can't read the block at sector {sector} ({status}), \
         which the origin does not hold: it reads as an error until the device can read it \
         (it is tried again), or it is written again. Nothing new is kept here meanwhile. \
         If it stays so: `millpond drain NAME`, overwrite the sectors of bad_block_list, \
         and replace the cache device"
    )
}

/// First sectors of blocks that can't be read: those that are shown, and how many are left out.
#[derive(Clone, Debug, Default)]
pub(crate) struct BadBlocks {
    pub(crate) sectors: Vec<u64>,
    pub(crate) left_out: u64,
}

/// `none`, or the sectors, with `+N` for those left out.
impl fmt::Display for BadBlocks {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        let mut words: Vec<String> = self.sectors.iter().map(u64::to_string).collect();
        words.extend((self.left_out > 0).then(|| format!("+{}", self.left_out)));
        if words.is_empty() {
            words.push("none".to_owned());
        }
        f.write_str(&words.join(" "))
    }
}

/// Errors so far, and the callback for events.
#[derive(Default)]
pub(crate) struct Health {
    /// The error with which the cache failed; kept until the table is loaded again (WC-I8).
    pub(crate) failed: Cell<Option<Status>>,
    /// It has ended the journal (WC-J3).
    pub(crate) journal_ended: Cell<bool>,
    /// Set when the cache device has failed to read a dirty block: the cache takes no new blocks
    /// and is written back.
    pub(crate) drain_only: Cell<Option<Status>>,
    pub(crate) on_event: RefCell<Option<OnEvent>>,
}

/// The error of a cache that has failed stop.
pub(crate) fn io_failed(status: Status) -> Error {
    Error::io(format!("{status}; dirty data are kept, load the table again to retry"))
}
