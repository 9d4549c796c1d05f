// SPDX-License-Identifier: Apache-2.0 OR MIT
//! The client: an export of another server as a device, on the server's own codec.
//!
//! ```text
//!  bios ──▶ pieces ──▶ queue ──▶ sender ──Send, vectored──▶ socket ──▶ server
//!             ▲          ▲         │ guards: held back                  │
//!             │          │      in flight (cookie)                      │
//!             │          └── lost connection: retried                   │
//!  completions ◀───────────── receiver ◀──────Recv, many replies────────┘
//! ```
//!
//! `hello`, `terms`, `guard`, `fill` and `work` know no socket; `link` is one connection, `keeper`
//! makes new ones.
//!
//! # What happens when a connection is lost
//!
//! Requests in flight are sent again on a new connection, which is tried for at once and then as
//! `policy::backoff` says. A request that finds no server for [`Options::timeout`] fails with EIO.
//! A server that for [`Options::silence`] says nothing, and takes nothing of what is sent, while it
//! owes an answer is left, too: its process hangs, or its host is gone and the kernel has not
//! noticed. It owes whatever has been begun, also the taking of what is being sent. And one that
//! goes on with the others but not with one request is left after [`Options::own_silence`]; that
//! request fails.
//!
//! *Stale writes.* A server may still have requests of the old connection before it: in its own
//! hands, or unread in its socket. The protocol has no word to call them back, nor a number by
//! which a server could tell old from new. So a write of unknown fate leaves a guard over its
//! range. It is itself sent again at once, with the same data: whichever of the two lands last,
//! the range is the same. A *newer* change of a guarded range waits until the old connection has
//! been seen to end at the server: we end our direction and read on until the server ends its own.
//! A server that does or drops what it has before it closes, as millpond and nbdkit do, can have
//! nothing left then; nor one whose process was killed. What can't be known:
//! - A server that closes first and goes on with what it has in hand (qemu does when a client
//!   goes) may still let a write land late. Only the server could rule that out.
//! - When the host falls silent and the kernel gives the connection up, no end is ever seen. The
//!   guards stay, and newer changes of those ranges fail with EIO after the timeout, until the
//!   device is opened again; or, with [`Options::fence`], for that time.
//! - Writes of an earlier process of ours are unknown to the next one.
//!
//! *Lost caches.* A server that comes back may have been restarted and may have lost what was
//! written and not flushed. So when a connection is lost with such writes acknowledged, each
//! opener that was there gets EIO at its next flush, and at those that were under way: once, and
//! the layers above write again what they still have (decision 0022). A read may return old data
//! before that, as with any disk that loses power on its own. An opener that comes later gets it in
//! the place of one that has written such and is gone (`losses`).
//!
//! Invariants
//! - C1 A cookie names a request in flight and is never used twice: a reply to anything else, also
//!   a second one, ends the connection.
//! - C2 Nothing is allocated, read or skipped by the server's word beyond a bound of ours; every
//!   length is checked against the request.
//! - C3 A bio completes only when no Send holds its buffers any more, and bytes that are received
//!   go to it only while its piece is in flight.
//! - C4 A change is sent only when no other request's guard overlaps it.
//! - C5 A flush succeeds only if since its opener last heard of a loss no connection was lost with
//!   unflushed writes and no flush has failed; what it had heard of counts when it is submitted,
//!   and it has not heard of what was acknowledged after the flush had come that told of the loss.
//! - C6 Size and abilities of the export never change under who uses it: if they do, all fails.
use std::fmt;

use block::{Error, LocalFuture, Nanos};
use reactor::FileId;

mod device;
mod fill;
mod guard;
pub mod hello;
mod keeper;
mod link;
mod losses;
mod receive;
mod terms;
mod work;

pub use device::Client;
pub use terms::Terms;

/// Where connections come from.
pub trait Connect {
    /// A new connection to the server; it fails in the end if there is none to be had.
    fn connect(&self) -> LocalFuture<Result<FileId, Error>>;

    /// Where that is, for messages: host and port, or a path.
    fn peer(&self) -> String;
}

/// How patient a client is.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct Options {
    /// How long a request waits for a connection before it fails.
    pub timeout: Nanos,
    /// How long a server may say nothing, and take nothing of what is sent, while it owes an
    /// answer, before its connection is given up.
    pub silence: Nanos,
    /// How long after a connection has fallen silent its last writes may still land at the server;
    /// nothing: nobody knows.
    pub fence: Option<Nanos>,
    /// A planted fault, for tests of the tests.
    #[doc(hidden)]
    pub mutation: Mutation,
}

/// How many times `silence` one request may wait for progress of its own answer. Chosen: a server
/// that works through a long queue on a slow disk takes many times as long for the last of it.
const OWN_SILENCES: u64 = 10;

impl Options {
    /// How long one request may wait for progress of its own answer, while others' come.
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
            mutation: Mutation::None,
        }
    }
}

/// Faults planted on purpose, so that tests can prove that they would be seen.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq)]
#[doc(hidden)]
pub enum Mutation {
    /// None.
    #[default]
    None,
    /// Newer changes do not wait for the old connection's end.
    IgnoreGuards,
    /// A guard goes as soon as a new connection is there.
    FenceAtReconnect,
    /// A flush after a reconnect pretends that nothing was lost.
    PretendFlush,
    /// A write that was in flight when a flush failed is acknowledged like any other.
    NeverInDoubt,
    /// A reply is taken by its slot, whatever its number.
    CookieUnchecked,
    /// A write in flight when the connection is lost counts as done.
    ForgetInFlight,
    /// FUA is not sent.
    IgnoreFua,
    /// Where FUA is a write and a flush, only the flush is sent again.
    ForgetFuaWrite,
    /// A server that has answered early what is still being sent owes nothing.
    ForgetSending,
    /// An answer to one request is progress of all.
    AnyAnswerIsProgress,
}

/// What a client tells of its connection, for people.
#[derive(Clone, Debug, PartialEq, Eq)]
pub enum News {
    /// It is lost; requests wait.
    Lost(String),
    /// An attempt to connect failed; others follow.
    Refused(String),
    /// It is there again.
    Back,
    /// The device is of no use any more.
    Failed(String),
}

impl fmt::Display for News {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        match self {
            News::Lost(why) => write!(f, "connection lost: {why}"),
            News::Refused(why) => write!(f, "cannot connect again yet: {why}"),
            News::Back => f.write_str("connected again"),
            News::Failed(why) => write!(f, "device failed: {why}"),
        }
    }
}
