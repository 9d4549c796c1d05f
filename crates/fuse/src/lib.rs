// SPDX-License-Identifier: Apache-2.0 OR MIT
//! FUSE: devices as files, and their attributes as files with the names of sysfs.
//!
//! ```text
//!   DIR/dev/NAME, DIR/dev/mapper/NAME        a device; the same inode in both places
//!   DIR/sys/block/NAME/queue/...             its attributes
//!
//!   kernel ══ /dev/fuse ══▶ threads of fuser ──▶ fs ── inodes, handles
//!                                                 │ Job (request and reply), counted by Budget
//!                                                 ▼
//!                                            Host::run (the program) ──▶ a core: Job::serve
//!   kernel ◀══ /dev/fuse ══ reply, straight from the buffer ◀────────────────┘
//! ```
//!
//! The program implements [`Host`]; no types of fuser are public. A job may be served on any core
//! that can submit to the device, and answered from any thread.
//!
//! Invariants
//! - FU-F1 An I/O request of a device is counted in `budget::Budget` before memory is taken for it,
//!   and until its reply was sent.
//! - FU-F2 The data of a request lie in a buffer of their own: requests share no memory.
//! - FU-F3 A write of a part of a sector excludes all other writes through files of the device
//!   while it reads, changes and writes the sector ([`WriteLock`]). Devices merge parts of larger
//!   blocks themselves.
//! - FU-F4 The kernel caches nothing: files are opened for direct I/O, and names and attributes
//!   have a lifetime of zero. So a file always shows the current device.
//! - FU-F5 No thread that serves devices ever uses a path below DIR: it would wait for itself.
//! - FU-F6 Attribute requests block no thread of this crate: the thread that has the result sends
//!   the reply. They take no budget; the number of waiting processes bounds them.
#![warn(missing_docs)]

mod attribute;
mod budget;
mod export;
mod fs;
mod handle;
mod host;
mod inode;
mod job;
mod mount;
mod serve;
mod tree;
mod write_lock;

pub use export::{Export, Options, Stopped};
pub use host::{Attribute, AttributeReply, Caller, Device, DeviceId, Host, OpenId};
pub use job::Job;
pub use mount::places;
pub use write_lock::{CrossThreadLock, WriteLock};
