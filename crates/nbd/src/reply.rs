// SPDX-License-Identifier: Apache-2.0 OR MIT
//! A reply that waits to be sent.
use block::Bufs;

use crate::handshake::Session;
use crate::request::{Errno, ReplyHead, Request};
use crate::wire::cmd;

/// One reply in the send queue.
pub(crate) struct Reply {
    pub(crate) cookie: u64,
    pub(crate) head: ReplyHead,
    pub(crate) data: Bufs,
    /// Requests that it completes: one, or none when another chunk follows.
    pub(crate) requests: usize,
    /// Their share of the budget.
    pub(crate) bytes: u64,
}

impl Reply {
    /// A reply with the reason of a failure.
    pub(crate) fn error(session: &Session, request: &Request, error: Errno, bytes: u64) -> Reply {
        let chunks =
            matches!(request.kind, cmd::READ | cmd::BLOCK_STATUS) && session.terms.structured;
        let head = if chunks {
            ReplyHead::Error { error }
        } else {
            ReplyHead::Simple { error: Some(error) }
        };
        Reply { cookie: request.cookie, head, data: Bufs::new(), requests: 1, bytes }
    }
}
