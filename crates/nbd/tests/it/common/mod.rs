// SPDX-License-Identifier: Apache-2.0 OR MIT
//! Sockets, a client and a disk in memory and in virtual time, for the tests of this room.
//!
//! Invariants that the network checks: nothing is asked of a closed file, and no file is closed
//! while something is pending on it (NB-N4 of the server).
#![allow(dead_code, reason = "each test binary uses its part")]
#![allow(clippy::unwrap_used, reason = "a test that panics has failed")]
mod disk;

use std::cell::{Cell, RefCell};
use std::collections::{BTreeMap, VecDeque};
use std::rc::Rc;

use block::{BlockDevice, Buf, CoreId, Error, LocalFuture, Nanos, Sector, Status};
use nbd::request::{ReplyIn, Request};
use nbd::wire::{OPTION_MAGIC, chunk, opt, rep};
use nbd::{Context, Export, Exports, Options, Peer, Run, Server};
use reactor::{Driver, Event, FileId, Msg, OpResult, Reactor, Sqe, SqeOp, driver_io};

pub(crate) use disk::Disk;

/// What one direction of a connection holds: small, so that senders block.
const SOCKET_BYTES: usize = 64 << 10;

enum File {
    Listener { backlog: VecDeque<u32>, shut: bool },
    Socket { inbox: VecDeque<u8>, peer: u32, eof: bool, shut: bool },
}

struct Pending {
    sqe: Sqe,
    /// What a send has still to move.
    left: VecDeque<u8>,
    /// A shutdown has had its effect; its own outcome comes after what it ended.
    shut: bool,
}

#[derive(Default)]
pub(crate) struct World {
    now: Nanos,
    files: BTreeMap<u32, File>,
    /// Further descriptors of a file: a close takes one of them away.
    copies: BTreeMap<u32, u32>,
    ended_waits: Vec<Event>,
    next: u32,
    pending: Vec<Pending>,
    rng: u64,
    moved: bool,
    /// Receives return a few bytes only, as they please.
    pub(crate) fragment: bool,
}

/// The network; clones are the same.
#[derive(Clone, Default)]
pub(crate) struct Net(pub(crate) Rc<RefCell<World>>);

impl Net {
    pub(crate) fn new(seed: u64) -> Net {
        let net = Net::default();
        net.0.borrow_mut().rng = seed.wrapping_mul(2).wrapping_add(1);
        net
    }

    fn add(&self, file: File) -> u32 {
        let mut w = self.0.borrow_mut();
        w.next += 1;
        let id = w.next;
        w.files.insert(id, file);
        id
    }

    pub(crate) fn listen(&self) -> FileId {
        FileId(self.add(File::Listener { backlog: VecDeque::new(), shut: false }))
    }

    /// A connected pair, one end in the listener's backlog.
    pub(crate) fn connect(&self, listener: FileId) -> Client {
        let socket = |peer| File::Socket { inbox: VecDeque::new(), peer, eof: false, shut: false };
        let ours = self.add(socket(0));
        let theirs = self.add(socket(ours));
        let mut w = self.0.borrow_mut();
        if let Some(File::Socket { peer, .. }) = w.files.get_mut(&ours) {
            *peer = theirs;
        }
        match w.files.get_mut(&listener.0) {
            Some(File::Listener { backlog, .. }) => backlog.push_back(theirs),
            _ => panic!("no such listener"),
        }
        Client { net: self.clone(), file: FileId(ours), inbox: Vec::new() }
    }

    /// Sends nothing more from this end; the other reads to the end of the stream.
    pub(crate) fn half_close(&self, file: FileId) {
        self.0.borrow_mut().end_stream_to_peer(file.0);
    }

    /// Another process has the file, too, under the same number.
    pub(crate) fn share(&self, file: FileId) -> FileId {
        *self.0.borrow_mut().copies.entry(file.0).or_default() += 1;
        file
    }

