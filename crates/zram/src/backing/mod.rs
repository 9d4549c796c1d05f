// SPDX-License-Identifier: Apache-2.0 OR MIT
//! Backing: a part's region of the backing device, and what lies where in it.
//!
//! ```text
//!   writeback ──take──▶ Space ◀──give back── reclaim ◀─reads end, discard─ retired ◀── release
//!                         │ Blocks                                                     ▲
//!   read-back ──pin───────┘                                slot overwritten, discarded ┘
//!             ──cache──▶ a few runs of neighbours, read ahead
//! ```
//!
//! Invariants
//! - ZR-BK1 A block that was written is free again only when all reads that began before it was
//!   retired have ended, and its discard has ended (ZR-Z3).
//! - ZR-BK2 The cache has the contents of a block as long as the block is live.
mod address;
mod blocks;
mod cache;
mod space;

pub(crate) use address::Address;
pub(crate) use cache::{Cached, EXTENT_BLOCKS};
pub(crate) use space::Space;

use std::cell::Cell;
use std::ops::Range;
use std::rc::Rc;

use block::{BlockDevice, Planted};
use reactor::WaitList;

use crate::layout::Region;
use crate::pack::blocks_of;
use crate::planted::Fault;
use cache::Cache;

/// A part's region of the backing device.
pub(crate) struct Backing {
    space: Rc<Space>,
    cache: Cache,
    packed: bool,
    /// Pages of the largest write that the device allows.
    io_pages_max: u32,
    /// A writeback runs, or its writes are in flight.
    pub(crate) busy: Cell<bool>,
    pub(crate) changed: WaitList,
    /// Counts units of packed objects: distinguishes the objects of a block from older ones there.
    pub(crate) generation: Cell<u32>,
}

impl Backing {
    /// A blank region of `device`. With `packed` objects lie one after the other, otherwise each
    /// page has a block.
    pub(crate) fn new(device: Rc<dyn BlockDevice>, region: Region, packed: bool) -> Backing {
        let page = crate::slot::PAGE as u32;
        let io_pages_max = (device.limits().max_io_bytes / page).clamp(1, 256);
        Backing {
            space: Rc::new(Space::new(device, region)),
            cache: Cache::default(),
            packed,
            io_pages_max,
            busy: Cell::new(false),
            changed: WaitList::new(),
            generation: Cell::new(0),
        }
    }

    /// With a planted fault, or none.
    pub(crate) fn with_planted(self, planted: Planted<Fault>) -> Backing {
        self.space.planted.set(planted);
        self
    }

    pub(crate) fn is_packed(&self) -> bool {
        self.packed
    }

    /// Blocks that one write may cover, when `pages` are wanted. A page that did not compress takes
    /// two of them when it is packed.
    pub(crate) fn batch_blocks(&self, pages: u32) -> u32 {
        pages.clamp(1, self.io_pages_max).max(1 + u32::from(self.packed))
    }

    pub(crate) fn space(&self) -> &Rc<Space> {
        &self.space
    }

    pub(crate) fn cache(&self) -> &Cache {
        &self.cache
    }

    /// The blocks in which a page lies whose object has `size` bytes.
    pub(crate) fn blocks_at(&self, at: Address, size: usize) -> Range<u32> {
        let blocks = if self.packed { blocks_of(at.offset(), size) } else { 1 };
        at.block()..at.block() + u32::try_from(blocks).expect("a page covers at most 3 blocks")
    }

    /// A page lies at `at` from now on. Returns how many blocks are in use that were not before.
    pub(crate) fn occupy(&self, at: Address, size: usize) -> u32 {
        let mut blocks = self.space.blocks();
        let before = blocks.in_use();
        self.blocks_at(at, size).for_each(|block| blocks.use_one(block));
        blocks.in_use() - before
    }

    /// A page does not lie at `at` any more. Returns how many blocks are not in use any more; they
    /// are freed a little later.
    pub(crate) fn release(&self, at: Address, size: usize) -> u32 {
        self.blocks_at(at, size).map(|block| u32::from(self.unuse(block))).sum()
    }

    /// One object or unit less lies in a block. Returns whether it is not in use any more; then it
    /// is freed a little later.
    pub(crate) fn unuse(&self, block: u32) -> bool {
        let last = self.space.blocks().unuse_one(block);
        if last {
            self.cache.forget(block); // ZR-BK2
            self.space.retire(block..block + 1);
        }
        last
    }

    /// A run was written, or may have been: its blocks that are not in use are freed a little
    /// later.
    pub(crate) fn retire_unused(&self, run: Range<u32>) {
        let mut from = run.start;
        while from < run.end {
            let is_live = |block: u32| self.space.blocks().is_live(block);
            let end = (from..run.end).find(|b| is_live(*b)).unwrap_or(run.end);
            if from < end {
                self.space.retire(from..end);
            }
            from = end + 1;
        }
    }

    /// Waits until no write, discard or read is in flight.
    pub(crate) async fn quiesce(&self) {
        self.changed.wait_for(|| !self.busy.get()).await;
        self.space.quiesce().await;
    }
}
