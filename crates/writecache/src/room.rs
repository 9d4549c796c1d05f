// SPDX-License-Identifier: Apache-2.0 OR MIT
//! Room: how full the cache is, and how writers are slowed as it fills.
use std::cell::{Cell, RefCell};

use policy::{Pacer, Watermarks};

use crate::config::Tuning;

/// What writeback is taken to free per second until the first measurement. Chosen low, about what a
/// disk does with few dirty blocks far apart (600 to 1900 on the models): taken too high, writers
/// would use up what is free before the first flush of the origin corrects it. A faster origin
/// corrects so within milliseconds.
const ASSUMED_BLOCKS_PER_S: u64 = 1_000;

/// Least room for writers and writeback beside each other, whatever the watermarks are: an eighth
/// of the slots; half of them in a tiny cache, where an eighth is less than a disk can sort; and
/// 16 MiB of 4 KiB blocks are enough for any.
fn room_min(slots: u64) -> u64 {
    (slots / 8).clamp(ROOM_BLOCKS_TINY.min(slots / 2), ROOM_BLOCKS_ENOUGH)
}
const ROOM_BLOCKS_TINY: u64 = 256;
const ROOM_BLOCKS_ENOUGH: u64 = 4096;

fn watermarks(slots: u64, tuning: &Tuning) -> Watermarks {
    Watermarks::new(slots, tuning.high_watermark, tuning.low_watermark)
        .expect("percentages are checked when options are parsed")
        .with_room(room_min(slots))
}

/// Slots that reclaim keeps free: a sixteenth of them, at most 64 MiB of 4 KiB blocks.
pub(crate) fn reclaim_reserve(slots: u32) -> u32 {
    (slots / 16).clamp(2, 16384)
}

/// See the module.
pub(crate) struct Room {
    watermarks: Cell<Watermarks>,
    pub(crate) pacer: RefCell<Pacer>,
    /// Writers that wait for a free slot.
    pub(crate) starved: Cell<u32>,
    /// Blocks installed since the cache was opened.
    pub(crate) installs: Cell<u64>,
}

impl Room {
    /// The room of a cache of `slots` blocks.
    pub(crate) fn new(slots: u64, tuning: &Tuning) -> Room {
        let watermarks = watermarks(slots, tuning);
        Room {
            pacer: RefCell::new(Pacer::new(watermarks.room(), ASSUMED_BLOCKS_PER_S)),
            watermarks: Cell::new(watermarks),
            starved: Cell::default(),
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
