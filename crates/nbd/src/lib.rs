// SPDX-License-Identifier: Apache-2.0 OR MIT
//! NBD: devices served to real clients over sockets, batched both ways; and `client`, the export of
//! another server as a device.
//!
//! ```text
//!   socket ──Recv 256 KiB──▶ receive loop ──Bio──▶ device ─ended later──▶ TaskPool
//!             many requests    parse, admit           │ ended at once      │ one task
//!                                                     ▼                    │ a request
//!   socket ◀──Send, vectored── sender ◀────────── reply queue ◀────────────┘
//!             many replies
//! ```
//!
//! `wire`, `option`, `request` and `handshake` are pure: bytes in, bytes and decisions out. Only
//! `server`, `share`, `conn`, `job` and `send` touch the reactor.
//!
//! Invariants
//! - N1 No input makes the server panic or allocate more than [`Options`] allows; what can't be
//!   skipped safely ends the connection.
//! - N2 A request is admitted (counted in its connection's and the server's budget) before memory
//!   is taken for it, and released when its reply has left or is dropped.
//! - N3 The export's open guard lives until the last bio of its connection has ended.
//! - N4 A socket is closed only when nothing is in flight on it, so an id is never used again
//!   under a pending request.
//! - N5 Connections share only budgets: a stalled client never keeps another from its reserve, nor
//!   for longer than [`Options::stall_time`] from more (`share`).
//! - N6 A full table of connections is no lock-out: local sockets have places of their own, and
//!   sessions that have been idle for [`Options::idle_time`] make room for new ones of their kind.
#![warn(missing_docs)]

pub mod client;
mod conn;
mod export;
mod handshake;
mod job;
pub mod option;
pub mod request;
mod send;
mod server;
mod share;
pub mod wire;

pub use export::{Context, Export, Exports, Run};
pub use handshake::{Handshake, Session, Step};
pub use server::{Options, Peer, Server, Stats};
