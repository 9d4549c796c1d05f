// SPDX-License-Identifier: Apache-2.0 OR MIT
//! Autocommit: commits without a FLUSH, after many changes, and some time after the first one.
use std::rc::{Rc, Weak};

use block::Nanos;

use super::Store;
use crate::lifecycle::TaskGuard;

impl Store {
    /// A task: commits when many blocks have changed.
    pub(crate) async fn commit_when_many_task(self: Rc<Store>, _guard: TaskGuard) {
        loop {
            let end = || self.life.stopping.get() || self.health().is_err();
            self.waits.commit.wait_for(|| self.is_commit_due() || end()).await;
            if end() || self.commit().await.is_err() {
                return;
            }
        }
    }

    /// Begins to commit some time after first changes: at a start, and when that time has changed.
    pub(crate) fn start_autocommit(self: &Rc<Store>) {
        let number = self.life.autocommit.get() + 1;
        self.life.autocommit.set(number);
        self.waits.first_change.wake_all();
        if !self.life.stopping.get() {
            reactor::spawn(Store::commit_when_old_task(Rc::downgrade(self), number));
        }
    }

    /// A task: commits some time after the first change. Suspend does not wait for this task,
    /// because it may sleep for long. While it sleeps it holds no reference to the cache, so that
    /// the devices may be closed.
    async fn commit_when_old_task(weak: Weak<Store>, number: u64) {
        while let Some(store) = weak.upgrade() {
            let end = || {
                let over = store.life.stopping.get() || store.life.autocommit.get() != number;
                over || store.health().is_err()
            };
            store.waits.first_change.wait_for(|| store.counts().unlogged > 0 || end()).await;
            if end() {
                return;
            }
            let time = store.tuning().autocommit_time.max(Nanos::from_millis(1));
            drop(store);
            reactor::sleep(time).await;
            let Some(store) = weak.upgrade() else { return };
            let over = store.life.stopping.get() || store.life.autocommit.get() != number;
            if over || store.commit().await.is_err() {
                return;
            }
        }
    }
}
