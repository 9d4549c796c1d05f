// SPDX-License-Identifier: Apache-2.0 OR MIT
//! The wait queue of one leaf: bios that wait for tokens, and bios that are sent in pieces.
//!
//! It exists only while there are such bios. The core keeps it (`CoreLocal`): a power cut drops it
//! with the core, also when the leaf is still held. A bio in it is a record: no task, no waker.
//! What makes it start (the end of a request, a window, a message of another core, a new setting)
//! sends it to the driver at once.
//!
//! Invariants
//! - QU-L1 While a bio waits, the queue has a `PeerWaker`, by which other cores make it look; it
//!   has looked once after the waker was published.
//! - QU-L2 A bio in pieces ends once: when all of it has been sent (or, after a piece has failed,
//!   given up) and the last piece has ended. It fails with the worst status of its pieces.
//! - QU-L3 Nothing is borrowed while a bio is completed or sent.
use std::cell::{Cell, RefCell};
use std::ops::Range;
use std::rc::Rc;
use std::sync::Arc;
use std::sync::atomic::Ordering::Relaxed;

use block::{Completion, Sector, Status};
use policy::wbt::{Mode, ThrottleClass};
use reactor::CoreLocal;
use slab::Slab;

use super::class_queues::{ClassQueues, Refusals, RequestOwner, Waiter, Work};
use super::shared::PeerWaker;
use super::throttle::{EndAction, Throttle, is_splittable};
use crate::flush_errors::Entry;
use crate::planted::Fault;

/// Pieces are multiples of this, or of the logical block where that is larger.
const PIECE_UNIT_BYTES: u32 = 4096;

/// A bio that goes in pieces.
struct Split {
    entry: Entry,
    done: Completion,
    /// Of the first piece that failed.
    status: Status,
    in_flight: u32,
    /// Some of it has not been sent.
    has_rest: bool,
}

/// See the module.
pub(crate) struct WaitQueue {
    throttle: Rc<Throttle>,
    waiting: RefCell<ClassQueues>,
    splits: RefCell<Slab<Split>>,
    held_by: Cell<Option<CoreLocal>>,
    waker: RefCell<Option<Arc<PeerWaker>>>,
}

impl WaitQueue {
    pub(super) fn open(throttle: &Rc<Throttle>) -> Rc<WaitQueue> {
        let line = Rc::new(WaitQueue {
            throttle: throttle.clone(),
            waiting: RefCell::default(),
            splits: RefCell::default(),
            held_by: Cell::new(None),
            waker: RefCell::default(),
        });
        line.held_by.set(Some(CoreLocal::keep(line.clone())));
        throttle.line.replace(Rc::downgrade(&line));
        line
    }

    /// Ends the queue if it is empty.
    pub(super) fn close_if_idle(&self) {
        if self.waiting.borrow().is_empty()
            && self.splits.borrow().is_empty()
            && let Some(local) = self.held_by.take()
        {
            self.throttle.line.take();
            // The caller holds the queue, too.
            local.release();
        }
    }

    pub(super) fn waker(&self) -> Option<Arc<PeerWaker>> {
        self.waker.borrow().clone()
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
        self.throttle.limits().mode()
    }

    /// Starts a request that needs a token, or queues it.
    pub(super) fn enter(self: &Rc<Self>, work: Work, who: ThrottleClass, now_ns: u64) {
        let behind = self.waiting.borrow().is_behind(self.mode(), who);
        let rest = if behind { Some(work) } else { self.advance(work, who, now_ns) };
        if let Some(work) = rest {
            self.throttle.shared.waits.count.fetch_add(1, Relaxed);
            self.waiting.borrow_mut().push(who, work, now_ns);
            if self.waker.borrow().is_none() {
                let name = self.held_by.get().expect("the queue is open: it has an entry");
                let waker = Arc::new(PeerWaker::new(name));
                self.waker.replace(Some(waker.clone()));
                self.throttle.shared.open(waker);
                // QU-L1: a request that has ended since the refusal has woken nobody.
                return self.look(now_ns);
            }
        }
        self.close_if_idle();
    }

