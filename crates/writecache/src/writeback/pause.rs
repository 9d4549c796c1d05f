// SPDX-License-Identifier: Apache-2.0 OR MIT
//! Pause: writeback pauses after clients have written to the origin (`pause_writeback`).
use std::rc::{Rc, Weak};

use block::Nanos;

use super::Writeback;

impl Writeback {
    /// Whether the cache takes no new blocks and is written back until no block is dirty.
    pub(crate) fn is_emptied(&self) -> bool {
        self.store.tuning().cleaner || self.store.is_drain_only()
    }

    /// Whether writeback pauses because of recent writes around the cache (`pause_writeback`).
    /// Writers of the cache are not slowed for it.
    pub(crate) fn is_paused(&self) -> bool {
        let pause = self.store.tuning().pause_writeback;
        let slowed = || u64::from(self.store.free_blocks()) < self.pacing.pacer.borrow().start();
        self.origin.around.idle().is_some_and(|idle| idle < pause) && !slowed()
    }

    /// Starts a timer that wakes the picking task when the pause is over.
    pub(crate) fn start_pause_timer(self: &Rc<Writeback>) {
        let paused = self.is_paused() && !self.store.life.stopping.get();
        if paused && !self.origin.around.timer.replace(true) {
            reactor::spawn(Writeback::pause_task(Rc::downgrade(self)));
        }
    }

    /// A task during a pause. Suspend does not wait for this task, which holds no reference while
    /// it sleeps.
    async fn pause_task(weak: Weak<Writeback>) {
        while let Some(wb) = weak.upgrade() {
            if !wb.is_paused() || wb.store.life.stopping.get() || wb.store.health().is_err() {
                wb.origin.around.timer.set(false);
                wb.recheck();
                return;
            }
            let idle = wb.origin.around.idle().unwrap_or_default();
            let left = Nanos(wb.store.tuning().pause_writeback.0.saturating_sub(idle.0).max(1));
            drop(wb);
            reactor::sleep(left).await;
        }
    }
}
