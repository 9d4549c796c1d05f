// SPDX-License-Identifier: Apache-2.0 OR MIT
//! Growth: the store takes a layout with more slots while it is in use.
//!
//! ```text
//!   in use    metadata A │ slots                         │
//!   after it  (unused)   │ slots ................... more │ checkpoint, log: metadata B │
//!
//!   B: log blanked, checkpoint of the map ─▶ commit ─▶ records since then copied ─▶ flush
//!      ─▶ superblock with the new layout: B counts ─▶ slots of the new space are free
//! ```
//!
//! Growth is a checkpoint in another place. Until the superblock names the new layout nothing of
//! the old one has changed, and whatever was written is beyond its end. No commit runs from the
//! copy of the records to the superblock: clients that flush wait for these few writes.
//!
//! Invariants
//! - WC-GR1 The new place of the log holds no record of the cache before the superblock names it,
//!   but copies of the records that follow the new checkpoint.
//! - WC-GR2 Checkpoint, blank log and copies are durable before the superblock names them.
//! - WC-GR3 A slot of the new space is used only when a durable superblock has it: before, recovery
//!   would refuse the record that names it.
//! - WC-GR4 What the old layout has in the new space (metadata of an earlier growth) is read and
//!   written by nobody when the slots there are free: checkpoints and commits wait.
//! - WC-GR5 The reserve of the log is whole after it (WC-LR1): while the map is written commits use
//!   half of the log, and then two more commits half of the reserve each (WC-LR3). What follows the
//!   checkpoint is three quarters of the log at most, and the next checkpoint has a quarter to end.
//! - WC-GR7 The new log has a record of this opening, if need be an empty one: records before the
//!   checkpoint are not copied, and a journal of an opening that no record tells of does not count
//!   (WC-JR2).
//! - WC-GR8 Nothing is written beyond the end of a cache that has failed. It may have failed with
//!   the superblock that names a new layout: whether that is durable, the next opening finds out.
use std::rc::Rc;

use block::{Buf, Class, Status};
use format::{CheckpointRef, Geometry, UNIT};

use super::Store;
use super::media::{Media, Native, SlotArea};
use crate::map::Batch;
use crate::planted::Fault;
use crate::recovery::area::wait_all;

/// Units that are blanked or copied at once: 1 MiB.
const UNITS_AT_ONCE: u64 = 256;

/// A layout that the next run of commits makes that of the cache.
pub(super) struct Growth {
    new: Geometry,
    checkpoint: CheckpointRef,
    /// To be called when the slots are there.
    switched: Rc<dyn Fn()>,
}

impl Store {
    /// Blanks the log of a new layout (WC-GR1). Nothing counts on it yet.
    ///
    /// # Errors
    /// Errors of the cache device; `Busy` if a suspend has begun meanwhile.
    pub(crate) async fn blank_log(&self, new: &Geometry) -> Result<(), Status> {
        if self.has_fault(Fault::GrownLogNotBlanked) {
            return Ok(());
        }
        let units = u64::from(new.log_units);
        let blank = Buf::zeroed(usize::try_from(UNITS_AT_ONCE).expect("256") * UNIT);
        let mut at = 0;
        while at < units {
            if !self.has_fault(Fault::GrownAfterFailure) {
                self.health()?; // WC-GR8
            }
            if self.life.is_about_to_stop() {
                return Err(Status::Again);
            }
            let count = UNITS_AT_ONCE.min(units - at);
            let range = 0..usize::try_from(count).expect("at most 256");
            self.write_area(new.log_start() + at * UNIT as u64, &blank, range).await?;
            at += count;
        }
        Ok(())
    }

    /// Takes a layout with more slots, whose log is blank. Calls `switched` at the moment when the
    /// slots are there. An error before the cache has failed leaves it as it was.
    ///
    /// Cost: a checkpoint, four flushes, and twice the log.
    pub(crate) async fn take_layout(
        &self,
        native: &Native,
        new: Geometry,
        switched: Rc<dyn Fn()>,
    ) -> Result<(), Status> {
        self.hold_checkpoints().await?;
        native.log.is_moving.set(true);
        let grown = self.move_metadata(native, new, switched).await;
        native.log.is_moving.set(false);
        native.log.closing.set(false);
        self.end_checkpoint();
        grown
    }

