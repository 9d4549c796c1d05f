// SPDX-License-Identifier: Apache-2.0 OR MIT
//! Checkpoint: writes the whole map while the cache works, so that the log before it is not needed.
//!
//! ```text
//!  log:  ... durable │ L ......... changes meanwhile ......... │ commit │ superblock: (area, L)
//!  map:              └─ slots 0..n in order, each as it is ────┘
//! ```
//!
//! The dump is fuzzy: each slot is written as it is at that moment. That is correct, because every
//! change after L is also in the log after L: a commit at the end makes sure of it, before the
//! superblock names the checkpoint. Dump and log from L on together give the map.
//!
//! Cost: 16 bytes for each cached block and three flushes, once each time half of the log is used.
use std::rc::Rc;

use block::{Buf, Status};
use format::{
    CheckpointRef, ENTRIES_PER_UNIT, Geometry, Kind, RecordHeader, SUPERBLOCK_COPIES, Superblock,
    UNIT,
};

use super::Store;
use super::media::{Media, Native};
use crate::map::Dump;
use crate::planted::Fault;
use crate::recovery::area::wait_all;

/// Units of one checkpoint write: 256 KiB.
const UNITS_PER_WRITE: usize = 64;

impl Store {
    /// A task: writes a checkpoint whenever half of the log is used. At suspend it ends after the
    /// other tasks, because their commits may need the room that it makes.
    pub(crate) async fn checkpoint_task(self: Rc<Store>) {
        let stop = || self.life.quiesced.get() || self.health().is_err();
        loop {
            self.waits.checkpoint.wait_for(|| self.may_checkpoint() || stop()).await;
            if stop() {
                break;
            }
            self.life.in_checkpoint.set(true);
            if let Err(status) = self.checkpoint().await {
                self.fail_refused(status);
            }
            self.end_checkpoint();
        }
        self.life.checkpoints_on.set(false);
        self.life.tasks.ended.wake_all();
    }

    /// Lets those go on that wait for the end of a checkpoint.
    pub(super) fn end_checkpoint(&self) {
        self.life.in_checkpoint.set(false);
        self.waits.writes_ended.wake_all();
        self.waits.checkpoint.wake_all();
        self.media.wake_all();
    }

    /// Whether a checkpoint is due; while work in the background is paused, whether it is urgent.
    fn may_checkpoint(&self) -> bool {
        let is_urgent = match &self.media {
            Media::Native(n) => n.log.used() >= u64::from(n.geometry.get().log_units / 4 * 3),
            Media::Dm(_) => false,
        };
        // The growth of the cache writes one itself.
        let is_free = !self.life.in_checkpoint.get();
        is_free && self.is_checkpoint_due() && (is_urgent || !self.life.background_paused.get())
    }

    /// Whether half of the log is used.
    pub(crate) fn is_checkpoint_due(&self) -> bool {
        match &self.media {
            Media::Native(n) => n.log.used() >= u64::from(n.geometry.get().log_units / 2),
            Media::Dm(_) => false,
        }
    }

    pub(crate) async fn checkpoint(&self) -> Result<(), Status> {
        let Media::Native(native) = &self.media else { return Ok(()) };
        let old = native.superblock.borrow().checkpoint;
        let area = if old.units == 0 { 0 } else { 1 - old.area };
        let mut new = Self::next_checkpoint(native, area);
        if self.has_fault(Fault::SuperblockBeforeData) {
            let live = self.counts().dirty + self.counts().clean + self.counts().bad;
            new.units = live.div_ceil(ENTRIES_PER_UNIT as u32);
            self.write_superblock(native, new, native.geometry.get()).await?;
        }
        self.dump_map(native, native.geometry.get(), &mut new).await?;
        native.log.closing.set(true);
        native.log.room.wake_all();
        let committed = self.commit().await;
        native.log.closing.set(false);
        committed?;
        if self.has_fault(Fault::CheckpointStartLate) {
            let (seq, link) = native.log.durable.get();
            (new.log_start_seq, new.log_start_link) = (seq + 1, link);
        }
        self.flush_device().await?;
        self.write_superblock(native, new, native.geometry.get()).await?;
        native.log.start_seq.set(new.log_start_seq);
        self.stats.checkpoints.add(1);
        Ok(())
    }

