// SPDX-License-Identifier: Apache-2.0 OR MIT
//! Commit: FLUSH and FUA. Those who come while one runs share the next.
//!
//! Invariants
//! - ZR-CC1 A commit takes what is dirty when it begins, which is after all its callers asked.
use std::cell::Cell;
use std::ops::Range;
use std::rc::Rc;

use block::{Class, Status};

use super::chain::Todo;
use crate::mutation::Mutation;
use crate::shard::Shard;

/// Somebody who waits for slots to be durable.
pub(super) struct Ticket {
    slots: Range<u32>,
    outcome: Cell<Option<Result<(), Status>>>,
}

impl Shard {
    /// FLUSH: everything that was written before is durable.
    pub(crate) async fn commit_all(self: &Rc<Self>) -> Result<(), Status> {
        let slots = self.persist().images.borrow().len();
        self.commit_slots(0..slots).await
    }

    /// FUA: these slots are durable as they are.
    pub(crate) async fn commit(self: &Rc<Self>, slots: Range<u32>) -> Result<(), Status> {
        if self.persist().mutation(Mutation::IgnoreFua) {
            return Ok(());
        }
        self.commit_slots(slots).await
    }

    async fn commit_slots(self: &Rc<Self>, slots: Range<u32>) -> Result<(), Status> {
        let persist = self.persist();
        let ticket = Rc::new(Ticket { slots, outcome: Cell::new(None) });
        persist.tickets.borrow_mut().push(ticket.clone());
        let served = || ticket.outcome.get().is_some();
        persist.changed.wait_for(|| served() || !persist.committing.get()).await;
        if let Some(outcome) = ticket.outcome.get() {
            return outcome;
        }
        persist.committing.set(true);
        let tickets = persist.tickets.take();
        let mut ranges: Vec<Range<u32>> = tickets.iter().map(|t| t.slots.clone()).collect();
        let outcome = self.commit_ranges(union(&mut ranges)).await;
        for ticket in &tickets {
            ticket.outcome.set(Some(outcome));
        }
        persist.committing.set(false);
        persist.changed.wake_all();
        ticket.outcome.get().expect("it was among those taken")
    }

    async fn commit_ranges(self: &Rc<Self>, ranges: Vec<Range<u32>>) -> Result<(), Status> {
        let persist = self.persist();
        persist.health()?;
        self.write_units(&mut Todo::new(ranges), Class::Foreground).await?;
        let absorbed = || !persist.absorbing.get() || persist.failure().is_some();
        persist.changed.wait_for(absorbed).await;
        self.sync().await
    }
}

/// The same slots in ranges that ascend and do not overlap.
fn union(ranges: &mut Vec<Range<u32>>) -> Vec<Range<u32>> {
    ranges.sort_unstable_by_key(|range| range.start);
    let mut united: Vec<Range<u32>> = Vec::with_capacity(ranges.len());
    for range in ranges.drain(..) {
        match united.last_mut() {
            Some(last) if range.start <= last.end => last.end = last.end.max(range.end),
            Some(_) | None => united.push(range),
        }
    }
    united
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn a_union_has_every_slot_once() {
        let mut ranges = vec![5..7, 0..2, 6..9, 2..3, 20..21, 6..7];
        assert_eq!(union(&mut ranges), [0..3, 5..9, 20..21]);
    }
}
