// SPDX-License-Identifier: Apache-2.0 OR MIT
//! Parts of `make bench-iomap`: dirty pages of a page cache, written back with one map call for
//! each run of pages and with one for each page, in turns on the same cache.
//!
//! ```text
//!   test_bed   the devices below the cache: a null leaf, a file or a model; linear or striped
//!   pass       copy in (CPU of our writes) ─▶ FLUSH (CPU of writeback), with counters of both
//! ```
//!
//! Invariants
//! - RP-IB1 The two sides differ in `map_blocks` only: the same cache, the same folios, the same
//!   data in the same order, in turns.
//! - RP-IB2 Nothing is written back while data is copied in, so that the CPU time of each is
//!   measured alone.
//! - RP-IB3 Written data is checked: where the leaf keeps data, it is read back and compared.

pub mod pass;
pub mod test_bed;
