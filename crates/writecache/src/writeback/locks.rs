// SPDX-License-Identifier: Apache-2.0 OR MIT
//! Locks: blocks that no other task may write on the origin (WC-WB1).
//!
//! ```text
//!   picked run ─────▶ busy ─ settled, or its write has failed ─▶ free
//!   direct write ─▶ awaited ─ no block is busy ─▶ busy ─ written ─▶ free
//! ```
//!
//! No block of an awaited range is picked, so that a direct write does not wait forever. Locks are
//! taken by block number, and only this file changes them.
//!
//! A range that is watched is one that is read from the origin for the read cache (`admission`):
//! whoever locks a block of it changes the origin, and what was read is given up. Nobody waits for
//! a watched range.
use std::cell::{Cell, Ref, RefCell};
use std::ops::Range;

use block::Status;
use policy::Run;
use roaring::RoaringTreemap;
use slab::Slab;
use smallvec::SmallVec;

use crate::map::intersects;
use crate::store::Store;

/// Blocks that were unlocked.
pub(super) struct Unlocked {
    pub(super) count: u64,
    /// The blocks, if they are more than a few.
    pub(super) many: Option<RoaringTreemap>,
}

/// See the module.
#[derive(Default)]
pub(crate) struct Locks {
    busy: RefCell<RoaringTreemap>,
    awaited: RefCell<Vec<Range<u64>>>,
    /// Watched ranges, and whether a block was locked since.
    watched: RefCell<Slab<(Range<u64>, bool)>>,
    watched_count: Cell<usize>,
}

impl Locks {
    /// The blocks that are locked.
    pub(super) fn busy(&self) -> Ref<'_, RoaringTreemap> {
        self.busy.borrow()
    }

    /// The ranges that wait to be locked.
    pub(super) fn awaited(&self) -> Ref<'_, Vec<Range<u64>>> {
        self.awaited.borrow()
    }

    /// Whether no block of the range is locked.
    pub(super) fn is_free(&self, range: &Range<u64>) -> bool {
        !intersects(&self.busy.borrow(), range)
    }

    /// Whether any block of the range waits to be locked.
    pub(super) fn is_awaited(&self, range: &Range<u64>) -> bool {
        let overlaps = |r: &Range<u64>| r.start < range.end && range.start < r.end;
        self.awaited.borrow().iter().any(overlaps)
    }

    /// Locks a run, which is free. Scattered blocks are runs of one block: inserting a block costs
    /// a third of a range.
    pub(super) fn lock_run(&self, run: Run) {
        if self.watched_count.get() > 0 {
            self.end_watches(&(run.start..run.end));
        }
        let mut busy = self.busy.borrow_mut();
        let locked = if run.blocks() == 1 {
            u64::from(busy.insert(run.start))
        } else {
            busy.insert_range(run.start..run.end)
        };
        assert_eq!(locked, run.blocks(), "WC-WB1: a block of {run:?} is locked already");
    }

    /// Unlocks blocks that are locked. The caller wakes the tasks that wait.
    pub(super) fn remove_blocks(&self, blocks: impl Iterator<Item = u64>) -> Unlocked {
        let mut busy = self.busy.borrow_mut();
        // To remove one from a bitmap moves what lies behind it.
        let mut blocks: SmallVec<[u64; 4]> = blocks.collect();
        let count = blocks.len() as u64;
        if blocks.len() <= blocks.inline_size() {
            for &block in &blocks {
                busy.remove(block);
            }
            return Unlocked { count, many: None };
        }
        blocks.sort_unstable();
        blocks.dedup();
        let many = RoaringTreemap::from_sorted_iter(blocks).expect("sorted above");
        *busy -= &many;
        Unlocked { count, many: Some(many) }
    }

    /// Unlocks a range. The caller wakes the tasks that wait.
    pub(super) fn remove(&self, range: &Range<u64>) {
        self.busy.borrow_mut().remove_range(range.clone());
    }

    /// Locks a range for a direct origin write: waits until it is free.
    pub(crate) async fn lock(&self, range: Range<u64>, store: &Store) -> Result<(), Status> {
        if !self.is_free(&range) || self.is_awaited(&range) {
            self.awaited.borrow_mut().push(range.clone());
            store.waits.settle.wake_all();
            let ready = || self.is_free(&range) || store.health().is_err();
            store.waits.unlocked.wait_for(ready).await;
            let mut awaited = self.awaited.borrow_mut();
            let mine = awaited.iter().position(|r| *r == range).expect("pushed above");
            awaited.swap_remove(mine);
        }
        store.health()?;
        if self.watched_count.get() > 0 {
            self.end_watches(&range);
        }
        self.busy.borrow_mut().insert_range(range);
        Ok(())
    }

    /// Watches a range, unless a block of it is locked.
    pub(crate) fn watch(&self, range: Range<u64>) -> Option<usize> {
        if !self.is_free(&range) {
            return None;
        }
        self.watched_count.set(self.watched_count.get() + 1);
        Some(self.watched.borrow_mut().insert((range, false)))
    }

    /// Whether a block of the watched range was locked since.
    pub(crate) fn was_locked(&self, watch: usize) -> bool {
        self.watched.borrow()[watch].1
    }

    /// Ends a watch.
    pub(crate) fn unwatch(&self, watch: usize) {
        self.watched.borrow_mut().remove(watch);
        self.watched_count.set(self.watched_count.get() - 1);
    }

    #[cold]
    fn end_watches(&self, locked: &Range<u64>) {
        let mut watched = self.watched.borrow_mut();
        for (_, (range, was_locked)) in watched.iter_mut() {
            *was_locked |= range.start < locked.end && locked.start < range.end;
        }
    }

    /// Unlocks a range, and wakes the tasks that wait for it.
    pub(crate) fn unlock(&self, range: &Range<u64>, store: &Store) {
        self.remove(range);
        store.waits.recheck();
        store.waits.unlocked.wake_all();
    }
}
