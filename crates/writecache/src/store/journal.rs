// SPDX-License-Identifier: Apache-2.0 OR MIT
//! The journal of the store: when it begins, and when it is left.
//!
//! ```text
//!   resume ─▶ first change of a client: a record with this incarnation ─▶ journal ─▶ suspend
//! ```
//!
//! Before a client changes anything, a record says on the media that this opening has come: so a
//! journal of an earlier opening does not count any more, wherever it is and whoever finds it. An
//! opening that changes nothing writes nothing.
use std::pin::Pin;

use block::Status;

use super::Store;
use super::media::Media;

impl Store {
    /// The device is resumed.
    pub(crate) fn expect_changes(&self) {
        // No process of a machine without shared memory has a journal.
        self.changes_begun.set(reactor::shared_memory().is_none());
    }

    /// To be called if `changes_begun` is not set, before anything changes: before data are written
    /// to a slot, and before a block leaves the cache.
    ///
    /// Cost: one record write and one flush of the cache device, once after each resume.
    #[cold]
    pub(crate) fn begin_changes(&self) -> Pin<Box<dyn Future<Output = Result<(), Status>> + '_>> {
        Box::pin(self.begin_first_change())
    }

    async fn begin_first_change(&self) -> Result<(), Status> {
        self.seal().await?;
        if self.changes_begun.replace(true) {
            return Ok(()); // another client was first
        }
        if let (Ok(memory), Media::Native(native)) = (&self.journal.memory, &self.media) {
            let journal = memory.begin(&native.superblock.borrow(), native.log.incarnation);
            self.slots.borrow_mut().begin_journal(journal);
        }
        Ok(())
    }

    /// From now on another instance of the cache may have the journal's memory.
    pub(crate) fn leave_journal(&self) {
        let next = self.slots.borrow_mut().leave_journal();
        if let (Ok(memory), Some(next)) = (&self.journal.memory, next) {
            memory.left_at(next);
        }
    }
}
