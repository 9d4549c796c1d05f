// SPDX-License-Identifier: Apache-2.0 OR MIT
//! One split virtqueue in the guest's memory: takes available entries, puts used ones.
//!
//! ```text
//!   descriptors  16 B x size            address u64 │ length u32 │ flags u16 │ next u16
//!   available    flags │ idx │ ring u16 x size │ used_event
//!   used         flags │ idx │ ring (head u32, length u32) x size │ avail_event
//! ```
//!
//! Invariants
//! - VH-R1 What the guest writes is copied before it is looked at, and checked: an index that runs
//!   more than `size` ahead, a head beyond the table, a chain that is longer than the table or has
//!   a descriptor of no bytes, an order other than readable before writable, an address outside of
//!   the guest's memory. Each of these is a [`RingError`].
//! - VH-R2 No walk of a chain is longer than the queue, or than [`INDIRECT_MAX`] in an indirect
//!   table: a loop ends there.
//! - VH-R3 An entry is in the used ring before the index that covers it. One index may cover
//!   several new entries, all of one turn of the event loop.
//! - VH-R4 Before its task waits for a kick, the guest is asked for one, and then the ring is
//!   looked at once more: an entry is found there, or comes with a kick.
use std::cell::Cell;
use std::fmt;
use std::sync::atomic::{Ordering, fence};

use crate::memory::{AccessError, Extent, Extents, Memory, Run};
use crate::message::RingAddresses;

/// Largest size of a queue.
pub const QUEUE_SIZE_MAX: u16 = 1024;
/// Most descriptors of an indirect table.
pub const INDIRECT_MAX: u32 = 1024;

const DESCRIPTOR_BYTES: u64 = 16;
const USED_ENTRY_BYTES: u64 = 8;
/// Flags and index of either ring.
const RING_HEAD_BYTES: u64 = 4;
const INDEX_AT: u64 = 2;
/// Descriptors of an indirect table that are copied at once: those of a request with up to six runs
/// of data.
const TABLE_AT_ONCE: usize = 8;
/// A guest that has not wanted to be told of so many requests polls. Chosen.
const SLEEPS_REQUESTS: u16 = 1024;
/// Either flag of a ring: the other side need not be told.
const NO_EVENTS: u16 = 1;

const HAS_NEXT: u16 = 1;
const WRITABLE: u16 = 2;
const INDIRECT: u16 = 4;

/// What is wrong with a ring. It ends the session.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum RingError {
    /// The index of the available ring is further ahead than the queue is long.
    Index {
        /// The index.
        found: u16,
        /// The next one to take.
        next: u16,
    },
    /// A head, or a next descriptor, beyond its table.
    Descriptor(u32),
    /// A chain that is longer than may be: a loop, as a rule.
    TooLong,
    /// A descriptor of no bytes.
    Empty,
    /// A readable descriptor after a writable one.
    Order,
    /// An indirect table in an indirect table, with a next descriptor, or of a wrong length.
    Indirect,
    /// A descriptor that is in flight was made available again.
    InFlight(u16),
    /// A request without room for its header or its status.
    NoHeader,
    /// An access to memory failed.
    Access(AccessError),
    /// What is noted about requests in flight can't be.
    Notes,
}

impl fmt::Display for RingError {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        match self {
            RingError::Index { found, next } => {
                write!(f, "the available index {found} is too far ahead of {next}")
            }
            RingError::Descriptor(n) => write!(f, "there is no descriptor {n}"),
            RingError::TooLong => f.write_str("a chain of descriptors is too long"),
            RingError::Empty => f.write_str("a descriptor has no bytes"),
            RingError::Order => f.write_str("a readable descriptor comes after a writable one"),
            RingError::Indirect => f.write_str("an indirect table is wrong"),
            RingError::InFlight(n) => write!(f, "descriptor {n} is in flight already"),
            RingError::NoHeader => f.write_str("a request has no header, or no status"),
            RingError::Access(e) => e.fmt(f),
            RingError::Notes => f.write_str("the notes about requests in flight are wrong"),
        }
    }
}

impl From<AccessError> for RingError {
    fn from(e: AccessError) -> RingError {
        RingError::Access(e)
    }
}

impl From<block::Status> for RingError {
    fn from(_: block::Status) -> RingError {
        RingError::Access(AccessError::Lost)
    }
}

/// A chain of descriptors that was checked: what the device reads, and then what it writes. Where
/// descriptors begin and end means nothing.
#[derive(Debug, Default, PartialEq, Eq)]
pub struct Chain {
    /// Its first descriptor, by which it is named in the used ring.
    pub head: u16,
    /// Where it lies in the memory.
    pub(crate) extents: Extents,
    /// So many of them, the first ones, has the guest written. The answer goes to the others.
    pub(crate) readable: usize,
}

