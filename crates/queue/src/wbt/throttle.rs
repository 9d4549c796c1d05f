// SPDX-License-Identifier: Apache-2.0 OR MIT
//! The way of one leaf's bios to the driver and back: which are tracked, which need tokens, and
//! what is done when they end. Bios that have to wait, or be cut, go through `wait_queue`.
use std::cell::{Cell, RefCell};
use std::ops::Range;
use std::rc::{Rc, Weak};
use std::sync::Arc;
use std::sync::atomic::Ordering::Relaxed;

use block::{Bio, Bufs, Class, Completion, Flags, Nanos, Op, Planted, Sector, Status};
use policy::wbt::{Quota, ThrottleClass, ThrottleLimits};
use reactor::{
    FileId, OnDone, SqeOp, chain, driver_io, loop_time, now, push_bio, sleep, spawn, watched,
};
use slab::Slab;

use super::class_queues::{RequestOwner, Work};
use super::counters::Counters;
use super::shared::Shared;
use super::wait_queue::WaitQueue;
use crate::flush_errors::{Entry, FlushErrors};
use crate::planted::Fault;
use crate::stats::Stats;

/// How the throttle treats a bio.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
enum BioKind {
    /// A read whose time counts.
    Read,
    /// A read of an engine's writeback: in tail mode it needs a token.
    BackgroundRead,
    /// A read-ahead: no reader waits for it yet, but one may before it has ended.
    QuietRead,
    /// It needs a token.
    Tracked(ThrottleClass),
    /// Neither a read nor tracked: it never waits.
    Untracked,
}

fn kind_of(op: Op, flags: Flags, class: Class) -> BioKind {
    let background = class >= Class::Background || flags.contains(Flags::BACKGROUND);
    let urgent = flags.intersects(Flags::SYNC | Flags::META | Flags::FUA);
    match op {
        Op::Read if class == Class::Idle => BioKind::QuietRead,
        Op::Read if background => BioKind::BackgroundRead,
        Op::Read => BioKind::Read,
        Op::Discard => BioKind::Tracked(ThrottleClass::Discard),
        Op::Flush | Op::WriteZeroes => BioKind::Untracked,
        // Direct I/O: its sender waits for it and sends no more than it likes.
        Op::Write if flags.contains(Flags::SYNC | Flags::IDLE) => BioKind::Untracked,
        Op::Write if urgent => BioKind::Tracked(ThrottleClass::Sync),
        Op::Write if background => BioKind::Tracked(ThrottleClass::Background),
        Op::Write if class == Class::Foreground => BioKind::Tracked(ThrottleClass::Sync),
        Op::Write => BioKind::Tracked(ThrottleClass::Normal),
    }
}

/// Whether a bio starts at once.
enum Admission {
    /// It does; this is done when it has ended.
    Now(EndAction),
    /// It waits: its class, and when it came.
    Waits(ThrottleClass, u64),
}

/// What is done when a request has ended.
#[derive(Clone, Copy, Debug)]
pub(super) enum EndAction {
    /// Nothing.
    Plain,
    /// It was a read that counts.
    Read {
        issued_ns: u64,
        /// From [`Shared::begin_read`].
        quiet: Option<u64>,
    },
    /// It was neither tracked nor a read.
    Untracked,
    /// It holds a token.
    Token { who: ThrottleClass, bytes: u64, forced: bool },
}

/// A request that is with the driver.
struct Sent {
    owner: SentOwner,
    note: EndAction,
}

enum SentOwner {
    Bio(Entry),
    /// A piece of a bio in the wait queue.
    Split(usize),
}

/// See the module.
pub(crate) struct Throttle {
    file: FileId,
    me: Weak<Throttle>,
    pub(crate) stats: Stats,
    pub(crate) flush_errors: Rc<FlushErrors>,
    pub(super) shared: Arc<Shared>,
    counters: Arc<Counters>,
    pub(super) block_bytes: u32,
    /// A copy of the limits, and the number of the change that it has.
    limits: Cell<(u64, ThrottleLimits)>,
    sent: RefCell<Slab<Sent>>,
    /// Exists while a bio waits or is sent in pieces.
    pub(super) line: RefCell<Weak<WaitQueue>>,
    /// The read that is being watched, by its slot of `sent`.
    watched: Cell<Option<usize>>,
    pub(super) planted: Cell<Planted<Fault>>,
}

