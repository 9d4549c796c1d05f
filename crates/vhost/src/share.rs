// SPDX-License-Identifier: Apache-2.0 OR MIT
//! Shares: how sessions divide the memory for data in flight.
//!
//! Invariants
//! - VH-S1 A request within its session's reserve is admitted at once.
//! - VH-S2 Beyond the reserve, a session that holds nothing may take all free memory; one that
//!   holds some may only take as much as leaves free what it then holds, and at most
//!   [`SHARE_BYTES_MAX`]. So sessions that never release their memory leave room for others.
//! - VH-S3 Of the requests that wait, the one whose session would hold least is admitted first, and
//!   after [`PASSED_MAX`] later ones the one that has waited longest.
use std::cell::{Cell, RefCell};
use std::rc::Rc;

use reactor::WaitList;

/// Data that each session may have in flight independent of the others.
const RESERVE_BYTES: u64 = 1 << 20;
/// Data of one session in flight.
const SHARE_BYTES_MAX: u64 = 64 << 20;
/// Later requests that are admitted before one that waits, at most. Chosen: a large request waits
/// for a few milliseconds of small ones.
const PASSED_MAX: u32 = 64;

/// The memory that one session holds.
#[derive(Debug, Default)]
pub(crate) struct Share {
    held: Cell<u64>,
    /// Woken when a request of it is admitted.
    pub(crate) changed: WaitList,
}

impl Share {
    #[cfg(test)]
    pub(crate) fn held(&self) -> u64 {
        self.held.get()
    }
}

/// A request that waits for memory.
#[derive(Debug)]
pub(crate) struct Waiter {
    share: Rc<Share>,
    bytes: u64,
    admitted: Cell<bool>,
    passed: Cell<u32>,
}

impl Waiter {
    pub(crate) fn is_admitted(&self) -> bool {
        self.admitted.get()
    }
}

/// The memory that all sessions hold.
#[derive(Debug)]
pub(crate) struct Budget {
    bytes_max: u64,
    held: Cell<u64>,
    /// In order of arrival.
    waiting: RefCell<Vec<Rc<Waiter>>>,
}

impl Budget {
    pub(crate) fn new(bytes_max: u64) -> Budget {
        Budget { bytes_max, held: Cell::new(0), waiting: RefCell::default() }
    }

    /// Takes `bytes` for a request if it need not wait.
    pub(crate) fn try_take(&self, share: &Share, bytes: u64) -> bool {
        // A request without data takes nothing and never waits.
        let within = bytes == 0 || share.held.get() + bytes <= RESERVE_BYTES; // VH-S1
        let free = within || self.waiting.borrow().is_empty() && self.fits(share, bytes);
        if free {
            self.take(share, bytes);
        }
        free
    }

    /// Queues a request. It waits until it is admitted, or is withdrawn.
    pub(crate) fn wait(&self, share: &Rc<Share>, bytes: u64) -> Rc<Waiter> {
        let (admitted, passed) = (Cell::new(false), Cell::new(0));
        let waiter = Rc::new(Waiter { share: share.clone(), bytes, admitted, passed });
        self.waiting.borrow_mut().push(waiter.clone());
        self.admit();
        waiter
    }

    /// Cancels a request; its memory is free again if it was admitted.
    pub(crate) fn withdraw(&self, waiter: &Rc<Waiter>) {
        if waiter.is_admitted() {
            return self.give_back(&waiter.share, waiter.bytes);
        }
        self.waiting.borrow_mut().retain(|w| !Rc::ptr_eq(w, waiter));
        self.admit();
    }

    /// Releases the memory of a request that has ended.
    pub(crate) fn give_back(&self, share: &Share, bytes: u64) {
        share.held.set(share.held.get() - bytes);
        self.held.set(self.held.get() - bytes);
        if !self.waiting.borrow().is_empty() {
            self.admit();
        }
    }

    fn take(&self, share: &Share, bytes: u64) {
        share.held.set(share.held.get() + bytes);
        self.held.set(self.held.get() + bytes);
    }

