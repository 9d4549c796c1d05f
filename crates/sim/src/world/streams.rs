// SPDX-License-Identifier: Apache-2.0 OR MIT
//! Streams: connected sockets of a simulated machine, whose bytes take their time and arrive in
//! pieces, and connections that end in every way there is.
//!
//! ```text
//!   Send ──▶ wire (packets, each with its time of arrival) ──▶ inbox ──▶ Recv (some of it)
//!            └────────── together at most STREAM_BYTES ───────────┘
//! ```
//!
//! An end that is closed with bytes unread, or to which bytes come after that, resets the other; so
//! does the kernel. What had been sent before a reset is delivered first, as Linux does: a reset
//! calls nothing back.
//!
//! Invariants
//! - ST1 Bytes arrive in order, each once, until the stream ends or is cut.
//! - ST2 Nothing is asked of a closed end, and no end is closed while a request is pending on it.
//! - ST3 What a Send gives away is taken from its buffers as it enters the wire: until the Send has
//!   ended they must not change.
//! - ST4 Every request ends exactly once; an outcome is delivered at a later moment, as any event.
use std::collections::VecDeque;

use block::{Bufs, CoreId, Nanos, OpKey, Slice, Status};
use reactor::{Event, FileId, OpResult, Sqe, SqeOp};

use super::{Due, World, usize_of};
use crate::events::{Happened, note};

/// Files of streams; below are disks.
const FIRST: u32 = 1 << 24;
/// What one direction holds: small, so that senders block.
const STREAM_BYTES: usize = 48 << 10;
/// Longest piece of a stream that arrives at once.
const PACKET_BYTES_MAX: u64 = 16 << 10;
/// The least that a request or a packet takes.
const STEP_NS: u64 = 500;

/// How a connection is lost to one of its ends, while the other lives on.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum StreamCut {
    /// Its next Recv fails; the stream itself still works.
    Error,
    /// Nothing passes any more, in either direction, and this end is told that the other one is
    /// silent. That one is reset in the end.
    TimedOut,
}

#[derive(Debug)]
enum Packet {
    Data(Vec<u8>),
    End,
    Reset,
}

#[derive(Debug)]
struct Pending {
    core: CoreId,
    home: CoreId,
    key: OpKey,
}

#[derive(Debug)]
struct Sending {
    who: Pending,
    bufs: Bufs,
    /// What they held, for ST3.
    data: Vec<u8>,
    done: usize,
}

/// How an end's reading ends.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
enum Over {
    End,
    Reset,
    TimedOut,
}

#[derive(Debug)]
struct End {
    peer: usize,
    /// On the way to this end.
    wire: VecDeque<(Nanos, Packet)>,
    inbox: VecDeque<u8>,
    over: Option<Over>,
    fail_next: bool,
    /// This end has ended its stream.
    shut: bool,
    /// The other end takes nothing any more.
    deaf: bool,
    closed: bool,
    /// No packet leaves.
    cut: bool,
    recv: Option<(Pending, Slice)>,
    send: Option<Sending>,
}

#[derive(Debug, Default)]
struct Listener {
    backlog: VecDeque<usize>,
    accept: Option<Pending>,
    /// Whether anybody can connect.
    open: bool,
}

/// All streams of a world.
#[derive(Debug, Default)]
pub(super) struct Streams {
    ends: Vec<End>,
    listeners: Vec<Listener>,
    /// Files, by number: an end or a listener.
    files: Vec<FileKind>,
}

#[derive(Clone, Copy, Debug)]
enum FileKind {
    End(usize),
    Listener(usize),
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

    fn end_of(&self, file: FileId) -> usize {
        match self.kind(file) {
            FileKind::End(end) => end,
            FileKind::Listener(_) => panic!("{file:?} is a listener"),
        }
    }

