// SPDX-License-Identifier: Apache-2.0 OR MIT
//! Recompression: compresses pages again by a better, slower algorithm.
//!
//! Invariants
//! - ZR-RC1 The result is kept only if it takes less memory. Otherwise the slot stays as it is; if
//!   the algorithm of the highest priority failed on a huge page, the slot becomes INCOMPRESSIBLE.
use std::rc::Rc;
use std::sync::atomic::Ordering::Relaxed;

use block::Status;
use reactor::yield_now;

use crate::codecs::PRIORITIES;
use crate::command::{Recompress, share};
use crate::part::Part;
use crate::slot::{Flags, PAGE, Slot};
use crate::store::Store;

/// Pages that are tried between two yields.
const RUN: u64 = 8;

/// The result of a recompression.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq)]
pub(crate) struct Recompressed {
    /// Pages tried.
    pub(crate) tried: u64,
    /// Pages that take less memory now.
    pub(crate) shrunk: u64,
    /// The first slot of the device that could not be read.
    pub(crate) damaged: Option<u64>,
    /// The memory limit left no room for a result.
    pub(crate) no_memory: bool,
}

impl Recompressed {
    /// Adds the results of two parts.
    pub(crate) fn and(self, other: Recompressed) -> Recompressed {
        Recompressed {
            tried: self.tried + other.tried,
            shrunk: self.shrunk + other.shrunk,
            damaged: self.damaged.or(other.damaged),
            no_memory: self.no_memory || other.no_memory,
        }
    }
}

impl Part {
    /// Recompresses the selected pages.
    pub(crate) async fn recompress(self: Rc<Self>, how: Recompress) -> Recompressed {
        let slots = self.slots.borrow().len();
        let most = share(how.max_pages, self.plan.nth, self.plan.layout.parts);
        let mut done = Recompressed::default();
        self.counters.done.set(0);
        self.counters.to_do.set(u64::from(slots));
        for nth in 0..slots {
            if done.tried >= most || self.shared.cancel.load(Relaxed) {
                break;
            }
            let slot = self.slot(nth);
            if is_candidate(slot, &how) {
                done.tried += 1;
                match self.recompress_page(nth, slot, how.priority) {
                    Ok(shrunk) => done.shrunk += u64::from(shrunk),
                    Err(Status::NoSpace) => done.no_memory = true,
                    Err(_) => {
                        done.damaged = done.damaged.or(Some(self.global(nth)));
                        self.counters.failed_reads.add(1);
                    }
                }
                if done.tried.is_multiple_of(RUN) {
                    yield_now().await;
                }
            } else if nth.is_multiple_of(crate::idle::WALK_RUN) {
                yield_now().await;
            }
            self.counters.done.set(u64::from(nth) + 1);
        }
        self.counters.done.set(self.counters.to_do.get());
        done
    }

    /// Compresses a page again. Returns whether it takes less memory now.
    fn recompress_page(&self, nth: u32, slot: Slot, priority: u8) -> Result<bool, Status> {
        let mut page = std::mem::take(&mut self.codecs.borrow_mut().page);
        let read = self.page_of(slot, &mut page);
        let codecs = &mut *self.codecs.borrow_mut();
        codecs.page = page;
        read?;
        let size = codecs
            .compress(priority)
            .filter(|size| Store::class_bytes(*size) < Store::class_bytes(slot.size()));
        let Some(size) = size else {
            let last = (1..PRIORITIES as u8).rev().find(|p| codecs.has(*p));
            if last == Some(priority) && slot.has(Flags::HUGE) {
                self.set_flags(nth, Flags::INCOMPRESSIBLE);
            }
            return Ok(false);
        };
        let handle = self.store.borrow_mut().insert(nth, &codecs.object[..size]);
        let handle = handle.map_err(|_| Status::NoSpace)?;
        let kept = slot.flags() & Flags::IDLE;
        self.replace(nth, Slot::object(handle.0, size, priority, slot.accessed).with(kept));
        Ok(true)
    }
}

fn is_candidate(slot: Slot, how: &Recompress) -> bool {
    slot.is_resident()
        && slot.priority() < how.priority
        && !slot.has(Flags::INCOMPRESSIBLE)
        && slot.size() >= (how.threshold as usize).min(PAGE)
        && how.kind.is_none_or(|kind| kind.takes(slot))
}