impl Throttle {
    pub(crate) fn new(
        stats: Stats,
        flush_errors: Rc<FlushErrors>,
        file: FileId,
        block_bytes: u32,
        shared: Arc<Shared>,
    ) -> Rc<Throttle> {
        let counters = Arc::new(Counters::new());
        shared.add(&counters);
        let limits = (shared.changes(), shared.limits());
        Rc::new_cyclic(|me| Throttle {
            file,
            me: me.clone(),
            stats,
            flush_errors,
            shared,
            counters,
            block_bytes,
            limits: Cell::new(limits),
            sent: RefCell::default(),
            line: RefCell::default(),
            watched: Cell::new(None),
            planted: Cell::default(),
        })
    }

    pub(crate) fn file(&self) -> FileId {
        self.file
    }

    pub(super) fn line(&self) -> Option<Rc<WaitQueue>> {
        self.line.borrow().upgrade()
    }

    /// Whether a change of any of these sectors has entered and not ended.
    pub(crate) fn is_changing(&self, sectors: &Range<Sector>) -> bool {
        let sent = self.sent.borrow();
        let mut whole = sent.iter().filter_map(|(_, sent)| match &sent.owner {
            SentOwner::Bio(entry) => Some(&entry.ticket),
            SentOwner::Split(_) => None, // the line has it
        });
        whole.any(|ticket| ticket.changes(sectors))
            || self.line().is_some_and(|line| line.is_changing(sectors))
    }

    /// The limits in force.
    pub(super) fn limits(&self) -> ThrottleLimits {
        let (changes, limits) = self.limits.get();
        if changes == self.shared.changes() { limits } else { self.copy_limits() }
    }

    #[cold]
    fn copy_limits(&self) -> ThrottleLimits {
        if !self.planted.get().is(Fault::StaleLimits) {
            // The number first: a change after it has another one.
            self.limits.set((self.shared.changes(), self.shared.limits()));
        }
        self.limits.get().1
    }

    pub(super) fn quota(&self, who: ThrottleClass, now_ns: u64) -> Quota {
        self.limits().quota(who, &self.shared.inputs(now_ns))
    }

    /// Takes a bio whose sectors lie at `sector`, and which the device knows.
    pub(crate) fn submit(self: &Rc<Self>, sector: Sector, bio: Bio) {
        let ticket = self.stats.begin(bio.op, sector, bio.len);
        let entry = self.flush_errors.begin(ticket, &bio);
        let note = if self.shared.tokens.is_on() {
            match self.admit(&bio) {
                Admission::Now(note) => note,
                Admission::Waits(who, now_ns) => {
                    return self.enqueue(entry, sector, bio, who, now_ns);
                }
            }
        } else {
            EndAction::Plain
        };
        let Bio { op, flags, class: _, opener: _, sector: _, len, bufs, done } = bio;
        self.send_bio(op, sqe_of(op, flags, sector, len, bufs), entry, done, note);
    }

    fn admit(self: &Rc<Self>, bio: &Bio) -> Admission {
        Admission::Now(match kind_of(bio.op, bio.flags, bio.class) {
            BioKind::Read => self.note_read(),
            BioKind::BackgroundRead if self.tracks_reads() => {
                return self.admit_tracked(bio, ThrottleClass::Background);
            }
            BioKind::BackgroundRead | BioKind::QuietRead => EndAction::Plain,
            BioKind::Tracked(who) => return self.admit_tracked(bio, who),
            BioKind::Untracked => {
                self.shared.begin_untracked();
                EndAction::Untracked
            }
        })
    }

    fn tracks_reads(&self) -> bool {
        self.limits().tracks_reads() && !self.planted.get().is(Fault::ReadsPass)
    }

    fn note_read(&self) -> EndAction {
        let issued_ns = now().0.max(1);
        self.shared.note_read(issued_ns);
        if self.watched.get().is_none() {
            self.watched.set(Some(self.sent.borrow().vacant_key()));
            self.counters.watch(issued_ns);
        }
        EndAction::Read { issued_ns, quiet: self.shared.begin_read() }
    }

    /// Whether a bio may start at once, whole.
    fn admit_tracked(&self, bio: &Bio, who: ThrottleClass) -> Admission {
        // The first in flight begins a time that is measured; the others take the time of the loop.
        let is_first = self.shared.tokens.load(0).ios == 0;
        let now_ns = if is_first { now().0 } else { loop_time().0 };
        let bytes = bio.len.bytes();
        // Before the limits are asked: reads that came before may change them.
        self.arm(now_ns);
        let goes = self.line.borrow().strong_count() == 0 && {
            let quota = self.quota(who, now_ns);
            let whole = !is_splittable(bio.op) || bytes <= u64::from(quota.piece_bytes);
            whole && self.shared.take(who, bytes, quota, now_ns)
        };
        if goes {
            Admission::Now(EndAction::Token { who, bytes, forced: false })
        } else {
            Admission::Waits(who, now_ns)
        }
    }

