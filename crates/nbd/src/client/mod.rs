// SPDX-License-Identifier: Apache-2.0 OR MIT
//! The client: makes an export of another server a device, with the codec of our server.
//!
//! ```text
//!  bios ──▶ pieces ──▶ queue ──▶ sender ──Send, vectored──▶ socket ──▶ server
//!             ▲          ▲         │ guarded: wait                      │
//!             │          │      in flight (cookie)                      │
//!             │          └── lost connection: retried                   │
//!  completions ◀───────────── receiver ◀──────Recv, many replies────────┘
//! ```
//!
//! `handshake`, `export_info`, `guard`, `ranges` and `work` are independent of sockets; `link` is
//! one connection; `supervisor` makes new ones.
//!
//! # What happens when a connection is lost
//!
//! The client connects again at once, then with the back-off of `policy::backoff`, and sends the
//! requests in flight again. A request that finds no server for [`Options::timeout`] fails with
//! EIO.
//!
//! The client also drops a connection if the server sends nothing and receives nothing for
//! [`Options::silence`] while requests are pending: its process hangs, or its host is gone and the
//! kernel has not noticed. A request that is still being sent counts as pending. If a server makes
//! progress with other requests but not with one for [`Options::own_silence`], the connection is
//! dropped, too, and that request fails.
//!
//! *Stale writes.* A server may still hold requests of the old connection: in progress, or unread
//! in its socket. The protocol has no message to cancel them, and no number by which a server could
//! distinguish old from new. So a write whose result is unknown leaves a guard over its range. The
//! write itself is sent again at once with the same data: whichever of the two is performed last,
//! the range has the same contents. A *newer* change of a guarded range waits until the server has
//! ended the old connection: we shut down our direction, and read until the server closes its own.
//! A server that completes or drops its requests before it closes, as millpond and nbdkit do, has
//! none left then; nor has a killed process. Limits of this scheme:
//! - A server that closes first and then completes its requests (qemu does when a client leaves)
//!   may still perform a write late. Only the server could prevent that.
//! - If the host falls silent and the kernel gives the connection up, the client never sees its
//!   end. The guards stay, and newer changes of those ranges fail with EIO after the timeout, until
//!   the device is opened again; with [`Options::fence`] the guards end after that time.
//! - Writes of an earlier process of ours are unknown to the next one.
//!
//! *Lost caches.* A server that is back may have been restarted and may have lost unflushed writes.
//! So if a connection is lost after such writes were acknowledged, each current opener gets EIO at
//! its next flush, and at its flushes in flight: once, and the layers above write again what they
//! still have (decision 0022). Before that a read may return old data, as with a disk that has lost
//! power. A later opener gets the error in place of one that had written and is gone (`unflushed`).
//!
//! Invariants
//! - NB-C1 A cookie names a request in flight and is never used twice: a reply to anything else,
//!   also a second one, ends the connection.
//! - NB-C2 Lengths from the server are checked against the request, or against a bound of ours,
//!   before anything is allocated, read or skipped.
//! - NB-C3 A bio completes only when no Send holds its buffers, and received bytes are copied into
//!   them only while its piece is in flight.
//! - NB-C4 A change is sent only when no other request's guard overlaps it.
//! - NB-C5 A flush succeeds only if no connection was lost with unflushed writes, and no flush
//!   failed, since the last loss that was reported to its opener before the flush was submitted. A
//!   report does not cover changes that were acknowledged after the reporting flush was submitted.
//! - NB-C6 The size and flags of the export never change while it is in use: if the server changes
//!   them, every request fails. One that comes back read-only is still read: changes are refused,
//!   those that were on their way, too, until it takes writes again.
use std::fmt;

use block::{Error, LocalFuture, Nanos};
use reactor::FileId;

use crate::tls::TlsClient;

mod device;
mod export_info;
mod guard;
pub mod handshake;
mod link;
mod ranges;
mod receive;
mod supervisor;
mod unflushed;
mod work;

pub use device::Client;
pub use export_info::ExportInfo;

/// Makes connections to a server.
pub trait Connect {
    /// Connects to the server; fails after a bounded time.
    fn connect(&self) -> LocalFuture<Result<FileId, Error>>;

    /// The address for messages: host and port, or a path.
    fn peer(&self) -> String;

    /// How to speak TLS there; without it connections are plain.
    fn tls(&self) -> Option<TlsClient> {
        None
    }
}

/// Timeouts of a client.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct Options {
    /// How long a request waits for a connection before it fails.
    pub timeout: Nanos,
    /// How long a server may send and receive nothing while requests are pending, before its
    /// connection is dropped.
    pub silence: Nanos,
    /// How long after a connection has fallen silent the server may still perform its last writes;
    /// `None`: unknown.
    pub fence: Option<Nanos>,
}

/// How many times `silence` one request may wait for progress of its own answer. Chosen: with a
/// long queue on a slow disk the last request takes many times as long.
const OWN_SILENCES: u64 = 10;

impl Options {
    /// How long one request may wait for progress of its own answer while others make progress.
    pub fn own_silence(&self) -> Nanos {
        Nanos(self.silence.0.saturating_mul(OWN_SILENCES))
    }
}

impl Default for Options {
    fn default() -> Options {
        Options {
            timeout: Nanos::from_secs(30),
            // Chosen: a flush of a large page cache to a slow disk takes a minute and more.
            silence: Nanos::from_secs(120),
            fence: None,
        }
    }
}

/// An event of a client's connection, for the log.
#[derive(Clone, Debug, PartialEq, Eq)]
pub enum LinkEvent {
    /// The connection is lost; requests wait.
    Lost(String),
    /// An attempt to connect failed; more follow.
    ConnectFailed(String),
    /// The client is connected again.
    Reconnected,
    /// The export was writable, and is read-only since the last connection.
    BecameReadOnly,
    /// The device has failed permanently (NB-C6).
    Failed(String),
}

impl fmt::Display for LinkEvent {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        match self {
            LinkEvent::Lost(why) => write!(f, "connection lost: {why}"),
            LinkEvent::ConnectFailed(why) => write!(f, "cannot connect again yet: {why}"),
            LinkEvent::Reconnected => f.write_str("connected again"),
            LinkEvent::BecameReadOnly => {
                f.write_str("connected again, and the export is read-only now: writes fail")
            }
            LinkEvent::Failed(why) => write!(f, "device failed: {why}"),
        }
    }
}
