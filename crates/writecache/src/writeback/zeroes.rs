// SPDX-License-Identifier: Apache-2.0 OR MIT
//! Writes the zeroes of the epoch that is written back: all of them, in pieces, then one origin
//! flush.
//!
//! ```text
//!   piece: lock ─▶ WRITE_ZEROES, or writes where the origin knows none ─▶ unlock
//!   the last one ─▶ origin FLUSH ─▶ the epoch is written
//! ```
//!
//! After an error all zeroes of the epoch are written again, which only takes time.
//!
//! Invariants
//! - As for blocks, WC-WB1 and WC-WB3 hold. WC-RT1: an error of zeroes counts as one of their first
//!   block.
//! - By WC-RT2 the flush counts only if no origin flush has failed since the first piece was sent.
use std::ops::Range;

use block::{Buf, Class, Flags, Sector, Status};

use super::{Writeback, ZeroProgress};
use crate::planted::Fault;

/// Length of one request, for which a suspend or a client's read may have to wait. Chosen: a disk
/// that has to write the zeroes takes half a second.
const PIECE_BYTES: u64 = 64 << 20;
/// Length of one write, if the origin does not support WRITE_ZEROES.
const WRITE_BYTES: u64 = 1 << 20;

impl Writeback {
    /// Writes the next piece of the phase's zeroes. Returns false if there are none, or if they
    /// wait for their next try.
    pub(super) async fn write_zeroes_of_phase(&self) -> bool {
        let Some((epoch, count)) = self.store.slots.borrow().phase_zeroes() else { return false };
        let at = self.picker.zero_progress.get();
        let fits =
            |z: &ZeroProgress| z.epoch == epoch && z.flush_errors == self.origin_flush_errors();
        let mut z = at.filter(fits).unwrap_or_else(|| {
            let next = self.store.slots.borrow().phase_zero(0).map_or(0, |range| range.start);
            ZeroProgress {
                epoch,
                nth: 0,
                next,
                by_hand: false,
                flush_errors: self.origin_flush_errors(),
            }
        });
        self.picker.zero_progress.set(None);
        let range = self.store.slots.borrow().phase_zero(z.nth);
        let Some(range) = range else { return self.end_zeroes_of_phase(z, count).await };
        if self.retry.skip(range.start) > range.start {
            return false; // it is not time for the next try
        }
        let blocks = if z.by_hand { self.io_blocks() } else { self.zeroes_at_once() };
        let piece = z.next..(z.next + blocks).min(range.end);
        self.in_flight.runs.set(self.in_flight.runs.get() + 1);
        let job = self.jobs.begun.get();
        let written = self.write_zero_piece(&piece, z.by_hand).await;
        self.in_flight.runs.set(self.in_flight.runs.get() - 1);
        match written {
            Ok(()) if piece.end < range.end => z.next = piece.end,
            Ok(()) => {
                z.nth += 1;
                z.next = self.store.slots.borrow().phase_zero(z.nth).map_or(0, |next| next.start);
            }
            Err(Status::NotSupported) if !z.by_hand => z.by_hand = true,
            Err(status) => {
                if self.store.health().is_ok() {
                    self.write_failed([range.start].into_iter(), job, status);
                }
                self.store.waits.write_ended();
                return true;
            }
        }
        self.picker.zero_progress.set(Some(z));
        true
    }

    /// Blocks of one WRITE_ZEROES.
    fn zeroes_at_once(&self) -> u64 {
        PIECE_BYTES / u64::from(self.store.config.block_size)
    }

