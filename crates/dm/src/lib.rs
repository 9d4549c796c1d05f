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
//! A stack of linear and striped is one flat mapping (`flat.rs`): a bio that lies in one extent has
//! its sector rewritten and goes to the device at the bottom; no clone, no allocation, nothing
//! counted. A bio that crosses extents is split, sharing its data; only that path allocates. Bios
//! for other targets are counted in flight, by a completion chained to theirs.
//!
//! Invariants: DM-D1 to DM-D5 in `device.rs`, DM-FO1 to DM-FO3 in `device/force.rs`, DM-R1 to
//! DM-R5 in `device/replace.rs`, DM-RS1 in `device/resize.rs`, DM-U1 and DM-U2 in
//! `device/unsaved.rs`, DM-O1 to DM-O3 in `overlap.rs`, DM-A1 and DM-A2 in
//! `attributes.rs`, DM-F1 and DM-F2 in `flat.rs`.
#![warn(missing_docs)]

mod account;
mod area;
mod attributes;
mod clone;
mod context;
mod control_lock;
mod device;
mod device_set;
mod dm;
mod doors;
mod fast_path;
mod flat;
mod flats;
mod in_flight;
mod layout;
mod leaves;
mod live;
mod mapping;
mod name;
mod node;
mod overlap;
mod report;
mod setup;
mod split;
mod stripe_errors;
mod stripe_watch;
mod table;
mod targets;
mod unsettled;
mod verbs;
mod whole;

pub use attributes::{attributes_of_all, attributes_of_tables};
pub use context::{Construct, Constructing, Context, Events, NoLeaves, Resolver, TargetType};
pub use device::handles::Opened;
pub use device::replace::LiveTable;
pub use device::resize::ResizedTable;
pub use device::{MAJOR, MappedDevice};
pub use dm::{Dm, NESTING_MAX};
pub use doors::{Doors, ReadOnly};
pub use flat::{Flat, Plan};
pub use mapping::{Mapping, Replicas};
pub use name::{NAME_BYTES_MAX, mangle, unmangle};
pub use report::{Dependency, DeviceInfo, Remove, TargetLine, TargetVersion};
pub use setup::SetupAttributes;
pub use table::{LINES_MAX, Length, Line, SECTORS_MAX, check_format, parse};
pub use targets::built_in;
pub use unsettled::Runs;
pub use whole::{Whole, WholeOf};
