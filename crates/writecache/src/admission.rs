// SPDX-License-Identifier: Apache-2.0 OR MIT
//! Admission: blocks that a client reads from the origin enter the cache, clean (`read_cache`).
//!
//! ```text
//!   read of the origin ─▶ client                     commit ─▶ the log names it: warm after a
//!         │                                             ▲       restart
//!         └─▶ own copy ─▶ free slot ─▶ map, clean ──────┴── both devices are flushed
//! ```
//!
//! An admitted block is as one that was written back and is cached still: the format has no other
//! kind of clean block, and recovery sees no difference.
//!
//! Invariants
//! - WC-RA1 A block enters only as the origin has it: since before it was read nobody has locked
//!   it, and the map has no version of it. Everybody who changes a block of the origin locks it
//!   (WC-WB1, WC-I4). Otherwise the admission is given up: nobody waits for it.
//! - WC-RA2 The log names an admitted block only after a flush of the cache device that began when
//!   its data were in its slot. So what the log calls clean is durable, as after writeback, and
//!   recovery has to check none of it. And after a flush of the origin that began when it had been
//!   read: a write around the cache may be in a volatile cache of the origin, and after a power cut
//!   the origin would have older data than the cache calls clean. If a flush of the origin has
//!   failed since, the block leaves the cache.
//! - WC-RA3 Dirty data win: an admission takes a slot only while as many are free as reclaim keeps
//!   (`reclaim_reserve`), and no writer waits; reclaim drops clean blocks before it comes to that.
//!   Blocks that are read for the first time leave an eighth more.
//! - WC-RA4 What enters was read into memory of the cache: a client may change its own while it
//!   reads.
//! - WC-RA5 After a suspend nothing of it is under way, and once a suspend has begun, or the cache
//!   gives its origin back, nothing enters: after one with a flush the origin may be used without
//!   the cache. So a suspend before another table takes the cache's place is one with a flush,
//!   although it was flushed before.
//!
//! Cost: a write of the cache device for each run of admitted blocks, a copy of the data, and one
//! flush of either device for all that was admitted in `autocommit_time`.
use std::cell::Cell;
use std::ops::Range;
use std::rc::{Rc, Weak};

use block::{Buf, Class, Flags, Nanos, Status};
use policy::Room;

use crate::lifecycle::TaskGuard;
use crate::pacing::reclaim_reserve;
use crate::planted::Fault;
use crate::read_cache::{IN_FLIGHT_BYTES_MAX, UNNAMED_MAX, UnnamedBlock};
use crate::store::media::{CHANGES_AT_ONCE_MAX, Media};
use crate::writeback::Writeback;

/// Blocks that are read for the first time leave one slot in so many for those that are read again.
/// Chosen: the least that matters; a slot that is left costs a hit of the second pass.
const FIRST_READS_LEAVE: u32 = 8;

/// A read of the origin of which some blocks are to enter the cache.
pub(crate) struct AdmittedRead {
    writeback: Rc<Writeback>,
    /// All blocks of the read, and those that are to enter.
    blocks: Range<u64>,
    runs: Vec<Range<u64>>,
    /// The data that are read (WC-RA4).
    pub(crate) data: Buf,
    /// The watch of the blocks (WC-RA1).
    watch: usize,
    flush_errors: u64,
    /// Blocks that have entered.
    entered: Cell<u64>,
    /// WC-RA5
    _guard: Option<TaskGuard>,
}

impl Drop for AdmittedRead {
    fn drop(&mut self) {
        if !block::crashing() {
            let in_flight = &self.writeback.read_cache.in_flight_bytes;
            in_flight.set(in_flight.get() - self.data.len() as u64);
            let wanted: u64 = self.runs.iter().map(|run| run.end - run.start).sum();
            let stats = &self.writeback.store.stats;
            stats.read_admitted.add(self.entered.get());
            stats.read_admissions_lost.add(wanted - self.entered.get());
            self.writeback.locks.unwatch(self.watch);
        }
    }
}

