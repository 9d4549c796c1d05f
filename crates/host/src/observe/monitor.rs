// SPDX-License-Identifier: Apache-2.0 OR MIT
//! The monitor: has core 0 take snapshots when somebody asks, and keeps the last one.
use std::rc::Rc;
use std::sync::Arc;
use std::time::Duration;

use block::ErrorKind;
use control::Failure;
use tokio::sync::{Notify, watch};
use tokio::time::Instant;

use super::health::LeafFailures;
use super::snapshot::{Snapshot, snapshot};
use crate::core_thread::CoreHandle;
use crate::engine::Engine;

/// Requests within this time get the same snapshot (HO-O2).
const INTERVAL: Duration = Duration::from_millis(100);
/// How long a request waits for a snapshot; core 0 takes one in less than a millisecond.
const SNAPSHOT_TIME: Duration = Duration::from_secs(5);

/// A snapshot and what follows from it.
#[derive(Debug)]
pub(super) struct Observed {
    /// When core 0 was asked for it.
    at: Instant,
    pub(super) snapshot: Snapshot,
    pub(super) problems: Vec<String>,
}

/// Takes snapshots for any number of clients.
#[derive(Debug)]
pub(crate) struct Monitor {
    wanted: Notify,
    last: watch::Sender<Option<Arc<Observed>>>,
}

impl Monitor {
    /// Starts one; it ends when core 0 does. Needs a runtime.
    pub(crate) fn start(core: CoreHandle) -> Arc<Monitor> {
        queue::time_requests();
        let monitor = Arc::new(Monitor { wanted: Notify::new(), last: watch::Sender::new(None) });
        tokio::spawn(monitor.clone().observe(core));
        monitor
    }

    /// A task: takes a snapshot whenever one is wanted.
    async fn observe(self: Arc<Monitor>, core: CoreHandle) {
        let mut failures = LeafFailures::default();
        loop {
            self.wanted.notified().await;
            let at = Instant::now();
            let taken = core.call(async |engine: Rc<Engine>| snapshot(&engine).await).await;
            let Ok(snapshot) = taken else { return };
            let problems = failures.problems(&snapshot, at);
            self.last.send_replace(Some(Arc::new(Observed { at, snapshot, problems })));
            // Requests of this time have the snapshot.
            tokio::time::sleep_until(at + INTERVAL).await;
        }
    }

    /// A snapshot that is at most [`INTERVAL`] old.
    ///
    /// # Errors
    /// When core 0 takes none.
    pub(super) async fn observed(&self) -> Result<Arc<Observed>, Failure> {
        let asked = Instant::now();
        let mut last = self.last.subscribe();
        let is_fresh =
            |o: &Option<Arc<Observed>>| o.as_ref().is_some_and(|o| o.at + INTERVAL >= asked);
        if !is_fresh(&last.borrow()) {
            self.wanted.notify_one();
        }
        let found = tokio::time::timeout(SNAPSHOT_TIME, last.wait_for(is_fresh)).await;
        let found = found.ok().and_then(Result::ok).and_then(|found| found.clone());
        found.ok_or_else(|| {
            let message = format!("core 0 does not answer within {} s", SNAPSHOT_TIME.as_secs());
            Failure::new(ErrorKind::Busy, message)
        })
    }
}
