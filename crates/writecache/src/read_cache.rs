// SPDX-License-Identifier: Apache-2.0 OR MIT
//! Read cache: which blocks that clients read from the origin enter the cache, and which of its
//! clean blocks leave it first (`read_cache`). `admission` does what is decided here.
use std::cell::{Cell, RefCell};
use std::ops::Range;

use block::{Opener, Planted, Reservation};
use policy::{Ghosts, ReadAdmission, Refusal, Room, UseCounts};

use crate::config::Tuning;
use crate::map::SlotRef;
use crate::planted::Fault;
use crate::stats::Stats;

/// Bytes of reads whose data may enter the cache, at once. Chosen: as much as fills the queue of a
/// disk, in requests of 64 KiB.
pub(crate) const IN_FLIGHT_BYTES_MAX: u64 = 4 << 20;
/// Admitted blocks that the log does not name yet: 2 MiB of memory at most.
pub(crate) const UNNAMED_MAX: usize = 1 << 16;

/// The attribute `read_cache_state` of a read cache that works, and of one that is off.
const ON: &str = "on";
const OFF: &str = "off";

/// A block that was admitted and that the log does not name yet (WC-RA2).
#[derive(Clone, Copy)]
pub(crate) struct UnnamedBlock {
    pub(crate) block: u64,
    pub(crate) slot_ref: SlotRef,
    /// `Writeback::origin_flush_errors` before the block was read.
    pub(crate) flush_errors: u64,
}

/// What a read cache that is on remembers.
struct Memory {
    admission: ReadAdmission,
    uses: UseCounts,
    /// Slots of the cache.
    slots: u32,
    _reserved: Reservation,
}

/// See the module. No borrow of it is held across an await.
pub(crate) struct ReadCache {
    is_on: Cell<bool>,
    memory: RefCell<Option<Box<Memory>>>,
    /// The attribute `read_cache_state`.
    state: RefCell<String>,
    /// Longest stream of which blocks are admitted, bytes; 0: any.
    cutoff: Cell<u64>,
    pub(crate) in_flight_bytes: Cell<u64>,
    /// A suspend has begun: nothing enters any more.
    pub(crate) is_closed: Cell<bool>,
    pub(crate) unnamed: RefCell<Vec<UnnamedBlock>>,
    /// The number of the task that lets the log name them.
    pub(crate) task: Cell<u64>,
    planted: Planted<Fault>,
}

impl ReadCache {
    pub(crate) fn new(planted: Planted<Fault>) -> ReadCache {
        ReadCache {
            is_on: Cell::default(),
            memory: RefCell::default(),
            state: RefCell::new(OFF.to_owned()),
            cutoff: Cell::default(),
            in_flight_bytes: Cell::default(),
            is_closed: Cell::default(),
            unnamed: RefCell::default(),
            task: Cell::default(),
            planted,
        }
    }

    /// Applies options, for a cache of `slots` blocks.
    pub(crate) fn tune(&self, tuning: &Tuning, slots: u32, block_size: u32) {
        // A cache that has grown forgets what it knew of reads.
        self.memory.borrow_mut().take_if(|memory| memory.slots != slots);
        let has_memory = self.memory.borrow().is_some();
        if tuning.reads.enter && !has_memory {
            self.reserve(slots, block_size);
        } else if !tuning.reads.enter {
            *self.memory.borrow_mut() = None;
            OFF.clone_into(&mut self.state.borrow_mut());
        }
        self.cutoff.set(tuning.reads.sequential_cutoff);
        if let Some(memory) = &mut *self.memory.borrow_mut() {
            memory.admission.set_budget(tuning.reads.bytes_per_day);
        }
        self.is_on.set(self.memory.borrow().is_some());
    }

    fn reserve(&self, slots: u32, block_size: u32) {
        let bytes = Ghosts::bytes(slots.into()) + UseCounts::bytes(slots);
        match reactor::memory().reserve(bytes, format!("the read cache of {slots} blocks")) {
            Ok(reserved) => {
                let admission = ReadAdmission::new(slots.into(), block_size.into());
                let uses = UseCounts::new(slots);
                let memory = Memory { admission, uses, slots, _reserved: reserved };
                *self.memory.borrow_mut() = Some(Box::new(memory));
                ON.clone_into(&mut self.state.borrow_mut());
            }
            Err(e) => *self.state.borrow_mut() = format!("off: {}", e.chain()),
        }
    }

    /// Whether blocks that are read may enter the cache.
    #[inline]
    pub(crate) fn is_on(&self) -> bool {
        self.is_on.get()
    }

    /// The attribute `read_cache_state`.
    pub(crate) fn state(&self) -> String {
        self.state.borrow().clone()
    }

    /// A client reads blocks: whether they are of a stream that is too long for them to be
    /// admitted. May be asked twice about a request.
    pub(crate) fn is_sequential(&self, opener: Opener, blocks: &Range<u64>) -> bool {
        let Some(memory) = &mut *self.memory.borrow_mut() else { return true };
        let bytes = memory.admission.bytes_of_stream(opener.0, blocks);
        self.cutoff.get() > 0 && bytes > self.cutoff.get()
    }

    /// Whether a block that misses would be admitted now, but for room and budget; `is_ample`:
    /// there is ample room.
    pub(crate) fn is_wanted(&self, block: u64, is_ample: impl FnOnce() -> bool) -> bool {
        let memory = self.memory.borrow();
        memory.as_ref().is_some_and(|memory| memory.admission.is_wanted(block, is_ample))
    }

    /// These blocks miss, all of one read that is not sequential: returns the runs to admit.
    pub(crate) fn miss(&self, blocks: Range<u64>, room: Room, stats: &Stats) -> Vec<Range<u64>> {
        let mut runs: Vec<Range<u64>> = Vec::new();
        let Some(memory) = &mut *self.memory.borrow_mut() else { return runs };
        let now = reactor::now().0;
        for block in blocks {
            match memory.admission.miss(block, now, room) {
                Ok(()) => match runs.last_mut() {
                    Some(last) if last.end == block => last.end += 1,
                    _ => runs.push(block..block + 1),
                },
                Err(Refusal::Sequential) => unreachable!("the caller has looked"),
                Err(Refusal::Once) => stats.read_refused_once.add(1),
                Err(Refusal::Budget) => stats.read_refused_budget.add(1),
                Err(Refusal::NoRoom) => stats.read_admissions_lost.add(1),
            }
        }
        runs
    }

    /// The block is in the cache now, in this slot.
    pub(crate) fn admitted(&self, block: u64, slot: u32) {
        let Some(memory) = &mut *self.memory.borrow_mut() else { return };
        memory.uses.clear(slot);
        if !self.planted.is(Fault::GhostKept) {
            memory.admission.admitted(block);
        }
    }

    /// A client has used the block in this slot.
    pub(crate) fn count_use(&self, slot: u32) {
        if let Some(memory) = &mut *self.memory.borrow_mut() {
            memory.uses.count(slot);
        }
    }

    /// Runs `evict` with the uses of slots, if they are counted.
    pub(crate) fn with_uses<R>(&self, evict: impl FnOnce(Option<&mut UseCounts>) -> R) -> R {
        let mut memory = self.memory.borrow_mut();
        evict(memory.as_mut().map(|memory| &mut memory.uses))
    }
}
