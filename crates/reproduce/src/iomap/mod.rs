// SPDX-License-Identifier: Apache-2.0 OR MIT
//! Parts of `make bench-iomap`: dirty pages of a page cache, written back by one map call a run
//! and by one map call a block, in turns on the same cache.
//!
//! ```text
//!   ground   where the cache lies: a leaf that keeps nothing, or a file; linear or striped
//!   pass     copy in (the CPU of our writes) ─▶ FLUSH (the CPU of writeback), counters of both
//! ```
//!
//! Invariants
//! - IB1 What is compared differs in `map_blocks` only: the same cache, the same folios, the same
//!   data in the same order, in turns.
//! - IB2 Nothing is written back while data is copied in: the CPU of either is measured alone.
//! - IB3 There is no figure of wrong data: where the leaf keeps data it is read back and compared.

pub mod ground;
pub mod pass;
