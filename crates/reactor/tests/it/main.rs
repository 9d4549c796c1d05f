// SPDX-License-Identifier: Apache-2.0 OR MIT
//! Cores on drivers of tests, one file for each subject.

mod executor;
mod poller;
