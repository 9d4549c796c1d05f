// SPDX-License-Identifier: Apache-2.0 OR MIT
//! Writes: into folios, dirty; done as soon as they are copied, or a little later when writers are
//! slowed.
//!
//! A write goes through at once unless it meets an [`Obstacle`]; then a task waits until that has
//! gone, and goes on where it stopped.
use std::ops::Range;

use block::{Bio, Bufs, Class, Flags, Nanos, Opener, PAGE, Status};
use reactor::now;

use crate::cache::FolioId;
use crate::pin::Pins;
use crate::read::{pages_of, small};
use crate::{Mutation, PageCache};

/// Why a write can't go on at once.
enum Obstacle {
    /// No memory that could be taken.
    Memory,
    /// As much is dirty as may be.
    Dirty,
    /// The writer has to wait for so long, because of what it wrote before.
    Owes(Nanos),
    /// The page is written in part, and what is there has to be read first.
    Partly(u64),
    /// The page is being read, or written below from memory that can't be replaced.
    InFlight(u64),
    /// A discard of some of the pages is below.
    Discard(Range<u64>),
}

impl PageCache {
    pub(crate) fn write(&self, bio: Bio) {
        let from = bio.sector.bytes();
        let bytes = from..from + bio.len.bytes();
        let fua = bio.flags.contains(Flags::FUA) && !self.has(Mutation::IgnoreFua);
        let now = now(); // Once: it costs as much as a look-up.
        let stopped = self.copy_in(&bytes, &bio.bufs, 0, bio.opener, now);
        if fua || stopped.is_err() {
            let (me, flush_errors) = (self.rc(), self.errors.flush_errors());
            return reactor::spawn(async move {
                let before = fua.then_some(flush_errors);
                let done = me.write_slowly(&bytes, &bio.bufs, bio.opener, before, stopped).await;
                if done.is_ok() && !fua {
                    me.acknowledged(bio.opener, flush_errors);
                }
                bio.complete(done.into());
            });
        }
        match self.pacing.wrote(bio.opener, bio.len.bytes(), self.dirty_bytes(), now) {
            None => bio.complete(Status::Ok),
            Some(pause) => {
                self.below.dirtier_waited();
                let (me, flush_errors) = (self.rc(), self.errors.flush_errors());
                reactor::spawn(async move {
                    reactor::sleep(pause).await;
                    me.acknowledged(bio.opener, flush_errors);
                    bio.complete(Status::Ok);
                });
            }
        }
    }

    /// A change that has taken its time is acknowledged now. `flush_errors` is of when it came.
    pub(crate) fn acknowledged(&self, opener: Opener, flush_errors: u64) {
        match self.is_in_doubt(flush_errors) && !self.has(Mutation::NeverInDoubt) {
            true => self.errors.acknowledged_in_doubt(opener),
            false => self.errors.acknowledged(opener),
        }
    }

    async fn write_slowly(
        &self,
        bytes: &Range<u64>,
        from: &Bufs,
        opener: Opener,
        fua: Option<u64>,
        mut stopped: Result<(), (u64, Obstacle)>,
    ) -> Result<(), Status> {
        // What was read for the write stays until it is copied in. Who waits for anything else
        // holds nothing: it may be the memory that others wait for.
        let mut pins: Option<Pins> = None;
        // The obstacle may have gone since, and nobody will say so again.
        if let Err((done, _)) = stopped {
            stopped = self.copy_in(bytes, from, done, opener, now());
        }
        while let Err((done, obstacle)) = stopped {
            drop(pins.take());
            match obstacle {
                Obstacle::Memory => self.wait_for_memory().await?,
                Obstacle::Dirty => {
                    self.below.dirtier_waited();
                    self.wait_for_room().await?;
                }
                Obstacle::Owes(time) => {
                    self.below.dirtier_waited();
                    reactor::sleep(time).await;
                }
                Obstacle::Partly(page) => {
                    pins = Some(self.bring_in(page..page + 1, Class::Foreground, false).await?);
                }
                Obstacle::InFlight(page) => {
                    self.changed.wait_for(|| !self.is_in_flight(page)).await;
                }
                Obstacle::Discard(pages) => self.discards.passed(&pages, &self.changed).await,
            }
            stopped = self.copy_in(bytes, from, done, opener, now());
        }
        if let Some(flush_errors) = fua {
            return self.sync_range(pages_of(bytes), flush_errors).await;
        }
        let len = bytes.end - bytes.start;
        if let Some(pause) = self.pacing.wrote(opener, len, self.dirty_bytes(), now()) {
            self.below.dirtier_waited();
            reactor::sleep(pause).await;
        }
        Ok(())
    }