    pub(crate) fn is_open(&self, file: FileId) -> bool {
        self.0.borrow().files.contains_key(&file.0)
    }
}

impl World {
    fn random(&mut self) -> u64 {
        self.rng ^= self.rng << 13;
        self.rng ^= self.rng >> 7;
        self.rng ^= self.rng << 17;
        self.rng
    }

    fn end_stream_to_peer(&mut self, id: u32) {
        let Some(File::Socket { peer, .. }) = self.files.get(&id) else { return };
        let peer = *peer;
        if let Some(File::Socket { eof, .. }) = self.files.get_mut(&peer) {
            *eof = true;
        }
    }

    /// The outcome, if there is one already.
    fn attempt(&mut self, p: &mut Pending) -> Option<OpResult> {
        let id = p.sqe.file.0;
        let done = |value: usize| {
            Some(OpResult { status: Status::Ok, value: u32::try_from(value).unwrap() })
        };
        let failed = Some(OpResult { status: Status::Io, value: 0 });
        let fragment = self.fragment.then(|| 1 + self.random() as usize % 5000);
        let file = self.files.get_mut(&id).expect("request on a closed file");
        match (&p.sqe.what, file) {
            (SqeOp::Accept, File::Listener { shut: true, .. }) => failed,
            (SqeOp::Accept, File::Listener { backlog, .. }) => {
                backlog.pop_front().and_then(|id| done(id as usize))
            }
            (SqeOp::Recv { into }, File::Socket { inbox, eof, shut, .. }) => {
                if inbox.is_empty() {
                    return if *eof || *shut { done(0) } else { None };
                }
                let n = into.len().min(inbox.len()).min(fragment.unwrap_or(usize::MAX));
                into.write(|b| b.iter_mut().zip(inbox.drain(..n)).for_each(|(b, v)| *b = v));
                done(n)
            }
            (SqeOp::Send { .. }, File::Socket { shut: true, .. }) => failed,
            (SqeOp::Send { .. }, File::Socket { peer, .. }) => {
                let peer = *peer;
                match self.files.get_mut(&peer) {
                    Some(File::Socket { inbox, shut: false, .. }) => {
                        let n = p.left.len().min(SOCKET_BYTES - inbox.len());
                        inbox.extend(p.left.drain(..n));
                        self.moved |= n > 0;
                        if p.left.is_empty() { done(0) } else { None }
                    }
                    _ => failed,
                }
            }
            (SqeOp::Shutdown, File::Listener { shut, .. } | File::Socket { shut, .. }) => {
                if std::mem::replace(&mut p.shut, true) {
                    return done(0);
                }
                *shut = true;
                self.moved = true;
                self.end_stream_to_peer(id);
                None
            }
            (SqeOp::ShutdownWrite, File::Socket { .. }) => {
                self.end_stream_to_peer(id);
                self.moved = true;
                done(0)
            }
            (SqeOp::Close, _) if self.copies.get(&id).is_some_and(|more| *more > 0) => {
                self.copies.entry(id).and_modify(|more| *more -= 1);
                done(0)
            }
            (SqeOp::Close, _) => {
                assert!(!self.pending.iter().any(|q| q.sqe.file.0 == id), "closed under a request");
                self.end_stream_to_peer(id);
                if let Some(File::Listener { backlog, .. }) = self.files.remove(&id) {
                    backlog.iter().for_each(|id| self.end_stream_to_peer(*id));
                }
                done(0)
            }
            (what, _) => panic!("{what:?} on the wrong kind of file"),
        }
    }

    /// Attempts everything once; whether any byte moved.
    fn progress(&mut self, out: &mut Vec<Event>) -> bool {
        self.moved = false;
        for mut p in std::mem::take(&mut self.pending) {
            match self.attempt(&mut p) {
                Some(result) => {
                    out.push(Event::Cqe { home: p.sqe.home, key: p.sqe.key, result });
                }
                None => self.pending.push(p),
            }
        }
        self.moved
    }
}

