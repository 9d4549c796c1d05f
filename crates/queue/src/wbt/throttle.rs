// SPDX-License-Identifier: Apache-2.0 OR MIT
//! The way of one leaf's bios to the driver and back: which are tracked, which need tokens, and
//! what is noted when they end. Those that have to wait, or to be cut, go through `line`.
use std::cell::{Cell, RefCell};
use std::ops::Range;
use std::rc::{Rc, Weak};
use std::sync::Arc;
use std::sync::atomic::Ordering::Relaxed;

use block::{Bio, Bufs, Class, Completion, Flags, Nanos, Op, Sector, Status};
use policy::wbt::{Quota, ThrottleClass, ThrottleLimits};
use reactor::{
    FileId, OnDone, SqeOp, chain, driver_io, now, push_bio, sleep, spawn, turn_time, watched,
};
use slab::Slab;

use super::counters::Counters;
use super::line::Line;
use super::shared::Shared;
use super::waiting::{Whose, Work};
use crate::flush_errors::{Entry, FlushErrors};
use crate::stats::Stats;

/// What a bio is to the throttle.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
enum Sort {
    /// A read whose time counts.
    Read,
    /// A read of an engine's writeback: by our law it needs a token.
    BackgroundRead,
    /// A read ahead: nobody waits for it yet, but somebody may before it has ended.
    QuietRead,
    /// It needs a token.
    Tracked(ThrottleClass),
    /// Neither: it never waits.
    Beside,
}

fn sort_of(op: Op, flags: Flags, class: Class) -> Sort {
    let background = class >= Class::Background || flags.contains(Flags::BACKGROUND);
    let urgent = flags.intersects(Flags::SYNC | Flags::META | Flags::FUA);
    match op {
        Op::Read if class == Class::Idle => Sort::QuietRead,
        Op::Read if background => Sort::BackgroundRead,
        Op::Read => Sort::Read,
        Op::Discard => Sort::Tracked(ThrottleClass::Discard),
        Op::Flush | Op::WriteZeroes => Sort::Beside,
        // Direct I/O: its sender waits for it and sends no more than it likes.
        Op::Write if flags.contains(Flags::SYNC | Flags::IDLE) => Sort::Beside,
        Op::Write if urgent => Sort::Tracked(ThrottleClass::Sync),
        Op::Write if background => Sort::Tracked(ThrottleClass::Background),
        Op::Write if class == Class::Foreground => Sort::Tracked(ThrottleClass::Sync),
        Op::Write => Sort::Tracked(ThrottleClass::Normal),
    }
}

/// Whether a bio goes at once.
enum Admitted {
    /// And what is to be done when it has ended.
    Goes(Note),
    /// It is of this sort, and came at this time.
    Waits(ThrottleClass, u64),
}

/// What is to be done when a request has ended.
#[derive(Clone, Copy, Debug)]
pub(super) enum Note {
    /// Nothing.
    Plain,
    /// It was a read that counts.
    Read {
        issued_ns: u64,
        /// From [`Shared::begin_read`].
        quiet: Option<u64>,
    },
    /// It was neither tracked nor a read.
    Beside,
    /// It holds a token.
    Token { who: ThrottleClass, bytes: u64, forced: bool },
}

/// A request that is with the driver.
struct Sent {
    whose: SentOf,
    note: Note,
}

enum SentOf {
    Bio(Entry),
    /// A piece of a bio in `line`.
    Split(usize),
}

/// A fault that a test plants to see that it would be found.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq)]
pub(super) enum Mutation {
    #[default]
    None,
    /// A write that ends lets nobody go.
    LoseWakeUp,
    /// A new target, or none, lets nobody go.
    SilentTurn,
    /// Other leaves on the file are told nothing.
    TellNobody,
    /// A failed piece is forgotten.
    ForgetError,
    /// Pieces keep their tokens.
    LeakToken,
    /// What was in force once is so for good.
    OldLaw,
    /// Reads of writeback go past the limits.
    ReadsPass,
}

/// See the module.
pub(crate) struct Throttle {
    file: FileId,
    me: Weak<Throttle>,
    pub(crate) stats: Stats,
    pub(crate) flush_errors: FlushErrors,
    pub(super) shared: Arc<Shared>,
    counters: Arc<Counters>,
    pub(super) block_bytes: u32,
    /// What is in force, as of so many changes of the law.
    in_force: Cell<(u64, ThrottleLimits)>,
    sent: RefCell<Slab<Sent>>,
    /// While somebody waits or goes in pieces.
    pub(super) line: RefCell<Weak<Line>>,
    /// The read that is being watched, by its slot of `sent`.
    watched: Cell<Option<usize>>,
    pub(super) mutation: Cell<Mutation>,
}

