// SPDX-License-Identifier: Apache-2.0 OR MIT
//! Observation: what the daemon shows of itself, and the listener that shows it.
//!
//! ```text
//!   core 0                        threads of tokio
//!   snapshot ── Snapshot ──▶ monitor ──┬▶ families   /metrics
//!   (engines, leaves, NBD)             ├▶ health     /healthz
//!                                      ├▶ status     /status.json, for the page at /
//!                                      └▶ listener   GET and HEAD only
//!   tables: the numbers besides those of the engines
//! ```
//!
//! Invariants
//! - HO-O1 Nothing here changes anything: a snapshot is read, and requests have no body.
//! - HO-O2 Core 0 makes at most one snapshot at a time, and at most one in [`monitor`]'s interval,
//!   however many clients ask.
//! - HO-O3 A connection has one request and ends soon, whatever its client does; when there are too
//!   many, the oldest ends that has not sent its request, or the oldest.
#[cfg(test)]
mod catalogue_tests;
mod families;
mod health;
mod listener;
mod monitor;
mod page;
mod process;
mod snapshot;
mod status;
mod tables;

pub(crate) use families::text;
pub(crate) use listener::serve;
pub(crate) use monitor::Monitor;
pub(crate) use process::note_start;
pub(crate) use snapshot::snapshot;
