// SPDX-License-Identifier: Apache-2.0 OR MIT
//! A pause of the server: what has begun ends, and nothing more is read. Then the server goes on,
//! or another process goes on with its sessions.
//!
//! ```text
//!           ┌──────────────── resume ◀────────────────┐
//!           ▼                                         │
//!   serving ── pause ─▶ every session parked ── Paused ┴─ abandon ─▶ descriptors closed
//!              │                                 └ sockets, listeners: sent to another process
//!              └ a device does not answer: an error, and it goes on       ── Server::adopt
//! ```
use std::collections::BTreeMap;
use std::rc::Rc;

use block::{Error, Nanos, Sector};
use reactor::{FileId, call, end_waits, now, sleep, spawn};

use crate::conn::Conn;
use crate::connections::Connection;
use crate::export::Context;
use crate::peer::Peer;
use crate::server::Server;
use crate::shared::Shared;
use crate::unread::{Parked, RefusedWrite};
use crate::wire::ExportFlags;

/// Most time for a connection that is in its handshake, and for a client to take a part of its
/// replies; at most a quarter of the time of the pause.
const CLIENT_TIME: Nanos = Nanos::from_secs(1);
/// Time for connections that were cut off to end.
const END_TIME: Nanos = Nanos::from_secs(1);
/// Sessions that an error names.
const NAMES_MAX: usize = 3;

/// What a connection waits for.
#[derive(Clone, Copy, Debug, Default)]
struct Load {
    /// Requests that the device has not ended.
    at_device: u64,
    /// When the part of its replies is due that its client has not taken yet.
    sending: Option<Nanos>,
}

impl Load {
    fn of(conn: &Conn) -> Load {
        Load { at_device: conn.at_device(), sending: conn.send_due() }
    }
}

/// A server that is paused.
#[derive(Debug)]
pub struct Paused {
    /// Its sessions, in the order in which they were accepted. Another process may go on with them.
    pub sessions: Vec<PausedSession>,
    /// Connections with TLS: they end when the server is abandoned, because nobody else has their
    /// keys.
    pub staying: Vec<Connection>,
    /// Its listening sockets.
    pub listeners: Vec<PausedListener>,
    /// Exports whose data may be lost, as the next session of each must hear
    /// ([`Server::note_lost_writes`]).
    pub lost_writes: Vec<String>,
}

/// A listening socket of a paused server. It is open.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct PausedListener {
    /// The socket.
    pub socket: FileId,
    /// Where its clients connect from.
    pub peer: Peer,
    /// Whether they must come by TLS.
    pub tls: bool,
}

/// A session of a paused server. All its replies have left, and nothing is in flight on its socket.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct PausedSession {
    /// Its number.
    pub id: u64,
    /// The socket. It is open.
    pub socket: FileId,
    /// Where the client connects from.
    pub peer: Peer,
    /// Name of the export.
    pub export: String,
    /// What the client was told that the export can do.
    pub flags: ExportFlags,
    /// Whether replies to READ and BLOCK_STATUS are structured.
    pub structured: bool,
    /// The contexts of block status that the client has chosen.
    pub contexts: Vec<Context>,
    /// The size that the client was told.
    pub size: Sector,
    /// The smallest request that the client was told, in bytes.
    pub block_bytes: u32,
    /// The size that the device has now. It may have become smaller.
    pub present_size: Sector,
    /// Whether writes are refused now.
    pub read_only: bool,
    /// A WRITE that is refused and whose data are still coming; they come before `unread`.
    pub refused: Option<RefusedWrite>,
    /// Bytes that were received and not executed: they come before what the socket has. At most a
    /// request of 32 MiB and 256 KiB more.
    pub unread: Vec<u8>,
    /// Acknowledged writes may be lost: the client's next FLUSH must fail (NB-U4).
    pub has_lost_writes: bool,
    /// Time since the client has connected.
    pub age: Nanos,
    /// Requests taken.
    pub requests: u64,
    /// Data sent to the client.
    pub read_bytes: u64,
    /// Data received from it.
    pub write_bytes: u64,
    /// Requests answered with an error.
    pub errors: u64,
}

impl Server {
    /// The connections with which another process could not go on: those with TLS. Others end in a
    /// pause if they are in their handshake, or take no replies.
    pub fn staying_connections(&self) -> Vec<Connection> {
        let conns = self.0.conns.borrow();
        conns.iter().filter(|(_, c)| c.rules.tls.is_some()).map(|(_, c)| c.describe()).collect()
    }

