// SPDX-License-Identifier: Apache-2.0 OR MIT
//! What an operator must hear of: errors of the origin, of the cache device, and their end; as a
//! text, as attributes, and in status field 1.
//!
//! ```text
//!   origin: write, flush fails  ──▶ kept dirty, tried again (`writeback::retry`); field 1 is the
//!                                   errno until the blocks are written
//!   cache device: read fails    ──▶ that block is bad; the cache can only be drained
//!   cache device: anything else ──▶ it has failed (WC-I8)
//!   a block does not match its checksum ──▶ that block is bad
//! ```
use std::fmt;
use std::rc::Rc;

use block::{Sector, Status};

use crate::cache::Cache;
use crate::config::Mutation;
use crate::map::SlotRef;

/// Sectors that the attribute `bad_block_list` shows at most.
const BAD_LIST_MAX: usize = 256;

/// Who is told of trouble.
pub(crate) type OnEvent = Rc<dyn Fn(CacheEvent)>;

/// Something that an operator must hear of.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum CacheEvent {
    /// It serves reads only, until its table is loaded again.
    Failed {
        /// The first error.
        status: Status,
    },
    /// What must never be has been found: a bug. The cache fails.
    Bug {
        /// What was found.
        what: &'static str,
    },
    /// The cache of the table before had failed: what it had acknowledged and not made durable is
    /// lost.
    Lost {
        /// How many writes, zeroes and discards: all that no FLUSH came after.
        requests: u64,
    },
    /// The origin has refused a write; the blocks are kept and tried again.
    Writeback {
        /// The error.
        status: Status,
        /// The first sector of the write.
        sector: Sector,
    },
    /// The origin could not make durable what it had taken; the blocks are kept and written again.
    OriginFlush {
        /// The error.
        status: Status,
    },
    /// Every block that had failed is durable on the origin, or has left the cache.
    Recovered,
    /// The origin has refused a write over blocks that only it held, and the cache had no room
    /// to keep them.
    GapLost {
        /// The error.
        status: Status,
        /// The first sector of what may be lost.
        sector: Sector,
    },
    /// The cache device can't read a block that it alone holds.
    BadBlock {
        /// The error.
        status: Status,
        /// The block's first sector.
        sector: Sector,
    },
}

impl CacheEvent {
    /// What happened to a block, in the plural, and the first sector of it: of that there may be as
    /// many as there are blocks. Nothing for what is about the whole cache.
    pub fn block(&self) -> Option<(&'static str, Sector)> {
        match self {
            CacheEvent::Writeback { sector, .. } => {
                Some(("writes that the origin refused", *sector))
            }
            CacheEvent::GapLost { sector, .. } => {
                Some(("writes that the origin refused over blocks that it alone slot_ref", *sector))
            }
            CacheEvent::BadBlock { sector, .. } => {
                Some(("blocks that the cache device can't read", *sector))
            }
            CacheEvent::Failed { .. }
            | CacheEvent::Lost { .. }
            | CacheEvent::Bug { .. }
            | CacheEvent::OriginFlush { .. }
            | CacheEvent::Recovered => None,
        }
    }

    /// Whether it is the end of one.
    pub fn is_over(&self) -> bool {
        *self == CacheEvent::Recovered
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
                 nothing comes of it"
            ),
            CacheEvent::Lost { requests } => write!(
                f,
                "writecache: the cache of the table before had failed: up to {requests} writes \
                 that it had acknowledged, and that no FLUSH came after, are lost; the next FLUSH \
                 of each client that had sent some and was not told yet fails"
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
            CacheEvent::BadBlock { status, sector } => write!(
                f,
                "writecache: the cache device can't read the block at sector {sector} ({status}), \
                 which the origin does not hold: it reads as an error until it is written again. \
                 Nothing new is kept on this device: write everything back (`millpond drain \
                 NAME`), overwrite the sectors of the attribute bad_block_list or accept \
                 their loss, then replace the cache device"
            ),
        }
    }
}

