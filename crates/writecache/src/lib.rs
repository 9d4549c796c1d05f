// SPDX-License-Identifier: Apache-2.0 OR MIT
//! Writecache: acknowledge small random writes on a fast device, write them back in large, sorted
//! strokes.
//!
//! ```text
//!        bio                                         background tasks
//!         │                                 ┌──────────┬─────────┬────────┬─────────┐
//!   write │ read                            │ pick     │ settle  │ reclaim│ commit, │
//!         ▼                                 ▼          ▼         ▼        ▼ checkpoint
//!   write buffer, or slots ─────▶ map ──▶ runs ──▶ origin flush ──▶ clean ──▶ free
//!         │ in long runs           │
//!         ▼                        ▼
//!   slots of the cache device    record log: which block is in which slot, with checksums
//!         └──── FLUSH, FUA ────────┘
//! ```
//!
//! Inside, each layer sees only those below it:
//!
//! ```text
//!   dm_target            the device mapper's target
//!   cache                serves bios; starts and ends the background tasks
//!   writer, reader       clients' requests
//!   admission            blocks that are read enter the cache
//!   writeback            dirty blocks to the origin
//!   store                the cache device: commit, checkpoint
//!   map                  which block is in which slot: pure, no I/O
//! ```
//!
//! A read or a write of one block that has to wait for nothing but one request below is served
//! without a task: from `submit` to the end of that request (`dm_target::bios`).
//!
//! Invariants (design, section 5)
//! - WC-I1 A flush covers only writes completed before it is submitted: `commit` logs the state of
//!   the map. A write enters the map when its data are on the cache device or in the write buffer,
//!   and a commit ends only when the buffered data that its records name are on the cache device
//!   (`store::buffer`, WC-BF4).
//! - WC-I2 A committed slot is never overwritten; a freed slot is reused only after the record that
//!   frees it is durable (`map`, WC-M4).
//! - WC-I3 An entry is retired only after the origin's flush has returned (`writeback`).
//! - WC-I4 No write goes around the cache for a sector with a live or not yet durably retired
//!   entry: data that do (`writer::write_around`), data that replace an entry
//!   (`writer::write_through`, WC-T1 to WC-T3), discards and zeroes take the range first
//!   (`writeback`, WC-WB1).
//! - WC-I5 The order of the map is the log's sequence, not the order of completions: a record holds
//!   the state of the map at the moment it is built.
//! - WC-I6 The gaps of a filled write are locked from before they are read until it has ended
//!   (`writeback::extent`, WC-GF1).
//! - WC-I7 Discards are records.
//! - With `ordered` nothing of a later epoch reaches the origin before all earlier ones are durable
//!   there, or lie before it in the origin's log: WC-E1 to WC-E7 in `map::epochs`. Long zeroes are
//!   a version without data: WC-Z1 to WC-Z4 in `map::zeroes`.
//! - WC-I8 After an error of a commit or of a flush of the cache device the cache fails stop: it
//!   serves reads and fails writes and flushes until the table is loaded again; dirty data stay.
//!   Writes that were acknowledged and not committed are lost then, and each client gets an error
//!   (`unflushed`). After an error of the origin the data are still in the cache: they stay dirty
//!   and are written again (`writeback::retry`); with `fail_mode kernel` the cache fails stop.
//! - A block that is read enters the cache only as the origin has it: WC-RA1 to WC-RA5 in
//!   `admission`.
//! - A request may have any sectors: part of a block is merged (`writer::merge`, WC-MG1 to
//!   WC-MG4).
//!
//! The media format is the room `format`, documented in `docs/format/writecache.md`.
#![warn(missing_docs)]

mod admission;
mod allocation;
mod attachment;
mod cache;
mod config;
mod device_limits;
mod dm_target;
mod events;
mod figures;
mod grow;
mod guard;
mod lifecycle;
mod manual;
mod map;
mod missing;
mod options;
mod ordered_queue;
mod origin;
mod pacing;
mod planted;
mod probe;
mod read_cache;
mod reader;
mod recovery;
mod scrub;
mod stats;
mod status;
mod store;
mod unflushed;
mod wait_lists;
mod writeback;
mod writer;

pub use config::{
    CacheMode, Config, FailMode, GapRules, GuardPlan, MediaFormat, Mode, Order, ReadTuning, Tuning,
    WritebackLimits,
};
pub use dm_target::WriteCache;
pub use events::{CacheEvent, IgnoredJournal, UnguardedReason};
pub use guard::{DamagedRanges, OriginGuard, find_guard, restore_damaged_origin, restore_origin};
pub use manual::MANUAL;
pub use missing::StaleOrigin;
#[cfg(feature = "planted")]
pub use planted::Fault;
pub use probe::{
    Contents, Depth, DmCache, FINDINGS_MAX, Finding, HEAD_BYTES as PROBE_HEAD_BYTES, NativeCache,
    Occupancy, ProbeReport, SignedArea, find_signed_areas, foreign_contents, probe,
};

/// Version of the target, as `dmsetup targets` shows it: the kernel's whose options it knows.
pub const VERSION: (u32, u32, u32) = (1, 6, 0);
