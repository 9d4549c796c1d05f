// SPDX-License-Identifier: Apache-2.0 OR MIT
//! Life cycle: whether background tasks may run. A device is resumed and suspended many times; a
//! period is the time from a resume to the next suspend.
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
    /// Background tasks begin nothing that takes long, and a `flush` or `drain` ends unfinished: a
    /// suspend is about to follow, and would wait for them.
    pub(crate) background_paused: Cell<bool>,
    /// Background tasks must end; set by suspend.
    pub(crate) stopping: Cell<bool>,
    /// No more commits will come: the checkpoint task must end. It runs while `checkpoints_on`.
    pub(crate) quiesced: Cell<bool>,
    pub(crate) checkpoints_on: Cell<bool>,
    /// A checkpoint is being written.
    pub(crate) in_checkpoint: Cell<bool>,
    /// The cache takes the space by which its cache device has grown.
    pub(crate) is_growing: Cell<bool>,
    /// The number of the period. A task that slept during a suspend finds another number, and ends.
    pub(crate) period: Cell<u64>,
    /// The number of the task that commits some time after the first change.
    pub(crate) autocommit: Cell<u64>,
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
    /// Whether a suspend has begun, or is about to.
    pub(crate) fn is_about_to_stop(&self) -> bool {
        self.stopping.get() || self.background_paused.get()
    }

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
