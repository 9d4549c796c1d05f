// SPDX-License-Identifier: Apache-2.0 OR MIT
//! objvol: a log-structured block volume on an object store.
//!
//! This is the beginning of an engine that nothing uses yet. There is: the border to a store
//! ([`ObjectStore`]), a store in the simulator that lies (`tests/it/bucket.rs`), and the format of
//! the objects (`format::objvol`, `docs/format/objvol.md`). There is not: the volume itself, a
//! client of a real store, a table line.
#![warn(missing_docs)]

mod store;

pub use store::{Listing, ObjectStore, StoreError};
