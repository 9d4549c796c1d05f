// SPDX-License-Identifier: Apache-2.0 OR MIT
//! Rings of well-behaved and of hostile drivers.
use std::sync::Arc;

use super::*;
use crate::testing::{USER_OFFSET, ram, region_at};
use block::ClientRegion;

pub(crate) const SIZE: u16 = 8;
const DESCRIPTORS: u64 = 0x1000;
const AVAILABLE: u64 = 0x2000;
const USED: u64 = 0x3000;
const DATA: u64 = 0x8000;
const MEMORY_BYTES: u64 = 0x10_0000;

/// A driver's side of a queue.
pub(crate) struct GuestRing {
    memory: Memory,
    offered: Cell<u16>,
}

impl GuestRing {
    pub(crate) fn new() -> GuestRing {
        let region = ram(MEMORY_BYTES) as Arc<dyn ClientRegion>;
        let memory = Memory::new(&[region_at(0, MEMORY_BYTES)], vec![region]).unwrap();
        GuestRing { memory, offered: Cell::new(0) }
    }

    pub(crate) fn ring(&self, next: u16, has_event_idx: bool) -> Ring {
        Ring::new(&self.memory, &addresses(), SIZE, next, has_event_idx).unwrap()
    }

    fn descriptor_in(&self, table: u64, n: u16, address: u64, len: u32, flags: u16, next: u16) {
        let mut bytes = address.to_le_bytes().to_vec();
        bytes.extend(len.to_le_bytes());
        bytes.extend(flags.to_le_bytes());
        bytes.extend(next.to_le_bytes());
        self.memory.write(table + u64::from(n) * 16, &bytes).unwrap();
    }

    fn descriptor(&self, n: u16, address: u64, len: u32, flags: u16, next: u16) {
        self.descriptor_in(DESCRIPTORS, n, address, len, flags, next);
    }

    pub(crate) fn offer(&self, head: u16) {
        let idx = self.offered.get();
        self.store(AVAILABLE + 4 + u64::from(idx % SIZE) * 2, head);
        self.set_offered(idx.wrapping_add(1));
    }

    fn set_offered(&self, idx: u16) {
        self.offered.set(idx);
        self.store(AVAILABLE + 2, idx);
    }

    fn store(&self, address: u64, value: u16) {
        self.memory.write(address, &value.to_le_bytes()).unwrap();
    }

    fn load(&self, address: u64) -> u16 {
        let mut bytes = [0; 2];
        self.memory.read(address, &mut bytes).unwrap();
        u16::from_le_bytes(bytes)
    }

    fn chain(&self, head: u16) -> Result<Chain, RingError> {
        self.ring(0, false).chain(&self.memory, head)
    }
}

fn addresses() -> RingAddresses {
    let [descriptors, available, used] = [DESCRIPTORS, AVAILABLE, USED].map(|a| a + USER_OFFSET);
    RingAddresses { descriptors, used, available }
}

#[test]
fn a_ring_must_be_whole_in_the_memory_and_aligned() {
    let guest = GuestRing::new();
    let all = addresses();
    let end = USER_OFFSET + MEMORY_BYTES;
    for wrong in [
        RingAddresses { descriptors: all.descriptors + 8, ..all },
        RingAddresses { descriptors: end - 127, ..all },
        RingAddresses { available: all.available + 1, ..all },
        RingAddresses { available: end - 20, ..all },
        RingAddresses { used: all.used + 2, ..all },
        RingAddresses { used: u64::MAX - 3, ..all },
        RingAddresses { used: 0, ..all },
    ] {
        assert!(Ring::new(&guest.memory, &wrong, SIZE, 0, true).is_err(), "{wrong:x?}");
    }
}

#[test]
fn entries_are_taken_in_order_across_the_wrap() {
    let guest = GuestRing::new();
    guest.set_offered(0xfffe);
    let ring = guest.ring(0xfffe, false);
    assert_eq!(ring.peek(), Ok(None));
    for head in [3, 1, 4] {
        guest.offer(head);
    }
    for head in [3, 1, 4] {
        assert_eq!(ring.peek(), Ok(Some(head)));
        assert_eq!(ring.peek(), Ok(Some(head)), "until it is taken");
        ring.take();
    }
    assert_eq!((ring.peek(), ring.next()), (Ok(None), 1));
}

#[test]
fn what_is_behind_the_next_entry_is_known_from_the_last_look() {
    let guest = GuestRing::new();
    let ring = guest.ring(0, false);
    guest.offer(3);
    guest.offer(1);
    assert_eq!([0, 1, 2].map(|n| ring.peek_behind(n).unwrap()), [Some(3), Some(1), None]);
    guest.offer(4);
    assert_eq!(ring.peek_behind(2), Ok(None), "it does not look again");
    ring.take();
    ring.take();
    assert_eq!([0, 1].map(|n| ring.peek_behind(n).unwrap()), [Some(4), None]);
}

