// SPDX-License-Identifier: Apache-2.0 OR MIT
//! Shares: how connections divide the memory for data in flight.
//!
//! ```text
//!   0                                        3/4 of max            max
//!   │ network and local sockets               │ local sockets only  │ + a reserve each
//! ```
//!
//! Invariants
//! - NB-S1 A request within its connection's reserve is admitted at once.
//! - NB-S2 Beyond the reserve, a connection that holds nothing may take all free memory; one that
//!   holds some may only take as much as leaves free what it then holds. So connections that never
//!   release their memory leave room for others: n of them leave 1/(n + 1), e.g. 3 leave a quarter.
//! - NB-S3 Of the connections that wait, the one that would hold least is admitted first, and after
//!   [`PASSED_MAX`] later ones the one that has waited longest. Local sockets do not wait for
//!   connections of the network.
use std::cell::{Cell, RefCell};
use std::rc::Rc;

use reactor::WaitList;

use crate::peer::Peer;
use crate::wire::REQUEST_BYTES_MAX;

/// Data that each connection may have in flight independent of the others (NB-N5).
pub(crate) const RESERVE_BYTES: u64 = 1 << 20;
/// Later requests that are admitted before one that waits, at most. Chosen: a large request waits
/// for a few milliseconds of small ones.
const PASSED_MAX: u32 = 64;

/// The memory that one connection holds, and waits for.
#[derive(Debug)]
pub(crate) struct Share {
    peer: Peer,
    /// Data in flight.
    held: Cell<u64>,
    /// Data of the waiting request; zero: none.
    wants: Cell<u64>,
    passed: Cell<u32>,
    /// Woken when the request that waits is admitted.
    pub(crate) changed: WaitList,
}

impl Share {
    pub(crate) fn new(peer: Peer) -> Share {
        Share {
            peer,
            held: Cell::new(0),
            wants: Cell::new(0),
            passed: Cell::new(0),
            changed: WaitList::new(),
        }
    }

    pub(crate) fn held(&self) -> u64 {
        self.held.get()
    }

    /// Whether its request still waits.
    pub(crate) fn waits(&self) -> bool {
        self.wants.get() > 0
    }

    fn would_hold(&self) -> u64 {
        self.held.get() + self.wants.get()
    }
}

/// The memory that all connections hold.
#[derive(Debug)]
pub(crate) struct Budget {
    bytes_max: u64,
    network_bytes_max: u64,
    held: Cell<u64>,
    held_by_network: Cell<u64>,
    /// Waiting shares, in order of arrival.
    waiting: RefCell<Vec<Rc<Share>>>,
}

impl Budget {
    pub(crate) fn new(bytes_max: u64) -> Budget {
        let network = (bytes_max - bytes_max / 4).max(u64::from(REQUEST_BYTES_MAX));
        Budget {
            bytes_max,
            network_bytes_max: network,
            held: Cell::new(0),
            held_by_network: Cell::new(0),
            waiting: RefCell::default(),
        }
    }

    /// Takes `bytes` for a request if it need not wait (NB-S1); else queues it.
    pub(crate) fn ask(&self, share: &Rc<Share>, bytes: u64) {
        assert!(!share.waits(), "a connection's requests are admitted one after the other");
        // A request without data takes nothing and never waits.
        if bytes == 0 || share.held.get() + bytes <= RESERVE_BYTES {
            return self.take(share, bytes);
        }
        share.wants.set(bytes);
        share.passed.set(0);
        if self.waiting.borrow().is_empty() && self.fits(share) {
            share.wants.set(0);
            return self.take(share, bytes);
        }
        self.waiting.borrow_mut().push(share.clone());
        self.admit();
    }

    /// Cancels the waiting request.
    pub(crate) fn withdraw(&self, share: &Rc<Share>) {
        self.waiting.borrow_mut().retain(|s| !Rc::ptr_eq(s, share));
        share.wants.set(0);
        self.admit();
    }

    fn take(&self, share: &Share, bytes: u64) {
        share.held.set(share.held.get() + bytes);
        self.held.set(self.held.get() + bytes);
        if share.peer == Peer::Network {
            self.held_by_network.set(self.held_by_network.get() + bytes);
        }
    }

    /// Releases the memory of an answered request.
    pub(crate) fn give_back(&self, share: &Share, bytes: u64) {
        share.held.set(share.held.get() - bytes);
        self.held.set(self.held.get() - bytes);
        if share.peer == Peer::Network {
            self.held_by_network.set(self.held_by_network.get() - bytes);
        }
        if !self.waiting.borrow().is_empty() {
            self.admit();
        }
    }

    /// Admits waiting requests that fit, in the order of NB-S3.
    fn admit(&self) {
        while let Some(nth) = self.next(Peer::Local).or_else(|| self.next(Peer::Network)) {
            let mut waiting = self.waiting.borrow_mut();
            let share = waiting.remove(nth);
            for earlier in &waiting[..nth] {
                earlier.passed.set(earlier.passed.get() + 1);
            }
            let bytes = share.wants.take();
            self.take(&share, bytes);
            share.changed.wake_all();
        }
    }

    /// The first of a kind in the order of NB-S3, if it fits.
    fn next(&self, peer: Peer) -> Option<usize> {
        let waiting = self.waiting.borrow();
        let of_kind = waiting.iter().enumerate().filter(|(_, s)| s.peer == peer);
        let order = |(nth, s): &(usize, &Rc<Share>)| {
            let late = s.passed.get() >= PASSED_MAX;
            (!late, if late { 0 } else { s.would_hold() }, *nth)
        };
        of_kind.min_by_key(order).filter(|(_, share)| self.fits(share)).map(|(nth, _)| nth)
    }

