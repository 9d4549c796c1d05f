// SPDX-License-Identifier: Apache-2.0 OR MIT
//! The steps between the states of a range, and the slots of a guarded one.
use std::cell::{Cell, RefCell};
use std::rc::Rc;

use block::{Buf, Class, Error, Flags, Sector, Status};
use format::{GuardRange, GuardSlot, GuardState, UNIT};

use super::find::{FoundSlots, Remains};
use super::{DetachedHalves, Guard, GuardedRange, SlotState};
use crate::events::UnguardedReason;
use crate::planted::Fault;

/// The class of the guard's own requests: a request of a client, or an open, waits for them.
const CLASS: Class = Class::Foreground;
/// The sequence of the first slot of a guard.
const FIRST: u64 = 1;

impl Guard {
    fn error(&self, range: GuardRange, what: &dyn std::fmt::Display) -> Error {
        let (origin, at) = (&self.place.config.origin, range.start);
        Error::io(format!("origin {origin}: guard of the sectors from {at} on: {what}"))
    }

    /// Reads `bytes` of a range from `offset` on, as the origin has them.
    async fn read_range(
        &self,
        range: GuardRange,
        offset: usize,
        bytes: usize,
    ) -> Result<Vec<u8>, Error> {
        let buf = Buf::alloc(bytes);
        let at = Sector(range.start + (offset / 512) as u64);
        let read = reactor::read(&*self.place.origin, CLASS, at, buf.all().into()).await;
        read.map_err(|status| self.error(range, &format_args!("read: {status}")))?;
        Ok(buf.read(<[u8]>::to_vec))
    }

    async fn write_range(
        &self,
        range: GuardRange,
        offset: usize,
        flags: Flags,
        bytes: &[u8],
    ) -> Result<(), Status> {
        let at = Sector(range.start + (offset / 512) as u64);
        let buf = Buf::copy_of(bytes);
        reactor::write(&*self.place.origin, flags, CLASS, at, buf.into()).await
    }

    /// Writes bytes of a range to the origin, durably.
    async fn write_durably(
        &self,
        range: GuardRange,
        offset: usize,
        bytes: &[u8],
    ) -> Result<(), Error> {
        loop {
            let failed = self.failed_flushes.get();
            let written = self.write_range(range, offset, Flags::META, bytes).await;
            written.map_err(|status| self.error(range, &format_args!("write: {status}")))?;
            if self.place.config.planted.is(Fault::GuardUnflushed) {
                return Ok(());
            }
            self.flush_origin(range).await?;
            // A flush of the cache that failed meanwhile may have taken the write.
            if failed == self.failed_flushes.get() {
                return Ok(());
            }
        }
    }

    async fn flush_origin(&self, range: GuardRange) -> Result<(), Error> {
        let flushed = self.flush_and_tell().await;
        flushed.map_err(|status| self.error(range, &format_args!("flush: {status}")))
    }

    /// Flushes the origin. If that fails, writes of the cache may be lost, too, and the next flush
    /// would not tell (WC-GU7).
    async fn flush_and_tell(&self) -> Result<(), Status> {
        let written = self.written.get();
        let flushed = reactor::flush(&*self.place.origin, CLASS).await;
        match flushed {
            Ok(()) => self.flushed(written),
            Err(status) => {
                self.flush_failed();
                let writeback = self.writeback.borrow().upgrade();
                if let Some(writeback) = writeback
                    && !self.place.config.planted.is(Fault::GuardFlushErrorKept)
                {
                    writeback.guard_flush_failed(status);
                }
            }
        }
        flushed
    }

    /// From detached to guarded. A range whose image does not compress stays as it is.
    pub(super) async fn attach_range(&self, range: GuardRange) -> Result<(), Error> {
        let image = self.read_range(range, 0, range.bytes).await?;
        self.attach_image(range, image).await
    }

    /// The same, also from guarding, where `image` is known.
    pub(super) async fn attach_image(
        &self,
        range: GuardRange,
        image: Vec<u8>,
    ) -> Result<(), Error> {
        let Some(slot) = self.place.slot(range, FIRST, true).encode(0, &image) else {
            self.notify_unguarded(range.start, UnguardedReason::Incompressible);
            return Ok(());
        };
        let front = &image[..range.slot_bytes()];
        self.write_state(range, GuardState::Guarding, Some((front, &slot))).await?;
        self.write_durably(range, 0, &slot).await?;
        let slots = FoundSlots { newest: 0, sequence: FIRST, is_other_whole: false };
        self.finish_attach(range, image, slots).await
    }