impl Chain {
    /// What the guest has written.
    pub fn readable(&self) -> &[Extent] {
        &self.extents[..self.readable]
    }

    /// Where the answer goes.
    pub fn writable(&self) -> &[Extent] {
        &self.extents[self.readable..]
    }

    #[inline]
    fn push(&mut self, memory: &Memory, found: &Descriptor) -> Result<(), RingError> {
        if found.len == 0 {
            return Err(RingError::Empty);
        }
        let is_readable = found.flags & WRITABLE == 0;
        if is_readable && self.readable != self.extents.len() {
            return Err(RingError::Order);
        }
        memory.locate(found.address, found.len, |extent| {
            self.extents.push(extent);
            Ok(())
        })?;
        if is_readable {
            self.readable = self.extents.len();
        }
        Ok(())
    }
}

struct Descriptor {
    address: u64,
    len: u32,
    flags: u16,
    next: u16,
}

impl Descriptor {
    fn decode(bytes: &[u8; 16]) -> Descriptor {
        let [a @ .., l0, l1, l2, l3, f0, f1, n0, n1] = *bytes;
        Descriptor {
            address: u64::from_le_bytes(a),
            len: u32::from_le_bytes([l0, l1, l2, l3]),
            flags: u16::from_le_bytes([f0, f1]),
            next: u16::from_le_bytes([n0, n1]),
        }
    }
}

/// A virtqueue.
#[derive(Debug)]
pub struct Ring {
    size: u16,
    has_event_idx: bool,
    descriptors: Run,
    available: Run,
    used: Run,
    /// Index of the next available entry to take.
    next: Cell<u16>,
    /// The available ring's index when it was last loaded: the guest has the line that it is in.
    available_idx: Cell<u16>,
    /// The most entries that were found available at once lately.
    found_at_once: Cell<u16>,
    /// Index of the used ring, with the entries that the guest can't see yet.
    used_idx: Cell<u16>,
    /// The index that the guest sees.
    published: Cell<u16>,
    /// The used index when it was last looked whether the guest wants to be told.
    told_at: Cell<u16>,
    /// The used index when it wanted that last; `None`: not for long.
    wanted_at: Cell<Option<u16>>,
}

impl Ring {
    /// The queue at these addresses of the front end, whose next available entry has index `next`.
    /// `size` is a power of two, at most [`QUEUE_SIZE_MAX`].
    ///
    /// # Errors
    /// A text, when a part is not whole in the memory, or not aligned.
    pub fn new(
        memory: &Memory,
        addresses: &RingAddresses,
        size: u16,
        next: u16,
        has_event_idx: bool,
    ) -> Result<Ring, String> {
        assert!(size.is_power_of_two() && size <= QUEUE_SIZE_MAX, "checked as it was set");
        let entries = u64::from(size);
        let event = if has_event_idx { 2 } else { 0 };
        let part = |what: &str, address: u64, len: u64, align: u64| {
            let run = memory.at_user(address, len);
            let run = run.filter(|run| address.is_multiple_of(align) && run.at.is_multiple_of(2));
            run.ok_or_else(|| format!("its {what} at {address:#x} can't be there"))
        };
        let descriptors = addresses.descriptors;
        let descriptors = part("descriptors", descriptors, entries * DESCRIPTOR_BYTES, 16)?;
        let len = RING_HEAD_BYTES + entries * 2 + event;
        let available = part("available ring", addresses.available, len, 2)?;
        let len = RING_HEAD_BYTES + entries * USED_ENTRY_BYTES + event;
        let used = part("used ring", addresses.used, len, 4)?;
        let used_idx = used.region.load_u16(used.at + INDEX_AT);
        let used_idx = used_idx.map_err(|_| AccessError::Lost.to_string())?;
        Ok(Ring {
            size,
            has_event_idx,
            descriptors,
            available,
            used,
            next: Cell::new(next),
            available_idx: Cell::new(next),
            found_at_once: Cell::new(0),
            used_idx: Cell::new(used_idx),
            published: Cell::new(used_idx),
            told_at: Cell::new(used_idx),
            wanted_at: Cell::new(None),
        })
    }

    /// The same queue in other memory.
    ///
    /// # Errors
    /// As [`Ring::new`].
    pub(crate) fn moved_to(
        &self,
        memory: &Memory,
        addresses: &RingAddresses,
    ) -> Result<Ring, String> {
        let ring = Ring::new(memory, addresses, self.size, self.next.get(), self.has_event_idx)?;
        // An entry that was found may be taken after the move.
        ring.available_idx.set(self.available_idx.get());
        ring.used_idx.set(self.used_idx.get());
        ring.told_at.set(self.told_at.get());
        Ok(ring)
    }

