// SPDX-License-Identifier: Apache-2.0 OR MIT
//! One connection: handshake, receive loop, budget, end.
//!
//! ```text
//!  run ─▶ handshake ─▶ receive loop ─────────▶ all requests answered ─▶ close
//!              │          ▲ waits while the budget is used up
//!              └ deadline └ ends at DISC, end of stream, nonsense, drain
//! ```
use std::cell::{Cell, OnceCell, RefCell};
use std::collections::VecDeque;
use std::rc::Rc;

use block::{Buf, Bufs, Nanos, OpenDevice, Slice, Status};
use reactor::{FileId, OpResult, SqeOp, WaitList, driver_io, loop_time, new_opener, now, spawn};

use crate::figures::Figures;
use crate::handshake::{Handshake, Session, Step};
use crate::job::{self, check, held_bytes};
use crate::option::HEADER_BYTES;
use crate::peer::{ListenerRules, Peer};
use crate::request::{REQUEST_BYTES, Request};
use crate::send::{self, Reply};
use crate::server::Shared;
use crate::share::Share;
use crate::tls::Tls;
use crate::wire::{OPTION_BYTES_MAX, REQUEST_BYTES_MAX, cmd};

/// One receive takes up to this: sixty writes of 4 KiB, and it stays in a core's cache.
const CHUNK_BYTES: usize = 256 << 10;
/// If at least this much of a payload is missing, it is received into its buffer without a copy.
const DIRECT_BYTES_MIN: usize = 64 << 10;
/// Data of a write that a client has [`crate::Options::stall_time`] for; the same of its replies.
pub(crate) const STEP_BYTES: usize = 1 << 20;
/// Initial size of a handshake's buffer; most handshakes need no more.
const HANDSHAKE_BYTES: usize = 4096;
/// Replies of a handshake are sent at this length: bounds the memory that a client can claim.
const HANDSHAKE_OUT_BYTES: usize = 64 << 10;

/// The socket of a connection.
struct Socket {
    file: FileId,
    /// Once the client has come by it.
    tls: OnceCell<Tls>,
}

pub(crate) struct Conn {
    pub(crate) shared: Rc<Shared>,
    socket: Socket,
    rules: ListenerRules,
    session: OnceCell<Session>,
    pub(crate) replies: RefCell<VecDeque<Reply>>,
    /// The sender waits here.
    pub(crate) ready: WaitList,
    /// The receive loop waits here for its own budget, and the end of the connection for all
    /// requests in flight.
    room: WaitList,
    /// Admitted requests whose reply has not left.
    requests: Cell<usize>,
    /// Their data.
    share: Rc<Share>,
    /// Whether one of the requests is still being received.
    receiving: Cell<bool>,
    /// Requests to the driver that are in flight on the socket (NB-N4).
    ops: Cell<usize>,
    /// When to cut the connection off; none while it may idle.
    pub(crate) deadline: Cell<Option<Nanos>>,
    /// The same, while a step of its replies is being sent, and while a step of a write's data is
    /// being received.
    send_due: Cell<Option<Nanos>>,
    data_due: Cell<Option<Nanos>>,
    /// When it was accepted, or last received from.
    received_at: Cell<Nanos>,
    /// No new requests are taken.
    draining: Cell<bool>,
    /// The socket is unusable; replies are dropped.
    dead: Cell<bool>,
    /// The last reply has left; the sender ends.
    pub(crate) ended: Cell<bool>,
    /// Failed flushes that the server sent for FUA, not for a FLUSH of the client.
    pub(crate) fua_failures: Cell<u64>,
    pub(crate) figures: Figures,
}

impl Conn {
    pub(crate) fn new(shared: Rc<Shared>, file: FileId, rules: ListenerRules, id: u64) -> Conn {
        let peer = rules.peer;
        let deadline = now() + shared.options.handshake_time;
        Conn {
            shared,
            socket: Socket { file, tls: OnceCell::new() },
            rules,
            session: OnceCell::new(),
            replies: RefCell::default(),
            ready: WaitList::new(),
            room: WaitList::new(),
            requests: Cell::new(0),
            share: Rc::new(Share::new(peer)),
            receiving: Cell::new(false),
            ops: Cell::new(0),
            deadline: Cell::new(Some(deadline)),
            send_due: Cell::new(None),
            data_due: Cell::new(None),
            received_at: Cell::new(now()),
            draining: Cell::new(false),
            dead: Cell::new(false),
            ended: Cell::new(false),
            fua_failures: Cell::new(0),
            figures: Figures::new(id),
        }
    }

    pub(crate) fn session(&self) -> &Session {
        self.session.get().expect("requests come after the handshake")
    }

