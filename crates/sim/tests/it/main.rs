// SPDX-License-Identifier: Apache-2.0 OR MIT
//! The simulator: tests of its public items, one file for each subject.

mod contract;
mod faults;
mod memory;
mod oracle;
mod processes;
mod streams;
