// SPDX-License-Identifier: Apache-2.0 OR MIT
//! Losses: what a file may have lost of the changes that a leaf has acknowledged, and who has been
//! told. The system tells of a failed flush once for each descriptor, and the leaves of all cores
//! on a file have one descriptor, so a leaf remembers who must still be told.
//!
//! A loss is a FLUSH or a FUA write that the driver fails. A FUA write counts because it may take
//! the error of other changes of the file with it (fdatasync tells of the whole file).
//!
//! Invariants (ES1 to ES4 are those of `policy::ErrSeq`)
//! - O1 Each opener that has changed something before a loss gets an error from its next FLUSH,
//!   and from those that it had submitted before the loss (ES1 to ES3).
//! - O2 A change that is acknowledged after a loss and was submitted before it may be lost, too:
//!   the next FLUSH of its opener fails (ES4).
//! - O3 A FUA write fails if a loss came after its submission.
//! - O4 A loss at the leaf of one core is one for the leaves of all cores on the file.
//!
//! What is not seen: the driver may tell the end of a successful FLUSH before that of a failed one
//! that had ended earlier. Then that success stands, and the next FLUSH of its opener fails. And
//! each leaf knows its own openers: one that writes at one core is told at that core, or, at
//! another one, while nobody has been told there.
use std::cell::{Cell, RefCell, RefMut};
use std::sync::Arc;
use std::sync::atomic::{AtomicU32, Ordering};

use block::{Bio, Flags, Op, Opener, Status};
use policy::{ErrSeq, Sample};
use slab::Slab;

use crate::stats::Ticket;

/// How many losses a file had, for the leaves of all cores on it. Clones are the same.
#[derive(Clone, Debug, Default)]
pub struct SharedLosses(Arc<AtomicU32>);

impl SharedLosses {
    fn count(&self) -> u32 {
        self.0.load(Ordering::Acquire)
    }
}

/// A bio that has entered a leaf. Small: each bio in flight has one.
#[derive(Clone, Copy)]
pub(crate) struct Entry {
    pub(crate) ticket: Ticket,
    opener: Opener,
    /// Of a change the count of losses at its submission, and whether it is FUA; of a FLUSH the key
    /// of its sample.
    mark: u32,
}

/// Bit of a mark: the change is FUA. Losses are counted in steps that leave it free.
const FUA: u32 = 1;
const LOSS: u32 = 2;

/// See the module.
#[derive(Default)]
pub(crate) struct Losses {
    file: SharedLosses,
    /// How many losses of the file `openers` knows of.
    known: Cell<u32>,
    /// Its changes are those that were acknowledged and are not durable by themselves.
    openers: RefCell<ErrSeq<Opener>>,
    /// Changes of one opener that `openers` has not been told of yet: nearly all come from the one
    /// that the change before came from, and then they are only counted.
    recent: Cell<Opener>,
    untold: Cell<u64>,
    /// Of FLUSHes in flight.
    samples: RefCell<Slab<Sample>>,
}

impl Losses {
    pub(crate) fn new(file: &SharedLosses) -> Losses {
        Losses { file: file.clone(), known: Cell::new(file.count()), ..Losses::default() }
    }

    pub(crate) fn shared(&self) -> SharedLosses {
        self.file.clone()
    }

    /// A bio is submitted.
    #[inline]
    pub(crate) fn begin(&self, ticket: Ticket, bio: &Bio) -> Entry {
        let mark = match bio.op {
            Op::Read => 0,
            Op::Flush => self.begin_flush(bio.opener),
            Op::Write | Op::Discard | Op::WriteZeroes if bio.flags.contains(Flags::FUA) => {
                self.file.count() | FUA
            }
            Op::Write | Op::Discard | Op::WriteZeroes => self.file.count(),
        };
        Entry { ticket, opener: bio.opener, mark }
    }

    #[cold]
    fn begin_flush(&self, opener: Opener) -> u32 {
        self.learn();
        let sample = self.openers().sample(opener);
        let key = self.samples.borrow_mut().insert(sample);
        u32::try_from(key).expect("fewer bios are in flight")
    }

    /// The driver has ended it with `status`; returns with which status it ends.
    #[inline(always)]
    pub(crate) fn end(&self, entry: &Entry, status: Status) -> Status {
        match entry.ticket.op() {
            Op::Read => status,
            Op::Flush => self.end_flush(entry.opener, entry.mark, status),
            Op::Write | Op::Discard | Op::WriteZeroes if entry.mark & FUA != 0 => {
                self.end_fua(entry.mark & !FUA, status)
            }
            Op::Write | Op::Discard | Op::WriteZeroes => {
                if status == Status::Ok {
                    self.acknowledge(entry.opener, entry.mark);
                }
                status
            }
        }
    }

    /// A change is acknowledged that was submitted after so many losses. One of a loss that is not
    /// known yet counts as a change before it, and who learns of the loss marks it as lost (O2).
    #[inline(always)]
    fn acknowledge(&self, opener: Opener, losses: u32) {
        if losses == self.known.get() && opener == self.recent.get() {
            self.untold.set(self.untold.get() + 1);
        } else {
            self.acknowledge_first(opener, losses);
        }
    }

    #[inline(never)]
    fn acknowledge_first(&self, opener: Opener, losses: u32) {
        let in_doubt = self.learn() != losses;
        let mut openers = self.openers();
        if in_doubt {
            openers.doubt(opener); // O2
        } else {
            openers.changed(opener);
        }
        self.recent.set(opener);
    }

    /// The openers, who know of all changes.
    fn openers(&self) -> RefMut<'_, ErrSeq<Opener>> {
        let mut openers = self.openers.borrow_mut();
        let untold = self.untold.take();
        if untold > 0 {
            openers.changed_often(self.recent.get(), untold);
        }
        openers
    }

    #[cold]
    fn end_fua(&self, losses: u32, status: Status) -> Status {
        if status != Status::Ok {
            self.failed(status);
            return status;
        }
        if self.learn() == losses { status } else { Status::Io } // O3
    }

    #[cold]
    fn end_flush(&self, opener: Opener, key: u32, status: Status) -> Status {
        let key = usize::try_from(key).expect("it was one");
        let sample = self.samples.borrow_mut().remove(key);
        self.failed(status);
        self.learn();
        let mut openers = self.openers();
        if status == Status::Ok && !openers.is_news(sample) {
            openers.durable(sample.changes());
            return status;
        }
        openers.tell(opener, sample);
        if status == Status::Ok { Status::Io } else { status }
    }

    /// What promises durability has ended so at the driver.
    fn failed(&self, status: Status) {
        // The driver does not do what it does not know.
        if !matches!(status, Status::Ok | Status::NotSupported | Status::Invalid) {
            self.file.0.fetch_add(LOSS, Ordering::AcqRel);
            self.learn();
        }
    }

    /// Learns of new losses; returns how many there were.
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
        openers.durable(all); // it is told to be lost: that is not to be told again
    }
}

#[cfg(test)]
#[path = "losses_tests.rs"]
mod tests;
