// SPDX-License-Identifier: Apache-2.0 OR MIT
//! The server: acceptors, the budget that connections share, deadlines, and the shutdown.
use std::cell::{Cell, RefCell};
use std::fmt;
use std::rc::Rc;

use block::{Nanos, Status};
use reactor::{FileId, SqeOp, TaskPool, WaitList, ZeroBuffer, driver_io, now, sleep, spawn};
use slab::Slab;

use crate::conn::{self, Conn};
use crate::export::Exports;
use crate::job::{self, Job};
use crate::peer::{ListenerRules, Peer};
use crate::share::Budget;
use crate::tls::TlsServer;
use crate::wire::REQUEST_BYTES_MAX;

/// Pause after a failed accept. The usual cause is a lack of free descriptors.
const ACCEPT_RETRY: Nanos = Nanos::from_millis(100);
/// How late a deadline may be noticed, so that deadlines of different length need no order.
const REAPER_STEP: Nanos = Nanos::from_secs(1);
/// Least time for a handshake when all places are taken; a normal one takes milliseconds.
const HANDSHAKE_TIME_MIN: Nanos = Nanos::from_secs(1);

/// Bounds of a server.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct Options {
    /// Connections at a time. A further one replaces the connection that was idle longest, if that
    /// was idle for [`Options::idle_time`]; else it is closed at once.
    pub connections_max: usize,
    /// Of these, places that only local sockets may take.
    pub local_connections: usize,
    /// Requests of one connection in flight; at this number the server stops receiving from it.
    pub requests_max: usize,
    /// Data of one connection in flight; at least 32 MiB.
    pub connection_bytes_max: u64,
    /// Data of all connections in flight, apart from each one's reserve of 1 MiB; at least 32 MiB.
    /// A quarter is for local sockets only. See `share` for how the rest is divided.
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

/// Counters of a server.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq)]
pub struct Stats {
    /// Connections now.
    pub connections: u64,
    /// Connections accepted since the start.
    pub connections_total: u64,
    /// Connections refused because there were too many.
    pub refused_total: u64,
    /// Connections cut off because they received no replies, or sent no data of a write.
    pub stalled_total: u64,
    /// Idle connections replaced by a new one.
    pub displaced_total: u64,
    /// Requests taken.
    pub requests_total: u64,
    /// Requests answered with an error.
    pub errors_total: u64,
    /// Data sent to readers.
    pub read_bytes_total: u64,
    /// Data received from writers.
    pub write_bytes_total: u64,
    /// Receives done in sessions.
    pub receives_total: u64,
    /// Sends done in sessions.
    pub sends_total: u64,
}

pub(crate) struct Shared {
    pub(crate) options: Options,
    pub(crate) exports: Rc<dyn Exports>,
    pub(crate) jobs: TaskPool<Job>,
    pub(crate) stats: RefCell<Stats>,
    /// Data in flight of all connections.
    pub(crate) budget: Budget,
    /// Connections came, went, or got a deadline.
    pub(crate) changed: WaitList,
    /// No connection has a deadline, and the reaper waits for `changed`.
    pub(crate) reaper_waits: Cell<bool>,
    pub(crate) conns: RefCell<Slab<Rc<Conn>>>,
    /// Source of zeroes for devices that can't make them.
    pub(crate) zeroes: ZeroBuffer,
    listeners: RefCell<Vec<FileId>>,
    acceptors: Cell<usize>,
    stopping: Cell<bool>,
}

/// An NBD server on the current core. Clones are the same server.
#[derive(Clone)]
pub struct Server(pub(crate) Rc<Shared>);

impl Server {
    /// A server without listeners.
    pub fn new(exports: Rc<dyn Exports>, options: Options) -> Server {
        let request = u64::from(REQUEST_BYTES_MAX);
        assert!(options.connection_bytes_max >= request, "a connection must hold one request");
        assert!(options.bytes_max >= request, "a server must hold one request");
        assert!(options.requests_max > 0, "a connection must hold one request");
        assert!(options.local_connections < options.connections_max, "the network gets a place");
        // NB-N5: one for each possible request, so that none waits for the device of another.
        let workers_max = options.connections_max.saturating_mul(options.requests_max).max(1);
        Server(Rc::new(Shared {
            budget: Budget::new(options.bytes_max),
            options,
            exports,
            jobs: TaskPool::new(workers_max, job::run),
            stats: RefCell::default(),
            changed: WaitList::new(),
            reaper_waits: Cell::new(false),
            conns: RefCell::default(),
            zeroes: ZeroBuffer::default(),
            listeners: RefCell::default(),
            acceptors: Cell::new(0),
            stopping: Cell::new(false),
        }))
    }

    /// Serves clients that connect to `listener`, which the server owns from now on. `peer` returns
    /// where they connect from.
    pub fn serve(&self, listener: FileId, peer: Peer) {
        self.serve_by(listener, ListenerRules { peer, tls: None });
    }

    /// The same for clients that must come by TLS: until they have sent STARTTLS, they get no other
    /// answer.
    pub fn serve_tls(&self, listener: FileId, peer: Peer, tls: Rc<TlsServer>) {
        self.serve_by(listener, ListenerRules { peer, tls: Some(tls) });
    }

