// SPDX-License-Identifier: Apache-2.0 OR MIT
//! Gather: takes dirty pages into ioends, between two waits of a writeback loop.
//!
//! Invariants
//! - PC-GA1 A pass visits each folio once, ascending, and takes no page that is being written.
//! - PC-GA2 Pages that have failed before share no ioend with others, which would fail with them.
//! - PC-WB2 Background writeback leaves a failed page alone until its retry is due. The pages
//!   beside it go on.
use std::cell::RefCell;

use smallvec::SmallVec;

use crate::collector::{Collector, CollectorContext};
use crate::folio::Folio;
use crate::folio_map::FolioId;
use crate::ioends::Ioends;
use crate::planted::Fault;
use crate::store::Store;

/// Dirty folios that are looked up at once, and small ioends that are sent at once.
const FOLIOS_AT_A_TIME: usize = 32;

/// Which pages a pass takes.
#[derive(Clone, Copy)]
pub(crate) struct Limit {
    /// One past the last page.
    pub(crate) to: u64,
    /// Pages taken at most.
    pub(crate) quota: u64,
    /// Leave pages that have failed (PC-WB2).
    pub(crate) skip_failed: bool,
}

impl Limit {
    /// All pages up to `to`, those that have failed too.
    pub(crate) fn all_to(to: u64) -> Limit {
        Limit { to, quota: u64::MAX, skip_failed: false }
    }
}

/// What [`Ioends::gather`] has done.
pub(crate) struct GatherResult {
    /// Pages taken into ioends.
    pub(crate) pages: u64,
    /// The pass has reached its end.
    pub(crate) end: bool,
}

/// How far a pass has come.
struct Progress<'a> {
    from: &'a mut u64,
    limit: Limit,
    /// Ioends that may be ready at the end.
    ioends: u64,
    /// Pages of the largest ioend.
    pages_max: u64,
    pages: u64,
}

impl Progress<'_> {
    /// Small ioends are sent several at a time, large ones one by one.
    fn is_full(&self, collector: &Collector) -> bool {
        let ready = collector.ready();
        let large = ready > 0 && self.pages >= self.pages_max;
        self.pages >= self.limit.quota || large || ready >= self.ioends.min(FOLIOS_AT_A_TIME as u64)
    }
}

impl Ioends {
    /// Takes dirty runs from page `from` on, ascending, of folios for which `wanted` holds. Stops
    /// when a large ioend or several small ones are ready, or at the `limit`. Sets `from` to where
    /// the pass goes on.
    pub(crate) fn gather(
        &self,
        store: &Store,
        collector: &RefCell<Collector>,
        from: &mut u64,
        limit: Limit,
        wanted: impl Fn(&Folio) -> bool,
    ) -> GatherResult {
        if store.is_planted(Fault::StaleMap) {
            self.mapper.borrow_mut().trust();
        }
        let mut collector = collector.borrow_mut();
        let pages_max = self.pages_max(store);
        let mut cx = CollectorContext {
            folios: &mut store.folios.borrow_mut(),
            mapper: &mut self.mapper.borrow_mut(),
            stats: &self.stats,
            sequence: &self.sequence,
            free: &self.free,
            pages_max,
            single: store.config.maps_each_page.get(),
            capacity: store.limits.capacity,
        };
        let ioends = self.left(collector.purpose());
        let mut progress = Progress { from, limit, ioends, pages_max, pages: 0 };
        // Pages that are taken leave the index of dirty folios, so folios are looked up in groups.
        let mut group = SmallVec::<[FolioId; FOLIOS_AT_A_TIME]>::new();
        while *progress.from < limit.to {
            group.clear();
            group.extend(cx.folios.dirty_from(*progress.from).take(FOLIOS_AT_A_TIME));
            if group.is_empty() {
                break;
            }
            for id in group.iter().copied() {
                let folio = cx.folios.folio(id);
                let (start, end) = (folio.start, folio.end());
                if start >= limit.to {
                    return GatherResult { pages: progress.pages, end: true };
                }
                if wanted(folio) {
                    gather_folio(store, &mut collector, &mut cx, id, &mut progress);
                    if progress.is_full(&collector) {
                        return GatherResult { pages: progress.pages, end: false };
                    }
                }
                *progress.from = end.max(*progress.from);
            }
        }
        GatherResult { pages: progress.pages, end: true }
    }
}

/// Takes the dirty runs of one folio.
fn gather_folio(
    store: &Store,
    collector: &mut Collector,
    cx: &mut CollectorContext<'_>,
    id: FolioId,
    progress: &mut Progress<'_>,
) {
    while !progress.is_full(collector) {
        let folio = cx.folios.folio(id);
        let start = folio.start;
        let inside = folio.inside(&(*progress.from..progress.limit.to));
        let Some(mut run) = folio.next_to_write(inside) else { return };
        let first = start + u64::from(run.start);
        let failed = store.errors.failed.next(first);
        let again = failed.as_ref().is_some_and(|failed| failed.start <= first);
        if let Some(failed) = failed {
            if again && progress.limit.skip_failed {
                *progress.from = failed.end;
                continue;
            }
            let end = if again { failed.end } else { failed.start } - start;
            run.end = run.end.min(u32::try_from(end).unwrap_or(u32::MAX));
        }
        cx.pages_max = progress.pages_max;
        if again {
            cx.pages_max = store.errors.failed.pages_per_ioend(progress.pages_max);
        }
        collector.set_failed(again); // PC-GA2
        collector.add(cx, id, &run);
        progress.pages += run.len() as u64;
        *progress.from = start + u64::from(run.end);
    }
}