impl Writeback {
    /// A client is about to read `blocks`, which are not in the cache, from the origin: returns
    /// what is needed if some of them are to enter the cache.
    pub(crate) fn begin_admission(self: &Rc<Self>, blocks: Range<u64>) -> Option<AdmittedRead> {
        let (store, bytes) = (&self.store, (blocks.end - blocks.start) * self.block_bytes());
        let in_flight = self.read_cache.in_flight_bytes.get() + bytes;
        let has_room = in_flight <= IN_FLIGHT_BYTES_MAX && self.room_for_reads() > 0;
        let watch = if has_room { self.locks.watch(blocks.clone()) } else { None };
        let room = match watch {
            Some(_) if self.has_ample_room() => Room::Ample,
            Some(_) => Room::Some,
            None => Room::None,
        };
        let runs = self.read_cache.miss(blocks.clone(), room, &store.stats);
        let watch = watch?;
        if runs.is_empty() {
            self.locks.unwatch(watch);
            return None;
        }
        self.read_cache.in_flight_bytes.set(in_flight);
        let unguarded = store.has_fault(Fault::AdmissionUnguarded);
        Some(AdmittedRead {
            writeback: self.clone(),
            blocks,
            runs,
            data: Buf::alloc(usize::try_from(bytes).expect("at most IN_FLIGHT_BYTES_MAX")),
            watch,
            flush_errors: self.origin_flush_errors(),
            entered: Cell::default(),
            _guard: (!unguarded).then(|| store.life.guard()),
        })
    }

    fn block_bytes(&self) -> u64 {
        u64::from(self.store.config.block_size)
    }

    /// How many slots admissions may take (WC-RA3).
    fn room_for_reads(&self) -> u32 {
        let (store, free) = (&self.store, self.store.counts().free);
        let emptied = self.is_emptied() && !store.has_fault(Fault::AdmitWhenEmptied);
        let is_refused = store.health().is_err()
            || emptied
            || store.life.is_about_to_stop()
            || self.read_cache.is_closed.get()
            || self.read_cache.unnamed.borrow().len() >= UNNAMED_MAX;
        if is_refused {
            return 0;
        }
        if store.has_fault(Fault::AdmitLastSlots) {
            return free;
        }
        if self.pacing.starved_writers.get() > 0 {
            return 0;
        }
        // One below the reserve: then reclaim makes room.
        (free + 1).saturating_sub(reclaim_reserve(store.slot_count()))
    }
}

impl Writeback {
    /// Whether blocks that are read for the first time may enter: so many slots are free that no
    /// dirty block needs soon. A cache that is full of clean blocks has none.
    pub(crate) fn has_ample_room(&self) -> bool {
        let (store, slots) = (&self.store, self.store.slot_count());
        let least = store.tuning().reads.first_slots_min;
        slots >= least && self.room_for_reads() > slots / FIRST_READS_LEAVE
    }
}

impl AdmittedRead {
    /// The data have arrived, and no one has found them invalid: writes them to free slots, and
    /// enters the blocks into the map.
    pub(crate) async fn finish(self) {
        for run in &self.runs {
            self.admit_run(run.clone()).await;
        }
        let wb = &self.writeback;
        if wb.has_work() {
            wb.store.waits.blocks_changed();
        } else if self.entered.get() > 0 {
            wb.store.waits.first_change.wake_all();
        }
    }

    async fn admit_run(&self, run: Range<u64>) {
        let (wb, store) = (&self.writeback, &self.writeback.store);
        let size = store.block_bytes();
        let mut at = run.start;
        while at < run.end {
            let max = wb.room_for_reads().min(u32::try_from(run.end - at).unwrap_or(u32::MAX));
            let slots = store.slots.borrow_mut().allocate(max);
            let Some(slots) = slots else { break };
            let end = at + slots.len() as u64;
            let first = usize::try_from(at - self.blocks.start).expect("within the read") * size;
            let data = self.data.slice(first..first + slots.len() * size);
            let sector = store.slot_sector(slots.start);
            store.stats.admitted_write_bytes.add((slots.len() * size) as u64);
            let flags = Flags::BACKGROUND;
            let io = reactor::write(&*store.device, flags, Class::Background, sector, data.into());
            let written = io.await;
            for (block, slot) in (at..end).zip(slots) {
                let entered = u64::from(self.enter(block, slot, written));
                self.entered.set(self.entered.get() + entered);
            }
            at = end;
        }
    }

