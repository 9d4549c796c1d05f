// SPDX-License-Identifier: Apache-2.0 OR MIT
//! The line of one leaf: bios that wait for tokens, and bios that go in pieces.
//!
//! It exists while there are any. The core keeps it (`CoreLocal`): it goes with the core (a power
//! cut), also when the leaf is still held. A bio in it is a record: no task, no waker. Whatever
//! lets it go (a request that has ended, a window, word of another core, a new target) sends it to
//! the driver at once.
//!
//! Invariants
//! - L1 While somebody waits the line has a door, through which other cores tell it to look, and it
//!   has looked after the door was opened.
//! - L2 A bio in pieces ends once: when all of it has been sent, or given up after a piece has
//!   failed, and the last piece has ended. It fails with the worst status of its pieces.
//! - L3 Nothing is borrowed while a bio is completed or sent.
use std::cell::{Cell, RefCell};
use std::ops::Range;
use std::rc::Rc;
use std::sync::Arc;
use std::sync::atomic::Ordering::Relaxed;

use block::{Completion, Sector, Status};
use policy::wbt::{Mode, ThrottleClass};
use reactor::CoreLocal;
use slab::Slab;

use super::shared::Door;
use super::throttle::{Mutation, Note, Throttle, goes_in_pieces};
use super::waiting::{Tried, Waiter, Waiting, Whose, Work};
use crate::flush_errors::Entry;

/// Pieces are multiples of this, or of the logical block where that is larger.
const PIECE_UNIT_BYTES: u32 = 4096;

/// A bio that goes in pieces.
struct Split {
    entry: Entry,
    done: Completion,
    /// Of the first piece that failed.
    status: Status,
    in_flight: u32,
    /// Not all has been sent.
    has_rest: bool,
}

/// See the module.
pub(crate) struct Line {
    throttle: Rc<Throttle>,
    waiting: RefCell<Waiting>,
    splits: RefCell<Slab<Split>>,
    held_by: Cell<Option<CoreLocal>>,
    door: RefCell<Option<Arc<Door>>>,
}

impl Line {
    pub(super) fn open(throttle: &Rc<Throttle>) -> Rc<Line> {
        let line = Rc::new(Line {
            throttle: throttle.clone(),
            waiting: RefCell::default(),
            splits: RefCell::default(),
            held_by: Cell::new(None),
            door: RefCell::default(),
        });
        line.held_by.set(Some(CoreLocal::keep(line.clone())));
        throttle.line.replace(Rc::downgrade(&line));
        line
    }

    /// Ends the line if nobody is in it.
    pub(super) fn close_if_idle(&self) {
        if self.waiting.borrow().is_empty()
            && self.splits.borrow().is_empty()
            && let Some(local) = self.held_by.take()
        {
            self.throttle.line.take();
            // Whoever called holds the line, too.
            local.release();
        }
    }

    pub(super) fn door(&self) -> Option<Arc<Door>> {
        self.door.borrow().clone()
    }

    /// How many bios of `who` wait.
    pub(super) fn waiting(&self, who: ThrottleClass) -> usize {
        self.waiting.borrow().count(who)
    }

    /// Whether a change of any of these sectors waits here, or goes in pieces.
    pub(super) fn is_changing(&self, sectors: &Range<Sector>) -> bool {
        self.splits.borrow().iter().any(|(_, split)| split.entry.ticket.changes(sectors))
            || self.waiting.borrow().tickets().any(|ticket| ticket.changes(sectors))
    }

    fn mode(&self) -> Mode {
        self.throttle.in_force().mode()
    }

    /// Takes what needs a token: it goes, or waits.
    pub(super) fn enter(self: &Rc<Self>, work: Work, who: ThrottleClass, now_ns: u64) {
        let behind = self.waiting.borrow().is_behind(self.mode(), who);
        let rest = if behind { Some(work) } else { self.advance(work, who, now_ns) };
        if let Some(work) = rest {
            self.throttle.shared.waits.count.fetch_add(1, Relaxed);
            self.waiting.borrow_mut().push(who, work, now_ns);
            if self.door.borrow().is_none() {
                let name = self.held_by.get().expect("open: somebody is in it");
                let door = Arc::new(Door::new(name));
                self.door.replace(Some(door.clone()));
                self.throttle.shared.open(door);
                // L1: what has ended since the refusal has told nobody.
                return self.look(now_ns);
            }
        }
        self.close_if_idle();
    }

    /// Lets go whoever may.
    pub(super) fn look(self: &Rc<Self>, now_ns: u64) {
        if let Some(door) = self.door() {
            door.bell.answer();
        }
        let mode = self.mode();
        let mut tried = Tried::default();
        loop {
            let next = self.waiting.borrow().next(mode, now_ns, tried);
            let Some((who, overdue)) = next else { break };
            let overdue = overdue || self.is_passed_by(mode, who, now_ns);
            let taken = self.waiting.borrow_mut().take(who);
            let Waiter { work, since_ns, seq } = taken.expect("it was somebody's turn");
            let rest = self.advance(work, who, now_ns);
            let rest = rest.and_then(|work| self.force(work, who, overdue, now_ns));
            if let Some(work) = rest {
                self.waiting.borrow_mut().put_back(who, Waiter { work, since_ns, seq });
                tried.in_vain(who, overdue);
            } else {
                self.count_wait(now_ns.saturating_sub(since_ns));
            }
        }
        if !self.waiting.borrow().is_empty() {
            // W2: a window goes on.
            return self.throttle.arm(now_ns);
        }
        if let Some(door) = self.door.take() {
            self.throttle.shared.close(&door);
        }
        self.close_if_idle();
    }