    #[cold]
    fn enqueue(
        self: &Rc<Self>,
        entry: Entry,
        sector: Sector,
        bio: Bio,
        who: ThrottleClass,
        now_ns: u64,
    ) {
        let Bio { op, flags, class: _, opener: _, sector: _, len, bufs, done } = bio;
        let work = Work { op, flags, sector, len, bufs, owner: RequestOwner::Bio(entry, done) };
        self.line().unwrap_or_else(|| WaitQueue::open(self)).enter(work, who, now_ns);
    }

    /// Sends all that the work is.
    pub(super) fn send(self: &Rc<Self>, work: Work, note: EndAction) {
        let Work { op, flags, sector, len, bufs, owner } = work;
        let what = sqe_of(op, flags, sector, len, bufs);
        match owner {
            RequestOwner::Bio(entry, done) => self.send_bio(op, what, entry, done, note),
            RequestOwner::Split(nth) => self.send_piece(nth, what, note),
        }
    }

    fn send_bio(
        self: &Rc<Self>,
        op: Op,
        what: SqeOp,
        entry: Entry,
        done: Completion,
        note: EndAction,
    ) {
        let tag = self.sent.borrow_mut().insert(Sent { owner: SentOwner::Bio(entry), note }) as u64;
        let done = chain(done, self.clone(), tag);
        if entry.is_sync() {
            self.send_sync(op, what, &entry, done);
        } else {
            push_bio(done, self.file, what);
        }
    }

    /// Sends a FLUSH or a FUA write.
    #[cold]
    fn send_sync(&self, op: Op, what: SqeOp, entry: &Entry, done: Completion) {
        self.flush_errors.sync_sent(entry);
        if matches!(op, Op::Discard | Op::WriteZeroes) {
            // QU-Q3: rare enough for a task.
            let file = self.file;
            spawn(async move {
                let mut result = driver_io(file, what).await;
                if result.status == Status::Ok {
                    result = driver_io(file, SqeOp::Flush).await;
                }
                done.complete(result.status);
            });
        } else {
            push_bio(done, self.file, what);
        }
    }

    /// Sends a piece of a bio in the wait queue.
    fn send_piece(self: &Rc<Self>, nth: usize, what: SqeOp, note: EndAction) {
        let tag = self.sent.borrow_mut().insert(Sent { owner: SentOwner::Split(nth), note }) as u64;
        push_bio(watched(self.clone(), tag), self.file, what);
    }

    /// Starts every bio that may start: another core or a window asks for it.
    pub(super) fn look(&self) {
        if let Some(line) = self.line() {
            line.look(now().0);
        }
    }

    /// The latency target or the mode has changed, or the throttle is off.
    pub(super) fn settings_changed(&self) {
        if self.planted.get().is(Fault::NoWakeOnChange) {
            return;
        }
        self.look();
        self.wake_others();
    }

    fn wake_others(&self) {
        if self.planted.get().is(Fault::WakeNoPeer) {
            return;
        }
        let mine = self.line().and_then(|line| line.waker());
        self.shared.wake_others(mine.as_ref());
    }

    /// Has windows closed while there is something to measure.
    pub(super) fn arm(&self, now_ns: u64) {
        if !self.shared.is_armed() {
            self.arm_now(now_ns);
        }
    }

    #[cold]
    fn arm_now(&self, now_ns: u64) {
        if self.shared.arms(now_ns) && !self.shared.starts_elsewhere() {
            self.start_windows();
        }
    }

    fn start_windows(&self) {
        let (leaf, shared) = (self.me.clone(), self.shared.clone());
        spawn(async move {
            loop {
                sleep(Nanos(shared.window_ns())).await;
                let Some(leaf) = leaf.upgrade() else {
                    // Waiters at other leaves on the file go on without it.
                    shared.disarm();
                    return shared.wake_others(None);
                };
                let closed = shared.close_window(now().0);
                if closed.wakes {
                    leaf.look();
                    leaf.wake_others();
                }
                if !closed.goes_on {
                    return;
                }
            }
        });
    }

