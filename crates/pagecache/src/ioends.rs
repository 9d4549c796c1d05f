// SPDX-License-Identifier: Apache-2.0 OR MIT
//! Ioends in flight: sends them, bounds how many there are, and marks their pages when they end.
//!
//! Invariants
//! - PC-IO3 An ioend goes to the place that the mapping returns at the moment when it is sent. If
//!   the generation of the mapping has changed since it was collected, all of its pages are mapped
//!   again.
//! - PC-IO4 No `RefCell` is borrowed while a bio is submitted: a device may complete it at once.
//! - PC-IO5 Ioends are numbered as they are opened. [`Sequence`] knows when all below a number have
//!   ended.
//! - PC-IO6 Pages are clean only if no flush below failed while their ioend was in flight, or if it
//!   had FUA: the failed flush may have found them in the device's cache. Otherwise they are dirty
//!   again, and written again.
//! - PC-WB1 Background writeback has at most [`IOENDS_MAX`] ioends in flight, and at most the bytes
//!   of [`LARGE_IOENDS_MAX`] large ones or a single ioend more. FLUSH and FUA have twice as much.
use std::cell::{Cell, RefCell};
use std::ops::Range;
use std::rc::Rc;

use block::{Bio, BlockDevice, Bufs, IoError, Op, PAGE, SECTOR_SHIFT, Sector, Status};
use reactor::{OnDone, WaitList};
use slab::Slab;
use smallvec::SmallVec;

use crate::collector::Collector;
use crate::ioend::{FreeLists, Ioend, IoendStats, Purpose, SEGMENTS_MAX, Segment, add};
use crate::iomap::Mapper;
use crate::planted::Fault;
use crate::sequence::Sequence;
use crate::store::Store;
use crate::units::PAGE_SECTORS;

/// Ioends in flight: more than any drive's queue holds, few enough to bound memory.
pub(crate) const IOENDS_MAX: u64 = 256;
/// The same when they are large: enough for a fast drive, a tenth of a second for a slow one.
pub(crate) const LARGE_IOENDS_MAX: u64 = 16;

/// What is kept of an ioend until it ends.
struct InFlight {
    segments: Vec<Segment>,
    at: Sector,
    bytes: u64,
    number: u64,
    purpose: Purpose,
    /// Changes made, and flushes below that had failed, when it was sent.
    changes: u64,
    flush_errors: u64,
}

/// A range that a FLUSH or FUA makes durable, and the first failure in it meanwhile.
struct FailureWatch {
    pages: Range<u64>,
    failed: Option<Status>,
}

/// What is in flight.
#[derive(Default)]
struct Load {
    ioends: Cell<u64>,
    bytes: Cell<u64>,
}

/// See the module.
pub(crate) struct Ioends {
    pub(crate) stats: IoendStats,
    pub(crate) sequence: Sequence,
    pub(crate) free: FreeLists,
    pub(crate) mapper: RefCell<Mapper>,
    in_flight: RefCell<Slab<InFlight>>,
    /// What background writeback collects, and what FLUSHes do.
    pub(crate) background: RefCell<Collector>,
    pub(crate) sync: RefCell<Collector>,
    /// Of background writeback, and of FLUSH and FUA.
    load: [Load; 2],
    watches: RefCell<Slab<FailureWatch>>,
    /// Woken when an ioend or the flusher has ended.
    pub(crate) ended: WaitList,
    on_done: Rc<dyn OnDone>,
    /// The device's largest write.
    max_io_bytes: u32,
}

impl Ioends {
    /// For the first `len` sectors of `below`. The end of each ioend goes to `on_done`.
    pub(crate) fn new(below: &Rc<dyn BlockDevice>, len: Sector, on_done: Rc<dyn OnDone>) -> Ioends {
        Ioends {
            stats: IoendStats::default(),
            sequence: Sequence::default(),
            free: FreeLists::default(),
            mapper: RefCell::new(Mapper::new(below.clone(), len)),
            in_flight: RefCell::default(),
            background: RefCell::new(Collector::new(Purpose::Background)),
            sync: RefCell::new(Collector::new(Purpose::Sync)),
            load: Default::default(),
            watches: RefCell::default(),
            ended: WaitList::new(),
            on_done,
            max_io_bytes: below.limits().max_io_bytes,
        }
    }

    /// Bytes in flight.
    pub(crate) fn in_flight_bytes(&self) -> u64 {
        self.load.iter().map(|load| load.bytes.get()).sum()
    }

    fn load(&self, purpose: Purpose) -> &Load {
        match purpose {
            Purpose::Background => &self.load[0],
            Purpose::Sync | Purpose::Fua => &self.load[1],
        }
    }

    /// Pages of the largest ioend.
    pub(crate) fn pages_max(&self, store: &Store) -> u64 {
        let bytes = store.config.ioend_bytes.get().min(self.max_io_bytes);
        (u64::from(bytes) / PAGE as u64).max(1)
    }

