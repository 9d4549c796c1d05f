// SPDX-License-Identifier: Apache-2.0 OR MIT
//! Parts of the benches: a load generator, processes under measurement, medians.
//!
//! Every bench alternates what it compares within one run, prints medians as a table for people,
//! and as its last line one JSON object.

pub mod beside;
pub mod beside_local;
pub mod cache_image;
pub mod compressed;
pub mod conn;
pub mod files;
pub mod flush;
pub mod flush_disk;
pub mod flush_sim;
pub mod flush_steady;
pub mod iomap;
pub mod load;
pub mod mapped;
pub mod median;
pub mod peer;
pub mod process;
pub mod wbt_sim;

/// Seconds since some moment; the benches are where real time is the subject.
pub fn clock() -> f64 {
    use rustix::time::{ClockId, clock_gettime};
    let now = clock_gettime(ClockId::Monotonic);
    now.tv_sec as f64 + now.tv_nsec as f64 / 1e9
}