impl Throttle {
    pub(crate) fn new(
        stats: Stats,
        flush_errors: FlushErrors,
        file: FileId,
        block_bytes: u32,
        shared: Arc<Shared>,
    ) -> Rc<Throttle> {
        let counters = Arc::new(Counters::new());
        shared.add(&counters);
        let in_force = (shared.changes(), shared.in_force());
        Rc::new_cyclic(|me| Throttle {
            file,
            me: me.clone(),
            stats,
            flush_errors,
            shared,
            counters,
            block_bytes,
            in_force: Cell::new(in_force),
            sent: RefCell::default(),
            line: RefCell::default(),
            watched: Cell::new(None),
            mutation: Cell::default(),
        })
    }

    pub(crate) fn file(&self) -> FileId {
        self.file
    }

    pub(super) fn line(&self) -> Option<Rc<Line>> {
        self.line.borrow().upgrade()
    }

    /// Whether a change of any of these sectors has entered and not ended.
    pub(crate) fn is_changing(&self, sectors: &Range<Sector>) -> bool {
        let sent = self.sent.borrow();
        let mut whole = sent.iter().filter_map(|(_, sent)| match &sent.whose {
            SentOf::Bio(entry) => Some(&entry.ticket),
            SentOf::Split(_) => None, // the line has it
        });
        whole.any(|ticket| ticket.changes(sectors))
            || self.line().is_some_and(|line| line.is_changing(sectors))
    }

    /// What the law allows.
    pub(super) fn in_force(&self) -> ThrottleLimits {
        let (changes, in_force) = self.in_force.get();
        if changes == self.shared.changes() { in_force } else { self.copy_law() }
    }

    #[cold]
    fn copy_law(&self) -> ThrottleLimits {
        if self.mutation.get() != Mutation::OldLaw {
            // The number first: a change after it has another one.
            self.in_force.set((self.shared.changes(), self.shared.in_force()));
        }
        self.in_force.get().1
    }

    pub(super) fn quota(&self, who: ThrottleClass, now_ns: u64) -> Quota {
        self.in_force().quota(who, &self.shared.signs(now_ns))
    }

    /// Takes a bio whose sectors lie at `sector`, and which the device knows.
    pub(crate) fn submit(self: &Rc<Self>, sector: Sector, bio: Bio) {
        let ticket = self.stats.begin(bio.op, sector, bio.len);
        let entry = self.flush_errors.begin(ticket, &bio);
        let note = if self.shared.tokens.is_on() {
            match self.admit(&bio) {
                Admitted::Goes(note) => note,
                Admitted::Waits(who, now_ns) => return self.hold(entry, sector, bio, who, now_ns),
            }
        } else {
            Note::Plain
        };
        let Bio { op, flags, class: _, opener: _, sector: _, len, bufs, done } = bio;
        self.send_bio(op, sqe_of(op, flags, sector, len, bufs), entry, done, note);
    }

    fn admit(self: &Rc<Self>, bio: &Bio) -> Admitted {
        Admitted::Goes(match sort_of(bio.op, bio.flags, bio.class) {
            Sort::Read => self.note_read(),
            Sort::BackgroundRead if self.tracks_reads() => {
                return self.admit_tracked(bio, ThrottleClass::Background);
            }
            Sort::BackgroundRead | Sort::QuietRead => Note::Plain,
            Sort::Tracked(who) => return self.admit_tracked(bio, who),
            Sort::Beside => {
                self.shared.begin_beside();
                Note::Beside
            }
        })
    }

    fn tracks_reads(&self) -> bool {
        self.in_force().tracks_reads() && self.mutation.get() != Mutation::ReadsPass
    }

    fn note_read(&self) -> Note {
        let issued_ns = now().0.max(1);
        self.shared.note_read(issued_ns);
        if self.watched.get().is_none() {
            self.watched.set(Some(self.sent.borrow().vacant_key()));
            self.counters.watch(issued_ns);
        }
        Note::Read { issued_ns, quiet: self.shared.begin_read() }
    }

    /// Whether a bio may go at once as it is.
    fn admit_tracked(&self, bio: &Bio, who: ThrottleClass) -> Admitted {
        // The first in flight begins a time that is measured; those beside it go by the turn's.
        let is_first = self.shared.tokens.load(0).ios == 0;
        let now_ns = if is_first { now().0 } else { turn_time().0 };
        let bytes = bio.len.bytes();
        let goes = self.line.borrow().strong_count() == 0 && {
            let quota = self.quota(who, now_ns);
            let whole = !goes_in_pieces(bio.op) || bytes <= u64::from(quota.piece_bytes);
            whole && self.shared.take(who, bytes, quota, now_ns)
        };
        self.arm(now_ns);
        if goes {
            Admitted::Goes(Note::Token { who, bytes, forced: false })
        } else {
            Admitted::Waits(who, now_ns)
        }
    }

