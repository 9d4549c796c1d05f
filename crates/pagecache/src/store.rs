// SPDX-License-Identifier: Apache-2.0 OR MIT
//! Store: the folios in memory and the device below them. All other parts of the cache work on it.
//!
//! When memory is short, clean folios are evicted, first those that are least likely to be read
//! again.
//!
//! Invariants
//! - PC-RC1 Only idle folios are evicted: no page is dirty or in flight, and no task refers to
//!   them.
//! - PC-RC2 For one new folio at most twice its size is evicted.
use std::cell::{Cell, RefCell};
use std::rc::Rc;

use block::{BlockDevice, Limits, Opener, PAGE};
use reactor::WaitList;

use crate::active_discards::ActiveDiscards;
use crate::arena::{Memory, ORDER_MAX, Piece, bytes_of, charge_of};
use crate::config::Config;
use crate::errors::Errors;
use crate::folio_map::{FolioId, FolioMap};
use crate::pacing::Pacing;
use crate::planted::Fault;
use crate::units::PAGE_SECTORS;

/// See the module.
pub(crate) struct Store {
    pub(crate) below: Rc<dyn BlockDevice>,
    /// The opener of all bios that the cache sends itself.
    pub(crate) opener: Opener,
    /// Limits of the cache, not of `below`.
    pub(crate) limits: Limits,
    pub(crate) folios: RefCell<FolioMap>,
    pub(crate) memory: Memory,
    /// Woken when memory was freed, something was written or read, or a discard has ended.
    pub(crate) changed: WaitList,
    pub(crate) discards: ActiveDiscards,
    /// The round of flushes that a write belongs to.
    pub(crate) round: Cell<u64>,
    pub(crate) evicted: Cell<u64>,
    pub(crate) errors: Errors,
    pub(crate) pacing: Pacing,
    pub(crate) config: Config,
}

/// The largest order of a folio that begins at `start` and ends at `end` or before.
fn order_at(start: u64, end: u64) -> u8 {
    let aligned = start.trailing_zeros().min(u32::from(ORDER_MAX));
    let fits = (end - start).ilog2();
    u8::try_from(aligned.min(fits)).expect("at most ORDER_MAX")
}

impl Store {
    /// No folios yet, for a cache with `limits` in front of `below`.
    pub(crate) fn new(below: Rc<dyn BlockDevice>, limits: Limits, config: Config) -> Store {
        let unlimited = config.planted.is(Fault::NoMemoryLimit);
        let memory_bytes = if unlimited { u64::MAX / 2 } else { config.memory_bytes };
        Store {
            below,
            opener: reactor::new_opener(),
            limits,
            folios: RefCell::new(FolioMap::new(config.memory_bytes)),
            memory: Memory::new(memory_bytes),
            changed: WaitList::new(),
            discards: ActiveDiscards::default(),
            round: Cell::new(1),
            evicted: Cell::new(0),
            errors: Errors::default(),
            pacing: Pacing::new(&config),
            config,
        }
    }

    /// Whether a fault is planted.
    pub(crate) fn is_planted(&self, fault: Fault) -> bool {
        self.config.planted.is(fault)
    }

    /// Pages of the device; the last one may reach beyond its end.
    pub(crate) fn device_pages(&self) -> u64 {
        self.limits.capacity.0.div_ceil(PAGE_SECTORS)
    }

    /// Bytes that are dirty or being written.
    pub(crate) fn dirty_bytes(&self) -> u64 {
        let folios = self.folios.borrow();
        (folios.dirty_pages() + folios.writing_pages()) * PAGE as u64
    }

    /// Whether so much is dirty that writers must wait.
    pub(crate) fn is_full(&self) -> bool {
        self.pacing.is_full(self.dirty_bytes())
    }

    /// Whether more is dirty than the threshold of background writeback.
    pub(crate) fn is_over_background(&self) -> bool {
        let dirty = self.folios.borrow().dirty_pages() * PAGE as u64;
        dirty > self.pacing.background_bytes()
    }

    /// Whether the device refuses every write, and all that is dirty has been tried.
    pub(crate) fn is_stuck(&self) -> bool {
        let failed = &self.errors.failed;
        let tried = || failed.since().map_or(0, |(_, pages)| pages * PAGE as u64);
        failed.is_stuck() && tried() >= self.dirty_bytes()
    }

    /// Whether a flush below has failed since `flush_errors` of them had: writes that were in
    /// flight meanwhile may be lost.
    pub(crate) fn has_flush_failed_since(&self, flush_errors: u64) -> bool {
        self.errors.flush_errors() != flush_errors
            && !self.is_planted(Fault::TrustWritesDuringFailedFlush)
    }

    /// A change that took some time is acknowledged now. `flush_errors` is of when it came.
    pub(crate) fn acknowledged(&self, opener: Opener, flush_errors: u64) {
        match self.has_flush_failed_since(flush_errors) && !self.is_planted(Fault::IgnoreDoubt) {
            true => self.errors.acknowledged_in_doubt(opener),
            false => self.errors.acknowledged(opener),
        }
    }

    /// A new folio at `start`, as large as alignment, `end` and memory allow.
    pub(crate) fn make_folio(&self, start: u64, end: u64) -> Option<FolioId> {
        let mut order = order_at(start, end);
        loop {
            match self.take_memory(order) {
                Some(memory) => return Some(self.folios.borrow_mut().insert(start, memory)),
                None if order == 0 => return None,
                None => order = order.saturating_sub(2),
            }
        }
    }

    /// Memory of `order`; evicts clean folios if needed.
    pub(crate) fn take_memory(&self, order: u8) -> Option<Piece> {
        self.memory.take(order).or_else(|| self.make_room(order))
    }

    /// Evicts folios until there is memory of `order`; `None` when none can be evicted, or so many
    /// were (PC-RC2).
    fn make_room(&self, order: u8) -> Option<Piece> {
        let mut freed = 0;
        // Pieces lie scattered: after twice as much the caller tries a smaller one.
        while freed < 2 * bytes_of(order) {
            let evicted = self.folios.borrow_mut().evict()?; // PC-RC1
            self.evicted.set(self.evicted.get() + 1);
            freed += charge_of(evicted);
            if let Some(piece) = self.memory.take(order) {
                return Some(piece);
            }
        }
        None
    }
}
