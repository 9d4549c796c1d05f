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
//! `wire`, `option`, `request` and `handshake` are pure functions of bytes.
//!
//! A server accepts and greets on its own core. A session may be served on another one, where its
//! export is ([`Export::place`]).
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
//!   one, and blocks its further requests for at most [`Options::stall_time`] (`reactor::Budget`).
//! - NB-N6 A full table of connections locks no one out: local sockets have places of their own,
//!   and a new session replaces one of its kind that was idle for [`Options::idle_time`]. Before
//!   that it has done its handshake: until then a connection has one of other places, and replaces
//!   only what has done none either. Who has no certificate ends no session.
//! - NB-N7 A connection has one place, one id and one row of figures, on the core that accepted it,
//!   whichever core serves it. Its socket is closed there after the other core has closed its own.
//!
//! A server can be paused ([`Server::pause`]), so that another process goes on with its sessions:
//! - NB-U1 Nothing of a paused session is in flight, on its socket or at its device. What was
//!   received of it and not executed is kept, and is the next that is read of it, here or by the
//!   server that adopts it. So each request is executed once, and answered once.
//! - NB-U2 A session counts as paused when every request that was begun is answered and its reply
//!   has left. If a device does not end one, the pause fails, and the server goes on as before.
//! - NB-U3 A request is begun when all of it has come. A part of one is bytes that were received.
//! - NB-U4 Each pause sends a FLUSH by the opener of each session. So what was acknowledged is
//!   durable, or the next FLUSH of the client fails, here or at the server that adopts the session;
//!   if the session ends before, that of the next session of its export. An opener is a number of
//!   one process, and what a device has to report to it does not cross.
//! - NB-U5 A session goes on by an export that keeps what its client was told, or it ends.
//! - NB-U6 A server that is abandoned shuts no socket down and sends nothing: it closes its
//!   descriptors.
#![warn(missing_docs)]

mod adopt;
pub mod client;
mod conn;
mod connections;
mod deadlines;
mod export;
mod figures;
mod handshake;
mod job;
pub mod option;
mod park;
mod pause;
mod peer;
mod planted;
mod receive;
mod remote;
mod reply;
pub mod request;
mod send;
mod server;
mod session;
mod shared;
mod tls;
mod unread;
pub mod wire;

pub use connections::Connection;
pub use export::{Context, Export, Exports, Place, PlacedExport, Run};
pub use figures::Stats;
pub use handshake::{Handshake, Session, SessionTerms, Step};
pub use pause::{Paused, PausedListener, PausedSession};
pub use peer::Peer;
#[cfg(feature = "planted")]
pub use planted::{Fault, ServerFault};
pub use server::Server;
pub use session::end_sessions_of_this_core;
pub use shared::Options;
pub use tls::{TlsClient, TlsServer};
pub use unread::RefusedWrite;
