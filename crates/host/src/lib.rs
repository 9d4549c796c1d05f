// SPDX-License-Identifier: Apache-2.0 OR MIT
//! Host: runs devices in a process. The core threads, the leaves that tables name, the targets, the
//! doors (NBD, FUSE, vhost-user) and the control API.
//!
//! ```text
//!   control.sock ═══▶ http ──▶ routes ──▶ core_thread ──▶ engine
//!                     (thread of tokio)        │ (thread of core 0)
//!   --metrics ═══▶ observe ────────────────────┤
//!   daemon, run_command                        ├ dm ── targets, zram_factory, claims ── leaves
//!     └ config, rundir, endpoints, memory      ├ nbd ── exports
//!   /dev/fuse ═══▶ fuse_host, sysfs ───────────┤ (threads of fuser)
//!   DIR/NAME.sock ═══▶ vhost_user ─────────────┘ (a thread for each front end)
//!                     object_volume ──▶ objstore (threads of tokio of its own)
//!                     secondary, worker_threads, sessions: the other cores, and NBD there
//!                                  log_queue: the thread that writes the log
//! ```
//!
//! Verbs that run without a daemon (the load generator, the tools for images) use the same leaves,
//! targets and cores, without the doors.
//!
//! Invariants
//! - HO-T1 tokio runs on threads of its own: no device is used on them.

mod addr;
mod blocking;
mod cache_warnings;
mod changes;
mod claims;
mod clients;
mod config;
mod config_check;
mod core_thread;
mod daemon;
mod descriptors;
mod endpoints;
mod engine;
mod event_ring;
mod exported;
mod exports;
mod fd_store;
mod fuse_host;
mod holes;
mod http;
mod io_failure;
mod leaf_word;
mod leaves;
mod log;
mod log_limit;
mod log_queue;
mod memory;
mod mount_paths;
mod namespace;
mod nbd_uri;
mod object_volume;
mod observe;
mod output;
mod passed;
mod reload;
mod retry;
mod route_effects;
mod routes;
mod run_command;
mod rundir;
mod saved_config;
mod secondary;
mod sessions;
mod signed_areas;
mod socket_access;
mod stop;
mod sysfs;
mod table_args;
mod targets;
mod tls;
mod ublk_door;
mod units;
mod upgrade;
mod vhost_user;
mod worker_threads;
mod zram_factory;

pub use blocking::KEEP_BLOCKING_THREADS;
pub use config::{Config, ServeArgs};
pub use daemon::{abort_on_panic, check as check_config, run as run_daemon};
pub use io_failure::io_failure;
pub use leaf_word::PMEM;
pub use leaves::{Leaves, SharedLeaf};
pub use log::start as start_log;
pub use log_queue::{flush_log, print_error};
pub use memory::{budget as memory_budget, set_for_tools as set_memory_budget_for_tools};
pub use namespace::pid_namespace;
pub use nbd_uri::{NbdUri, is_nbd, with_absolute_socket};
pub use object_volume::{open_store, volume_environment};
pub use output::{Format, Listing, print, print_as_is};
pub use run_command::{RunArgs, run as run_command};
pub use rundir::RunDir;
pub use secondary::{CorePool, DeviceHandle, Lease, Owner, Replica, SecondaryCore};
pub use table_args::{TableArgs, current_dir, read_stdin, read_table};
pub use targets::{attribute_tables, manuals, register_targets};
pub use ublk_door::Disks;
pub use units::time as parse_time;
pub use uring::ignore_file_size_signal;
pub use worker_threads::{CORES_MAX, WorkerThreads};
