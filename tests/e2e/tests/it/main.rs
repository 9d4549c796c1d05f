// SPDX-License-Identifier: Apache-2.0 OR MIT
//! The whole program under real clients, in one test program: one file for each subject.
#![expect(clippy::unwrap_used, reason = "a test fails by panicking")]

mod buffered;
mod clients;
mod crash;
mod dmsetup;
mod failed_flush;
mod fuse;
mod hostile;
mod hung;
mod kernel_session;
mod lifecycle;
mod load;
mod mount;
mod nbd_origin;
mod nbd_tcp;
mod offline;
mod ordered;
mod pmem;
mod published;
mod reproduce;
mod run;
mod sectors;
mod zram;
mod zram_session;