    /// Enters a block whose data are in `slot`, or frees the slot.
    fn enter(&self, block: u64, slot: u32, written: Result<(), Status>) -> bool {
        let (wb, store) = (&self.writeback, &self.writeback.store);
        let is_unlocked =
            !wb.locks.was_locked(self.watch) || store.has_fault(Fault::AdmitBesideChange);
        let is_flushed = wb.origin_flush_errors() == self.flush_errors;
        // WC-RA1
        let is_open = !wb.read_cache.is_closed.get() && store.health().is_ok();
        let is_valid = written.is_ok() && is_unlocked && is_flushed && is_open;
        let at = usize::try_from(block - self.blocks.start).expect("within the read");
        let crc = store.checksum_of(&self.data.all().into(), at);
        let mut slots = store.slots.borrow_mut();
        let found = slots.find(block);
        if found.is_some() && is_valid && store.has_fault(Fault::AdmitOverNewer) {
            slots.admit_over(block, slot, crc);
            return true;
        }
        // WC-RA2: what still has to be logged about the block would be logged as it is then.
        if !is_valid || found.is_some() || slots.needs_logging(block) {
            slots.abandon(slot);
            return false;
        }
        slots.admit(block, slot, crc);
        if store.has_fault(Fault::AdmittedNamedEarly) {
            let found = slots.find(block).expect("just entered");
            slots.log_admitted(block, found.slot_ref);
        } else if matches!(store.media, Media::Native(_))
            && let Some(found) = slots.find(block)
        {
            let (slot_ref, flush_errors) = (found.slot_ref, self.flush_errors);
            wb.read_cache.unnamed.borrow_mut().push(UnnamedBlock { block, slot_ref, flush_errors });
        }
        wb.read_cache.admitted(block, slot);
        true
    }
}

impl Writeback {
    /// WC-RA2: lets the log name what was admitted.
    pub(crate) async fn name_admitted(&self) {
        let store = &self.store;
        let unnamed = self.read_cache.unnamed.take();
        if unnamed.is_empty() || !matches!(store.media, Media::Native(_)) {
            return;
        }
        let skips = store.has_fault(Fault::AdmittedBesideVolatile);
        if !skips {
            // What a failed flush may have lost is found below.
            self.flush_origin(Class::Background, self.origin_flush_errors()).await.ok();
        }
        if store.health().is_err() || store.flush_device().await.is_err() {
            return;
        }
        let flush_errors = self.origin_flush_errors();
        for part in unnamed.chunks(CHANGES_AT_ONCE_MAX) {
            store.reserve_unlogged(part.len()).await;
            let mut slots = store.slots.borrow_mut();
            for admitted in part {
                match admitted.flush_errors == flush_errors {
                    true => slots.log_admitted(admitted.block, admitted.slot_ref),
                    false => drop(slots.drop_clean(admitted.block, admitted.slot_ref)),
                }
            }
        }
        store.waits.blocks_changed();
    }

    /// Begins to let the log name what is admitted: at a start, and when the option has changed.
    pub(crate) fn start_naming(self: &Rc<Self>) {
        let number = self.read_cache.task.get() + 1;
        self.read_cache.task.set(number);
        self.store.waits.first_change.wake_all();
        if self.read_cache.is_on() && !self.store.life.stopping.get() {
            reactor::spawn(Writeback::name_admitted_task(Rc::downgrade(self), number));
        }
    }

    /// A task: lets the log name what was admitted, some time after the first of it. Suspend does
    /// not wait for this task while it sleeps.
    async fn name_admitted_task(weak: Weak<Writeback>, number: u64) {
        while let Some(wb) = weak.upgrade() {
            let store = wb.store.clone();
            let end = || {
                let over = store.life.stopping.get() || wb.read_cache.task.get() != number;
                over || store.health().is_err()
            };
            let has_any = || !wb.read_cache.unnamed.borrow().is_empty();
            store.waits.first_change.wait_for(|| has_any() || end()).await;
            if end() {
                return;
            }
            let time = store.tuning().autocommit_time.max(Nanos::from_millis(1));
            drop((wb, store));
            reactor::sleep(time).await;
            let Some(wb) = weak.upgrade() else { return };
            let life = &wb.store.life;
            if life.stopping.get() || wb.read_cache.task.get() != number {
                return;
            }
            let _guard = life.guard(); // WC-RA5
            wb.name_admitted().await;
        }
    }
}
