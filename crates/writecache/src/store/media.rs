// SPDX-License-Identifier: Apache-2.0 OR MIT
//! Media: the two formats of a cache device, and what differs between them.
//!
//! ```text
//!            open ──▶ map ──▶ commit of what has changed ──▶ slots set free
//!   Native   checkpoint, log      a record, one flush           by that flush
//!   Dm       all entries          entries, flush, superblock    by erasing entries, and a flush
//! ```
use std::cell::{Cell, RefCell};

use format::{Geometry, Superblock};

use super::dm::{Dm, UNLOGGED_MAX};
use super::log::Log;
use crate::map::changes_per_unit;

/// Units of the log that are kept for the end of a checkpoint (WC-LR1).
pub(crate) fn reserve_units(log_units: u32) -> u64 {
    u64::from(log_units / 4)
}

/// Most units of one batch of a commit (WC-LR2): half of the reserve, less one unit, because with
/// epochs a batch may end a few entries before the end of its last unit.
fn run_units(log_units: u32) -> u64 {
    (reserve_units(log_units) - 2) / 2
}

/// Changes that fit into one batch of a commit in any case.
fn changes_max(log_units: u32, ordered: bool) -> u64 {
    run_units(log_units) * changes_per_unit(ordered) as u64
}

/// Blocks that may change at once in any cache (WC-LR2), even in one whose log is tiny.
pub(crate) const CHANGES_AT_ONCE_MAX: usize = 64;

/// The format on the cache device, and its state in memory.
pub(crate) enum Media {
    Native(Native),
    Dm(Dm),
}

/// The native format: a log of records, and checkpoints.
pub(crate) struct Native {
    pub(crate) geometry: Cell<Geometry>,
    pub(crate) superblock: Box<RefCell<Superblock>>,
    pub(crate) log: Log,
    /// The media have other epochs than the map, or none: a checkpoint must be written first.
    pub(crate) checkpoint_required: Cell<bool>,
}

impl Native {
    pub(crate) fn new(superblock: Superblock, log: Log, checkpoint_required: bool) -> Native {
        let geometry = Cell::new(superblock.geometry());
        Native {
            geometry,
            superblock: Box::new(RefCell::new(superblock)),
            log,
            checkpoint_required: Cell::new(checkpoint_required),
        }
    }
}

/// Where the slots are, in any format.
#[derive(Clone, Copy, Debug)]
pub(crate) struct SlotArea {
    pub(crate) slots: u32,
    block_size: u32,
    start: u64,
}

impl SlotArea {
    /// Where they are in the native format.
    pub(crate) fn of(geometry: &Geometry) -> SlotArea {
        let Geometry { slots, block_size, .. } = *geometry;
        SlotArea { slots, block_size, start: geometry.slots_start() }
    }

    /// Byte offset of `slot` in the cache area.
    pub(crate) fn slot_offset(&self, slot: u32) -> u64 {
        debug_assert!(slot < self.slots, "slot {slot} of {}", self.slots);
        self.start + u64::from(slot) * u64::from(self.block_size)
    }
}

impl Media {
    pub(crate) fn slot_area(&self) -> SlotArea {
        match self {
            Media::Native(n) => SlotArea::of(&n.geometry.get()),
            Media::Dm(dm) => SlotArea {
                slots: dm.slots,
                block_size: dm.geometry.block_size(),
                start: dm.geometry.data_offset(),
            },
        }
    }

    /// The name of the format in the option `format`.
    pub(crate) fn format(&self) -> &'static str {
        match self {
            Media::Native(_) => "native",
            Media::Dm(_) => "dm",
        }
    }

    /// Most unlogged blocks: an eighth of the slots, and no more than the format can log.
    /// `ordered`: with epochs.
    pub(crate) fn unlogged_max(&self, ordered: bool) -> u64 {
        let format_max = match self {
            Media::Native(n) => changes_max(n.geometry.get().log_units, ordered), // WC-LR2
            Media::Dm(_) => UNLOGGED_MAX,
        };
        let slots = u64::from(self.slot_area().slots);
        (slots / 8).max(8).min(format_max)
    }

    /// Whether a checkpoint must be written before the cache is used.
    pub(crate) fn is_checkpoint_required(&self) -> bool {
        match self {
            Media::Native(n) => n.checkpoint_required.get(),
            Media::Dm(_) => false,
        }
    }

    /// Wakes the tasks that wait for room in the log.
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

#[cfg(test)]
mod tests {
    use super::*;

    /// WC-LR2 and WC-LR3: what remains of one run, and another, fit into the reserve.
    #[test]
    fn two_full_commits_fit_into_the_reserve_of_the_log() {
        const MIB: u64 = 1 << 20;
        let areas = [512 << 10, MIB, 16 * MIB, 1024 * MIB, 33 << 30, 1 << 40, u64::MAX];
        let geometry = |area, block_size| Geometry::compute(area, block_size).unwrap();
        let geometries = areas.iter().flat_map(|&area| [512, 4096].map(|of| geometry(area, of)));
        // No writer makes such logs, and no reader refuses them.
        let odd = [17, 18, 19, 65535].map(|log_units| Geometry { log_units, ..geometry(MIB, 512) });
        let (mut smallest, mut largest) = (u32::MAX, 0);
        for geometry in geometries.chain(odd) {
            (smallest, largest) =
                (smallest.min(geometry.log_units), largest.max(geometry.log_units));
            for ordered in [false, true] {
                let slots = u64::from(geometry.slots);
                let may = (slots / 8).max(8).min(changes_max(geometry.log_units, ordered));
                let changed = may.max(CHANGES_AT_ONCE_MAX as u64);
                let run_units = changed.div_ceil(changes_per_unit(ordered) as u64);
                let reserve = reserve_units(geometry.log_units);
                assert!(2 * run_units <= reserve, "{run_units} of {reserve}: {geometry:?}");
            }
        }
        assert_eq!((smallest, largest), (16, 65536));
    }
}
