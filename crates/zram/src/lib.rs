// SPDX-License-Identifier: Apache-2.0 OR MIT
//! zram: a compressed RAM disk whose cold or incompressible pages are written back in batches.
//!
//! ```text
//!        bio                       attributes (idle, writeback, recompress, ...)   policy
//!         │                                             │                            │
//!   ┌─────▼─────────────────── Zram, core 0 ────────────▼────────────────────────────▼──┐
//!   │ divides the device among shards, each on one core                                 │
//!   └─────┬──────────────────────────────────┬──────────────────────────────────────────┘
//!   ┌─────▼──── Shard ────────────┐   ┌──────▼── Shard ──── (maybe on another core) ─────┐
//!   │ slots ──▶ store  (objects)  │   │ ...                                              │
//!   │   │        ▲ codec          │   └──────────────────────────────────────────────────┘
//!   │   └──▶ backing: runs of blocks, batches in flight, read-back
//!   └─────────────────────────────┘
//! ```
//!
//! Invariants (each part has its own beside)
//! - ZR-Z1 A page is read as it was last written, whatever happens to it between: compressed,
//!   recompressed, written back, read back, overwritten meanwhile.
//! - ZR-Z2 A page leaves memory only when its copy on the backing device is complete and it has not
//!   been accessed since that was begun.
//! - ZR-Z3 A block of the backing device is reused only when no read and no discard of it is in
//!   flight.
//! - ZR-Z4 What comes from the backing device is checked before it is used.
//! - ZR-Z5 Blocks written back never exceed the budget; what was not written is refunded.
//! - ZR-Z6 Attributes are read without waiting for a writeback.
//! - ZR-Z7 A request may be of any sectors: what is less than a page is merged (`merge`, ZR-MG1).
#![warn(missing_docs)]

mod algorithms;
mod attributes;
mod backing;
mod codec;
mod codecs;
mod command;
mod config;
mod control;
mod idle;
mod layout;
mod merge;
mod mutation;
mod pack;
mod parts;
mod persist;
mod policy;
mod read;
mod readback;
mod recompress;
mod settings;
mod shard;
mod shared;
mod slot;
mod status;
mod store;
mod target;
mod write;
mod writeback;

pub use algorithms::{DICTIONARY_BYTES_MAX, Files, NoFiles};
pub use codec::Algorithm;
pub use config::{Config, SECTORS_MAX, SHARDS_MAX};
#[doc(hidden)]
pub use mutation::Mutation;
pub use settings::{Settings, Start};
pub use target::{BeforeStart, OnReset, Zram};

/// Version of the target, as `dmsetup targets` shows it.
pub const VERSION: (u32, u32, u32) = (1, 0, 0);