    /// The index of the next available entry to take.
    pub fn next(&self) -> u16 {
        self.next.get()
    }

    pub(crate) fn set_next(&self, next: u16) {
        self.next.set(next);
        self.available_idx.set(next);
    }

    /// The index of the used ring, with the entries that are not published.
    pub fn used_idx(&self) -> u16 {
        self.used_idx.get()
    }

    /// The head of the next available chain, which stays available until [`Ring::take`]; `None`
    /// when there is none.
    ///
    /// # Errors
    /// VH-R1.
    pub fn peek(&self) -> Result<Option<u16>, RingError> {
        self.peek_behind(0)
    }

    /// The head of the chain that comes `further` after the next one, if it is known to be
    /// available. The next one itself is looked for.
    ///
    /// # Errors
    /// VH-R1.
    pub fn peek_behind(&self, further: u16) -> Result<Option<u16>, RingError> {
        let next = self.next.get();
        if self.available_idx.get() == next {
            let found = self.available.region.load_u16(self.available.at + INDEX_AT)?;
            let count = found.wrapping_sub(next);
            if count > self.size {
                return Err(RingError::Index { found, next });
            }
            self.available_idx.set(found);
            if count > 0 {
                self.found_at_once.set(count.max(self.found_at_once.get().saturating_sub(1)));
            }
        }
        if self.available_idx.get().wrapping_sub(next) <= further {
            return Ok(None);
        }
        let at = RING_HEAD_BYTES + u64::from(next.wrapping_add(further) % self.size) * 2;
        let head = self.available.region.load_u16(self.available.at + at)?;
        if head >= self.size {
            return Err(RingError::Descriptor(head.into()));
        }
        Ok(Some(head))
    }

    /// The most chains that were found available at once lately: each batch that is smaller lets
    /// it fall by one.
    pub(crate) fn found_at_once(&self) -> u16 {
        self.found_at_once.get()
    }

    /// Takes the chain that [`Ring::peek`] has found.
    pub fn take(&self) {
        debug_assert_ne!(self.available_idx.get(), self.next.get(), "`peek` has found one");
        self.next.set(self.next.get().wrapping_add(1));
    }

    /// Walks the chain that begins at `head`.
    ///
    /// # Errors
    /// VH-R1, VH-R2.
    pub fn chain(&self, memory: &Memory, head: u16) -> Result<Chain, RingError> {
        let mut chain = Chain::default();
        self.walk(memory, head, &mut chain).map(|()| chain)
    }

    /// The same, in place of what is in `chain`.
    #[inline]
    pub(crate) fn walk(
        &self,
        memory: &Memory,
        head: u16,
        chain: &mut Chain,
    ) -> Result<(), RingError> {
        chain.head = head;
        chain.extents.clear();
        chain.readable = 0;
        let mut at = head;
        for _ in 0..self.size {
            if at >= self.size {
                return Err(RingError::Descriptor(at.into()));
            }
            let mut bytes = [0; 16];
            let place = self.descriptors.at + u64::from(at) * DESCRIPTOR_BYTES;
            self.descriptors.region.read(place, &mut bytes)?;
            let found = Descriptor::decode(&bytes);
            if found.flags & INDIRECT != 0 {
                if found.flags & HAS_NEXT != 0 {
                    return Err(RingError::Indirect);
                }
                return walk_indirect(memory, &found, chain);
            }
            chain.push(memory, &found)?;
            if found.flags & HAS_NEXT == 0 {
                return Ok(());
            }
            at = found.next;
        }
        Err(RingError::TooLong)
    }

    /// Puts a chain into the used ring, where the guest sees it when it is published; `written` is
    /// what the device wrote, bytes.
    ///
    /// # Errors
    /// When the memory is gone.
    pub fn put_used(&self, head: u16, written: u32) -> Result<(), RingError> {
        let idx = self.used_idx.get();
        let at = RING_HEAD_BYTES + u64::from(idx % self.size) * USED_ENTRY_BYTES;
        let mut entry = [0; 8];
        entry[..4].copy_from_slice(&u32::from(head).to_le_bytes());
        entry[4..].copy_from_slice(&written.to_le_bytes());
        self.used.region.write(self.used.at + at, &entry)?;
        self.used_idx.set(idx.wrapping_add(1));
        Ok(())
    }

    /// Lets the guest see all of the used ring (VH-R3).
    ///
    /// # Errors
    /// When the memory is gone.
    pub fn publish(&self) -> Result<(), RingError> {
        let idx = self.used_idx.get();
        if self.published.replace(idx) != idx {
            self.used.region.store_u16(self.used.at + INDEX_AT, idx)?;
        }
        Ok(())
    }

    /// Requests in the used ring that the guest can't see yet.
    pub fn unpublished(&self) -> u16 {
        self.used_idx.get().wrapping_sub(self.published.get())
    }

