// SPDX-License-Identifier: Apache-2.0 OR MIT
//! Writes and discards: a page is same-filled, compressed, or stored uncompressed.
use std::ops::Range;
use std::rc::Rc;

use block::{Bio, Bufs, Status};
use reactor::yield_now;

use crate::failures::FailureKind;
use crate::layout::slots_of;
use crate::part::Part;
use crate::slot::{PAGE, Slot};
use crate::store::Handle;
use crate::store::compact::TIDY_ROUND;

/// Pages of a long bio that are compressed between two yields.
const WRITE_RUN: u32 = 16;
/// Stored objects between two steps of compaction. Cheap, and enough to keep the memory that is
/// lost between objects below a twentieth.
const TIDY_EVERY: u32 = 64;
/// Slots of a long discard that are visited between two yields.
const DISCARD_RUN: u32 = 4096;

/// The word that a same-filled page consists of.
pub(crate) fn same_word(page: &[u8]) -> Option<u64> {
    let (first, rest) = page.split_first_chunk::<8>()?;
    // First and last word first: they differ in most pages.
    if first != page.last_chunk::<8>()? {
        return None;
    }
    // Each word equals the one before it: one comparison of memory.
    (rest == &page[..rest.len()]).then(|| u64::from_le_bytes(*first))
}

impl Part {
    /// Writes pages from byte `at` of `bufs` on. Those before one that fails are written.
    pub(crate) fn write_pages(&self, bufs: &Bufs, slots: Range<u32>, mut at: usize) -> Status {
        let accessed = self.clock();
        for nth in slots {
            bufs.take_at(at, &mut self.codecs.borrow_mut().page);
            if let Err(status) = self.write_page(nth, accessed) {
                self.counters.failed_writes.add(1);
                return status;
            }
            at += PAGE;
        }
        Status::Ok
    }

    /// Writes the page that lies in the codecs' page buffer.
    fn write_page(&self, nth: u32, accessed: u32) -> Result<(), Status> {
        let codecs = &mut *self.codecs.borrow_mut();
        let cold = self.slot(nth);
        if cold.is_resident() {
            // The compression hides the cache miss.
            self.store.borrow().prefetch(Handle(cold.place), 1);
        }
        if let Some(word) = same_word(&codecs.page) {
            self.replace(nth, Slot::same(word, accessed));
            return Ok(());
        }
        let compressed = codecs.compress(0);
        let object = match compressed {
            Some(size) => &codecs.object[..size],
            None => &codecs.page[..],
        };
        let huge = u64::from(compressed.is_none());
        self.tidy_now_and_then();
        let old = self.slot(nth);
        let place = Handle(old.place);
        if old.is_resident() && self.store.borrow_mut().overwrite(place, nth, object) {
            self.counters.huge_pages_since.add(huge);
            self.replace_in_place(nth, old, Slot::object(place.0, object.len(), 0, accessed));
            return Ok(());
        }
        let handle = self.insert(nth, object).ok_or_else(|| {
            let limit = self.shared.memory.limit() * PAGE as u64;
            self.note_failure(
                FailureKind::MemLimit,
                format!("slot {}: mem_limit of {limit} bytes reached", self.global(nth)),
            );
            Status::Io
        })?;
        self.counters.huge_pages_since.add(huge);
        self.replace(nth, Slot::object(handle.0, object.len(), 0, accessed));
        Ok(())
    }

    /// Before an object is stored: compacts a little, now and then.
    fn tidy_now_and_then(&self) {
        let stored = self.stored.replace(self.stored.get().wrapping_add(1));
        if stored.is_multiple_of(TIDY_EVERY) {
            self.tidy_memory();
        }
    }

    /// Stores an object; compacts first if there is no room.
    fn insert(&self, nth: u32, object: &[u8]) -> Option<Handle> {
        let found = self.store.borrow_mut().insert(nth, object);
        found.ok().or_else(|| {
            (0..TIDY_ROUND).for_each(|_| self.tidy_memory());
            self.store.borrow_mut().insert(nth, object).ok()
        })
    }

    /// Removes the page of a slot.
    pub(crate) fn discard_page(&self, nth: u32) {
        self.counters.notify_free.add(1);
        if !self.slot(nth).is_empty() {
            self.replace(nth, Slot::default());
        }
    }

    /// Writes a bio of any length.
    pub(crate) async fn write(self: &Rc<Self>, bio: &Bio) -> Status {
        let slots = slots_of(bio);
        for first in slots.clone().step_by(WRITE_RUN as usize) {
            let at = (first - slots.start) as usize * PAGE;
            let run = first..slots.end.min(first.saturating_add(WRITE_RUN));
            let status = self.write_pages(&bio.bufs, run, at);
            if status != Status::Ok {
                return status;
            }
            yield_now().await;
        }
        Status::Ok
    }

    /// Discards a range of any length; it reads as zeroes afterwards.
    pub(crate) async fn discard(self: &Rc<Self>, bio: &Bio) -> Status {
        let slots = slots_of(bio);
        for first in slots.clone().step_by(DISCARD_RUN as usize) {
            (first..slots.end.min(first.saturating_add(DISCARD_RUN)))
                .for_each(|slot| self.discard_page(slot));
            yield_now().await;
        }
        Status::Ok
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn a_page_of_one_word_is_recognised() {
        let mut page = vec![0xa5; PAGE];
        assert_eq!(same_word(&page), Some(0xa5a5_a5a5_a5a5_a5a5));
        for at in [0, 7, 8, 2048, PAGE - 1] {
            page[at] ^= 1;
            assert_eq!(same_word(&page), None, "{at}");
            page[at] ^= 1;
        }
        for (nth, byte) in page.iter_mut().enumerate() {
            *byte = (nth % 8) as u8;
        }
        assert_eq!(same_word(&page), Some(u64::from_le_bytes([0, 1, 2, 3, 4, 5, 6, 7])));
    }
}
