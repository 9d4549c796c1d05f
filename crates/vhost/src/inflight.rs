// SPDX-License-Identifier: Apache-2.0 OR MIT
//! Notes about requests in flight, in memory that the front end keeps when this process dies: the
//! next process issues them again. The layout for split rings is that of the specification.
//!
//! ```text
//!   a queue   features u64 │ version u16 │ size u16 │ last_batch_head u16 │ used_idx u16
//!             entry x size
//!   entry     in_flight u8 │ 5 B │ next u16 │ counter u64
//! ```
//!
//! Invariants
//! - VH-I1 An entry says "in flight" before its request is issued, until the used ring has it:
//!   after a death at any moment a request is in flight or used, never neither.
//! - VH-I2 A death between the used ring's index and the entries that it covers leaves `used_idx`
//!   behind that index, by as many as there are such entries: the newest of those that are linked
//!   from `last_batch_head` on. The next process clears them, so no request is used twice.
//! - VH-I3 The front end can write there: what is read is checked as rings are.
//!
//! Only the death of this process is meant: its stores are seen in the order in which they were
//! done (each number is stored after all that was stored before), and none of them is lost.
use std::cell::{Cell, RefCell};
use std::sync::Arc;

use block::Error;
use smallvec::SmallVec;

use crate::message::InflightInfo;
use crate::ring::{QUEUE_SIZE_MAX, Ring, RingError};
use block::ClientRegion;

const HEAD_BYTES: u64 = 16;
const ENTRY_BYTES: u64 = 16;
const VERSION_AT: u64 = 8;
const SIZE_AT: u64 = 10;
const LAST_BATCH_AT: u64 = 12;
const USED_IDX_AT: u64 = 14;
const NEXT_AT: u64 = 6;
const COUNTER_AT: u64 = 8;
const VERSION: u16 = 1;
/// Most queues that notes are for.
const QUEUES_MAX: u16 = 256;

fn queue_bytes(queue_size: u16) -> u64 {
    HEAD_BYTES + ENTRY_BYTES * u64::from(queue_size)
}

fn check(info: &InflightInfo) -> Result<(), Error> {
    let (queues, size) = (info.queues, info.queue_size);
    if queues == 0 || queues > QUEUES_MAX || size == 0 || size > QUEUE_SIZE_MAX {
        let why = format!("{queues} queues of {size} entries: 1 to {QUEUES_MAX} queues of 1 to");
        let message = format!("notes of requests in flight: {why} {QUEUE_SIZE_MAX} are allowed");
        return Err(Error::invalid(message));
    }
    Ok(())
}

/// Bytes that notes for these queues take.
///
/// # Errors
/// For too many or too large queues.
pub fn bytes_for(info: &InflightInfo) -> Result<u64, Error> {
    check(info)?;
    Ok(queue_bytes(info.queue_size) * u64::from(info.queues))
}

/// The notes of all queues.
#[derive(Clone, Debug)]
pub struct Inflight {
    region: Arc<dyn ClientRegion>,
    info: InflightInfo,
}

impl Inflight {
    /// Those in a region that the front end has given.
    ///
    /// # Errors
    /// When the region is too short for its queues.
    pub fn new(region: Arc<dyn ClientRegion>, info: InflightInfo) -> Result<Inflight, Error> {
        let needed = bytes_for(&info)?;
        if region.len_bytes() < needed {
            let found = region.len_bytes();
            let message = format!("notes of requests in flight: {found} bytes, needs {needed}");
            return Err(Error::invalid(message));
        }
        Ok(Inflight { region, info })
    }

    /// The notes of one queue of `size` entries.
    ///
    /// # Errors
    /// When they are not for such a queue, or of another version.
    pub fn queue(&self, number: u16, size: u16) -> Result<QueueNotes, RingError> {
        if number >= self.info.queues || size > self.info.queue_size {
            return Err(RingError::Notes);
        }
        let base = u64::from(number) * queue_bytes(self.info.queue_size);
        let (region, counter, last) = (self.region.clone(), Cell::new(0), Cell::new(0));
        let unpublished = RefCell::default();
        let notes = QueueNotes { region, base, size, counter, last, unpublished };
        match notes.load(VERSION_AT)? {
            // Blank: the front end got it from `bytes_for` and nobody has used it.
            0 => {
                notes.store(SIZE_AT, self.info.queue_size)?;
                notes.store(VERSION_AT, VERSION)?;
            }
            VERSION if notes.load(SIZE_AT)? == self.info.queue_size => {}
            _ => return Err(RingError::Notes),
        }
        notes.last.set(notes.load(LAST_BATCH_AT)?);
        Ok(notes)
    }
}

