// SPDX-License-Identifier: Apache-2.0 OR MIT
//! The folios of a device: which there are, which are dirty, which are being written.
//!
//! Invariants
//! - PC-C1 Folios do not overlap; each page of the device lies in one at most.
//! - PC-C2 `dirty` has just the folios with a dirty page; the counters are the sums over all
//!   folios.
//! - PC-C3 A page is in one ioend at a time: what is written again meanwhile is dirty and waits.
//! - PC-C4 A page whose writing has failed is dirty again, as old as it was.
use std::collections::BTreeMap;
use std::ops::Range;

use block::Nanos;
use policy::S3Fifo;
use slab::Slab;

use crate::arena::Piece;
use crate::folio::Folio;

/// A folio of the cache, for as long as it has a pin or nothing is awaited.
#[derive(Clone, Copy, Debug, PartialEq, Eq, PartialOrd, Ord)]
pub(crate) struct FolioId(pub(crate) u32);

impl FolioId {
    fn index(self) -> usize {
        self.0 as usize
    }
}

/// See the module.
pub(crate) struct Cache {
    folios: Slab<Folio>,
    index: BTreeMap<u64, FolioId>,
    dirty: BTreeMap<u64, FolioId>,
    /// Which clean folio goes first.
    pub(crate) order: S3Fifo,
    pages: u64,
    dirty_pages: u64,
    writing_pages: u64,
}

impl Cache {
    /// No folios; of `capacity` bytes at most.
    pub(crate) fn new(capacity: u64) -> Cache {
        Cache {
            folios: Slab::new(),
            index: BTreeMap::new(),
            dirty: BTreeMap::new(),
            order: S3Fifo::new(capacity / block::PAGE as u64),
            pages: 0,
            dirty_pages: 0,
            writing_pages: 0,
        }
    }

    pub(crate) fn folio(&self, id: FolioId) -> &Folio {
        &self.folios[id.index()]
    }

    pub(crate) fn folio_mut(&mut self, id: FolioId) -> &mut Folio {
        &mut self.folios[id.index()]
    }

    /// The folio that has a page.
    pub(crate) fn find(&self, page: u64) -> Option<FolioId> {
        let (_, id) = self.index.range(..=page).next_back()?;
        (page < self.folio(*id).end()).then_some(*id)
    }

    /// The first folio at or behind a page, the one that has it included.
    pub(crate) fn find_from(&self, page: u64) -> Option<FolioId> {
        self.find(page).or_else(|| self.index.range(page..).next().map(|(_, id)| *id))
    }

    /// Up to where, and at most to `end`, pages are in no folio from `page` on, which is in none.
    pub(crate) fn free_to(&self, page: u64, end: u64) -> u64 {
        if end <= page + 1 {
            return end;
        }
        self.index.range(page..end).next().map_or(end, |(start, _)| *start)
    }

    /// Adds a folio with nothing up to date. No other has its pages (PC-C1).
    pub(crate) fn insert(&mut self, start: u64, memory: Piece) -> FolioId {
        let folio = Folio::new(start, memory);
        let pages = folio.pages();
        let id = FolioId(u32::try_from(self.folios.insert(folio)).expect("2^32 folios of 4 KiB"));
        self.index.insert(start, id);
        self.pages += u64::from(pages);
        self.order.insert(id.0, pages, start);
        id
    }

    /// Takes a folio out. It is idle, or its dirty pages are to be forgotten.
    pub(crate) fn remove(&mut self, id: FolioId) {
        let folio = self.folios.remove(id.index());
        assert!(folio.pins == 0, "a folio with pins stays");
        self.index.remove(&folio.start);
        self.order.remove(id.0);
        self.pages -= u64::from(folio.pages());
        if folio.dirty.any() {
            self.dirty.remove(&folio.start);
            self.dirty_pages -= u64::from(folio.dirty.count());
        }
    }

    /// Takes out the folio that is the first to go of those that are idle; how large it was.
    pub(crate) fn evict(&mut self) -> Option<u8> {
        let folios = &self.folios;
        let victim = self.order.victim(|key| folios[FolioId(key).index()].is_idle());
        let id = FolioId(victim?);
        let order = self.folio(id).memory.order();
        self.remove(id);
        Some(order)
    }

    /// Pages in all folios.
    pub(crate) fn pages(&self) -> u64 {
        self.pages
    }

    /// Number of folios.
    pub(crate) fn folios(&self) -> usize {
        self.folios.len()
    }

    /// Pages that are dirty.
    pub(crate) fn dirty_pages(&self) -> u64 {
        self.dirty_pages
    }