    /// A token comes back.
    fn write_ended(&self, who: ThrottleClass, bytes: u64, forced: bool) {
        let now_ns = loop_time().0;
        self.counters.write(if who == ThrottleClass::Discard { 0 } else { bytes });
        if forced {
            self.shared.forced.store(false, Relaxed);
        }
        let waiting = self.shared.give(who, bytes, now_ns);
        if waiting == 0 || self.planted.get().is(Fault::LoseWakeUp) {
            return;
        }
        let left = self.shared.in_flight()[who.count()];
        if self.limits().wakes(who, left, &self.shared.inputs(now_ns)) {
            let mut others = waiting;
            if let Some(line) = self.line() {
                others -= u32::from(line.waker().is_some());
                line.look(now_ns);
            }
            if others > 0 {
                self.wake_others();
            }
        }
    }

    /// A bio ends with `status`; returns the status that is reported.
    #[inline(always)]
    fn end(&self, entry: &Entry, status: Status) -> Status {
        let status = self.flush_errors.end(entry, status);
        self.stats.end(entry.ticket, status);
        status
    }

    /// The driver has ended a bio with `status`: completes it, a FLUSH or FUA write when it may be
    /// reported (QU-FE5).
    pub(super) fn finish(&self, entry: Entry, status: Status, done: Completion) {
        if entry.is_sync() {
            return self.finish_sync(entry, status, done);
        }
        done.complete(self.end(&entry, status));
    }

    #[cold]
    fn finish_sync(&self, entry: Entry, status: Status, done: Completion) {
        let hold = self.flush_errors.sync_ended(&entry, status);
        let Some(hold) = hold else { return done.complete(self.end(&entry, status)) };
        let leaf = self.me.upgrade().expect("it is being called");
        spawn(async move {
            leaf.flush_errors.passed(hold).await;
            done.complete(leaf.end(&entry, status));
        });
    }

    fn read_ended(&self, tag: u64, issued_ns: u64, quiet: Option<u64>) {
        let now_ns = loop_time().0;
        self.shared.note_read(now_ns);
        if self.watched.get().is_some_and(|watched| watched as u64 == tag) {
            self.watched.set(None);
            self.counters.watch(0);
        }
        let is_clean = self.shared.end_read(quiet);
        self.counters.read(now_ns.saturating_sub(issued_ns), is_clean);
    }

    /// The request in slot `tag` has ended.
    #[inline(always)]
    fn take_sent(&self, tag: u64) -> Sent {
        let tag = usize::try_from(tag).expect("made from a slab index");
        self.sent.borrow_mut().remove(tag)
    }

    /// Does what is to be done when a request has ended.
    #[inline(always)]
    fn settle(&self, note: EndAction, tag: u64) {
        match note {
            EndAction::Plain => {}
            EndAction::Read { issued_ns, quiet } => self.read_ended(tag, issued_ns, quiet),
            EndAction::Untracked => self.shared.end_untracked(),
            EndAction::Token { who, bytes, forced } => self.write_ended(who, bytes, forced),
        }
    }
}

impl OnDone for Throttle {
    /// Of pieces.
    fn on_done(&self, status: Status, tag: u64) {
        let Sent { owner, note } = self.take_sent(tag);
        let SentOwner::Split(nth) = owner else { unreachable!("a whole bio has a completion") };
        let line = self.line().expect("it lives until its splits end");
        line.piece_ended(nth, status);
        let leaks = self.planted.get().is(Fault::LeakToken);
        if !(leaks && matches!(note, EndAction::Token { .. })) {
            self.settle(note, tag);
        }
        line.close_if_idle();
    }

    /// Of whole bios.
    fn on_chained_done(&self, status: Status, tag: u64, parent: Completion) {
        let Sent { owner, note } = self.take_sent(tag);
        let SentOwner::Bio(entry) = owner else { unreachable!("a piece has no completion") };
        if entry.is_sync() {
            self.settle(note, tag);
            return self.finish_sync(entry, status, parent);
        }
        let status = self.end(&entry, status);
        self.settle(note, tag);
        parent.complete(status);
    }
}

/// Whether a long one may be cut.
pub(super) fn is_splittable(op: Op) -> bool {
    matches!(op, Op::Read | Op::Write)
}

fn sqe_of(op: Op, flags: Flags, sector: Sector, len: Sector, bufs: Bufs) -> SqeOp {
    let (offset, len) = (sector.bytes(), len.bytes());
    match op {
        Op::Read => SqeOp::Read { offset, bufs },
        Op::Write => SqeOp::Write { offset, bufs, fua: flags.contains(Flags::FUA) },
        Op::Flush => SqeOp::Flush,
        Op::Discard => SqeOp::Discard { offset, len },
        Op::WriteZeroes => {
            SqeOp::WriteZeroes { offset, len, unmap: !flags.contains(Flags::NOUNMAP) }
        }
    }
}
