// SPDX-License-Identifier: Apache-2.0 OR MIT
//! A number of events, of a device or of all, and the tasks that wait for it to change.
use std::cell::Cell;

use reactor::WaitList;

#[derive(Default)]
pub(crate) struct EventCounter {
    number: Cell<u32>,
    waiters: WaitList,
}

impl EventCounter {
    pub(crate) fn number(&self) -> u32 {
        self.number.get()
    }

    pub(crate) fn raise(&self) {
        self.number.set(self.number.get().wrapping_add(1));
        self.waiters.wake_all();
    }

    /// Waits until the number is not `seen` any more.
    pub(crate) async fn changed(&self, seen: u32) -> u32 {
        self.waiters.wait_for(|| self.number() != seen).await;
        self.number()
    }
}
