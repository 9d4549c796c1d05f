// SPDX-License-Identifier: Apache-2.0 OR MIT
//! Flush errors: which acknowledged changes of a file may be lost, and which openers have been
//! notified. The system reports a failed flush once for each file descriptor, and the leaves of all
//! cores on a file share one descriptor, so a leaf remembers which openers must still get an error.
//!
//! A *loss* is a FLUSH or a FUA write that the driver fails. A FUA write counts because it may
//! consume the error of other changes of the file (fdatasync reports errors of the whole file).
//!
//! Invariants (PO-ES1 to PO-ES4 are those of `policy::ErrSeq`)
//! - QU-FE1 After a loss, each opener that has changed something before it gets an error from its
//!   next FLUSH, and from every FLUSH that it had submitted before the loss (PO-ES1 to PO-ES3).
//! - QU-FE2 A change that was submitted before a loss and is acknowledged after it may be lost,
//!   too: the next FLUSH of its opener fails (PO-ES4).
//! - QU-FE3 A FUA write fails if a loss happened after its submission.
//! - QU-FE4 A loss at the leaf of one core is a loss for the leaves of all cores on the file.
//! - QU-FE5 The success of a FLUSH is reported after all FLUSHes and FUA writes that were in flight
//!   beside it have ended (`sync_order`): if one of them failed, the FLUSH fails, too. The same
//!   holds for the success of a FUA write whose data go through the page cache. With O_DIRECT the
//!   data of a FUA write are durable whatever happens to other requests, so it does not wait.
//!
//! Not covered: each leaf knows its own openers. An opener that writes at one core and flushes at
//! another gets the error at the core where it wrote, or at the other one while no opener has been
//! notified there.
use std::cell::{Cell, RefCell, RefMut};
use std::rc::Rc;
use std::sync::Arc;
use std::sync::atomic::{AtomicBool, AtomicU32, Ordering};

use block::{Bio, Flags, LostWrites, Op, Opener, Status};
use policy::{ErrSeq, ErrSeqSample};
use slab::Slab;

use crate::stats::Ticket;
use crate::sync_order::{Hold, SyncNumber, SyncOrder};

/// What the leaves of all cores on one file share: how many losses it had, and the order of its
/// FLUSHes and FUA writes. Clones are the same.
#[derive(Clone, Default)]
pub struct SharedFlushErrors(Arc<FileState>);

#[derive(Default)]
struct FileState {
    losses: AtomicU32,
    order: SyncOrder,
    /// Data go through the page cache (QU-FE5).
    is_cached: AtomicBool,
}

impl SharedFlushErrors {
    fn count(&self) -> u32 {
        self.0.losses.load(Ordering::Acquire)
    }

    pub(crate) fn set_cached(&self) {
        self.0.is_cached.store(true, Ordering::Relaxed);
    }
}

block::debug_as!(SharedFlushErrors, s => "SharedFlushErrors({} losses)", s.count() / LOSS);

/// A bio that has entered a leaf. Small: each bio in flight has one.
#[derive(Clone, Copy)]
pub(crate) struct Entry {
    pub(crate) ticket: Ticket,
    opener: Opener,
    /// Of a plain change the number of losses at its submission; of a FLUSH or FUA write the key of
    /// its [`Sync`], with [`SYNC`] set.
    mark: u32,
}

/// Bit of a mark: it is the key of a [`Sync`]. Losses are counted in steps that leave it free.
const SYNC: u32 = 1;
const LOSS: u32 = 2;

impl Entry {
    /// Whether it is a FLUSH or a FUA write.
    pub(crate) fn is_sync(&self) -> bool {
        self.mark & SYNC != 0
    }

    fn key(&self) -> usize {
        (self.mark / LOSS) as usize
    }
}

/// A FLUSH or a FUA write in flight at a leaf.
struct Sync {
    kind: SyncKind,
    /// From when it is with the driver.
    number: Option<SyncNumber>,
}

