// SPDX-License-Identifier: Apache-2.0 OR MIT
//! Group commit: one run of some work serves all callers that asked before it began.
use std::cell::Cell;

use block::Status;
use reactor::WaitList;

/// See the module.
#[derive(Default)]
pub(crate) struct Group {
    begun: Cell<u64>,
    ended: Cell<u64>,
    running: Cell<bool>,
    /// The last run that failed.
    failed: Cell<Option<(u64, Status)>>,
    wait: WaitList,
}

impl Group {
    /// The first run that will begin after this call.
    pub(crate) fn next(&self) -> u64 {
        self.begun.get() + 1
    }

    /// Returns after run `need` of `work` has ended, with its outcome; or with the error of a later
    /// run that has ended by then.
    pub(crate) async fn join(
        &self,
        need: u64,
        work: impl AsyncFnOnce() -> Result<(), Status>,
    ) -> Result<(), Status> {
        self.wait.wait_for(|| self.ended.get() >= need || !self.running.get()).await;
        if self.ended.get() < need {
            self.running.set(true);
            let mine = self.next();
            self.begun.set(mine);
            if let Err(status) = work().await {
                self.failed.set(Some((mine, status)));
            }
            self.ended.set(mine);
            self.running.set(false);
            self.wait.wake_all();
        }
        match self.failed.get() {
            Some((run, status)) if run >= need => Err(status),
            Some(_) | None => Ok(()),
        }
    }
}
