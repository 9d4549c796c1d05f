// SPDX-License-Identifier: Apache-2.0 OR MIT
//! Writes, discards and flushes: into the log, and the log into the store.
//!
//! Costs: a write copies its data once and completes; a segment is one PUT; a FLUSH sends what is
//! gathered and waits for the chain, one PUT for all that wait. Of writes of the same sectors that
//! are gathered together only the last is sent (OV-L6).
//!
//! Invariants
//! - OV-W1 FLUSH completes when every segment up to it is in the store in an unbroken chain from
//!   the first of the epoch on. A segment that is there behind a hole does not count.
//! - OV-W2 Writes that are submitted after a FLUSH was submitted lie behind what it covers, or in
//!   the same segment: no crash keeps them without it.
//! - OV-W3 A write is in the log when it completes, so one that is submitted later lies behind it
//!   (`Limits::keeps_write_order`).
use std::ops::Range;
use std::rc::Rc;

use block::{Bufs, Status};
use format::objvol::{EXTENT_SECTORS_MAX, SECTOR, SEGMENTS, place_name};

use crate::log::ClosedSegment;
use crate::map::ENTRY_BYTES;
use crate::planted::Fault;
use crate::requests::Creation;
use crate::shared::Shared;

impl Shared {
    fn may_close(&self) -> bool {
        self.log.borrow().may_close(self.manifest.window)
    }

    /// Closes the gathered segment and sends it; the window has room.
    pub(crate) fn close_segment(self: &Rc<Self>) {
        let closed = self.log.borrow_mut().close(self.uuid(), self.nonce());
        if let Some(closed) = closed {
            self.spawn(self.clone().send(closed));
            self.pace_writers();
            self.changed.wake_all();
        }
    }

    async fn send(self: Rc<Self>, segment: ClosedSegment) {
        let name = place_name(SEGMENTS, segment.place);
        loop {
            match self.requests.put(&name, &segment.object, segment.head_bytes).await {
                Ok(Creation::Own) => break,
                Ok(Creation::Other(there)) => {
                    return self.fence_by_object(&there, segment.place).await;
                }
                Err(_) if self.is_closing.get() => return self.give_up(),
                Err(denial) => self.wait_out(denial).await,
            }
            if self.is_fenced() {
                return;
            }
        }
        self.log.borrow_mut().land(segment.id);
        self.changed.wake_all();
    }

    /// Waits until the gathered segment has room for one more record of so many bytes.
    pub(crate) async fn wait_for_room(self: &Rc<Self>, bytes: usize) -> Result<(), Status> {
        let segment_bytes = self.manifest.segment_bytes as usize;
        loop {
            self.check_open()?;
            if self.log.borrow().has_room(bytes, segment_bytes) {
                return Ok(());
            }
            if self.may_close() {
                self.close_segment();
                continue;
            }
            let is_ready = || {
                self.is_over()
                    || self.may_close()
                    || self.log.borrow().has_room(bytes, segment_bytes)
            };
            self.changed.wait_for(is_ready).await;
        }
    }

    /// OV-G4: waits while garbage collection is behind.
    async fn wait_for_collection(&self) -> Result<(), Status> {
        let may_go_on = || self.is_fenced() || !self.is_collection_behind.get();
        self.changed.wait_for(may_go_on).await;
        self.check_fence()
    }

    /// A write of whole sectors.
    pub(crate) async fn write(self: &Rc<Self>, start: u64, bufs: &Bufs) -> Result<(), Status> {
        let bytes_max = EXTENT_SECTORS_MAX as usize * SECTOR;
        let bytes_max = bytes_max.min(self.manifest.segment_bytes as usize);
        let total = bufs.len_bytes();
        let mut done = 0;
        while done < total {
            let bytes = bytes_max.min(total - done);
            let at = start + (done / SECTOR) as u64;
            self.wait_for_collection().await?;
            if !self.log.borrow().replaces(at, bytes) {
                self.wait_for_room(bytes).await?;
                if self.is_map_full() {
                    return Err(Status::NoSpace);
                }
            }
            let mut log = self.log.borrow_mut();
            let range = done..done + bytes;
            if bufs.read_piece(range, |data| log.write(at, data)).is_none() {
                let mut data = vec![0; bytes];
                bufs.take_at(done, &mut data);
                log.write(at, &data);
            }
            done += bytes;
        }
        Ok(())
    }

    fn is_map_full(&self) -> bool {
        self.log.borrow().extents() as u64 * ENTRY_BYTES >= self.options.map_memory
    }

    /// The sectors read as zeroes.
    pub(crate) async fn zero(self: &Rc<Self>, range: Range<u64>) -> Result<(), Status> {
        self.wait_for_room(0).await?;
        if self.log.borrow().is_split_by(&range) && self.is_map_full() {
            return Err(Status::NoSpace);
        }
        self.log.borrow_mut().zero(range);
        Ok(())
    }

    /// Sends what is gathered now; returns the sequence of the segment up to which everything that
    /// was written before the call is closed.
    pub(crate) async fn close_gathered(self: &Rc<Self>) -> Result<u64, Status> {
        let wanted = {
            let log = self.log.borrow();
            if log.is_gathering() { log.next() } else { log.next() - 1 }
        };
        loop {
            self.check_open()?;
            if self.log.borrow().next() > wanted {
                return Ok(wanted);
            }
            if self.may_close() {
                self.close_segment();
                continue;
            }
            let is_ready =
                || self.is_over() || self.may_close() || self.log.borrow().next() > wanted;
            self.changed.wait_for(is_ready).await;
        }
    }

    /// OV-W1: waits until the chain is in the store up to `sequence`.
    pub(crate) async fn wait_for_chain(&self, sequence: u64) -> Result<(), Status> {
        let has_come = || {
            let log = self.log.borrow();
            log.durable() >= sequence
                || self.options.planted.is(Fault::AckBeforeChain) && log.has_landed(sequence)
        };
        self.changed.wait_for(|| self.is_over() || has_come()).await;
        if has_come() { self.check_fence() } else { self.check_open() }
    }

    /// Makes durable what was written before the call.
    pub(crate) async fn flush(self: &Rc<Self>) -> Result<(), Status> {
        let sequence = self.close_gathered().await?;
        self.wait_for_chain(sequence).await
    }
}
