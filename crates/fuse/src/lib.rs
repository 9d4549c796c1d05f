// SPDX-License-Identifier: Apache-2.0 OR MIT
//! FUSE: devices as files, and their attributes as files with sysfs's names.
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
//! The program gives a [`Host`]; fuser's types stay in here. A job may be served on any core that
//! can submit to the device, and answered from any thread.
//!
//! Invariants
//! - F1 A request of a device's blocks is counted in the `budget::Budget` before memory
//!   is taken for it, and until its reply has been sent.
//! - F2 Data of a request lie in a buffer of its own: nothing is shared by two requests.
//! - F3 A write that covers only a part of a sector excludes every other write of files of its
//!   device while it reads, changes and writes the sector ([`Gate`]). Larger blocks are the
//!   devices' own matter.
//! - F4 Nothing is cached by the kernel: files are opened for direct I/O, names and attributes
//!   live for no time. What a file shows is the device of now.
//! - F5 No thread that serves devices ever touches a path below DIR: it would wait for itself.
//! - F6 An attribute is read and written without a thread of this room: the answer is sent by who
//!   has it. Those requests hold no budget; the processes that wait for them bound their number.
#![warn(missing_docs)]

mod attribute;
mod budget;
mod export;
mod fs;
mod gate;
mod handle;
mod host;
mod inode;
mod job;
mod mount;
mod serve;
mod tree;

pub use export::{Export, Options, Stopped};
pub use gate::{Gate, SideGate};
pub use host::{Answer, Attribute, Device, DeviceId, Host, OpenId};
pub use job::Job;
pub use mount::places;
