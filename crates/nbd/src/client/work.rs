// SPDX-License-Identifier: Apache-2.0 OR MIT
//! The work of a client: every pending bio, split into pieces that the server accepts, and the
//! state of each piece.
//!
//! ```text
//!   queue ──send──▶ in flight ──reply──▶ done          FUA by a flush: once more through the queue
//!     ▲ ▲               │
//!     │ └──── lost ─────┘
//!   held (the guard of another overlaps)
//! ```
use std::collections::{BTreeSet, VecDeque};
use std::ops::Range;
use std::rc::Rc;

use block::{Bio, Bufs, Completion, Flags, Limits, Nanos, Op, Opener, Planted, Sector, Status};
use policy::ErrSeqSample;
use queue::{Stats, Ticket};
use slab::Slab;

use crate::client::guard::{Guards, LinkId};
use crate::client::ranges::ReceivedRanges;
use crate::client::unflushed::UnflushedWrites;
use crate::planted::Fault;
use crate::request::Request;
use crate::wire::{CommandFlags, ExportFlags, cmd};

/// Pieces of one bio at a time; further ones are made as these end. Chosen: enough to keep a server
/// busy, with little memory.
const PIECES_MAX: u32 = 64;
/// Bytes of an answer that count as progress.
const PROGRESS_BYTES: u32 = 64 << 10;

/// Key of a pending piece.
pub(crate) type Key = usize;

/// The stage of a request.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
enum Stage {
    Itself,
    /// The flush after a FUA request, where the server knows no FUA.
    FlushAfter,
}

/// A request to the server.
#[derive(Debug)]
pub(crate) struct Piece {
    bio: u32,
    pub(crate) op: Op,
    flags: Flags,
    pub(crate) offset: u64,
    pub(crate) len: u32,
    pub(crate) bufs: Bufs,
    stage: Stage,
    /// Its serial number while it is in flight.
    serial: Option<u32>,
    /// Since when it has been waiting for a connection or for a guard.
    since: Option<Nanos>,
    /// Number of the send that carried it.
    pub(crate) send: u64,
    /// When it was sent, or its answer last made progress.
    asked: Nanos,
    pub(crate) fill: ReceivedRanges,
    pub(crate) chunks: u32,
    /// The status of an error chunk.
    pub(crate) failed: Option<Status>,
    /// Of a flush: the changes that it covers.
    covers: u64,
    /// Of a change: number of losses when it was sent.
    losses: u64,
}

impl Piece {
    pub(crate) fn end(&self) -> u64 {
        self.offset + u64::from(self.len)
    }

    /// Whether it changes its range in this stage.
    fn changes(&self) -> bool {
        self.op.is_write() && self.stage == Stage::Itself
    }

    fn is_flush(&self) -> bool {
        self.op == Op::Flush || self.stage == Stage::FlushAfter
    }

    /// The data that follow the request.
    pub(crate) fn payload(&self) -> Option<&Bufs> {
        (self.op == Op::Write && self.stage == Stage::Itself).then_some(&self.bufs)
    }

    /// Whether data follow the reply.
    pub(crate) fn wants_data(&self) -> bool {
        self.op == Op::Read
    }
}

/// A bio with pending pieces.
#[derive(Debug)]
struct PendingBio {
    done: Completion,
    ticket: Ticket,
    opener: Opener,
    /// The losses that were reported to the opener when the bio was submitted.
    heard: ErrSeqSample,
    /// Of a change: number of losses when the first of its acknowledged pieces was sent.
    losses: u64,
    /// Pieces that have been made and not ended.
    left: u32,
    status: Status,
    rest: Option<Remainder>,
}

/// The part of a bio that is not yet split into pieces.
#[derive(Debug)]
struct Remainder {
    op: Op,
    flags: Flags,
    /// Offset in the export, bytes.
    start: u64,
    /// Bytes split off, total bytes, and the largest piece.
    at: u64,
    total: u64,
    most: u64,
    bufs: Bufs,
}

