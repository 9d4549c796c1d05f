// SPDX-License-Identifier: Apache-2.0 OR MIT
//! NBD: a server that exports devices over sockets, with requests and replies in batches; and a
//! client (`client`), which makes the export of another server a device.
//!
//! ```text
//!   socket ──Recv 256 KiB──▶ receive loop ──Bio──▶ device ─ended later──▶ TaskPool
//!             many requests    parse, admit           │ ended at once      │ one task
//!                                                     ▼                    │ a request
//!   socket ◀──Send, vectored── sender ◀────────── reply queue ◀────────────┘
//!             many replies
//! ```
//!
//! `wire`, `option`, `request` and `handshake` are pure functions of bytes. Only `server`, `share`,
//! `conn`, `job` and `send` use the reactor.
//!
//! Invariants
//! - NB-N1 No input makes the server panic or allocate more than [`Options`] allows. Input that
//!   can't be skipped safely ends the connection.
//! - NB-N2 A request is admitted (counted in its connection's and the server's budget) before
//!   memory is taken for it, and released when its reply has left or is dropped.
//! - NB-N3 The export's open guard lives until the last bio of its connection has ended.
//! - NB-N4 A socket is closed only when nothing is in flight on it, so that no pending request
//!   meets a reused file id.
//! - NB-N5 Connections share only budgets. A stalled client never blocks the reserve of another
//!   one, and blocks its further requests for at most [`Options::stall_time`] (`share`).
//! - NB-N6 A full table of connections locks no one out: local sockets have places of their own,
//!   and a new connection replaces a session of its kind that was idle for [`Options::idle_time`].
#![warn(missing_docs)]

pub mod client;
mod conn;
mod connections;
mod export;
mod figures;
mod handshake;
mod job;
pub mod option;
mod peer;
mod planted;
pub mod request;
mod send;
mod server;
mod share;
mod tls;
pub mod wire;

pub use connections::Connection;
pub use export::{Context, Export, Exports, Run};
pub use handshake::{Handshake, Session, Step};
pub use peer::Peer;
#[cfg(feature = "planted")]
pub use planted::Fault;
pub use server::{Options, Server, Stats};
pub use tls::{TlsClient, TlsServer};
