// SPDX-License-Identifier: Apache-2.0 OR MIT
//! The production driver: files, block devices and sockets by io_uring.
//!
//! ```text
//!   reactor ──submit(batch)──▶ Request (slab: holds the buffers) ──▶ SQ ring ─┐
//!                                                                 one enter │ a park
//!   reactor ◀──events───────── outcome, or retry for the rest ◀── CQ ring ──┘
//!
//!   Files     opens, listens, closes: fills the table of the driver
//!   helpers   threads for system calls that may wait for a file system
//!   command_stream  commands that the kernel answers again and again
//!   ring_number     how the thread names its ring to the kernel
//!   pmem      a mapped file: copies complete without the ring
//!   guest_memory  memory of a virtual machine, mapped
//!   Sender    other threads ──▶ Mailbox (queue + eventfd) ──▶ read of the eventfd, always armed
//! ```
//!
//! Invariants
//! - UR-U1 Memory that the kernel may access (buffers, also those of commands, iovec arrays, the
//!   eight bytes of the eventfd's read) is owned by its `Request` or by the ring, and freed only
//!   after the completion was reaped: never, if the driver ends before that. What a command of a
//!   stream points at ([`reactor::CommandMemory`]) is owned by the stream.
//! - UR-U2 Every request yields one event, but for commands that have none when they have done all,
//!   or many ([`reactor::CommandMemory`]). The driver itself continues short transfers and retries
//!   interrupted ones.
//! - UR-U3 A file is closed only when no request is in flight on it; a close waits for that, and
//!   ends requests that wait on a socket.
//! - UR-U4 O_DIRECT never gets a misaligned buffer: the driver copies through an aligned one.
//! - UR-U5 Cores may share a descriptor, but the core that opened the file owns it: when that core
//!   closes it, lock and space are released, even if other cores still have the descriptor.
//! - UR-U6 A mapped file is written by stores: a completed request is as durable as requested
//!   (`pmem`, UR-P2). A page that can't be accessed causes EIO for its requests, not the end of the
//!   process.
//! - UR-U7 A core waits for no file system and no disk: helper threads open, close and examine
//!   files (`helpers`, UR-H1 to UR-H4), and kernel threads issue requests that may block at
//!   submission.
//! - UR-U8 A listening socket is never shut down: its accepts are cancelled. Another process may
//!   have the same socket, and its clients go on connecting to it.
//! - UR-U9 A flush of a regular file that is shorter than its users were told fails: somebody has
//!   cut it, and what was beyond its end reads as zeroes once it has grown again by writes. Only a
//!   flush looks at the size: a file whose last bytes were written between the cut and the flush
//!   has its size again.
//! - UR-U10 The lock of a file, and the claim of a block device, that was opened exclusively
//!   belong to the open file description by which requests are sent. It has one descriptor,
//!   close-on-exec, that nobody but a successor (UR-U12) gets out of the table: cores share the
//!   descriptor itself. A request in flight holds the description. So lock and claim of a process
//!   that was killed fall with its last request, and who gets them knows that nothing of the owner
//!   before is under way.
//! - UR-U11 The end of a wait ([`reactor::end_waits`]) changes nothing of the socket and takes
//!   nothing from it: a Recv or an Accept that ends by it has data or a connection, or it has left
//!   them to the next one.
//! - UR-U12 Only a successor gets another descriptor of such a description (`Files::copy_of_file`),
//!   when nothing is under way on it here. From then on one of the two processes sends requests,
//!   never both: this one goes on only when the lifeline of the other has ended (`passed_files`).
//! - UR-U13 Reads of one batch that are neighbours on a file are sent as one, and so are writes;
//!   writes with FUA only with such. Each has an event of its own, and none gets the error of
//!   another: after an error each that is not done is sent by itself.
//! - UR-U14 A core closes no file that another process has sent to it, as that may wait: a TCP
//!   socket lingers for as long as its owner has said. The kernel refuses descriptors on Unix
//!   sockets by which a core receives (since Linux 6.16).

mod backing;
mod buffer_group;
mod command_stream;
mod connect;
mod device_id;
mod file;
mod file_size_signal;
mod files;
mod guest_access;
mod guest_budget;
mod guest_memory;
mod helpers;
mod limits;
mod lock_owner;
mod mailbox;
mod os_error;
mod passed;
mod passed_files;
mod pmem;
mod poll;
mod request;
mod ring;
mod ring_number;
mod ring_timeout;
mod setup;
mod shared_memory;
mod sleep_check;
mod socket;
mod stat;
mod table;
mod wakeup;

pub use connect::Peer;
pub use file::{Direct, OpenOptions};
pub use file_size_signal::ignore_file_size_signal;
pub use files::{Files, Opened, is_eventfd, remote_end};
pub use guest_budget::GuestBudget;
pub use guest_memory::GuestMemory;
pub use helpers::{DEADLINE, start_helper, wait_for_closes};
pub use lock_owner::LockOwner;
pub use mailbox::{Mailbox, Sender};
pub use passed::take_passed;
pub use passed_files::set_lifeline;
pub use pmem::copy;
pub use poll::{PollLimit, set_poll_limit};
pub use ring::Uring;
pub use shared_memory::MemoryFiles;
pub use socket::{RemoteEnd, SocketAccess};
pub use table::{SharedFile, ShorterFile};
