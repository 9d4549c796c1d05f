// SPDX-License-Identifier: Apache-2.0 OR MIT
//! One connection: its socket, its budget, its deadlines. What it does is in `session`.
use std::cell::{Cell, OnceCell, RefCell};
use std::collections::VecDeque;
use std::rc::Rc;
use std::sync::Arc;

use block::{Bufs, Nanos, Slice, Status};
use reactor::{
    FileId, OpResult, Share, SqeOp, WaitList, driver_io, end_waits, loop_time, now, spawn,
};

use crate::figures::Figures;
use crate::handshake::Session;
use crate::peer::{ListenerRules, Peer};
use crate::remote::{OtherCore, RemoteConnection};
use crate::reply::Reply;
use crate::shared::Shared;
use crate::tls::Tls;
use crate::unread::{Parked, PauseState, Stop};

/// Data of a write that a client has [`crate::Options::stall_time`] for; the same of its replies.
pub(crate) const STEP_BYTES: usize = 1 << 20;

/// The socket of a connection.
struct Socket {
    file: FileId,
    /// Once the client has come by it.
    tls: RefCell<Option<Rc<Tls>>>,
}

/// When to cut a connection off.
#[derive(Default)]
struct Dues {
    /// The handshake was done in time, and the session counts among the sessions.
    has_place: Cell<bool>,
    /// None while it may idle.
    deadline: Cell<Option<Nanos>>,
    /// While a step of its replies is being sent.
    send: Cell<Option<Nanos>>,
    /// While a step of a write's data is being received.
    data: Cell<Option<Nanos>>,
}

pub(crate) struct Conn {
    pub(crate) shared: Rc<Shared>,
    socket: Socket,
    pub(crate) rules: ListenerRules,
    session: OnceCell<Session>,
    pub(crate) replies: RefCell<VecDeque<Reply>>,
    /// The sender waits here.
    pub(crate) ready: WaitList,
    /// The receive loop waits here for its own budget, and the end of the connection for all
    /// requests in flight.
    pub(crate) room: WaitList,
    /// The data of admitted requests whose reply has not left.
    share: Rc<Share>,
    /// Whether one of the requests is still being received.
    receiving: Cell<bool>,
    /// Requests whose replies are being sent.
    pub(crate) sending: Cell<usize>,
    /// Requests to the driver that are in flight on the socket (NB-N4).
    pub(crate) ops: Cell<usize>,
    dues: Dues,
    /// No new requests are taken.
    pub(crate) draining: Cell<bool>,
    /// The socket is unusable; replies are dropped.
    pub(crate) dead: Cell<bool>,
    /// The last reply has left; the sender ends.
    pub(crate) ended: Cell<bool>,
    /// Nothing of it is left: its socket was closed.
    pub(crate) closed: Cell<bool>,
    /// The connection of this client on another core.
    pub(crate) other: Cell<Option<OtherCore>>,
    pub(crate) pause: PauseState,
    /// Failed flushes that the server sent for FUA, not for a FLUSH of the client.
    pub(crate) fua_failures: Cell<u64>,
    pub(crate) figures: Arc<Figures>,
}

impl Conn {
    pub(crate) fn new(shared: Rc<Shared>, file: FileId, rules: ListenerRules, id: u64) -> Conn {
        let deadline = now() + shared.options.handshake_time;
        let conn = Conn::with_figures(shared, file, rules, Arc::new(Figures::new(id)));
        conn.dues.deadline.set(Some(deadline));
        conn
    }

    /// A connection that has the figures of another core's.
    pub(crate) fn with_figures(
        shared: Rc<Shared>,
        file: FileId,
        rules: ListenerRules,
        figures: Arc<Figures>,
    ) -> Conn {
        let peer = rules.peer;
        Conn {
            shared,
            socket: Socket { file, tls: RefCell::default() },
            rules,
            session: OnceCell::new(),
            replies: RefCell::default(),
            ready: WaitList::new(),
            room: WaitList::new(),
            share: Rc::new(Share::new(peer == Peer::Network)),
            receiving: Cell::new(false),
            sending: Cell::new(0),
            ops: Cell::new(0),
            dues: Dues::default(),
            draining: Cell::new(false),
            dead: Cell::new(false),
            ended: Cell::new(false),
            closed: Cell::new(false),
            other: Cell::new(None),
            pause: PauseState::default(),
            fua_failures: Cell::new(0),
            figures,
        }
    }

