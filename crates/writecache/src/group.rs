// SPDX-License-Identifier: Apache-2.0 OR MIT
//! Group: many callers share one run of some work. Callers that arrive during a run share the next.
use std::cell::Cell;

use reactor::WaitList;

/// A piece of work that must *begin* after its caller asked for it, and may serve many callers:
/// N concurrent flushes cost at most two runs, the one that was running and one more.
#[derive(Default)]
pub(crate) struct Group {
    begun: Cell<u64>,
    ended: Cell<u64>,
    running: Cell<bool>,
    wait: WaitList,
}

impl Group {
    /// Whether a run is in progress.
    pub(crate) fn is_running(&self) -> bool {
        self.running.get()
    }

    /// Returns when a run of `work` has ended that began after this call.
    pub(crate) async fn join(&self, work: impl AsyncFnOnce()) {
        let need = self.begun.get() + 1;
        self.wait.wait_for(|| self.ended.get() >= need || !self.running.get()).await;
        if self.ended.get() >= need {
            return;
        }
        self.running.set(true);
        let mine = need.max(self.begun.get() + 1);
        self.begun.set(mine);
        work().await;
        self.ended.set(mine);
        self.running.set(false);
        self.wait.wake_all();
    }
}
