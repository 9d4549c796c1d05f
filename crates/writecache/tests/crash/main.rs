// SPDX-License-Identifier: Apache-2.0 OR MIT
//! The write cache through power cuts, kills and lost devices at any step: one file for each kind
//! of run. What random runs seldom reach, `exhaustive` goes through completely.
#![expect(clippy::unwrap_used, reason = "a test fails by panicking")]

mod buffer;
#[path = "../common/mod.rs"]
mod common;
mod grow;
mod journal;
mod lost_writes;
mod native;
mod ordered;
mod read_cache;
mod recover_killed;
mod reload;
mod removal;
mod replace;
mod simulate;
mod through;