impl Remainder {
    /// Offset, length and buffers of the next piece; `None` at the end.
    fn next(&mut self) -> Option<(u64, u32, Bufs)> {
        let at = self.at;
        let len = self.most.min(self.total - at);
        if len == 0 {
            return None;
        }
        self.at += len;
        let index = |n: u64| usize::try_from(n).expect("within a buffer");
        let has_data = matches!(self.op, Op::Read | Op::Write);
        let bufs = match has_data {
            true => self.bufs.slice(index(at)..index(at + len)),
            false => Bufs::new(),
        };
        Some((self.start + at, u32::try_from(len).expect("at most the largest request"), bufs))
    }
}

/// See the module.
#[derive(Debug)]
pub(crate) struct Work {
    pieces: Slab<Piece>,
    bios: Slab<PendingBio>,
    queue: VecDeque<Key>,
    held: VecDeque<Key>,
    guards: Guards,
    unflushed: Rc<UnflushedWrites>,
    /// When requests were last sent or checked.
    time: Nanos,
    serial: u32,
    flags: ExportFlags,
    planted: Planted<Fault>,
}

impl Work {
    pub(crate) fn new(flags: ExportFlags, planted: Planted<Fault>) -> Work {
        Work {
            pieces: Slab::new(),
            bios: Slab::new(),
            queue: VecDeque::new(),
            held: VecDeque::new(),
            guards: Guards::default(),
            unflushed: Rc::default(),
            time: Nanos::ZERO,
            serial: 0,
            flags,
            planted,
        }
    }

    /// Takes a bio that fits the limits, at `sector` of the export. `since` is set if there is no
    /// connection.
    pub(crate) fn add(
        &mut self,
        (sector, bio): (Sector, Bio),
        ticket: Ticket,
        limits: &Limits,
        since: Option<Nanos>,
    ) {
        let Bio { op, flags, opener, len, bufs, done, .. } = bio;
        let heard = self.unflushed.known_to(opener);
        let (losses, status) = (u64::MAX, Status::Ok);
        let whole = PendingBio { done, ticket, opener, heard, losses, left: 0, status, rest: None };
        let nth = self.bios.insert(whole);
        let (start, total) = if op == Op::Flush { (0, 0) } else { (sector.bytes(), len.bytes()) };
        let most = u64::from(limits.max_io_bytes);
        if total <= most {
            let len = u32::try_from(total).expect("at most the largest request");
            return self.make((nth, op, flags), (start, len, bufs), since);
        }
        let mut rest = Remainder { op, flags, start, at: 0, total, most, bufs };
        while self.bios[nth].left < PIECES_MAX {
            let Some(part) = rest.next() else { return };
            self.make((nth, op, flags), part, since);
        }
        self.bios[nth].rest = Some(rest);
    }

    fn make(
        &mut self,
        (nth, op, flags): (usize, Op, Flags),
        (offset, len, bufs): (u64, u32, Bufs),
        since: Option<Nanos>,
    ) {
        self.bios[nth].left += 1;
        let piece = Piece {
            bio: u32::try_from(nth).expect("fewer than 2^32 bios"),
            op,
            flags,
            offset,
            len,
            bufs,
            stage: Stage::Itself,
            serial: None,
            since,
            send: 0,
            asked: Nanos::ZERO,
            fill: ReceivedRanges::default(),
            chunks: 0,
            failed: None,
            covers: 0,
            losses: 0,
        };
        self.queue.push_back(self.pieces.insert(piece));
    }

    /// After the end of a piece: queues the next piece of its bio, unless the bio has failed.
    fn make_next(&mut self, nth: usize) {
        let whole = &mut self.bios[nth];
        let Some(rest) = whole.rest.as_mut().filter(|_| whole.status == Status::Ok) else { return };
        match rest.next() {
            Some(part) => {
                let of = (nth, rest.op, rest.flags);
                self.make(of, part, None);
            }
            None => whole.rest = None,
        }
    }

    pub(crate) fn is_empty(&self) -> bool {
        self.pieces.is_empty()
    }

