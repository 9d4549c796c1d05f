// SPDX-License-Identifier: Apache-2.0 OR MIT
//! objvol: tests of its public items, one file for each subject.
#![expect(clippy::unwrap_used, reason = "a test fails by panicking")]

mod border;
mod bucket;
mod catalogue;
mod check;
mod collection;
mod crash;
mod exhaustive;
mod fixture;
mod garbage;
mod increments;
mod judge;
mod later;
mod long_objects;
mod manual;
mod owner_record;
mod owners;
mod planted;
mod racing_store;
mod read_ahead;
mod resize;
mod snapshots;
mod takeover;
mod target;
mod volume;
mod writer;
