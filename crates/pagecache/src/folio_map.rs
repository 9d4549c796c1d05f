// SPDX-License-Identifier: Apache-2.0 OR MIT
//! Folio map: the folios of a device, which of them are dirty, which pages are being written.
//!
//! Invariants
//! - PC-C1 Folios do not overlap: a page of the device lies in one folio at most.
//! - PC-C2 `dirty` contains exactly the folios with a dirty page. The counters are the sums over
//!   all folios.
//! - PC-C3 A page is in one ioend at a time. A page that is written again meanwhile is dirty and
//!   waits for the next ioend.
//! - PC-C4 A page whose write failed is dirty again, with its old age.
use std::collections::BTreeMap;
use std::ops::Range;

use block::Nanos;
use policy::S3Fifo;
use slab::Slab;

use crate::arena::Piece;
use crate::folio::Folio;

/// A folio of the map. It stays valid while the folio has a pin, and until the next `.await`.
#[derive(Clone, Copy, Debug, PartialEq, Eq, PartialOrd, Ord)]
pub(crate) struct FolioId(pub(crate) u32);

impl FolioId {
    fn index(self) -> usize {
        self.0 as usize
    }
}

/// See the module.
pub(crate) struct FolioMap {
    folios: Slab<Folio>,
    index: BTreeMap<u64, FolioId>,
    dirty: BTreeMap<u64, FolioId>,
    /// Decides which clean folio is evicted first.
    pub(crate) order: S3Fifo,
    pages: u64,
    dirty_pages: u64,
    writing_pages: u64,
}

