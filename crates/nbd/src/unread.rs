// SPDX-License-Identifier: Apache-2.0 OR MIT
//! What a paused session has received and not executed, and its state during a pause.
//!
//! ```text
//!   received:  [executed ...][ head │ a part of the data ][ further bytes ]
//!                            └──────── Unread::bytes ────────────────────┘
//!   refused:   [executed ...][ head │ data: dropped ][ further bytes ]
//!                              RefusedWrite: left     Unread::bytes
//! ```
use std::cell::{Cell, RefCell};
use std::sync::Arc;

use crate::request::Errno;

/// A WRITE that is refused, and whose data are still coming. They are dropped as they come, so it
/// can't be read again; its outcome is decided.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct RefusedWrite {
    /// Identifies it in its reply.
    pub cookie: u64,
    /// What it is answered with when all of it has come.
    pub error: Errno,
    /// Bytes of its data that have not come.
    pub left: u32,
}

/// What was received and not executed. The socket's next bytes follow it.
#[derive(Clone, Debug, Default, PartialEq, Eq)]
pub(crate) struct Unread {
    /// Its data come first.
    pub(crate) refused: Option<RefusedWrite>,
    /// Requests, of the last one maybe a part.
    pub(crate) bytes: Vec<u8>,
}

/// Why a receive loop stops.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(crate) enum Stop {
    /// The session ends.
    Ended,
    /// The server pauses.
    Paused,
}

/// A session of which nothing is in flight (NB-U1).
#[derive(Clone, Debug)]
pub(crate) struct Parked {
    pub(crate) unread: Arc<Unread>,
    pub(crate) flush_failed: bool,
}

/// A connection's part in the pauses of its server.
#[derive(Debug, Default)]
pub(crate) struct PauseState {
    /// The pause that it is to take part in; zero: none. Each pause of a server has its number, so
    /// that the news of an earlier one is known as such.
    pub(crate) number: Cell<u64>,
    /// How often what waits on the socket was ended.
    pub(crate) waits_ended: Cell<u64>,
    /// On the core that has accepted it: set when nothing is in flight any more.
    pub(crate) parked: RefCell<Option<Parked>>,
    /// FLUSHes of pauses that have not ended.
    pub(crate) flushes: Cell<u32>,
    /// One of them has failed, and no FLUSH of the client since (NB-U4).
    pub(crate) flush_failed: Cell<bool>,
    /// Another process goes on with it.
    pub(crate) abandoned: Cell<bool>,
}

impl PauseState {
    pub(crate) fn is_pausing(&self) -> bool {
        self.number.get() > 0
    }
}