    /// A checkpoint that is to begin now, in this area.
    pub(super) fn next_checkpoint(native: &Native, area: u8) -> CheckpointRef {
        let (durable_seq, log_start_link) = native.log.durable.get();
        let id = native.superblock.borrow().checkpoint.id + 1;
        CheckpointRef { area, units: 0, id, log_start_seq: durable_seq + 1, log_start_link }
    }

    /// Writes the map as the units of a checkpoint.
    pub(super) async fn dump_map(
        &self,
        native: &Native,
        geometry: Geometry,
        new: &mut CheckpointRef,
    ) -> Result<(), Status> {
        let mut progress = self.slots.borrow_mut().begin_dump();
        let dumped = self.dump(native, geometry, *new, &mut progress).await;
        self.slots.borrow_mut().end_dump();
        self.waits.recheck(); // an epoch may have waited for the end (WC-Z3)
        new.units = dumped?;
        Ok(())
    }

    /// Writes every live slot to a checkpoint area; returns the number of units.
    async fn dump(
        &self,
        native: &Native,
        geometry: Geometry,
        CheckpointRef { area, id, .. }: CheckpointRef,
        progress: &mut Dump,
    ) -> Result<u32, Status> {
        let uuid = native.superblock.borrow().uuid;
        let start = geometry.checkpoint_offset(area);
        let mut units = 0u32;
        let mut link = 0;
        loop {
            let max = UNITS_PER_WRITE * ENTRIES_PER_UNIT;
            let entries = self.slots.borrow_mut().dump(progress, max);
            if entries.is_empty() {
                return Ok(units);
            }
            let count = entries.chunks(ENTRIES_PER_UNIT).len();
            let all = u64::from(units) + count as u64;
            if all > u64::from(geometry.checkpoint_units) {
                // Each slot is written once, so the dump fits, except in a crafted image: its area
                // may be smaller than a format makes it, or its epochs may have gaps.
                return Err(Status::NoSpace);
            }
            let buf = Buf::alloc(count * UNIT);
            buf.write(|out| {
                let chunks = entries.chunks(ENTRIES_PER_UNIT);
                for ((seq, part), unit) in
                    (u64::from(units)..).zip(chunks).zip(out.chunks_mut(UNIT))
                {
                    let header = RecordHeader {
                        kind: Kind::Checkpoint,
                        uuid,
                        seq,
                        incarnation: id,
                        link,
                        flushed_seq: 0,
                        count: u16::try_from(part.len()).expect("at most ENTRIES_PER_UNIT"),
                    };
                    link = format::encode_record(&header, part, unit);
                }
            });
            self.write_area(start + u64::from(units) * UNIT as u64, &buf, 0..count).await?;
            units += u32::try_from(count).expect("at most checkpoint_units");
        }
    }

    /// Writes a superblock that names another checkpoint, and this layout: copies 0 and 1, flush,
    /// copies 2 and 3, flush. So one pair is whole at every moment.
    pub(super) async fn write_superblock(
        &self,
        native: &Native,
        checkpoint: CheckpointRef,
        geometry: Geometry,
    ) -> Result<(), Status> {
        let Geometry { block_size, slots, log_units, checkpoint_units, moved } = geometry;
        let new = {
            let old = native.superblock.borrow();
            let generation = old.generation + 1;
            let new = Superblock { generation, checkpoint, ..old.clone() };
            Superblock { block_size, slots, log_units, checkpoint_units, moved, ..new }
        };
        self.write_superblock_copies(native, new).await
    }

    /// Writes a new superblock, in this way.
    pub(super) async fn write_superblock_copies(
        &self,
        native: &Native,
        new: Superblock,
    ) -> Result<(), Status> {
        for pair in [[0, 1], [2, 3]] {
            let mut writes = Vec::with_capacity(2);
            for copy in pair {
                assert!(copy < SUPERBLOCK_COPIES);
                let buf = Buf::alloc(UNIT);
                buf.write(|out| new.encode(copy, out));
                writes.push(self.write_area(Geometry::superblock_offset(copy), &buf, 0..1));
            }
            wait_all(writes).await?;
            self.flush_device().await?;
        }
        *native.superblock.borrow_mut() = new;
        Ok(())
    }
}
