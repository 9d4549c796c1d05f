// SPDX-License-Identifier: Apache-2.0 OR MIT
//! Writes: copies data into folios and marks them dirty. A write completes as soon as it is copied,
//! or a little later when writers are slowed.
//!
//! A write that meets no [`WriteDelay`] is copied as it is submitted. Otherwise a task waits until
//! the obstacle has gone, and continues where the copy stopped.
use std::ops::Range;

use block::{Bio, Bufs, Class, Flags, Nanos, Opener, PAGE, Status};
use reactor::now;

use crate::device::PageCache;
use crate::fill::{NoMemory, bring_in};
use crate::folio_map::FolioId;
use crate::pins::Pins;
use crate::planted::Fault;
use crate::units::{pages_of, to_usize};

/// Why a write cannot be copied at once.
enum WriteDelay {
    /// No memory.
    Memory,
    /// As much is dirty as may be.
    DirtyLimit,
    /// The opener must pause because of what it wrote before.
    Pause(Nanos),
    /// The page is written in part, and its other bytes must be read first.
    PartialPage(u64),
    /// The page is being read, or written below from memory that cannot be replaced.
    InFlight(u64),
    /// Some of the pages are being discarded below.
    Discard(Range<u64>),
}

impl PageCache {
    pub(crate) fn write(&self, bio: Bio) {
        let from = bio.sector.bytes();
        let bytes = from..from + bio.len.bytes();
        let fua = bio.flags.contains(Flags::FUA) && !self.store.is_planted(Fault::IgnoreFua);
        let now = now(); // Once: it costs as much as a look-up of a folio.
        let stopped = self.copy_in(&bytes, &bio.bufs, 0, bio.opener, now);
        if fua || stopped.is_err() {
            let (me, flush_errors) = (self.rc(), self.store.errors.flush_errors());
            return reactor::spawn(async move {
                let before = fua.then_some(flush_errors);
                let done = me.write_waiting(&bytes, &bio.bufs, bio.opener, before, stopped).await;
                if done.is_ok() && !fua {
                    me.store.acknowledged(bio.opener, flush_errors);
                }
                bio.complete(done.into());
            });
        }
        match self.store.pacing.wrote(bio.opener, bio.len.bytes(), self.store.dirty_bytes(), now) {
            None => bio.complete(Status::Ok),
            Some(pause) => {
                self.store.below.writer_throttled();
                let (me, flush_errors) = (self.rc(), self.store.errors.flush_errors());
                reactor::spawn(async move {
                    reactor::sleep(pause).await;
                    me.store.acknowledged(bio.opener, flush_errors);
                    bio.complete(Status::Ok);
                });
            }
        }
    }

    /// Waits for one obstacle after the other, until all is copied; with FUA until it is durable.
    /// For FUA, `fua` is the count of failed flushes from before.
    async fn write_waiting(
        &self,
        bytes: &Range<u64>,
        from: &Bufs,
        opener: Opener,
        fua: Option<u64>,
        mut stopped: Result<(), (u64, WriteDelay)>,
    ) -> Result<(), Status> {
        // Pages that were read for this write stay until it is copied. While it waits for anything
        // else it has no pins: other tasks may wait for that memory.
        let mut pins: Option<Pins<'_>> = None;
        // The obstacle may have gone since, and no wake-up will follow.
        let store = &self.store;
        if let Err((done, _)) = stopped {
            stopped = self.copy_in(bytes, from, done, opener, now());
        }
        while let Err((done, obstacle)) = stopped {
            drop(pins.take());
            match obstacle {
                WriteDelay::Memory => self.writeback.wait_for_memory(store).await?,
                WriteDelay::DirtyLimit => {
                    self.store.below.writer_throttled();
                    self.writeback.wait_for_room(store).await?;
                }
                WriteDelay::Pause(time) => {
                    self.store.below.writer_throttled();
                    reactor::sleep(time).await;
                }
                WriteDelay::PartialPage(page) => {
                    let (pages, class) = (page..page + 1, Class::Foreground);
                    let read = bring_in(store, &self.writeback, pages, class, NoMemory::Wait);
                    pins = Some(read.await?);
                }
                WriteDelay::InFlight(page) => {
                    let is_in_flight = || store.folios.borrow().is_in_flight_in(&(page..page + 1));
                    store.changed.wait_for(|| !is_in_flight()).await;
                }
                WriteDelay::Discard(pages) => {
                    store.discards.wait_for(&pages, &store.changed).await;
                }
            }
            stopped = self.copy_in(bytes, from, done, opener, now());
        }
        if let Some(flush_errors) = fua {
            return self.writeback.sync_range(store, pages_of(bytes), flush_errors).await;
        }
        let len = bytes.end - bytes.start;
        if let Some(pause) = store.pacing.wrote(opener, len, store.dirty_bytes(), now()) {
            self.store.below.writer_throttled();
            reactor::sleep(pause).await;
        }
        Ok(())
    }

