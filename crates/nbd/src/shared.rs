// SPDX-License-Identifier: Apache-2.0 OR MIT
//! What the connections of one core share.
use std::cell::{Cell, RefCell};
use std::collections::{BTreeMap, BTreeSet};
use std::rc::Rc;
use std::sync::Arc;

use block::{CoreId, Nanos, Planted};
use reactor::{Budget, FileId, TaskPool, WaitList, ZeroBuffer};
use slab::Slab;

use crate::conn::Conn;
use crate::export::Exports;
use crate::figures::{Counters, Stats};
use crate::job::{self, Job};
use crate::peer::ListenerRules;
use crate::planted::ServerFault;
use crate::wire::REQUEST_BYTES_MAX;

/// Bounds of a server.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct Options {
    /// Sessions at a time. A further one replaces the session that was idle longest, if that was
    /// idle for [`Options::idle_time`]; else its connection is closed, at once if possible.
    pub connections_max: usize,
    /// Of these, places that only local sockets may take.
    pub local_connections: usize,
    /// Connections from the network that have not done their handshake, and as many from local
    /// sockets, besides the sessions. A further one replaces the oldest of them, if that is older
    /// than a second; else it is closed at once.
    pub handshakes_max: usize,
    /// Requests of one connection in flight; at this number the server stops receiving from it.
    pub requests_max: usize,
    /// Data of one connection in flight; at least 32 MiB.
    pub connection_bytes_max: u64,
    /// Data of all connections in flight, apart from each one's reserve of 1 MiB; at least 32 MiB.
    /// A quarter is for local sockets only. See [`Budget`] for how the rest is divided.
    pub bytes_max: u64,
    /// Time for a client's handshake.
    pub handshake_time: Nanos,
    /// Time for a client to receive its last replies after the end of the session.
    pub drain_time: Nanos,
    /// Time for a client to receive 1 MiB of its replies (or all of them, if less), and to send 1
    /// MiB of a write's data (or the rest). A slower client is cut off, because it holds memory
    /// that others wait for.
    pub stall_time: Nanos,
    /// How long a session without requests keeps its place when all places are taken. Chosen: a
    /// disk in use is seldom idle for so long, as a file system writes its journal.
    pub idle_time: Nanos,
}

impl Default for Options {
    fn default() -> Options {
        Options {
            connections_max: 256,
            local_connections: 64,
            handshakes_max: 32,
            requests_max: 1024,
            connection_bytes_max: 64 << 20,
            bytes_max: 512 << 20,
            handshake_time: Nanos::from_secs(10),
            drain_time: Nanos::from_secs(30),
            stall_time: Nanos::from_secs(30),
            idle_time: Nanos::from_secs(300),
        }
    }
}

/// The pauses of a server.
#[derive(Default)]
pub(crate) struct ServerPause {
    /// Number of the last one.
    pub(crate) last: Cell<u64>,
    /// Number of the one that lasts; zero: none.
    pub(crate) number: Cell<u64>,
    /// Acceptors that it has stopped.
    pub(crate) acceptors: Cell<usize>,
}

pub(crate) struct Shared {
    pub(crate) options: Options,
    pub(crate) exports: Rc<dyn Exports>,
    pub(crate) jobs: TaskPool<Job>,
    /// Of the connections themselves, wherever they are served.
    pub(crate) stats: RefCell<Stats>,
    /// What the connections count that this core serves, and those of other cores.
    pub(crate) counters: Arc<Counters>,
    pub(crate) away_counters: RefCell<BTreeMap<CoreId, Arc<Counters>>>,
    /// Data in flight of all connections.
    pub(crate) budget: Budget,
    /// Connections came, went, or got a deadline.
    pub(crate) changed: WaitList,
    /// No connection has a deadline, and the reaper waits for `changed`.
    pub(crate) reaper_waits: Cell<bool>,
    pub(crate) conns: RefCell<Slab<Rc<Conn>>>,
    /// Source of zeroes for devices that can't make them.
    pub(crate) zeroes: ZeroBuffer,
    pub(crate) listeners: RefCell<Vec<(FileId, ListenerRules)>>,
    pub(crate) acceptors: Cell<usize>,
    pub(crate) stopping: Cell<bool>,
    /// Number of the last connection.
    pub(crate) last_id: Cell<u64>,
    /// The deadlines are being watched.
    pub(crate) watching: Cell<bool>,
    pub(crate) pause: ServerPause,
    /// Exports of sessions that have ended after a failed FLUSH of a pause, without a FLUSH of
    /// their client: the next session of each hears of it (NB-U4). At most one entry for each name.
    pub(crate) unreported: RefCell<BTreeSet<String>>,
    pub(crate) planted: Planted<ServerFault>,
}

impl Shared {
    pub(crate) fn new(exports: Rc<dyn Exports>, options: Options) -> Shared {
        Shared::planted(exports, options, Planted::NONE)
    }

    pub(crate) fn planted(
        exports: Rc<dyn Exports>,
        options: Options,
        planted: Planted<ServerFault>,
    ) -> Shared {
        let request = u64::from(REQUEST_BYTES_MAX);
        assert!(options.connection_bytes_max >= request, "a connection must hold one request");
        assert!(options.bytes_max >= request, "a server must hold one request");
        assert!(options.requests_max > 0, "a connection must hold one request");
        assert!(options.handshakes_max > 0, "a session begins with a handshake");
        assert!(options.local_connections < options.connections_max, "the network gets a place");
        // NB-N5: one for each possible request, so that none waits for the device of another.
        let workers_max = options.connections_max.saturating_mul(options.requests_max).max(1);
        let of_network = (options.bytes_max - options.bytes_max / 4).max(request);
        let of_each = options.connection_bytes_max;
        Shared {
            budget: Budget::new(options.bytes_max, of_network, of_each),
            options,
            exports,
            jobs: TaskPool::new(workers_max, job::run),
            stats: RefCell::default(),
            counters: Arc::default(),
            away_counters: RefCell::default(),
            changed: WaitList::new(),
            reaper_waits: Cell::new(false),
            conns: RefCell::default(),
            zeroes: ZeroBuffer::default(),
            listeners: RefCell::default(),
            acceptors: Cell::new(0),
            stopping: Cell::new(false),
            last_id: Cell::new(0),
            watching: Cell::new(false),
            pause: ServerPause::default(),
            unreported: RefCell::default(),
            planted,
        }
    }
}
