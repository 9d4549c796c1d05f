// SPDX-License-Identifier: Apache-2.0 OR MIT
//! The hand-over of a live upgrade: what a daemon gives to its successor, as messages with file
//! descriptors on a Unix stream socket. `docs/format/handover.md` is its specification.
//!
//! ```text
//!   old daemon                                successor
//!        │ ◀──────────────── hello ──────────────── │   versions that it understands
//!        │ ── hello ──────────────────────────────▶ │   the one that is used
//!        │    (its clients' requests end, its devices are suspended)
//!        │ ── run-directory, listener, leaf, ─────▶ │   each with a descriptor
//!        │    session, device ...                   │
//!        │ ── open ───────────────────────────────▶ │   its devices
//!        │ ◀──────────────── opened, or failed ──── │
//!        │ ── commit ─────────────────────────────▶ │   serves from now on
//!        ▼ exits
//! ```
//!
//! Invariants
//! - HV-F1 No bytes make the decoder panic, or take more memory than [`JSON_BYTES_MAX`] and
//!   [`BYTES_MAX`]; a message that is understood is written back to a message that means the same.
//! - HV-F2 A member that is not known is ignored: a newer program may send it. One that is missing
//!   has its default where the type says so; else the message is refused.
//! - HV-F3 A message comes with all of its descriptors or not at all.
//!
//! [`hand_over`] and [`Takeover`] are the sequences of both sides. They know neither processes nor
//! sockets: `host::upgrade` runs them on real ones, and in simulation.
mod channel;
mod frame;
mod hand_over;
mod message;
mod planted;
mod take_over;
mod transport;

pub use channel::Channel;
pub use frame::{BYTES_MAX, Frame, HEAD_BYTES, Head, JSON_BYTES_MAX};
pub use hand_over::{OldDaemon, hand_over};
pub use message::{
    Device, Greeting, Leaf, Listener, ListenerRole, Message, NEWEST, OLDEST, Peer, RefusedWrite,
    Session, VhostSession, WITH_VHOST,
};
pub use planted::{Fault, PlantedFault};
pub use take_over::{Committed, Takeover};
pub use transport::{Parcel, Transport};
