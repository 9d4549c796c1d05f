// SPDX-License-Identifier: Apache-2.0 OR MIT
//! Chain: the units on the device, those that are not durable yet, and where the next one begins.
//!
//! ```text
//!   run of blocks  │ unit 7 │ unit 8 │ unit 9 │ reserved: unit 10 begins here ... │
//!                     replayed after a crash    next
//! ```
//!
//! Invariants
//! - ZR-CH1 A unit is built without an `.await` (`unit`): its contents were true of its slots at
//!   one moment, and its place in the chain is that of its building.
//! - ZR-CH2 A unit begins at the place that the unit before it names. That place is chosen before
//!   the unit before it is written.
//! - ZR-CH3 Units become durable in order.
use std::collections::VecDeque;
use std::ops::Range;

use format::zram::{ChainStart, UNIT_BLOCKS_MAX};

use super::image::Image;
use crate::backing::Space;

/// Blocks of a unit with one page that did not compress.
pub(super) const UNIT_BLOCKS_MIN: u32 = 2;

/// An object that was only moved; its page is not in memory.
pub(super) struct MovedObject {
    pub(super) slot: u32,
    pub(super) from: Image,
    pub(super) to: Image,
}

/// A unit that is not durable yet.
pub(super) struct PendingUnit {
    pub(super) sequence: u64,
    pub(super) written: bool,
    /// Objects that it supersedes: of no use once it is durable (ZR-PS3).
    pub(super) superseded: Vec<Image>,
    pub(super) moved: Vec<MovedObject>,
}

/// A unit that a replay would read.
pub(super) struct ReplayUnit {
    pub(super) sequence: u64,
    pub(super) blocks: Range<u32>,
}

/// The end of the chain, and the units of it that are still needed.
pub(super) struct Chain {
    /// The run in which the next unit will be. `None` when no place is reserved: then a checkpoint
    /// must free blocks first.
    pub(super) next: Option<Range<u32>>,
    /// Of the next unit.
    pub(super) sequence: u64,
    /// Checksum of the header of the last unit.
    pub(super) link: u32,
    /// The last unit that is durable, with all before it.
    pub(super) durable: u64,
    pub(super) pending: VecDeque<PendingUnit>,
    /// Units since the last checkpoint.
    pub(super) replay: VecDeque<ReplayUnit>,
    pub(super) replay_blocks: u32,
}

impl Chain {
    pub(super) fn new(start: &ChainStart) -> Chain {
        Chain {
            next: (start.next > 0).then_some(start.next..start.next_end),
            sequence: start.sequence,
            link: start.link,
            durable: start.sequence - 1,
            pending: VecDeque::new(),
            replay: VecDeque::new(),
            replay_blocks: 0,
        }
    }

    /// Where a replay that begins after the last unit would begin.
    pub(super) fn end(&self) -> ChainStart {
        let next = self.next.clone().unwrap_or_default();
        let (sequence, link) = (self.sequence, self.link);
        ChainStart { next: next.start, next_end: next.end, sequence, link }
    }

    /// Units that are being written.
    pub(super) fn in_flight(&self) -> usize {
        self.pending.iter().filter(|unit| !unit.written).count()
    }

    /// Whether every unit up to this one is written.
    pub(super) fn is_written(&self, sequence: u64) -> bool {
        self.pending.iter().take_while(|u| u.sequence <= sequence).all(|u| u.written)
    }
}

/// Takes a run for units, of at least one block.
pub(super) fn take_run(space: &Space) -> Option<Range<u32>> {
    space.blocks().take(UNIT_BLOCKS_MAX)
}

/// Takes a run that has room for any object; `None` when none was found.
pub(super) fn take_wide_run(space: &Space) -> Option<Range<u32>> {
    let run = space.blocks().take(UNIT_BLOCKS_MIN)?;
    if run.end - run.start < UNIT_BLOCKS_MIN {
        space.give_back(run);
        return None;
    }
    Some(run)
}
