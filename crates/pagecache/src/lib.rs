// SPDX-License-Identifier: Apache-2.0 OR MIT
//! Pagecache: a write-back page cache in RAM before any device (target `buffered`).
#![warn(missing_docs)]

mod arena;
mod attributes;
mod bits;
mod cache;
mod config;
mod discard;
mod errors;
mod flush;
mod folio;
mod ioend;
mod iomap;
mod pacing;
mod read;
mod readahead;
mod reclaim;
mod status;
mod target;
mod write;
mod writeback;
