// SPDX-License-Identifier: Apache-2.0 OR MIT
//! The thread for work that blocks: reading files, starting a successor, joining threads. It starts
//! with the daemon and stays.
//!
//! Invariant
//! - HO-B1 No limit of threads (`TasksMax=`, `pids.max`, RLIMIT_NPROC) that is met later ends the
//!   process: tokio panics when work that blocks has no thread at all, and waits for one that there
//!   is.
use std::time::Duration;

use control::Failure;

use crate::io_failure::io_failure;

/// How long an idle thread stays: for ever.
pub const KEEP_BLOCKING_THREADS: Duration = Duration::from_secs(u32::MAX as u64);

/// Starts the thread.
///
/// # Errors
/// When no thread can be started.
pub(crate) async fn start_blocking_thread() -> Result<(), Failure> {
    let failed = |e: std::io::Error| io_failure(&e, "a thread for work that blocks");
    // Of this one an error is returned.
    let first = std::thread::Builder::new().spawn(|| ()).map_err(failed)?;
    let _ = first.join();
    tokio::task::spawn_blocking(|| ()).await.map_err(|e| failed(e.into()))
}
