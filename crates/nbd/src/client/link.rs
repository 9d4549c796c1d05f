// SPDX-License-Identifier: Apache-2.0 OR MIT
//! A link: one connection in use, from the end of its handshake to the close of its socket.
//!
//! ```text
//!   sender    gathers queued requests into one Send after another
//!   receiver  takes replies; once the link is broken, reads to the end of the stream
//!   watch     drops the link if answers are pending and the server sends and receives nothing
//!   lost      shuts down our stream, waits for the Send, requeues the work, waits for the end
//! ```
use std::cell::{Cell, RefCell};
use std::rc::Rc;

use block::{Buf, Bufs, Nanos, Slice, Status};
use reactor::{FileId, OpResult, SqeOp, WaitList, driver_io, now, sleep, spawn};

use crate::client::LinkEvent;
use crate::client::device::ClientState;
use crate::client::guard::LinkId;
use crate::client::receive;
use crate::client::work::Key;
use crate::planted::Fault;
use crate::request::{REQUEST_BYTES, Request};
use crate::tls::Tls;
use crate::wire::cmd;

/// Requests in flight; further ones wait in the queue.
const IN_FLIGHT_MAX: usize = 4096;
/// Requests in one send: two slices each stay below the kernel's 1024.
const REQUESTS_PER_SEND_MAX: usize = 256;
/// Data gathered for one send, unless a single request has more.
const GATHER_BYTES_MAX: usize = 4 << 20;
/// Bytes in one send: its end is a sign of life also on a slow link. Chosen: with the shortest
/// `silence`, 1 s, a link of 1 MiB/s is fast enough.
const SEND_BYTES_MAX: usize = 1 << 20;

/// How the receiving direction ended.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(crate) enum LinkEnd {
    /// The server has closed it, or its process is gone.
    AtServer,
    /// The state of the server is unknown.
    Unknown,
}

/// A socket, and TLS if it has that.
#[derive(Debug)]
pub(crate) struct Connection {
    pub(crate) file: FileId,
    pub(crate) tls: Option<Tls>,
}

impl Connection {
    /// Sends all of `bufs`; `io` does the requests to the driver.
    pub(crate) async fn send(&self, bufs: Bufs, io: impl AsyncFn(SqeOp) -> OpResult) -> Status {
        match &self.tls {
            None => io(SqeOp::Send { bufs }).await.status,
            Some(tls) => Box::pin(tls.send(&bufs, io)).await.status,
        }
    }

    /// Receives into `into` what there is.
    pub(crate) async fn recv(&self, into: Slice, io: impl AsyncFn(SqeOp) -> OpResult) -> OpResult {
        match &self.tls {
            None => io(SqeOp::Recv { into }).await,
            Some(tls) => Box::pin(tls.recv(&into, io)).await,
        }
    }

    /// Why a request has failed, as far as TLS knows it.
    pub(crate) fn failure(&self) -> Option<String> {
        Some(format!("TLS: {}", self.tls.as_ref()?.failure()?))
    }
}

pub(crate) struct Link {
    pub(crate) client: Rc<ClientState>,
    pub(crate) id: LinkId,
    pub(crate) connection: Connection,
    /// Whether reads are answered in chunks.
    pub(crate) structured: bool,
    /// No more replies are taken.
    broken: Cell<bool>,
    /// Counts signs of life: receives and ended sends.
    activity: Cell<u64>,
    /// The server has sent a reply.
    pub(crate) has_replied: Cell<bool>,
    pub(crate) in_flight: Cell<usize>,
    /// Number of the current send.
    sends: Cell<u64>,
    sending: Cell<bool>,
    /// Replies that arrived before the send that holds the request's buffers has ended (NB-C3).
    early_replies: RefCell<Vec<(Key, Status)>>,
    end: Cell<Option<LinkEnd>>,
    /// We have shut the socket down ourselves.
    shut_down: Cell<bool>,
    /// Requests to the driver that are in flight on the socket.
    ops: Cell<usize>,
    changed: WaitList,
}

impl Link {
    /// Takes a connection into use.
    pub(crate) fn start(
        client: &Rc<ClientState>,
        (id, connection): (LinkId, Connection),
        structured: bool,
    ) -> Rc<Link> {
        let link = Rc::new(Link {
            client: client.clone(),
            id,
            connection,
            structured,
            broken: Cell::new(false),
            activity: Cell::new(0),
            has_replied: Cell::new(false),
            in_flight: Cell::new(0),
            sends: Cell::new(0),
            sending: Cell::new(false),
            early_replies: RefCell::default(),
            end: Cell::new(None),
            shut_down: Cell::new(false),
            ops: Cell::new(0),
            changed: WaitList::new(),
        });
        spawn(link.clone().send_all());
        spawn(receive::run(link.clone()));
        spawn(link.clone().watch());
        link
    }

