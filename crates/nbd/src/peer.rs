// SPDX-License-Identifier: Apache-2.0 OR MIT
//! Where a client connects from.

/// Where a client connects from.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum Peer {
    /// This machine, by a Unix socket that only its owner may use.
    Local,
    /// Any machine, by TCP.
    Network,
}