    async fn write_zero_piece(&self, piece: &Range<u64>, by_hand: bool) -> Result<(), Status> {
        // WC-WB3. The phase may have begun before its zeroes were written by the client.
        if self.store.commits.is_running() || self.store.slots.borrow().needs_logging(piece.start) {
            self.store.commit().await?;
        }
        // WC-MG1. A merge that reads the block from the origin holds its lock: it must end before
        // the zeroes reach the origin.
        self.locks.lock(piece.clone(), &self.store).await?;
        let (at, len) =
            (self.store.sector_of(piece.start), self.store.sector_of(piece.end - piece.start));
        let (flags, class) = (Flags::BACKGROUND, Class::Background);
        let written = if self.store.has_fault(Fault::ZeroesNotWritten) {
            Ok(())
        } else if by_hand {
            self.count_run(piece.end - piece.start);
            self.store.stats.origin_writes.add(1);
            self.store.stats.origin_write_bytes.add(len.bytes());
            let zero = Buf::zeroed(usize::try_from(len.bytes()).expect("writeback_io_bytes"));
            reactor::write(&*self.origin.device, flags, class, at, zero.all().into()).await
        } else {
            reactor::write_zeroes(&*self.origin.device, flags, class, at, len).await
        };
        self.locks.unlock(piece, &self.store);
        if by_hand && written.is_ok() {
            self.store.stats.written_back_bytes.add(len.bytes());
        }
        written
    }

    /// All zeroes of the phase are written: flushes the origin.
    async fn end_zeroes_of_phase(&self, z: ZeroProgress, count: usize) -> bool {
        let flushed = match self.store.has_fault(Fault::ZeroesNotFlushed) {
            true => Ok(()),
            false => self.flush_origin(Class::Background, z.flush_errors).await,
        };
        if flushed.is_ok() {
            let starts: Vec<u64> = {
                let slots = self.store.slots.borrow();
                (0..count).filter_map(|nth| Some(slots.phase_zero(nth)?.start)).collect()
            };
            self.store.slots.borrow_mut().complete_phase_zeroes();
            self.clear_failing(starts.into_iter());
        }
        self.recheck();
        self.store.waits.jobs.wake_all();
        true
    }

    /// Zeroes a range of the origin. The zeroes are not durable yet.
    pub(crate) async fn zero_origin(&self, at: Sector, len: Sector) -> Result<(), Status> {
        let class = Class::Normal;
        match reactor::write_zeroes(&*self.origin.device, Flags::empty(), class, at, len).await {
            Err(Status::NotSupported) => self.write_zeroes_by_hand(at, len, class).await,
            outcome => outcome,
        }
    }

    /// Writes zeroes as data, for an origin that does not support WRITE_ZEROES.
    pub(crate) async fn write_zeroes_by_hand(
        &self,
        mut at: Sector,
        len: Sector,
        class: Class,
    ) -> Result<(), Status> {
        let end = at + len;
        let longest = WRITE_BYTES.min(len.bytes());
        let zero = Buf::zeroed(usize::try_from(longest).expect("at most 1 MiB"));
        while at < end {
            let bytes = (end - at).bytes().min(longest);
            let piece = zero.slice(0..usize::try_from(bytes).expect("at most 1 MiB"));
            reactor::write(&*self.origin.device, Flags::empty(), class, at, piece.into()).await?;
            at += Sector::from_bytes(bytes);
        }
        Ok(())
    }

    /// Ordered mode was switched off while zeroes were pending: writes them to the origin before
    /// the cache is used. Newer versions of their blocks are in the cache.
    ///
    /// Cost: the zeroes, and one flush of the origin; nothing if there are none.
    pub(crate) async fn write_zeroes_without_order(&self) -> Result<(), Status> {
        if self.store.config.ordered || self.store.counts().zero == 0 {
            return Ok(());
        }
        let ranges: Vec<_> = self.store.slots.borrow().zero_ranges().collect();
        let blocks = self.zeroes_at_once();
        let flush_errors = self.origin_flush_errors();
        for range in ranges {
            let mut at = range.start;
            while at < range.end {
                let end = (at + blocks).min(range.end);
                self.zero_origin(self.store.sector_of(at), self.store.sector_of(end - at)).await?;
                at = end;
            }
        }
        self.flush_origin(Class::Foreground, flush_errors).await?;
        self.store.slots.borrow_mut().drop_zeroes();
        Ok(())
    }
}