    /// How many more ioends may be sent, at least one (PC-WB1).
    pub(crate) fn left(&self, purpose: Purpose) -> u64 {
        let load = self.load(purpose);
        (purpose.share() * IOENDS_MAX).saturating_sub(load.ioends.get()).max(1)
    }

    /// Whether another ioend may be sent (PC-WB1).
    fn has_room(&self, store: &Store, purpose: Purpose) -> bool {
        let (load, share) = (self.load(purpose), purpose.share());
        let bytes_max = share * LARGE_IOENDS_MAX * self.pages_max(store) * PAGE as u64;
        load.ioends.get() < share * IOENDS_MAX && load.bytes.get() < bytes_max
    }

    pub(crate) async fn wait_for_room(&self, store: &Store, purpose: Purpose) {
        if !self.has_room(store, purpose) {
            self.ended.wait_for(|| self.has_room(store, purpose)).await;
        }
    }

    /// Waits until all ioends that have been opened have ended, or `enough` holds.
    pub(crate) async fn wait_ended(&self, enough: impl Fn() -> bool) {
        let number = self.sequence.next();
        self.ended.wait_for(|| self.sequence.all_ended_below(number) || enough()).await;
    }

    /// Watches `pages` for failures, until [`Ioends::unwatch`].
    pub(crate) fn watch(&self, pages: Range<u64>) -> usize {
        self.watches.borrow_mut().insert(FailureWatch { pages, failed: None })
    }

    /// The first failure in a watched range so far.
    pub(crate) fn watched(&self, key: usize) -> Result<(), Status> {
        self.watches.borrow()[key].failed.map_or(Ok(()), Err)
    }

    pub(crate) fn unwatch(&self, key: usize) -> Result<(), Status> {
        self.watches.borrow_mut().remove(key).failed.map_or(Ok(()), Err)
    }

    fn note_failure(&self, status: Status, runs: &[Range<u64>]) {
        for (_, watch) in self.watches.borrow_mut().iter_mut() {
            let of = &watch.pages;
            if runs.iter().any(|run| run.start < of.end && of.start < run.end) {
                watch.failed.get_or_insert(status);
            }
        }
    }

    /// Sends the ioends of a collector that are ready.
    pub(crate) fn send_ready(&self, store: &Store, collector: &RefCell<Collector>) {
        // PC-IO4: the borrow ends before each bio goes.
        let next = || collector.borrow_mut().take_ready();
        while let Some(ioend) = next() {
            let stale = store.is_planted(Fault::StaleMap);
            if stale || ioend.generation == store.below.map_generation() {
                self.send(store, ioend);
            } else {
                // PC-IO3
                self.remap(store, ioend).into_iter().for_each(|ioend| self.send(store, ioend));
            }
        }
    }

    /// Closes and sends everything that a collector has.
    pub(crate) fn close(&self, store: &Store, collector: &RefCell<Collector>) {
        collector.borrow_mut().close();
        self.send_ready(store, collector);
        self.mapper.borrow_mut().release_base();
    }

    fn send(&self, store: &Store, ioend: Ioend) {
        let Ioend { place, sector, len, at, purpose, number, segments, mut slices, .. } = ioend;
        let bytes = len.bytes();
        self.stats.sent(bytes, segments.len());
        if store.errors.failed.any() && has_failed(store, &segments) {
            add(&self.stats.retries, 1);
        }
        let mut bufs = Bufs::new();
        bufs.extend(slices.drain(..));
        self.free.slices.put(slices);
        debug_assert_eq!(bufs.len_bytes() as u64, bytes, "PC-IO2");
        self.count_sent(store, purpose, bytes);
        let (changes, flush_errors) = (store.errors.changes(), store.errors.flush_errors());
        let in_flight = InFlight { segments, at, bytes, number, purpose, changes, flush_errors };
        let tag = self.in_flight.borrow_mut().insert(in_flight) as u64;
        let bio = Bio {
            op: Op::Write,
            flags: purpose.flags(),
            class: purpose.class(),
            opener: store.opener,
            sector: at,
            len,
            bufs,
            done: reactor::watched(self.on_done.clone(), tag),
        };
        match place {
            Some(base) => base.submit_at(sector, bio),
            None => store.below.submit(bio),
        }
    }

    fn count_sent(&self, store: &Store, purpose: Purpose, bytes: u64) {
        if self.in_flight_bytes() == 0 {
            store.pacing.writeback_begins(reactor::now());
        }
        let load = self.load(purpose);
        add(&load.ioends, 1);
        add(&load.bytes, bytes);
    }