    pub(crate) fn peer(&self) -> Peer {
        self.rules.peer
    }

    pub(crate) fn file(&self) -> FileId {
        self.socket.file
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
        self.requests.get() as u64
    }

    pub(crate) fn is_greeted(&self) -> bool {
        self.session.get().is_some()
    }

    /// Since when the client has been idle; `None` while a request is in flight or waits.
    pub(crate) fn idle_since(&self) -> Option<Nanos> {
        let idle = self.requests.get() == 0 && !self.share.waits() && !self.dead.get();
        idle.then(|| self.received_at.get())
    }

    /// The next deadline.
    pub(crate) fn due(&self) -> Option<Nanos> {
        let dues = [&self.deadline, &self.send_due, &self.data_due];
        dues.into_iter().filter_map(Cell::get).min()
    }

    /// Clears the deadlines; returns whether the client had stalled.
    pub(crate) fn clear_deadlines(&self) -> bool {
        self.deadline.take();
        self.send_due.take().is_some() | self.data_due.take().is_some()
    }

    /// Starts the deadline of one step; taking `due` ends it.
    fn begin_step(&self, due: &Cell<Option<Nanos>>) {
        due.set(Some(loop_time() + self.shared.options.stall_time));
        if self.shared.reaper_waits.get() {
            self.shared.changed.wake_all();
        }
    }

    /// Sends a part of the replies.
    pub(crate) async fn send(&self, bufs: Bufs) -> Status {
        self.begin_step(&self.send_due);
        let sent = self.send_all(bufs).await;
        self.send_due.take();
        sent
    }

    /// Sends all of `bufs`.
    async fn send_all(&self, bufs: Bufs) -> Status {
        let Some(tls) = self.socket.tls.get() else {
            return self.io(SqeOp::Send { bufs }).await.status;
        };
        Box::pin(tls.send(&bufs, async |op| self.io(op).await)).await.status
    }

    /// Receives into `into` what there is.
    async fn recv(&self, into: Slice) -> OpResult {
        let Some(tls) = self.socket.tls.get() else {
            return self.io(SqeOp::Recv { into }).await;
        };
        Box::pin(tls.recv(&into, async |op| self.io(op).await)).await
    }

    /// Has the client come by TLS. False when that fails.
    async fn start_tls(&self) -> bool {
        let Some(server) = &self.rules.tls else { return false };
        let accepted =
            Box::pin(server.accept(self.socket.file, async |op| self.io(op).await)).await;
        accepted.is_some_and(|tls| self.socket.tls.set(tls).is_ok())
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
        self.wake_receiver();
        if !self.ended.get() {
            let _ = self.io(SqeOp::Shutdown).await;
        }
    }

    /// Stops taking requests; ends the connection when those in flight are answered.
    pub(crate) fn drain(self: Rc<Conn>) {
        self.draining.set(true);
        self.set_deadline();
        self.wake_receiver();
        spawn(async move {
            let answered = || self.requests.get() == usize::from(self.receiving.get());
            self.room.wait_for(answered).await;
            self.cut_off().await;
        });
    }

    fn set_deadline(&self) {
        self.deadline.set(Some(now() + self.shared.options.drain_time));
        self.shared.changed.wake_all();
    }

    fn wake_receiver(&self) {
        self.room.wake_all();
        self.share.changed.wake_all();
    }

    /// Waits until a request with `bytes` of data fits into the budgets and takes its share
    /// (NB-N2). False when the connection ends first.
    async fn admit(&self, bytes: u64) -> bool {
        let options = &self.shared.options;
        let over = || self.dead.get() || self.draining.get();
        let own = || {
            self.requests.get() < options.requests_max
                && self.share.held() + bytes <= options.connection_bytes_max
        };
        self.room.wait_for(|| own() || over()).await;
        if over() {
            return false;
        }
        let budget = &self.shared.budget;
        // Only this task adds to the connection's own share, so it still fits after this wait.
        budget.ask(&self.share, bytes);
        self.share.changed.wait_for(|| !self.share.waits() || over()).await;
        if self.share.waits() {
            budget.withdraw(&self.share);
            return false;
        }
        if over() {
            budget.give_back(&self.share, bytes);
            return false;
        }
        self.requests.set(self.requests.get() + 1);
        true
    }

