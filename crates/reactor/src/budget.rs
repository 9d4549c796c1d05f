// SPDX-License-Identifier: Apache-2.0 OR MIT
//! A budget: how the clients of a door divide the memory for data in flight.
//!
//! ```text
//!   0                                   network_bytes_max     bytes_max
//!   │ all clients                               │ local ones only │ + a reserve each
//! ```
//!
//! Invariants
//! - RE-B1 A request within its client's reserve is admitted at once.
//! - RE-B2 Beyond the reserve, a client that holds nothing may take all free memory; one that holds
//!   some may only take as much as leaves free what it then holds, and up to `share_bytes_max`. So
//!   clients that never release their memory leave room for others: n of them leave 1/(n + 1), e.g.
//!   3 leave a quarter.
//! - RE-B3 Of the requests that wait, the one whose client would hold least is admitted first, and
//!   after [`PASSED_MAX`] later ones the one that has waited longest. Local clients do not wait for
//!   those of the network.
use std::cell::{Cell, RefCell};
use std::rc::Rc;

use crate::WaitList;

/// Data that each client may have in flight independent of the others.
const RESERVE_BYTES: u64 = 1 << 20;
/// Later requests that are admitted before one that waits, at most. Chosen: a large request waits
/// for a few milliseconds of small ones.
const PASSED_MAX: u32 = 64;

/// The memory that one client holds.
#[derive(Debug, Default)]
pub struct Share {
    of_network: bool,
    held: Cell<u64>,
    /// To be woken when `over` of one of its requests changes. The budget wakes it when one is
    /// admitted.
    pub changed: WaitList,
}

impl Share {
    /// The share of a client that holds nothing, of this machine or of the network.
    pub fn new(of_network: bool) -> Share {
        Share { of_network, ..Share::default() }
    }

    /// Bytes of its data in flight.
    pub fn held(&self) -> u64 {
        self.held.get()
    }
}

/// A request that waits for memory.
#[derive(Debug)]
struct Waiter {
    share: Rc<Share>,
    bytes: u64,
    is_admitted: Cell<bool>,
    passed: Cell<u32>,
}

impl Waiter {
    fn would_hold(&self) -> u64 {
        self.share.held() + self.bytes
    }
}

/// The memory that all clients hold.
#[derive(Debug)]
pub struct Budget {
    bytes_max: u64,
    network_bytes_max: u64,
    share_bytes_max: u64,
    held: Cell<u64>,
    held_by_network: Cell<u64>,
    /// In order of arrival.
    waiting: RefCell<Vec<Rc<Waiter>>>,
}

impl Budget {
    /// A budget of `bytes_max` bytes for all clients together, of which those of the network may
    /// take `network_bytes_max`, and each client up to `share_bytes_max`; all apart from the
    /// reserve of each.
    pub fn new(bytes_max: u64, network_bytes_max: u64, share_bytes_max: u64) -> Budget {
        let (held, held_by_network) = <(Cell<u64>, Cell<u64>)>::default();
        let waiting = RefCell::default();
        Budget { bytes_max, network_bytes_max, share_bytes_max, held, held_by_network, waiting }
    }

    /// Takes `bytes` for a request if it need not wait. [`Budget::give_back`] releases them.
    pub fn try_take(&self, share: &Share, bytes: u64) -> bool {
        // A request without data takes nothing and never waits.
        let within = bytes == 0 || share.held() + bytes <= RESERVE_BYTES; // RE-B1
        let free = within || self.waiting.borrow().is_empty() && self.fits(share, bytes);
        if free {
            self.take(share, bytes);
        }
        free
    }

    /// Waits until `bytes` fit, and takes them. False, and nothing is taken, when it is `over`
    /// first.
    pub async fn wait(&self, share: &Rc<Share>, bytes: u64, over: impl Fn() -> bool) -> bool {
        let waiter = self.queue(share, bytes);
        share.changed.wait_for(|| waiter.is_admitted.get() || over()).await;
        let over = over();
        if over {
            self.withdraw(&waiter);
        }
        !over
    }

