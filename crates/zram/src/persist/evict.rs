// SPDX-License-Identifier: Apache-2.0 OR MIT
//! Evict: pages leave memory, those with a durable image without any I/O.
//!
//! Invariants
//! - ZR-EV1 A page leaves memory when it is still PICKED, so not accessed since, and as its image,
//!   which is durable (ZR-PS2).
use std::rc::Rc;
use std::sync::atomic::Ordering::Relaxed;

use block::Status;

use super::chain::Todo;
use super::image::Image;
use crate::mutation::Mutation;
use crate::shard::Shard;
use crate::slot::Flags;
use crate::writeback::Outcome;

/// Pages that are made durable by one flush of the device: 16 MiB before compression.
const ROUND: usize = 4096;

impl Shard {
    /// Has pages leave memory; those that have left it meanwhile are passed over.
    ///
    /// Cost: units with those that are dirty, and one flush of the device for 4096 pages of which
    /// some were.
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
            // What is in units by now can leave, even if not everything is. Tidying may put a page
            // into another unit meanwhile, which is not durable then.
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

    /// Sends off units with what is dirty; whether the budget lasted.
    async fn write_round(self: &Rc<Self>, round: &[u32], blocks: &mut u64) -> Result<bool, Status> {
        self.write_units_within_budget(&mut Todo::of_slots(round), blocks).await
    }

    async fn sync_round(&self) -> Result<(), Status> {
        if self.persist().mutation(Mutation::EvictBeforeDurable) {
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
        self.settle(nth, image.address());
        true
    }
}
