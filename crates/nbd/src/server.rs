// SPDX-License-Identifier: Apache-2.0 OR MIT
//! The server: acceptors, the budget that connections share, deadlines, and the orderly end.
use std::cell::{Cell, OnceCell, RefCell};
use std::fmt;
use std::rc::Rc;

use block::{Buf, Nanos, Status};
use reactor::{FileId, SqeOp, WaitList, Workers, driver_io, now, sleep, spawn};
use slab::Slab;

use crate::conn::{self, Conn};
use crate::export::Exports;
use crate::job::{self, Job};
use crate::wire::REQUEST_BYTES_MAX;

/// Pause after a failed accept: the usual cause, no free descriptors, needs others to finish.
const ACCEPT_RETRY: Nanos = Nanos::from_millis(100);
/// How far a deadline may be overrun, so that deadlines of different length need no order.
const REAPER_STEP: Nanos = Nanos::from_secs(1);

/// Bounds of a server.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct Options {
    /// Connections at a time; one more is closed at once.
    pub connections_max: usize,
    /// Requests of one connection in flight; beyond it nothing more is received.
    pub requests_max: usize,
    /// Data of one connection in flight; at least 32 MiB.
    pub connection_bytes_max: u64,
    /// Data of all connections in flight, apart from each one's reserve of 1 MiB; at least 32 MiB.
    pub bytes_max: u64,
    /// Time for a client's handshake.
    pub handshake_time: Nanos,
    /// Time for a client to take its last replies, after it or the server has ended the session.
    pub drain_time: Nanos,
}

impl Default for Options {
    fn default() -> Options {
        Options {
            connections_max: 256,
            requests_max: 1024,
            connection_bytes_max: 64 << 20,
            bytes_max: 512 << 20,
            handshake_time: Nanos::from_secs(10),
            drain_time: Nanos::from_secs(30),
        }
    }
}

/// What a server has done so far.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq)]
pub struct Stats {
    /// Connections now.
    pub connections: u64,
    /// Connections accepted since the start.
    pub connections_total: u64,
    /// Connections turned away because there were too many.
    pub refused_total: u64,
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
    pub(crate) jobs: Workers<Job>,
    pub(crate) stats: RefCell<Stats>,
    /// Data in flight of all connections.
    pub(crate) bytes: Cell<u64>,
    /// Connections that wait for others' data to leave.
    pub(crate) room: WaitList,
    /// Connections came, went, or got a deadline.
    pub(crate) changed: WaitList,
    pub(crate) conns: RefCell<Slab<Rc<Conn>>>,
    /// Source of zeroes for devices that can't make them.
    pub(crate) zeroes: OnceCell<Buf>,
    listeners: RefCell<Vec<FileId>>,
    acceptors: Cell<usize>,
    stopping: Cell<bool>,
}

/// An NBD server on the current core. Clones are the same server.
#[derive(Clone)]
pub struct Server(Rc<Shared>);

impl Server {
    /// A server without listeners.
    pub fn new(exports: Rc<dyn Exports>, options: Options) -> Server {
        let request = u64::from(REQUEST_BYTES_MAX);
        assert!(options.connection_bytes_max >= request, "a connection must hold one request");
        assert!(options.bytes_max >= request, "a server must hold one request");
        assert!(options.requests_max > 0, "a connection must hold one request");
        // N5: one for each request there may be, so that none waits for another's device.
        let workers_max = options.connections_max.saturating_mul(options.requests_max).max(1);
        Server(Rc::new(Shared {
            options,
            exports,
            jobs: Workers::new(workers_max, job::run),
            stats: RefCell::default(),
            bytes: Cell::new(0),
            room: WaitList::new(),
            changed: WaitList::new(),
            conns: RefCell::default(),
            zeroes: OnceCell::new(),
            listeners: RefCell::default(),
            acceptors: Cell::new(0),
            stopping: Cell::new(false),
        }))
    }

    /// Serves whoever connects to `listener`, which belongs to the server from now on.
    pub fn serve(&self, listener: FileId) {
        let shared = &self.0;
        assert!(!shared.stopping.get(), "serve after shutdown");
        if shared.listeners.borrow().is_empty() {
            spawn(reap(shared.clone()));
        }
        shared.listeners.borrow_mut().push(listener);
        shared.acceptors.set(shared.acceptors.get() + 1);
        spawn(accept(shared.clone(), listener));
    }

    /// Ends the server: no new connections, no new requests; what is in flight is finished and
    /// answered; then the connections are closed. Who doesn't take his replies within
    /// [`Options::drain_time`] is cut off. Returns when everything is closed.
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

    /// What the server has done so far.
    pub fn stats(&self) -> Stats {
        *self.0.stats.borrow()
    }
}

impl fmt::Debug for Server {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        write!(f, "Server({} connections)", self.0.conns.borrow().len())
    }
}

async fn accept(shared: Rc<Shared>, listener: FileId) {
    loop {
        let result = driver_io(listener, SqeOp::Accept).await;
        let file = FileId(result.value);
        match (result.status == Status::Ok, shared.stopping.get()) {
            (true, false) => admit(&shared, file).await,
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

async fn admit(shared: &Rc<Shared>, file: FileId) {
    if shared.conns.borrow().len() >= shared.options.connections_max {
        shared.stats.borrow_mut().refused_total += 1;
        let _ = driver_io(file, SqeOp::Close).await;
        return;
    }
    {
        let mut stats = shared.stats.borrow_mut();
        stats.connections += 1;
        stats.connections_total += 1;
    }
    let conn = Rc::new(Conn::new(shared.clone(), file));
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

/// Cuts connections off whose deadline has passed.
async fn reap(shared: Rc<Shared>) {
    let first = || shared.conns.borrow().iter().filter_map(|(_, c)| c.deadline.get()).min();
    let ended = || shared.stopping.get() && shared.conns.borrow().is_empty();
    loop {
        shared.changed.wait_for(|| first().is_some() || ended()).await;
        let Some(due) = first() else { return };
        sleep(due.saturating_sub(now()).min(REAPER_STEP)).await;
        let late = |c: &Conn| c.deadline.get().is_some_and(|due| due <= now());
        let conns = shared.conns.borrow();
        for (_, conn) in conns.iter().filter(|(_, c)| late(c)) {
            conn.deadline.set(None);
            spawn(conn.clone().cut_off());
        }
    }
}
