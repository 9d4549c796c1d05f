// SPDX-License-Identifier: Apache-2.0 OR MIT
//! A model of an NBD server, on simulated streams: slow, with requests in any order, a volatile
//! cache, restarts with and without loss, and, where it is asked to be, replies that are wrong.
//!
//! It ends a connection as a good server does: when the client has ended its side and everything
//! that had been asked is done.
use std::cell::{Cell, RefCell};
use std::collections::{BTreeSet, VecDeque};
use std::rc::Rc;

use block::{Buf, Error, LocalFuture, Nanos, Status};
use nbd::Fault;
use nbd::client::{Client, Connect, Options};
use nbd::option::{HEADER_BYTES, Header, reply, reply_info_block_size, reply_info_export};
use nbd::request::{Errno, REQUEST_BYTES, ReplyHead, Request};
use nbd::wire::{CommandFlags, ExportFlags, cmd, opt, rep};
use reactor::{FileId, OpResult, SqeOp, WaitList, driver_io, sleep, spawn};
use sim::WorldRef;

/// What a server is like.
#[derive(Clone, Copy, Debug)]
pub(crate) struct ServerTraits {
    pub(crate) flags: ExportFlags,
    pub(crate) structured: bool,
    /// Requests take up to this; one of sixteen ten times as long.
    pub(crate) slow_ns: u64,
    /// Of a thousand replies so many come once more, later, maybe on another connection.
    pub(crate) again_per_mille: u32,
}

impl ServerTraits {
    pub(crate) fn draw(world: &WorldRef) -> ServerTraits {
        let rng = &mut world.borrow_mut().rng;
        let mut flags = ExportFlags::HAS_FLAGS | ExportFlags::FLUSH;
        flags |= ExportFlags::TRIM | ExportFlags::WRITE_ZEROES;
        flags.set(ExportFlags::FUA, rng.below(2) == 0);
        ServerTraits {
            flags,
            structured: rng.below(2) == 0,
            slow_ns: rng.pick(&[10_000, 300_000, 3_000_000]),
            again_per_mille: 0,
        }
    }
}

/// What becomes of a request.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(crate) enum RequestOutcome {
    Usual,
    /// It is answered with an error and not done.
    Fails,
    /// It is taken, and done only when this one of [`Server::open_gates`] is set.
    Waits(usize),
    /// The process is killed before it is done, or between that and the answer.
    KillsBefore,
    KillsAfter,
}

type OutcomeOf = Box<dyn FnMut(&Request) -> RequestOutcome>;

/// The server; its disk outlives its processes.
pub(crate) struct Server {
    world: WorldRef,
    pub(crate) listener: FileId,
    pub(crate) nature: ServerTraits,
    pub(crate) size: Cell<u64>,
    /// From the next connection on.
    pub(crate) is_read_only: Cell<bool>,
    now: RefCell<Vec<u8>>,
    durable: RefCell<Vec<u8>>,
    volatile: RefCell<BTreeSet<usize>>,
    /// Counts processes.
    process: Cell<u64>,
    conns: RefCell<Vec<Rc<Conn>>>,
    /// Replies that may come once more.
    old: RefCell<Vec<Vec<u8>>>,
    /// The end of the last connection that the client has.
    pub(crate) client_end: Cell<Option<FileId>>,
    pub(crate) connections: Cell<u64>,
    pub(crate) flushes: Cell<u64>,
    /// Its smallest, preferred and largest request.
    pub(crate) block_sizes: Cell<[u32; 3]>,
    /// What becomes of each request, in the order in which they come.
    pub(crate) fate: RefCell<OutcomeOf>,
    pub(crate) open_gates: Cell<[bool; 2]>,
    gates: WaitList,
}

struct Conn {
    file: FileId,
    process: u64,
    replies: RefCell<VecDeque<Vec<u8>>>,
    in_hand: Cell<usize>,
    ops: Cell<usize>,
    over: Cell<bool>,
    sender_gone: Cell<bool>,
    structured: Cell<bool>,
    changed: WaitList,
}

impl Conn {
    async fn io(&self, what: SqeOp) -> OpResult {
        self.ops.set(self.ops.get() + 1);
        let result = driver_io(self.file, what).await;
        self.ops.set(self.ops.get() - 1);
        self.changed.wake_all();
        result
    }
}

/// The client's way in.
pub(crate) struct Connector(pub(crate) Rc<Server>);

impl Connect for Connector {
    fn connect(&self) -> LocalFuture<Result<FileId, Error>> {
        let server = self.0.clone();
        Box::pin(async move {
            sleep(Nanos(20_000)).await;
            let file = server.world.borrow_mut().connect(server.listener);
            server.client_end.set(file);
            file.ok_or_else(|| Error::io("connection refused"))
        })
    }

