// SPDX-License-Identifier: Apache-2.0 OR MIT
//! Streams: the connected sockets of a simulated machine. Bytes are delayed and arrive in pieces;
//! connections end in every way that the kernel knows.
//!
//! ```text
//!   Send ──▶ wire (packets, each with its time of arrival) ──▶ inbox ──▶ Recv (some of it)
//!            └────────── together at most STREAM_BYTES ───────────┘
//! ```
//!
//! As in the kernel, an end that is closed with unread bytes, or that receives bytes after it was
//! closed, resets the other end. As in Linux, bytes sent before a reset are delivered first.
//!
//! Invariants
//! - SI-ST1 Bytes arrive in order, each once, until the stream ends or is cut.
//! - SI-ST2 A closed file gets no requests, and an end is closed only with no request pending.
//!   An end with several files (`World::copy_stream`) is closed with the last of them.
//! - SI-ST3 The data of a Send are taken from its buffers as they enter the wire: the buffers must
//!   not change until the Send has ended.
//! - SI-ST4 Every request ends exactly once; an outcome is delivered at a later moment, as any
//!   event.
use std::collections::{BTreeMap, VecDeque};

use block::{Bufs, CoreId, Nanos, OpKey, Slice, Status};
use reactor::{Event, FileId, OpResult, Sqe, SqeOp};

use super::{Scheduled, World, usize_of};
use crate::events::{StreamFault, TraceEvent, record};

/// First file number of streams; lower numbers are disks.
const FIRST: u32 = 1 << 24;
/// Capacity of one direction: small, so that senders block.
const STREAM_BYTES: usize = 48 << 10;
/// Longest piece of a stream that arrives at once.
const PACKET_BYTES_MAX: u64 = 16 << 10;
/// Shortest time of a request or a packet.
const STEP_NS: u64 = 500;

#[derive(Debug)]
enum Packet {
    Data(Vec<u8>),
    End,
    Reset,
}

#[derive(Debug)]
pub(super) struct ReplyTo {
    pub(super) core: CoreId,
    home: CoreId,
    key: OpKey,
}

#[derive(Debug)]
struct Sending {
    reply_to: ReplyTo,
    bufs: Bufs,
    /// What they held, for SI-ST3.
    data: Vec<u8>,
    done: usize,
}

/// How the incoming bytes of an end have ended.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
enum StreamEnd {
    End,
    Reset,
    TimedOut,
}

#[derive(Debug)]
struct End {
    peer: usize,
    /// Packets on the way to this end.
    wire: VecDeque<(Nanos, Packet)>,
    inbox: VecDeque<u8>,
    ended: Option<StreamEnd>,
    fail_next: bool,
    /// This end has shut down its sending direction.
    write_shut: bool,
    /// The other end accepts no more data.
    refuses_data: bool,
    closed: bool,
    /// No packet leaves.
    cut: bool,
    recv: Option<(ReplyTo, Slice)>,
    send: Option<Sending>,
    /// Files that are this end.
    files: u32,
}

impl End {
    fn connected_to(peer: usize) -> End {
        End {
            peer,
            wire: VecDeque::new(),
            inbox: VecDeque::new(),
            ended: None,
            fail_next: false,
            write_shut: false,
            refuses_data: false,
            closed: false,
            cut: false,
            recv: None,
            send: None,
            files: 1,
        }
    }
}

#[derive(Debug, Default)]
struct Listener {
    backlog: VecDeque<usize>,
    accept: Option<ReplyTo>,
    /// Whether clients can connect.
    open: bool,
}

/// All streams of a world.
#[derive(Debug, Default)]
pub(super) struct Streams {
    ends: Vec<End>,
    listeners: Vec<Listener>,
    /// Files, by number: an end or a listener.
    files: Vec<FileKind>,
    /// Whose process has a file, where that is known: its end closes them.
    pub(super) owners: BTreeMap<FileId, CoreId>,
    /// Files that a process keeps until its last request has ended, by process.
    pub(super) lifelines: BTreeMap<CoreId, FileId>,
}

