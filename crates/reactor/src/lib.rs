// SPDX-License-Identifier: Apache-2.0 OR MIT
//! A single-core executor; it reaches the world only through a [`Driver`].
//!
//! ```text
//!   engines, doors      spawn   io(dev, ...)   sleep   WaitList   TaskPool
//!        │                │          │           │         │         │
//!   ┌────▼────────────────▼──────────▼───────────▼─────────▼─────────▼───┐
//!   │ Core: tasks · run queue · op slab · submission queue · timers      │
//!   └───────────────────────────────┬────────────────────────────────────┘
//!                        dyn Driver │ one call per batch
//!                  ┌────────────────┴───────────────┐
//!               uring (kernel)                 sim (virtual)
//! ```
//!
//! Invariants
//! - RE-R1 All state belongs to one core. Only `Msg` crosses cores, by `post`; messages from one
//!   core to another arrive in the order in which they were posted.
//! - RE-R2 Every request in flight owns one op slot until its outcome has come, also when its
//!   future was dropped; the driver holds the buffers until then.
//! - RE-R3 Completing a request stores the outcome and queues a task; it never runs client code.
//! - RE-R4 Code above can't tell which driver runs it, nor whether cores are threads.
#![warn(missing_docs)]

mod budget;
mod call;
mod core;
mod core_local;
mod driver;
mod exports;
mod fan_out;
mod group_commit;
mod io;
mod op_table;
mod outbox;
mod poller;
mod pollers;
mod quiesce;
mod remote;
mod shared_memory;
mod sleep;
mod task_pool;
mod timers;
mod wait;

pub use crate::budget::{Budget, Share};
pub use crate::call::call;
pub use crate::core::{
    Reactor, begin_pushed, core_id, count_work, end_waits, export, loop_time, memory, new_opener,
    now, post, random, set_memory, spawn, turn_is_over, unexport,
};
pub use core_local::CoreLocal;
pub use driver::{
    CommandMemory, Driver, Event, FileId, Found, Msg, OpResult, SentMemory, Sqe, SqeOp,
    StreamMemory,
};
pub use exports::Export;
pub use fan_out::complete_after;
pub use group_commit::GroupCommit;
pub use io::{
    BioFuture, IoFuture, KeptOp, ZeroBuffer, chain, discard, driver_io, flush, io, io_by, push_bio,
    read, watched, write, write_zeroes, zero_out,
};
pub use op_table::OnDone;
pub use pollers::Poller;
pub use quiesce::{Generation, QuiesceCounter};
pub use remote::{Remote, SharedDeviceName};
pub use shared_memory::{
    SharedMemory, SharedMemoryStore, others_share_memory, set_no_shared_memory, set_shared_memory,
    shared_memory,
};
pub use sleep::{sleep, yield_now};
pub use task_pool::TaskPool;
pub use wait::WaitList;

/// What a driver's run loop needs of a core; engines have no use for it.
pub mod hooks {
    pub use crate::core::{CoreRef, current};
}
