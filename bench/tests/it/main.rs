// SPDX-License-Identifier: Apache-2.0 OR MIT
//! The benches at a small size: they run, and their figures have the right order.

mod cache_scale;
mod flush_sim;
mod iomap;
mod wbt;
mod wbt_sim;
