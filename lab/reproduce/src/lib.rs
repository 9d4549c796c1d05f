// SPDX-License-Identifier: Apache-2.0 OR MIT
//! The scenarios behind the published figures. Each compares one mechanism off and on, in the same
//! engines that serve clients: on files of this machine, or on models of disks in virtual time.
//!
//! ```text
//!   flush ── flush_sim, flush_disk, flush_steady     a write cache is flushed
//!   wbt_sim, mixed_load                              a reader beside a writer
//!   iomap                                            a page cache is written back
//!   compressed                                       idle pages of a compressed RAM disk
//!   mapped                                           stacks of pure mappings
//!        │
//!   scenario   alternating rounds, or parallel simulations (`rounds`); medians (`median`)
//!        │
//!     Section ── tables, goals, keys          `make bench-*`: all options, at length
//!        └────── rows, plots, keys, notes     `reproduce`: text, html
//! ```
//!
//! A bench parses options and prints a section. What needs outside programs is measured in the
//! crate `bench`.
//!
//! Invariants
//! - RP-R1 In virtual time a scenario is a function of its arguments: it reads no clock, and all
//!   random numbers come from the seed.
//! - RP-R2 The program leaves no files behind, however it ends: files have no names (`tmpfile`).
//! - RP-R3 Measured data is checked: what can be read back is read back and compared, or a sample
//!   of it.

pub mod compressed;
pub mod cpu;
pub mod dm_bench;
pub mod flush;
pub mod flush_disk;
pub mod flush_sim;
pub mod flush_steady;
mod headline;
mod html;
pub mod iomap;
pub mod machine;
pub mod median;
pub mod mixed_load;
pub mod report;
pub mod rounds;
pub mod scenario;
pub mod size_counter;
mod svg;
pub mod table;
mod text;
pub mod tmpfile;
pub mod wbt_sim;

/// Seconds of the monotonic clock. Unlike the engines, this room measures real time.
pub fn clock() -> f64 {
    use rustix::time::{ClockId, clock_gettime};
    let now = clock_gettime(ClockId::Monotonic);
    now.tv_sec as f64 + now.tv_nsec as f64 / 1e9
}
