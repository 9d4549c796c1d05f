// SPDX-License-Identifier: Apache-2.0 OR MIT
//! Discards and write zeroes: what is cached of the range goes, and the device below is told.
//!
//! Pages that the range covers in part stay: a discard leaves them as they are, zeroes are written
//! into them.
//!
//! What is dirty in the range is no longer written, and gone when the device below has discarded
//! it. Until then it counts as being written: a FLUSH waits for it, as it makes durable what was
//! there or what is there then; and if the device below fails, it is dirty as before.
//!
//! A discard or write zeroes that was below while a flush there failed ends in EIO: the failure may
//! have found it in the device's cache, and nothing here could send it again. With FUA it has not.
use std::cell::{Cell, RefCell};
use std::ops::Range;

use block::{Bio, Buf, Bufs, Flags, Nanos, Op, PAGE, Sector, Status};
use reactor::WaitList;

use crate::cache::FolioId;
use crate::{Mutation, PAGE_SECTORS, PageCache};

/// The discards that are below (PC-PC5).
#[derive(Default)]
pub(crate) struct Discards {
    next: Cell<u64>,
    below: RefCell<Vec<(u64, Range<u64>)>>,
}

impl Discards {
    /// Whether one of them has any of `pages`.
    pub(crate) fn overlap(&self, pages: &Range<u64>) -> bool {
        let below = self.below.borrow();
        below.iter().any(|(_, range)| range.start < pages.end && pages.start < range.end)
    }

    /// Waits until none has any of `pages`.
    pub(crate) async fn passed(&self, pages: &Range<u64>, changed: &WaitList) {
        if self.overlap(pages) {
            changed.wait_for(|| !self.overlap(pages)).await;
        }
    }

    fn begin(&self, pages: Range<u64>) -> u64 {
        let id = self.next.replace(self.next.get() + 1);
        self.below.borrow_mut().push((id, pages));
        id
    }

    fn end(&self, id: u64) {
        self.below.borrow_mut().retain(|(i, _)| *i != id);
    }
}

/// A dirty run that a discard has taken, and how old it is should the discard fail.
struct Taken {
    folio: FolioId,
    run: Range<u32>,
    dirtied: Nanos,
    round: u64,
}

impl PageCache {
    pub(crate) fn discard(&self, bio: Bio) {
        let supported = match bio.op {
            Op::WriteZeroes => self.limits.write_zeroes,
            Op::Discard => self.limits.discard_granularity_bytes > 0,
            Op::Read | Op::Write | Op::Flush => false,
        };
        if !supported {
            return bio.complete(Status::NotSupported);
        }
        let (me, flush_errors) = (self.rc(), self.errors.flush_errors());
        reactor::spawn(async move {
            let done = me.discard_range(&bio).await;
            if done.is_ok() && !bio.flags.contains(Flags::FUA) {
                me.acknowledged(bio.opener, flush_errors);
            }
            bio.complete(done.into());
        });
    }

    async fn discard_range(&self, bio: &Bio) -> Result<(), Status> {
        let (from, to) = (bio.sector.0, bio.end().0);
        let end_of_device = self.limits.capacity.0;
        let first = from.div_ceil(PAGE_SECTORS);
        let last = if to == end_of_device { self.device_pages() } else { to / PAGE_SECTORS };
        if bio.op == Op::WriteZeroes {
            // The parts of pages at both ends; all of it when that lies in one page.
            let head = from..to.min(first * PAGE_SECTORS);
            let tail = from.max(last * PAGE_SECTORS)..to;
            let tail = tail.start.max(head.end)..tail.end;
            for part in [head, tail].into_iter().filter(|part| !part.is_empty()) {
                self.write_zeroes_here(part, bio).await?;
            }
        }
        if first >= last {
            return Ok(());
        }
        let pages = first..last;
        self.discards.passed(&pages, &self.changed).await;
        let id = self.discards.begin(pages.clone());
        // Nothing new of the range begins from here on; what is in flight ends.
        self.changed.wait_for(|| self.is_quiet(&pages)).await;
        let taken = self.take_dirty(&pages);
        let ticket = self.writeback.tickets.draw();
        let at = Sector(pages.start * PAGE_SECTORS);
        let len = Sector((pages.end * PAGE_SECTORS).min(end_of_device) - at.0);
        let (op, flags, class) = (bio.op, bio.flags, bio.class);
        let below = &*self.below;
        let flush_errors = self.errors.flush_errors();
        let mut done =
            reactor::io_by(self.opener, below, op, flags, class, (at, len), Bufs::new()).await;
        if !flags.contains(Flags::FUA) && self.is_in_doubt(flush_errors) {
            done = done.and(Err(Status::Io));
        }
        self.put_back(taken, done.is_err());
        if done.is_ok() {
            self.forget(&pages);
        }
        self.discard_ended(ticket);
        self.discards.end(id);
        self.changed.wake_all();
        done
    }