impl Driver for Net {
    fn now(&self) -> Nanos {
        self.0.borrow().now
    }
    fn submit(&mut self, batch: &mut Vec<Sqe>) {
        for sqe in batch.drain(..) {
            let mut left = VecDeque::new();
            if let SqeOp::Send { bufs } = &sqe.what {
                bufs.for_each(|b| left.extend(b));
            }
            self.0.borrow_mut().pending.push(Pending { sqe, left, shut: false });
        }
    }
    fn end_waits(&mut self, file: FileId) {
        let w = &mut *self.0.borrow_mut();
        assert!(w.files.contains_key(&file.0));
        let waits = |p: &mut Pending| {
            p.sqe.file == file && matches!(p.sqe.what, SqeOp::Recv { .. } | SqeOp::Accept)
        };
        for Pending { sqe, .. } in w.pending.extract_if(.., waits) {
            let (home, key, result) = (sqe.home, sqe.key, Status::Again.into());
            w.ended_waits.push(Event::Cqe { home, key, result });
        }
    }
    fn post(&mut self, _to: CoreId, msg: Msg) {
        panic!("one core only: {msg:?}");
    }
    fn park(&mut self, deadline: Option<Nanos>, out: &mut Vec<Event>) {
        let mut w = self.0.borrow_mut();
        out.append(&mut w.ended_waits);
        // A send that moved some bytes may be what an earlier receive waits for.
        while out.is_empty() && w.progress(out) {}
        if out.is_empty() {
            let deadline = deadline.expect("somebody waits for what can never come");
            w.now = w.now.max(deadline);
        }
    }
    fn random(&mut self) -> u64 {
        self.0.borrow_mut().random()
    }
}

/// One disk under the name `disk`, also the default; counts who has it open.
pub(crate) struct SingleExport {
    pub(crate) disk: Rc<Disk>,
    pub(crate) opened: Rc<Cell<usize>>,
    pub(crate) read_only: bool,
    /// Dirty runs to report.
    pub(crate) dirty: Option<Vec<Run>>,
}

impl SingleExport {
    pub(crate) fn new(disk: &Rc<Disk>) -> SingleExport {
        SingleExport { disk: disk.clone(), opened: Rc::default(), read_only: false, dirty: None }
    }
}

struct Opened {
    disk: Rc<Disk>,
    opened: Rc<Cell<usize>>,
    read_only: bool,
    dirty: Option<Vec<Run>>,
}

impl Drop for Opened {
    fn drop(&mut self) {
        self.opened.set(self.opened.get() - 1);
    }
}

impl Exports for SingleExport {
    fn list(&self) -> Vec<String> {
        vec!["disk".into(), "ghost".into()]
    }
    fn open(&self, name: &str) -> Result<Box<dyn Export>, Error> {
        if !["", "disk"].contains(&name) {
            return Err(Error::not_found(format!("no export `{name}`: there is `disk`")));
        }
        self.opened.set(self.opened.get() + 1);
        Ok(Box::new(Opened {
            disk: self.disk.clone(),
            opened: self.opened.clone(),
            read_only: self.read_only,
            dirty: self.dirty.clone(),
        }))
    }
}

impl Export for Opened {
    fn device(&self) -> Rc<dyn BlockDevice> {
        self.disk.clone()
    }
    fn name(&self) -> String {
        "disk".into()
    }
    fn description(&self) -> String {
        "a disk for tests".into()
    }
    fn read_only(&self) -> bool {
        self.read_only
    }
    fn offers(&self, context: Context) -> bool {
        context == Context::Allocation || self.dirty.is_some()
    }
    fn block_status(
        &self,
        context: Context,
        at: Sector,
        len: Sector,
    ) -> LocalFuture<Option<Vec<Run>>> {
        let runs = match context {
            Context::Allocation => None,
            Context::Dirty => self.dirty.as_ref().map(|runs| {
                let inside = |r: &&Run| r.sector < at + len && at < r.sector + r.len;
                runs.iter().filter(inside).copied().collect()
            }),
        };
        Box::pin(async move { runs })
    }
}