    /// Releases the memory of a request that has ended.
    pub fn give_back(&self, share: &Share, bytes: u64) {
        share.held.set(share.held() - bytes);
        self.held.set(self.held.get() - bytes);
        if share.of_network {
            self.held_by_network.set(self.held_by_network.get() - bytes);
        }
        if !self.waiting.borrow().is_empty() {
            self.admit();
        }
    }

    fn queue(&self, share: &Rc<Share>, bytes: u64) -> Rc<Waiter> {
        let (is_admitted, passed) = <(Cell<bool>, Cell<u32>)>::default();
        let waiter = Rc::new(Waiter { share: share.clone(), bytes, is_admitted, passed });
        self.waiting.borrow_mut().push(waiter.clone());
        self.admit();
        waiter
    }

    /// Cancels a request; its memory is free again if it was admitted.
    fn withdraw(&self, waiter: &Rc<Waiter>) {
        if waiter.is_admitted.get() {
            return self.give_back(&waiter.share, waiter.bytes);
        }
        self.waiting.borrow_mut().retain(|w| !Rc::ptr_eq(w, waiter));
        self.admit();
    }

    fn take(&self, share: &Share, bytes: u64) {
        share.held.set(share.held() + bytes);
        self.held.set(self.held.get() + bytes);
        if share.of_network {
            self.held_by_network.set(self.held_by_network.get() + bytes);
        }
    }

    /// Admits waiting requests that fit, in the order of RE-B3.
    fn admit(&self) {
        while let Some(nth) = self.next(false).or_else(|| self.next(true)) {
            let mut waiting = self.waiting.borrow_mut();
            let waiter = waiting.remove(nth);
            for earlier in &waiting[..nth] {
                earlier.passed.set(earlier.passed.get() + 1);
            }
            drop(waiting);
            self.take(&waiter.share, waiter.bytes);
            waiter.is_admitted.set(true);
            waiter.share.changed.wake_all();
        }
    }

    /// The first of a kind in the order of RE-B3, if it fits.
    fn next(&self, of_network: bool) -> Option<usize> {
        let waiting = self.waiting.borrow();
        let of_kind = waiting.iter().enumerate().filter(|(_, w)| w.share.of_network == of_network);
        let order = |(nth, w): &(usize, &Rc<Waiter>)| {
            let late = w.passed.get() >= PASSED_MAX;
            (!late, if late { 0 } else { w.would_hold() }, *nth)
        };
        let first = of_kind.min_by_key(order);
        first.filter(|(_, w)| self.fits(&w.share, w.bytes)).map(|(nth, _)| nth)
    }

