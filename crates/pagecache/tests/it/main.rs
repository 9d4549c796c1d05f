// SPDX-License-Identifier: Apache-2.0 OR MIT
//! The page cache: tests of its public items, one file for each subject.
#![expect(clippy::unwrap_used, reason = "a test fails by panicking")]

mod allocation;
mod common;
mod costs;
mod crash;
mod manual;
mod pacing;
mod regressions;
mod sectors;
mod shared;