    pub(crate) fn session(&self) -> &Session {
        self.session.get().expect("requests come after the handshake")
    }

    pub(crate) fn peer(&self) -> Peer {
        self.rules.peer
    }

    /// The connection on the core that serves it, if that is not this one.
    pub(crate) fn remote(&self) -> Option<RemoteConnection> {
        match self.other.get()? {
            OtherCore::Serves(remote) => Some(remote),
            OtherCore::Accepted(_) => None,
        }
    }

    /// The connection on the core that has accepted it, if that is not this one.
    pub(crate) fn home(&self) -> Option<RemoteConnection> {
        match self.other.get()? {
            OtherCore::Serves(_) => None,
            OtherCore::Accepted(home) => Some(home),
        }
    }

    pub(crate) fn file(&self) -> FileId {
        self.socket.file
    }

    /// The session begins; in a pause of its server, which is on the core that has accepted it, it
    /// begins paused.
    pub(crate) fn set_session(&self, session: Session) {
        let _ = self.session.set(session);
        if self.home().is_none() {
            self.pause.number.set(self.shared.pause.number.get());
        }
    }

    /// Takes TLS from it, for the core that serves the session. No request is in flight on the
    /// socket.
    pub(crate) fn take_tls(&self) -> Option<Tls> {
        let tls = self.socket.tls.take()?;
        Some(Rc::into_inner(tls).expect("nobody sends or receives"))
    }

    pub(crate) fn set_tls(&self, tls: Tls) {
        self.socket.tls.replace(Some(Rc::new(tls)));
    }

    pub(crate) fn tls(&self) -> Option<Rc<Tls>> {
        self.socket.tls.borrow().clone()
    }

    /// Name of the export; none during the handshake.
    pub(crate) fn export_name(&self) -> Option<String> {
        self.session.get().map(|session| session.export.name())
    }

    pub(crate) fn is_ending(&self) -> bool {
        self.draining.get() || self.dead.get()
    }

    /// Requests whose reply has not left.
    pub(crate) fn in_flight(&self) -> u64 {
        self.figures.in_flight.get()
    }

    /// Whether its handshake is done, and its session counts among the sessions.
    pub(crate) fn has_place(&self) -> bool {
        self.dues.has_place.get()
    }

    pub(crate) fn set_has_place(&self) {
        self.dues.has_place.set(true);
    }

    pub(crate) fn is_greeted(&self) -> bool {
        self.session.get().is_some()
    }

    /// Since when the client has been idle; `None` while a request is in flight or waits.
    pub(crate) fn idle_since(&self) -> Option<Nanos> {
        let waits = self.figures.waits.get() > 0;
        let idle = self.in_flight() == 0 && !waits && !self.dead.get();
        idle.then(|| Nanos(self.figures.received_at.get()))
    }

    /// When the part of the replies is due that is being sent.
    pub(crate) fn send_due(&self) -> Option<Nanos> {
        self.dues.send.get()
    }

    /// The next deadline.
    pub(crate) fn due(&self) -> Option<Nanos> {
        let dues = [&self.dues.deadline, &self.dues.send, &self.dues.data];
        dues.into_iter().filter_map(Cell::get).min()
    }

    /// Clears the deadlines; returns whether the client had stalled.
    pub(crate) fn clear_deadlines(&self) -> bool {
        self.dues.deadline.take();
        self.dues.send.take().is_some() | self.dues.data.take().is_some()
    }

    /// Starts the deadline of one step; taking `due` ends it.
    pub(crate) fn begin_step(&self, due: &Cell<Option<Nanos>>) {
        due.set(Some(loop_time() + self.shared.options.stall_time));
        if self.shared.reaper_waits.get() {
            self.shared.changed.wake_all();
        }
    }

    /// Sends a part of the replies.
    pub(crate) async fn send(&self, bufs: Bufs) -> Status {
        self.begin_step(&self.dues.send);
        let sent = self.send_all(bufs).await;
        self.dues.send.take();
        sent
    }

    /// Sends all of `bufs`.
    pub(crate) async fn send_all(&self, bufs: Bufs) -> Status {
        let Some(tls) = self.tls() else {
            return self.io(SqeOp::Send { bufs }).await.status;
        };
        Box::pin(tls.send(&bufs, async |op| self.io(op).await)).await.status
    }

