// SPDX-License-Identifier: Apache-2.0 OR MIT
//! The lock of a device's control operations (DM-D3). A removal by force withdraws it from its
//! owner.
use std::cell::Cell;
use std::rc::Rc;

use block::crashing;
use reactor::WaitList;

/// A mutual exclusion of tasks, which can be withdrawn.
#[derive(Default)]
pub(crate) struct ControlLock {
    owned: Cell<bool>,
    withdrawn: Cell<bool>,
    waiters: WaitList,
}

/// Owns the lock until it is dropped.
#[must_use = "the lock is free again when this is dropped"]
pub(crate) struct ControlGuard(Rc<ControlLock>);

impl ControlLock {
    /// Whether a task that asks for the lock now would wait.
    pub(crate) fn is_owned(&self) -> bool {
        self.owned.get() && !self.withdrawn.get()
    }

    /// Waits for the lock. `None` once it has been withdrawn.
    pub(crate) async fn acquire(self: Rc<Self>) -> Option<ControlGuard> {
        self.waiters.wait_for(|| self.withdrawn.get() || !self.owned.replace(true)).await;
        if self.withdrawn.get() { None } else { Some(ControlGuard(self)) }
    }

    /// From now on nobody gets the lock. Its owner sees it by [`ControlGuard::is_withdrawn`].
    pub(crate) fn withdraw(&self) {
        self.withdrawn.set(true);
        self.waiters.wake_all();
    }

    /// Waits until a withdrawn lock has no owner.
    pub(crate) async fn idle(&self) {
        self.waiters.wait_for(|| !self.owned.get()).await;
    }
}

impl ControlGuard {
    /// Whether the lock was withdrawn from this owner.
    pub(crate) fn is_withdrawn(&self) -> bool {
        self.0.withdrawn.get()
    }
}

impl Drop for ControlGuard {
    fn drop(&mut self) {
        self.0.owned.set(false);
        if !crashing() {
            self.0.waiters.wake_all();
        }
    }
}