    /// Pauses the server: it accepts no connection and reads no request, and returns when all that
    /// has begun has ended and has been answered (NB-U1, NB-U2). Then [`Server::resume`] or
    /// [`Server::abandon`] must follow; [`Server::shutdown`] may.
    ///
    /// Connections that are in their handshake after a quarter of `time`, at most a second, are
    /// closed, and those whose clients take no part of their replies for so long, or have not taken
    /// all within `time`.
    ///
    /// # Errors
    /// `EBUSY`, in words, when a device has not ended a request within `time`, or the server is
    /// paused or ending. It goes on as before.
    pub async fn pause(&self, time: Nanos) -> Result<Paused, Error> {
        let shared = &self.0;
        if shared.pause.number.get() > 0 || shared.stopping.get() {
            return Err(Error::busy("the NBD server is paused or ends"));
        }
        let (begun, number) = (now(), shared.pause.last.get() + 1);
        shared.pause.last.set(number);
        shared.pause.number.set(number);
        shared.listeners.borrow().iter().for_each(|(listener, _)| end_waits(*listener));
        shared.each(|conn| conn.pause(number));
        if !self.settle_within(begun, time).await {
            self.end_stalled(time).await.inspect_err(|_| self.resume())?;
        }
        if shared.stopping.get() {
            self.resume();
            return Err(Error::busy("the NBD server ends"));
        }
        Ok(shared.paused())
    }

    /// Waits at most for `time` until all is parked. Connections end meanwhile that would hold up
    /// all others for nothing: those in their handshake, and those whose clients take no replies.
    async fn settle_within(&self, begun: Nanos, time: Nanos) -> bool {
        let (shared, end) = (&self.0, begun + time);
        let patience = Nanos(time.0 / 4).min(CLIENT_TIME);
        let mut sending_before = BTreeMap::new();
        loop {
            let mut sending = BTreeMap::new();
            for (conn, load) in self.loads().await {
                let (id, is_at_device) = (conn.figures.id, load.at_device > 0);
                let is_on_its_way = is_at_device || conn.is_ending();
                let Some(step) = load.sending.filter(|_| !is_on_its_way) else { continue };
                if sending_before.get(&id) == Some(&step) {
                    shared.counters.stalled.add(1);
                    spawn(conn.cut_off());
                } else {
                    sending.insert(id, step);
                }
            }
            sending_before = sending;
            if shared.settle((now() + patience).min(end)).await {
                return true;
            }
            shared.each(|conn| {
                if !conn.is_greeted() {
                    spawn(conn.clone().cut_off());
                }
            });
            if now() >= end {
                return false;
            }
        }
    }

    /// What the connections wait for that are not parked.
    async fn loads(&self) -> Vec<(Rc<Conn>, Load)> {
        let mut left = Vec::new();
        self.0.each(|conn| {
            if conn.pause.parked.borrow().is_none() {
                left.push(conn.clone());
            }
        });
        let mut loads = Vec::new();
        for conn in left {
            let load = match conn.remote() {
                None => Load::of(&conn),
                Some(remote) => {
                    let there = remote.conn;
                    let load = move || async move {
                        there.get::<Conn>().map(|conn| Load::of(&conn)).unwrap_or_default()
                    };
                    call(remote.core, load).await
                }
            };
            loads.push((conn, load));
        }
        loads
    }

    /// Cuts off the sessions that are not parked, if all of them wait for their clients only.
    async fn end_stalled(&self, time: Nanos) -> Result<(), Error> {
        let shared = &self.0;
        let loads = self.loads().await;
        let at_device = loads.iter().filter(|(_, load)| load.at_device > 0);
        let mut busy: Vec<String> = at_device
            .map(|(conn, load)| {
                let export = conn.export_name().unwrap_or_default();
                format!("{export}: {} of client {}", load.at_device, conn.figures.id)
            })
            .collect();
        if !busy.is_empty() {
            let (more, seconds) = (busy.len().saturating_sub(NAMES_MAX), time.as_secs_f64());
            busy.truncate(NAMES_MAX);
            let named = busy.join(", ");
            let more = if more > 0 { format!(", and of {more} more") } else { String::new() };
            return Err(Error::busy(format!(
                "requests of NBD clients have not ended within {seconds} s: {named}{more}"
            )));
        }
        for (conn, _) in loads {
            shared.counters.stalled.add(1);
            spawn(conn.cut_off());
        }
        if shared.settle(now() + END_TIME).await {
            return Ok(());
        }
        Err(Error::busy("NBD connections that were cut off have not ended"))
    }