    fn peer(&self) -> String {
        "model:10809".into()
    }
}

impl Server {
    pub(crate) fn new(world: &WorldRef, size: usize, nature: ServerTraits) -> Rc<Server> {
        let listener = world.borrow_mut().listen();
        Rc::new(Server {
            world: world.clone(),
            listener,
            nature,
            size: Cell::new(size as u64),
            is_read_only: Cell::new(false),
            now: RefCell::new(vec![0; size]),
            durable: RefCell::new(vec![0; size]),
            volatile: RefCell::default(),
            process: Cell::new(0),
            conns: RefCell::default(),
            old: RefCell::default(),
            client_end: Cell::new(None),
            connections: Cell::new(0),
            flushes: Cell::new(0),
            block_sizes: Cell::new([512, 4096, 16 << 10]),
            fate: RefCell::new(Box::new(|_| RequestOutcome::Usual)),
            open_gates: Cell::default(),
            gates: WaitList::new(),
        })
    }

    /// A client; tried for as long as it takes, for on a bad day a handshake takes too long.
    pub(crate) async fn open(self: Rc<Server>, options: Options) -> Client {
        self.open_planted(options, None).await
    }

    /// As [`Server::open`], with a planted fault of the client.
    pub(crate) async fn open_planted(
        self: Rc<Server>,
        options: Options,
        fault: Option<Fault>,
    ) -> Client {
        loop {
            let door = Rc::new(Connector(self.clone()));
            let opened = Client::open_planted("nbd", "disk", door, options, fault).await;
            if let Ok(client) = opened {
                return client;
            }
        }
    }

    /// A task: takes connections for ever.
    pub(crate) async fn serve(self: Rc<Server>) {
        loop {
            let accepted = driver_io(self.listener, SqeOp::Accept).await;
            assert_eq!(accepted.status, Status::Ok);
            self.connections.set(self.connections.get() + 1);
            let conn = Rc::new(Conn {
                file: FileId(accepted.value),
                process: self.process.get(),
                replies: RefCell::default(),
                in_hand: Cell::new(0),
                ops: Cell::new(0),
                over: Cell::new(false),
                sender_gone: Cell::new(false),
                structured: Cell::new(false),
                changed: WaitList::new(),
            });
            self.conns.borrow_mut().push(conn.clone());
            spawn(self.clone().sender(conn.clone()));
            spawn(self.clone().talk(conn));
        }
    }

    /// The process is killed and started again; with `loss` of what only its cache had.
    pub(crate) fn restart(&self, loss: bool) {
        self.process.set(self.process.get() + 1);
        self.gates.wake_all();
        if loss {
            let (mut now, mut durable) = (self.now.borrow_mut(), self.durable.borrow_mut());
            for sector in std::mem::take(&mut *self.volatile.borrow_mut()) {
                let part = sector * 512..sector * 512 + 512;
                if self.world.borrow_mut().rng.below(4) == 0 {
                    durable[part.clone()].copy_from_slice(&now[part.clone()]);
                }
                now[part.clone()].copy_from_slice(&durable[part]);
            }
        }
        for conn in self.conns.take() {
            conn.over.set(true);
            conn.changed.wake_all();
            conn.ops.set(conn.ops.get() + 1); // so that it is not closed before
            spawn(async move {
                let _ = conn.io(SqeOp::Shutdown).await;
                conn.ops.set(conn.ops.get() - 1);
                conn.changed.wake_all();
            });
        }
    }

    /// From now on those that wait for this are done.
    pub(crate) fn open_gate(&self, nth: usize) {
        let mut open = self.open_gates.get();
        open[nth] = true;
        self.open_gates.set(open);
        self.gates.wake_all();
    }

    /// Looks at a block of its disk.
    pub(crate) fn peek(&self, block: usize, data: &mut [u8]) {
        data.copy_from_slice(&self.now.borrow()[block * data.len()..][..data.len()]);
    }

    async fn talk(self: Rc<Server>, conn: Rc<Conn>) {
        let mut inbox = Vec::new();
        if self.greet(&conn, &mut inbox).await.is_some() {
            while let Some(request) = self.next(&conn, &mut inbox).await {
                let (request, data) = request;
                conn.in_hand.set(conn.in_hand.get() + 1);
                spawn(self.clone().handle(conn.clone(), request, data));
            }
        }
        // As a good server does: not before everything is done that was asked.
        conn.changed.wait_for(|| conn.in_hand.get() == 0).await;
        conn.over.set(true);
        conn.changed.wake_all();
        conn.changed.wait_for(|| conn.ops.get() == 0 && conn.sender_gone.get()).await;
        self.conns.borrow_mut().retain(|c| !Rc::ptr_eq(c, &conn));
        let _ = driver_io(conn.file, SqeOp::Close).await;
    }