    /// Receives into `into` what there is.
    pub(crate) async fn recv(&self, into: Slice) -> OpResult {
        let Some(tls) = self.tls() else {
            return self.io(SqeOp::Recv { into }).await;
        };
        let receive = async |op| match self.pause.is_pausing() {
            // The rest of a record comes after the pause.
            true => OpResult::from(Status::Again),
            false => self.io(op).await,
        };
        Box::pin(tls.recv(&into, receive)).await
    }

    /// Has the client come by TLS. False when that fails.
    pub(crate) async fn start_tls(&self) -> bool {
        let Some(server) = &self.rules.tls else { return false };
        let accepted =
            Box::pin(server.accept(self.socket.file, async |op| self.io(op).await)).await;
        let Some(tls) = accepted else { return false };
        self.set_tls(tls);
        true
    }

    /// One request to the driver on this socket.
    pub(crate) async fn io(&self, what: SqeOp) -> OpResult {
        self.ops.set(self.ops.get() + 1);
        let result = driver_io(self.socket.file, what).await;
        self.ops.set(self.ops.get() - 1);
        self.room.wake_all();
        result
    }

    /// Shuts the socket down, which ends everything pending on it.
    pub(crate) async fn cut_off(self: Rc<Conn>) {
        self.dead.set(true);
        if let Some(remote) = self.remote() {
            return remote.post(|conn| spawn(conn.cut_off()));
        }
        self.wake_receiver();
        if !self.ended.get() {
            let _ = self.io(SqeOp::Shutdown).await;
        }
    }

    /// Stops taking requests; ends the connection when those in flight are answered.
    pub(crate) fn drain(self: Rc<Conn>) {
        self.draining.set(true);
        if let Some(remote) = self.remote() {
            return remote.post(Conn::drain);
        }
        self.set_deadline();
        self.wake_receiver();
        spawn(async move {
            let answered = || self.in_flight() == u64::from(self.receiving.get());
            self.room.wait_for(answered).await;
            self.cut_off().await;
        });
    }

    /// The deadline of the handshake holds no more; that of a drain does.
    pub(crate) fn end_handshake(&self) {
        self.dues.deadline.set(self.dues.deadline.get().filter(|_| self.draining.get()));
    }

    pub(crate) fn clear_deadline(&self) {
        self.dues.deadline.set(None);
    }

    pub(crate) fn set_deadline(&self) {
        self.dues.deadline.set(Some(now() + self.shared.options.drain_time));
        self.shared.changed.wake_all();
    }

    /// Takes part in a pause of the server, which has this number: its receive loop ends, and then
    /// `park`. A connection that is still in its handshake goes on; its session will begin paused.
    pub(crate) fn pause(self: &Rc<Conn>, number: u64) {
        // On the core that serves it, a pause may come before the session has begun.
        if !self.is_greeted() && self.home().is_none() {
            return;
        }
        self.pause.number.set(number);
        if let Some(remote) = self.remote() {
            return remote.post(move |conn| conn.pause(number));
        }
        // Once it has ended, its socket may be closed.
        if self.ops.get() > 0 && !self.ended.get() {
            self.pause.waits_ended.set(self.pause.waits_ended.get() + 1);
            end_waits(self.file());
        }
        self.wake_receiver();
    }

    /// Goes on after a pause.
    pub(crate) fn resume(self: &Rc<Conn>) {
        self.pause.number.set(0);
        self.pause.parked.take();
        match self.remote() {
            Some(remote) => remote.post(|conn| conn.resume()),
            None => self.wake_receiver(),
        }
    }

    /// Ends without a word to the client: another process goes on with the session.
    pub(crate) fn abandon(self: &Rc<Conn>) {
        self.pause.abandoned.set(true);
        match self.remote() {
            Some(remote) => remote.post(|conn| conn.abandon()),
            None => self.wake_receiver(),
        }
    }

    /// Nothing of the session is in flight in the pause with this number.
    pub(crate) fn set_parked(&self, number: u64, parked: Parked) {
        if self.pause.number.get() == number {
            self.pause.parked.replace(Some(parked));
            self.shared.changed.wake_all();
        }
    }

    /// Requests, and FLUSHes of pauses, that the device has not ended.
    pub(crate) fn at_device(&self) -> u64 {
        let queued: usize = self.replies.borrow().iter().map(|reply| reply.requests).sum();
        let not_there = queued + self.sending.get() + usize::from(self.receiving.get());
        let requests = self.in_flight().saturating_sub(not_there as u64);
        requests + u64::from(self.pause.flushes.get())
    }

