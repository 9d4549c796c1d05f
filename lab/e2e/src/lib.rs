// SPDX-License-Identifier: Apache-2.0 OR MIT
//! The whole program under real clients: what the tests and the demo share.
//!
//! ```text
//!   tests/*.rs, bin/demo, bin/previous, bin/published, bin/soak, bin/power_cut
//!     ├─ previous  the release before: its program, and media that it left
//!     ├─ published procedures that others have published
//!     ├─ soak      upgrades and kills at random moments, under clients that verify
//!     ├─ test_bed  a test's folder, files and daemon
//!     ├─ daemon    millpond with a folder of its own: start, kill -9, SIGTERM, verbs
//!     ├─ fio       runs of fio over NBD, and what they measured
//!     ├─ origin    other people's NBD servers, which our devices stand on
//!     ├─ bucket    an object store that has bad days
//!     ├─ mounted   devices as files
//!     ├─ stamp     self-describing blocks; knows what a crash may leave of them
//!     ├─ client    a small NBD client for stamps, and for malformed requests
//!     ├─ virtual_machine  a vhost-user front end and its guest's driver, for malformed input too
//!     ├─ loops     loop devices and mounts
//!     ├─ undo      clean-up of mounts, loop devices and folders, however a program ends
//!     └─ process   child processes: output, deadline, none left behind
//! ```
//!
//! Invariants
//! - EE-E1 No process outlives what started it: children are killed when their owner is dropped.
//! - EE-E2 Every wait for a child or a socket has a deadline.

use std::time::Duration;

pub mod binary;
pub mod bucket;
pub mod client;
pub mod daemon;
pub mod fio;
pub mod loops;
pub mod mounted;
pub mod origin;
pub mod previous;
pub mod process;
pub mod published;
pub mod soak;
pub mod stamp;
pub mod test_bed;
pub mod undo;
pub mod virtual_machine;

/// What went wrong, in words for who runs a test or the demo.
pub type Result<T, E = String> = std::result::Result<T, E>;

/// Seconds since some moment. Here real programs run in real time.
pub fn clock() -> f64 {
    use rustix::time::{ClockId, clock_gettime};
    let now = clock_gettime(ClockId::Monotonic);
    now.tv_sec as f64 + now.tv_nsec as f64 / 1e9
}

/// Waits a while for other processes.
#[expect(clippy::disallowed_methods, reason = "other processes take real time")]
pub fn pause(time: Duration) {
    std::thread::sleep(time);
}