    /// Whether a change of any of these sectors is pending.
    pub(crate) fn is_changing(&self, sectors: &Range<Sector>) -> bool {
        self.bios.iter().any(|(_, whole)| whole.ticket.changes(sectors))
    }

    pub(crate) fn has_queued(&self) -> bool {
        !self.queue.is_empty()
    }

    /// Whether any request waits for a connection or for a guard.
    pub(crate) fn has_waiting(&self, connected: bool) -> bool {
        !self.held.is_empty() || !connected && !self.queue.is_empty()
    }

    /// The next request to send, with its cookie. Requests that must wait are held; those that must
    /// fail are ended.
    pub(crate) fn next(&mut self, now: Nanos, stats: &Stats) -> Option<(Key, Request)> {
        loop {
            let key = self.queue.pop_front()?;
            let piece = &mut self.pieces[key];
            if piece.op == Op::Flush && self.is_lost(key) {
                self.end_piece(key, Status::Io, stats); // NB-C5
                continue;
            }
            if self.pieces[key].op == Op::Flush && !self.flags.contains(ExportFlags::FLUSH) {
                // A server that offers none refuses it. Nothing is settled by that: if the
                // connection is lost, the writes before count as lost, too.
                self.end_piece(key, Status::Ok, stats);
                continue;
            }
            let piece = &mut self.pieces[key];
            let guarded = piece.changes()
                && !self.guards.is_empty()
                && !self.planted.is(Fault::IgnoreGuards)
                && self.guards.blocks(key, piece.offset, piece.end());
            if guarded {
                piece.since.get_or_insert(now);
                self.held.push_back(key); // NB-C4
                continue;
            }
            self.serial = self.serial.wrapping_add(1);
            piece.serial = Some(self.serial);
            piece.asked = now;
            self.time = now;
            if piece.is_flush() {
                piece.covers = self.unflushed.covers();
            } else {
                piece.losses = self.unflushed.count();
            }
            let cookie = u64::from(self.serial) << 32 | key as u64;
            return Some((key, request(&self.pieces[key], cookie, self.flags, self.planted)));
        }
    }

    /// The record of acknowledged changes and their losses.
    pub(crate) fn unflushed(&self) -> &Rc<UnflushedWrites> {
        &self.unflushed
    }

    fn is_lost(&self, key: Key) -> bool {
        let whole = &self.bios[self.pieces[key].bio as usize];
        self.unflushed.concerns(whole.heard) && !self.planted.is(Fault::PretendFlush)
    }

    /// The request in flight that a reply names (NB-C1).
    pub(crate) fn in_flight(&mut self, cookie: u64) -> Option<Key> {
        let key = (cookie & u64::from(u32::MAX)) as usize;
        let serial = self.pieces.get(key)?.serial?;
        let checked = !self.planted.is(Fault::CookieUnchecked);
        (!checked || u64::from(serial) == cookie >> 32).then_some(key)
    }

    /// A text about the pending answers, for messages.
    pub(crate) fn oldest_in_flight(&self) -> String {
        let in_flight = || self.pieces.iter().map(|(_, p)| p).filter(|p| p.serial.is_some());
        let oldest = in_flight().min_by_key(|p| p.send);
        let what = oldest.map_or_else(String::new, |p| match p.is_flush() {
            true => Op::Flush.to_string(),
            false => format!("{} of {} bytes at {}", p.op, p.len, p.offset),
        });
        format!("the answer to {what}, the oldest of {}", in_flight().count())
    }

    pub(crate) fn piece(&mut self, key: Key) -> &mut Piece {
        &mut self.pieces[key]
    }

    /// Notes that `len` bytes of an answer have arrived at `at`.
    pub(crate) fn progress(&mut self, key: Key, at: u32, len: u32) {
        if at / PROGRESS_BYTES != (at + len) / PROGRESS_BYTES {
            self.pieces[key].asked = self.time;
        }
    }

