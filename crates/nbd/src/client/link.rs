// SPDX-License-Identifier: Apache-2.0 OR MIT
//! Link: one connection in use, from the end of its handshake to the end of its socket.
//!
//! ```text
//!   sender    gathers what is queued into one Send after another
//!   receiver  takes replies; once the link is broken reads on to the end of the stream
//!   watch     gives up a server that owes answers, and neither says nor takes anything
//!   lost      ends our stream, waits for the Send, gives the work back, waits for the end (fence)
//! ```
use std::cell::{Cell, RefCell};
use std::rc::Rc;

use block::{Buf, Bufs, Nanos, Status};
use reactor::{FileId, OpResult, SqeOp, WaitList, driver_io, now, sleep, spawn};

use crate::client::device::Inner;
use crate::client::guard::LinkId;
use crate::client::receive;
use crate::client::work::Key;
use crate::client::{Mutation, News};
use crate::request::{REQUEST_BYTES, Request};
use crate::wire::cmd;

/// Requests in flight; what is more waits in the queue.
const IN_FLIGHT_MAX: usize = 4096;
/// Requests in one send: two slices each stay below the kernel's 1024.
const REQUESTS_PER_SEND_MAX: usize = 256;
/// Data gathered at once, unless a single request has more.
const GATHER_BYTES_MAX: usize = 4 << 20;
/// Bytes in one send: the end of each is a sign of life, also where the link is slow. Chosen: at
/// the least silence that an address may ask for, 1 s, a link of 1 MiB/s will do.
const SEND_BYTES_MAX: usize = 1 << 20;

/// How a connection's reading ended.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(crate) enum End {
    /// The server has ended it, or is gone.
    AtServer,
    /// Nobody knows what the server does.
    Unknown,
}

pub(crate) struct Link {
    pub(crate) client: Rc<Inner>,
    pub(crate) id: LinkId,
    file: FileId,
    /// Whether reads are answered in chunks.
    pub(crate) structured: bool,
    /// No reply is taken any more.
    broken: Cell<bool>,
    /// Counts signs of life: what was received, and the sends that have ended.
    heard: Cell<u64>,
    /// A reply has come.
    pub(crate) proved: Cell<bool>,
    pub(crate) in_flight: Cell<usize>,
    /// Number of what was gathered last and is being sent; what was gathered before has been.
    sends: Cell<u64>,
    sending: Cell<bool>,
    /// Answered before the send that holds their buffers has ended (C3).
    early: RefCell<Vec<(Key, Status)>>,
    end: Cell<Option<End>>,
    /// An end that is seen is our own doing.
    cut: Cell<bool>,
    /// Requests to the driver that are in flight on the socket.
    ops: Cell<usize>,
    changed: WaitList,
}