    /// Waits until no checkpoint is being written; none begins until `end_checkpoint`.
    async fn hold_checkpoints(&self) -> Result<(), Status> {
        let life = &self.life;
        let is_free = || !life.in_checkpoint.get() || life.is_about_to_stop();
        self.waits.writes_ended.wait_for(|| is_free() || self.health().is_err()).await;
        self.health()?;
        if life.is_about_to_stop() {
            return Err(Status::Again);
        }
        life.in_checkpoint.set(true);
        Ok(())
    }

    async fn move_metadata(
        &self,
        native: &Native,
        new: Geometry,
        switched: Rc<dyn Fn()>,
    ) -> Result<(), Status> {
        if self.has_fault(Fault::GrownSlotsEarly) {
            self.take_slots(&new);
        }
        let mut checkpoint = Self::next_checkpoint(native, 0);
        self.dump_map(native, new, &mut checkpoint).await?;
        native.log.closing.set(true);
        native.log.room.wake_all();
        *self.growth.borrow_mut() = Some(Growth { new, checkpoint, switched });
        self.commit().await?;
        self.stats.checkpoints.add(1);
        Ok(())
    }

    /// A run of commits: all changes up to now, and then the new layout, if one waited when the run
    /// began. So no commit is running while the layout changes, and all that the checkpoint has is
    /// in the log.
    pub(super) async fn run_commit(&self) {
        let growth = self.growth.take();
        self.commit_changed().await;
        if let (Some(growth), Media::Native(native)) = (growth, &self.media) {
            // The commit has used the reserve of the log, which only a checkpoint makes whole.
            let switched = self.switch(native, growth).await;
            switched.unwrap_or_else(|status| self.fail(status));
        }
    }

    async fn switch(&self, native: &Native, growth: Growth) -> Result<(), Status> {
        let Growth { new, checkpoint, switched } = growth;
        self.health()?;
        let follows = native.log.next.get().0 - checkpoint.log_start_seq;
        if follows == 0 && !self.has_fault(Fault::GrownLogUnsaid) {
            // WC-GR7. The commit before has used none of its half of the reserve. The flush below
            // (WC-GR2) takes the record with its copy.
            wait_all(self.begin_records(native, native.log.next.get(), &Batch::default())).await?;
        }
        if self.has_fault(Fault::GrownSuperblockEarly) {
            self.write_superblock(native, checkpoint, new).await?;
        }
        if !self.has_fault(Fault::GrownLogNotCopied) {
            self.copy_log(native, &new, checkpoint.log_start_seq).await?;
        }
        if !self.has_fault(Fault::GrownUnflushed) {
            self.flush_device().await?; // WC-GR2
            let (next_seq, link) = native.log.next.get();
            native.log.durable.set((next_seq - 1, link));
        }
        if !self.has_fault(Fault::GrownSuperblockEarly) {
            self.write_superblock(native, checkpoint, new).await?;
        }
        native.log.start_seq.set(checkpoint.log_start_seq);
        native.log.closing.set(false);
        native.geometry.set(new);
        if !self.has_fault(Fault::GrownSlotsEarly) {
            self.take_slots(&new); // WC-GR3
        }
        switched();
        Ok(())
    }

    fn take_slots(&self, new: &Geometry) {
        self.slot_area.set(SlotArea::of(new));
        self.unlogged_max.set(self.media.unlogged_max(self.config.ordered));
        self.slots.borrow_mut().grow(new.slots);
    }

    /// Copies the records from `start` on to their places in the log of a new layout.
    async fn copy_log(&self, native: &Native, new: &Geometry, start: u64) -> Result<(), Status> {
        let (old, end) = (native.geometry.get(), native.log.next.get().0);
        let mut seq = start;
        while seq < end {
            let to_end = |log_units: u32| u64::from(log_units) - seq % u64::from(log_units);
            let count = UNITS_AT_ONCE.min(end - seq);
            let count = count.min(to_end(old.log_units)).min(to_end(new.log_units));
            let units = 0..usize::try_from(count).expect("at most 256");
            let buf = Buf::alloc(units.end * UNIT);
            let at = self.area_sector(old.log_offset(seq));
            reactor::read(&*self.device, Class::Foreground, at, buf.all().into()).await?;
            self.write_area(new.log_offset(seq), &buf, units).await?;
            seq += count;
        }
        Ok(())
    }

    /// The native format's state, if it is the format of the cache.
    pub(crate) fn native(&self) -> Option<&Native> {
        match &self.media {
            Media::Native(native) => Some(native),
            Media::Dm(_) => None,
        }
    }
}
