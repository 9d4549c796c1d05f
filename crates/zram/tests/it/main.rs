// SPDX-License-Identifier: Apache-2.0 OR MIT
//! zram: tests of its public items, one file for each subject.
#![expect(clippy::unwrap_used, reason = "a test fails by panicking")]

mod background;
mod costs;
mod device;
mod fixture;
mod golden;
mod manual;
mod memory;
mod policy;
mod races;
mod session;
mod writeback;