#[derive(Clone, Copy, Debug)]
enum FileKind {
    End(usize),
    Listener(usize),
    Closed,
}

impl Streams {
    fn add(&mut self, kind: FileKind) -> FileId {
        let nth = u32::try_from(self.files.len()).expect("few streams");
        self.files.push(kind);
        FileId(FIRST + nth)
    }

    fn kind(&self, file: FileId) -> FileKind {
        self.files[(file.0 - FIRST) as usize]
    }

    /// Drops all connections: a power cut or a kill.
    /// Forgets the requests of a process.
    pub(super) fn forget_requests_of(&mut self, core: CoreId) {
        let is_of = |reply_to: &ReplyTo| reply_to.core == core;
        for end in &mut self.ends {
            end.recv.take_if(|(reply_to, _)| is_of(reply_to));
            end.send.take_if(|sending| is_of(&sending.reply_to));
        }
        for listener in &mut self.listeners {
            listener.accept.take_if(|reply_to| is_of(reply_to));
        }
    }

    pub(super) fn clear(&mut self) {
        self.ends.clear();
        self.listeners.clear();
        self.files.clear();
        self.owners.clear();
        self.lifelines.clear();
    }
}

pub(super) fn is_stream(file: FileId) -> bool {
    file.0 >= FIRST
}

impl World {
    /// A socket that listens.
    pub fn listen(&mut self) -> FileId {
        let listener = self.streams.listeners.len();
        self.streams.listeners.push(Listener { open: true, ..Listener::default() });
        self.streams.add(FileKind::Listener(listener))
    }

    /// Connects to a listener; `None` if it refuses connections.
    pub fn connect(&mut self, listener: FileId) -> Option<FileId> {
        let FileKind::Listener(listener) = self.streams.kind(listener) else {
            panic!("{listener:?} does not listen");
        };
        if !self.streams.listeners[listener].open {
            return None;
        }
        let first = self.streams.ends.len();
        self.streams.ends.push(End::connected_to(first + 1));
        self.streams.ends.push(End::connected_to(first));
        self.streams.listeners[listener].backlog.push_back(first + 1);
        self.accept_next(listener);
        Some(self.streams.add(FileKind::End(first)))
    }

    /// Another file that is the same end or listener, as a process has it that was sent the
    /// descriptor. Whichever of them is used, the end has one Recv and one Send at a time.
    pub fn copy_stream(&mut self, file: FileId) -> FileId {
        let kind = self.streams.kind(file);
        match kind {
            FileKind::End(end) => self.streams.ends[end].files += 1,
            FileKind::Listener(_) => {}
            FileKind::Closed => panic!("{file:?} is closed"),
        }
        self.streams.add(kind)
    }

    /// Two connected ends. The process that has one of them is to be named by
    /// [`World::give_stream`].
    pub fn stream_pair(&mut self) -> (FileId, FileId) {
        let first = self.streams.ends.len();
        self.streams.ends.push(End::connected_to(first + 1));
        self.streams.ends.push(End::connected_to(first));
        let [a, b] = [first, first + 1].map(|end| self.streams.add(FileKind::End(end)));
        (a, b)
    }

    /// The process that has a file. A socket that is accepted is of the process that accepts it.
    pub fn give_stream(&mut self, file: FileId, to: CoreId) {
        self.streams.owners.insert(file, to);
    }

    /// A process keeps a file until its last request has ended, although it was killed before
    /// (UR-U12). One for each process.
    pub fn set_lifeline(&mut self, file: FileId, of: CoreId) {
        self.streams.lifelines.insert(of, file);
    }

    /// Ends the Recv or the Accept that waits; one that has taken something has ended already.
    pub(crate) fn end_waits(&mut self, file: FileId) {
        let waiting = match self.streams.kind(file) {
            FileKind::End(end) => self.streams.ends[end].recv.take().map(|(reply_to, _)| reply_to),
            FileKind::Listener(nth) => self.streams.listeners[nth].accept.take(),
            FileKind::Closed => panic!("{file:?} is closed"), // SI-ST2
        };
        if let Some(reply_to) = waiting {
            self.reply(&reply_to, Status::Again, 0);
        }
    }

