// SPDX-License-Identifier: Apache-2.0 OR MIT
//! The bottom of every stack: leaf devices, their counters, and their throttle.
//!
//! ```text
//!        bio ──── where blocks are larger than sectors ──▶ MergingLeaf
//!         │ check limits, count                                  │ whole blocks
//!   ┌─────▼─────┐   ┌───────────┐   ┌───────────┐                │
//!   │ FileLeaf  │◀──│    Mem    │───│   Null    │────────────────┘
//!   │    wbt    │   │           │   │           │
//!   └─────┬─────┘   └───────────┘   └───────────┘
//!         │ Sqe       RAM, at once    nothing, at once
//!       driver
//! ```
//!
//! Invariants
//! - QU-Q1 Every bio that enters a leaf is counted in flight once and counted done once, also when
//!   it is refused.
//! - QU-Q2 A bio that a leaf accepts reaches the driver whole and in order of submission.
//!   Exceptions: the throttle delays writes and discards, and sends large writes in pieces (`wbt`).
//! - QU-Q3 A leaf keeps the border contract by itself: where the driver has no FUA for an
//!   operation, the leaf sends the operation and then a flush.
//! - QU-Q4 After a failed FLUSH, each opener of a file leaf that has changed something gets an
//!   error from one FLUSH (`flush_errors`).
#![warn(missing_docs)]

mod file;
mod flush_errors;
mod leaf;
mod mem;
mod merge;
mod null;
mod planted;
mod stats;
mod sync_order;
#[cfg(test)]
mod testing;
pub mod wbt;

pub use file::{FileLeaf, FindHoles};
pub use flush_errors::SharedFlushErrors;
pub use leaf::{Leaf, OpenFile, SharedLeaf};
pub use mem::Mem;
pub use merge::{BlockLeaf, MergingLeaf};
pub use null::Null;
pub use stats::{Counts, OtherCores, Stats, Ticket, requests_are_timed, time_requests};
