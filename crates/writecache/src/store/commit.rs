// SPDX-License-Identifier: Apache-2.0 OR MIT
//! Commit: make every write that has completed durable, with one flush of the cache device.
//!
//! ```text
//!   data writes completed ─▶ records: one write ─▶ one FLUSH ─▶ freed slots may be used again
//! ```
//!
//! A record holds the slot of each changed block, with the checksum of its data. Data and record
//! share the flush. No order between them is needed, because recovery checks the data of every
//! record that no later record calls durable.
//!
//! A checkpoint makes room in the log. It ends only after a commit that began after its dump, so
//! that commit must never wait for room.
//!
//! Invariants
//! - WC-LR1 A quarter of the log, the reserve, is used only while a checkpoint is closing. A
//!   checkpoint begins when half of the log is used, and a batch takes a quarter at most. So it
//!   frees a quarter or more, and the reserve is whole when the next one is closing. With 1024
//!   units: it begins at 512 used, the batch in progress ends below 768, the reserve is 256.
//! - WC-LR2 Unlogged blocks take at most half of the reserve, less one unit: `unlogged_max` blocks,
//!   or `CHANGES_AT_ONCE_MAX` where that is more. Code that changes blocks asks for room just
//!   before (`reserve_unlogged`). `Counts::unlogged` is at least the number of their entries.
//! - WC-LR3 A commit logs what was unlogged when it began, and nothing that came since. So from the
//!   moment a checkpoint is closing until its own commit has ended two commits take room: the rest
//!   of the one in progress, in one batch, and its own. Each takes what WC-LR2 allows (or one unit:
//!   a seal), and there is room for both.
//!
//! Cost of a lone FLUSH after a write: one record write and one device flush. N concurrent
//! flushes cost the same. A FLUSH with nothing new costs nothing.
use block::{Buf, Class, Flags, Status};
use format::{ENTRIES_PER_UNIT, Kind, RecordHeader, UNIT};
use reactor::{BioFuture, yield_now};
use smallvec::SmallVec;

use super::Store;
use super::media::{CHANGES_AT_ONCE_MAX, Media, Native, reserve_units};
use crate::map::Batch;
use crate::planted::Fault;
use crate::recovery::area::wait_all;

/// Blocks of a batch that are looked at, or slots that are freed, between two yields. Chosen: one
/// takes 0.1 to 0.3 microseconds, since neither index nor slot is in the processor's cache.
const BATCH_PIECE: usize = 256;
/// Units of one log write: 1 MiB.
const UNITS_PER_WRITE: usize = 256;

impl Store {
    /// Makes durable every write that completed before this call.
    pub(crate) async fn commit(&self) -> Result<(), Status> {
        self.health()?;
        self.write_out();
        self.commits.join(async || self.run_commit().await).await;
        self.health()
    }

    pub(super) async fn commit_changed(&self) {
        if self.health().is_err() {
            return;
        }
        self.slots.borrow_mut().begin_commit();
        while !self.slots.borrow().is_commit_complete() {
            let committed = match &self.media {
                Media::Native(native) => self.commit_records(native).await,
                Media::Dm(dm) => self.commit_entries(dm).await,
            };
            if let Err(status) = committed {
                self.fail_refused(status); // a flush that fails has said so before
                return;
            }
            self.waits.free_slots.wake_all();
            if self.config.ordered {
                // All versions of an epoch may be logged now.
                self.waits.pick.wake_all();
                self.waits.settle.wake_all();
                self.waits.jobs.wake_all();
            }
            if self.is_checkpoint_due() {
                self.waits.checkpoint.wake_all();
            }
        }
        self.slots.borrow_mut().end_commit();
    }

    /// Logs all changes, in batches as large as the log has room for. Clients are served between
    /// the pieces of a batch: a block that changes then is logged by the next commit.
    async fn commit_records(&self, native: &Native) -> Result<(), Status> {
        let units = self.log_room(native).await;
        let max = units * ENTRIES_PER_UNIT;
        let piece = self.config.test_sizes.batch_piece.unwrap_or(BATCH_PIECE);
        let mut batch = self.slots.borrow_mut().begin_batch();
        while !self.slots.borrow_mut().extend_batch(&mut batch, max, piece) {
            yield_now().await;
            if self.has_fault(Fault::ChangedBetweenPieces) {
                self.slots.borrow_mut().forget_changes_of(&batch);
            }
        }
        if let Err(status) = self.write_batch(native, &mut batch).await {
            self.slots.borrow_mut().give_up_batch(&batch);
            return Err(status);
        }
        self.slots.borrow_mut().end_batch(&batch);
        while !self.slots.borrow_mut().free_superseded(&mut batch, piece) {
            yield_now().await;
        }
        Ok(())
    }

    /// Writes an empty record, which says that all records before it are durable. Without it, bit
    /// rot in the newest batch would look like a torn end of the log. A clean suspend always writes
    /// one.
    ///
    /// Cost: one record write and one flush, at suspend.
    pub(crate) async fn seal(&self) -> Result<(), Status> {
        let Media::Native(native) = &self.media else { return Ok(()) };
        let work = async || {
            // Callers of `commit` may have joined this run.
            self.run_commit().await;
            if self.health().is_ok() && self.log_room(native).await > 0 {
                let sealed = self.write_batch(native, &mut Batch::default()).await;
                sealed.unwrap_or_else(|status| self.fail_refused(status));
            }
        };
        self.commits.join(work).await;
        self.health()
    }