    /// Requests in the used ring that the guest was not told about.
    pub fn untold(&self) -> u16 {
        self.published.get().wrapping_sub(self.told_at.get())
    }

    /// As [`Ring::wants_call`], but a guest that has just begun to wait may be missed: then a later
    /// `wants_call` finds it. It waits for no store of this processor.
    ///
    /// # Errors
    /// When the memory is gone.
    pub fn wants_early_call(&self) -> Result<bool, RingError> {
        let wants = self.untold() > 0 && self.is_asked_for_call()?;
        if wants {
            self.told_at.set(self.published.get());
        }
        Ok(wants)
    }

    /// Whether the guest wants to be told about what it can see in the used ring since the last
    /// call.
    ///
    /// # Errors
    /// When the memory is gone.
    pub fn wants_call(&self) -> Result<bool, RingError> {
        if self.untold() == 0 {
            return Ok(false);
        }
        // The index is stored before the guest's wish is loaded: else both sides could wait.
        fence(Ordering::SeqCst);
        let wants = self.is_asked_for_call();
        self.told_at.set(self.published.get());
        wants
    }

    /// Whether the guest sleeps at times, as it waits: it wanted to be told lately. Else it polls.
    pub fn guest_sleeps(&self) -> bool {
        let since = |at| self.published.get().wrapping_sub(at);
        let is_recent = self.wanted_at.get().is_some_and(|at| since(at) < SLEEPS_REQUESTS);
        if !is_recent {
            self.wanted_at.set(None); // the index comes round
        }
        is_recent
    }

    fn is_asked_for_call(&self) -> Result<bool, RingError> {
        let is_asked = self.load_wish()?;
        if is_asked {
            self.wanted_at.set(Some(self.published.get()));
        }
        Ok(is_asked)
    }

    fn load_wish(&self) -> Result<bool, RingError> {
        let (old, new) = (self.told_at.get(), self.published.get());
        if !self.has_event_idx {
            let flags = self.available.region.load_u16(self.available.at)?;
            return Ok(flags & NO_EVENTS == 0);
        }
        let at = RING_HEAD_BYTES + u64::from(self.size) * 2;
        let event = self.available.region.load_u16(self.available.at + at)?;
        Ok(new.wrapping_sub(event).wrapping_sub(1) < new.wrapping_sub(old))
    }

    /// Tells the guest that it need not kick: entries are being taken.
    ///
    /// # Errors
    /// When the memory is gone.
    pub fn stop_kicks(&self) -> Result<(), RingError> {
        // With event indices the guest has its answer: the last one is passed.
        if !self.has_event_idx {
            self.used.region.store_u16(self.used.at, NO_EVENTS)?;
        }
        Ok(())
    }

    /// Asks the guest to kick when there are more entries. Then look again: some may have come
    /// before the guest knew.
    ///
    /// # Errors
    /// When the memory is gone.
    pub fn ask_for_kicks(&self) -> Result<(), RingError> {
        if self.has_event_idx {
            let at = RING_HEAD_BYTES + u64::from(self.size) * USED_ENTRY_BYTES;
            self.used.region.store_u16(self.used.at + at, self.next.get())?;
        } else {
            self.used.region.store_u16(self.used.at, 0)?;
        }
        fence(Ordering::SeqCst);
        Ok(())
    }
}

fn walk_indirect(memory: &Memory, table: &Descriptor, chain: &mut Chain) -> Result<(), RingError> {
    let count = table.len / 16;
    if count == 0 || !table.len.is_multiple_of(16) || count > INDIRECT_MAX {
        return Err(RingError::Indirect);
    }
    let mut copied = [[0; 16]; TABLE_AT_ONCE];
    let is_short = count as usize <= TABLE_AT_ONCE;
    if is_short {
        memory.read(table.address, copied[..count as usize].as_flattened_mut())?;
    }
    let mut at = 0;
    for _ in 0..count {
        if at >= count {
            return Err(RingError::Descriptor(at));
        }
        let found = if is_short {
            Descriptor::decode(&copied[at as usize])
        } else {
            let place = table.address.checked_add(u64::from(at) * DESCRIPTOR_BYTES);
            let outside = AccessError::Outside { address: table.address, len: table.len.into() };
            let mut bytes = [0; 16];
            memory.read(place.ok_or(outside)?, &mut bytes)?;
            Descriptor::decode(&bytes)
        };
        if found.flags & INDIRECT != 0 {
            return Err(RingError::Indirect);
        }
        chain.push(memory, &found)?;
        if found.flags & HAS_NEXT == 0 {
            return Ok(());
        }
        at = found.next.into();
    }
    Err(RingError::TooLong)
}

#[cfg(test)]
#[path = "ring_tests.rs"]
pub(crate) mod tests;