#[test]
fn what_was_found_before_a_move_is_taken_after_it() {
    let guest = GuestRing::new();
    let ring = guest.ring(0, false);
    guest.offer(3);
    assert_eq!(ring.peek(), Ok(Some(3)));
    let moved = ring.moved_to(&guest.memory, &addresses()).unwrap();
    moved.take();
    assert_eq!((moved.peek(), moved.next()), (Ok(None), 1));
}

/// A wish of the guest that an early look misses, as it was stored later, is found at the end.
#[test]
fn an_early_look_for_a_wish_forgets_nothing() {
    let event = AVAILABLE + 4 + u64::from(SIZE) * 2;
    let guest = GuestRing::new();
    let ring = guest.ring(0, true);
    guest.store(event, 9);
    ring.put_used(3, 1).unwrap();
    ring.publish().unwrap();
    assert_eq!(ring.wants_early_call(), Ok(false));
    guest.store(event, 0);
    ring.put_used(4, 1).unwrap();
    ring.publish().unwrap();
    assert_eq!(ring.wants_call(), Ok(true), "the first was asked for");
    ring.put_used(5, 1).unwrap();
    ring.publish().unwrap();
    guest.store(event, 2);
    assert_eq!((ring.wants_early_call(), ring.wants_call()), (Ok(true), Ok(false)));
}

#[test]
fn indices_and_heads_that_can_not_be_are_errors() {
    let guest = GuestRing::new();
    let ring = guest.ring(0, false);
    guest.set_offered(SIZE + 1);
    assert_eq!(ring.peek(), Err(RingError::Index { found: SIZE + 1, next: 0 }));
    guest.set_offered(0xffff);
    assert_eq!(ring.peek(), Err(RingError::Index { found: 0xffff, next: 0 }));
    guest.set_offered(0);
    guest.offer(SIZE);
    assert_eq!(ring.peek(), Err(RingError::Descriptor(SIZE.into())));
}

#[test]
fn a_chain_has_what_is_readable_and_then_what_is_writable() {
    let guest = GuestRing::new();
    guest.descriptor(2, DATA, 16, HAS_NEXT, 7);
    guest.descriptor(7, DATA + 64, 512, HAS_NEXT, 0);
    guest.descriptor(0, DATA + 4096, 1, WRITABLE, 99);
    let chain = guest.chain(2).unwrap();
    let found = |address, len| {
        let mut all = Extents::new();
        guest
            .memory
            .locate(address, len, |extent| {
                all.push(extent);
                Ok(())
            })
            .unwrap();
        all[0]
    };
    assert_eq!(chain.readable(), [found(DATA, 16), found(DATA + 64, 512)]);
    assert_eq!((chain.head, chain.writable()), (2, &[found(DATA + 4096, 1)][..]));
}

#[test]
fn hostile_chains_are_errors() {
    let guest = GuestRing::new();
    let end = MEMORY_BYTES;
    let outside = |address, len| RingError::Access(AccessError::Outside { address, len });
    guest.descriptor(0, DATA, 16, HAS_NEXT, 1);
    for (n, (address, len, flags, next), error) in [
        (1, (DATA, 16, HAS_NEXT, 0), RingError::TooLong), // a loop
        (1, (DATA, 16, HAS_NEXT, SIZE), RingError::Descriptor(SIZE.into())),
        (1, (DATA, 0, 0, 0), RingError::Empty),
        (1, (end - 8, 16, 0, 0), outside(end - 8, 16)),
        (1, (u64::MAX - 8, 16, 0, 0), outside(u64::MAX - 8, 16)),
        (1, (DATA, u32::MAX, 0, 0), outside(DATA, u32::MAX.into())),
        (1, (DATA, 16, INDIRECT | HAS_NEXT, 0), RingError::Indirect),
        (1, (DATA, 24, INDIRECT, 0), RingError::Indirect),
        (1, (DATA, 0, INDIRECT, 0), RingError::Indirect),
        (1, (DATA, (INDIRECT_MAX + 1) * 16, INDIRECT, 0), RingError::Indirect),
        (1, (end, 16, INDIRECT, 0), outside(end, 16)),
        (1, (u64::MAX - 15, 32, INDIRECT, 0), outside(0, 0)),
    ] {
        guest.descriptor(n, address, len, flags, next);
        let found = guest.chain(0).unwrap_err();
        let same_kind = std::mem::discriminant(&found) == std::mem::discriminant(&error);
        assert!(same_kind, "{found:?}, not {error:?}");
    }
    guest.descriptor(0, DATA, 16, WRITABLE | HAS_NEXT, 1);
    guest.descriptor(1, DATA, 16, 0, 0);
    assert_eq!(guest.chain(0), Err(RingError::Order));
    assert_eq!(guest.chain(SIZE), Err(RingError::Descriptor(SIZE.into())));
}