    #[cold]
    fn hold(
        self: &Rc<Self>,
        entry: Entry,
        sector: Sector,
        bio: Bio,
        who: ThrottleClass,
        now_ns: u64,
    ) {
        let Bio { op, flags, class: _, opener: _, sector: _, len, bufs, done } = bio;
        let work = Work { op, flags, sector, len, bufs, whose: Whose::Bio(entry, done) };
        self.line().unwrap_or_else(|| Line::open(self)).enter(work, who, now_ns);
    }

    /// Sends all that the work is.
    pub(super) fn send(self: &Rc<Self>, work: Work, note: Note) {
        let Work { op, flags, sector, len, bufs, whose } = work;
        let what = sqe_of(op, flags, sector, len, bufs);
        match whose {
            Whose::Bio(entry, done) => self.send_bio(op, what, entry, done, note),
            Whose::Split(nth) => self.send_piece(nth, what, note),
        }
    }

    fn send_bio(self: &Rc<Self>, op: Op, what: SqeOp, entry: Entry, done: Completion, note: Note) {
        let tag = self.sent.borrow_mut().insert(Sent { whose: SentOf::Bio(entry), note }) as u64;
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
            // Q3: rare enough for a task.
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

    /// Sends a piece of a bio in `line`.
    fn send_piece(self: &Rc<Self>, nth: usize, what: SqeOp, note: Note) {
        let tag = self.sent.borrow_mut().insert(Sent { whose: SentOf::Split(nth), note }) as u64;
        push_bio(watched(self.clone(), tag), self.file, what);
    }

    /// Lets go whoever may; another core or a window says so.
    pub(super) fn look(&self) {
        if let Some(line) = self.line() {
            line.look(now().0);
        }
    }

    /// The target or the law is another one, or the throttle is off.
    pub(super) fn turned(&self) {
        if self.mutation.get() == Mutation::SilentTurn {
            return;
        }
        self.look();
        self.tell_others();
    }

    fn tell_others(&self) {
        if self.mutation.get() == Mutation::TellNobody {
            return;
        }
        let mine = self.line().and_then(|line| line.door());
        self.shared.tell_others(mine.as_ref());
    }

    /// Sees to it that windows are closed while there is something to see.
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
                    // Whoever waits at another leaf on the file goes on with it.
                    shared.disarm();
                    return shared.tell_others(None);
                };
                let closed = shared.close_window(now().0);
                if closed.wakes {
                    leaf.look();
                    leaf.tell_others();
                }
                if !closed.goes_on {
                    return;
                }
            }
        });
    }

    /// A token comes back.
    fn write_ended(&self, who: ThrottleClass, bytes: u64, forced: bool) {
        let now_ns = turn_time().0;
        self.counters.write(if who == ThrottleClass::Discard { 0 } else { bytes });
        if forced {
            self.shared.forced.store(false, Relaxed);
        }
        let waiting = self.shared.give(who, bytes, now_ns);
        if waiting == 0 || self.mutation.get() == Mutation::LoseWakeUp {
            return;
        }
        let left = self.shared.in_flight()[who.count()];
        if self.in_force().wakes(who, left, &self.shared.signs(now_ns)) {
            let mut others = waiting;
            if let Some(line) = self.line() {
                others -= u32::from(line.door().is_some());
                line.look(now_ns);
            }
            if others > 0 {
                self.tell_others();
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
        let now_ns = turn_time().0;
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
    fn settle(&self, note: Note, tag: u64) {
        match note {
            Note::Plain => {}
            Note::Read { issued_ns, quiet } => self.read_ended(tag, issued_ns, quiet),
            Note::Beside => self.shared.end_beside(),
            Note::Token { who, bytes, forced } => self.write_ended(who, bytes, forced),
        }
    }
}

impl OnDone for Throttle {
    /// Of pieces.
    fn on_done(&self, status: Status, tag: u64) {
        let Sent { whose, note } = self.take_sent(tag);
        let SentOf::Split(nth) = whose else { unreachable!("a whole bio has a completion") };
        let line = self.line().expect("it lives until its splits end");
        line.piece_ended(nth, status);
        let leaks = self.mutation.get() == Mutation::LeakToken;
        if !(leaks && matches!(note, Note::Token { .. })) {
            self.settle(note, tag);
        }
        line.close_if_idle();
    }

    /// Of whole bios.
    fn on_chained_done(&self, status: Status, tag: u64, parent: Completion) {
        let Sent { whose, note } = self.take_sent(tag);
        let SentOf::Bio(entry) = whose else { unreachable!("a piece has no completion") };
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
pub(super) fn goes_in_pieces(op: Op) -> bool {
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