    /// Whether an answer has made no progress for `limit`. Requests in the send `sending` do not
    /// count yet.
    pub(crate) fn is_overdue(&mut self, now: Nanos, limit: Nanos, sending: Option<u64>) -> bool {
        self.time = now;
        if self.planted.is(Fault::AnyAnswerIsProgress) {
            return false;
        }
        let mut overdue = false;
        for (_, piece) in self.pieces.iter_mut().filter(|(_, p)| p.serial.is_some()) {
            match sending == Some(piece.send) {
                true => piece.asked = now,
                false => overdue |= piece.asked + limit <= now,
            }
        }
        overdue
    }

    /// Notes an early reply: the bio can't complete yet.
    pub(crate) fn taken(&mut self, key: Key) {
        self.pieces[key].serial = None;
    }

    /// Handles a complete answer of the server.
    pub(crate) fn answered(&mut self, key: Key, status: Status, stats: &Stats) {
        let lost = self.is_lost(key);
        let piece = &mut self.pieces[key];
        piece.serial = None;
        if piece.is_flush() {
            if status == Status::Ok {
                self.unflushed.settle(piece.covers);
            } else {
                self.unflushed.flush_failed();
            }
            // NB-L3: an earlier failed flush may have lost the write.
            let lost = match piece.op == Op::Flush {
                true => lost,
                false => piece.losses != self.unflushed.count(),
            };
            let failed = status == Status::Ok && lost;
            return self.end_piece(key, if failed { Status::Io } else { status }, stats); // NB-C5
        }
        if status == Status::Ok && piece.op.is_write() {
            let fua = piece.flags.contains(Flags::FUA);
            let has = |flag| self.flags.contains(flag);
            if fua && !has(ExportFlags::FUA) && has(ExportFlags::FLUSH) {
                piece.stage = Stage::FlushAfter;
                self.queue.push_back(key);
                return;
            }
            if !(fua && has(ExportFlags::FUA)) {
                let whole = &mut self.bios[piece.bio as usize];
                whole.losses = whole.losses.min(piece.losses);
                self.unflushed.acknowledge(whole.opener);
            }
        }
        self.end_piece(key, status, stats);
    }

    fn end_piece(&mut self, key: Key, status: Status, stats: &Stats) {
        let piece = self.pieces.remove(key);
        self.guards.orphan(key);
        let nth = piece.bio as usize;
        let whole = &mut self.bios[nth];
        whole.left -= 1;
        whole.status = whole.status.worst(status);
        self.make_next(nth);
        if self.bios[nth].left > 0 {
            return;
        }
        let PendingBio { done, ticket, opener, heard, losses, status, .. } = self.bios.remove(nth);
        if piece.op == Op::Flush && status != Status::Ok {
            self.unflushed.tell(opener, heard);
        }
        let in_doubt = losses < self.unflushed.count() && !self.planted.is(Fault::NeverInDoubt);
        if in_doubt && status == Status::Ok {
            self.unflushed.doubt(opener); // NB-L4
        }
        drop(piece); // NB-C3: releases its buffers
        stats.end(ticket, status);
        done.complete(status);
    }

    /// Handles the loss of a connection: requests in flight are queued again, except those that
    /// made no progress for `limit`: these fail.
    pub(crate) fn lost(&mut self, link: LinkId, now: Nanos, limit: Nanos, stats: &Stats) {
        let in_flight: Vec<Key> =
            self.pieces.iter().filter(|(_, p)| p.serial.is_some()).map(|(key, _)| key).collect();
        let mut overdue = Vec::new();
        for &key in in_flight.iter().rev() {
            let piece = &mut self.pieces[key];
            piece.serial = None;
            if piece.asked + limit <= now {
                overdue.push(key);
            }
            piece.since.get_or_insert(now);
            piece.fill.clear();
            piece.chunks = 0;
            piece.failed = None;
            if piece.changes() {
                let (start, end) = (piece.offset, piece.end());
                self.guards.add(link, key, start, end);
            }
            self.queue.push_front(key);
        }
        // Bios submitted without a connection wait since then, the others from now on.
        for &key in &self.queue {
            let piece = &mut self.pieces[key];
            piece.since.get_or_insert(now);
            // The data that the flush should have covered may be lost: repeat the whole request.
            if !self.planted.is(Fault::ForgetFuaWrite) {
                piece.stage = Stage::Itself;
            }
        }
        self.unflushed.connection_lost();
        self.fail(&overdue, stats);
        if self.planted.is(Fault::ForgetInFlight) {
            for key in in_flight {
                if self.pieces.get(key).is_some_and(|p| p.op.is_write()) {
                    self.queue.retain(|k| *k != key);
                    self.end_piece(key, Status::Ok, stats);
                }
            }
        }
    }

