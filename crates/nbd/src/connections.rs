// SPDX-License-Identifier: Apache-2.0 OR MIT
//! The list of a server's connections, and their figures.
use block::{CoreId, Nanos};
use reactor::{FileId, core_id};

use crate::conn::Conn;
use crate::peer::Peer;
use crate::server::Server;

/// A connection, as it is now.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct Connection {
    /// Its number; no other connection of the server has or had it.
    pub id: u64,
    /// The socket. It may be closed already.
    pub file: FileId,
    /// Where the client connects from.
    pub peer: Peer,
    /// Name of the export; none during the handshake.
    pub export: Option<String>,
    /// The core that serves it.
    pub core: CoreId,
    /// Time since it was accepted.
    pub age: Nanos,
    /// Whether it takes no more requests and ends when those in flight are answered.
    pub is_ending: bool,
    /// Requests in flight.
    pub in_flight: u64,
    /// Requests taken.
    pub requests: u64,
    /// Data sent to the client.
    pub read_bytes: u64,
    /// Data received from it.
    pub write_bytes: u64,
    /// Requests answered with an error.
    pub errors: u64,
}

impl Conn {
    /// Counts a request that was taken.
    pub(crate) fn count_request(&self) {
        self.figures.requests.add(1);
        self.shared.counters.requests.add(1);
    }

    /// Counts a request that is answered with an error.
    pub(crate) fn count_error(&self) {
        self.figures.errors.add(1);
        self.shared.counters.errors.add(1);
    }

    /// Counts data of a read.
    pub(crate) fn count_read(&self, bytes: u64) {
        self.figures.read_bytes.add(bytes);
        self.shared.counters.read_bytes.add(bytes);
    }

    /// Counts data of a write.
    pub(crate) fn count_write(&self, bytes: u64) {
        self.figures.write_bytes.add(bytes);
        self.shared.counters.write_bytes.add(bytes);
    }

    pub(crate) fn describe(&self) -> Connection {
        let figures = &self.figures;
        Connection {
            id: figures.id,
            file: self.file(),
            peer: self.peer(),
            export: self.export_name(),
            core: self.remote().map_or_else(core_id, |remote| remote.core),
            age: figures.age(),
            is_ending: self.is_ending(),
            in_flight: self.in_flight(),
            requests: figures.requests.get(),
            read_bytes: figures.read_bytes.get(),
            write_bytes: figures.write_bytes.get(),
            errors: figures.errors.get(),
        }
    }
}

impl Server {
    /// The connections, in the order in which they were accepted.
    pub fn connections(&self) -> Vec<Connection> {
        let conns = self.0.conns.borrow();
        let mut all: Vec<Connection> = conns.iter().map(|(_, conn)| conn.describe()).collect();
        all.sort_by_key(|connection| connection.id);
        all
    }

    /// Ends a connection as a shutdown does: no more requests are taken, those in flight are
    /// answered, and a client that does not receive its replies within
    /// [`crate::Options::drain_time`] is cut off. Returns at once, false when there is
    /// no such connection.
    pub fn disconnect(&self, id: u64) -> bool {
        let conns = self.0.conns.borrow();
        let found = conns.iter().find(|(_, conn)| conn.figures.id == id);
        let Some(conn) = found.map(|(_, conn)| conn.clone()) else { return false };
        drop(conns);
        if !conn.is_ending() {
            conn.drain();
        }
        true
    }
}