    /// NB-S2.
    fn fits(&self, share: &Share) -> bool {
        let mut free = self.bytes_max.saturating_sub(self.held.get());
        if share.peer == Peer::Network {
            let network = self.network_bytes_max.saturating_sub(self.held_by_network.get());
            free = free.min(network);
        }
        let left = free.checked_sub(share.wants.get());
        left.is_some_and(|left| share.held.get() == 0 || share.would_hold() <= left)
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    const MIB: u64 = 1 << 20;

    fn fill(budget: &Budget, peer: Peer, request: u64) -> Rc<Share> {
        let share = Rc::new(Share::new(peer));
        while !share.waits() && share.held() + request <= 64 * MIB {
            budget.ask(&share, request);
        }
        if share.waits() {
            budget.withdraw(&share);
        }
        share
    }

    #[test]
    fn holders_leave_room_for_the_next_connection() {
        let budget = Budget::new(512 * MIB);
        let holders: Vec<_> = (0..9).map(|_| fill(&budget, Peer::Network, 2 * MIB)).collect();
        assert_eq!(holders[0].held(), 64 * MIB);
        let next = Rc::new(Share::new(Peer::Network));
        budget.ask(&next, 2 * MIB);
        assert!(!next.waits());
        let local = Rc::new(Share::new(Peer::Local));
        budget.ask(&local, 32 * MIB);
        assert!(!local.waits(), "a quarter is kept for local sockets");
    }

    /// Each left an entry behind while others waited: a list without a bound.
    #[test]
    fn requests_without_data_do_not_wait() {
        let budget = Budget::new(64 * MIB);
        let full = Rc::new(Share::new(Peer::Local));
        budget.ask(&full, 64 * MIB);
        let waits = Rc::new(Share::new(Peer::Local));
        budget.ask(&waits, 2 * MIB);
        assert!(waits.waits());
        for _ in 0..3 {
            budget.ask(&full, 0);
        }
        assert!(!full.waits());
        assert_eq!(budget.waiting.borrow().len(), 1);
    }

    #[test]
    fn the_smallest_share_goes_first_but_a_large_one_not_last() {
        let budget = Budget::new(64 * MIB);
        let full = Rc::new(Share::new(Peer::Local));
        budget.ask(&full, 64 * MIB);
        let large = Rc::new(Share::new(Peer::Local));
        budget.ask(&large, 32 * MIB);
        let small = || {
            let small = Rc::new(Share::new(Peer::Local));
            budget.ask(&small, 2 * MIB);
            small
        };
        let mut later: Vec<_> = (0..PASSED_MAX + 1).map(|_| small()).collect();
        budget.give_back(&full, 2 * MIB);
        assert!(large.waits() && !later[0].waits());
        // As each of the small ones ends another one is admitted, for some time.
        for (nth, small) in later.iter().enumerate().take(PASSED_MAX as usize) {
            assert!(!small.waits(), "{nth}");
            budget.give_back(small, 2 * MIB);
        }
        assert!(later.pop().unwrap().waits(), "the large one is next");
        budget.give_back(&full, 30 * MIB);
        assert!(!large.waits());
    }

    #[test]
    fn a_withdrawn_request_lets_the_next_one_go() {
        let budget = Budget::new(64 * MIB);
        let full = Rc::new(Share::new(Peer::Local));
        budget.ask(&full, 40 * MIB);
        let shares: Vec<_> = (0..2).map(|_| Rc::new(Share::new(Peer::Local))).collect();
        budget.ask(&shares[0], 25 * MIB);
        budget.ask(&shares[1], 24 * MIB);
        assert!(shares[0].waits() && !shares[1].waits());
        budget.withdraw(&shares[0]);
        budget.give_back(&shares[1], 24 * MIB);
        budget.give_back(&full, 40 * MIB);
        assert_eq!((budget.held.get(), shares[0].held()), (0, 0));
    }

    fn asking(budget: &Budget, peer: Peer, bytes: u64) -> Rc<Share> {
        let share = Rc::new(Share::new(peer));
        budget.ask(&share, bytes);
        share
    }

    #[test]
    fn what_waited_behind_a_withdrawn_request_goes_at_once() {
        let budget = Budget::new(64 * MIB);
        let _full = asking(&budget, Peer::Local, 29 * MIB);
        let first = asking(&budget, Peer::Local, 10 * MIB);
        budget.ask(&first, 10 * MIB); // 25 are free: less than it would leave
        let second = asking(&budget, Peer::Local, 24 * MIB);
        assert!(first.waits() && second.waits());
        budget.withdraw(&first);
        assert!(!second.waits());
    }

    #[test]
    fn local_sockets_go_before_connections_of_the_network() {
        let budget = Budget::new(64 * MIB);
        let full = asking(&budget, Peer::Local, 64 * MIB);
        let network = asking(&budget, Peer::Network, 10 * MIB);
        let local = asking(&budget, Peer::Local, 12 * MIB);
        budget.give_back(&full, 14 * MIB);
        assert!(!local.waits() && network.waits());
        // What a connection of the network gives back others of it may take.
        budget.give_back(&full, 50 * MIB);
        for _ in 0..2 {
            budget.give_back(&network, network.held());
            budget.ask(&network, 48 * MIB);
            assert!(!network.waits());
        }
    }

    #[test]
    fn a_request_within_the_reserve_waits_for_nobody() {
        let budget = Budget::new(64 * MIB);
        let _full = asking(&budget, Peer::Local, 64 * MIB);
        let waits = asking(&budget, Peer::Network, 2 * MIB);
        let small = asking(&budget, Peer::Network, RESERVE_BYTES);
        assert!(waits.waits() && !small.waits());
    }
}
