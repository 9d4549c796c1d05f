// SPDX-License-Identifier: Apache-2.0 OR MIT
//! The journal of the store: when it begins, and when it is left.
//!
//! ```text
//!   resume ─▶ first request: a record with this incarnation ─▶ journal ─▶ suspend
//! ```
//!
//! Before a client reads or changes anything, a record says on the media that this opening has
//! come: so a journal of an earlier opening does not count any more, wherever it is and whoever
//! finds it. That holds for a process without shared memory, too: it may use slots that such a
//! journal names, and what it has returned to a reader may not be replaced by a version of such a
//! journal. An opening without requests writes nothing.
use std::pin::Pin;

use block::{Error, Status};

use super::Store;
use super::media::Media;
use crate::planted::Fault;

impl Store {
    /// The device is resumed.
    pub(crate) fn expect_changes(&self) {
        // Where no process has shared memory, none has a journal.
        self.changes_begun.set(!reactor::others_share_memory());
        self.set_plain_reads();
    }

    /// To be called if `changes_begun` is not set, before anything is read or changes: before data
    /// are written to a slot, and before a block leaves the cache; and before a FLUSH ends.
    ///
    /// Cost: one record write and one flush of the cache device, once after each resume.
    #[cold]
    pub(crate) fn begin_changes(&self) -> Pin<Box<dyn Future<Output = Result<(), Status>> + '_>> {
        Box::pin(self.begin_first_change())
    }

    async fn begin_first_change(&self) -> Result<(), Status> {
        if !self.has_fault(Fault::ChangeBeforeRecord) {
            self.seal().await?;
        }
        if self.changes_begun.replace(true) {
            return Ok(()); // another client was first
        }
        self.set_plain_reads();
        if let (Ok(memory), Media::Native(native)) = (&self.journal.memory, &self.media) {
            let journal = memory.begin(
                &native.superblock.borrow(),
                native.log.incarnation,
                self.config.planted,
            );
            self.slots.borrow_mut().begin_journal(journal);
            self.buffer.set_frames(memory.frames.clone());
        }
        Ok(())
    }

    /// The device is about to be resumed: the journal's memory is to be this cache's again
    /// (WC-JR4).
    ///
    /// # Errors
    /// `EBUSY` if a copy of the cache has it.
    pub(crate) fn lock_journal(&self) -> Result<(), Error> {
        match &self.journal.memory {
            Ok(memory) => memory.lock(&self.config),
            Err(_) => Ok(()),
        }
    }

    /// From now on another instance of the cache may have the journal's memory.
    pub(crate) fn leave_journal(&self) {
        let next = self.slots.borrow_mut().leave_journal();
        self.buffer.set_frames(None);
        if let (Ok(memory), Some(next)) = (&self.journal.memory, next) {
            memory.left_at(next);
        }
        self.unlock_journal();
    }

    /// Another instance of the cache may have the memory (WC-JR4).
    pub(crate) fn unlock_journal(&self) {
        if let Ok(memory) = &self.journal.memory {
            memory.memory.unlock();
        }
    }
}
