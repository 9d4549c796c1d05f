// SPDX-License-Identifier: Apache-2.0 OR MIT
//! Where a client connects from, and by what.
use std::rc::Rc;

use crate::tls::TlsServer;

/// Where a client connects from.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum Peer {
    /// This machine, by a Unix socket that only its owner may use.
    Local,
    /// Any machine, by TCP.
    Network,
}

/// What the connections of one listener have in common.
#[derive(Clone, Debug)]
pub(crate) struct ListenerRules {
    pub(crate) peer: Peer,
    /// How they speak TLS; without it they are plain.
    pub(crate) tls: Option<Rc<TlsServer>>,
}