impl FolioMap {
    /// An empty map for folios of at most `capacity` bytes.
    pub(crate) fn new(capacity: u64) -> FolioMap {
        FolioMap {
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

    /// The folio that contains a page.
    pub(crate) fn find(&self, page: u64) -> Option<FolioId> {
        let (_, id) = self.index.range(..=page).next_back()?;
        (page < self.folio(*id).end()).then_some(*id)
    }

    /// The first folio that ends after `page`.
    pub(crate) fn find_from(&self, page: u64) -> Option<FolioId> {
        self.find(page).or_else(|| self.index.range(page..).next().map(|(_, id)| *id))
    }

    /// The end of the gap between folios that begins at `page`; at most `end`.
    pub(crate) fn free_to(&self, page: u64, end: u64) -> u64 {
        if end <= page + 1 {
            return end;
        }
        self.index.range(page..end).next().map_or(end, |(start, _)| *start)
    }

    /// Adds a folio with no page up to date. No other folio has its pages (PC-C1).
    pub(crate) fn insert(&mut self, start: u64, memory: Piece) -> FolioId {
        let folio = Folio::new(start, memory);
        let pages = folio.pages();
        let id = FolioId(u32::try_from(self.folios.insert(folio)).expect("2^32 folios of 4 KiB"));
        self.index.insert(start, id);
        self.pages += u64::from(pages);
        self.order.insert(id.0, pages, start);
        id
    }

    /// Removes a folio that has no pins. Its dirty pages, if any, are lost.
    pub(crate) fn remove(&mut self, id: FolioId) {
        let folio = self.folios.remove(id.index());
        assert!(folio.pins == 0, "a folio with pins is not removed");
        self.index.remove(&folio.start);
        self.order.remove(id.0);
        self.pages -= u64::from(folio.pages());
        if folio.dirty.any() {
            self.dirty.remove(&folio.start);
            self.dirty_pages -= u64::from(folio.dirty.count());
        }
    }

    /// Removes the idle folio that the eviction order names first. Returns its order.
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

    /// The folios that have any of `pages`, ascending, each with those pages as its own.
    pub(crate) fn folios_in(
        &self,
        pages: &Range<u64>,
    ) -> impl Iterator<Item = (FolioId, &Folio, Range<u32>)> {
        let first = self.find(pages.start).map_or(pages.start, |id| self.folio(id).start);
        let pages = pages.clone();
        self.index.range(first..pages.end).map(move |(_, id)| {
            let folio = self.folio(*id);
            (*id, folio, folio.inside(&pages))
        })
    }

    /// Whether any page of a range is dirty or being written.
    pub(crate) fn is_dirty_in(&self, pages: &Range<u64>) -> bool {
        let dirty = |f: &Folio, at: &Range<u32>| f.dirty.any_in(at) || f.writing.any_in(at);
        self.folios_in(pages).any(|(_, folio, at)| dirty(folio, &at))
    }

    /// Whether all pages of a range are dirty and none is being written.
    pub(crate) fn is_all_dirty(&self, pages: &Range<u64>) -> bool {
        let mut end = pages.start;
        for (_, folio, at) in self.folios_in(pages) {
            if folio.start > end || !folio.dirty.all_in(&at) || folio.writing.any_in(&at) {
                return false;
            }
            end = folio.end();
        }
        end >= pages.end
    }

    /// Whether any page of a range is being written.
    pub(crate) fn is_writing_in(&self, pages: &Range<u64>) -> bool {
        self.folios_in(pages).any(|(_, folio, at)| folio.writing.any_in(&at))
    }

    /// Whether any page of a range is being read or written.
    pub(crate) fn is_in_flight_in(&self, pages: &Range<u64>) -> bool {
        let in_flight = |f: &Folio, at: &Range<u32>| f.reading.any_in(at) || f.writing.any_in(at);
        self.folios_in(pages).any(|(_, folio, at)| in_flight(folio, &at))
    }

    /// Marks pages of a folio up to date and dirty. A folio that was clean is dirty since `now` and
    /// `round`. Returns how many pages were not dirty before.
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

    /// Marks pages of a folio clean.
    pub(crate) fn clear_dirty(&mut self, id: FolioId, pages: &Range<u32>) {
        let folio = &mut self.folios[id.index()];
        let old = u64::from(folio.dirty.clear(pages));
        self.dirty_pages -= old;
        if old > 0 && !folio.dirty.any() {
            self.dirty.remove(&folio.start);
        }
    }

    /// Moves dirty pages, none of which is being written, into an ioend, which gets a pin.
    pub(crate) fn begin_writing(&mut self, id: FolioId, pages: &Range<u32>) {
        self.clear_dirty(id, pages);
        let folio = &mut self.folios[id.index()];
        let new = folio.writing.set(pages);
        assert_eq!(new as usize, pages.len(), "a page is in one ioend at a time");
        folio.pins += 1;
        self.writing_pages += u64::from(new);
    }

    /// Takes pages out of an ioend that has ended. If it `failed` they are dirty again, since the
    /// given time and round at the latest (PC-C4).
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
        folio.drop_retired(pages);
        self.writing_pages -= u64::from(old);
        if let Some((dirtied, round)) = failed {
            self.mark_dirty(id, pages, dirtied, round);
            let folio = &mut self.folios[id.index()];
            folio.dirtied_ns = folio.dirtied_ns.min(dirtied.0);
            folio.dirty_round = folio.dirty_round.min(round);
        }
    }

    /// The first dirty run at or after a page, within one folio, that is not being written.
    pub(crate) fn next_dirty(&self, from: u64) -> Option<(FolioId, Range<u32>)> {
        self.dirty_from(from).find_map(|id| {
            let folio = self.folio(id);
            let inside = folio.inside(&(from..u64::MAX));
            folio.next_to_write(inside).map(|run| (id, run))
        })
    }

    /// The folios with dirty pages that end after page `from`, ascending.
    pub(crate) fn dirty_from(&self, from: u64) -> impl Iterator<Item = FolioId> {
        let before = self.dirty.range(..=from).next_back();
        let holding = before.filter(|(_, id)| self.folio(**id).end() > from);
        let first = holding.map_or(from, |(start, _)| *start);
        self.dirty.range(first..).map(|(_, id)| *id)
    }

    /// Dirty pages in each of `cells` equal parts of a device of `pages`; of a part at most `most`
    /// folios are counted.
    pub(crate) fn dirty_map(&self, pages: u64, cells: u32, most: usize) -> Vec<u64> {
        let begin = |cell: u32| {
            let page = u128::from(pages) * u128::from(cell) / u128::from(cells);
            u64::try_from(page).expect("a page of the device")
        };
        let count = |cell: u32| {
            let (from, to) = (begin(cell), begin(cell + 1));
            let folios = self.dirty_from(from).map(|id| self.folio(id));
            let folios = folios.take_while(|folio| folio.start < to).take(most);
            folios.map(|folio| u64::from(folio.dirty.count())).sum::<u64>().min(to - from)
        };
        (0..cells).map(count).collect()
    }

    /// Whether a folio has been dirty since `round` or an earlier one.
    pub(crate) fn is_dirty_since(&self, round: u64) -> bool {
        self.dirty.values().any(|id| self.folio(*id).dirty_round <= round)
    }

    /// All folios, ascending.
    pub(crate) fn iter(&self) -> impl Iterator<Item = (FolioId, &Folio)> {
        self.index.values().map(|id| (*id, self.folio(*id)))
    }
}
