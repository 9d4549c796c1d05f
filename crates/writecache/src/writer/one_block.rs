// SPDX-License-Identifier: Apache-2.0 OR MIT
//! A write of one block that has to wait for nothing: it begins inside `submit` and ends with the
//! write of its slot, without a task. All other writes need one.
use block::{Bio, Class, Flags, Status};

use super::Writer;
use crate::planted::Fault;

/// How a write of one block has begun.
pub(crate) enum BlockStart {
    /// It is in the write buffer and in the map.
    Done,
    /// Its data have to be written to the slot.
    Slot(BlockWrite),
    /// Not at all: it needs a task.
    Task,
}

/// A block whose data are being written to a slot.
#[derive(Clone, Copy)]
pub(crate) struct BlockWrite {
    block: u64,
    pub(crate) slot: u32,
    crc: u32,
    class: Class,
}

impl Writer {
    /// Begins a write of one block.
    pub(crate) fn begin_block(&self, bio: &Bio) -> BlockStart {
        let store = &self.store;
        let may_wait = store.health().is_err()
            || !store.changes_begun.get()
            || bio.flags.contains(Flags::FUA)
            || self.goes_around(bio.flags)
            || self.is_slowed()
            || store.has_fault(Fault::RecordBeforeData);
        if may_wait {
            return BlockStart::Task;
        }
        let is_buffered = self.is_buffered(store.block_bytes(), bio.flags);
        let buffer = &store.buffer;
        if is_buffered && (buffer.slows_writers() || buffer.room() == 0) {
            return BlockStart::Task;
        }
        if is_buffered && store.must_commit_before(1) {
            return BlockStart::Task;
        }
        let Some(slots) = store.slots.borrow_mut().allocate(1) else { return BlockStart::Task };
        store.stats.writes.add(1);
        let (block, slot) = (bio.sector.0 / store.config.block_sectors(), slots.start);
        if is_buffered {
            store.stats.writes_buffered.add(1);
            let first_change = self.is_first_change();
            self.write_to_place(block, slot, &bio.bufs, 0);
            self.has_entered(block, first_change);
            return BlockStart::Done;
        }
        let crc = store.checksum_of(&bio.bufs, 0);
        BlockStart::Slot(BlockWrite { block, slot, crc, class: bio.class })
    }

    /// Whether the pacer may delay a write.
    fn is_slowed(&self) -> bool {
        let wb = &self.writeback;
        let free = u64::from(self.store.free_blocks());
        wb.is_busy() && !wb.pacing.pacer.borrow_mut().has_space(free)
    }

    /// Enters a block into the map whose data have been written to its slot. Returns the outcome of
    /// the client's write; `None` if that has to wait, for `end_block_later`.
    pub(crate) fn end_block(&self, write: &BlockWrite, written: Status) -> Option<Status> {
        if written != Status::Ok {
            // No block refers to the slot: the block keeps its old version.
            self.store.slots.borrow_mut().abandon(write.slot);
            self.store.waits.blocks_changed();
            return Some(written);
        }
        if self.store.must_commit_before(1) || self.writes_through() {
            return None;
        }
        self.enter_block(write);
        Some(Status::Ok)
    }

    /// The same for a write that has to wait for a commit, or for the origin.
    pub(crate) async fn end_block_later(&self, write: BlockWrite) -> Status {
        self.store.reserve_unlogged(1).await;
        if !self.enter_block(&write) {
            return Status::Ok;
        }
        self.write_begun_through(write.block..write.block + 1, write.class).await.into()
    }

    fn enter_block(&self, write: &BlockWrite) -> bool {
        let first_change = self.is_first_change();
        self.install_block(write.block, write.slot, write.crc);
        self.has_entered(write.block, first_change)
    }

    /// Whether a task may wait for the change that follows.
    fn is_first_change(&self) -> bool {
        let c = self.store.counts();
        c.unlogged == 0 || c.dirty == 0
    }

    /// A block has entered the map. Returns whether it must go to the origin, too.
    fn has_entered(&self, block: u64, first_change: bool) -> bool {
        if self.merges.any() {
            self.merges.overtake(block..block + 1);
        }
        self.wake_after_changes(first_change, Ok(()))
    }
}
