// SPDX-License-Identifier: Apache-2.0 OR MIT
//! sim: the deterministic simulator.

pub mod model;
pub mod rng;
