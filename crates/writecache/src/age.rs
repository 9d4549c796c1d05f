// SPDX-License-Identifier: Apache-2.0 OR MIT
//! Age: nothing stays dirty for longer than `max_age`, however busy writeback is.
//!
//! ```text
//!   dirty since   ├────────── at most a period ─────────┤── one sweep over all marked ──┤
//!                 0                                    mark                          written
//! ```
//!
//! Every 15/16 of `max_age` (where the kernel starts too) whatever is dirty is *marked*; marked
//! blocks are written back before all others, in one sweep. A block leaves the marked ones as it is
//! picked. There is no clock for each block: a mark is one bitmap, which is empty
//! again after its sweep; and a block that is overwritten all the time, whose newest version is
//! never old, is written back like any other.
//!
//! Invariants
//! - WC-G1 A block is marked at most one period after it became dirty: periods follow one another
//!   while anything is dirty.
//! - WC-G2 A marked block is picked within one sweep over the marked blocks. Nobody joins it: a
//!   writer that dirties block after block ahead of the sweep would keep it from ever coming round.
//!   A mark that is due meanwhile is made when the sweep has ended.
//!
//! So a block is dirty for at most 15/16 of `max_age`, one sweep over what is dirty at one moment,
//! and the origin flush behind it; if those take less than 1/16 of `max_age`, for `max_age`. Where
//! a sweep takes longer than 15/16 of `max_age`, for two sweeps: more can't be had from that disk
//! in sorted order. Blocks found at a start are new: nothing on the media says how old they are.
use std::cell::Cell;
use std::rc::{Rc, Weak};

use block::Nanos;

use crate::cache::Cache;
use crate::config::Mutation;

/// Which task counts periods: a change of `max_age` begins anew.
#[derive(Default)]
pub(crate) struct Age {
    turn: Cell<u64>,
}

/// Time between marks: what is left of `max_age` is for the sweep. Not below the 1 ms of the
/// option, so that `max_age 0` writes back at once and does not spin.
fn period(max_age: Nanos) -> Nanos {
    Nanos(max_age.0 - max_age.0 / 16).max(Nanos::from_millis(1))
}

impl Cache {
    /// Begins to count: at a start, and when `max_age` has changed.
    pub(crate) fn start_ages(self: &Rc<Cache>) {
        let turn = self.age.turn.get() + 1;
        self.age.turn.set(turn);
        if self.tuning().max_age.is_none() {
            self.writeback.unmark();
        } else if !self.stopping.get() {
            reactor::spawn(Cache::age_task(Rc::downgrade(self), turn));
        }
    }

    /// `max_age` has changed on a live device: how old blocks are is not known, so that whatever
    /// is dirty is written back once.
    pub(crate) fn restart_ages(self: &Rc<Cache>) {
        self.mark();
        self.start_ages();
    }

    fn mark(&self) {
        let ignored = self.mutation(Mutation::IgnoreAge) && self.writeback.is_busy();
        if !ignored && self.config.ordered {
            // Writeback in the order of epochs comes to all that is dirty now, and to nothing else
            // before.
            self.slots.borrow_mut().close_epoch();
            self.writeback.mark_before(self.slots.borrow().open_epoch());
        } else if !ignored {
            self.writeback.mark();
        }
        self.waits.wake_all();
    }

    /// A task: marks what is dirty, every period. Suspend does not wait for it, because it sleeps;
    /// asleep it does not keep the cache.
    async fn age_task(weak: Weak<Cache>, turn: u64) {
        let over = |c: &Cache| c.stopping.get() || c.health().is_err() || c.age.turn.get() != turn;
        while let Some(cache) = weak.upgrade() {
            // Only while something is dirty: an idle cache has no timer.
            let unsaved = || cache.counts().dirty + cache.counts().zero > 0;
            cache.waits.first_change.wait_for(|| unsaved() || over(&cache)).await;
            let max_age = cache.tuning().max_age;
            let (Some(max_age), false) = (max_age, over(&cache)) else { return };
            drop(cache);
            reactor::sleep(period(max_age)).await;
            let Some(cache) = weak.upgrade() else { return };
            if over(&cache) {
                return;
            }
            cache.mark();
        }
    }
}
