// SPDX-License-Identifier: Apache-2.0 OR MIT
//! The device mapper: tests of its public items, one file for each subject.

mod caches;
mod common;
mod flat;
mod force;
mod lifecycle;
mod no_alloc;
mod recorder;
mod replace;
mod stacks;
mod suspended;
mod targets;
mod unconfigured;
mod untold;
