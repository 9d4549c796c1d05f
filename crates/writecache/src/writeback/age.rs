// SPDX-License-Identifier: Apache-2.0 OR MIT
//! Age: no block stays dirty for longer than `max_age`, however busy writeback is.
//!
//! ```text
//!   dirty since   ├────────── at most a period ─────────┤── one sweep over all marked ──┤
//!                 0                                    mark                          written
//! ```
//!
//! Every 15/16 of `max_age` (where the kernel starts too) all dirty blocks are *marked*. Marked
//! blocks are written back before all others, in one sweep; picking a block removes its mark. There
//! is no clock for each block: the marks are one bitmap, which is empty again after its sweep. A
//! block that is overwritten all the time is written back like any other, though its newest version
//! is never old.
//!
//! Invariants
//! - WC-G1 A block is marked at most one period after it became dirty: periods follow one another
//!   while anything is dirty.
//! - WC-G2 A marked block is picked within one sweep over the marked blocks. No block joins a
//!   running sweep: a writer that dirties block after block ahead of the sweep would prevent its
//!   end. If the next mark is due meanwhile, it is made when the sweep has ended.
//!
//! So a block is dirty for at most 15/16 of `max_age`, plus one sweep over the marked blocks and
//! one origin flush. With a `max_age` of 160 s and a sweep that takes 10 s that is 160 s. If a
//! sweep takes longer than 15/16 of `max_age`, a block is dirty for at most two sweeps: the disk
//! can't do better in sorted order. At a start all blocks count as new, because the media do not
//! have their age.
use std::cell::{Cell, RefCell};
use std::rc::{Rc, Weak};

use block::Nanos;
use roaring::RoaringTreemap;

use super::Writeback;
use crate::planted::Fault;

/// Time between marks; the rest of `max_age` is for the sweep. It is at least 1 ms, so that
/// `max_age 0` writes back at once without spinning.
fn period(max_age: Nanos) -> Nanos {
    Nanos(max_age.0 - max_age.0 / 16).max(Nanos::from_millis(1))
}

/// Which blocks are old enough to be written back first.
#[derive(Default)]
pub(super) struct Ages {
    /// The marked blocks. Some may not be dirty any more.
    marked: RefCell<RoaringTreemap>,
    /// All dirty blocks are to be marked when the sweep over the marked ones has ended (WC-G2).
    is_due: Cell<bool>,
    /// Ordered: the epochs before this one are marked.
    marked_before: Cell<u64>,
    /// The number of the task that counts periods; a change of `max_age` starts a new task.
    task: Cell<u64>,
}

impl Ages {
    /// The marked blocks; the picking task removes their marks.
    pub(super) fn marked(&self) -> &RefCell<RoaringTreemap> {
        &self.marked
    }

    /// Ordered: the epochs before this one are marked.
    pub(super) fn marked_before(&self) -> u64 {
        self.marked_before.get()
    }

    /// Whether blocks are marked, or are to be marked next.
    pub(super) fn has_marks(&self) -> bool {
        self.is_due.get() || !self.marked.borrow().is_empty()
    }

    /// Marks `dirty` blocks, if that is due and the last sweep over marked blocks has ended.
    /// Returns whether it did. Blocks that wait for their next try are not marked: they must not
    /// delay the sweep.
    pub(super) fn mark_if_due(&self, dirty: &RoaringTreemap, waiting: &RoaringTreemap) -> bool {
        let marks = self.marked.borrow().is_empty() && self.is_due.replace(false);
        if marks {
            *self.marked.borrow_mut() = dirty - waiting;
        }
        marks
    }

    fn clear(&self) {
        self.is_due.set(false);
        self.marked.borrow_mut().clear();
        self.marked_before.set(0);
    }
}

impl Writeback {
    /// Begins to count periods: at a start, and when `max_age` has changed.
    pub(crate) fn start_ages(self: &Rc<Writeback>) {
        let number = self.picker.ages.task.get() + 1;
        self.picker.ages.task.set(number);
        if self.store.tuning().max_age.is_none() {
            self.picker.ages.clear();
        } else if !self.store.life.stopping.get() {
            reactor::spawn(Writeback::age_task(Rc::downgrade(self), number));
        }
    }

    /// `max_age` has changed on a live device. The age of blocks is not known, so all dirty blocks
    /// are written back once.
    pub(crate) fn restart_ages(self: &Rc<Writeback>) {
        self.mark_old();
        self.start_ages();
    }

    fn mark_old(&self) {
        let ignored = self.store.has_fault(Fault::IgnoreAge) && self.is_busy();
        if !ignored && self.store.config.ordered {
            // With epochs all blocks that are dirty now belong to the epochs that are marked.
            self.store.slots.borrow_mut().close_epoch();
            self.picker.ages.marked_before.set(self.store.slots.borrow().open_epoch());
            self.recheck();
        } else if !ignored {
            self.picker.ages.is_due.set(true);
            self.recheck();
        }
    }

    /// A task: marks all dirty blocks every period. Suspend does not wait for this task, because it
    /// may sleep for long. While it sleeps it holds no reference to the cache.
    async fn age_task(weak: Weak<Writeback>, number: u64) {
        let over = |c: &Writeback| {
            c.store.life.stopping.get()
                || c.store.health().is_err()
                || c.picker.ages.task.get() != number
        };
        while let Some(wb) = weak.upgrade() {
            // Sleep only while a block is dirty: an idle cache has no timer.
            let unsaved = || wb.store.counts().dirty + wb.store.counts().zero > 0;
            wb.store.waits.first_change.wait_for(|| unsaved() || over(&wb)).await;
            let max_age = wb.store.tuning().max_age;
            let (Some(max_age), false) = (max_age, over(&wb)) else { return };
            drop(wb);
            reactor::sleep(period(max_age)).await;
            let Some(wb) = weak.upgrade() else { return };
            if over(&wb) {
                return;
            }
            wb.mark_old();
        }
    }
}