    /// From guarding, with a slot 0, to guarded.
    pub(super) async fn finish_attach(
        &self,
        range: GuardRange,
        image: Vec<u8>,
        slots: FoundSlots,
    ) -> Result<(), Error> {
        self.flush_origin(range).await?;
        self.write_state(range, GuardState::Guarded, None).await?;
        self.keep_slots(range, image, slots).await
    }

    /// Serves a range that has a slot. It writes the other one if that is torn, or has what the
    /// range had before the guard.
    pub(super) async fn keep_slots(
        &self,
        range: GuardRange,
        image: Vec<u8>,
        FoundSlots { newest, sequence, is_other_whole }: FoundSlots,
    ) -> Result<(), Error> {
        // What was read may be in a volatile cache only.
        let durable = if is_other_whole { 1 - newest } else { newest };
        let slots = SlotState { durable, is_other_newer: is_other_whole, written: 0, sequence };
        let guarded = self.serve_image(range, image, slots);
        if is_other_whole {
            return Ok(());
        }
        self.flush_origin(range).await?;
        let failed = |status| self.error(range, &format_args!("write: {status}"));
        self.write_image(&guarded, Flags::empty()).await.map_err(failed)?;
        // The first slot of a guard says that it is alone.
        self.write_image(&guarded, Flags::empty()).await.map_err(failed)
    }

    fn serve_image(&self, range: GuardRange, image: Vec<u8>, slots: SlotState) -> Rc<GuardedRange> {
        let guarded = Rc::new(GuardedRange {
            range,
            image: RefCell::new(image),
            slots: Cell::new(slots),
            is_rear_free: Cell::new(false),
            detaching: RefCell::default(),
        });
        self.ranges.borrow_mut().push(guarded.clone());
        guarded
    }

    /// Serves reads of a range. Nobody writes.
    pub(super) fn show_image(&self, range: GuardRange, image: Vec<u8>) {
        self.serve_image(range, image, SlotState::default());
    }

    /// Writes the image to a slot (WC-GU3, WC-GU4). A range whose image does not compress any more
    /// is detached; so is one whose detach has failed before.
    pub(super) async fn write_image(
        &self,
        guarded: &GuardedRange,
        flags: Flags,
    ) -> Result<(), Status> {
        let range = guarded.range;
        let mut slot = None;
        if !guarded.is_rear_free.get() {
            self.settle_slots(guarded).await?;
            let SlotState { durable, sequence, .. } = guarded.slots.get();
            let header = self.place.slot(range, sequence + 1, false);
            slot = header.encode(1 - durable, &guarded.image.borrow());
        }
        let Some(slot) = slot else {
            self.notify_unguarded(range.start, UnguardedReason::Incompressible);
            return self.detach_range(guarded).await.map_err(|_| Status::Io);
        };
        let SlotState { durable, sequence, .. } = guarded.slots.get();
        // The sequence is used up, whatever becomes of the write.
        let (number, sequence) = (1 - durable, sequence + 1);
        guarded.slots.set(SlotState { durable, is_other_newer: false, written: 0, sequence });
        let offset = usize::from(number) * range.slot_bytes();
        let is_durable = flags.contains(Flags::FUA);
        self.write_range(range, offset, (flags & Flags::FUA) | Flags::META, &slot).await?;
        let written = self.written.get() + 1;
        self.written.set(written);
        guarded.slots.set(match is_durable {
            true => SlotState { durable: number, is_other_newer: false, written, sequence },
            false => SlotState { durable, is_other_newer: true, written, sequence },
        });
        Ok(())
    }

    /// Makes the newest slot durable. If that fails, the slot may be lost: it is written again, and
    /// the other one stays.
    async fn settle_slots(&self, guarded: &GuardedRange) -> Result<(), Status> {
        let SlotState { durable, is_other_newer, .. } = guarded.slots.get();
        if !is_other_newer {
            return Ok(());
        }
        let unknown = SlotState { is_other_newer: false, ..guarded.slots.get() };
        guarded.slots.set(unknown);
        let failed = self.failed_flushes.get();
        if !self.place.config.planted.is(Fault::SlotsUnflushed) {
            self.flush_and_tell().await?;
        }
        // A flush of the cache that failed meanwhile may have taken the slot.
        if failed == self.failed_flushes.get() {
            guarded.slots.set(SlotState { durable: 1 - durable, ..unknown });
        }
        Ok(())
    }

    /// A flush of the origin that began when `written` slots had been written has succeeded.
    pub(super) fn flushed(&self, written: u64) {
        for guarded in self.ranges.borrow().iter() {
            let slots = guarded.slots.get();
            if slots.is_other_newer && slots.written <= written {
                let durable = 1 - slots.durable;
                guarded.slots.set(SlotState { durable, is_other_newer: false, ..slots });
            }
        }
    }

