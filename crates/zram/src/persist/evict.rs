// SPDX-License-Identifier: Apache-2.0 OR MIT
//! Evict: pages leave memory, those with a durable image without any I/O.
//!
//! Invariants
//! - EV1 A page leaves memory when it is still PICKED, so not accessed since, and as its image,
//!   which is durable (PS2).
use std::rc::Rc;

use block::Status;

use super::Mutation;
use super::chain::Todo;
use crate::backing::Address;
use crate::shard::Shard;
use crate::slot::Flags;

/// Pages that are made durable by one flush of the device: 16 MiB before compression.
const ROUND: usize = 4096;

/// What an eviction has come to.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq)]
pub(crate) struct Evicted {
    /// Pages that have left memory.
    pub(crate) pages: u64,
    /// The budget did not last.
    pub(crate) limit_reached: bool,
    /// Why it ended before its time.
    pub(crate) error: Option<Status>,
}

impl Shard {
    /// Has pages leave memory. `slots` ascend; those that are not in memory are passed over.
    ///
    /// Cost: units with those that are dirty, and one flush of the device for 4096 pages of which
    /// some were.
    pub(crate) async fn evict(self: &Rc<Self>, slots: &[u32]) -> Evicted {
        let mut evicted = Evicted::default();
        for round in slots.chunks(ROUND) {
            if self.shared.cancel.load(std::sync::atomic::Ordering::Relaxed) {
                break;
            }
            let round: Vec<u32> =
                round.iter().copied().filter(|nth| self.slot(*nth).is_resident()).collect();
            round.iter().for_each(|nth| self.set_flags(*nth, Flags::PICKED));
            match self.make_durable(&round).await {
                Ok(within_budget) => evicted.limit_reached = !within_budget,
                Err(status) => evicted.error = Some(status),
            }
            for nth in round {
                evicted.pages += u64::from(self.evict_page(nth, evicted.error.is_none()));
            }
            if evicted.limit_reached || evicted.error.is_some() {
                break;
            }
        }
        evicted
    }

    async fn make_durable(self: &Rc<Self>, round: &[u32]) -> Result<bool, Status> {
        let within = self.write_units_within_budget(&mut Todo::of_slots(round)).await?;
        if !self.persist().mutation(Mutation::EvictBeforeDurable) {
            self.sync().await?;
        }
        Ok(within)
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
        let at: Address = image.address();
        self.settle(nth, at);
        true
    }
}
