// SPDX-License-Identifier: Apache-2.0 OR MIT
//! ublk: devices as block devices of the kernel, `/dev/ublkbN`.
//!
//! ```text
//!   clients    mount, fio, mkfs ──▶ /dev/ublkbN ── tags ─┐            kernel (ublk_drv)
//!   ─────────────────────────────────────────────────────┼──────────────────────────────
//!   control    Control ── add, start, stop, recover ─▶ /dev/ublk-control    (any thread but a
//!                                                        │                   core's)
//!   each core  Queue: one task                           │
//!                fetch(tag) ◀──── a request ─────────────┘
//!                Descriptor ─▶ Request ─▶ bio ─▶ the device
//!                data of reads and writes: the kernel copies them between pages of clients and the
//!                buffer of the tag; or the queue does, by /dev/ublkcN (user copy)
//!                commit_and_fetch(tag, result): ends this one, waits for the next; or, since Linux
//!                7.0, several tags by one command
//! ```
//!
//! Control commands may wait, some for clients whose requests a [`Queue`] serves. So [`Control`]
//! blocks its thread, and no core calls it. A queue speaks to the kernel through [`Channel`]: the
//! kernel's is [`KernelChannel`], tests have one of their own. A device has one queue or several,
//! each on one core ([`Queues`]).
//!
//! Invariants
//! - UB-Q1 A queue is served by one task of one thread: the one that fetched a tag commits it,
//!   once. The kernel refuses a commit from another thread, where each tag has its own commands.
//! - UB-Q2 A request's data are in a buffer that no other request uses. Where the queue copies
//!   them, their bytes are counted ([`ByteBudget`]) before memory is taken, until it is committed;
//!   where the kernel does, the memory of all tags was counted when the device was made.
//! - UB-Q3 A commit tells the kernel what became of the request; data of a read are in the
//!   request's pages before that.
//! - UB-Q4 A queue that has been left commits nothing more: the kernel sends what was not committed
//!   to the next process, which does it again. Only devices whose limits say `survives_kill` are
//!   made so that the kernel does that.
//! - UB-Q5 A request that can't be on the device (range, alignment) is refused before any bio.
//! - UB-Q6 A buffer in which the kernel may put the next write's data is the tag's alone: one that
//!   the device still has when its request has ended is not offered again.
//! - UB-C1 No call of [`Control`] is made on a core.
//! - UB-C2 Only devices that carry our sign (`ublksrv_flags`) are recovered or deleted, by a daemon
//!   only those of its run directory, and none while a process has its character device open.
#![warn(missing_docs)]

mod abi;
mod batch;
mod budget;
mod channel;
mod control;
mod features;
mod figures;
mod identity;
mod kernel;
mod params;
mod planted;
mod queue;
mod queues;
mod request;
mod tag_buffers;
mod tag_completions;

pub use abi::{MAX_IO_BYTES, TAG_BUFFER_BYTES};
pub use budget::ByteBudget;
pub use channel::{Channel, KernelChannel, TagResult};
pub use control::{Control, KernelDevice, NewDevice, State, char_path, disk_path, numbers};
pub use features::Features;
pub use figures::Stats;
pub use identity::Identity;
pub use kernel::{Descriptor, QueueMemory};
pub use params::Params;
pub use planted::Fault;
pub use queue::{DataMemory, Ended, Queue, QueueSpec};
pub use queues::{MakeQueue, NewQueue, Queues};
pub use tag_buffers::TagBuffers;

#[cfg(test)]
extern crate self as ublk;
#[cfg(test)]
#[path = "../tests/it/main.rs"]
mod it;
