// SPDX-License-Identifier: Apache-2.0 OR MIT
//! Life cycle: whether background tasks may run. A device is resumed and suspended many times; the
//! time between is a period.
//!
//! ```text
//!   resume ─▶ running ─ suspend ─▶ stopping ─ tasks have ended, all is committed ─▶ quiesced
//! ```
use std::cell::Cell;
use std::rc::Rc;

use reactor::WaitList;

/// See the module.
#[derive(Default)]
pub(crate) struct Lifecycle {
    /// No new background work; set by suspend.
    pub(crate) stopping: Cell<bool>,
    /// Nothing more is committed; ends the checkpoint task, which runs while `checkpoints_on`.
    pub(crate) quiesced: Cell<bool>,
    pub(crate) checkpoints_on: Cell<bool>,
    /// The number of the period: a task that slept through a suspend finds another one, and ends.
    pub(crate) period: Cell<u64>,
    /// Background tasks that have not ended.
    pub(crate) tasks: Rc<Tasks>,
}

/// Background tasks that have not ended, and the list that waits for their end.
#[derive(Default)]
pub(crate) struct Tasks {
    count: Cell<u32>,
    pub(crate) ended: WaitList,
}

impl Tasks {
    pub(crate) fn count(&self) -> u32 {
        self.count.get()
    }
}

impl Lifecycle {
    /// Counts a task until the guard is dropped.
    pub(crate) fn guard(&self) -> TaskGuard {
        self.tasks.count.set(self.tasks.count.get() + 1);
        TaskGuard(self.tasks.clone())
    }
}

/// Counts a background task while it lives, so that suspend can wait for its end.
pub(crate) struct TaskGuard(Rc<Tasks>);

impl Drop for TaskGuard {
    fn drop(&mut self) {
        if !block::crashing() {
            self.0.count.set(self.0.count.get() - 1);
            self.0.ended.wake_all();
        }
    }
}
