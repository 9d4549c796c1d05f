// SPDX-License-Identifier: Apache-2.0 OR MIT
//! The NBD server and client: tests of its public items, one file for each subject.
#![expect(clippy::unwrap_used, reason = "a test fails by panicking")]

mod client;
mod common;
mod handovers;
mod handshake;
mod lossy;
mod model;
mod pauses;
mod pieces;
mod read_only;
mod real_sockets;
mod session;
mod shares;
mod silent;
mod tls;