    /// Accepts or refuses new connections.
    pub fn set_listening(&mut self, listener: FileId, open: bool) {
        match self.streams.kind(listener) {
            FileKind::Listener(nth) => self.streams.listeners[nth].open = open,
            FileKind::End(_) | FileKind::Closed => panic!("{listener:?} does not listen"),
        }
    }

    /// Injects a fault into one end of a connection. No effect on one that has ended.
    pub fn cut_stream(&mut self, file: FileId, how: StreamFault) {
        let end = match self.streams.kind(file) {
            FileKind::End(end) => end,
            FileKind::Closed => return,
            FileKind::Listener(_) => panic!("{file:?} is a listener"),
        };
        let peer = self.streams.ends[end].peer;
        if self.streams.ends[end].closed || self.streams.ends[end].ended.is_some() {
            return;
        }
        record(self.now, TraceEvent::StreamCut { stream: end, how });
        match how {
            StreamFault::Error => self.streams.ends[end].fail_next = true,
            StreamFault::TimedOut => {
                // Some of the packets on their way to the other end still arrive.
                let on_its_way = self.streams.ends[peer].wire.len();
                let arrives = self.rng.index(on_its_way + 1);
                self.streams.ends[peer].wire.truncate(arrives);
                let late = Nanos(self.rng.range(1_000_000, 50_000_000));
                self.put(peer, Packet::Reset, late);
                let here = &mut self.streams.ends[end];
                here.wire.clear();
                here.inbox.clear();
                here.ended = Some(StreamEnd::TimedOut);
                here.refuses_data = true;
                here.cut = true;
                self.streams.ends[peer].cut = true;
            }
        }
        self.progress(end);
        self.progress(peer);
    }

    pub(super) fn submit_stream(&mut self, core: CoreId, sqe: Sqe) {
        let Sqe { home, key, file, what } = sqe;
        let reply_to = ReplyTo { core, home, key };
        match (self.streams.kind(file), what) {
            (FileKind::Listener(nth), SqeOp::Accept) => {
                assert!(self.streams.listeners[nth].accept.is_none(), "one accept at a time");
                self.streams.listeners[nth].accept = Some(reply_to);
                self.accept_next(nth);
            }
            (FileKind::End(end), SqeOp::Close) if self.streams.ends[end].files > 1 => {
                self.streams.ends[end].files -= 1;
                self.close_file(file, &reply_to);
            }
            (FileKind::End(end), what) => {
                if matches!(what, SqeOp::Close) {
                    self.streams.files[(file.0 - FIRST) as usize] = FileKind::Closed;
                    self.streams.owners.remove(&file);
                }
                self.submit_end(end, reply_to, what);
            }
            // Clients may still connect: by another file, or as to a server that is away.
            (FileKind::Listener(_), SqeOp::Close) => self.close_file(file, &reply_to),
            (FileKind::Listener(_), what) => panic!("{what:?} on a listener"),
            (FileKind::Closed, what) => panic!("{what:?} on a closed stream"), // SI-ST2
        }
    }

    fn close_file(&mut self, file: FileId, reply_to: &ReplyTo) {
        self.streams.owners.remove(&file);
        self.streams.files[(file.0 - FIRST) as usize] = FileKind::Closed;
        self.reply(reply_to, Status::Ok, 0);
    }

