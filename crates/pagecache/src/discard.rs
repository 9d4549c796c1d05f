// SPDX-License-Identifier: Apache-2.0 OR MIT
//! Discards and write zeroes: remove the range from the cache, and go on to the device below.
//!
//! Pages that the range covers only in part stay in the cache: a discard leaves them as they are,
//! zeroes are written into them.
//!
//! Dirty pages of the range are not written any more. They are removed when the device below has
//! discarded the range. Until then they count as being written: a FLUSH waits for them, because it
//! makes durable either the old data or the discard. If the device below fails they are dirty
//! again.
//!
//! A discard or write zeroes that was in flight while a flush below failed ends in EIO: the failed
//! flush may have found it in the device's cache, and the cache cannot send it again. With FUA it
//! was durable already.
use std::ops::Range;

use block::{Bio, Buf, Bufs, Flags, Nanos, Op, PAGE, Sector, Status};

use crate::device::PageCache;
use crate::folio_map::FolioId;
use crate::planted::Fault;
use crate::store::Store;
use crate::units::PAGE_SECTORS;

/// A dirty run that a discard has taken, and its age for the case that the discard fails.
struct TakenRun {
    folio: FolioId,
    pages: Range<u32>,
    dirtied: Nanos,
    round: u64,
}

impl PageCache {
    pub(crate) fn discard(&self, bio: Bio) {
        let supported = match bio.op {
            Op::WriteZeroes => self.store.limits.write_zeroes,
            Op::Discard => self.store.limits.discard_granularity_bytes > 0,
            Op::Read | Op::Write | Op::Flush => false,
        };
        if !supported {
            return bio.complete(Status::NotSupported);
        }
        let (me, flush_errors) = (self.rc(), self.store.errors.flush_errors());
        reactor::spawn(async move {
            let done = me.discard_range(&bio).await;
            if done.is_ok() && !bio.flags.contains(Flags::FUA) {
                me.store.acknowledged(bio.opener, flush_errors);
            }
            bio.complete(done.into());
        });
    }

    async fn discard_range(&self, bio: &Bio) -> Result<(), Status> {
        let store = &self.store;
        let (from, to) = (bio.sector.0, bio.end().0);
        let end_of_device = store.limits.capacity.0;
        let first = from.div_ceil(PAGE_SECTORS);
        let last = if to == end_of_device { store.device_pages() } else { to / PAGE_SECTORS };
        if bio.op == Op::WriteZeroes {
            // The partial pages at both ends; the whole range when it lies in one page.
            let head = from..to.min(first * PAGE_SECTORS);
            let tail = from.max(last * PAGE_SECTORS)..to;
            let tail = tail.start.max(head.end)..tail.end;
            for sectors in [head, tail].into_iter().filter(|sectors| !sectors.is_empty()) {
                self.write_zeroes_here(sectors, bio).await?;
            }
        }
        if first >= last {
            return Ok(());
        }
        let pages = first..last;
        store.discards.wait_for(&pages, &store.changed).await;
        let id = store.discards.begin(pages.clone());
        // No read or write of the range begins from here on; those in flight end (PC-PC5).
        store.changed.wait_for(|| is_quiet(store, &pages)).await;
        let taken = take_dirty(store, &pages);
        let number = self.writeback.ioends.sequence.open();
        let at = Sector(pages.start * PAGE_SECTORS);
        let len = Sector((pages.end * PAGE_SECTORS).min(end_of_device) - at.0);
        let (op, flags, class) = (bio.op, bio.flags, bio.class);
        let flush_errors = store.errors.flush_errors();
        let below = &*store.below;
        let mut done =
            reactor::io_by(store.opener, below, op, flags, class, (at, len), Bufs::new()).await;
        if !flags.contains(Flags::FUA) && store.has_flush_failed_since(flush_errors) {
            done = done.and(Err(Status::Io));
        }
        if done.is_err() && !taken.is_empty() {
            store.discards.give_back();
        }
        end_writing(store, taken, done.is_err());
        if done.is_ok() {
            remove(store, &pages);
        }
        self.writeback.discard_ended(number);
        store.discards.end(id);
        store.changed.wake_all();
        done
    }

    async fn write_zeroes_here(&self, sectors: Range<u64>, bio: &Bio) -> Result<(), Status> {
        let (at, len) = (Sector(sectors.start), Sector(sectors.end - sectors.start));
        let bufs = Bufs::from(Buf::zeroed(usize::try_from(len.bytes()).unwrap_or(PAGE)));
        let flags = bio.flags & (Flags::FUA | Flags::SYNC);
        reactor::io_by(bio.opener, self, Op::Write, flags, bio.class, (at, len), bufs).await
    }
}

/// Whether none of `pages` is in flight.
fn is_quiet(store: &Store, pages: &Range<u64>) -> bool {
    store.is_planted(Fault::DiscardWithoutWaiting) || !store.folios.borrow().is_in_flight_in(pages)
}

/// Takes the dirty pages of a range. They count as being written from now on.
fn take_dirty(store: &Store, pages: &Range<u64>) -> Vec<TakenRun> {
    let mut taken = Vec::new();
    let mut folios = store.folios.borrow_mut();
    let mut at = pages.start;
    while let Some((id, run)) = folios.next_dirty(at) {
        let folio = folios.folio(id);
        let (dirtied, round) = (Nanos(folio.dirtied_ns), folio.dirty_round);
        let inside = folio.inside(pages);
        let start = folio.start;
        let run = run.start..run.end.min(inside.end);
        if run.is_empty() {
            break;
        }
        at = start + u64::from(run.end);
        folios.begin_writing(id, &run);
        taken.push(TakenRun { folio: id, pages: run, dirtied, round });
    }
    taken
}

/// The taken pages are written, or dirty again if the discard has failed.
fn end_writing(store: &Store, taken: Vec<TakenRun>, failed: bool) {
    let mut folios = store.folios.borrow_mut();
    for TakenRun { folio, pages, dirtied, round } in taken {
        folios.end_writing(folio, &pages, failed.then_some((dirtied, round)));
    }
}

/// Removes `pages`, none of which is in flight, from the cache.
fn remove(store: &Store, pages: &Range<u64>) {
    let mut folios = store.folios.borrow_mut();
    let mut at = pages.start;
    while let Some(id) = folios.find_from(at) {
        let folio = folios.folio(id);
        if folio.start >= pages.end {
            break;
        }
        let start = folio.start;
        at = folio.end();
        let inside = folio.inside(pages);
        let whole = inside.len() == folio.pages() as usize;
        folios.clear_dirty(id, &inside);
        let of_device = start + u64::from(inside.start)..start + u64::from(inside.end);
        store.errors.failed.remove(&of_device);
        let folio = folios.folio_mut(id);
        folio.uptodate.clear(&inside);
        if whole && folio.pins == 0 {
            folios.remove(id);
        }
    }
}