#[test]
fn an_indirect_table_is_walked_as_the_queue_is() {
    const TABLE: u64 = 0x5000;
    let guest = GuestRing::new();
    guest.descriptor(4, TABLE, 3 * 16, INDIRECT, 0);
    guest.descriptor_in(TABLE, 0, DATA, 16, HAS_NEXT, 2);
    guest.descriptor_in(TABLE, 2, DATA + 64, 1, WRITABLE, 0);
    let chain = guest.chain(4).unwrap();
    assert_eq!((chain.readable().len(), chain.writable().len()), (1, 1));
    for (next, flags, error) in [
        (0, HAS_NEXT, RingError::TooLong),
        (3, HAS_NEXT, RingError::Descriptor(3)),
        (0, INDIRECT, RingError::Indirect),
    ] {
        guest.descriptor_in(TABLE, 2, DATA + 64, 16, flags, next);
        assert_eq!(guest.chain(4), Err(error));
    }
}

#[test]
fn the_guest_is_told_where_it_asked_to_be() {
    let event = AVAILABLE + 4 + u64::from(SIZE) * 2;
    let guest = GuestRing::new();
    let ring = guest.ring(0, true);
    guest.store(event, 1);
    ring.put_used(3, 513).unwrap();
    assert_eq!((ring.unpublished(), ring.untold(), guest.load(USED + 2)), (1, 0, 0));
    ring.publish().unwrap();
    assert_eq!(ring.wants_call(), Ok(false), "it asked for the second");
    ring.put_used(4, 1).unwrap();
    ring.publish().unwrap();
    assert_eq!(ring.wants_call(), Ok(true));
    assert_eq!(ring.wants_call(), Ok(false), "nothing new");
    ring.put_used(5, 1).unwrap();
    ring.publish().unwrap();
    assert_eq!(ring.wants_call(), Ok(false), "it has not asked again");
    assert_eq!(guest.load(USED + 2), 3);
    assert_eq!((guest.load(USED + 4), guest.load(USED + 8)), (3, 513));
}

#[test]
fn a_ring_that_is_moved_forgets_no_call() {
    let guest = GuestRing::new();
    let ring = guest.ring(0, false);
    ring.put_used(3, 1).unwrap();
    ring.publish().unwrap();
    let moved = ring.moved_to(&guest.memory, &addresses()).unwrap();
    assert_eq!((moved.wants_call(), moved.used_idx()), (Ok(true), 1));
}

#[test]
fn without_event_indices_flags_say_who_is_told() {
    let guest = GuestRing::new();
    let ring = guest.ring(0, false);
    ring.stop_kicks().unwrap();
    assert_eq!(guest.load(USED), NO_EVENTS);
    ring.ask_for_kicks().unwrap();
    assert_eq!(guest.load(USED), 0);
    ring.put_used(0, 1).unwrap();
    ring.publish().unwrap();
    assert_eq!(ring.wants_call(), Ok(true));
    guest.store(AVAILABLE, NO_EVENTS);
    ring.put_used(0, 1).unwrap();
    ring.publish().unwrap();
    assert_eq!(ring.wants_call(), Ok(false));
}

#[test]
fn kicks_are_asked_for_after_the_last_entry_taken() {
    let guest = GuestRing::new();
    let ring = guest.ring(0, true);
    for head in 0..3 {
        guest.offer(head);
        ring.peek().unwrap();
        ring.take();
    }
    ring.ask_for_kicks().unwrap();
    assert_eq!(guest.load(USED + 4 + u64::from(SIZE) * 8), 3);
}

#[test]
fn a_guest_that_has_long_wanted_no_call_polls() {
    let event = AVAILABLE + 4 + u64::from(SIZE) * 2;
    let guest = GuestRing::new();
    let ring = guest.ring(0, true);
    let answer = |requests: u32| {
        for _ in 0..requests {
            ring.put_used(0, 1).unwrap();
            ring.publish().unwrap();
        }
        ring.wants_call().unwrap()
    };
    assert!(!ring.guest_sleeps(), "it has wanted none yet");
    assert!(answer(1) && ring.guest_sleeps());
    guest.store(event, 0);
    assert!(!answer(SLEEPS_REQUESTS.into()) && !ring.guest_sleeps());
    let all = u32::from(u16::MAX) + 1;
    guest.store(event, ring.used_idx().wrapping_sub(9));
    assert!(!answer(all - u32::from(SLEEPS_REQUESTS)) && !ring.guest_sleeps(), "it came round");
}

#[test]
fn a_ring_knows_how_many_chains_came_at_once_lately() {
    let guest = GuestRing::new();
    let ring = guest.ring(0, false);
    let offer_and_take = |count: u16| {
        (0..count).for_each(|head| guest.offer(head));
        while ring.peek().unwrap().is_some() {
            ring.take();
        }
        ring.found_at_once()
    };
    assert_eq!(offer_and_take(5), 5);
    assert_eq!((0..3).map(|_| offer_and_take(1)).collect::<Vec<_>>(), [4, 3, 2]);
    assert_eq!(offer_and_take(8), 8);
}