    /// A power cut or a kill: every connection is gone.
    pub(super) fn clear(&mut self) {
        self.ends.clear();
        self.listeners.clear();
        self.files.clear();
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

    /// A connection to a listener, at once; none when it is closed to all.
    pub fn connect(&mut self, listener: FileId) -> Option<FileId> {
        let FileKind::Listener(listener) = self.streams.kind(listener) else {
            panic!("{listener:?} does not listen");
        };
        if !self.streams.listeners[listener].open {
            return None;
        }
        let first = self.streams.ends.len();
        let end = |peer| End {
            peer,
            wire: VecDeque::new(),
            inbox: VecDeque::new(),
            over: None,
            fail_next: false,
            shut: false,
            deaf: false,
            closed: false,
            cut: false,
            recv: None,
            send: None,
        };
        self.streams.ends.push(end(first + 1));
        self.streams.ends.push(end(first));
        self.streams.listeners[listener].backlog.push_back(first + 1);
        self.accept_next(listener);
        Some(self.streams.add(FileKind::End(first)))
    }

    /// Lets clients connect, or refuses them.
    pub fn set_listening(&mut self, listener: FileId, open: bool) {
        match self.streams.kind(listener) {
            FileKind::Listener(nth) => self.streams.listeners[nth].open = open,
            FileKind::End(_) => panic!("{listener:?} does not listen"),
        }
    }

    /// Cuts a connection as one of its ends sees it. No effect on one that has ended.
    pub fn cut_stream(&mut self, file: FileId, how: StreamCut) {
        let end = self.streams.end_of(file);
        let peer = self.streams.ends[end].peer;
        if self.streams.ends[end].closed || self.streams.ends[end].over.is_some() {
            return;
        }
        note(self.now, Happened::StreamCut { stream: end, how });
        match how {
            StreamCut::Error => self.streams.ends[end].fail_next = true,
            StreamCut::TimedOut => {
                // Some of what is on its way to the other end still arrives.
                let on_its_way = self.streams.ends[peer].wire.len();
                let arrives = self.rng.index(on_its_way + 1);
                self.streams.ends[peer].wire.truncate(arrives);
                let late = Nanos(self.rng.range(1_000_000, 50_000_000));
                self.put(peer, Packet::Reset, late);
                let here = &mut self.streams.ends[end];
                here.wire.clear();
                here.inbox.clear();
                here.over = Some(Over::TimedOut);
                here.deaf = true;
                here.cut = true;
                self.streams.ends[peer].cut = true;
            }
        }
        self.progress(end);
        self.progress(peer);
    }

    pub(super) fn submit_stream(&mut self, core: CoreId, sqe: Sqe) {
        let Sqe { home, key, file, what } = sqe;
        let who = Pending { core, home, key };
        match (self.streams.kind(file), what) {
            (FileKind::Listener(nth), SqeOp::Accept) => {
                assert!(self.streams.listeners[nth].accept.is_none(), "one accept at a time");
                self.streams.listeners[nth].accept = Some(who);
                self.accept_next(nth);
            }
            (FileKind::End(end), what) => self.submit_end(end, who, what),
            (FileKind::Listener(_), what) => panic!("{what:?} on a listener"),
        }
    }

    fn submit_end(&mut self, end: usize, who: Pending, what: SqeOp) {
        let here = &mut self.streams.ends[end];
        assert!(!here.closed, "{what:?} on a closed stream"); // ST2
        match what {
            SqeOp::Recv { into } => {
                assert!(here.recv.is_none(), "one receive at a time");
                here.recv = Some((who, into));
            }
            SqeOp::Send { bufs } => {
                assert!(here.send.is_none(), "one send at a time");
                let mut data = vec![0; bufs.len_bytes()];
                bufs.take_at(0, &mut data);
                here.send = Some(Sending { who, bufs, data, done: 0 });
            }
            SqeOp::ShutdownWrite => {
                self.end_stream(end);
                self.answer(&who, Status::Ok, 0);
            }
            SqeOp::Shutdown => {
                self.end_stream(end);
                let here = &mut self.streams.ends[end];
                here.inbox.clear();
                here.over.get_or_insert(Over::End);
                self.answer(&who, Status::Ok, 0);
            }
            SqeOp::Close => {
                assert!(here.recv.is_none() && here.send.is_none(), "closed under a request");
                here.closed = true;
                let (peer, unread) = (here.peer, !here.inbox.is_empty() || !here.wire.is_empty());
                if unread {
                    self.put(peer, Packet::Reset, Nanos::ZERO);
                } else {
                    self.end_stream(end);
                }
                self.streams.ends[peer].deaf = true;
                self.progress(peer);
                self.answer(&who, Status::Ok, 0);
            }
            what @ (SqeOp::Read { .. }
            | SqeOp::Write { .. }
            | SqeOp::Flush
            | SqeOp::Discard { .. }
            | SqeOp::WriteZeroes { .. }
            | SqeOp::Accept) => panic!("{what:?} on a stream"),
        }
        self.progress(end);
    }

    fn end_stream(&mut self, end: usize) {
        let here = &mut self.streams.ends[end];
        let peer = here.peer;
        if !std::mem::replace(&mut here.shut, true) {
            self.put(peer, Packet::End, Nanos::ZERO);
        }
    }

    /// Sends a packet to an end, behind those that are on their way.
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
            time = time.max(*last); // ST1
        }
        wire.push_back((time, packet));
        self.at(time, Due::Stream(to));
    }

    /// The moment of a packet has come.
    pub(super) fn arrive(&mut self, end: usize) {
        let Some(here) = self.streams.ends.get_mut(end) else { return };
        while here.wire.front().is_some_and(|(time, _)| *time <= self.now) {
            let Some((_, packet)) = here.wire.pop_front() else { break };
            match packet {
                Packet::Data(_) | Packet::End | Packet::Reset
                    if here.over.is_some() || here.closed => {}
                Packet::Data(data) => here.inbox.extend(data),
                Packet::End => here.over = Some(Over::End),
                Packet::Reset => {
                    here.over = Some(Over::Reset);
                    here.deaf = true;
                }
            }
        }
        let peer = here.peer;
        self.progress(end);
        self.progress(peer); // there is room now
    }

    fn answer(&mut self, who: &Pending, status: Status, value: usize) {
        let value = u32::try_from(value).expect("a request's length");
        let result = OpResult { status, value };
        let event = Event::Cqe { home: who.home, key: who.key, result };
        let delay = STEP_NS + self.rng.below(2_000);
        self.at(self.now + Nanos(delay), Due::Ready(who.core, event));
    }

    /// Attempts what is pending on an end.
    fn progress(&mut self, end: usize) {
        self.progress_recv(end);
        self.progress_send(end);
    }

    fn progress_recv(&mut self, end: usize) {
        let here = &mut self.streams.ends[end];
        let Some((who, into)) = here.recv.take() else { return };
        if std::mem::take(&mut here.fail_next) {
            return self.answer(&who, Status::Io, 0);
        }
        if !here.inbox.is_empty() {
            let most = into.len().min(here.inbox.len());
            let n = match self.rng.below(3) {
                0 => usize_of(self.rng.range(1, most as u64 + 1)),
                _ => most,
            };
            into.write(|b| b.iter_mut().zip(here.inbox.drain(..n)).for_each(|(b, v)| *b = v));
            self.answer(&who, Status::Ok, n);
            let peer = self.streams.ends[end].peer;
            return self.progress_send(peer);
        }
        match here.over {
            None => here.recv = Some((who, into)),
            Some(Over::End) => self.answer(&who, Status::Ok, 0),
            Some(Over::Reset) => self.answer(&who, Status::NoDevice, 0),
            Some(Over::TimedOut) => self.answer(&who, Status::Timeout, 0),
        }
    }

    fn progress_send(&mut self, end: usize) {
        loop {
            let here = &mut self.streams.ends[end];
            let (peer, shut, over) = (here.peer, here.shut, here.over);
            let Some(mut sending) = here.send.take() else { return };
            let left = sending.data.len() - sending.done;
            if left == 0 {
                return self.answer(&sending.who, Status::Ok, 0);
            }
            if shut || self.streams.ends[end].deaf {
                let silent = over == Some(Over::TimedOut) && !shut;
                let status = if silent { Status::Timeout } else { Status::NoDevice };
                return self.answer(&sending.who, status, 0);
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
            assert!(now == sending.data[part], "a buffer changed while it was being sent"); // ST3
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
        let (Some(who), Some(end)) = (here.accept.take(), here.backlog.pop_front()) else { return };
        let FileId(file) = self.streams.add(FileKind::End(end));
        self.answer(&who, Status::Ok, file as usize);
    }
}
