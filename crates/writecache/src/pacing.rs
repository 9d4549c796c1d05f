// SPDX-License-Identifier: Apache-2.0 OR MIT
//! Pacing: watermarks of the cache, and how writers are slowed as it fills.
use std::cell::{Cell, RefCell};

use policy::{Pacer, Watermarks};

use crate::config::Tuning;

/// Assumed rate of writeback until the first measurement. Chosen low, about the rate of a disk with
/// few dirty blocks far apart (600 to 1900 on the models). If it were too high, writers would fill
/// the cache before the first origin flush corrects it. If it is too low, a faster origin corrects
/// it within milliseconds.
const ASSUMED_BLOCKS_PER_S: u64 = 1_000;

/// Least free space for writers while writeback works, whatever the watermarks are: an eighth of
/// the slots. In a tiny cache, where an eighth is less than a disk can sort, it is half of them; 16
/// MiB of 4 KiB blocks are enough for any cache.
fn room_min(slots: u64) -> u64 {
    (slots / 8).clamp(ROOM_BLOCKS_TINY.min(slots / 2), ROOM_BLOCKS_ENOUGH)
}
const ROOM_BLOCKS_TINY: u64 = 256;
const ROOM_BLOCKS_ENOUGH: u64 = 4096;

fn watermarks(slots: u64, tuning: &Tuning) -> Watermarks {
    // The percentages were checked when options were parsed.
    Watermarks::new(slots, tuning.high_watermark, tuning.low_watermark).with_room(room_min(slots))
}

/// Slots that reclaim keeps free: a sixteenth of them, at most 64 MiB of 4 KiB blocks.
pub(crate) fn reclaim_reserve(slots: u32) -> u32 {
    (slots / 16).clamp(2, 16384)
}

/// See the module.
pub(crate) struct Pacing {
    watermarks: Cell<Watermarks>,
    pub(crate) pacer: RefCell<Pacer>,
    /// Writers that wait for a free slot.
    pub(crate) starved_writers: Cell<u32>,
    /// Blocks installed since the cache was opened.
    pub(crate) installs: Cell<u64>,
}

impl Pacing {
    /// The pacing of a cache of `slots` blocks.
    pub(crate) fn new(slots: u64, tuning: &Tuning) -> Pacing {
        let watermarks = watermarks(slots, tuning);
        Pacing {
            pacer: RefCell::new(Pacer::new(watermarks.room(), ASSUMED_BLOCKS_PER_S)),
            watermarks: Cell::new(watermarks),
            starved_writers: Cell::default(),
            installs: Cell::default(),
        }
    }

    pub(crate) fn watermarks(&self) -> Watermarks {
        self.watermarks.get()
    }

    /// Takes changed watermarks. Returns the largest batch of writeback, if it has changed.
    pub(crate) fn tune(&self, slots: u64, tuning: &Tuning) -> Option<u64> {
        let new = watermarks(slots, tuning);
        let old = self.watermarks.replace(new);
        (new.room() != old.room()).then(|| {
            self.pacer.borrow_mut().set_room(new.room());
            self.pacer.borrow().batch_max()
        })
    }
}
