// SPDX-License-Identifier: Apache-2.0 OR MIT
//! Journal: every change of the map, stored in memory that outlives the process before the request
//! that made the change completes. The next process applies what the cache device does not know yet
//! (`recovery::journal`).
//!
//! ```text
//!   install, drop, zeroes ──▶ entry ──▶ │ ... known to the cache device │ start ... next │
//!   commit is durable ──────▶ start moves to where the commit began
//! ```
//!
//! Invariants
//! - WC-J1 The entry of a change is stored when the map has the change. So it is there before the
//!   request completes, and before a slot that the change frees has other data.
//! - WC-J2 The start moves only over changes that a durable commit has logged, and before a slot is
//!   freed by the last batch of that commit.
//! - WC-J3 When a flush of the cache device fails, the journal ends: what it names may not be
//!   durable, and each client learns of the loss (WC-LO1). When the device has refused writes only,
//!   the journal stays: what it names is in a slot or in a frame.
//!
//! The last entry of a block counts, and entries that the cache device knows already do no harm: so
//! the start may be any entry before the first unknown one.
//!
//! Cost of a change: one store of 48 bytes.
use std::rc::Rc;

use block::Planted;
use format::{Entry, JournalChange, JournalEntry, JournalHeader, Op, UNIT, journal_offset};
use reactor::SharedMemory;

use super::Slots;
use crate::planted::Fault;

/// The journal of a cache in use.
pub(crate) struct JournalWriter {
    memory: Rc<dyn SharedMemory>,
    header: JournalHeader,
    /// The number of the next entry.
    next: u64,
    /// The first entry that the cache device may not know.
    start: u64,
    /// Where the running commit began.
    commit_began: u64,
    /// The memory can't be used any more.
    is_lost: bool,
    /// No commit makes room any more: changes beyond that end the journal.
    has_failed: bool,
    pub(super) planted: Planted<Fault>,
    /// Planted fault: a change without its entry.
    pub(super) late: Option<JournalChange>,
}

impl JournalWriter {
    /// Begins an empty journal with entry `next`. A journal of this incarnation that the memory has
    /// must end before it, with an entry after which nothing counts.
    pub(crate) fn begin(
        memory: Rc<dyn SharedMemory>,
        header: JournalHeader,
        next: u64,
        planted: Planted<Fault>,
    ) -> JournalWriter {
        let mut unit = [0; UNIT];
        header.encode(&mut unit);
        let is_lost = memory.write(0, &unit).is_err();
        let (start, commit_began, has_failed, late) = (next, next, false, None);
        JournalWriter {
            memory,
            header,
            next,
            start,
            commit_began,
            is_lost,
            has_failed,
            planted,
            late,
        }
    }

    /// How many changes fit. One more entry is kept, for a new start.
    fn room(&self) -> u64 {
        self.header.capacity - 1 - (self.next - self.start)
    }

    fn is_full(&self, changes: u64) -> bool {
        !self.is_lost && self.next > self.start && self.room() < changes
    }

    fn is_half_full(&self) -> bool {
        !self.is_lost && self.next - self.start > self.header.capacity / 2
    }

    fn store(&mut self, change: Option<JournalChange>) {
        if self.is_lost {
            return;
        }
        let fits = change.is_none() || self.room() > 0;
        debug_assert!(fits || self.has_failed, "callers ask for room");
        let entry = JournalEntry { seq: self.next, start: self.start, change };
        let at = usize::try_from(journal_offset(self.next, self.header.capacity));
        let at = at.expect("within the memory");
        let stored = self.memory.write(at, &entry.encode(self.header.incarnation));
        self.next += 1;
        if stored.is_err() || !fits {
            self.lose();
        }
    }

    /// Without a header there is no journal: better than one with a gap.
    fn lose(&mut self) {
        self.is_lost = true;
        self.memory.write(0, &[0; UNIT]).ok();
    }

    /// WC-J2: the cache device knows all changes before `start`.
    fn move_start(&mut self, start: u64) {
        if start > self.start {
            self.start = start;
            self.store(None);
            // That entry itself is no change.
            if self.start + 1 >= self.next {
                self.start = self.next;
            }
        }
    }
}