    /// Waits until the log has room for a record; returns how many units a batch may take (WC-LR1).
    async fn log_room(&self, native: &Native) -> usize {
        let log_units = native.geometry.get().log_units;
        let (total, reserve) = (u64::from(log_units), reserve_units(log_units));
        let room = || {
            let kept = match (native.log.closing.get(), native.log.is_moving.get()) {
                (true, _) => 0,
                (false, true) => total / 2, // WC-GR5
                (false, false) => reserve,
            };
            (total - kept).saturating_sub(native.log.used())
        };
        native.log.room.wait_for(|| room() > 0 || self.health().is_err()).await;
        usize::try_from(room().min(reserve)).expect("at most log_units")
    }

    /// Writes the records of a batch and flushes. The batch is durable when this returns.
    async fn write_batch(&self, native: &Native, batch: &mut Batch) -> Result<(), Status> {
        batch.follow(self.buffer.take_moves());
        let first = native.log.next.get();
        let records = self.begin_records(native, first, batch);
        if !self.buffer.is_written() {
            self.write_out_all().await; // WC-BF4
        }
        if self.has_fault(Fault::FlushBeforeRecords) {
            self.flush_device().await?;
        }
        wait_all(records).await?;
        // The first records name slots that have refused their data: no flush has covered them.
        if batch.follow(self.buffer.take_moves()) && !self.has_fault(Fault::RecordsNotRepeated) {
            wait_all(self.begin_records(native, first, batch)).await?;
        }
        self.health()?;
        self.stats.commits.add(1);
        if !self.has_fault(Fault::SkipCacheFlush) && !self.has_fault(Fault::FlushBeforeRecords) {
            self.flush_device().await?;
        }
        let (next_seq, link) = native.log.next.get();
        native.log.durable.set((next_seq - 1, link));
        Ok(())
    }

    /// Begins to write the records of a batch, as number `first_seq` and later ones of the log.
    pub(super) fn begin_records(
        &self,
        native: &Native,
        (first_seq, mut link): (u64, u32),
        batch: &Batch,
    ) -> SmallVec<[BioFuture; 2]> {
        let units = batch.entries.chunks(ENTRIES_PER_UNIT).len().max(1);
        let buf = Buf::alloc(units * UNIT);
        let uuid = native.superblock.borrow().uuid;
        let flushed_seq = native.log.durable.get().0;
        buf.write(|out| {
            let mut entries = batch.entries.chunks(ENTRIES_PER_UNIT);
            for (seq, unit) in (first_seq..).zip(out.chunks_mut(UNIT)) {
                let entries = entries.next().unwrap_or_default();
                let count = u16::try_from(entries.len()).expect("at most ENTRIES_PER_UNIT");
                let incarnation = native.log.incarnation;
                let kind = Kind::Log;
                let header =
                    RecordHeader { kind, uuid, seq, incarnation, link, flushed_seq, count };
                link = format::encode_record(&header, entries, unit);
            }
        });
        native.log.next.set((first_seq + units as u64, link));
        let geometry = native.geometry.get();
        let log_units = u64::from(geometry.log_units);
        let mut writes = SmallVec::new();
        let mut at = 0;
        while at < units {
            let seq = first_seq + at as u64;
            // The log is a ring.
            let to_end = usize::try_from(log_units - seq % log_units).expect("at most log_units");
            let end = (at + UNITS_PER_WRITE.min(to_end)).min(units);
            writes.push(self.write_area(geometry.log_offset(seq), &buf, at..end));
            at = end;
        }
        writes
    }

    /// Writes `units` of `buf` at `offset` of the cache area.
    pub(crate) fn write_area(
        &self,
        offset: u64,
        buf: &Buf,
        units: std::ops::Range<usize>,
    ) -> BioFuture {
        let data = buf.slice(units.start * UNIT..units.end * UNIT);
        self.stats.metadata_write_bytes.add((units.len() * UNIT) as u64);
        let at = self.area_sector(offset);
        reactor::write(&*self.device, Flags::SYNC | Flags::META, Class::Foreground, at, data.into())
    }

    /// Flushes the cache device. One flush of the device is in flight at a time: a flush that fails
    /// may have lost data that the next one, which succeeds, should have made durable. So the
    /// failure must be known before the next flush begins (WC-I8).
    pub(crate) async fn flush_device(&self) -> Result<(), Status> {
        let flush = async || {
            self.stats.cache_flushes.add(1);
            let flushed = reactor::flush(&*self.device, Class::Foreground).await;
            flushed.unwrap_or_else(|status| self.fail(status));
        };
        self.device_flush.join(flush).await;
        self.health()
    }

    /// WC-LR2: waits until `blocks` more blocks may change at once. A failed commit is not an error
    /// of this caller: the next FLUSH returns it.
    pub(crate) async fn reserve_unlogged(&self, blocks: usize) {
        assert!(blocks <= CHANGES_AT_ONCE_MAX, "{blocks} blocks at one go");
        while self.must_commit_before(blocks) && self.commit().await.is_ok() {}
    }

    /// WC-LR2: whether a commit has to make room before `blocks` more blocks may change.
    #[inline]
    pub(crate) fn must_commit_before(&self, blocks: usize) -> bool {
        let slots = self.slots.borrow();
        let changed = slots.counts().unlogged;
        let is_log_full = changed > 0 && changed + blocks as u64 > self.unlogged_max();
        is_log_full || slots.is_journal_full(blocks)
    }
}
