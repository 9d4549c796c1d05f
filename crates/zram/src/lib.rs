// SPDX-License-Identifier: Apache-2.0 OR MIT
//! zram: a compressed RAM disk whose cold or incompressible pages are written back in batches.
//!
//! ```text
//!        bio                       attributes (idle, writeback, recompress, ...)   policy
//!         │                                             │                            │
//!   ┌─────▼─────────────────── Zram, core 0 ────────────▼────────────────────────────▼──┐
//!   │ divides the device among parts, each on one core                                  │
//!   └─────┬──────────────────────────────────┬──────────────────────────────────────────┘
//!   ┌─────▼──── Part ─────────────┐   ┌──────▼── Part ───── (maybe on another core) ─────┐
//!   │ slots ──▶ store  (objects)  │   │ ...                                              │
//!   │   │        ▲ codec          │   └──────────────────────────────────────────────────┘
//!   │   └──▶ backing: runs of blocks, batches in flight, read-back
//!   └─────────────────────────────┘
//! ```
//!
//! Invariants (each part of the code has its own)
//! - ZR-Z1 A read returns the page as it was last written, whatever happened to it since:
//!   compression, recompression, writeback, read-back, overwriting.
//! - ZR-Z2 A page leaves memory only when its copy on the backing device is complete and it has not
//!   been accessed since the copy began.
//! - ZR-Z3 A block of the backing device is reused only when no read and no discard of it is in
//!   flight.
//! - ZR-Z4 Data of the backing device are checked before they are used.
//! - ZR-Z5 Blocks written back never exceed the budget; blocks that were not written are refunded.
//! - ZR-Z6 Attributes are read without waiting for a writeback.
//! - ZR-Z7 A request may have any sectors: requests of less than a page are merged (`merge`,
//!   ZR-MG1).
#![warn(missing_docs)]

mod algorithms;
mod attributes;
mod auto_writeback;
mod backing;
mod codec;
mod codecs;
mod command;
mod config;
mod control;
mod device;
mod failures;
mod figures;
mod idle;
mod layout;
mod merge;
mod pack;
mod part;
mod parts;
mod planted;
mod read;
mod readback;
mod recompress;
mod router;
mod settings;
mod shared;
mod slot;
mod stats;
mod store;
mod target;
mod write;
mod writeback;

pub use algorithms::{DICTIONARY_BYTES_MAX, Files, NoFiles};
pub use attributes::MANUAL;
pub use codec::Algorithm;
pub use config::{Config, PARTS_MAX, SECTORS_MAX};
pub use device::{BeforeOverwrite, BeforeStart, OnReset, Zram};
pub use failures::OnFailure;
#[cfg(feature = "planted")]
pub use planted::Fault;
pub use settings::{Settings, Start};
