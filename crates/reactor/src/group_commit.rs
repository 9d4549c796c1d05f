// SPDX-License-Identifier: Apache-2.0 OR MIT
//! Group commit: one run of some work serves all callers that asked for it before it began.
//!
//! ```text
//!   callers   a ─┐       b c d ─┐
//!   runs         └▶ 1 ══════════╪▶ 2 ══════▶       b, c and d share run 2: run 1 had begun
//! ```
//!
//! N concurrent callers cost at most two runs: the one that is under way, and one more.
use std::cell::Cell;

use block::Status;

use crate::wait::WaitList;

/// The runs of one piece of work. The first caller that finds no run under way executes the next.
///
/// It does not fit where a run must know its callers.
#[derive(Default)]
pub struct GroupCommit {
    begun: Cell<u64>,
    ended: Cell<u64>,
    running: Cell<bool>,
    /// The last run that failed, and its error.
    failed: Cell<Option<(u64, Status)>>,
    wait: WaitList,
}

impl GroupCommit {
    /// Whether a run is under way.
    pub fn is_running(&self) -> bool {
        self.running.get()
    }

    /// The number of the first run that will begin after this call.
    pub fn next_run(&self) -> u64 {
        self.begun.get() + 1
    }

    /// Returns when a run of `work` that began after this call has ended.
    pub async fn join(&self, work: impl AsyncFnOnce()) {
        self.join_run(self.next_run(), work).await;
    }

    /// Returns when run `run`, or a later one, has ended. Fails with the error of that run, or of a
    /// later one that has ended by then.
    pub async fn join_fallible(
        &self,
        run: u64,
        work: impl AsyncFnOnce() -> Result<(), Status>,
    ) -> Result<(), Status> {
        self.join_run(run, async || {
            if let Err(status) = work().await {
                self.failed.set(Some((self.begun.get(), status)));
            }
        })
        .await;
        match self.failed.get() {
            Some((failed, status)) if failed >= run => Err(status),
            Some(_) | None => Ok(()),
        }
    }

    async fn join_run(&self, run: u64, work: impl AsyncFnOnce()) {
        self.wait.wait_for(|| self.ended.get() >= run || !self.running.get()).await;
        if self.ended.get() >= run {
            return;
        }
        self.running.set(true);
        let mine = self.next_run();
        self.begun.set(mine);
        work().await;
        self.ended.set(mine);
        self.running.set(false);
        self.wait.wake_all();
    }
}

block::debug_as!(GroupCommit, s => "GroupCommit({} begun, {} ended)", s.begun.get(), s.ended.get());