    /// Admits waiting requests that fit, in the order of VH-S3.
    fn admit(&self) {
        while let Some(nth) = self.next() {
            let mut waiting = self.waiting.borrow_mut();
            let waiter = waiting.remove(nth);
            for earlier in &waiting[..nth] {
                earlier.passed.set(earlier.passed.get() + 1);
            }
            drop(waiting);
            self.take(&waiter.share, waiter.bytes);
            waiter.admitted.set(true);
            waiter.share.changed.wake_all();
        }
    }

    fn next(&self) -> Option<usize> {
        let waiting = self.waiting.borrow();
        let order = |(nth, w): &(usize, &Rc<Waiter>)| {
            let late = w.passed.get() >= PASSED_MAX;
            (!late, if late { 0 } else { w.share.held.get() + w.bytes }, *nth)
        };
        let first = waiting.iter().enumerate().min_by_key(order);
        first.filter(|(_, w)| self.fits(&w.share, w.bytes)).map(|(nth, _)| nth)
    }

    /// VH-S2.
    fn fits(&self, share: &Share, bytes: u64) -> bool {
        let free = self.bytes_max.saturating_sub(self.held.get());
        let Some(left) = free.checked_sub(bytes) else { return false };
        let would_hold = share.held.get() + bytes;
        share.held.get() == 0 || would_hold <= left.min(SHARE_BYTES_MAX)
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    const MIB: u64 = 1 << 20;

    fn fill(budget: &Budget, request: u64) -> Rc<Share> {
        let share = Rc::new(Share::default());
        while budget.try_take(&share, request) {}
        share
    }

    #[test]
    fn sessions_leave_room_for_the_next_one() {
        let budget = Budget::new(256 * MIB);
        let all: Vec<_> = (0..6).map(|_| fill(&budget, 4 * MIB)).collect();
        assert_eq!(all[0].held(), SHARE_BYTES_MAX);
        let next = Rc::new(Share::default());
        assert!(budget.try_take(&next, 2 * MIB));
    }

    #[test]
    fn a_request_within_the_reserve_waits_for_nobody() {
        let budget = Budget::new(64 * MIB);
        let full = Rc::new(Share::default());
        assert!(budget.try_take(&full, 64 * MIB));
        let small = Rc::new(Share::default());
        assert!(!budget.try_take(&small, RESERVE_BYTES + 1));
        assert!(budget.try_take(&small, RESERVE_BYTES) && budget.try_take(&small, 0));
    }

    #[test]
    fn the_smallest_goes_first_but_a_large_one_not_last() {
        let budget = Budget::new(64 * MIB);
        let full = Rc::new(Share::default());
        assert!(budget.try_take(&full, 64 * MIB));
        let large = budget.wait(&Rc::default(), 32 * MIB);
        let later: Vec<_> =
            (0..=PASSED_MAX).map(|_| budget.wait(&Rc::default(), 2 * MIB)).collect();
        budget.give_back(&full, 2 * MIB);
        for (nth, small) in later.iter().enumerate().take(PASSED_MAX as usize) {
            assert!(small.is_admitted(), "{nth}");
            budget.withdraw(small);
        }
        assert!(!later.last().unwrap().is_admitted(), "the large one is next");
        budget.give_back(&full, 30 * MIB);
        assert!(large.is_admitted());
    }

    #[test]
    fn a_withdrawn_request_lets_the_next_one_go() {
        let budget = Budget::new(64 * MIB);
        let full = Rc::new(Share::default());
        assert!(budget.try_take(&full, 40 * MIB));
        let large = budget.wait(&Rc::default(), 25 * MIB);
        let other = Rc::new(Share::default());
        let second = budget.wait(&other, 24 * MIB);
        assert!(!large.is_admitted() && second.is_admitted());
        budget.withdraw(&large);
        budget.withdraw(&second);
        budget.give_back(&full, 40 * MIB);
        assert_eq!((budget.held.get(), other.held()), (0, 0));
    }
}
