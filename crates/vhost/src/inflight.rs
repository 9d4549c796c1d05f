// SPDX-License-Identifier: Apache-2.0 OR MIT
//! Notes about requests in flight, in memory that the front end keeps when this process dies: the
//! next process issues them again. The layout for split rings is that of the specification.
//!
//! ```text
//!   all       queue x queues, each with entries for the size that was asked for
//!             queue x queues, each with entries for QUEUE_SIZE_MAX, unless that was asked for
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
//! - VH-I4 The size that was asked for is no bound of a ring: qemu 10.0 asks for 128 entries, and
//!   its guests use 256 and 1024. A ring up to that size has its notes in the first part, which is
//!   all that processes before this rule have; a larger one has them in the second part.
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

/// Bytes of the first part.
fn asked_bytes(info: &InflightInfo) -> u64 {
    queue_bytes(info.queue_size) * u64::from(info.queues)
}

/// Bytes that notes for these queues take, whatever the size of their rings (VH-I4).
///
/// # Errors
/// For too many or too large queues.
pub fn bytes_for(info: &InflightInfo) -> Result<u64, Error> {
    check(info)?;
    let is_largest = info.queue_size == QUEUE_SIZE_MAX;
    let second = if is_largest { 0 } else { queue_bytes(QUEUE_SIZE_MAX) * u64::from(info.queues) };
    Ok(asked_bytes(info) + second)
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
    /// When the region is too short for queues of the size that was asked for.
    pub fn new(region: Arc<dyn ClientRegion>, info: InflightInfo) -> Result<Inflight, Error> {
        check(&info)?;
        let needed = asked_bytes(&info);
        if region.len_bytes() < needed {
            let found = region.len_bytes();
            let message = format!("notes of requests in flight: {found} bytes, needs {needed}");
            return Err(Error::invalid(message));
        }
        Ok(Inflight { region, info })
    }

    /// First byte of the notes of a queue of `size` entries, and for how many entries they are;
    /// `None` if there is no room for them.
    fn place(&self, number: u16, size: u16) -> Option<(u64, u16)> {
        let InflightInfo { queues, queue_size: asked, .. } = self.info;
        let number = (number < queues).then_some(u64::from(number))?;
        if size <= asked {
            return Some((number * queue_bytes(asked), asked));
        }
        let base = asked_bytes(&self.info) + number * queue_bytes(QUEUE_SIZE_MAX);
        let end = base + queue_bytes(QUEUE_SIZE_MAX);
        (end <= self.region.len_bytes()).then_some((base, QUEUE_SIZE_MAX))
    }

    /// The notes of one queue of `size` entries; `None` if the front end's memory has no room for
    /// them, as that of an earlier version of this program (VH-I4).
    ///
    /// # Errors
    /// When they are of another version, or of another size.
    pub fn queue(&self, number: u16, size: u16) -> Result<Option<QueueNotes>, RingError> {
        let Some((base, entries)) = self.place(number, size) else { return Ok(None) };
        let (region, counter, last) = (self.region.clone(), Cell::new(0), Cell::new(0));
        let unpublished = RefCell::default();
        let notes = QueueNotes { region, base, size, counter, last, unpublished };
        match notes.load(VERSION_AT)? {
            // Blank: the front end got it from `bytes_for` and nobody has used it.
            0 => {
                notes.store(SIZE_AT, entries)?;
                notes.store(VERSION_AT, VERSION)?;
            }
            VERSION if notes.load(SIZE_AT)? == entries => {}
            _ => return Err(RingError::Notes),
        }
        notes.last.set(notes.load(LAST_BATCH_AT)?);
        Ok(Some(notes))
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
        let first = all.queue(1, SIZE).unwrap().unwrap();
        assert_eq!(first.recover(&ring).unwrap(), []);
        for head in [5, 2, 7] {
            guest.offer(head);
            take(&ring, &first, head);
        }
        first.put_used(&ring, 2, 1).unwrap();
        first.publish(&ring).unwrap();
        // The process is gone; the front end knows the used index only.
        let ring = guest.ring(ring.used_idx(), true);
        let second = all.queue(1, SIZE).unwrap().unwrap();
        assert_eq!(second.recover(&ring).unwrap(), [5, 7]);
        assert_eq!(all.queue(0, SIZE).unwrap().unwrap().recover(&ring).unwrap(), []);
    }

    /// VH-I2: after each store of `put_used` the process may die.
    #[test]
    fn a_death_while_a_request_is_used_leaves_it_in_one_place() {
        let guest = GuestRing::new();
        let (ring, all) = (guest.ring(0, true), notes());
        let notes = all.queue(0, SIZE).unwrap().unwrap();
        notes.recover(&ring).unwrap();
        guest.offer(3);
        take(&ring, &notes, 3);
        // Before the used index: it is in flight.
        notes.store(LAST_BATCH_AT, 3).unwrap();
        let next = all.queue(0, SIZE).unwrap().unwrap();
        assert_eq!(next.recover(&guest.ring(0, true)).unwrap(), [3]);
        // After it: it is used, although its entry says otherwise.
        ring.put_used(3, 1).unwrap();
        ring.publish().unwrap();
        assert!(notes.is_in_flight(3).unwrap());
        let next = all.queue(0, SIZE).unwrap().unwrap();
        assert_eq!(next.recover(&guest.ring(1, true)).unwrap(), []);
        assert!(!notes.is_in_flight(3).unwrap());
    }

    /// VH-I2, with several requests that one index covers, after others that none covers yet.
    #[test]
    fn a_death_while_many_are_used_leaves_each_in_one_place() {
        for dies_at in 0..4 {
            let guest = GuestRing::new();
            let (ring, all) = (guest.ring(0, true), notes());
            let notes = all.queue(0, SIZE).unwrap().unwrap();
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
            let next = all.queue(0, SIZE).unwrap().unwrap();
            let found = next.recover(&guest.ring(seen, true)).unwrap();
            assert_eq!(found, left, "it dies at {dies_at}");
        }
    }

    /// VH-I4: each ring that is accepted has notes of its own, which the next process finds.
    #[test]
    fn a_ring_of_any_size_has_notes_whatever_was_asked_for() {
        for asked in [1, 64, 128, 256, QUEUE_SIZE_MAX] {
            let info = InflightInfo { queue_size: asked, ..INFO };
            let all = Inflight::new(ram(bytes_for(&info).unwrap()), info).unwrap();
            for size in [1, 64, 128, 256, QUEUE_SIZE_MAX] {
                for number in 0..INFO.queues {
                    let one = all.queue(number, size).unwrap().expect("there is room");
                    one.begin(size - 1).unwrap();
                    assert!(one.is_in_flight(size - 1).unwrap(), "{asked}, {size}");
                    one.set_in_flight(size - 1, false).unwrap();
                    for head in 0..size {
                        assert!(!one.is_in_flight(head).unwrap(), "{asked}, {size}: {head}");
                    }
                    one.begin(size - 1).unwrap();
                }
                for number in 0..INFO.queues {
                    let next = all.queue(number, size).unwrap().expect("there is room");
                    assert!(next.is_in_flight(size - 1).unwrap(), "{asked}, {size}");
                    next.set_in_flight(size - 1, false).unwrap();
                }
            }
            assert!(all.queue(INFO.queues, 1).unwrap().is_none(), "nobody asked for it");
        }
    }

    /// VH-I4: memory that an earlier version of this program has made has the first part only.
    #[test]
    fn notes_of_earlier_versions_are_found_and_have_no_more_room() {
        let info = InflightInfo { queue_size: 128, ..INFO };
        let region = ram(asked_bytes(&info));
        region.store_u16(queue_bytes(128) + SIZE_AT, 128).unwrap();
        region.store_u16(queue_bytes(128) + VERSION_AT, VERSION).unwrap();
        let all = Inflight::new(region.clone(), info).unwrap();
        let notes = all.queue(1, 64).unwrap().expect("a smaller ring fits");
        notes.begin(63).unwrap();
        let entry = queue_bytes(128) + QueueNotes::entry(63);
        assert_eq!(region.load_u16(entry), Ok(1), "where an earlier process would look");
        assert!(all.queue(1, 128).unwrap().is_some());
        assert!(all.queue(1, 256).unwrap().is_none());
        assert!(all.queue(0, QUEUE_SIZE_MAX).unwrap().is_none());
    }

    #[test]
    fn notes_of_another_shape_are_refused() {
        let all = notes();
        let ring = GuestRing::new().ring(0, true);
        let notes = all.queue(0, SIZE).unwrap().unwrap();
        notes.store(LAST_BATCH_AT, SIZE).unwrap();
        notes.store(USED_IDX_AT, 9).unwrap();
        assert_eq!(notes.recover(&ring), Err(RingError::Notes));
        notes.store(VERSION_AT, 7).unwrap();
        assert_eq!(all.queue(0, SIZE).map(drop), Err(RingError::Notes));
        for (queues, queue_size) in [(0, 1), (257, 1), (1, 0), (1, 1025)] {
            assert!(bytes_for(&InflightInfo { queues, queue_size, ..INFO }).is_err());
        }
        let short = ram(asked_bytes(&INFO) - 1);
        assert!(Inflight::new(short, INFO).is_err());
    }
}