/// The notes of one queue.
#[derive(Debug)]
pub struct QueueNotes {
    region: Arc<dyn ClientRegion>,
    base: u64,
    size: u16,
    /// Of the next entry: the order in which requests were taken.
    counter: Cell<u64>,
    /// `last_batch_head`, which only this process changes.
    last: Cell<u16>,
    /// Requests in the used ring that the guest can't see yet.
    unpublished: RefCell<SmallVec<[u16; 8]>>,
}

impl QueueNotes {
    fn load(&self, at: u64) -> Result<u16, RingError> {
        Ok(self.region.load_u16(self.base + at)?)
    }

    fn store(&self, at: u64, value: u16) -> Result<(), RingError> {
        Ok(self.region.store_u16(self.base + at, value)?)
    }

    fn entry(head: u16) -> u64 {
        HEAD_BYTES + ENTRY_BYTES * u64::from(head)
    }

    fn is_in_flight(&self, head: u16) -> Result<bool, RingError> {
        // With a byte of padding, which nobody writes.
        Ok(self.load(Self::entry(head))? & 0xff != 0)
    }

    fn set_in_flight(&self, head: u16, in_flight: bool) -> Result<(), RingError> {
        self.store(Self::entry(head), in_flight.into())
    }

    /// A request is taken (VH-I1).
    ///
    /// # Errors
    /// When the memory is gone.
    pub fn begin(&self, head: u16) -> Result<(), RingError> {
        assert!(head < self.size, "the ring has checked it");
        let counter = self.counter.replace(self.counter.get().wrapping_add(1));
        let at = self.base + Self::entry(head) + COUNTER_AT;
        self.region.write(at, &counter.to_le_bytes())?;
        self.set_in_flight(head, true)
    }

    /// Puts a request into the used ring, where the guest sees it when it is published.
    ///
    /// # Errors
    /// When memory is gone.
    pub fn put_used(&self, ring: &Ring, head: u16, written: u32) -> Result<(), RingError> {
        assert!(head < self.size, "the ring has checked it");
        let last = self.last.replace(head);
        self.store(Self::entry(head) + NEXT_AT, last)?;
        self.store(LAST_BATCH_AT, head)?;
        self.unpublished.borrow_mut().push(head);
        ring.put_used(head, written)
    }

    /// Lets the guest see all of the used ring (VH-I1, VH-I2).
    ///
    /// # Errors
    /// When memory is gone.
    pub fn publish(&self, ring: &Ring) -> Result<(), RingError> {
        ring.publish()?;
        for head in self.unpublished.borrow_mut().drain(..) {
            self.set_in_flight(head, false)?;
        }
        self.store(USED_IDX_AT, ring.used_idx())
    }

    /// Begins with the notes that are there: the requests to issue again, in the order in which
    /// they were taken.
    ///
    /// # Errors
    /// VH-I3.
    pub fn recover(&self, ring: &Ring) -> Result<Vec<u16>, RingError> {
        let used_idx = ring.used_idx();
        // VH-I2.
        let used = used_idx.wrapping_sub(self.load(USED_IDX_AT)?);
        if used > self.size {
            return Err(RingError::Notes);
        }
        let mut next = LAST_BATCH_AT;
        for _ in 0..used {
            let head = self.load(next)?;
            if head >= self.size {
                return Err(RingError::Notes);
            }
            self.set_in_flight(head, false)?;
            next = Self::entry(head) + NEXT_AT;
        }
        self.store(USED_IDX_AT, used_idx)?;
        let mut found = Vec::new();
        for head in 0..self.size {
            if self.is_in_flight(head)? {
                let mut counter = [0; 8];
                self.region.read(self.base + Self::entry(head) + COUNTER_AT, &mut counter)?;
                found.push((u64::from_le_bytes(counter), head));
            }
        }
        found.sort_unstable();
        let last = found.last().map_or(0, |(counter, _)| counter.wrapping_add(1));
        self.counter.set(last);
        Ok(found.into_iter().map(|(_, head)| head).collect())
    }
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::ring::tests::{GuestRing, SIZE};
    use crate::testing::ram;

    const INFO: InflightInfo = InflightInfo { len: 0, offset: 0, queues: 2, queue_size: SIZE };

    fn notes() -> Inflight {
        let bytes = bytes_for(&INFO).unwrap();
        Inflight::new(ram(bytes), InflightInfo { len: bytes, ..INFO }).unwrap()
    }