    /// Whether leaves of other cores keep whoever is first of `who` here waiting for too long: in
    /// one leaf bios of a count go in order, or our law sees to it.
    fn is_passed_by(&self, mode: Mode, who: ThrottleClass, now_ns: u64) -> bool {
        let by_others = mode == Mode::Kernel || who == ThrottleClass::Discard;
        by_others
            && self.throttle.shared.tokens.waiting() > 1
            && self.waiting.borrow().is_late(who, now_ns)
    }

    fn count_wait(&self, ns: u64) {
        let waits = &self.throttle.shared.waits;
        waits.total_ns.fetch_add(ns, Relaxed);
        waits.max_ns.fetch_max(ns, Relaxed);
    }

    /// Sends as much as may go; returns what is left.
    fn advance(&self, mut work: Work, who: ThrottleClass, now_ns: u64) -> Option<Work> {
        let shared = &self.throttle.shared;
        loop {
            if let Whose::Split(nth) = work.whose
                && self.splits.borrow()[nth].status != Status::Ok
            {
                // L2: what is left of it is given up.
                self.splits.borrow_mut()[nth].has_rest = false;
                self.finish(nth);
                return None;
            }
            if !shared.tokens.is_on() {
                self.send(work, Note::Plain);
                return None;
            }
            let quota = self.throttle.quota(who, now_ns);
            let bytes = self.piece_of(&work, quota.piece_bytes);
            if !shared.take(who, bytes, quota, now_ns) {
                return Some(work);
            }
            self.waiting.borrow_mut().went(who, now_ns);
            work = self.send_some(work, bytes, Note::Token { who, bytes, forced: false })?;
        }
    }

    /// One that has waited too long goes past the limit, a piece of it now.
    fn force(&self, work: Work, who: ThrottleClass, overdue: bool, now_ns: u64) -> Option<Work> {
        if !overdue {
            return Some(work);
        }
        let shared = &self.throttle.shared;
        let bytes = self.piece_of(&work, self.throttle.quota(who, now_ns).piece_bytes);
        if !shared.force(who, bytes, now_ns) {
            return Some(work);
        }
        self.waiting.borrow_mut().went(who, now_ns);
        self.send_some(work, bytes, Note::Token { who, bytes, forced: true })
    }

    /// How much of the work is to go at once, bytes.
    fn piece_of(&self, work: &Work, piece_bytes: u32) -> u64 {
        let left = work.len.bytes();
        if !goes_in_pieces(work.op) || left <= u64::from(piece_bytes) {
            return left;
        }
        let unit = u64::from(self.throttle.block_bytes.max(PIECE_UNIT_BYTES));
        (u64::from(piece_bytes) / unit * unit).max(unit).min(left)
    }

    /// Sends the first `bytes` of the work; returns the rest.
    fn send_some(&self, work: Work, bytes: u64, note: Note) -> Option<Work> {
        if bytes == work.len.bytes() {
            self.send(work, note);
            return None;
        }
        let Work { op, flags, sector, len, bufs, whose } = work;
        let whose = match whose {
            Whose::Split(nth) => Whose::Split(nth),
            Whose::Bio(entry, done) => self.split(entry, done),
        };
        let cut = usize::try_from(bytes).expect("the buffers lie in memory");
        let gone = Sector::from_bytes(bytes);
        let first = bufs.slice(0..cut);
        let rest = bufs.slice(cut..bufs.len_bytes());
        let Whose::Split(nth) = whose else { unreachable!("split above") };
        self.splits.borrow_mut()[nth].in_flight += 1;
        let piece = Work { op, flags, sector, len: gone, bufs: first, whose: Whose::Split(nth) };
        self.throttle.send(piece, note);
        Some(Work { op, flags, sector: sector + gone, len: len - gone, bufs: rest, whose })
    }

    /// Sends all that is left of the work.
    fn send(&self, work: Work, note: Note) {
        if let Whose::Split(nth) = work.whose {
            let mut splits = self.splits.borrow_mut();
            splits[nth].has_rest = false;
            splits[nth].in_flight += 1;
        }
        self.throttle.send(work, note);
    }

    fn split(&self, entry: Entry, done: Completion) -> Whose {
        self.throttle.shared.waits.splits.fetch_add(1, Relaxed);
        if entry.is_sync() {
            self.throttle.flush_errors.sync_sent(&entry);
        }
        let split = Split { entry, done, status: Status::Ok, in_flight: 0, has_rest: true };
        Whose::Split(self.splits.borrow_mut().insert(split))
    }

    pub(super) fn piece_ended(&self, nth: usize, status: Status) {
        let forgets = self.throttle.mutation.get() == Mutation::ForgetError;
        let mut splits = self.splits.borrow_mut();
        let split = &mut splits[nth];
        split.in_flight -= 1;
        if !forgets {
            split.status = split.status.worst(status);
        }
        drop(splits);
        self.finish(nth);
    }

    /// Ends the bio when all of its pieces have.
    fn finish(&self, nth: usize) {
        let mut splits = self.splits.borrow_mut();
        if splits[nth].in_flight > 0 || splits[nth].has_rest {
            return;
        }
        let Split { entry, done, status, .. } = splits.remove(nth);
        drop(splits);
        self.throttle.finish(entry, status, done);
    }
}
