// SPDX-License-Identifier: Apache-2.0 OR MIT
//! Commit: FLUSH and FUA. Requests that come while one commit runs share the next.
//!
//! Invariants
//! - ZR-CC1 A commit writes the slots that are dirty when it begins, which is after all its
//!   requests came.
use std::cell::Cell;
use std::ops::Range;
use std::rc::Rc;

use block::Status;

use super::dirty_slots::DirtySlots;
use super::state::CommitRequest;
use super::write_units::UnitsFor;
use crate::part::Part;
use crate::planted::Fault;

impl Part {
    /// FLUSH: makes everything durable that was written before.
    pub(crate) async fn commit_all(self: &Rc<Self>) -> Result<(), Status> {
        let slots = self.persist().images.borrow().len();
        self.commit_slots(0..slots).await
    }

    /// FUA: makes these slots durable.
    pub(crate) async fn commit(self: &Rc<Self>, slots: Range<u32>) -> Result<(), Status> {
        if self.persist().is_planted(Fault::IgnoreFua) {
            return Ok(());
        }
        self.commit_slots(slots).await
    }

    async fn commit_slots(self: &Rc<Self>, slots: Range<u32>) -> Result<(), Status> {
        let persist = self.persist();
        let request = Rc::new(CommitRequest { slots, outcome: Cell::new(None) });
        persist.commits.requests.borrow_mut().push(request.clone());
        let served = || request.outcome.get().is_some();
        persist.changed.wait_for(|| served() || !persist.commits.running.get()).await;
        if let Some(outcome) = request.outcome.get() {
            return outcome;
        }
        persist.commits.running.set(true);
        let requests = persist.commits.requests.take();
        let mut ranges: Vec<Range<u32>> = requests.iter().map(|t| t.slots.clone()).collect();
        let outcome = self.commit_ranges(union(&mut ranges)).await;
        for request in &requests {
            request.outcome.set(Some(outcome));
        }
        persist.commits.running.set(false);
        persist.changed.wake_all();
        request.outcome.get().expect("it was among those taken")
    }

    async fn commit_ranges(self: &Rc<Self>, ranges: Vec<Range<u32>>) -> Result<(), Status> {
        let persist = self.persist();
        persist.health()?;
        self.write_units(&mut DirtySlots::new(ranges), UnitsFor::Commit).await?;
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