    fn submit_end(&mut self, end: usize, reply_to: ReplyTo, what: SqeOp) {
        let here = &mut self.streams.ends[end];
        assert!(!here.closed, "{what:?} on a closed stream"); // SI-ST2
        match what {
            SqeOp::Recv { into } => {
                assert!(here.recv.is_none(), "one receive at a time");
                here.recv = Some((reply_to, into));
            }
            SqeOp::Send { bufs } => {
                assert!(here.send.is_none(), "one send at a time");
                let mut data = vec![0; bufs.len_bytes()];
                bufs.take_at(0, &mut data);
                here.send = Some(Sending { reply_to, bufs, data, done: 0 });
            }
            SqeOp::ShutdownWrite => {
                self.end_stream(end);
                self.reply(&reply_to, Status::Ok, 0);
            }
            SqeOp::Shutdown => {
                self.end_stream(end);
                let here = &mut self.streams.ends[end];
                here.inbox.clear();
                here.ended.get_or_insert(StreamEnd::End);
                self.reply(&reply_to, Status::Ok, 0);
            }
            SqeOp::Close => {
                self.close_end(end);
                self.reply(&reply_to, Status::Ok, 0);
            }
            what @ (SqeOp::Read { .. }
            | SqeOp::Write { .. }
            | SqeOp::Flush
            | SqeOp::Discard { .. }
            | SqeOp::WriteZeroes { .. }
            | SqeOp::Command { .. }
            | SqeOp::Accept) => panic!("{what:?} on a stream"),
        }
        self.progress(end);
    }

    fn close_end(&mut self, end: usize) {
        let here = &mut self.streams.ends[end];
        assert!(here.recv.is_none() && here.send.is_none(), "closed under a request");
        here.closed = true;
        let (peer, unread) = (here.peer, !here.inbox.is_empty() || !here.wire.is_empty());
        if unread {
            self.put(peer, Packet::Reset, Nanos::ZERO);
        } else {
            self.end_stream(end);
        }
        self.streams.ends[peer].refuses_data = true;
        self.progress(peer);
    }

    /// Closes a file in no time, as the kernel does for a process that has ended, or for a
    /// descriptor that nobody has received. No effect on one that is closed.
    pub fn close_stream(&mut self, file: FileId) {
        self.streams.owners.remove(&file);
        let nth = (file.0 - FIRST) as usize;
        let Some(kind) = self.streams.files.get_mut(nth) else { return };
        let FileKind::End(end) = std::mem::replace(kind, FileKind::Closed) else { return };
        self.streams.ends[end].files -= 1;
        if self.streams.ends[end].files == 0 {
            self.close_end(end);
        }
    }

    fn end_stream(&mut self, end: usize) {
        let here = &mut self.streams.ends[end];
        let peer = here.peer;
        if !std::mem::replace(&mut here.write_shut, true) {
            self.put(peer, Packet::End, Nanos::ZERO);
        }
    }

    /// Queues a packet to an end, behind those on their way.
    fn put(&mut self, to: usize, packet: Packet, late: Nanos) {
        let from = self.streams.ends[to].peer;
        if self.streams.ends[from].cut || self.streams.ends[to].closed {
            return;
        }
        let delay = STEP_NS + self.rng.below(self.swarm.message_ns_max.max(1));
        let mut time = self.now + Nanos(delay) + late;
        if self.rng.chance_per_mille(self.swarm.stall_per_mille) {
            time = time + Nanos(delay * self.swarm.stall_factor);
        }
        let wire = &mut self.streams.ends[to].wire;
        if let Some((last, _)) = wire.back() {
            time = time.max(*last); // SI-ST1
        }
        wire.push_back((time, packet));
        self.at(time, Scheduled::Stream(to));
    }

    /// Delivers the packets whose time has come.
    pub(super) fn arrive(&mut self, end: usize) {
        let Some(here) = self.streams.ends.get_mut(end) else { return };
        while here.wire.front().is_some_and(|(time, _)| *time <= self.now) {
            let Some((_, packet)) = here.wire.pop_front() else { break };
            match packet {
                Packet::Data(_) | Packet::End | Packet::Reset
                    if here.ended.is_some() || here.closed => {}
                Packet::Data(data) => here.inbox.extend(data),
                Packet::End => here.ended = Some(StreamEnd::End),
                Packet::Reset => {
                    here.ended = Some(StreamEnd::Reset);
                    here.refuses_data = true;
                }
            }
        }
        let peer = here.peer;
        self.progress(end);
        self.progress(peer); // there is room now
    }

