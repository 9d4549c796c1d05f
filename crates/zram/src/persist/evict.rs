// SPDX-License-Identifier: Apache-2.0 OR MIT
//! Evict: pages leave memory, those with a durable image without any I/O.
//!
//! Invariants
//! - EV1 A page leaves memory when it is still PICKED, so not accessed since, and as its image,
//!   which is durable (PS2).
use std::rc::Rc;
use std::sync::atomic::Ordering::Relaxed;

use block::Status;

use super::Mutation;
use super::chain::Todo;
use crate::shard::Shard;
use crate::slot::Flags;
use crate::writeback::Outcome;

/// Pages that are made durable by one flush of the device: 16 MiB before compression.
const ROUND: usize = 4096;

/// What was written of a round.
struct Round {
    blocks: u64,
    within_budget: bool,
}

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
            let made = self.make_durable(&round).await;
            match &made {
                Ok(made) => {
                    outcome.blocks += made.blocks;
                    outcome.limit_reached = !made.within_budget;
                }
                Err(Status::NoSpace) => outcome.no_space = true,
                Err(status) => {
                    outcome.error = round.first().map(|nth| (self.global(*nth), *status));
                }
            }
            // What was durable before can leave even if the device is full.
            let durable = made.is_ok() || outcome.no_space && self.sync().await.is_ok();
            for nth in round {
                outcome.pages += u64::from(self.evict_page(nth, durable));
                self.counters.done.add(1);
            }
            if outcome.limit_reached || outcome.no_space || outcome.error.is_some() {
                break;
            }
        }
        self.counters.done.set(self.counters.to_do.get());
        outcome
    }

    async fn make_durable(self: &Rc<Self>, round: &[u32]) -> Result<Round, Status> {
        let mut blocks = 0;
        let mut todo = Todo::of_slots(round);
        let within_budget = self.write_units_within_budget(&mut todo, &mut blocks).await?;
        if !self.persist().mutation(Mutation::EvictBeforeDurable) {
            self.sync().await?;
        }
        Ok(Round { blocks, within_budget })
    }

    /// EV1
    fn evict_page(&self, nth: u32, durable: bool) -> bool {
        let persist = self.persist();
        let slot = self.slot(nth);
        if !slot.has(Flags::PICKED) {
            return false;
        }
        let image = persist.image(nth);
        if !durable || persist.dirty.borrow().has(nth) || !slot.is_resident() || !image.is_page() {
            self.clear_flags(nth, Flags::PICKED);
            return false;
        }
        assert_eq!((image.size(), image.priority()), (slot.size(), slot.priority()), "slot {nth}");
        self.settle(nth, image.address());
        true
    }
}