    /// Copies from `done` bytes on. Returns how far it came if it met an obstacle.
    fn copy_in(
        &self,
        bytes: &Range<u64>,
        from: &Bufs,
        mut done: u64,
        opener: Opener,
        now: Nanos,
    ) -> Result<(), (u64, WriteDelay)> {
        if done == 0
            && let Some(time) = self.store.pacing.owes(opener, self.store.dirty_bytes(), now)
        {
            return Err((0, WriteDelay::Pause(time)));
        }
        let mut stopped = Ok(());
        while bytes.start + done < bytes.end {
            let at = bytes.start + done;
            match self.copy_into_one(at..bytes.end, from, done, opener, now) {
                Ok(len) => done += len,
                Err(obstacle) => {
                    stopped = Err((done, obstacle));
                    break;
                }
            }
        }
        // The bytes that were copied are dirty, whatever happens to the rest.
        if done > 0 {
            self.store.errors.changed(opener);
        }
        self.writeback.flusher.pages_dirtied(&self.store);
        stopped
    }

    /// Copies the bytes that lie in the folio of the first page. Returns how many.
    fn copy_into_one(
        &self,
        bytes: Range<u64>,
        from: &Bufs,
        done: u64,
        opener: Opener,
        now: Nanos,
    ) -> Result<u64, WriteDelay> {
        let store = &self.store;
        let page = PAGE as u64;
        let pages = pages_of(&bytes);
        if store.discards.overlap(&pages) {
            return Err(WriteDelay::Discard(pages));
        }
        if store.is_full() {
            return Err(WriteDelay::DirtyLimit);
        }
        let found = store.folios.borrow().find(pages.start);
        let id = match found {
            Some(id) => id,
            None => self.folio_to_write(&pages, opener).ok_or(WriteDelay::Memory)?,
        };
        let mut folios = store.folios.borrow_mut();
        let folio = folios.folio(id);
        let base = folio.start * page;
        let mut inside = folio.inside(&pages);
        let mut end = bytes.end.min(base + u64::from(folio.pages()) * page);
        // A page that is written in part, the first or the last, must be up to date already.
        let whole = |to: u64| to.is_multiple_of(page) || to == store.limits.capacity.bytes();
        let head_partial = !bytes.start.is_multiple_of(page) || (inside.len() == 1 && !whole(end));
        let read_first = !store.is_planted(Fault::SkipPartialRead);
        if head_partial && !folio.uptodate.get(inside.start) && read_first {
            return Err(WriteDelay::PartialPage(pages.start));
        }
        if inside.len() > 1 && !whole(end) && !folio.uptodate.get(inside.end - 1) && read_first {
            inside.end -= 1;
            end = base + u64::from(inside.end) * page;
        }
        if folio.reading.any_in(&inside) && !store.is_planted(Fault::WriteDuringRead) {
            let first = folio.reading.next_run(inside).expect("there is one").start;
            return Err(WriteDelay::InFlight(folio.start + u64::from(first)));
        }
        if folio.writing.any_in(&inside) && !store.is_planted(Fault::WriteInPlace) {
            drop(folios);
            self.copy_folio(id, &inside)?;
            folios = store.folios.borrow_mut();
        }
        let len = end - bytes.start;
        let folio = folios.folio(id);
        folio.copy_in(to_usize(bytes.start - base), from, to_usize(done), to_usize(len));
        folios.order.touch(id.0);
        folios.mark_dirty(id, &inside, now, store.round.get());
        Ok(len)
    }

    /// Moves a folio, some of whose pages are in flight below, to a copy, which may be written
    /// (PC-FO1).
    fn copy_folio(&self, id: FolioId, pages: &Range<u32>) -> Result<(), WriteDelay> {
        let store = &self.store;
        let (order, wait) = {
            let folios = store.folios.borrow();
            let folio = folios.folio(id);
            let busy = folio.writing.next_run(pages.clone()).expect("the caller saw it");
            let wait = WriteDelay::InFlight(folio.start + u64::from(busy.start));
            if folio.reading.any() {
                return Err(wait);
            }
            (folio.memory.order(), wait)
        };
        // The folio is not evicted meanwhile: pages in flight have a pin (PC-FO2).
        let Some(copy) = store.take_memory(order) else { return Err(wait) };
        store.folios.borrow_mut().folio_mut(id).move_to(copy);
        Ok(())
    }

    /// A folio for a write that begins at the first of `pages`: as large as the write, or larger
    /// for a sequential writer.
    fn folio_to_write(&self, pages: &Range<u64>, opener: Opener) -> Option<FolioId> {
        let store = &self.store;
        let order = self.readahead.write_order(opener, pages);
        let (start, device_end) = (pages.start, store.device_pages());
        let end = start + (1 << order);
        let free_to = store.folios.borrow().free_to(start, end.max(pages.end).min(device_end));
        store.make_folio(start, if end <= free_to { end } else { pages.end.min(free_to) })
    }
}
