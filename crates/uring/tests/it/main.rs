// SPDX-License-Identifier: Apache-2.0 OR MIT
//! The io_uring driver: tests of its public items, one file for each subject.
#![expect(clippy::unwrap_used, reason = "a test fails by panicking")]

mod allocations;
mod commands;
mod common;
mod cores;
mod files;
mod helpers;
mod mapped;
mod sent_descriptors;
mod sleeps;
mod sockets;