    /// Starts every bio that may start now.
    pub(super) fn look(self: &Rc<Self>, now_ns: u64) {
        if let Some(waker) = self.waker() {
            waker.flag.clear();
        }
        let mode = self.mode();
        let mut refused = Refusals::default();
        loop {
            let next = self.waiting.borrow().next(mode, now_ns, refused);
            let Some((who, overdue)) = next else { break };
            let overdue = overdue || self.is_passed_by(mode, who, now_ns);
            let taken = self.waiting.borrow_mut().take(who);
            let Waiter { work, since_ns, seq } = taken.expect("`next` found it");
            let rest = self.advance(work, who, now_ns);
            let rest = rest.and_then(|work| self.force(work, who, overdue, now_ns));
            if let Some(work) = rest {
                self.waiting.borrow_mut().put_back(who, Waiter { work, since_ns, seq });
                refused.add(who, overdue);
            } else {
                self.count_wait(now_ns.saturating_sub(since_ns));
            }
        }
        if !self.waiting.borrow().is_empty() {
            // QU-W2: a window goes on.
            return self.throttle.arm(now_ns);
        }
        if let Some(waker) = self.waker.take() {
            self.throttle.shared.close(&waker);
        }
        self.close_if_idle();
    }

    /// Whether leaves of other cores have kept the first bio of `who` waiting too long. Within one
    /// leaf that can't be: bios of a count start in order, or tail mode gives each class a share.
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
            if let RequestOwner::Split(nth) = work.owner
                && self.splits.borrow()[nth].status != Status::Ok
            {
                // QU-L2: the rest is given up.
                self.splits.borrow_mut()[nth].has_rest = false;
                self.finish(nth);
                return None;
            }
            if !shared.tokens.is_on() {
                self.send(work, EndAction::Plain);
                return None;
            }
            let quota = self.throttle.quota(who, now_ns);
            let bytes = self.piece_of(&work, quota.piece_bytes);
            if !shared.take(who, bytes, quota, now_ns) {
                return Some(work);
            }
            self.waiting.borrow_mut().dispatched(who, now_ns);
            work = self.send_some(work, bytes, EndAction::Token { who, bytes, forced: false })?;
        }
    }

    /// Sends a piece of a bio that has waited too long, past the limit.
    fn force(&self, work: Work, who: ThrottleClass, overdue: bool, now_ns: u64) -> Option<Work> {
        if !overdue {
            return Some(work);
        }
        let shared = &self.throttle.shared;
        let bytes = self.piece_of(&work, self.throttle.quota(who, now_ns).piece_bytes);
        if !shared.force(who, bytes, now_ns) {
            return Some(work);
        }
        self.waiting.borrow_mut().dispatched(who, now_ns);
        self.send_some(work, bytes, EndAction::Token { who, bytes, forced: true })
    }

    /// How much of the work is to go at once, bytes.
    fn piece_of(&self, work: &Work, piece_bytes: u32) -> u64 {
        let left = work.len.bytes();
        if !is_splittable(work.op) || left <= u64::from(piece_bytes) {
            return left;
        }
        let unit = u64::from(self.throttle.block_bytes.max(PIECE_UNIT_BYTES));
        (u64::from(piece_bytes) / unit * unit).max(unit).min(left)
    }

    /// Sends the first `bytes` of the work; returns the rest.
    fn send_some(&self, work: Work, bytes: u64, note: EndAction) -> Option<Work> {
        if bytes == work.len.bytes() {
            self.send(work, note);
            return None;
        }
        let Work { op, flags, sector, len, bufs, owner } = work;
        let owner = match owner {
            RequestOwner::Split(nth) => RequestOwner::Split(nth),
            RequestOwner::Bio(entry, done) => self.split(entry, done),
        };
        let cut = usize::try_from(bytes).expect("the buffers lie in memory");
        let gone = Sector::from_bytes(bytes);
        let first = bufs.slice(0..cut);
        let rest = bufs.slice(cut..bufs.len_bytes());
        let RequestOwner::Split(nth) = owner else { unreachable!("split above") };
        self.splits.borrow_mut()[nth].in_flight += 1;
        let piece =
            Work { op, flags, sector, len: gone, bufs: first, owner: RequestOwner::Split(nth) };
        self.throttle.send(piece, note);
        Some(Work { op, flags, sector: sector + gone, len: len - gone, bufs: rest, owner })
    }

    /// Sends all that is left of the work.
    fn send(&self, work: Work, note: EndAction) {
        if let RequestOwner::Split(nth) = work.owner {
            let mut splits = self.splits.borrow_mut();
            splits[nth].has_rest = false;
            splits[nth].in_flight += 1;
        }
        self.throttle.send(work, note);
    }

    fn split(&self, entry: Entry, done: Completion) -> RequestOwner {
        self.throttle.shared.waits.splits.fetch_add(1, Relaxed);
        if entry.is_sync() {
            self.throttle.flush_errors.sync_sent(&entry);
        }
        let split = Split { entry, done, status: Status::Ok, in_flight: 0, has_rest: true };
        RequestOwner::Split(self.splits.borrow_mut().insert(split))
    }

    pub(super) fn piece_ended(&self, nth: usize, status: Status) {
        let forgets = self.throttle.planted.get().is(Fault::ForgetError);
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