/// Attributes about errors and about a drain, in the order in which they are listed.
pub(crate) const ATTRIBUTES: [&str; 8] = [
    "writeback_error",
    "writeback_error_sector",
    "writeback_errors",
    "failing_blocks",
    "cache_read_errors",
    "bad_block_list",
    "drain_only",
    "drain_state",
];

impl Cache {
    pub(crate) fn notify(&self, event: CacheEvent) {
        let on_event = self.on_event.borrow().clone();
        if let Some(on_event) = on_event {
            on_event(event);
        }
    }

    /// A bug shows where the cache can stop in good order (WC-I8). A panic would take all devices
    /// of the process along: that is for bugs after which nothing can be trusted. Tests panic,
    /// unless the bug was planted.
    pub(crate) fn fail_for_bug(&self, what: &'static str) {
        debug_assert!(self.config.mutation != Mutation::None, "{what}");
        self.notify(CacheEvent::Bug { what });
        self.fail(Status::Io);
    }

    /// Status field 1.
    pub(crate) fn errno(&self) -> i32 {
        let failing = self.writeback.retry.error().map(|(status, _)| status);
        let status = self.failure().or(failing).or(self.drain_only.get());
        status.map_or(0, Status::errno)
    }

    /// The cache device has failed to read a dirty block: it takes nothing new, and is emptied.
    pub(crate) fn is_drain_only(&self) -> bool {
        self.drain_only.get().is_some()
    }

    /// The cache device can't read this version of a block.
    pub(crate) fn cache_read_failed(&self, block: u64, slot_ref: SlotRef, status: Status) {
        self.stats.cache_read_errors.add(1);
        if self.drop_unreadable(block, slot_ref) {
            self.drain_only.set(Some(status));
            self.notify(CacheEvent::BadBlock { status, sector: self.sector_of(block) });
        }
    }

    /// This version of a block is rotten or can't be read. If the origin holds it too it leaves the
    /// cache; else it is bad, and true is returned: nobody waits for it to be written back any
    /// longer. A superseded one is lost to its epoch; else nothing happens if the block has moved
    /// on.
    pub(crate) fn drop_unreadable(&self, block: u64, slot_ref: SlotRef) -> bool {
        let mut slots = self.slots.borrow_mut();
        let is_bad = !slots.drop_clean(block, slot_ref) && slots.quarantine(block, slot_ref);
        if !is_bad {
            slots.drop_unreadable_old(block, slot_ref);
        }
        drop(slots);
        self.forget_failures();
        if !self.mutation(Mutation::WaitForBad) {
            self.writeback.recheck(); // a flush or an epoch may have no more to wait for
        }
        self.waits.wake_all();
        is_bad
    }

    /// The value of one of [`ATTRIBUTES`].
    pub(crate) fn event_attribute(&self, name: &str) -> Option<String> {
        let error = self.writeback.retry.error();
        let none = || "none".to_owned();
        Some(match name {
            "writeback_error" => error.map_or_else(none, |(status, _)| status.to_string()),
            "writeback_error_sector" => {
                let block = error.and_then(|(_, block)| block);
                block.map_or_else(none, |block| self.sector_of(block).to_string())
            }
            "writeback_errors" => self.stats.writeback_errors.get().to_string(),
            "failing_blocks" => self.writeback.retry.blocks().to_string(),
            "cache_read_errors" => self.stats.cache_read_errors.get().to_string(),
            "bad_block_list" => self.bad_block_list(),
            "drain_state" => self.drain_state(),
            "drain_only" => u8::from(self.is_drain_only()).to_string(),
            _ => return None,
        })
    }

    /// First sectors of the blocks that can't be read; `none`, or `+N` for those left out.
    fn bad_block_list(&self) -> String {
        let slots = self.slots.borrow();
        let bad = slots.bad();
        let mut list: Vec<String> =
            bad.iter().take(BAD_LIST_MAX).map(|b| self.sector_of(b).to_string()).collect();
        let more = bad.len().saturating_sub(BAD_LIST_MAX as u64);
        if more > 0 {
            list.push(format!("+{more}"));
        }
        if list.is_empty() { "none".to_owned() } else { list.join(" ") }
    }
}
