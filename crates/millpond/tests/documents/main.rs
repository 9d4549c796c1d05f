// SPDX-License-Identifier: Apache-2.0 OR MIT
//! What users read and install: manuals, whose commands are run, packages, and the pages and
//! reports that the program makes. One file for each.
#![expect(clippy::unwrap_used, reason = "a test fails by panicking")]

#[path = "../common/mod.rs"]
mod common;
mod docs;
mod package;
mod page;
