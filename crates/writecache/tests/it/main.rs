// SPDX-License-Identifier: Apache-2.0 OR MIT
//! The write cache: tests of its public items, one file for each subject.
#![expect(clippy::unwrap_used, reason = "a test fails by panicking")]

mod age;
mod allocation;
mod around;
mod background;
mod behaviour;
mod buffer;
mod buffer_frames;
mod cache_back;
#[path = "../common/mod.rs"]
mod common;
mod cost;
mod crafted;
mod dm;
mod errors;
mod failed_flush;
mod failed_gaps;
mod first_reads;
mod gap_budget;
mod golden_dm;
mod gone;
mod grow;
mod guard;
mod guard_damage;
mod journal;
mod journal_damage;
mod later;
mod limits;
mod manual;
mod media;
mod memory;
mod missing;
mod owner;
mod pacing;
mod planted;
mod probe;
mod read_cache;
mod recorded;
mod regressions;
mod released;
mod reopened;
mod scrub;
mod sectors;
mod sequential;
mod session;
mod slot_reads;
mod through;
mod traces;
mod used;
mod zeroes;
