// SPDX-License-Identifier: Apache-2.0 OR MIT
//! An adversary of the whole program, which shares no code with it: not its simulator, not its
//! oracle, not its NBD. What it promises and how a failure is read: docs/attack.md.
//!
//! ```text
//!   operator ──▶ millpond's command line        suspend, reload, flush, drain, set, ...
//!   client, file_client ──▶ NBD, files ──▶ millpond ──▶ disk ─ media   volatile, torn, failing
//!        │                                    ▲            ▲
//!        ▼                                    │            │
//!      judge ◀── every request and its end    rig ─────────┘ kill -9, power cuts, restarts
//! ```
//!
//! - `scenario` the devices that are attacked; `rig` rounds of one of them, and below it acts:
//!   `verbs` beside a disk in trouble, `late` writes of a removed device, `swaps` of tables;
//!   `daemon` the program as a child; `campaign` many rounds, and their figures
//! - `disk` an NBD server before a `media`, which is volatile until flushed; `disk_faults` what all
//!   disks do in a round
//! - `client`, `file_client` requests that overlap; `crowd` several of them; `operator` a person
//!   with a command line
//! - `judge` the history of every sector, and which of its versions may be there; `origin` the same
//!   of the origin of an `ordered` cache alone; `history` words for both; `pattern` what sectors
//!   hold; `report` the judge's findings in words
//! - `wire` the NBD protocol, `rng` random numbers of one seed

use std::time::Duration;

pub mod binary;
pub mod campaign;
pub mod client;
pub mod crowd;
pub mod daemon;
pub mod disk;
pub mod disk_faults;
pub mod file_client;
pub mod history;
pub mod judge;
pub mod media;
pub mod operator;
pub mod origin;
pub mod pattern;
pub mod report;
pub mod rig;
pub mod rng;
pub mod scenario;
pub mod wire;

/// What went wrong, in words for who runs this.
pub type Result<T, E = String> = std::result::Result<T, E>;

/// Seconds since some moment.
pub fn clock() -> f64 {
    let now = rustix::time::clock_gettime(rustix::time::ClockId::Monotonic);
    now.tv_sec as f64 + now.tv_nsec as f64 / 1e9
}

/// Waits a while.
#[expect(clippy::disallowed_methods, reason = "disks, clients and children take real time")]
pub fn pause(time: Duration) {
    std::thread::sleep(time);
}

/// Waits so many milliseconds.
pub fn pause_ms(ms: u64) {
    pause(Duration::from_millis(ms));
}

/// A thread.
#[expect(clippy::disallowed_methods, reason = "clients and disks are beside each other")]
pub fn spawn<T: Send + 'static>(
    work: impl FnOnce() -> T + Send + 'static,
) -> std::thread::JoinHandle<T> {
    std::thread::spawn(work)
}

/// Locks, also after another thread has panicked with the lock.
pub fn lock<T>(mutex: &std::sync::Mutex<T>) -> std::sync::MutexGuard<'_, T> {
    mutex.lock().unwrap_or_else(std::sync::PoisonError::into_inner)
}
