// SPDX-License-Identifier: Apache-2.0 OR MIT
//! Writes through the write buffer (`store::buffer`): copied, entered into the map, and complete.
use block::{Bufs, Class, Flags, Nanos, Status};

use super::Writer;
use crate::planted::Fault;
use crate::store::media::CHANGES_AT_ONCE_MAX;

impl Writer {
    /// Whether a write of so many bytes goes through the write buffer.
    #[inline]
    pub(super) fn is_buffered(&self, bytes: usize, flags: Flags) -> bool {
        self.store.buffer.takes(bytes)
            && !flags.contains(Flags::FUA)
            && !self.store.tuning().metadata_only
            && !self.writes_through()
    }

    /// Copies blocks into the buffer, and enters them into the map.
    pub(super) async fn write_buffered(
        &self,
        first: u64,
        bufs: &Bufs,
        class: Class,
    ) -> Result<(), Status> {
        let size = self.store.block_bytes();
        let count = bufs.len_bytes() / size;
        self.pace(count).await;
        self.store.stats.writes_buffered.add(count as u64);
        let delay = self.store.buffer.delay_ns(count);
        if delay > 0 {
            self.store.stats.buffer_paced_ns.add(delay);
            reactor::sleep(Nanos(delay)).await;
        }
        let mut done = 0;
        while done < count {
            let room = self.wait_for_places(count - done).await?;
            let max = u32::try_from(room).expect("CHANGES_AT_ONCE_MAX");
            let Some(slots) = self.store.slots.borrow_mut().allocate(max) else { continue };
            let c = self.store.counts();
            let first_change = c.unlogged == 0 || c.dirty == 0;
            let begun = first + done as u64..first + (done + slots.len()) as u64;
            for (block, slot) in begun.clone().zip(slots) {
                self.write_to_place(block, slot, bufs, done * size);
                done += 1;
            }
            if self.merges.any() {
                self.merges.overtake(begun.clone());
            }
            if self.wake_after_changes(first_change, Ok(())) {
                Box::pin(self.write_begun_through(begun, class)).await?;
            }
        }
        Ok(())
    }

    /// Waits until there is a free slot, and room for a version. Returns for how many blocks there
    /// is room, at most `max`.
    async fn wait_for_places(&self, max: usize) -> Result<usize, Status> {
        loop {
            self.wait_for_slot().await?;
            let room = self.wait_for_room(max).await?;
            if self.store.counts().free > 0 {
                return Ok(room);
            }
        }
    }

    /// Waits until there is a place in the buffer, and room for a change in log and journal.
    /// Returns for how many blocks there is room, at most `max`.
    pub(super) async fn wait_for_room(&self, max: usize) -> Result<usize, Status> {
        let (store, buffer) = (&self.store, &self.store.buffer);
        loop {
            if buffer.room() == 0 {
                store.stats.buffer_waits.add(1);
                buffer.room.wait_for(|| buffer.room() > 0 || store.health().is_err()).await;
                store.health()?;
            }
            let room = (buffer.room() as usize).min(CHANGES_AT_ONCE_MAX).min(max);
            store.reserve_unlogged(room).await;
            store.health()?;
            // A commit may have run meanwhile, and other writers.
            if buffer.room() as usize >= room {
                return Ok(room);
            }
        }
    }

    /// Copies a block into the buffer and enters it into the map, for this slot.
    pub(super) fn write_to_place(&self, block: u64, slot: u32, data: &Bufs, at: usize) {
        let store = &self.store;
        if store.has_fault(Fault::BufferedOverwritten) && self.overwrite(block, data, at) {
            store.slots.borrow_mut().abandon(slot);
            return;
        }
        let (place, crc) = store.buffer.append(store, slot, data, at);
        store.slots.borrow_mut().enter_buffer(slot, place);
        self.install_block(block, slot, crc);
        if store.buffer.is_write_due() {
            store.write_out();
        }
    }

    /// Planted fault: changes the data of a buffered version.
    fn overwrite(&self, block: u64, data: &Bufs, at: usize) -> bool {
        let mut slots = self.store.slots.borrow_mut();
        let found = slots.find(block).and_then(|found| slots.place_of(found.slot_ref.slot));
        let Some(place) = found else { return false };
        let kept = self.store.buffer.data(place);
        kept.write(|out| data.take_at(at, out));
        let crc = kept.read(|block| self.store.config.checksum(block));
        slots.set_checksum(place, crc);
        true
    }
}