    /// Whether none of `pages` is in flight.
    fn is_quiet(&self, pages: &Range<u64>) -> bool {
        if self.has(Mutation::DiscardAtOnce) {
            return true;
        }
        let cache = self.cache.borrow();
        let mut at = pages.start;
        while let Some(id) = cache.find_from(at) {
            let folio = cache.folio(id);
            if folio.start >= pages.end {
                break;
            }
            let inside = folio.inside(pages);
            if folio.reading.any_in(&inside) || folio.writing.any_in(&inside) {
                return false;
            }
            at = folio.end();
        }
        true
    }

    /// From now on what is dirty of `pages` counts as being written.
    fn take_dirty(&self, pages: &Range<u64>) -> Vec<Taken> {
        let mut taken = Vec::new();
        let mut cache = self.cache.borrow_mut();
        let mut at = pages.start;
        while let Some((id, run)) = cache.next_dirty(at, |_| true) {
            let folio = cache.folio(id);
            let (dirtied, round) = (Nanos(folio.dirtied_ns), folio.dirty_round);
            let inside = folio.inside(pages);
            let start = folio.start;
            let run = run.start..run.end.min(inside.end);
            if run.is_empty() {
                break;
            }
            at = start + u64::from(run.end);
            cache.begin_writing(id, &run);
            taken.push(Taken { folio: id, run, dirtied, round });
        }
        taken
    }

    /// It is written, or dirty as before.
    fn put_back(&self, taken: Vec<Taken>, failed: bool) {
        let mut cache = self.cache.borrow_mut();
        for Taken { folio, run, dirtied, round } in taken {
            cache.end_writing(folio, &run, failed.then_some((dirtied, round)));
        }
    }

    /// Takes `pages`, of which none is in flight, out of the cache.
    fn forget(&self, pages: &Range<u64>) {
        let mut cache = self.cache.borrow_mut();
        let mut at = pages.start;
        while let Some(id) = cache.find_from(at) {
            let folio = cache.folio(id);
            if folio.start >= pages.end {
                break;
            }
            at = folio.end();
            let inside = folio.inside(pages);
            let whole = inside.len() == folio.pages() as usize;
            cache.clear_dirty(id, &inside);
            let start = cache.folio(id).start;
            self.errors.settled(&(start + u64::from(inside.start)..start + u64::from(inside.end)));
            let folio = cache.folio_mut(id);
            folio.uptodate.clear(&inside);
            if whole && folio.pins == 0 {
                cache.remove(id);
            }
        }
    }

    async fn write_zeroes_here(&self, sectors: Range<u64>, bio: &Bio) -> Result<(), Status> {
        let (at, len) = (Sector(sectors.start), Sector(sectors.end - sectors.start));
        let bufs = Bufs::from(Buf::zeroed(usize::try_from(len.bytes()).unwrap_or(PAGE)));
        let flags = bio.flags & (Flags::FUA | Flags::SYNC);
        reactor::io_by(bio.opener, self, Op::Write, flags, bio.class, (at, len), bufs).await
    }
}