    fn serve_by(&self, listener: FileId, rules: ListenerRules) {
        let shared = &self.0;
        assert!(!shared.stopping.get(), "serve after shutdown");
        if shared.listeners.borrow().is_empty() {
            spawn(reap(shared.clone()));
        }
        shared.listeners.borrow_mut().push(listener);
        shared.acceptors.set(shared.acceptors.get() + 1);
        spawn(accept(shared.clone(), listener, rules));
    }

    /// Ends the server: refuses new connections and requests, answers what is in flight, and then
    /// closes the connections. Clients that do not receive their replies within
    /// [`Options::drain_time`] are cut off. Returns when everything is closed.
    pub async fn shutdown(&self) {
        let shared = &self.0;
        shared.stopping.set(true);
        let listeners = shared.listeners.borrow().clone();
        for listener in listeners {
            let _ = driver_io(listener, SqeOp::Shutdown).await; // ends the accept, which closes it
        }
        let conns: Vec<_> = shared.conns.borrow().iter().map(|(_, c)| c.clone()).collect();
        for conn in conns {
            conn.drain();
        }
        shared.changed.wake_all();
        let ended = || shared.conns.borrow().is_empty() && shared.acceptors.get() == 0;
        shared.changed.wait_for(ended).await;
    }

    /// The counters so far.
    pub fn stats(&self) -> Stats {
        *self.0.stats.borrow()
    }
}

impl fmt::Debug for Server {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        write!(f, "Server({} connections)", self.0.conns.borrow().len())
    }
}

async fn accept(shared: Rc<Shared>, listener: FileId, rules: ListenerRules) {
    loop {
        let result = driver_io(listener, SqeOp::Accept).await;
        let file = FileId(result.value);
        match (result.status == Status::Ok, shared.stopping.get()) {
            (true, false) => admit(&shared, file, rules.clone()).await,
            (false, false) => sleep(ACCEPT_RETRY).await,
            (true, true) => {
                let _ = driver_io(file, SqeOp::Close).await;
                break;
            }
            (false, true) => break,
        }
    }
    let _ = driver_io(listener, SqeOp::Close).await;
    shared.acceptors.set(shared.acceptors.get() - 1);
    shared.changed.wake_all();
}

impl Shared {
    /// Whether there is no place for one more connection.
    fn is_full(&self, peer: Peer) -> bool {
        let conns = self.conns.borrow();
        let network = || conns.iter().filter(|(_, c)| c.peer() == Peer::Network).count();
        let network_max = self.options.connections_max - self.options.local_connections;
        conns.len() >= self.options.connections_max
            || peer == Peer::Network && network() >= network_max
    }

    /// The connection that a new one may replace (NB-N6).
    fn idlest(&self, peer: Peer) -> Option<Rc<Conn>> {
        let conns = self.conns.borrow();
        let since = |c: &Rc<Conn>| {
            let patience = match c.is_greeted() {
                true => self.options.idle_time,
                false => HANDSHAKE_TIME_MIN,
            };
            let since = c.idle_since().filter(|since| *since + patience <= now())?;
            (peer == Peer::Local || c.peer() == peer).then(|| (since, c.clone()))
        };
        let idle = conns.iter().filter_map(|(_, c)| since(c));
        idle.min_by_key(|(since, _)| *since).map(|(_, conn)| conn)
    }
}

async fn admit(shared: &Rc<Shared>, file: FileId, rules: ListenerRules) {
    let peer = rules.peer;
    if shared.is_full(peer) {
        match shared.idlest(peer) {
            Some(conn) => {
                shared.stats.borrow_mut().displaced_total += 1;
                // NB-N4: only its receive is in flight, and this ends it.
                conn.cut_off().await;
                shared.changed.wait_for(|| !shared.is_full(peer) || shared.stopping.get()).await;
            }
            None => shared.stats.borrow_mut().refused_total += 1,
        }
    }
    if shared.is_full(peer) || shared.stopping.get() {
        let _ = driver_io(file, SqeOp::Close).await;
        return;
    }
    let id = {
        let mut stats = shared.stats.borrow_mut();
        stats.connections += 1;
        stats.connections_total += 1;
        stats.connections_total
    };
    let conn = Rc::new(Conn::new(shared.clone(), file, rules, id));
    let slot = shared.conns.borrow_mut().insert(conn.clone());
    shared.changed.wake_all();
    let shared = shared.clone();
    spawn(async move {
        conn::run(conn).await;
        shared.conns.borrow_mut().remove(slot);
        shared.stats.borrow_mut().connections -= 1;
        shared.changed.wake_all();
    });
}

/// Cuts off connections whose deadline has passed.
async fn reap(shared: Rc<Shared>) {
    let first = || shared.conns.borrow().iter().filter_map(|(_, c)| c.due()).min();
    let ended = || shared.stopping.get() && shared.conns.borrow().is_empty();
    loop {
        shared.reaper_waits.set(true);
        shared.changed.wait_for(|| first().is_some() || ended()).await;
        shared.reaper_waits.set(false);
        let Some(due) = first() else { return };
        sleep(due.saturating_sub(now()).min(REAPER_STEP)).await;
        let late = |c: &Conn| c.due().is_some_and(|due| due <= now());
        let conns = shared.conns.borrow();
        for (_, conn) in conns.iter().filter(|(_, c)| late(c)) {
            if conn.clear_deadlines() {
                shared.stats.borrow_mut().stalled_total += 1;
            }
            spawn(conn.clone().cut_off());
        }
    }
}