    async fn fill(&self, conn: &Conn, inbox: &mut Vec<u8>, n: usize) -> Option<()> {
        while inbox.len() < n {
            let into = Buf::alloc(16 << 10);
            let result = conn.io(SqeOp::Recv { into: into.all() }).await;
            if result.status != Status::Ok || result.value == 0 {
                return None;
            }
            into.read(|b| inbox.extend_from_slice(&b[..result.value as usize]));
        }
        (conn.process == self.process.get()).then_some(())
    }

    async fn take(&self, conn: &Conn, inbox: &mut Vec<u8>, n: usize) -> Option<Vec<u8>> {
        self.fill(conn, inbox, n).await?;
        Some(inbox.drain(..n).collect())
    }

    fn say(&self, conn: &Conn, bytes: Vec<u8>) {
        conn.replies.borrow_mut().push_back(bytes);
        conn.changed.wake_all();
    }

    async fn sender(self: Rc<Server>, conn: Rc<Conn>) {
        loop {
            let ready = || !conn.replies.borrow().is_empty();
            conn.changed.wait_for(|| ready() || conn.over.get()).await;
            let next = conn.replies.borrow_mut().pop_front();
            let Some(bytes) = next else { break };
            let sent = conn.io(SqeOp::Send { bufs: Buf::copy_of(&bytes).into() }).await;
            if sent.status != Status::Ok {
                conn.replies.borrow_mut().clear();
            }
        }
        conn.sender_gone.set(true);
        conn.changed.wake_all();
    }

    async fn greet(&self, conn: &Conn, inbox: &mut Vec<u8>) -> Option<()> {
        self.say(conn, b"NBDMAGICIHAVEOPT\x00\x03".to_vec());
        self.take(conn, inbox, 4).await?;
        loop {
            let head = self.take(conn, inbox, HEADER_BYTES).await?;
            let Header { option, len } = Header::parse(&head).unwrap().unwrap();
            self.take(conn, inbox, len as usize).await?;
            let mut out = Vec::new();
            match option {
                opt::STRUCTURED_REPLY if self.nature.structured => {
                    conn.structured.set(true);
                    reply(&mut out, option, rep::ACK, &[]);
                }
                opt::GO => {
                    reply_info_export(&mut out, option, self.size.get(), self.flags().bits());
                    reply_info_block_size(&mut out, option, self.block_sizes.get());
                    reply(&mut out, option, rep::ACK, &[]);
                    self.say(conn, out);
                    return Some(());
                }
                _ => reply(&mut out, option, rep::ERR_UNSUP, &[]),
            }
            self.say(conn, out);
        }
    }

    async fn next(&self, conn: &Conn, inbox: &mut Vec<u8>) -> Option<(Request, Vec<u8>)> {
        self.fill(conn, inbox, REQUEST_BYTES).await?;
        let request = Request::parse(inbox).unwrap().unwrap();
        inbox.drain(..REQUEST_BYTES);
        if request.kind == cmd::DISC {
            return None;
        }
        let data = self.take(conn, inbox, request.payload_len() as usize).await?;
        Some((request, data))
    }

    async fn handle(self: Rc<Server>, conn: Rc<Conn>, request: Request, data: Vec<u8>) {
        let (before, after) = {
            let rng = &mut self.world.borrow_mut().rng;
            let mut draw = || {
                let ns = rng.below(self.nature.slow_ns) + 1;
                if rng.below(16) == 0 { ns * 10 } else { ns }
            };
            (draw(), draw())
        };
        let fate = (self.fate.borrow_mut())(&request);
        sleep(Nanos(before)).await;
        if let RequestOutcome::Waits(nth) = fate {
            let over = || conn.process != self.process.get();
            self.gates.wait_for(|| self.open_gates.get()[nth] || over()).await;
        }
        if fate == RequestOutcome::KillsBefore {
            self.restart(false);
        }
        if conn.process == self.process.get() {
            let answer = match fate == RequestOutcome::Fails {
                true => answer_of(request.cookie, Some(Errno::Io)),
                false => self.perform(&conn, &request, &data),
            };
            if fate == RequestOutcome::KillsAfter {
                self.restart(false);
            }
            sleep(Nanos(after)).await;
            if conn.process == self.process.get() {
                self.answer(&conn, answer);
            }
        }
        conn.in_hand.set(conn.in_hand.get() - 1);
        conn.changed.wake_all();
    }