    /// Pages that are in ioends.
    pub(crate) fn writing_pages(&self) -> u64 {
        self.writing_pages
    }

    /// Whether any page of a range is dirty or being written.
    pub(crate) fn is_dirty_in(&self, pages: &Range<u64>) -> bool {
        let mut at = pages.start;
        while let Some(id) = self.find_from(at) {
            let folio = self.folio(id);
            if folio.start >= pages.end {
                return false;
            }
            let inside = folio.inside(pages);
            if folio.dirty.any_in(&inside) || folio.writing.any_in(&inside) {
                return true;
            }
            at = folio.end();
        }
        false
    }

    /// Pages of a folio have been written: they are up to date, and dirty since `now` and `round`
    /// if the folio was clean. Returns how many were not dirty before.
    pub(crate) fn mark_dirty(
        &mut self,
        id: FolioId,
        pages: &Range<u32>,
        now: Nanos,
        round: u64,
    ) -> u64 {
        let folio = &mut self.folios[id.index()];
        if !folio.dirty.any() {
            folio.dirtied_ns = now.0;
            folio.dirty_round = round;
            self.dirty.insert(folio.start, id);
        }
        folio.uptodate.set(pages);
        let new = u64::from(folio.dirty.set(pages));
        self.dirty_pages += new;
        new
    }

    /// Forgets that pages of a folio are dirty.
    pub(crate) fn clear_dirty(&mut self, id: FolioId, pages: &Range<u32>) {
        let folio = &mut self.folios[id.index()];
        let old = u64::from(folio.dirty.clear(pages));
        self.dirty_pages -= old;
        if old > 0 && !folio.dirty.any() {
            self.dirty.remove(&folio.start);
        }
    }

    /// The pages are dirty and none is being written; from now on they are in an ioend, which has a
    /// pin.
    pub(crate) fn begin_writing(&mut self, id: FolioId, pages: &Range<u32>) {
        self.clear_dirty(id, pages);
        let folio = &mut self.folios[id.index()];
        let new = folio.writing.set(pages);
        assert_eq!(new as usize, pages.len(), "a page is in one ioend at a time");
        folio.pins += 1;
        self.writing_pages += u64::from(new);
    }

    /// The ioend has ended. What has failed is dirty again, since `dirtied` at the latest (PC-C4).
    pub(crate) fn end_writing(
        &mut self,
        id: FolioId,
        pages: &Range<u32>,
        failed: Option<(Nanos, u64)>,
    ) {
        let folio = &mut self.folios[id.index()];
        let old = folio.writing.clear(pages);
        assert_eq!(old as usize, pages.len(), "each page of an ioend is being written");
        folio.pins -= 1;
        folio.settle(pages);
        self.writing_pages -= u64::from(old);
        if let Some((dirtied, round)) = failed {
            self.mark_dirty(id, pages, dirtied, round);
            let folio = &mut self.folios[id.index()];
            folio.dirtied_ns = folio.dirtied_ns.min(dirtied.0);
            folio.dirty_round = folio.dirty_round.min(round);
        }
    }

    /// The first dirty run at or behind a page of the device, within one folio, that is not being
    /// written, in folios for which `wanted` holds.
    pub(crate) fn next_dirty(
        &self,
        from: u64,
        mut wanted: impl FnMut(&Folio) -> bool,
    ) -> Option<(FolioId, Range<u32>)> {
        let folios = self.dirty_from(from).map(|id| (id, self.folio(id)));
        let mut wanted = folios.filter(|(_, folio)| wanted(folio));
        wanted.find_map(|(id, folio)| {
            let inside = folio.inside(&(from..u64::MAX));
            folio.next_to_write(inside).map(|run| (id, run))
        })
    }

    /// The folios with dirty pages, in order, from the one on that has page `from`.
    pub(crate) fn dirty_from(&self, from: u64) -> impl Iterator<Item = FolioId> {
        let before = self.dirty.range(..=from).next_back();
        let holding = before.filter(|(_, id)| self.folio(**id).end() > from);
        let first = holding.map_or(from, |(start, _)| *start);
        self.dirty.range(first..).map(|(_, id)| *id)
    }

    /// Whether a folio became dirty in `round` or before.
    pub(crate) fn is_dirty_since(&self, round: u64) -> bool {
        self.dirty.values().any(|id| self.folio(*id).dirty_round <= round)
    }

    /// All folios, in order of the device.
    pub(crate) fn iter(&self) -> impl Iterator<Item = (FolioId, &Folio)> {
        self.index.values().map(|id| (*id, self.folio(*id)))
    }
}
