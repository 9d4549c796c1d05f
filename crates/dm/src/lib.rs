// SPDX-License-Identifier: Apache-2.0 OR MIT
//! The device mapper: tables of targets, and mapped devices that live by them.
//!
//! ```text
//!   verbs ─▶ Dm ── name ─▶ MappedDevice ── live table ─▶ Target ─▶ device below
//!             │                 ▲    └ inactive table        (linear striped zero error
//!             └ target types    │ bios                        delay flakey; engines register
//!               and resolver    doors (by `open`)             themselves by `TargetType`)
//! ```
//!
//! A bio through linear or striped is remapped in place: its sector is rewritten, its completion
//! chained for the device's in-flight count; no clone, no allocation. A bio that crosses targets or
//! chunks is split; only that path allocates.
//!
//! Invariants: D1 to D4 in `device.rs`.
#![warn(missing_docs)]

mod area;
mod context;
mod device;
mod dm;
mod gate;
mod live;
mod name;
mod report;
mod split;
mod table;
mod target;
mod verbs;

pub use context::{Construct, Constructing, Context, Events, NoLeaves, Resolver, TargetType};
pub use device::{MAJOR, MappedDevice, Opened};
pub use dm::{Dm, NESTING_MAX};
pub use name::{NAME_BYTES_MAX, mangle, unmangle};
pub use report::{Dependency, DeviceInfo, TargetLine, TargetVersion};
pub use table::{LINES_MAX, Line, SECTORS_MAX, parse, quote};
pub use verbs::Remove;