    fn flags(&self) -> ExportFlags {
        let of_changes = ExportFlags::FUA | ExportFlags::TRIM | ExportFlags::WRITE_ZEROES;
        match self.is_read_only.get() {
            true => (self.nature.flags - of_changes) | ExportFlags::READ_ONLY,
            false => self.nature.flags,
        }
    }

    /// Does it and makes the reply.
    fn perform(&self, conn: &Conn, request: &Request, data: &[u8]) -> Vec<u8> {
        let Request { flags, kind, cookie, offset, len } = *request;
        let part = offset as usize..offset as usize + len as usize;
        let fua = flags & CommandFlags::FUA.bits() != 0;
        assert!(!fua || self.nature.flags.contains(ExportFlags::FUA), "FUA was not offered");
        // An old process may be late.
        let is_refused = self.is_read_only.get() && conn.process == self.process.get();
        let is_change = !matches!(kind, cmd::READ | cmd::FLUSH);
        assert!(!(is_change && is_refused), "a change was sent to a read-only export");
        let mut now = self.now.borrow_mut();
        let error = (part.end > now.len()).then_some(Errno::Invalid);
        assert_eq!(error, None, "the client keeps to the size: {request:?}");
        match kind {
            cmd::READ => return read_reply(&now[part], conn, cookie, offset),
            cmd::WRITE => now[part.clone()].copy_from_slice(data),
            cmd::WRITE_ZEROES => now[part.clone()].fill(0),
            // Some of it is kept.
            cmd::TRIM if cookie.is_multiple_of(2) => now[part.clone()].fill(0),
            cmd::TRIM => {}
            cmd::FLUSH => {
                self.flushes.set(self.flushes.get() + 1);
                self.volatile.borrow_mut().clear();
                self.durable.borrow_mut().copy_from_slice(&now);
            }
            other => panic!("request of type {other}"),
        }
        if fua {
            self.durable.borrow_mut()[part.clone()].copy_from_slice(&now[part.clone()]);
        }
        for sector in part.start / 512..part.end / 512 {
            if fua {
                self.volatile.borrow_mut().remove(&sector);
            } else {
                self.volatile.borrow_mut().insert(sector);
            }
        }
        answer_of(cookie, None)
    }

    fn answer(self: &Rc<Server>, conn: &Rc<Conn>, reply: Vec<u8>) {
        let again = self.nature.again_per_mille;
        if self.world.borrow_mut().rng.chance_per_mille(again) {
            self.old.borrow_mut().push(reply.clone());
        }
        self.say(conn, reply);
        let old = self.old.borrow().len();
        if old > 0 && self.world.borrow_mut().rng.below(4) == 0 {
            let nth = self.world.borrow_mut().rng.index(old);
            let reply = self.old.borrow_mut().swap_remove(nth);
            self.say(conn, reply);
        }
    }
}

fn answer_of(cookie: u64, error: Option<Errno>) -> Vec<u8> {
    let mut out = vec![0; 64];
    let n = ReplyHead::Simple { error }.encode(cookie, &mut out);
    out.truncate(n);
    out
}

/// Data of a read: whole, or in two chunks of which the second comes first and zeroes are a hole.
fn read_reply(data: &[u8], conn: &Conn, cookie: u64, offset: u64) -> Vec<u8> {
    let mut out = vec![0; 64];
    if !conn.structured.get() {
        let n = ReplyHead::Simple { error: None }.encode(cookie, &mut out);
        out.truncate(n);
        out.extend_from_slice(data);
        return out;
    }
    out.clear();
    let half =
        if data.len() > 512 && cookie.is_multiple_of(3) { data.len() / 1024 * 512 } else { 0 };
    let parts = [(half, &data[half..]), (0, &data[..half])];
    let parts: Vec<_> = parts.into_iter().filter(|(_, part)| !part.is_empty()).collect();
    let count = parts.len();
    for (nth, (at, part)) in parts.into_iter().enumerate() {
        let last = u16::from(nth + 1 == count);
        let hole = part.iter().all(|b| *b == 0) && cookie.is_multiple_of(2);
        let (kind, len) = if hole { (2_u16, 12) } else { (1, 8 + part.len()) };
        out.extend(0x668e_33ef_u32.to_be_bytes());
        out.extend(last.to_be_bytes());
        out.extend(kind.to_be_bytes());
        out.extend(cookie.to_be_bytes());
        out.extend(u32::try_from(len).unwrap().to_be_bytes());
        out.extend((offset + at as u64).to_be_bytes());
        if hole {
            out.extend(u32::try_from(part.len()).unwrap().to_be_bytes());
        } else {
            out.extend_from_slice(part);
        }
    }
    out
}
