// SPDX-License-Identifier: Apache-2.0 OR MIT
//! The event number of a device, and the tasks that wait for it to change.
use std::cell::Cell;

use reactor::WaitList;

#[derive(Default)]
pub(super) struct EventCounter {
    number: Cell<u32>,
    waiters: WaitList,
}

impl EventCounter {
    pub(super) fn number(&self) -> u32 {
        self.number.get()
    }

    pub(super) fn raise(&self) {
        self.number.set(self.number.get().wrapping_add(1));
        self.waiters.wake_all();
    }

    /// Waits until the number is not `seen` any more.
    pub(super) async fn changed(&self, seen: u32) -> u32 {
        self.waiters.wait_for(|| self.number() != seen).await;
        self.number()
    }
}