    /// One request to the driver on this socket.
    pub(crate) async fn io(&self, what: SqeOp) -> OpResult {
        self.ops.set(self.ops.get() + 1);
        let result = driver_io(self.connection.file, what).await;
        self.ops.set(self.ops.get() - 1);
        self.changed.wake_all();
        result
    }

    /// Receives into `into` what there is. Once the link is broken, that is what the socket has: it
    /// is read to its end and not used.
    pub(crate) async fn recv(&self, into: Slice) -> OpResult {
        if self.is_broken() {
            return self.io(SqeOp::Recv { into }).await;
        }
        self.connection.recv(into, async |op| self.io(op).await).await
    }

    pub(crate) fn is_broken(&self) -> bool {
        self.broken.get()
    }

    /// Gives the connection up; its requests go to the next one.
    pub(crate) fn break_off(self: &Rc<Link>, why: &str) {
        if !self.broken.replace(true) {
            self.client.ready.wake_all();
            self.client.notify(&LinkEvent::Lost(format!("{}: {why}", self.client.connect.peer())));
            spawn(self.clone().lost());
        }
    }

    /// Records the end of the receiving direction.
    pub(crate) fn receiver_ended(&self, end: LinkEnd) {
        self.end.set(Some(if self.shut_down.get() { LinkEnd::Unknown } else { end }));
        self.changed.wake_all();
    }

    /// Counts a sign of life.
    pub(crate) fn note_activity(&self) {
        self.activity.set(self.activity.get() + 1);
    }

    /// Breaks the link off if the server sends and receives nothing for `silence` while answers are
    /// pending. It polls, so that requests need not read the clock.
    async fn watch(self: Rc<Link>) {
        let silence = self.client.options.silence;
        let step = Nanos((silence.0 / 8).clamp(1_000_000, 1_000_000_000));
        // An early reply is parked until its send has ended, so the send is waited for, too.
        let sends = !self.client.planted.is(Fault::ForgetSending);
        let owes = || self.in_flight.get() > 0 || sends && self.sending.get();
        loop {
            self.changed.wait_for(|| self.broken.get() || owes()).await;
            let (activity, began) = (self.activity.get(), now());
            while owes() && self.activity.get() == activity && !self.broken.get() {
                if now() >= began + silence {
                    let waits_for = self.client.work.borrow().oldest_in_flight();
                    let s = silence.0 as f64 / 1e9;
                    let why = format!("the server said nothing for {s} s: waited for {waits_for}");
                    return self.break_off(&why);
                }
                sleep(step).await;
            }
            if !self.broken.get() && self.is_overdue() {
                let waits_for = self.client.work.borrow().oldest_in_flight();
                let s = self.client.options.own_silence().0 as f64 / 1e9;
                let why =
                    format!("no progress for {s} s, though of others: waited for {waits_for}");
                return self.break_off(&why);
            }
            if self.broken.get() {
                return;
            }
        }
    }

    /// Whether one request waits too long for its own answer while others are answered.
    fn is_overdue(&self) -> bool {
        let sending = self.sending.get().then(|| self.sends.get());
        let limit = self.client.options.own_silence();
        self.client.work.borrow_mut().is_overdue(now(), limit, sending)
    }

    /// Shuts the socket down, which ends everything pending on it. The state of the server is
    /// unknown after that.
    pub(crate) async fn cut_off(&self) {
        if self.end.get().is_none() {
            self.shut_down.set(true);
            let _ = self.io(SqeOp::Shutdown).await;
        }
    }

    async fn send_all(self: Rc<Link>) {
        let client = self.client.clone();
        loop {
            let go = || self.in_flight.get() < IN_FLIGHT_MAX && client.work.borrow().has_queued();
            client.ready.wait_for(|| self.broken.get() || go()).await;
            if self.broken.get() {
                return;
            }
            let Some(bufs) = self.gather() else { continue };
            self.sending.set(true);
            let sent = self.send(&bufs).await;
            self.sending.set(false);
            self.changed.wake_all();
            for (key, status) in self.early_replies.take() {
                client.answered(key, status);
            }
            if sent != Status::Ok {
                return self.break_off(&format!("sending failed: {sent}"));
            }
        }
    }