    fn take(ring: &Ring, notes: &QueueNotes, head: u16) {
        assert_eq!(ring.peek().unwrap(), Some(head));
        notes.begin(head).unwrap();
        ring.take();
    }

    #[test]
    fn what_was_in_flight_is_issued_again_in_order() {
        let guest = GuestRing::new();
        let (ring, all) = (guest.ring(0, true), notes());
        let first = all.queue(1, SIZE).unwrap();
        assert_eq!(first.recover(&ring).unwrap(), []);
        for head in [5, 2, 7] {
            guest.offer(head);
            take(&ring, &first, head);
        }
        first.put_used(&ring, 2, 1).unwrap();
        first.publish(&ring).unwrap();
        // The process is gone; the front end knows the used index only.
        let ring = guest.ring(ring.used_idx(), true);
        let second = all.queue(1, SIZE).unwrap();
        assert_eq!(second.recover(&ring).unwrap(), [5, 7]);
        assert_eq!(all.queue(0, SIZE).unwrap().recover(&ring).unwrap(), []);
    }

    /// VH-I2: after each store of `put_used` the process may die.
    #[test]
    fn a_death_while_a_request_is_used_leaves_it_in_one_place() {
        let guest = GuestRing::new();
        let (ring, all) = (guest.ring(0, true), notes());
        let notes = all.queue(0, SIZE).unwrap();
        notes.recover(&ring).unwrap();
        guest.offer(3);
        take(&ring, &notes, 3);
        // Before the used index: it is in flight.
        notes.store(LAST_BATCH_AT, 3).unwrap();
        let next = all.queue(0, SIZE).unwrap();
        assert_eq!(next.recover(&guest.ring(0, true)).unwrap(), [3]);
        // After it: it is used, although its entry says otherwise.
        ring.put_used(3, 1).unwrap();
        ring.publish().unwrap();
        assert!(notes.is_in_flight(3).unwrap());
        let next = all.queue(0, SIZE).unwrap();
        assert_eq!(next.recover(&guest.ring(1, true)).unwrap(), []);
        assert!(!notes.is_in_flight(3).unwrap());
    }

    /// VH-I2, with several requests that one index covers, after others that none covers yet.
    #[test]
    fn a_death_while_many_are_used_leaves_each_in_one_place() {
        for dies_at in 0..4 {
            let guest = GuestRing::new();
            let (ring, all) = (guest.ring(0, true), notes());
            let notes = all.queue(0, SIZE).unwrap();
            notes.recover(&ring).unwrap();
            for head in [3, 6, 1, 4] {
                guest.offer(head);
                take(&ring, &notes, head);
            }
            let put = |head| notes.put_used(&ring, head, 1).unwrap();
            put(4);
            notes.publish(&ring).unwrap();
            put(6);
            put(3);
            let (mut seen, mut left) = (1, vec![3, 6, 1]);
            if dies_at > 0 {
                ring.publish().unwrap();
                (seen, left) = (3, vec![1]);
            }
            if dies_at > 1 {
                notes.set_in_flight(6, false).unwrap();
            }
            if dies_at > 2 {
                notes.publish(&ring).unwrap();
            }
            let next = all.queue(0, SIZE).unwrap();
            let found = next.recover(&guest.ring(seen, true)).unwrap();
            assert_eq!(found, left, "it dies at {dies_at}");
        }
    }

    #[test]
    fn notes_of_another_shape_are_refused() {
        let all = notes();
        assert_eq!(all.queue(2, SIZE).map(drop), Err(RingError::Notes));
        assert_eq!(all.queue(0, SIZE * 2).map(drop), Err(RingError::Notes));
        let ring = GuestRing::new().ring(0, true);
        let notes = all.queue(0, SIZE).unwrap();
        notes.store(LAST_BATCH_AT, SIZE).unwrap();
        notes.store(USED_IDX_AT, 9).unwrap();
        assert_eq!(notes.recover(&ring), Err(RingError::Notes));
        notes.store(VERSION_AT, 7).unwrap();
        assert_eq!(all.queue(0, SIZE).map(drop), Err(RingError::Notes));
        for (queues, queue_size) in [(0, 1), (257, 1), (1, 0), (1, 1025)] {
            assert!(bytes_for(&InflightInfo { queues, queue_size, ..INFO }).is_err());
        }
        let short = ram(bytes_for(&INFO).unwrap() - 1);
        assert!(Inflight::new(short, INFO).is_err());
    }
}
