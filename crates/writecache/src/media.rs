// SPDX-License-Identifier: Apache-2.0 OR MIT
//! Media: what differs between the formats of a cache device; everything else works on slots.
//!
//! ```text
//!            open ──▶ map ──▶ commit of what has changed ──▶ slots set free
//!   Native   checkpoint, log      a record, one flush           by that flush
//!   Dm       all entries          entries, flush, superblock    by erasing entries, and a flush
//! ```
use std::cell::RefCell;

use format::{Geometry, Superblock};

use crate::commit::Log;
use crate::dm::{CHANGED_BLOCKS_MAX, Dm};

/// The format on the cache device, with what it keeps in memory.
pub(crate) enum Media {
    Native(Native),
    Dm(Dm),
}

/// The native format: a log of records, and checkpoints.
pub(crate) struct Native {
    pub(crate) geometry: Geometry,
    pub(crate) superblock: Box<RefCell<Superblock>>,
    pub(crate) log: Log,
}

impl Native {
    pub(crate) fn new(superblock: Superblock, log: Log) -> Native {
        let geometry = superblock.geometry();
        Native { geometry, superblock: Box::new(RefCell::new(superblock)), log }
    }
}

/// Where the slots lie, whatever the format.
#[derive(Clone, Copy, Debug)]
pub(crate) struct SlotArea {
    pub(crate) slots: u32,
    block_size: u32,
    start: u64,
}

impl SlotArea {
    /// Byte offset of `slot` in the cache area.
    pub(crate) fn slot_offset(&self, slot: u32) -> u64 {
        debug_assert!(slot < self.slots, "slot {slot} of {}", self.slots);
        self.start + u64::from(slot) * u64::from(self.block_size)
    }
}

impl Media {
    pub(crate) fn slot_area(&self) -> SlotArea {
        match self {
            Media::Native(n) => {
                let Geometry { slots, block_size, .. } = n.geometry;
                SlotArea { slots, block_size, start: n.geometry.slots_start() }
            }
            Media::Dm(dm) => SlotArea {
                slots: dm.slots,
                block_size: dm.geometry.block_size(),
                start: dm.geometry.data_offset(),
            },
        }
    }

    /// As the option `format` calls it.
    pub(crate) fn format(&self) -> &'static str {
        match self {
            Media::Native(_) => "native",
            Media::Dm(_) => "dm",
        }
    }

    /// Most blocks that may have changed without the media knowing it: at most an eighth of the
    /// slots, and no more than the format can take.
    pub(crate) fn changed_max(&self) -> u64 {
        let slots = u64::from(self.slot_area().slots);
        let format_max = match self {
            // So few that two commits of them, each with one unit that is not full, fit into the
            // quarter of the log that is kept for the end of a checkpoint (see `commit`).
            Media::Native(n) => {
                let reserve_units = u64::from(n.geometry.log_units / 4);
                (reserve_units - 2) / 2 * format::ENTRIES_PER_UNIT as u64
            }
            Media::Dm(_) => CHANGED_BLOCKS_MAX,
        };
        (slots / 8).max(8).min(format_max)
    }

    /// Whoever waits for the media looks again.
    pub(crate) fn wake_all(&self) {
        match self {
            Media::Native(n) => n.log.room.wake_all(),
            Media::Dm(_) => {}
        }
    }

    /// Units of the record log in use.
    pub(crate) fn log_used_units(&self) -> u64 {
        match self {
            Media::Native(n) => n.log.used(),
            Media::Dm(_) => 0,
        }
    }
}