    /// The same pages as ioends of the mapping as it is now.
    fn remap(&self, store: &Store, old: Ioend) -> SmallVec<[Ioend; 2]> {
        add(&self.stats.remaps, 1);
        let mut folios = store.folios.borrow_mut();
        let mut mapper = self.mapper.borrow_mut();
        let generation = mapper.generation();
        let pages_max = self.pages_max(store);
        let mut all: SmallVec<[Ioend; 2]> = SmallVec::new();
        for (segment, slice) in old.segments.into_iter().zip(old.slices) {
            let start = folios.folio(segment.folio).start;
            let (mut at, mut done) = (segment.pages.start, 0);
            while at < segment.pages.end {
                let first = start + u64::from(at);
                let here = mapper.locate(first, &self.stats);
                let (place, sector, left) = (here.place, here.sector, segment.pages.end - at);
                let joins =
                    |o: &Ioend| o.is_followed_by(place, sector) && o.segments.len() < SEGMENTS_MAX;
                let joined = all.iter().position(joins).filter(|&i| all[i].room(pages_max) > 0);
                let to = joined.unwrap_or_else(|| {
                    // A task that waits for the old ioend waits for all of these.
                    self.sequence.open_again(old.number);
                    all.push(Ioend {
                        place: place.clone(),
                        sector,
                        len: Sector::ZERO,
                        at: Sector(first * PAGE_SECTORS),
                        purpose: old.purpose,
                        generation,
                        number: old.number,
                        segments: Vec::new(),
                        slices: Vec::new(),
                    });
                    all.len() - 1
                });
                let count = here.pages.min(all[to].room(pages_max)).min(u64::from(left));
                let count = u32::try_from(count).expect("at most those of the segment");
                let end = (done + count as usize * PAGE).min(slice.len());
                let to = &mut all[to];
                to.len += Sector(((end - done) >> SECTOR_SHIFT) as u64);
                to.slices.push(slice.slice(done..end));
                if at > segment.pages.start {
                    folios.folio_mut(segment.folio).pins += 1; // Each segment has one.
                }
                to.segments.push(Segment { pages: at..at + count, ..segment });
                (at, done) = (at + count, end);
            }
        }
        self.sequence.end(old.number);
        all
    }

    /// An ioend has ended: marks its pages clean or dirty again. Returns whether they are dirty
    /// again.
    pub(crate) fn end(&self, store: &Store, status: Status, tag: u64) -> bool {
        let key = usize::try_from(tag).expect("made from a slab index");
        let in_flight = self.in_flight.borrow_mut().remove(key);
        let InFlight { segments, at, bytes, number, purpose, changes, flush_errors } = in_flight;
        let failed = status.ok().is_err();
        // PC-IO6
        let in_doubt = purpose != Purpose::Fua && store.has_flush_failed_since(flush_errors);
        let runs = (failed || store.errors.failed.any()).then(|| runs_of(store, &segments));
        {
            let mut folios = store.folios.borrow_mut();
            for Segment { folio, pages, dirtied, round } in &segments {
                let again = failed && !store.is_planted(Fault::DropFailed) || in_doubt;
                folios.end_writing(*folio, pages, again.then_some((*dirtied, *round)));
                if store.is_planted(Fault::CleanRewrittenPage) && !failed && !in_doubt {
                    folios.clear_dirty(*folio, pages);
                }
            }
        }
        self.free.segments.put(segments);
        self.sequence.end(number);
        if failed {
            add(&self.stats.errors, 1);
            let runs = runs.as_deref().unwrap_or_default();
            let device = store.below.name().to_owned();
            let is_first = !store.errors.failed.any();
            store.errors.write_failed(IoError { device, op: Op::Write, sector: at, cause: status });
            store.errors.failed.insert(runs, reactor::now());
            self.note_failure(status, runs);
            if is_first {
                store.errors.notify_failure();
            }
        } else {
            if !in_doubt {
                store.errors.reached_below(changes);
            }
            store.errors.failed.end_streak();
            runs.iter().flatten().for_each(|run| store.errors.failed.remove(run));
        }
        let again = failed || in_doubt;
        let load = self.load(purpose);
        load.ioends.set(load.ioends.get() - 1);
        load.bytes.set(load.bytes.get() - bytes);
        let written = if again { 0 } else { bytes };
        let more = self.in_flight_bytes() > 0;
        store.pacing.written_back(written, more, store.dirty_bytes(), reactor::now());
        again
    }
}

/// Whether any of the pages has failed before.
fn has_failed(store: &Store, segments: &[Segment]) -> bool {
    let folios = store.folios.borrow();
    segments.iter().any(|segment| {
        let pages = segment.device_pages(&folios);
        store.errors.failed.next(pages.start).is_some_and(|failed| failed.start < pages.end)
    })
}

fn runs_of(store: &Store, segments: &[Segment]) -> SmallVec<[Range<u64>; 4]> {
    let folios = store.folios.borrow();
    segments.iter().map(|segment| segment.device_pages(&folios)).collect()
}

#[cfg(test)]
#[path = "ioends_tests.rs"]
mod tests;