    /// Releases the budget of answered requests.
    pub(crate) fn release(&self, requests: usize, bytes: u64) {
        self.requests.set(self.requests.get() - requests);
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

/// Runs a connection from the handshake to the close.
pub(crate) async fn run(conn: Rc<Conn>) {
    if let Some((mut session, rest)) = handshake(&conn).await {
        // Each connection is an opener of its own, by which devices below distinguish writers.
        session.device_fua = Rc::new(OpenDevice::new(session.device.clone(), new_opener()));
        session.device = Rc::new(OpenDevice::new(session.device, new_opener()));
        conn.deadline.set(conn.deadline.get().filter(|_| conn.draining.get()));
        let _ = conn.session.set(session);
        spawn(send::run(conn.clone()));
        Receiver::new(conn.clone(), &rest).run().await;
        conn.set_deadline();
        conn.room.wait_for(|| conn.requests.get() == 0).await;
    }
    if let Some(tls) = conn.socket.tls.get().filter(|_| !conn.dead.get()) {
        // NB-T2: all replies have left.
        Box::pin(tls.send_end(async |op| conn.io(op).await)).await;
    }
    // NB-N4: from here on nothing is started on the socket; wait for what is in flight on it.
    conn.deadline.set(None);
    conn.ended.set(true);
    conn.ready.wake_all();
    conn.room.wait_for(|| conn.ops.get() == 0).await;
    let _ = driver_io(conn.socket.file, SqeOp::Close).await;
}

async fn send_bytes(conn: &Conn, out: &mut Vec<u8>) -> bool {
    if out.is_empty() {
        return true;
    }
    let bufs = Buf::copy_of(out).into();
    out.clear();
    conn.send_all(bufs).await == Status::Ok
}

/// Runs the handshake: returns the session, and the bytes received after the handshake.
async fn handshake(conn: &Conn) -> Option<(Session, Vec<u8>)> {
    let mut handshake = match conn.rules.tls {
        Some(_) => Handshake::with_tls(),
        None => Handshake::new(),
    };
    let mut out = Handshake::greeting().to_vec();
    if !send_bytes(conn, &mut out).await {
        return None;
    }
    let mut buf = Buf::alloc(HANDSHAKE_BYTES);
    let (mut start, mut end) = (0, 0);
    loop {
        let exports = &*conn.shared.exports;
        match buf.read(|b| handshake.step(&b[start..end], exports, &mut out)) {
            Step::Consumed(n) => {
                start += n;
                if out.len() >= HANDSHAKE_OUT_BYTES && !send_bytes(conn, &mut out).await {
                    return None;
                }
            }
            Step::Ready(n, session) => {
                let sent = send_bytes(conn, &mut out).await;
                session.export.begin();
                return sent.then(|| (session, buf.read(|b| b[start + n..end].to_vec())));
            }
            Step::StartTls(n) => {
                if start + n != end || !send_bytes(conn, &mut out).await {
                    return None; // NB-T3
                }
                (start, end) = (0, 0);
                if !conn.start_tls().await || conn.draining.get() {
                    return None;
                }
            }
            Step::End => {
                send_bytes(conn, &mut out).await;
                return None;
            }
            Step::More(total) => {
                if !send_bytes(conn, &mut out).await {
                    return None;
                }
                assert!(total <= HEADER_BYTES + OPTION_BYTES_MAX, "the option's length is checked");
                if total > buf.len() {
                    let rest = buf.read(|b| b[start..end].to_vec());
                    buf = Buf::alloc(total);
                    buf.write(|b| b[..rest.len()].copy_from_slice(&rest));
                } else if start > 0 {
                    buf.write(|b| b.copy_within(start..end, 0));
                }
                (start, end) = (0, end - start);
                let result = conn.recv(buf.slice(end..buf.len())).await;
                if result.status != Status::Ok || result.value == 0 || conn.draining.get() {
                    return None;
                }
                end += result.value as usize;
            }
        }
    }
}

/// The receive loop: a chunk of bytes and its unread range.
struct Receiver {
    conn: Rc<Conn>,
    chunk: Buf,
    start: usize,
    end: usize,
}

impl Receiver {
    fn new(conn: Rc<Conn>, rest: &[u8]) -> Receiver {
        let chunk = Buf::alloc(CHUNK_BYTES);
        assert!(rest.len() <= CHUNK_BYTES, "an option fits into a chunk");
        chunk.write(|b| b[..rest.len()].copy_from_slice(rest));
        Receiver { conn, chunk, start: 0, end: rest.len() }
    }

    async fn run(mut self) {
        while let Some(request) = self.head().await {
            if !self.take(request).await {
                break;
            }
        }
    }

    /// One receive; `None` when the connection ends.
    async fn receive(&self, buf: &Buf, from: usize) -> Option<usize> {
        let result = self.conn.recv(buf.slice(from..buf.len())).await;
        self.conn.shared.stats.borrow_mut().receives_total += 1;
        self.conn.received_at.set(loop_time());
        let go_on = result.status == Status::Ok && result.value > 0;
        let over = self.conn.draining.get() || self.conn.dead.get();
        (go_on && !over).then_some(result.value as usize)
    }

    /// Receives more bytes; the unread ones, less than a request, move to the front.
    async fn fill(&mut self) -> bool {
        let (start, end) = (self.start, self.end);
        assert!(end - start < REQUEST_BYTES, "only a part of a request is left unread");
        self.chunk.write(|b| b.copy_within(start..end, 0));
        (self.start, self.end) = (0, end - start);
        let Some(n) = self.receive(&self.chunk, self.end).await else { return false };
        self.end += n;
        true
    }

    /// The next request; `None` when the session ends.
    async fn head(&mut self) -> Option<Request> {
        loop {
            if self.conn.draining.get() || self.conn.dead.get() {
                return None;
            }
            match self.chunk.read(|b| Request::parse(&b[self.start..self.end])) {
                Ok(Some(request)) => {
                    self.start += REQUEST_BYTES;
                    return Some(request);
                }
                Ok(None) => {
                    if !self.fill().await {
                        return None;
                    }
                }
                Err(_) => return None,
            }
        }
    }

    /// Starts one request; false if the session ends with it.
    async fn take(&mut self, request: Request) -> bool {
        if request.kind == cmd::DISC || request.payload_len() > REQUEST_BYTES_MAX {
            return false; // skipping up to 4 GiB would take too long
        }
        let conn = self.conn.clone();
        let checked = check(conn.session(), &request);
        let bytes = checked.map_or(0, |command| held_bytes(conn.session(), command, &request));
        if !conn.admit(bytes).await {
            return false;
        }
        conn.count_request();
        let mut data = None;
        if request.payload_len() > 0 {
            conn.receiving.set(true);
            conn.begin_step(&conn.data_due);
            let whole = if checked.is_ok() {
                let buf = Buf::alloc(request.len as usize);
                let whole = self.payload(&buf).await;
                data = Some(buf);
                whole
            } else {
                self.skip(request.len as usize).await
            };
            conn.receiving.set(false);
            conn.data_due.take();
            if !whole {
                conn.release(1, bytes);
                return false;
            }
        }
        match checked {
            Ok(command) => job::start(conn, command, request, data),
            Err(error) => {
                conn.count_error();
                let reply = Reply::error(conn.session(), &request, error, bytes);
                conn.reply(reply);
            }
        }
        true
    }

    /// Fills `buf` with the next bytes.
    async fn payload(&mut self, buf: &Buf) -> bool {
        let (mut filled, mut step_end) = (0, STEP_BYTES);
        loop {
            let n = (self.end - self.start).min(buf.len() - filled);
            let from = self.start..self.start + n;
            self.chunk.read(|c| buf.write(|b| b[filled..filled + n].copy_from_slice(&c[from])));
            self.start += n;
            filled += n;
            if filled == buf.len() {
                return true;
            }
            if filled >= step_end {
                step_end = filled + STEP_BYTES;
                self.conn.begin_step(&self.conn.data_due);
            }
            if buf.len() - filled >= DIRECT_BYTES_MIN {
                let Some(n) = self.receive(buf, filled).await else { return false };
                filled += n;
            } else if !self.fill().await {
                return false;
            }
        }
    }

    /// Skips the next `len` bytes.
    async fn skip(&mut self, len: usize) -> bool {
        let (mut left, mut step_end) = (len, len.saturating_sub(STEP_BYTES));
        loop {
            let n = (self.end - self.start).min(left);
            self.start += n;
            left -= n;
            if left == 0 {
                return true;
            }
            if left <= step_end {
                step_end = left.saturating_sub(STEP_BYTES);
                self.conn.begin_step(&self.conn.data_due);
            }
            if !self.fill().await {
                return false;
            }
        }
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
            let full = Rc::new(Share::new(Peer::Local));
            let ends: [fn(&Conn); 2] = [|c| c.dead.set(true), |c| c.draining.set(true)];
            for end in ends {
                shared.budget.ask(&full, ALL);
                let rules = ListenerRules { peer: Peer::Local, tls: None };
                let conn = Rc::new(Conn::new(shared.clone(), FileId(1), rules, 1));
                let admitted = Rc::new(Cell::new(None));
                let (waits, tell) = (conn.clone(), admitted.clone());
                spawn(async move { tell.set(Some(waits.admit(2 << 20).await)) });
                yield_now().await;
                assert!(conn.share.waits());
                shared.budget.give_back(&full, ALL);
                assert!(!conn.share.waits(), "it is admitted");
                end(&conn);
                yield_now().await;
                assert_eq!((admitted.get(), conn.share.held()), (Some(false), 0));
            }
        };
        machine.block_on(work).unwrap();
        machine.kill();
    }
}
