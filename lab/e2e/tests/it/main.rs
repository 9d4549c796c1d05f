// SPDX-License-Identifier: Apache-2.0 OR MIT
//! Engines, verbs and tools of the whole program, with real file systems and programs above them:
//! one file for each subject. The program `doors` has the clients.
#![expect(clippy::unwrap_used, reason = "a test fails by panicking")]

mod bare_origin; // takes longest: tests begin in the order of their names
mod buffered;
mod demo;
mod dmsetup;
mod guard;
mod guard_repair;
mod journal;
mod limits;
mod loop_devices;
mod objvol;
mod objvol_away;
mod objvol_check;
mod objvol_credentials;
mod objvol_offline;
mod objvol_outside;
mod objvol_snapshots;
mod objvol_writers;
mod offline;
mod pmem;
mod published;
mod removal;
mod run;
mod signed_areas;
mod stores;
mod zram;
mod zram_session;