    /// A flush of the origin has failed, which may have lost slots.
    pub(super) fn flush_failed(&self) {
        self.failed_flushes.set(self.failed_flushes.get() + 1);
        if self.place.config.planted.is(Fault::LostSlotTrusted) {
            return;
        }
        for guarded in self.ranges.borrow().iter() {
            guarded.slots.set(SlotState { is_other_newer: false, ..guarded.slots.get() });
        }
    }

    /// From guarded to detached, with the image as it is in memory. After an error it can be called
    /// again, and is, before a slot is written.
    pub(super) async fn detach_range(&self, guarded: &GuardedRange) -> Result<(), Error> {
        let (range, half) = (guarded.range, guarded.range.slot_bytes());
        let image = || guarded.image.borrow().clone();
        if guarded.detaching.borrow().is_none() {
            self.free_rear(guarded).await?;
            let rear = image()[half..].to_vec();
            self.write_durably(range, half, &rear).await?;
            let slot = self.read_range(range, 0, half).await?;
            let image = image()[..half].to_vec();
            *guarded.detaching.borrow_mut() = Some(Rc::new(DetachedHalves { image, slot, rear }));
        }
        let front = guarded.detaching.borrow().clone().expect("set above");
        let record = (&front.image[..], &front.slot[..]);
        self.write_state(range, GuardState::Detaching, Some(record)).await?;
        self.finish_detach(range, &front.image).await?;
        self.ranges.borrow_mut().retain(|has| has.range.nth != range.nth);
        // What was written after an earlier call had failed.
        let (now, freed) = (image(), &front.rear);
        if now[..half] != front.image || now[half..] != **freed {
            self.write_durably(range, 0, &now).await?;
        }
        Ok(())
    }

    /// From detaching to detached.
    pub(super) async fn finish_detach(&self, range: GuardRange, front: &[u8]) -> Result<(), Error> {
        self.write_durably(range, 0, front).await?;
        self.write_state(range, GuardState::Detached, None).await
    }

    /// From a range that somebody has used to detached: what is left of slots goes, so that nobody
    /// takes it for a guard again. What else is there stays.
    pub(super) async fn clear_remains(
        &self,
        range: GuardRange,
        remains: Remains,
    ) -> Result<(), Error> {
        for number in [1, 0] {
            if remains[number] && !self.place.config.planted.is(Fault::GuardRemainsKept) {
                let at = number * range.slot_bytes();
                // Only its first sector: what is behind may be somebody's.
                let mut unit = self.read_range(range, at, UNIT).await?;
                unit[..512].fill(0);
                self.write_durably(range, at, &unit).await?;
            }
        }
        self.write_state(range, GuardState::Detached, None).await
    }

    /// Makes slot 0 the newest durable one, and lets it say that it is alone. It has the image of
    /// the durable slot: that in memory may not compress any more, and its writes have not ended.
    async fn free_rear(&self, guarded: &GuardedRange) -> Result<(), Error> {
        if guarded.is_rear_free.get() {
            return Ok(());
        }
        let range = guarded.range;
        let settled = self.settle_slots(guarded).await;
        settled.map_err(|status| self.error(range, &format_args!("flush: {status}")))?;
        if guarded.slots.get().durable == 0 {
            // Slot 1 first: slot 0 is about to be written.
            self.copy_slot(guarded, 0).await?;
        }
        if !self.place.config.planted.is(Fault::OldSlotKept) {
            self.copy_slot(guarded, 1).await?;
        }
        guarded.is_rear_free.set(true);
        Ok(())
    }

    /// Copies the image of slot `from`, which is durable, to the other slot, durably.
    async fn copy_slot(&self, guarded: &GuardedRange, from: u8) -> Result<(), Error> {
        let (range, half) = (guarded.range, guarded.range.slot_bytes());
        let bytes = self.read_range(range, usize::from(from) * half, half).await?;
        let decoded = GuardSlot::decode(range.nth, from, &bytes);
        let (_, image) = decoded.map_err(|e| self.error(range, &format_args!("its slot: {e}")))?;
        let to = 1 - from;
        let sequence = guarded.slots.get().sequence + 1;
        let slot = self.place.slot(range, sequence, to == 0).encode(to, &image);
        let slot = slot.ok_or_else(|| self.error(range, &"the image of its slot is too large"))?;
        let settled = |durable| SlotState { durable, is_other_newer: false, written: 0, sequence };
        guarded.slots.set(settled(from));
        self.write_durably(range, usize::from(to) * half, &slot).await?;
        guarded.slots.set(settled(to));
        Ok(())
    }
}
