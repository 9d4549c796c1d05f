// SPDX-License-Identifier: Apache-2.0 OR MIT
//! The doors of the whole program under real clients, NBD and FUSE, and what happens to devices
//! while clients are connected: one file for each subject.
#![expect(clippy::unwrap_used, reason = "a test fails by panicking")]

mod allocation;
mod cache_growth;
mod clients;
mod cores;
mod crash;
mod failed_flush;
mod fencing;
mod fuse;
mod held_below;
mod hostile;
mod hung;
mod kernel_session;
mod late_writes;
mod lifecycle;
mod load;
mod mount;
mod nbd_origin;
mod nbd_tcp;
mod obstacles;
mod previous;
mod read_cache;
mod readonly;
mod readonly_media;
mod sectors;
mod soak;
mod tls;
mod upgrade;
mod upgrade_leaves;
mod upgrade_verbs;
mod upgrade_vhost;
mod vhost_cores;
mod vhost_memory;
mod vhost_user;