/// Runs `test` with a server of `exports` on a fresh network.
pub(crate) fn with_server<F>(
    seed: u64,
    options: Options,
    exports: impl FnOnce() -> SingleExport,
    test: impl FnOnce(Net, FileId, Server) -> F,
) where
    F: Future<Output = ()> + 'static,
{
    let net = Net::new(seed);
    let reactor = Reactor::enter(CoreId(0), Box::new(net.clone()));
    let future = reactor.on(|| {
        let server = Server::new(Rc::new(exports()), options);
        let listener = net.listen();
        server.serve(listener, Peer::Network);
        test(net.clone(), listener, server)
    });
    reactor.block_on(future);
}

/// A client that sends scripted requests, and checks little.
pub(crate) struct Client {
    pub(crate) net: Net,
    pub(crate) file: FileId,
    inbox: Vec<u8>,
}

impl Client {
    pub(crate) async fn send(&self, bytes: &[u8]) -> bool {
        let bufs = Buf::copy_of(bytes).into();
        driver_io(self.file, SqeOp::Send { bufs }).await.status == Status::Ok
    }

    /// Receives until `n` bytes are there; false at the end of the stream.
    async fn fill(&mut self, n: usize) -> bool {
        while self.inbox.len() < n {
            let buf = Buf::alloc(SOCKET_BYTES);
            let result = driver_io(self.file, SqeOp::Recv { into: buf.all() }).await;
            if result.status != Status::Ok || result.value == 0 {
                return false;
            }
            buf.read(|b| self.inbox.extend_from_slice(&b[..result.value as usize]));
        }
        true
    }

    pub(crate) async fn recv(&mut self, n: usize) -> Vec<u8> {
        assert!(self.fill(n).await, "end of stream with {} of {n} bytes", self.inbox.len());
        self.inbox.drain(..n).collect()
    }

    pub(crate) async fn at_end(&mut self) -> bool {
        !self.fill(1).await
    }

    /// Receives all there is, to the end of the stream.
    pub(crate) async fn drain(&mut self) {
        while self.fill(1).await {
            self.inbox.clear();
        }
    }

    pub(crate) async fn close(self) {
        let _ = driver_io(self.file, SqeOp::Shutdown).await;
        let _ = driver_io(self.file, SqeOp::Close).await;
    }

    /// Greeting and client flags.
    pub(crate) async fn greet(&mut self) {
        assert_eq!(self.recv(18).await, b"NBDMAGICIHAVEOPT\x00\x03");
        self.send(&[0, 0, 0, 3]).await;
    }

    pub(crate) async fn option(&mut self, option: u32, payload: &[u8]) {
        self.send(&option_bytes(option, payload)).await;
    }

    /// SingleExport option reply: its type and payload.
    pub(crate) async fn option_reply(&mut self) -> (u32, Vec<u8>) {
        let head = self.recv(20).await;
        assert_eq!(head[..8], 0x0003_e889_0455_65a9_u64.to_be_bytes());
        let be32 = |at: usize| u32::from_be_bytes(head[at..at + 4].try_into().unwrap());
        (be32(12), self.recv(be32(16) as usize).await)
    }

    /// Handshake to the default export, structured if asked, with all contexts.
    pub(crate) async fn go(&mut self, structured: bool) {
        self.greet().await;
        if structured {
            self.option(opt::STRUCTURED_REPLY, &[]).await;
            assert_eq!(self.option_reply().await.0, rep::ACK);
            self.option(opt::SET_META_CONTEXT, &meta("", &["base:allocation", "millpond:dirty"]))
                .await;
            while self.option_reply().await.0 != rep::ACK {}
        }
        self.option(opt::GO, &[0, 0, 0, 0, 0, 0]).await;
        while self.option_reply().await.0 != rep::ACK {}
    }

