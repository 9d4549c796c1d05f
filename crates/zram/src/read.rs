// SPDX-License-Identifier: Apache-2.0 OR MIT
//! Reads: first the pages that are in memory, then those on the backing device.
use std::ops::Range;
use std::rc::Rc;

use block::{Bio, Bufs, Op, Status};
use reactor::yield_now;
use smallvec::SmallVec;

use crate::failures::FailureKind;
use crate::layout::{PAGE_SECTORS, slots_of};
use crate::part::Part;
use crate::slot::{Flags, PAGE};

/// Pages that are on the backing device: the slot, and the byte of the bio's buffers.
pub(crate) type BackedPages = SmallVec<[(u32, usize); 8]>;

/// Pages of a bio that is served as it is submitted. Longer ones get a task, which lets others run
/// in between.
const PAGES_AT_ONCE: u64 = 8;

impl Part {
    /// Serves a bio as it is submitted, if it is short and needs no wait.
    pub(crate) fn at_once(&self, bio: &Bio) -> Option<Status> {
        if bio.len.0 > PAGES_AT_ONCE * PAGE_SECTORS {
            return None;
        }
        let slots = slots_of(bio);
        let status = match bio.op {
            Op::Read => {
                if slots.clone().any(|s| self.slot(s).has(Flags::BACKED)) {
                    return None;
                }
                let mut backed = BackedPages::new();
                self.read_resident(&bio.bufs, slots, 0, &mut backed)
            }
            Op::Write => self.write_pages(&bio.bufs, slots, 0),
            Op::Discard | Op::WriteZeroes => {
                slots.for_each(|slot| self.discard_page(slot));
                Status::Ok
            }
            Op::Flush => Status::Ok,
        };
        Some(status)
    }

    /// Reads the pages that are in memory to `bufs`, from byte `at` on. Adds the others to the
    /// list.
    fn read_resident(
        &self,
        bufs: &Bufs,
        slots: Range<u32>,
        mut at: usize,
        backed: &mut BackedPages,
    ) -> Status {
        let mut worst = Status::Ok;
        let accessed = self.clock();
        let mut page = std::mem::take(&mut self.codecs.borrow_mut().page);
        for nth in slots {
            let slot = self.touch(nth, accessed);
            if slot.has(Flags::BACKED) {
                backed.push((nth, at));
            } else if slot.is_zero() {
                bufs.put_at(at, &ZEROES);
            } else {
                match self.page_of(slot, &mut page) {
                    Ok(()) => bufs.put_at(at, &page),
                    Err(status) => {
                        worst = worst.worst(status);
                        self.counters.failed_reads.add(1);
                        self.note_failure(
                            FailureKind::Damaged,
                            format!("slot {}: its object in memory is damaged", self.global(nth)),
                        );
                    }
                }
            }
            at += PAGE;
        }
        self.codecs.borrow_mut().page = page;
        worst
    }

    /// Notes an access to a slot, which is not idle any more (ZR-SL3).
    fn touch(&self, nth: u32, accessed: u32) -> crate::slot::Slot {
        let mut slots = self.slots.borrow_mut();
        let slot = slots.get(nth);
        if slot.is_empty() || (slot.accessed == accessed && !slot.has(Flags::IDLE | Flags::PICKED))
        {
            return slot;
        }
        let mut slot = slot.without(Flags::IDLE | Flags::PICKED);
        slot.accessed = accessed;
        slots.set(nth, slot);
        slot
    }

    /// Reads a bio of any length, wherever its pages are.
    pub(crate) async fn read(self: &Rc<Self>, bio: &Bio) -> Status {
        let slots = slots_of(bio);
        let mut worst = Status::Ok;
        let mut at = 0;
        let mut first = slots.start;
        while first < slots.end {
            let end = slots.end.min(first + READ_RUN);
            let mut backed = BackedPages::new();
            let status = self.read_resident(&bio.bufs, first..end, at, &mut backed);
            let status = if status == Status::Ok && !backed.is_empty() {
                self.read_back(&backed, &bio.bufs).await
            } else {
                status
            };
            worst = worst.worst(status);
            at += (end - first) as usize * PAGE;
            first = end;
            if first < slots.end {
                yield_now().await;
            }
        }
        worst
    }
}

/// The page that is read most often.
static ZEROES: [u8; PAGE] = [0; PAGE];

/// Pages of a long bio that are read between two yields.
const READ_RUN: u32 = 32;