    fn reply(&mut self, reply_to: &ReplyTo, status: Status, value: usize) {
        let value = u32::try_from(value).expect("a request's length");
        let result = OpResult { status, value };
        let event = Event::Cqe { home: reply_to.home, key: reply_to.key, result };
        let delay = STEP_NS + self.rng.below(2_000);
        self.at(self.now + Nanos(delay), Scheduled::Ready(reply_to.core, event));
    }

    /// Tries the pending requests of an end.
    fn progress(&mut self, end: usize) {
        self.progress_recv(end);
        self.progress_send(end);
    }

    fn progress_recv(&mut self, end: usize) {
        let here = &mut self.streams.ends[end];
        let Some((reply_to, into)) = here.recv.take() else { return };
        if std::mem::take(&mut here.fail_next) {
            return self.reply(&reply_to, Status::Io, 0);
        }
        if !here.inbox.is_empty() {
            let most = into.len().min(here.inbox.len());
            let n = match self.rng.below(3) {
                0 => usize_of(self.rng.range(1, most as u64 + 1)),
                _ => most,
            };
            into.write(|b| b.iter_mut().zip(here.inbox.drain(..n)).for_each(|(b, v)| *b = v));
            self.reply(&reply_to, Status::Ok, n);
            let peer = self.streams.ends[end].peer;
            return self.progress_send(peer);
        }
        match here.ended {
            None => here.recv = Some((reply_to, into)),
            Some(StreamEnd::End) => self.reply(&reply_to, Status::Ok, 0),
            Some(StreamEnd::Reset) => self.reply(&reply_to, Status::NoDevice, 0),
            Some(StreamEnd::TimedOut) => self.reply(&reply_to, Status::Timeout, 0),
        }
    }

    fn progress_send(&mut self, end: usize) {
        loop {
            let here = &mut self.streams.ends[end];
            let (peer, write_shut, ended) = (here.peer, here.write_shut, here.ended);
            let Some(mut sending) = here.send.take() else { return };
            let left = sending.data.len() - sending.done;
            if left == 0 {
                return self.reply(&sending.reply_to, Status::Ok, 0);
            }
            if write_shut || self.streams.ends[end].refuses_data {
                let silent = ended == Some(StreamEnd::TimedOut) && !write_shut;
                let status = if silent { Status::Timeout } else { Status::NoDevice };
                return self.reply(&sending.reply_to, status, 0);
            }
            let there = &self.streams.ends[peer];
            let held = there.wire.iter().map(|(_, p)| match p {
                Packet::Data(data) => data.len(),
                Packet::End | Packet::Reset => 0,
            });
            let room = STREAM_BYTES.saturating_sub(there.inbox.len() + held.sum::<usize>());
            if room == 0 {
                self.streams.ends[end].send = Some(sending);
                return;
            }
            let most = self.rng.range(1, PACKET_BYTES_MAX + 1);
            let n = left.min(room).min(usize_of(most));
            let part = sending.done..sending.done + n;
            let mut now = vec![0; n];
            sending.bufs.take_at(part.start, &mut now);
            // SI-ST3
            assert!(now == sending.data[part], "a buffer changed while it was being sent");
            sending.done += n;
            self.streams.ends[end].send = Some(sending);
            self.put(peer, Packet::Data(now), Nanos::ZERO);
        }
    }

    fn accept_next(&mut self, listener: usize) {
        let here = &mut self.streams.listeners[listener];
        if here.accept.is_none() || here.backlog.is_empty() {
            return;
        }
        let (Some(reply_to), Some(end)) = (here.accept.take(), here.backlog.pop_front()) else {
            return;
        };
        let FileId(file) = self.streams.add(FileKind::End(end));
        self.streams.owners.insert(FileId(file), reply_to.core);
        self.reply(&reply_to, Status::Ok, file as usize);
    }
}