    /// Sends part by part, until the link is broken.
    async fn send(&self, bufs: &Bufs) -> Status {
        let end = bufs.len_bytes();
        for from in (0..end).step_by(SEND_BYTES_MAX) {
            let bufs = bufs.slice(from..end.min(from + SEND_BYTES_MAX));
            let sent = self.connection.send(bufs, async |op| self.io(op).await).await;
            if sent != Status::Ok || self.broken.get() {
                return sent;
            }
            self.note_activity();
        }
        Status::Ok
    }

    /// The next send; `None` if all queued requests must wait or have failed.
    fn gather(&self) -> Option<Bufs> {
        let client = &self.client;
        let mut work = client.work.borrow_mut();
        let time = now();
        let send = self.sends.get() + 1;
        let room = (IN_FLIGHT_MAX - self.in_flight.get()).min(REQUESTS_PER_SEND_MAX);
        let heads = Buf::alloc(REQUESTS_PER_SEND_MAX * REQUEST_BYTES);
        let (mut bufs, mut count, mut data) = (Bufs::new(), 0, 0);
        let mut from = 0;
        while count < room && data < GATHER_BYTES_MAX {
            let Some((key, request)) = work.next(time, &client.stats) else { break };
            let at = count * REQUEST_BYTES;
            heads.write(|b| b[at..at + REQUEST_BYTES].copy_from_slice(&request.encode()));
            count += 1;
            let piece = work.piece(key);
            piece.send = send;
            if let Some(payload) = piece.payload() {
                let end = at + REQUEST_BYTES;
                bufs.push(heads.slice(from..end));
                payload.iter().for_each(|slice| bufs.push(slice.clone()));
                data += payload.len_bytes();
                from = end;
            }
        }
        client.waiting_changed(&work);
        if count == 0 {
            return None;
        }
        let end = count * REQUEST_BYTES;
        if from < end {
            bufs.push(heads.slice(from..end));
        }
        self.sends.set(send);
        if self.in_flight.replace(self.in_flight.get() + count) == 0 {
            self.changed.wake_all();
        }
        Some(bufs)
    }

    /// Handles a complete reply.
    pub(crate) fn finish(&self, key: Key, status: Status) {
        if !self.has_replied.replace(true) {
            self.client.changed.wake_all();
        }
        let full = self.in_flight.get() == IN_FLIGHT_MAX;
        self.in_flight.set(self.in_flight.get() - 1);
        let client = &self.client;
        let held = self.sending.get() && {
            let mut work = client.work.borrow_mut();
            let piece = work.piece(key);
            piece.send == self.sends.get() && piece.payload().is_some()
        };
        if held {
            client.work.borrow_mut().taken(key);
            self.early_replies.borrow_mut().push((key, status));
        } else {
            client.answered(key, status);
        }
        if full {
            client.ready.wake_all();
        }
    }

    /// Runs from the loss of a connection to the close of its socket.
    async fn lost(self: Rc<Link>) {
        let client = self.client.clone();
        // Ends a pending send, and the server sees the end of the stream.
        let _ = self.io(SqeOp::ShutdownWrite).await;
        // NB-C3: no bio may complete while a send holds its buffers.
        self.changed.wait_for(|| !self.sending.get()).await;
        for (key, status) in self.early_replies.take() {
            client.answered(key, status);
        }
        client.link_lost(&self);
        self.changed.wait_for(|| self.end.get().is_some() && self.ops.get() == 0).await;
        let _ = driver_io(self.connection.file, SqeOp::Close).await;
        client.link_closed(&self);
        if self.end.get() == Some(LinkEnd::Unknown) {
            let Some(fence) = client.options.fence else { return };
            sleep(fence).await;
        }
        client.release(self.id);
    }

    /// Sends the disconnect request when nothing is in flight. If the server does not receive it,
    /// the caller cuts the link off.
    pub(crate) async fn send_disconnect(&self) {
        let bye = Request { flags: 0, kind: cmd::DISC, cookie: 0, offset: 0, len: 0 };
        let bye = Buf::copy_of(&bye.encode()).into();
        let io = async |op| self.io(op).await;
        if self.connection.send(bye, &io).await == Status::Ok
            && let Some(tls) = &self.connection.tls
        {
            tls.send_end(&io).await;
        }
    }
}
