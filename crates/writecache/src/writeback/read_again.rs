// SPDX-License-Identifier: Apache-2.0 OR MIT
//! Dirty blocks that the cache device could not read: they are read again, until they are right, or
//! have been written again.
//!
//! ```text
//!   dirty ── its read fails ──▶ bad ── read again: matches its checksum ──▶ dirty
//!                                └───── does not match ──▶ rotten, and bad still
//! ```
//!
//! A device that answers nothing for a moment would make every block bad that writeback reads. So
//! what the cache writes back by itself waits until something can be read again.
//!
//! Invariants
//! - WC-UR1 A bad block is dirty again only with data that match its checksum: the device may have
//!   come back with other contents.
//! - WC-UR2 Fewer than twice `FAILED_MAX` reads fail between two waits, and the wait doubles while
//!   no block comes back, up to a minute.
use std::rc::Weak;

use block::{Buf, Class};

use super::Writeback;
use super::unreadable::FIRST_WAIT;
use crate::events::CacheEvent;
use crate::map::{SlotRef, State, next_in};
use crate::planted::Fault;

/// Reads in flight.
const READS_AT_ONCE: usize = 16;
/// Failed reads after which a try ends. Chosen: a failing disk may take seconds for each.
const FAILED_MAX: usize = READS_AT_ONCE;

/// What a try has found.
#[derive(Default)]
struct Outcome {
    restored: u64,
    has_answered: bool,
}

impl Writeback {
    /// How many bad blocks do not match their checksum.
    pub(crate) fn rotten_blocks(&self) -> u64 {
        self.unreadable.rotten.borrow().intersection_len(self.store.slots.borrow().bad())
    }

    /// Whether writeback that nobody waits for would only find more unreadable blocks.
    pub(super) fn waits_for_cache_device(&self) -> bool {
        let is_awaited = self.jobs.flush.borrow().is_some() || self.jobs.drain.borrow().is_some();
        self.unreadable.is_silent.get() && !is_awaited
    }

    /// The cache device has failed to read a dirty block.
    pub(super) fn cache_device_is_silent(&self) {
        if !self.unreadable.is_silent.replace(true) {
            self.unreadable.silent.set(0);
        }
        self.store.waits.retry.wake_all();
    }

    /// A task: tries unreadable blocks again. Suspend does not wait for this task. While it sleeps
    /// it holds no reference, so that the devices may be closed.
    pub(crate) async fn unreadable_task(weak: Weak<Writeback>, period: u64) {
        while let Some(wb) = weak.upgrade() {
            let life = &wb.store.life;
            let over = || life.stopping.get() || life.period.get() != period;
            let has_any = || wb.unreadable.is_silent.get() || wb.store.counts().bad > 0;
            wb.store.waits.retry.wait_for(|| has_any() || over()).await;
            if over() {
                return;
            }
            let began = reactor::now();
            drop(wb);
            let wb = loop {
                reactor::sleep(FIRST_WAIT).await;
                let Some(wb) = weak.upgrade() else { return };
                let life = &wb.store.life;
                if life.stopping.get() || life.period.get() != period {
                    return;
                }
                if reactor::now().0 - began.0 >= wb.unreadable.wait_ns() {
                    break wb;
                }
            };
            let _guard = wb.store.life.guard();
            wb.try_unreadable().await;
        }
    }

    async fn try_unreadable(&self) {
        let state = &self.unreadable;
        let mut found = Outcome::default();
        let mut failed = 0;
        let mut at = state.cursor.get();
        let mut has_wrapped = at == 0;
        if self.store.has_fault(Fault::NeverReadAgain) {
            return;
        }
        while failed < FAILED_MAX && !self.store.life.is_about_to_stop() {
            let batch = self.next_bad(at);
            let Some(&(last, _, _)) = batch.last() else {
                if std::mem::replace(&mut has_wrapped, true) {
                    break;
                }
                at = 0;
                continue;
            };
            at = last + 1;
            failed += self.read_again(&batch, &mut found).await;
        }
        state.cursor.set(at);
        found.has_answered |= self.store.counts().bad == 0;
        if !found.has_answered {
            found.has_answered = self.reads_any().await;
        }
        state.is_silent.set(!found.has_answered);
        state.silent.set(if found.has_answered { 0 } else { state.silent.get().saturating_add(1) });
        state.vain.set(if found.restored > 0 { 0 } else { state.vain.get().saturating_add(1) });
        let unreadable = u64::from(self.store.counts().bad) - self.rotten_blocks();
        if found.restored > 0 {
            if unreadable == 0 {
                self.store.health.drain_only.set(None);
            }
            self.store.notify(CacheEvent::ReadAgain { blocks: found.restored, unreadable });
        }
        if !self.store.has_fault(Fault::WaitForBad) {
            self.recheck();
        }
        self.store.waits.blocks_changed();
    }

    /// The next bad blocks from `from` on whose checksums are known.
    fn next_bad(&self, from: u64) -> Vec<(u64, SlotRef, u32)> {
        let slots = self.store.slots.borrow();
        let version = |block| {
            let found = slots.find(block).filter(|found| found.state == State::Bad)?;
            Some((block, found.slot_ref, found.crc?))
        };
        let bad = std::iter::successors(next_in(slots.bad(), from), |block| {
            next_in(slots.bad(), block + 1)
        });
        bad.filter_map(version).take(READS_AT_ONCE).collect()
    }

    /// Reads bad blocks again; returns how many of the reads have failed.
    async fn read_again(&self, batch: &[(u64, SlotRef, u32)], found: &mut Outcome) -> usize {
        let read = |&(block, slot_ref, crc): &(u64, SlotRef, u32)| {
            let data = Buf::alloc(self.store.block_bytes());
            let (device, at) = (&*self.store.device, self.store.slot_sector(slot_ref.slot));
            let io = reactor::read(device, Class::Background, at, data.all().into());
            (block, slot_ref, crc, data, io)
        };
        let reads: Vec<_> = batch.iter().map(read).collect();
        let mut failed = 0;
        for (block, slot_ref, crc, data, io) in reads {
            let outcome = io.await;
            if !self.store.slots.borrow().is_intact(slot_ref) {
                continue; // it was written again
            }
            if outcome.is_err() {
                failed += 1;
                self.unreadable.rotten.borrow_mut().remove(block);
                continue;
            }
            found.has_answered = true;
            let is_right = data.read(|bytes| self.store.config.checksum(bytes)) == crc;
            if !is_right {
                self.unreadable.rotten.borrow_mut().insert(block); // WC-UR1
                continue;
            }
            self.unreadable.rotten.borrow_mut().remove(block);
            if self.store.slots.borrow_mut().restore(block, slot_ref) {
                found.restored += 1;
            }
        }
        failed
    }

    /// Whether some dirty block can be read; true without one.
    async fn reads_any(&self) -> bool {
        let found = {
            let slots = self.store.slots.borrow();
            slots.next_dirty(0).and_then(|block| slots.find(block))
        };
        let Some(found) = found.filter(|found| found.state == State::Dirty) else { return true };
        let data = Buf::alloc(self.store.block_bytes());
        let (device, at) = (&*self.store.device, self.store.slot_sector(found.slot_ref.slot));
        reactor::read(device, Class::Background, at, data.all().into()).await.is_ok()
    }
}
