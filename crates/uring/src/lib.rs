// SPDX-License-Identifier: Apache-2.0 OR MIT
//! Uring: the driver of production. Files, block devices and sockets by io_uring.
//!
//! ```text
//!   reactor ──submit(batch)──▶ Flight (slab: holds the buffers) ──▶ SQ ring ─┐
//!                                                                 one enter │ a park
//!   reactor ◀──events───────── outcome, or again for the rest ◀── CQ ring ──┘
//!
//!   Files     opens, listens, closes: what is in the table of the driver
//!   helpers   threads for what may wait for a file system
//!   pmem      a mapped file: what is a copy ends without the ring
//!   Sender    other threads ──▶ Mailbox (queue + eventfd) ──▶ read of the bell, always armed
//! ```
//!
//! Invariants
//! - U1 What the kernel may touch (buffers, iovec arrays, the bell's eight bytes) is owned by its
//!   `Flight` or by the ring and freed only after the completion has been reaped.
//! - U2 Every request yields one event: short transfers go on for the rest, interrupted ones begin
//!   again, both inside the driver.
//! - U3 A file is closed only when no request is in flight on it; closing waits, and ends what
//!   waits on a socket.
//! - U4 O_DIRECT never sees a misaligned buffer: the driver copies through an aligned one.
//! - U5 Cores may share a descriptor, but the file is that core's which opened it: when that closes
//!   it, lock and space are free, whoever still has the descriptor.
//! - U6 A mapped file is written by stores: a request for it ends as durable as it says (`pmem`,
//!   P2), and a page that can't be reached is EIO for who touches it, not the end of the process.
//! - U7 A core waits for no file system and no disk: files are opened, closed and looked at by
//!   helper threads (`helpers`, H1 to H4), and requests on those that may block as they are begun
//!   are begun by threads of the kernel.

mod bell;
mod connect;
mod file;
mod files;
mod flight;
mod helpers;
mod holder;
mod lasting;
mod limits;
mod mailbox;
mod pmem;
mod ring;
mod socket;
mod table;

pub use connect::Peer;
pub use file::{Direct, OpenOptions};
pub use files::{Files, Opened};
pub use helpers::{DEADLINE, wait_for_closes};
pub use mailbox::{Mailbox, Sender};
pub use pmem::copy;
pub use ring::Uring;
pub use table::SharedFile;