    /// The data of a WRITE are being received from now on.
    pub(crate) fn begin_data(&self) {
        self.receiving.set(true);
        self.begin_step(&self.dues.data);
    }

    /// The next step of them begins.
    pub(crate) fn begin_data_step(&self) {
        self.begin_step(&self.dues.data);
    }

    /// They are no more.
    pub(crate) fn end_data(&self) {
        self.receiving.set(false);
        self.dues.data.take();
    }

    fn wake_receiver(&self) {
        self.room.wake_all();
        self.share.changed.wake_all();
    }

    /// Waits until a request with `bytes` of data fits into the budgets and takes its share
    /// (NB-N2). Fails when the connection ends first, or the server pauses.
    pub(crate) async fn admit(&self, bytes: u64) -> Result<(), Stop> {
        let options = &self.shared.options;
        let over = || self.is_ending() || self.pause.is_pausing();
        let stop = || if self.is_ending() { Stop::Ended } else { Stop::Paused };
        let own = || {
            self.in_flight() < options.requests_max as u64
                && self.share.held() + bytes <= options.connection_bytes_max
        };
        self.room.wait_for(|| own() || over()).await;
        if over() {
            return Err(stop());
        }
        let budget = &self.shared.budget;
        // Only this task adds to the connection's own share, so it still fits after this wait.
        if !budget.try_take(&self.share, bytes) {
            self.figures.waits.set(1);
            let is_admitted = budget.wait(&self.share, bytes, over).await;
            self.figures.waits.set(0);
            if !is_admitted {
                return Err(stop());
            }
        }
        self.figures.in_flight.add(1);
        Ok(())
    }

    /// Releases the budget of answered requests.
    pub(crate) fn release(&self, requests: usize, bytes: u64) {
        self.figures.in_flight.subtract(requests as u64);
        self.shared.budget.give_back(&self.share, bytes);
        self.room.wake_all();
    }

    /// Queues a reply for the sender; drops it if the socket is unusable.
    pub(crate) fn reply(&self, reply: Reply) {
        if self.dead.get() {
            self.release(reply.requests, reply.bytes);
        } else {
            self.replies.borrow_mut().push_back(reply);
            self.ready.wake_all();
        }
    }

    /// Drops all queued replies.
    pub(crate) fn drop_replies(&self) {
        let dropped = self.replies.take();
        let requests = dropped.iter().map(|r| r.requests).sum();
        self.release(requests, dropped.iter().map(|r| r.bytes).sum());
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    use block::Error;
    use reactor::yield_now;
    use sim::{Machine, World};

    use crate::{Export, Exports, Options, Server};

    struct NoExports;

    impl Exports for NoExports {
        fn list(&self) -> Vec<String> {
            Vec::new()
        }
        fn open(&self, name: &str) -> Result<Box<dyn Export>, Error> {
            Err(Error::not_found(name))
        }
    }

    /// A budget granted while the connection ends belongs to no request, so no reply releases it.
    #[test]
    fn a_budget_granted_to_an_ending_connection_is_released() {
        const ALL: u64 = 64 << 20;
        let machine = Machine::boot(&World::calm(1), 1);
        let work = async {
            let options = Options { bytes_max: ALL, ..Options::default() };
            let shared = Server::new(Rc::new(NoExports), options).0;
            let full = Share::new(false);
            let ends: [fn(&Conn); 2] = [|c| c.dead.set(true), |c| c.draining.set(true)];
            for end in ends {
                assert!(shared.budget.try_take(&full, ALL));
                let rules = ListenerRules { peer: Peer::Local, tls: None };
                let conn = Rc::new(Conn::new(shared.clone(), FileId(1), rules, 1));
                let admitted = Rc::new(Cell::new(None));
                let (waits, tell) = (conn.clone(), admitted.clone());
                spawn(async move { tell.set(Some(waits.admit(2 << 20).await)) });
                yield_now().await;
                assert_eq!(conn.figures.waits.get(), 1);
                shared.budget.give_back(&full, ALL);
                assert_eq!(conn.share.held(), 2 << 20, "it is admitted");
                end(&conn);
                yield_now().await;
                let refused = Some(Err(Stop::Ended));
                assert_eq!((admitted.get(), conn.share.held()), (refused, 0));
            }
        };
        machine.block_on(work).unwrap();
        machine.kill();
    }
}
