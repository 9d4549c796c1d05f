// SPDX-License-Identifier: Apache-2.0 OR MIT
//! Takes dirty pages into ioends: what all writeback does between two waits.
//!
//! Invariants
//! - PC-GA1 A gathering goes over each folio once, ascending, and takes no page that is being
//!   written.
//! - PC-GA2 Pages that could not be written share no ioend with others, which would fail with them.
use std::cell::RefCell;

use smallvec::SmallVec;

use crate::cache::FolioId;
use crate::folio::Folio;
use crate::ioend::{Collector, With};
use crate::iomap::MapBlocks;
use crate::{Mutation, PageCache};

/// Dirty folios that are looked up at once, and small ioends that are sent at once.
const FOLIOS_AT_A_TIME: usize = 32;

/// What [`PageCache::gather`] has found.
pub(crate) struct Gathered {
    /// Pages taken into ioends.
    pub(crate) pages: u64,
    /// Nothing more is there to be taken.
    pub(crate) end: bool,
}

/// How far a gathering goes, and has come.
struct Reach<'a> {
    from: &'a mut u64,
    to: u64,
    quota: u64,
    /// Ioends that may be ready at the end.
    ioends: u64,
    /// Pages of the largest ioend.
    pages_max: u64,
    spare_failed: bool,
    pages: u64,
}

impl Reach<'_> {
    /// Small ioends are sent some at a time, large ones as they come.
    fn is_full(&self, collector: &Collector) -> bool {
        let ready = collector.ready();
        let large = ready > 0 && self.pages >= self.pages_max;
        self.pages >= self.quota || large || ready >= self.ioends.min(FOLIOS_AT_A_TIME as u64)
    }
}

impl PageCache {
    /// Takes dirty runs of pages `from..to`, ascending, into ioends, until a large one or some
    /// small ones are ready to be sent, or `quota` pages are. With `spare_failed` those that could
    /// not be written are left (PC-WB2). Leaves in `from` how far it came.
    pub(crate) fn gather(
        &self,
        collector: &RefCell<Collector>,
        from: &mut u64,
        to: u64,
        quota: u64,
        spare_failed: bool,
        wanted: impl Fn(&Folio) -> bool,
    ) -> Gathered {
        let wb = &self.writeback;
        if self.has(Mutation::StaleMap) {
            wb.mapper.borrow_mut().trust();
        }
        let mut collector = collector.borrow_mut();
        let mut with = With {
            cache: &mut self.cache.borrow_mut(),
            mapper: &mut wb.mapper.borrow_mut(),
            counts: &wb.counts,
            tickets: &wb.tickets,
            spare: &wb.spare,
            pages_max: self.ioend_pages(),
            single: self.config.map_blocks.get() == MapBlocks::Single,
            capacity: self.limits.capacity,
        };
        let ioends = self.ioends_left(collector.purpose());
        let (pages_max, pages) = (with.pages_max, 0);
        let mut reach = Reach { from, to, quota, ioends, pages_max, spare_failed, pages };
        // What is being written leaves the index of what is dirty: some folios are looked up at
        // a time.
        let mut some = SmallVec::<[FolioId; FOLIOS_AT_A_TIME]>::new();
        while *reach.from < to {
            some.clear();
            some.extend(with.cache.dirty_from(*reach.from).take(FOLIOS_AT_A_TIME));
            if some.is_empty() {
                break;
            }
            for id in some.iter().copied() {
                let folio = with.cache.folio(id);
                let (start, end) = (folio.start, folio.end());
                if start >= to {
                    return Gathered { pages: reach.pages, end: true };
                }
                if wanted(folio) {
                    self.gather_folio(&mut collector, &mut with, id, &mut reach);
                    if reach.is_full(&collector) {
                        return Gathered { pages: reach.pages, end: false };
                    }
                }
                *reach.from = end.max(*reach.from);
            }
        }
        Gathered { pages: reach.pages, end: true }
    }

    /// The part of [`PageCache::gather`] for one folio.
    fn gather_folio(
        &self,
        collector: &mut Collector,
        with: &mut With<'_>,
        id: FolioId,
        reach: &mut Reach<'_>,
    ) {
        while !reach.is_full(collector) {
            let folio = with.cache.folio(id);
            let start = folio.start;
            let inside = folio.inside(&(*reach.from..reach.to));
            let Some(mut run) = folio.next_to_write(inside) else { return };
            let first = start + u64::from(run.start);
            let failed = self.errors.next_failed(first);
            let again = failed.as_ref().is_some_and(|failed| failed.start <= first);
            if let Some(failed) = failed {
                if again && reach.spare_failed {
                    *reach.from = failed.end;
                    continue;
                }
                let end = if again { failed.end } else { failed.start } - start;
                run.end = run.end.min(u32::try_from(end).unwrap_or(u32::MAX));
            }
            with.pages_max = reach.pages_max;
            if again {
                with.pages_max = self.errors.retry_pages(reach.pages_max);
            }
            collector.set_failed(again); // PC-GA2
            collector.add(with, id, &run);
            reach.pages += run.len() as u64;
            *reach.from = start + u64::from(run.end);
        }
    }
}