    pub(crate) async fn request(&self, kind: u16, flags: u16, cookie: u64, offset: u64, len: u32) {
        self.send(&Request { flags, kind, cookie, offset, len }.encode()).await;
    }

    /// One reply: cookie, error, payload (without a data chunk's offset). `read` tells how much
    /// follows a simple reply to a cookie.
    pub(crate) async fn reply(&mut self, read: impl Fn(u64) -> usize) -> (u64, u32, Vec<u8>) {
        let n = loop {
            match ReplyIn::parse(&self.inbox).expect("a reply's magic") {
                Some(reply) => break reply,
                None => {
                    let more = self.inbox.len() + 1;
                    assert!(self.fill(more).await, "end of stream instead of a reply");
                }
            }
        };
        self.recv(n.1).await;
        match n.0 {
            ReplyIn::Simple { cookie, error: 0 } => (cookie, 0, self.recv(read(cookie)).await),
            ReplyIn::Simple { cookie, error } => (cookie, error, Vec::new()),
            ReplyIn::Chunk { cookie, kind, len, .. } => {
                let mut payload = self.recv(len as usize).await;
                match kind {
                    chunk::OFFSET_DATA => (cookie, 0, payload.split_off(8)),
                    chunk::ERROR => {
                        (cookie, u32::from_be_bytes(payload[..4].try_into().unwrap()), Vec::new())
                    }
                    _ => (cookie, 0, payload),
                }
            }
        }
    }

    /// A request and its reply.
    pub(crate) async fn ask(
        &mut self,
        kind: u16,
        flags: u16,
        offset: u64,
        len: u32,
    ) -> (u32, Vec<u8>) {
        self.request(kind, flags, 77, offset, len).await;
        let reads = if kind == nbd::wire::cmd::READ { len as usize } else { 0 };
        let (cookie, error, data) = self.reply(|_| reads).await;
        assert_eq!(cookie, 77);
        (error, data)
    }

    /// A write and its reply's error.
    pub(crate) async fn write(&mut self, flags: u16, offset: u64, data: &[u8]) -> u32 {
        let len = u32::try_from(data.len()).unwrap();
        self.request(nbd::wire::cmd::WRITE, flags, 78, offset, len).await;
        self.send(data).await;
        let (cookie, error, _) = self.reply(|_| 0).await;
        assert_eq!(cookie, 78);
        error
    }
}

pub(crate) fn option_bytes(option: u32, payload: &[u8]) -> Vec<u8> {
    let mut out = OPTION_MAGIC.to_be_bytes().to_vec();
    out.extend_from_slice(&option.to_be_bytes());
    out.extend_from_slice(&u32::try_from(payload.len()).unwrap().to_be_bytes());
    out.extend_from_slice(payload);
    out
}

fn string(out: &mut Vec<u8>, s: &str) {
    out.extend_from_slice(&u32::try_from(s.len()).unwrap().to_be_bytes());
    out.extend_from_slice(s.as_bytes());
}

/// Payload of INFO and GO.
pub(crate) fn info(name: &str, kinds: &[u16]) -> Vec<u8> {
    let mut out = Vec::new();
    string(&mut out, name);
    out.extend_from_slice(&u16::try_from(kinds.len()).unwrap().to_be_bytes());
    kinds.iter().for_each(|k| out.extend_from_slice(&k.to_be_bytes()));
    out
}

/// Payload of the meta context options.
pub(crate) fn meta(name: &str, queries: &[&str]) -> Vec<u8> {
    let mut out = Vec::new();
    string(&mut out, name);
    out.extend_from_slice(&u32::try_from(queries.len()).unwrap().to_be_bytes());
    queries.iter().for_each(|q| string(&mut out, q));
    out
}
