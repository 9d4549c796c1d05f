// SPDX-License-Identifier: Apache-2.0 OR MIT
//! Evict: pages leave memory; pages with a durable image need no I/O for that.
//!
//! Invariants
//! - ZR-EV1 A page leaves memory only while it is PICKED, so not accessed since, and only if its
//!   image is durable and equals it (ZR-PS2).
use std::rc::Rc;
use std::sync::atomic::Ordering::Relaxed;

use block::Status;

use super::dirty_slots::DirtySlots;
use super::image::Image;
use super::write_units::UnitsFor;
use crate::part::Part;
use crate::planted::Fault;
use crate::slot::Flags;
use crate::writeback::Outcome;

/// Pages that one flush of the device makes durable: 16 MiB before compression.
const ROUND: usize = 4096;

impl Part {
    /// Evicts pages from memory, except those that have left it meanwhile.
    ///
    /// Cost: units with the dirty ones, and one flush of the device for each 4096 pages with a
    /// dirty one among them.
    pub(crate) async fn evict(self: &Rc<Self>, mut slots: Vec<u32>) -> Outcome {
        slots.sort_unstable();
        slots.dedup();
        self.counters.done.set(0);
        self.counters.to_do.set(slots.len() as u64);
        let mut outcome = Outcome { candidates: slots.len() as u64, ..Outcome::default() };
        for round in slots.chunks(ROUND) {
            if self.shared.cancel.load(Relaxed) {
                break;
            }
            let round: Vec<u32> =
                round.iter().copied().filter(|nth| self.slot(*nth).is_resident()).collect();
            round.iter().for_each(|nth| self.set_flags(*nth, Flags::PICKED));
            let within = self.write_round(&round, &mut outcome.blocks).await;
            match within {
                Ok(within_budget) => outcome.limit_reached = !within_budget,
                Err(Status::NoSpace) => outcome.no_space = true,
                Err(_) => {}
            }
            // Pages that are in units by now can leave, even if others are not. Tidying may put a
            // page into another unit meanwhile, which is not durable then.
            let persist = self.persist();
            let images: Vec<Image> = round.iter().map(|nth| persist.image(*nth)).collect();
            let durable = self.sync_round().await;
            if let Err(status) = durable {
                outcome.error = round.first().map(|nth| (self.global(*nth), status));
            }
            for (nth, image) in round.into_iter().zip(images) {
                let evicted = self.evict_page(nth, image, durable.is_ok());
                outcome.pages += u64::from(evicted);
                self.counters.done.add(1);
            }
            if outcome.limit_reached || outcome.no_space || outcome.error.is_some() {
                break;
            }
        }
        self.counters.done.set(self.counters.to_do.get());
        outcome
    }

    /// Writes the dirty pages of a round. Returns whether the budget sufficed.
    async fn write_round(self: &Rc<Self>, round: &[u32], blocks: &mut u64) -> Result<bool, Status> {
        self.write_units(&mut DirtySlots::of_slots(round), UnitsFor::Writeback(blocks)).await
    }

    async fn sync_round(&self) -> Result<(), Status> {
        if self.persist().is_planted(Fault::EvictBeforeDurable) {
            return Ok(());
        }
        self.sync().await
    }

    /// ZR-EV1
    fn evict_page(&self, nth: u32, image: Image, durable: bool) -> bool {
        let persist = self.persist();
        let slot = self.slot(nth);
        if !slot.has(Flags::PICKED) {
            return false;
        }
        let is_image = image.is_page() && persist.image(nth) == image;
        if !durable || persist.dirty.borrow().has(nth) || !slot.is_resident() || !is_image {
            self.clear_flags(nth, Flags::PICKED);
            return false;
        }
        assert_eq!((image.size(), image.priority()), (slot.size(), slot.priority()), "slot {nth}");
        self.move_to_backing(nth, image.address());
        true
    }
}