    /// Handles a new connection.
    pub(crate) fn connected(&mut self) {
        // The waiting time of requests that were never sent starts again.
        for &key in &self.queue {
            if self.pieces[key].send == 0 {
                self.pieces[key].since = None;
            }
        }
    }

    /// Whether a server may still hold writes of a lost connection.
    pub(crate) fn has_guards(&self) -> bool {
        !self.guards.is_empty()
    }

    /// Releases the guards of `link`: its writes can no longer be performed.
    pub(crate) fn release(&mut self, link: LinkId) {
        self.guards.release(link);
        while let Some(key) = self.held.pop_back() {
            self.queue.push_front(key);
        }
    }

    /// Fails the requests that have waited for `timeout`.
    pub(crate) fn expire(&mut self, now: Nanos, timeout: Nanos, connected: bool, stats: &Stats) {
        let late = |work: &Work, key: &Key| {
            work.pieces[*key].since.is_some_and(|since| since + timeout <= now)
        };
        let mut over: Vec<Key> = self.held.iter().copied().filter(|k| late(self, k)).collect();
        if !connected {
            over.extend(self.queue.iter().copied().filter(|k| late(self, k)));
        }
        self.fail(&over, stats);
    }

    /// Fails all requests that are not in flight.
    pub(crate) fn fail_waiting(&mut self, stats: &Stats) {
        let all: Vec<Key> = self.queue.iter().chain(&self.held).copied().collect();
        self.fail(&all, stats);
    }

    /// Fails all changes that are not in flight: the server takes none.
    pub(crate) fn refuse_changes(&mut self, stats: &Stats) {
        let waiting = self.queue.iter().chain(&self.held).copied();
        let changes: Vec<Key> = waiting.filter(|key| self.pieces[*key].op.is_write()).collect();
        self.end_all(&changes, Status::ReadOnly, stats);
    }

    fn fail(&mut self, keys: &[Key], stats: &Stats) {
        self.end_all(keys, Status::Io, stats);
    }

    fn end_all(&mut self, keys: &[Key], status: Status, stats: &Stats) {
        if keys.is_empty() {
            return;
        }
        let keys: BTreeSet<Key> = keys.iter().copied().collect();
        self.queue.retain(|key| !keys.contains(key));
        self.held.retain(|key| !keys.contains(key));
        for key in keys {
            self.end_piece(key, status, stats);
        }
    }
}

fn request(piece: &Piece, cookie: u64, known: ExportFlags, planted: Planted<Fault>) -> Request {
    let mut flags = CommandFlags::empty();
    let fua = piece.flags.contains(Flags::FUA) && known.contains(ExportFlags::FUA);
    if fua && piece.op.is_write() && !planted.is(Fault::IgnoreFua) {
        flags |= CommandFlags::FUA;
    }
    if piece.is_flush() {
        return Request { flags: 0, kind: cmd::FLUSH, cookie, offset: 0, len: 0 };
    }
    let kind = match piece.op {
        Op::Read => cmd::READ,
        Op::Write => cmd::WRITE,
        Op::Discard => cmd::TRIM,
        Op::WriteZeroes => {
            if piece.flags.contains(Flags::NOUNMAP) {
                flags |= CommandFlags::NO_HOLE;
            }
            cmd::WRITE_ZEROES
        }
        Op::Flush => unreachable!("returned above"),
    };
    Request { flags: flags.bits(), kind, cookie, offset: piece.offset, len: piece.len }
}
