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
use std::cell::{Cell, RefCell};
use std::sync::Arc;
use std::sync::atomic::{AtomicU64, Ordering};

use block::{Bio, Flags, Op, Opener, Status};
use policy::{ErrSeq, Sample};

use crate::stats::Ticket;

/// How many losses a file had, for the leaves of all cores on it. Clones are the same.
#[derive(Clone, Debug, Default)]
pub struct SharedLosses(Arc<AtomicU64>);

impl SharedLosses {
    fn count(&self) -> u64 {
        self.0.load(Ordering::Acquire)
    }
}

/// A bio that has entered a leaf.
#[derive(Clone, Copy)]
pub(crate) struct Entry {
    pub(crate) ticket: Ticket,
    opener: Opener,
    kind: Kind,
}

#[derive(Clone, Copy)]
enum Kind {
    Read,
    /// With how many losses there were at its submission.
    Change(u64),
    Fua(u64),
    Flush(Sample),
}

/// See the module.
#[derive(Default)]
pub(crate) struct Losses {
    file: SharedLosses,
    /// How many losses of the file `openers` knows of.
    known: Cell<u64>,
    /// Its changes are those that were acknowledged and are not durable by themselves.
    openers: RefCell<ErrSeq<Opener>>,
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
        let kind = match bio.op {
            Op::Read => Kind::Read,
            Op::Flush => {
                self.learn();
                Kind::Flush(self.openers.borrow_mut().sample(bio.opener))
            }
            Op::Write | Op::Discard | Op::WriteZeroes => {
                let losses = self.file.count();
                let fua = bio.flags.contains(Flags::FUA);
                if fua { Kind::Fua(losses) } else { Kind::Change(losses) }
            }
        };
        Entry { ticket, opener: bio.opener, kind }
    }

    /// The driver has ended it with `status`; returns with which status it ends.
    #[inline]
    pub(crate) fn end(&self, entry: &Entry, status: Status) -> Status {
        match entry.kind {
            Kind::Read => status,
            Kind::Change(losses) => {
                if status == Status::Ok {
                    let in_doubt = self.learn() != losses;
                    let mut openers = self.openers.borrow_mut();
                    if in_doubt {
                        openers.doubt(entry.opener); // O2
                    } else {
                        openers.changed(entry.opener);
                    }
                }
                status
            }
            Kind::Fua(losses) => self.end_fua(losses, status),
            Kind::Flush(sample) => self.end_flush(entry.opener, sample, status),
        }
    }

    fn end_fua(&self, losses: u64, status: Status) -> Status {
        if status != Status::Ok {
            self.failed(status);
            return status;
        }
        if self.learn() == losses { status } else { Status::Io } // O3
    }

    fn end_flush(&self, opener: Opener, sample: Sample, status: Status) -> Status {
        self.failed(status);
        self.learn();
        let mut openers = self.openers.borrow_mut();
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
            self.file.0.fetch_add(1, Ordering::AcqRel);
            self.learn();
        }
    }

    /// Learns of new losses; returns how many there were.
    fn learn(&self) -> u64 {
        let count = self.file.count();
        if count != self.known.get() {
            self.lose(count);
        }
        count
    }

    #[cold]
    fn lose(&self, count: u64) {
        self.known.set(count);
        let mut openers = self.openers.borrow_mut();
        let all = openers.changes();
        openers.lose(all);
        openers.durable(all); // it is told to be lost: that is not to be told again
    }
}

#[cfg(test)]
#[path = "losses_tests.rs"]
mod tests;