enum SyncKind {
    Flush(ErrSeqSample),
    /// With the number of losses at its submission.
    Fua(u32),
}

/// See the module.
#[derive(Default)]
pub(crate) struct FlushErrors {
    file: SharedFlushErrors,
    /// How many losses of the file `openers` knows of.
    known: Cell<u32>,
    /// Its changes are those that were acknowledged and are not durable by themselves.
    openers: RefCell<ErrSeq<Opener>>,
    /// Changes of one opener that are not yet entered into `openers`: nearly every change comes
    /// from the same opener as the change before, and then it is only counted.
    recent: Cell<Opener>,
    recent_changes: Cell<u64>,
    syncs: RefCell<Slab<Sync>>,
}

impl FlushErrors {
    pub(crate) fn new(file: &SharedFlushErrors) -> FlushErrors {
        FlushErrors { file: file.clone(), known: Cell::new(file.count()), ..FlushErrors::default() }
    }

    pub(crate) fn shared(&self) -> SharedFlushErrors {
        self.file.clone()
    }

    /// A bio is submitted.
    #[inline]
    pub(crate) fn begin(&self, ticket: Ticket, bio: &Bio) -> Entry {
        let mark = match bio.op {
            Op::Read => 0,
            Op::Flush => self.begin_sync(bio),
            Op::Write | Op::Discard | Op::WriteZeroes if bio.flags.contains(Flags::FUA) => {
                self.begin_sync(bio)
            }
            Op::Write | Op::Discard | Op::WriteZeroes => self.file.count(),
        };
        Entry { ticket, opener: bio.opener, mark }
    }

    #[cold]
    fn begin_sync(&self, bio: &Bio) -> u32 {
        let kind = if bio.op == Op::Flush {
            self.learn();
            SyncKind::Flush(self.sample(bio.opener))
        } else {
            SyncKind::Fua(self.file.count())
        };
        let key = self.syncs.borrow_mut().insert(Sync { kind, number: None });
        (u32::try_from(key).expect("fewer bios are in flight") * LOSS) | SYNC
    }

    /// A FLUSH or FUA write, or a piece of one, goes to the driver.
    pub(crate) fn sync_sent(&self, entry: &Entry) {
        let sync = &mut self.syncs.borrow_mut()[entry.key()];
        sync.number.get_or_insert_with(|| self.file.0.order.begin());
    }

    /// The driver has ended a FLUSH or FUA write with `status`. Returns what must happen before
    /// [`FlushErrors::end`] may be called, if anything: see [`FlushErrors::passed`].
    pub(crate) fn sync_ended(&self, entry: &Entry, status: Status) -> Option<Hold> {
        // Before the sync leaves the order: a success that waited for it must see the loss.
        self.failed(status);
        let mut syncs = self.syncs.borrow_mut();
        let sync = &mut syncs[entry.key()];
        let number = sync.number.take().expect("it was sent");
        let is_flush = matches!(sync.kind, SyncKind::Flush(_));
        drop(syncs);
        let hold = self.file.0.order.end(number)?;
        let waits = is_flush || self.file.0.is_cached.load(Ordering::Relaxed);
        (status == Status::Ok && waits).then_some(hold) // QU-FE5
    }

    pub(crate) async fn passed(&self, hold: Hold) {
        self.file.0.order.passed(hold).await;
    }

    /// A bio ends with `status`; returns the status that is reported.
    #[inline(always)]
    pub(crate) fn end(&self, entry: &Entry, status: Status) -> Status {
        match entry.ticket.op() {
            Op::Read => status,
            Op::Write | Op::Discard | Op::WriteZeroes if !entry.is_sync() => {
                if status == Status::Ok {
                    self.acknowledge(entry.opener, entry.mark);
                }
                status
            }
            Op::Write | Op::Discard | Op::WriteZeroes | Op::Flush => self.end_sync(entry, status),
        }
    }