impl Slots {
    /// From now on changes go to this journal.
    pub(crate) fn begin_journal(&mut self, journal: JournalWriter) {
        self.journal = Some(Box::new(journal));
    }

    /// From now on no change goes to the journal; what it has stays. Returns the number of its next
    /// entry.
    pub(crate) fn leave_journal(&mut self) -> Option<u64> {
        self.journal.take().map(|journal| journal.next)
    }

    /// WC-J3: the next process applies nothing of the journal.
    pub(crate) fn end_journal(&mut self) {
        if let Some(mut journal) = self.journal.take() {
            journal.move_start(journal.next + 1);
        }
    }

    /// The cache has failed: changes that are under way may still come, and no commit.
    pub(crate) fn keep_journal(&mut self) {
        if let Some(journal) = &mut self.journal {
            journal.has_failed = true;
        }
    }

    /// The data of a change can't be stored: without them the journal is none.
    pub(crate) fn lose_journal(&mut self) {
        if let Some(journal) = &mut self.journal {
            journal.lose();
        }
    }

    /// Whether the memory of the journal can't be used any more.
    pub(crate) fn has_lost_journal(&self) -> bool {
        self.journal.as_ref().is_some_and(|journal| journal.is_lost)
    }

    /// Changes that the journal has and the cache device may not know.
    pub(crate) fn journal_changes(&self) -> u64 {
        let journal = self.journal.as_ref().filter(|journal| !journal.is_lost);
        journal.map_or(0, |journal| journal.next - journal.start)
    }

    /// How many changes the journal has room for; without a journal any number.
    pub(crate) fn journal_room(&self) -> u64 {
        let journal = self.journal.as_ref().filter(|journal| !journal.is_lost);
        journal.map_or(u64::MAX, |journal| journal.room())
    }

    /// Whether the journal has no room for `changes` more, and a commit would make some.
    #[inline]
    pub(crate) fn is_journal_full(&self, changes: usize) -> bool {
        match &self.journal {
            None => false,
            Some(journal) => journal.is_full(changes as u64),
        }
    }

    /// Whether half of the journal is used.
    #[inline]
    pub(crate) fn is_journal_half_full(&self) -> bool {
        match &self.journal {
            None => false,
            Some(journal) => journal.is_half_full(),
        }
    }

    /// WC-J1: a block has a new version.
    #[inline]
    pub(super) fn note_version(&mut self, block: u64, slot: u32, crc: u32) {
        if self.journal.is_some() {
            self.note(Entry { op: Op::Write, block, slot, crc });
        }
    }

    /// WC-J1: a block has left the cache.
    pub(super) fn note_drop(&mut self, block: u64) {
        if self.journal.is_some() {
            self.note(Entry { op: Op::Drop, block, slot: 1, crc: 0 });
        }
    }

    /// WC-J1: zeroes over `blocks` blocks.
    pub(super) fn note_zeroes(&mut self, block: u64, slot: u32, blocks: u32) {
        if self.journal.is_some() {
            self.note(Entry { op: Op::Zero, block, slot, crc: blocks });
        }
    }

    fn note(&mut self, entry: Entry) {
        let (epoch, oldest) = self.epochs.as_ref().map_or((0, 0), |e| (e.open, e.oldest_logged));
        if let Some(journal) = &mut self.journal {
            let change = JournalChange { entry, epoch, oldest: oldest.min(epoch) };
            if let Some(change) = journal.change_to_store(change) {
                journal.store(Some(change));
            }
        }
    }

    /// A commit begins.
    pub(super) fn journal_commit_begins(&mut self) {
        if let Some(journal) = &mut self.journal {
            journal.commit_began = journal.next;
        }
    }

    /// WC-J2: all that the commit had to log is durable; perhaps it had nothing to log.
    pub(crate) fn end_commit(&mut self) {
        if let Some(journal) = &mut self.journal {
            let is_late = journal.planted.is(Fault::JournalStartLate);
            journal.move_start(if is_late { journal.next } else { journal.commit_began });
        }
    }
}
