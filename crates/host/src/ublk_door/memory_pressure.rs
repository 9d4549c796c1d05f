// SPDX-License-Identifier: Apache-2.0 OR MIT
//! Threads that serve block devices, when memory is short: the kernel then writes to these very
//! devices, and waits for the threads that serve them.
//!
//! ```text
//!   a core wants memory ─▶ the kernel writes dirty pages to /dev/ublkbN ─▶ waits for the core
//! ```
use std::io;
use std::sync::Once;

use rustix::mm::{MlockAllFlags, mlockall};
use rustix::process::configure_io_flusher_behavior;

/// Prepares this thread, and those that it starts from now on: the kernel does not write to devices
/// to find memory for them, and does not slow their own writes as those of others.
pub(crate) fn prepare_thread() {
    static LOGGED: Once = Once::new();
    if let Err(e) = configure_io_flusher_behavior(true) {
        let e = io::Error::from(e);
        LOGGED.call_once(|| {
            tracing::warn!(
                "block devices: when memory is short, the daemon may wait for its own block \
                 devices: PR_SET_IO_FLUSHER: {e}: it needs CAP_SYS_RESOURCE"
            );
        });
    }
}

/// Keeps the program in memory, with all that the process has now: pages that it has used once are
/// not read again, from a disk that may be one of its own. To be called before there are devices:
/// their memory may be as large as they are, and is not locked.
pub(crate) fn lock_program() {
    if let Err(e) = mlockall(MlockAllFlags::CURRENT | MlockAllFlags::ONFAULT) {
        let e = io::Error::from(e);
        tracing::warn!(
            "block devices: the program may be paged out, and read again from a disk: mlockall: \
             {e}: it needs CAP_IPC_LOCK, or a higher RLIMIT_MEMLOCK"
        );
    }
}
