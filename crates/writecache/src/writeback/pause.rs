// SPDX-License-Identifier: Apache-2.0 OR MIT
//! Pause: writeback leaves the origin to clients that have just written to it (`pause_writeback`).
use std::rc::{Rc, Weak};

use block::Nanos;

use super::Writeback;

impl Writeback {
    /// Whether the cache takes nothing new and is written back until nothing is dirty.
    pub(crate) fn is_emptied(&self) -> bool {
        self.store.tuning().cleaner || self.store.is_drain_only()
    }

    /// Whether writeback leaves the origin to writes that have just gone there (`pause_writeback`).
    /// No writer of the cache is slowed for that.
    pub(crate) fn is_paused(&self) -> bool {
        let pause = self.store.tuning().pause_writeback;
        let slowed = || u64::from(self.store.free_blocks()) < self.room.pacer.borrow().start();
        self.origin.around.idle().is_some_and(|idle| idle < pause) && !slowed()
    }

    /// Starts a timer that wakes the picking task when the pause is over.
    pub(crate) fn time_pause(self: &Rc<Writeback>) {
        let paused = self.is_paused() && !self.store.life.stopping.get();
        if paused && !self.origin.around.timer.replace(true) {
            reactor::spawn(Writeback::pause_task(Rc::downgrade(self)));
        }
    }

    /// A task while there is a pause. Asleep it does not keep the cache, and suspend does not wait
    /// for it.
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
