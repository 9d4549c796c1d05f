// SPDX-License-Identifier: Apache-2.0 OR MIT
//! The deterministic simulator: a driver in virtual time, simulated disks and streams, and the
//! oracle that checks what devices answer.
//!
//! ```text
//!   test ── Machine (cores of one world on one thread, next task drawn by seed)
//!             │ Driver
//!           World ── clock · mailboxes · stalls · power cuts · trace
//!             │
//!           streams ── connected sockets: delays, pieces, cuts, resets
//!           disks ── Model (when)  +  Media (what survives)  +  Faults (what goes wrong)
//!
//!   test ── Oracle (what a device may answer, before and after a crash)
//!   test ── Workload (random clients of any block device, checked by the oracle)
//!   test ── harness (lives of a machine: boot, open, verify, work, power cut)
//!   test ── seeds  (many seeds; a failing one prints itself and how to replay it)
//! ```
//!
//! The seed determines the whole run: equal seeds give equal order, times, faults and crash. Disks
//! implement the border contract of `block` exactly, nothing weaker and nothing stronger.

mod disk;
mod driver;
mod events;
pub mod harness;
mod holes;
mod image;
mod lines;
mod media;
mod medium;
pub mod model;
mod oracle;
mod pages;
mod rng;
pub mod seeds;
mod shared_memory;
mod workload;
mod world;
mod zipf;

pub use disk::{Disk, DiskSpec, DiskStats, Faults};
pub use driver::{Machine, RunEnd};
pub use events::StreamFault;
pub use holes::HoleFinder;
pub use image::{Image, PendingWrite};
pub use oracle::{Change, Client, FlushToken, Oracle, ReadToken, WriteToken};
pub use rng::Rng;
pub use shared_memory::Memories;
pub use workload::{KeepsOverKill, Mix, Verdict, Workload};
pub use world::{PowerCut, Swarm, World, WorldRef};
pub use zipf::Zipf;

#[cfg(test)]
extern crate self as sim;
#[cfg(test)]
#[path = "../tests/it/main.rs"]
mod it;