impl Link {
    /// Takes a connection into use.
    pub(crate) fn start(
        client: &Rc<Inner>,
        (id, file): (LinkId, FileId),
        structured: bool,
    ) -> Rc<Link> {
        let link = Rc::new(Link {
            client: client.clone(),
            id,
            file,
            structured,
            broken: Cell::new(false),
            heard: Cell::new(0),
            proved: Cell::new(false),
            in_flight: Cell::new(0),
            sends: Cell::new(0),
            sending: Cell::new(false),
            early: RefCell::default(),
            end: Cell::new(None),
            cut: Cell::new(false),
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
        let result = driver_io(self.file, what).await;
        self.ops.set(self.ops.get() - 1);
        self.changed.wake_all();
        result
    }

    pub(crate) fn is_broken(&self) -> bool {
        self.broken.get()
    }

    /// The connection is of no use any more; its work goes to another.
    pub(crate) fn break_off(self: &Rc<Link>, why: &str) {
        if !self.broken.replace(true) {
            self.client.ready.wake_all();
            self.client.tell(&News::Lost(format!("{}: {why}", self.client.connect.peer())));
            spawn(self.clone().lost());
        }
    }

    /// The receiver has seen the end.
    pub(crate) fn ended(&self, end: End) {
        self.end.set(Some(if self.cut.get() { End::Unknown } else { end }));
        self.changed.wake_all();
    }

    /// Something has come from the server, or gone to it.
    pub(crate) fn heard(&self) {
        self.heard.set(self.heard.get() + 1);
    }

    /// Breaks off when the server owes an answer, and neither says nor takes anything for too long.
    /// It looks a few times in that time, so that no request has to read the clock.
    async fn watch(self: Rc<Link>) {
        let silence = self.client.options.silence;
        let step = Nanos((silence.0 / 8).clamp(1_000_000, 1_000_000_000));
        // What is answered early is parked until its send has ended: that is owed, too.
        let sends = self.client.options.mutation != Mutation::ForgetSending;
        let owes = || self.in_flight.get() > 0 || sends && self.sending.get();
        loop {
            self.changed.wait_for(|| self.broken.get() || owes()).await;
            let (heard, began) = (self.heard.get(), now());
            while owes() && self.heard.get() == heard && !self.broken.get() {
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

    /// Whether one request waits too long for its own answer, though others are answered.
    fn is_overdue(&self) -> bool {
        let sending = self.sending.get().then(|| self.sends.get());
        let limit = self.client.options.own_silence();
        self.client.work.borrow_mut().is_overdue(now(), limit, sending)
    }

    /// Ends everything pending on the socket. What the server does after that nobody knows.
    pub(crate) async fn cut_off(&self) {
        if self.end.get().is_none() {
            self.cut.set(true);
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
            for (key, status) in self.early.take() {
                client.answered(key, status);
            }
            if sent != Status::Ok {
                return self.break_off(&format!("sending failed: {sent}"));
            }
        }
    }

    /// Sends a part after the other, while the link is whole.
    async fn send(&self, bufs: &Bufs) -> Status {
        let end = bufs.len_bytes();
        for from in (0..end).step_by(SEND_BYTES_MAX) {
            let bufs = bufs.slice(from..end.min(from + SEND_BYTES_MAX));
            let sent = self.io(SqeOp::Send { bufs }).await;
            if sent.status != Status::Ok || self.broken.get() {
                return sent.status;
            }
            self.heard();
        }
        Status::Ok
    }

    /// What goes out next; nothing when all that was queued must wait or has failed.
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

    /// A reply has come to its end.
    pub(crate) fn finish(&self, key: Key, status: Status) {
        if !self.proved.replace(true) {
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
            self.early.borrow_mut().push((key, status));
        } else {
            client.answered(key, status);
        }
        if full {
            client.ready.wake_all();
        }
    }

    /// From the loss of a connection to the end of its socket.
    async fn lost(self: Rc<Link>) {
        let client = self.client.clone();
        // A send that waits ends by this, and the server sees the end of the stream.
        let _ = self.io(SqeOp::ShutdownWrite).await;
        // C3: nobody may have his buffers back while a send holds them.
        self.changed.wait_for(|| !self.sending.get()).await;
        for (key, status) in self.early.take() {
            client.answered(key, status);
        }
        client.link_lost(&self);
        self.changed.wait_for(|| self.end.get().is_some() && self.ops.get() == 0).await;
        let _ = driver_io(self.file, SqeOp::Close).await;
        client.link_closed(&self);
        if self.end.get() == Some(End::Unknown) {
            let Some(fence) = client.options.fence else { return };
            sleep(fence).await;
        }
        client.release(self.id);
    }

    /// Tells the server that no more requests come, when nothing is in flight. Who takes nothing is
    /// cut off by the caller.
    pub(crate) async fn say_goodbye(&self) {
        let bye = Request { flags: 0, kind: cmd::DISC, cookie: 0, offset: 0, len: 0 };
        let _ = self.io(SqeOp::Send { bufs: Buf::copy_of(&bye.encode()).into() }).await;
    }
}
