// SPDX-License-Identifier: Apache-2.0 OR MIT
//! WaitLists: who waits for something of a cache to change. Those who wait for its first dirty or
//! uncommitted block are on a list of their own: that one comes after every commit, and the others
//! need not look at it.
use reactor::WaitList;

/// Both lists.
#[derive(Default)]
pub(crate) struct WaitLists {
    /// Who waits for the first dirty or uncommitted block.
    pub(crate) first_change: WaitList,
    others: WaitList,
}

impl WaitLists {
    /// Lets everybody look again.
    pub(crate) fn wake_all(&self) {
        self.first_change.wake_all();
        self.others.wake_all();
    }

    /// Waits until `ready` holds.
    pub(crate) async fn wait_for(&self, ready: impl FnMut() -> bool) {
        self.others.wait_for(ready).await;
    }
}
