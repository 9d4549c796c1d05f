// SPDX-License-Identifier: Apache-2.0 OR MIT
//! The server: acceptors, the budget that connections share, deadlines, and the shutdown.
use std::rc::Rc;

use block::{Nanos, Status};
use reactor::{FileId, SqeOp, driver_io, now, sleep, spawn};

use crate::conn::Conn;
use crate::deadlines;
use crate::export::Exports;
use crate::figures::Stats;
use crate::peer::{ListenerRules, Peer};
use crate::session;
use crate::shared::{Options, Shared};
use crate::tls::TlsServer;

/// Pause after a failed accept. The usual cause is a lack of free descriptors.
const ACCEPT_RETRY: Nanos = Nanos::from_millis(100);
/// Least time for a handshake when all places for them are taken; a normal one takes milliseconds.
const HANDSHAKE_TIME_MIN: Nanos = Nanos::from_secs(1);

/// An NBD server on the current core. Clones are the same server.
#[derive(Clone)]
pub struct Server(pub(crate) Rc<Shared>);

impl Server {
    /// A server without listeners.
    pub fn new(exports: Rc<dyn Exports>, options: Options) -> Server {
        Server(Rc::new(Shared::new(exports, options)))
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

    /// As [`Server::new`], with a planted fault.
    #[cfg(feature = "planted")]
    pub fn new_planted(
        exports: Rc<dyn Exports>,
        options: Options,
        fault: Option<crate::ServerFault>,
    ) -> Server {
        Server(Rc::new(Shared::planted(exports, options, fault.into())))
    }

    fn serve_by(&self, listener: FileId, rules: ListenerRules) {
        let shared = &self.0;
        assert!(!shared.stopping.get(), "serve after shutdown");
        shared.watch_deadlines();
        shared.listeners.borrow_mut().push((listener, rules.clone()));
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
        for (listener, _) in listeners {
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
        let mut stats = *self.0.stats.borrow();
        self.0.counters.add_to(&mut stats);
        self.0.away_counters.borrow().values().for_each(|core| core.add_to(&mut stats));
        stats
    }
}

block::debug_as!(Server, s => "Server({} connections)", s.0.conns.borrow().len());

/// Accepts nothing while the server pauses.
async fn wait_in_pause(shared: &Shared) {
    if shared.pause.number.get() == 0 {
        return;
    }
    shared.pause.acceptors.set(shared.pause.acceptors.get() + 1);
    shared.changed.wake_all();
    shared.changed.wait_for(|| shared.pause.number.get() == 0 || shared.stopping.get()).await;
    shared.pause.acceptors.set(shared.pause.acceptors.get() - 1);
}

async fn accept(shared: Rc<Shared>, listener: FileId, rules: ListenerRules) {
    loop {
        wait_in_pause(&shared).await;
        if shared.stopping.get() {
            break;
        }
        let pauses = shared.pause.last.get();
        let result = driver_io(listener, SqeOp::Accept).await;
        let file = FileId(result.value);
        match (result.status == Status::Ok, shared.stopping.get()) {
            (true, false) => admit(&shared, file, rules.clone()).await,
            // A pause has begun, and maybe has ended since.
            (false, false) if shared.pause.last.get() > pauses => {}
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
    /// Watches the deadlines of its connections, if it does not yet.
    pub(crate) fn watch_deadlines(self: &Rc<Shared>) {
        if !self.watching.replace(true) {
            spawn(deadlines::watch(self.clone()));
        }
    }

    /// Whether there is no place for one more session.
    fn is_full(&self, peer: Peer) -> bool {
        let conns = self.conns.borrow();
        let sessions = || conns.iter().map(|(_, c)| c).filter(|c| c.has_place());
        let network = || sessions().filter(|c| c.peer() == Peer::Network).count();
        let network_max = self.options.connections_max - self.options.local_connections;
        sessions().count() >= self.options.connections_max
            || peer == Peer::Network && network() >= network_max
    }

    /// The session that a new one may replace (NB-N6).
    fn idlest(&self, peer: Peer) -> Option<Rc<Conn>> {
        let conns = self.conns.borrow();
        let since = |c: &Rc<Conn>| {
            let is_session = c.has_place() && c.is_greeted();
            let idle = c.idle_since().filter(|_| is_session)?;
            let since = Some(idle).filter(|since| *since + self.options.idle_time <= now())?;
            (peer == Peer::Local || c.peer() == peer).then(|| (since, c.clone()))
        };
        let idle = conns.iter().filter_map(|(_, c)| since(c));
        idle.min_by_key(|(since, _)| *since).map(|(_, conn)| conn)
    }

    /// Whether there is no place for one more handshake: those of the network and of local sockets
    /// are counted apart.
    fn is_full_of_handshakes(&self, peer: Peer) -> bool {
        self.handshakes(peer).len() >= self.options.handshakes_max
    }

    /// The connections that have not done their handshake.
    fn handshakes(&self, peer: Peer) -> Vec<Rc<Conn>> {
        let conns = self.conns.borrow();
        let all = conns.iter().map(|(_, c)| c);
        all.filter(|c| !c.has_place() && c.peer() == peer).cloned().collect()
    }

    /// The handshake that a new one may replace (NB-N6).
    fn slowest_handshake(&self, peer: Peer) -> Option<Rc<Conn>> {
        let slow = |c: &Rc<Conn>| c.figures.age() >= HANDSHAKE_TIME_MIN && !c.is_ending();
        let slow = self.handshakes(peer).into_iter().filter(slow);
        slow.max_by_key(|conn| conn.figures.age())
    }

    /// Cuts off `conn` for another one, and waits until there is room.
    async fn displace(&self, conn: Rc<Conn>, has_room: impl Fn() -> bool) {
        self.stats.borrow_mut().displaced_total += 1;
        // NB-N4: only its receive is in flight, and this ends it.
        conn.cut_off().await;
        self.changed.wait_for(|| has_room() || self.stopping.get()).await;
    }
}

async fn admit(shared: &Rc<Shared>, file: FileId, rules: ListenerRules) {
    let peer = rules.peer;
    if shared.is_full_of_handshakes(peer)
        && let Some(conn) = shared.slowest_handshake(peer)
    {
        shared.displace(conn, || !shared.is_full_of_handshakes(peer)).await;
    }
    let has_no_place = shared.is_full(peer) && shared.idlest(peer).is_none();
    if has_no_place || shared.is_full_of_handshakes(peer) || shared.stopping.get() {
        shared.stats.borrow_mut().refused_total += 1;
        let _ = driver_io(file, SqeOp::Close).await;
        return;
    }
    let id = shared.last_id.get() + 1;
    shared.last_id.set(id);
    shared.stats.borrow_mut().connections_total += 1;
    let conn = Rc::new(Conn::new(shared.clone(), file, rules, id));
    run(&conn.clone(), session::run(conn));
}

/// Takes a place for the session of a connection whose handshake is done; false if there is none
/// (NB-N6).
pub(crate) async fn take_place(conn: &Conn) -> bool {
    let (shared, peer) = (&conn.shared, conn.peer());
    if shared.is_full(peer)
        && let Some(idle) = shared.idlest(peer)
    {
        shared.displace(idle, || !shared.is_full(peer) || conn.is_ending()).await;
    }
    if shared.is_full(peer) || conn.is_ending() || shared.stopping.get() {
        shared.stats.borrow_mut().refused_total += 1;
        return false;
    }
    conn.set_has_place();
    true
}

/// Runs a connection, which is on the list as long as its work lasts.
pub(crate) fn run(conn: &Rc<Conn>, work: impl Future<Output = ()> + 'static) {
    let shared = conn.shared.clone();
    shared.stats.borrow_mut().connections += 1;
    let slot = shared.conns.borrow_mut().insert(conn.clone());
    shared.changed.wake_all();
    spawn(async move {
        work.await;
        shared.conns.borrow_mut().remove(slot);
        shared.stats.borrow_mut().connections -= 1;
        shared.changed.wake_all();
    });
}
