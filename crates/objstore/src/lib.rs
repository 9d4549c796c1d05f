// SPDX-License-Identifier: Apache-2.0 OR MIT
//! objstore: the object stores of the world, S3 and directories, for volumes on core threads.
//!
//! ```text
//!   core thread                          threads of tokio
//!   objvol ─▶ StoreClient ── request ──▶ object_store ══ HTTPS ══▶ bucket
//!                 ▲                          │           files ──▶ directory
//!                 └── a call into the core ──┘
//! ```
//!
//! A request runs on the runtime of this room, from its first poll to its end, whether or not its
//! future still waits. Its outcome comes back to the core as a call, the way of all other threads.
//! Nothing is repeated here: `objvol` repeats requests until their outcome is known, and tells
//! its own objects from others' (OV-R). So every attempt has its own outcome:
//!
//! | what happened | [`StoreError`](objvol::StoreError) |
//! |---|---|
//! | 412 or 304 on a create, a file that is there | `Exists` |
//! | 409 with AWS's codes of a race | `Conflict` |
//! | 404 with `NoSuchBucket` | `NoBucket` |
//! | other 404; 416, or an object that ends before the range | `NotFound` |
//! | 429, 503 | `Throttled` |
//! | 3xx, 401, 403, other 409 and 4xx, 501; a directory without room or rights | `Denied` |
//! | text from outside that no request can carry; an answer that is too long | `Denied` |
//! | the rest: 5xx, no connection, no answer in time, an answer that is cut off | `Unknown` |
//!
//! Invariants
//! - OC-C1 An error is `Unknown` unless the answer proves more: a request that may have taken
//!   effect is never reported as one that has not.
//! - OC-C2 A core thread never waits for a store, and a request ends in [`REQUEST_TIME`] after it
//!   was sent; at most [`REQUESTS_MAX`] of a store are under way, the others wait for their turn.
//! - OC-C3 An object of a directory is reported as created, or as there, when its data and all
//!   directories above it up to the store's were synced; after a failed sync the directory takes
//!   no object any more from this process.
//! - OC-C4 A page of a listing is in ascending order, and ends where the next one begins.
//! - OC-T1 No limit of threads that is met later ends the process: a thread for what blocks starts
//!   with the first store and stays (tokio panics without any).
#![warn(missing_docs)]

mod answer;
mod bucket;
mod client;
mod connection;
mod directory;
mod failure_record;
mod guard;
mod listing;
mod outcome;
mod outside_text;
mod request;
mod stream;
mod token_file;
mod url;
mod variables;

#[doc(hidden)]
pub use bucket::bucket;
pub use client::{StoreClient, UnboundClient};
pub use request::{CallCore, CoreCaller, REQUEST_TIME, REQUESTS_MAX};
pub use url::StoreUrl;
pub use variables::{Variables, variables};
