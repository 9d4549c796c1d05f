// SPDX-License-Identifier: Apache-2.0 OR MIT
//! Commit in the kernel's format: writes entries, then the superblock, then erases old entries.
//!
//! ```text
//!   a  entries of new slots, number S ─▶ b  FLUSH, of data and entries ─▶ c  superblock S+1, FUA
//!                                                                               │ all visible
//!   slots may be used again ◀── FLUSH ◀── d  entries of superseded slots erased ◀┘
//! ```
//!
//! The one sector of the superblock makes all entries of the batch valid at once. A power cut
//! before that leaves invalid entries, which recovery erases (WC-DM2). A power cut after it leaves
//! two entries of a block, and the newer one counts.
//!
//! Invariants
//! - WC-DM1 The superblock is written only after the entries and the data that it makes valid are
//!   durable.
//! - WC-DM2 No entry with a number at or above the superblock's is on the media when a commit
//!   begins: the superblock that it writes would make it valid.
//! - WC-DM3 (WC-I2) A slot is reused only after its erased entry is durable. An entry is erased
//!   only after the superblock that makes the newer entry valid is durable, or when the origin
//!   holds the block.
//!
//! There is no copy of the metadata in memory: units of 4 KiB are made from the map. The map does
//! not store the number of an entry: entries that were committed before are written again with the
//! number before the batch's, which is enough to order two entries of a block (WC-KE2).
//!
//! Cost of a lone FLUSH after writes: the touched units, a flush and the superblock; with
//! overwritten blocks the touched units again, and another flush.
use std::ops::Range;

use block::{Buf, Class, Flags, Status};
use format::dm::{ENTRY_BYTES, HEADER_BYTES, Superblock};
use reactor::BioFuture;

use super::Store;
use super::dm::{Dm, touched_units, unit_bytes};
use crate::map::{EntryBatch, EntryVersions};
use crate::planted::Fault;
use crate::recovery::area::wait_all;

/// Units of one write: 1 MiB.
const UNITS_PER_WRITE: u64 = 256;
/// Units of entries in flight: 4 MiB, which bounds the memory of a commit.
const UNITS_IN_FLIGHT: usize = 1024;
impl Store {
    /// Commits all changes.
    pub(crate) async fn commit_entries(&self, dm: &Dm) -> Result<(), Status> {
        let batch = self.slots.borrow_mut().take_entries();
        let writing = EntryVersions { seq: dm.seq.get(), erased: false };
        if !batch.named.is_empty() {
            if let Err(status) = self.commit_new(dm, &batch, writing).await {
                self.slots.borrow_mut().give_up_entries(&batch);
                return Err(status);
            }
            self.stats.commits.add(1);
        }
        if !batch.erased.is_empty() {
            self.erase_old(dm, &batch, EntryVersions { erased: true, ..writing }).await?;
            self.slots.borrow_mut().complete_erase(&batch);
        }
        Ok(())
    }

    async fn commit_new(
        &self,
        dm: &Dm,
        batch: &EntryBatch,
        writing: EntryVersions,
    ) -> Result<(), Status> {
        if self.has_fault(Fault::SuperblockBeforeEntries) {
            self.write_header(dm, batch, writing).await?;
        }
        self.write_entries(dm, &batch.named, batch, writing).await?;
        // WC-I1: the data are on the device, as are the entries.
        if !self.has_fault(Fault::SkipCacheFlush) {
            self.flush_device().await?;
        }
        self.write_header(dm, batch, writing).await?; // WC-DM1
        dm.seq.set(writing.seq + 1);
        Ok(())
    }

    async fn erase_old(
        &self,
        dm: &Dm,
        batch: &EntryBatch,
        writing: EntryVersions,
    ) -> Result<(), Status> {
        self.write_entries(dm, &batch.erased, batch, writing).await?;
        if self.has_fault(Fault::ReuseBeforeErase) {
            return Ok(());
        }
        self.flush_device().await // WC-DM3
    }

    /// Writes the units that hold the entries of `touched`.
    async fn write_entries(
        &self,
        dm: &Dm,
        touched: &[u32],
        batch: &EntryBatch,
        writing: EntryVersions,
    ) -> Result<(), Status> {
        let runs = touched_units(&dm.geometry, touched, UNITS_PER_WRITE);
        let mut writes = Vec::new();
        let mut units = 0;
        for run in runs {
            let bytes = unit_bytes(&dm.geometry, run.clone());
            writes.push(self.write_metadata(dm, bytes, dm.seq.get(), batch, writing, Flags::SYNC));
            units += run.count();
            if units >= UNITS_IN_FLIGHT {
                units = 0;
                wait_all(std::mem::take(&mut writes)).await?;
            }
        }
        wait_all(writes).await
    }

    /// Writes the superblock with the next number. It is one sector, which a power cut leaves old
    /// or new. The entries in the same sector have the values that are already durable.
    async fn write_header(
        &self,
        dm: &Dm,
        batch: &EntryBatch,
        writing: EntryVersions,
    ) -> Result<(), Status> {
        let sector = u64::from(self.device.limits().write_unit_bytes());
        let next = dm.seq.get() + 1;
        self.write_metadata(dm, 0..sector, next, batch, writing, Flags::SYNC | Flags::FUA).await
    }

    /// Makes some bytes of the metadata from the map and writes them.
    fn write_metadata(
        &self,
        dm: &Dm,
        bytes: Range<u64>,
        seq_count: u64,
        batch: &EntryBatch,
        writing: EntryVersions,
        flags: Flags,
    ) -> BioFuture {
        let len = usize::try_from(bytes.end - bytes.start).expect("at most 1 MiB");
        let buf = Buf::zeroed(len);
        buf.write(|out| {
            let header = if bytes.start == 0 { HEADER_BYTES } else { 0 };
            let (head, entries) = out.split_at_mut(header);
            if !head.is_empty() {
                let (block_size, n_blocks) = (dm.geometry.block_size(), dm.geometry.n_blocks());
                Superblock { block_size, n_blocks, seq_count }.encode(head);
            }
            let index = |offset: u64| {
                let index = (offset - HEADER_BYTES as u64) / ENTRY_BYTES as u64;
                u32::try_from(index).map_or(dm.slots, |index| index.min(dm.slots))
            };
            let slots = index(bytes.start + header as u64)..index(bytes.end);
            let sectors = self.config.block_sectors();
            self.slots.borrow().encode_entries(slots, sectors, batch, writing, entries);
        });
        let at = self.area_sector(bytes.start);
        self.stats.metadata_write_bytes.add(len as u64);
        reactor::write(&*self.device, flags | Flags::META, Class::Foreground, at, buf.into())
    }
}
