// SPDX-License-Identifier: Apache-2.0 OR MIT
//! The scenarios behind the figures: each mechanism on against off, with the engines that serve
//! clients, on files of this machine or on models of disks in virtual time.
//!
//! ```text
//!   flush ── flush_sim, flush_disk, flush_steady     a write cache is flushed
//!   wbt_sim, beside_local                            a reader beside a writer
//!   iomap                                            a page cache is written back
//!   compressed                                       idle pages of a compressed RAM disk
//!   mapped                                           stacks of pure mappings
//!        │
//!   scenario   rounds by turns, or worlds side by side (`rounds`); medians (`median`)
//!        │
//!     Section ── tables, goals, keys          `make bench-*`: all options, at length
//!        └────── rows, plots, keys, notes     `millpond reproduce`: text, html
//! ```
//!
//! A bench holds its options and prints a section; what needs outside programs it measures itself.
//!
//! Invariants
//! - R1 In virtual time a scenario is a function of its arguments: no clock, no other chance than
//!   the seed.
//! - R2 Nothing is left behind, whatever ends the program: files have no names (`unnamed`).
//! - R3 Figures are of data that was looked at: of what can be read back samples are compared.

pub mod beside_local;
pub mod compressed;
pub mod cpu;
pub mod flush;
pub mod flush_disk;
pub mod flush_sim;
pub mod flush_steady;
mod html;
pub mod iomap;
pub mod machine;
pub mod mapped;
pub mod median;
pub mod report;
pub mod rounds;
pub mod scenario;
mod svg;
pub mod table;
pub mod tally;
mod text;
pub mod unnamed;
pub mod wbt_sim;

/// Seconds since some moment; here real time is the subject.
pub fn clock() -> f64 {
    use rustix::time::{ClockId, clock_gettime};
    let now = clock_gettime(ClockId::Monotonic);
    now.tv_sec as f64 + now.tv_nsec as f64 / 1e9
}
