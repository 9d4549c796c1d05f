// SPDX-License-Identifier: Apache-2.0 OR MIT
//! Queue: the bottom of every stack. Leaf devices, what they count, and how a bio leaves for the
//! driver.
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
//! - QU-Q1 Every bio that enters is counted in flight once and counted done once, also when
//!   refused.
//! - QU-Q2 What passes the limits of a leaf reaches the driver in order of submission and whole,
//!   but for writes and discards that its throttle lets wait, and writes that it cuts (`wbt`).
//! - QU-Q3 A leaf keeps the border contract by itself: FUA on an operation for which the driver has
//!   no FUA is that operation and then a flush.
//! - QU-Q4 Each opener of a file leaf that has changed something gets an error from a FLUSH after a
//!   failed one (`flush_errors`).
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

pub use file::FileLeaf;
pub use flush_errors::SharedFlushErrors;
pub use leaf::{Leaf, OpenFile, SharedLeaf};
pub use mem::Mem;
pub use merge::{BlockLeaf, MergingLeaf};
pub use null::Null;
pub use stats::{Counts, Elsewhere, Stats, Ticket};