    /// Copies in what meets no obstacle, from `done` bytes on; else returns how far it came.
    fn copy_in(
        &self,
        bytes: &Range<u64>,
        from: &Bufs,
        mut done: u64,
        opener: Opener,
        now: Nanos,
    ) -> Result<(), (u64, Obstacle)> {
        if done == 0
            && let Some(time) = self.pacing.owes(opener, self.dirty_bytes(), now)
        {
            return Err((0, Obstacle::Owes(time)));
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
        // What came in so far is dirty, whatever becomes of the rest.
        if done > 0 {
            self.errors.changed(opener);
        }
        self.wake_writeback();
        stopped
    }

    /// Copies in what lies in the folio of the first page; returns how much that is.
    fn copy_into_one(
        &self,
        bytes: Range<u64>,
        from: &Bufs,
        done: u64,
        opener: Opener,
        now: Nanos,
    ) -> Result<u64, Obstacle> {
        let page = PAGE as u64;
        let pages = pages_of(&bytes);
        if self.discards.overlap(&pages) {
            return Err(Obstacle::Discard(pages));
        }
        if self.pacing.is_full(self.dirty_bytes()) {
            return Err(Obstacle::Dirty);
        }
        let found = self.cache.borrow().find(pages.start);
        let id = match found {
            Some(id) => id,
            None => self.folio_to_write(&pages, opener).ok_or(Obstacle::Memory)?,
        };
        let mut cache = self.cache.borrow_mut();
        let folio = cache.folio(id);
        let base = folio.start * page;
        let mut inside = folio.inside(&pages);
        let mut end = bytes.end.min(base + u64::from(folio.pages()) * page);
        // A page that is written in part, at the beginning or at the end, is up to date already.
        let whole = |to: u64| to.is_multiple_of(page) || to == self.limits.capacity.bytes();
        let head_partly = !bytes.start.is_multiple_of(page) || (inside.len() == 1 && !whole(end));
        let read_first = !self.has(Mutation::PartlyIsWhole);
        if head_partly && !folio.uptodate.get(inside.start) && read_first {
            return Err(Obstacle::Partly(pages.start));
        }
        if inside.len() > 1 && !whole(end) && !folio.uptodate.get(inside.end - 1) && read_first {
            inside.end -= 1;
            end = base + u64::from(inside.end) * page;
        }
        if folio.reading.any_in(&inside) && !self.has(Mutation::ReadOverDirty) {
            let first = folio.reading.next_run(inside).expect("there is one").start;
            return Err(Obstacle::InFlight(folio.start + u64::from(first)));
        }
        if folio.writing.any_in(&inside) && !self.has(Mutation::WriteInPlace) {
            drop(cache);
            self.step_aside(id, &inside)?;
            cache = self.cache.borrow_mut();
        }
        let len = end - bytes.start;
        let folio = cache.folio(id);
        folio.copy_in(small(bytes.start - base), from, small(done), small(len));
        cache.order.touch(id.0);
        cache.mark_dirty(id, &inside, now, self.round.get());
        Ok(len)
    }

    /// Lets a folio be written although pages of it are on their way below: puts it on a copy.
    fn step_aside(&self, id: FolioId, pages: &Range<u32>) -> Result<(), Obstacle> {
        let (order, wait) = {
            let cache = self.cache.borrow();
            let folio = cache.folio(id);
            let busy = folio.writing.next_run(pages.clone()).expect("the caller saw it");
            let wait = Obstacle::InFlight(folio.start + u64::from(busy.start));
            if folio.reading.any() {
                return Err(wait);
            }
            (folio.memory.order(), wait)
        };
        // It stays meanwhile: what is being written has a pin (PC-FO2).
        let Some(copy) = self.take_memory(order) else { return Err(wait) };
        self.cache.borrow_mut().folio_mut(id).move_to(copy);
        Ok(())
    }

    fn is_in_flight(&self, page: u64) -> bool {
        let cache = self.cache.borrow();
        let Some(id) = cache.find(page) else { return false };
        let folio = cache.folio(id);
        let inside = folio.inside(&(page..page + 1));
        folio.reading.any_in(&inside) || folio.writing.any_in(&inside)
    }

    /// A folio for a write that begins at the first of `pages`: as large as the write, or larger
    /// for a writer that goes on and on.
    fn folio_to_write(&self, pages: &Range<u64>, opener: Opener) -> Option<FolioId> {
        let order = self.ahead.write_order(opener, pages);
        let (start, device_end) = (pages.start, self.device_pages());
        let end = start + (1 << order);
        let free_to = self.cache.borrow().free_to(start, end.max(pages.end).min(device_end));
        self.make_folio(start, if end <= free_to { end } else { pages.end.min(free_to) })
    }
}
