// SPDX-License-Identifier: Apache-2.0 OR MIT
//! vhost-user-blk: devices as virtio disks of virtual machines. The front end (qemu,
//! cloud-hypervisor) sends its guest's memory and where the queues are; requests then come through
//! that memory alone.
//!
//! ```text
//!   front end ──messages, descriptors──▶ thread (control) ──▶ core: Session
//!   guest     ──kick──▶ ring ──chain──▶ Request ──Bio──▶ device          │ starts, stops queues
//!             ◀─call─── used ◀──────────────────────────── outcome       │
//!   notes of requests in flight: memory of the front end, for the next process
//! ```
//!
//! `message`, `memory`, `ring`, `request`, `inflight` and `config` are pure functions of bytes.
//! Only `session`, `remote`, `queue`, `work` and `event_fd` use the reactor; `control` runs on a
//! thread. Queues of one session may be served on several cores (`remote`).
//!
//! Invariants
//! - VH-V1 No input, be it in a message or in the guest's memory, makes this process panic, wait,
//!   or access other memory. Input that can't be ends its own session, with one cause for the log.
//! - VH-V2 A request is admitted (counted in its session's and the server's budget) before memory
//!   is taken for it, and released when it has ended.
//! - VH-V3 Nothing that the guest can still change is looked at twice. Data of a request are given
//!   to a device as they are in the guest's memory only if it takes memory of clients; to others
//!   as a copy in buffers of our own. A device has them only while the request is in flight.
//! - VH-V4 The export lives until the last bio of its session has ended.
//! - VH-V5 A guest that has used an earlier process goes on only where what that one acknowledged
//!   is still there, and what it had in flight is noted where the front end keeps notes: a disk
//!   does not forget because its driver has died.
//!
//! In a live upgrade a session is paused: its thread ends, its queues stop. Then this process
//! starts the queues again, or another one makes the session anew and goes on with the socket
//! (`connection`).
#![warn(missing_docs)]

mod config;
pub mod connection;
pub mod control;
mod event_fd;
mod export;
mod figures;
pub mod inflight;
#[cfg(test)]
mod lives;
pub mod memory;
pub mod message;
mod queue;
mod queue_places;
mod remote;
pub mod request;
mod resumption;
pub mod ring;
mod server;
mod session;
#[cfg(any(test, fuzzing))]
pub mod testing;
mod work;

pub use event_fd::EventFd;
pub use export::Export;
pub use figures::Stats;
pub use remote::Place;
pub use server::Server;
pub use session::{Attachments, OpenEvent, Session};