    /// RE-B2.
    fn fits(&self, share: &Share, bytes: u64) -> bool {
        let mut free = self.bytes_max.saturating_sub(self.held.get());
        if share.of_network {
            let network = self.network_bytes_max.saturating_sub(self.held_by_network.get());
            free = free.min(network);
        }
        let Some(left) = free.checked_sub(bytes) else { return false };
        share.held() == 0 || share.held() + bytes <= left.min(self.share_bytes_max)
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    const MIB: u64 = 1 << 20;

    /// Of which a quarter is for local clients only, and no client takes more than 64 MiB.
    fn budget(bytes_max: u64) -> Budget {
        Budget::new(bytes_max, bytes_max - bytes_max / 4, 64 * MIB)
    }

    fn holding(budget: &Budget, of_network: bool, bytes: u64) -> Rc<Share> {
        let share = Rc::new(Share::new(of_network));
        assert!(budget.try_take(&share, bytes));
        share
    }

    fn asking(budget: &Budget, of_network: bool, bytes: u64) -> Rc<Waiter> {
        budget.queue(&Rc::new(Share::new(of_network)), bytes)
    }

    fn fill(budget: &Budget, of_network: bool, request: u64) -> Rc<Share> {
        let share = Rc::new(Share::new(of_network));
        while budget.try_take(&share, request) {}
        share
    }

    #[test]
    fn holders_leave_room_for_the_next_client() {
        let budget = budget(512 * MIB);
        let holders: Vec<_> = (0..9).map(|_| fill(&budget, true, 2 * MIB)).collect();
        assert_eq!(holders[0].held(), 64 * MIB);
        holding(&budget, true, 2 * MIB);
        holding(&budget, false, 32 * MIB); // a quarter is kept for local ones
    }

    /// Each left an entry behind while others waited: a list without a bound.
    #[test]
    fn requests_without_data_do_not_wait() {
        let budget = budget(64 * MIB);
        let full = holding(&budget, false, 64 * MIB);
        let waits = asking(&budget, false, 2 * MIB);
        assert!(!waits.is_admitted.get());
        assert!((0..3).all(|_| budget.try_take(&full, 0)));
        assert_eq!(budget.waiting.borrow().len(), 1);
    }

    #[test]
    fn the_smallest_share_goes_first_but_a_large_one_not_last() {
        let budget = budget(64 * MIB);
        let full = holding(&budget, false, 64 * MIB);
        let large = asking(&budget, false, 32 * MIB);
        let later: Vec<_> = (0..=PASSED_MAX).map(|_| asking(&budget, false, 2 * MIB)).collect();
        budget.give_back(&full, 2 * MIB);
        // As each of the small ones ends another one is admitted, for some time.
        for (nth, small) in later.iter().enumerate().take(PASSED_MAX as usize) {
            assert!(small.is_admitted.get() && !large.is_admitted.get(), "{nth}");
            budget.give_back(&small.share, 2 * MIB);
        }
        assert!(!later.last().unwrap().is_admitted.get(), "the large one is next");
        budget.give_back(&full, 30 * MIB);
        assert!(large.is_admitted.get());
    }

    #[test]
    fn a_withdrawn_request_gives_back_what_it_has() {
        let budget = budget(64 * MIB);
        let full = holding(&budget, false, 40 * MIB);
        let large = asking(&budget, false, 25 * MIB);
        let second = asking(&budget, false, 24 * MIB);
        assert!(!large.is_admitted.get() && second.is_admitted.get());
        budget.withdraw(&large);
        budget.withdraw(&second);
        budget.give_back(&full, 40 * MIB);
        assert_eq!((budget.held.get(), second.share.held()), (0, 0));
    }

    #[test]
    fn what_waited_behind_a_withdrawn_request_goes_at_once() {
        let budget = budget(64 * MIB);
        let _full = holding(&budget, false, 29 * MIB);
        let share = holding(&budget, false, 10 * MIB);
        let first = budget.queue(&share, 10 * MIB); // 25 are free: less than it would leave
        let second = asking(&budget, false, 24 * MIB);
        assert!(!first.is_admitted.get() && !second.is_admitted.get());
        budget.withdraw(&first);
        assert!(second.is_admitted.get());
    }

    #[test]
    fn local_clients_go_before_those_of_the_network() {
        let budget = budget(64 * MIB);
        let full = holding(&budget, false, 64 * MIB);
        let network = asking(&budget, true, 10 * MIB);
        let local = asking(&budget, false, 12 * MIB);
        budget.give_back(&full, 14 * MIB);
        assert!(local.is_admitted.get() && !network.is_admitted.get());
        budget.give_back(&full, 50 * MIB);
        assert!(network.is_admitted.get());
        budget.give_back(&network.share, 10 * MIB);
        // What a client of the network gives back others of it may take.
        for _ in 0..2 {
            budget.give_back(&holding(&budget, true, 48 * MIB), 48 * MIB);
        }
    }

    #[test]
    fn a_request_within_the_reserve_waits_for_nobody() {
        let budget = budget(64 * MIB);
        let _full = holding(&budget, false, 64 * MIB);
        let _waits = asking(&budget, true, 2 * MIB);
        let small = Share::new(true);
        assert!(!budget.try_take(&small, RESERVE_BYTES + 1));
        assert!(budget.try_take(&small, RESERVE_BYTES));
    }
}
