// SPDX-License-Identifier: Apache-2.0 OR MIT
//! Parts of the benches (`commands`) that need outside programs: a load generator, servers under
//! measurement, peers. The scenarios are in `reproduce`.
//!
//! Every bench alternates what it compares within one run, prints medians as tables, and one JSON
//! object as its last line. Benches of scenarios print (`output`) all tables of a section, of which
//! `reproduce` prints only the rows; the others measure here.

pub mod cache_image;
pub mod compressed;
pub mod counted;
pub mod counting_core;
pub mod counting_doors;
pub mod doors;
pub mod eviction_models;
pub mod files;
pub mod mixed_load;
pub mod output;
pub mod peers;
pub mod process;
mod replies;
pub mod store_model;
pub mod through_fuse;