    /// Goes on after a pause: accepts connections, and reads requests, beginning with what was
    /// received before (NB-U1). No effect when it is not paused.
    pub fn resume(&self) {
        let shared = &self.0;
        if shared.pause.number.replace(0) > 0 {
            shared.each(Conn::resume);
            shared.changed.wake_all();
        }
    }

    /// Ends a paused server with whose sessions another process goes on: closes its descriptors,
    /// without a shutdown of any socket and without a byte to any client (NB-U6). Returns when all
    /// are closed.
    pub async fn abandon(&self) {
        let shared = &self.0;
        assert!(shared.pause.number.get() > 0, "only a paused server can be abandoned");
        shared.stopping.set(true);
        shared.each(Conn::abandon);
        shared.changed.wake_all();
        let ended = || shared.conns.borrow().is_empty() && shared.acceptors.get() == 0;
        shared.changed.wait_for(ended).await;
    }

    /// The next session of this export gets an error by its first FLUSH: [`Paused::lost_writes`]
    /// of another server names it.
    pub fn note_lost_writes(&self, export: String) {
        self.0.unreported.borrow_mut().insert(export);
    }
}

impl Shared {
    fn each(&self, mut f: impl FnMut(&std::rc::Rc<Conn>)) {
        // What is called may change the list.
        let conns: Vec<_> = self.conns.borrow().iter().map(|(_, conn)| conn.clone()).collect();
        conns.iter().for_each(&mut f);
    }

    fn is_settled(&self) -> bool {
        let is_parked = |conn: &Conn| conn.pause.parked.borrow().is_some();
        self.pause.acceptors.get() == self.acceptors.get()
            && self.conns.borrow().iter().all(|(_, conn)| is_parked(conn))
    }

    /// Waits until all is parked, at most until `end`; returns whether it is.
    async fn settle(self: &std::rc::Rc<Shared>, end: Nanos) -> bool {
        if !self.is_settled() {
            let timer = self.clone();
            spawn(async move {
                sleep(end.saturating_sub(now())).await;
                timer.changed.wake_all();
            });
            self.changed.wait_for(|| self.is_settled() || now() >= end).await;
        }
        self.is_settled()
    }

    fn paused(&self) -> Paused {
        let (mut sessions, mut staying) = (Vec::new(), Vec::new());
        self.each(|conn| match &*conn.pause.parked.borrow() {
            Some(_) if conn.is_ending() => {}
            Some(_) if conn.rules.tls.is_some() => staying.push(conn.describe()),
            Some(parked) => sessions.push(conn.paused(parked)),
            None => {}
        });
        sessions.sort_by_key(|session| session.id);
        let listeners = self.listeners.borrow();
        let listeners = listeners.iter().map(|(socket, rules)| PausedListener {
            socket: *socket,
            peer: rules.peer,
            tls: rules.tls.is_some(),
        });
        let lost_writes = self.unreported.borrow().iter().cloned().collect();
        Paused { sessions, staying, listeners: listeners.collect(), lost_writes }
    }
}

impl Conn {
    fn paused(&self, parked: &Parked) -> PausedSession {
        let (session, figures) = (self.session(), &self.figures);
        let chosen = Context::ALL.into_iter().zip(session.terms.contexts).filter(|(_, on)| *on);
        PausedSession {
            id: figures.id,
            socket: self.file(),
            peer: self.peer(),
            export: session.export.name(),
            flags: session.terms.flags,
            structured: session.terms.structured,
            contexts: chosen.map(|(context, _)| context).collect(),
            size: session.terms.limits.capacity,
            block_bytes: session.terms.limits.logical_block_bytes,
            present_size: session.device.limits().capacity,
            read_only: session.export.read_only(),
            refused: parked.unread.refused,
            unread: parked.unread.bytes.clone(),
            has_lost_writes: parked.flush_failed,
            age: figures.age(),
            requests: figures.requests.get(),
            read_bytes: figures.read_bytes.get(),
            write_bytes: figures.write_bytes.get(),
            errors: figures.errors.get(),
        }
    }
}