    #[cold]
    fn end_sync(&self, entry: &Entry, status: Status) -> Status {
        let sync = self.syncs.borrow_mut().remove(entry.key());
        match sync.kind {
            SyncKind::Flush(sample) => self.end_flush(entry.opener, sample, status),
            SyncKind::Fua(_) if status != Status::Ok => status,
            SyncKind::Fua(losses) if self.learn() == losses => status,
            SyncKind::Fua(_) => Status::Io, // QU-FE3
        }
    }

    /// Acknowledges a change that was submitted after so many losses. If there was a loss that this
    /// leaf has not noticed yet, the change counts as one before it: `lose` marks it as lost
    /// (QU-FE2).
    #[inline(always)]
    fn acknowledge(&self, opener: Opener, losses: u32) {
        if losses == self.known.get() && opener == self.recent.get() {
            self.recent_changes.set(self.recent_changes.get() + 1);
        } else {
            self.acknowledge_first(opener, losses);
        }
    }

    #[inline(never)]
    fn acknowledge_first(&self, opener: Opener, losses: u32) {
        let in_doubt = self.learn() != losses;
        let mut openers = self.openers();
        if in_doubt {
            openers.doubt(opener); // QU-FE2
        } else {
            openers.changed(opener);
        }
        self.recent.set(opener);
    }

    /// The openers, with all changes entered.
    fn openers(&self) -> RefMut<'_, ErrSeq<Opener>> {
        let mut openers = self.openers.borrow_mut();
        let changes = self.recent_changes.take();
        if changes > 0 {
            openers.changed_often(self.recent.get(), changes);
        }
        openers
    }

    fn sample(&self, opener: Opener) -> ErrSeqSample {
        let mut openers = self.openers();
        match opener {
            Opener::NOBODY => openers.sample_of_nobody(),
            _ => openers.sample(opener),
        }
    }

    /// A FLUSH with this sample fails.
    fn report(&self, opener: Opener, sample: ErrSeqSample) {
        if opener != Opener::NOBODY {
            self.openers().report(opener, sample);
        }
    }

    fn end_flush(&self, opener: Opener, sample: ErrSeqSample, status: Status) -> Status {
        self.learn();
        let mut openers = self.openers();
        if status == Status::Ok && !openers.must_report(sample) {
            openers.durable(sample.changes());
            return status;
        }
        drop(openers);
        self.report(opener, sample);
        if status == Status::Ok { Status::Io } else { status }
    }

    /// Counts a loss if the status of a FLUSH or FUA write is one.
    fn failed(&self, status: Status) {
        // An operation that the driver does not know had no effect.
        if !matches!(status, Status::Ok | Status::NotSupported | Status::Invalid) {
            self.file.0.losses.fetch_add(LOSS, Ordering::AcqRel);
            self.learn();
        }
    }

    /// Enters new losses into `openers`; returns how many losses there were in all.
    fn learn(&self) -> u32 {
        let count = self.file.count();
        if count != self.known.get() {
            self.lose(count);
        }
        count
    }

    #[cold]
    fn lose(&self, count: u32) {
        self.known.set(count);
        let mut openers = self.openers();
        let all = openers.changes();
        openers.lose(all);
        openers.durable(all); // they are marked as lost: a later loss does not mark them again
    }
}

/// Losses that other leaves on the file have noticed count, also when this leaf is gone.
impl LostWrites for FlushErrors {
    fn has_unflushed(&self) -> bool {
        self.learn();
        self.openers().at_risk() > 0
    }

    fn must_hear(self: Rc<Self>, opener: Opener) -> Option<Box<dyn FnOnce()>> {
        self.learn();
        let sample = self.sample(opener);
        let must_fail = self.openers().must_report(sample);
        must_fail.then(|| Box::new(move || self.report(opener, sample)) as Box<dyn FnOnce()>)
    }

    fn are_told(&self) -> bool {
        self.learn();
        self.openers().all_are_told()
    }
}

#[cfg(test)]
#[path = "flush_errors_tests.rs"]
mod tests;
