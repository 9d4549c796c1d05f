// SPDX-License-Identifier: Apache-2.0 OR MIT
//! Parts of the benches that need outside programs: a load generator, servers under measurement,
//! peers. The scenarios themselves are in `reproduce`.
//!
//! Every bench alternates what it compares within one run, prints medians as a table for people,
//! and as its last line one JSON object. The benches of scenarios hold their options, and print at
//! length (`told`) what `millpond reproduce` prints in short; the others measure here.

pub mod beside;
pub mod cache_image;
pub mod compressed;
pub mod conn;
pub mod counted;
pub mod files;
pub mod lab;
pub mod peers;
pub mod process;
pub mod through;
pub mod told;
