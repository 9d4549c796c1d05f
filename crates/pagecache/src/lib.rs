// SPDX-License-Identifier: Apache-2.0 OR MIT
//! Pagecache: a write-back page cache in RAM in front of any device; the target `buffered`.
//!
//! ```text
//!   read ──▶ folios ──miss──▶ fill: read below; ahead of sequential readers
//!   write ─▶ folios (dirty) ─▶ done; slowed as dirty pages pile up (pacing)
//!                │
//!                ├── flusher: background, expired ──┐
//!                └── flush: FLUSH, FUA ─────────────┤
//!                                             iomap │ where does this run lie?
//!                                                   ▼
//!                                   ioends: large writes, one completion each ──▶ base below
//! ```
//!
//! The parts, from the bottom: `folio`, `arena` (memory) and `folio_map`; the `store`, which has
//! the folios, the device below and the errors; `ioends`, the `flusher` and `flush`, which write
//! the store back; `fill`, which reads into it; and the `device`, which takes bios.
//!
//! Written data are in memory only until they are flushed: a client whose data must survive sends
//! FLUSH or FUA, as to any device with a volatile cache.
//!
//! Invariants (each part has its own: PC-M the arena, PC-FO folios, PC-C the folio map ...)
//! - PC-PC1 A read returns the data of the last completed write, whether they are dirty, being
//!   written, or on the device.
//! - PC-PC2 When a FLUSH succeeds, all writes that had completed before it was submitted are
//!   durable on the device below.
//! - PC-PC3 A page that could not be written stays dirty and is retried; every opener gets the
//!   error once.
//! - PC-PC4 A page that is in flight to the device does not change (PC-FO1), and has one write in
//!   flight at a time (PC-C3): after a crash a page is old or new, never a mixture of two versions.
//! - PC-PC5 While a discard or write zeroes is in flight below, no read or write of its range is.
//! - PC-PC6 Memory for pages and for what is known about them stays within `memory`.
#![warn(missing_docs)]

mod active_discards;
mod allocation;
mod arena;
mod attributes;
mod bits;
mod collector;
mod config;
mod device;
mod discard;
mod errors;
mod failed_pages;
mod figures;
mod fill;
mod flush;
mod flusher;
mod folio;
mod folio_map;
mod gather;
mod ioend;
mod ioends;
mod iomap;
mod pacing;
mod pins;
mod planted;
mod read;
mod readahead;
mod sequence;
mod stats;
mod store;
mod target;
#[cfg(test)]
mod testing;
mod timer;
mod units;
mod write;
mod writeback;

pub use attributes::MANUAL;
pub use config::Config;
pub use device::PageCache;
#[cfg(feature = "planted")]
pub use planted::Fault;
