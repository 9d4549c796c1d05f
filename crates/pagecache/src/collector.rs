// SPDX-License-Identifier: Apache-2.0 OR MIT
//! Collector: joins dirty runs into ioends.
//!
//! A run joins the open ioend of its base when it directly follows it there, wherever the two lie
//! in the cache: the chunks of one stripe join although chunks of other stripes lie between them.
//! An ioend is closed when a run does not join it, when it is full, or when the caller has no more
//! runs.
use std::collections::VecDeque;
use std::ops::Range;

use block::{Nanos, Sector};

use crate::folio_map::{FolioId, FolioMap};
use crate::ioend::{FreeLists, Ioend, IoendStats, Purpose, SEGMENTS_MAX, Segment};
use crate::iomap::{Mapper, Place, same};
use crate::sequence::Sequence;
use crate::units::{PAGE_SECTORS, to_usize};

/// An ioend is closed after so many others were opened: so many are open at most.
pub(crate) const OPENED_MAX: u64 = 64;

/// The last run of an open ioend, which may still grow.
struct Tail {
    open: usize,
    folio: FolioId,
    pages: Range<u32>,
}

/// See the module.
pub(crate) struct Collector {
    purpose: Purpose,
    /// One a base.
    open: Vec<Ioend>,
    tail: Option<Tail>,
    /// Whether the pages of the open ioends have failed before.
    failed: bool,
    /// Closed ioends, to be sent.
    ready: VecDeque<Ioend>,
}

/// What a collector uses while it takes runs, borrowed for one pass over the folios.
pub(crate) struct CollectorContext<'a> {
    pub(crate) folios: &'a mut FolioMap,
    pub(crate) mapper: &'a mut Mapper,
    pub(crate) stats: &'a IoendStats,
    pub(crate) sequence: &'a Sequence,
    pub(crate) free: &'a FreeLists,
    /// Pages of the largest ioend.
    pub(crate) pages_max: u64,
    /// Look up the mapping for each page (`map_blocks=single`).
    pub(crate) single: bool,
    /// Sectors of the device.
    pub(crate) capacity: Sector,
}

impl Collector {
    pub(crate) fn new(purpose: Purpose) -> Collector {
        Collector { purpose, open: Vec::new(), tail: None, failed: false, ready: VecDeque::new() }
    }

    /// Takes a dirty run of a folio, no page of which is being written.
    pub(crate) fn add(&mut self, cx: &mut CollectorContext<'_>, folio: FolioId, run: &Range<u32>) {
        let start = cx.folios.folio(folio).start;
        let mut at = run.start;
        while at < run.end {
            let left = if cx.single { 1 } else { run.end - at };
            at += self.add_extent(cx, folio, start, at..at + left);
        }
        // From here on the run is being written.
        self.end_tail(cx);
    }

    /// Adds pages up to the end of one extent of the mapping, and of one ioend. Returns how many.
    fn add_extent(
        &mut self,
        cx: &mut CollectorContext<'_>,
        folio: FolioId,
        start: u64,
        pages: Range<u32>,
    ) -> u32 {
        let first = start + u64::from(pages.start);
        let here = cx.mapper.locate(first, cx.stats);
        let (sector, there, generation) = (here.sector, here.pages, here.generation);
        let joined = self.open.iter().position(|o| o.is_followed_by(here.place, sector));
        let tail = self.tail.as_ref();
        let grows = tail.is_some_and(|t| {
            joined == Some(t.open) && t.folio == folio && t.pages.end == pages.start
        });
        let fits = |open: &usize| {
            let segments = self.open[*open].segments.len() + usize::from(tail.is_some());
            self.open[*open].room(cx.pages_max) > 0 && (grows || segments < SEGMENTS_MAX)
        };
        let (open, grows) = match joined.filter(fits) {
            Some(open) => (open, grows),
            None => {
                let place = here.place.clone();
                self.end_tail(cx);
                (self.open_ioend(cx, place, sector, first, generation), false)
            }
        };
        if !grows {
            self.end_tail(cx);
            self.tail = Some(Tail { open, folio, pages: pages.start..pages.start });
        }
        let ioend = &mut self.open[open];
        let count = there.min(ioend.room(cx.pages_max)).min(pages.len() as u64);
        let at = first * PAGE_SECTORS;
        ioend.len += Sector((count * PAGE_SECTORS).min(cx.capacity.0 - at)); // PC-IO2
        let count = u32::try_from(count).expect("at most those of the run");
        self.tail.as_mut().expect("there is one now").pages.end += count;
        count
    }

    /// Opens an ioend for a base. An ioend that is open for the same base becomes ready.
    fn open_ioend(
        &mut self,
        cx: &CollectorContext<'_>,
        place: Place,
        sector: Sector,
        first: u64,
        generation: u64,
    ) -> usize {
        let new = Ioend {
            place,
            sector,
            len: Sector::ZERO,
            at: Sector(first * PAGE_SECTORS),
            purpose: self.purpose,
            generation,
            number: cx.sequence.open(),
            segments: cx.free.segments.take(),
            slices: cx.free.slices.take(),
        };
        // No ioend stays open for long because runs join only others.
        let stale = |o: &mut Ioend| new.number - o.number >= OPENED_MAX;
        self.ready.extend(self.open.extract_if(.., stale));
        match self.open.iter().position(|o| same(&o.place, &new.place)) {
            Some(open) => {
                let full = std::mem::replace(&mut self.open[open], new);
                self.ready.push_back(full);
                open
            }
            None => {
                self.open.push(new);
                self.open.len() - 1
            }
        }
    }

    /// Makes the last run a segment of its ioend. Its pages are being written from now on, from the
    /// memory that they have now.
    fn end_tail(&mut self, cx: &mut CollectorContext<'_>) {
        let Some(Tail { open, folio, pages }) = self.tail.take() else { return };
        let f = cx.folios.folio(folio);
        let (dirtied, round) = (Nanos(f.dirtied_ns), f.dirty_round);
        let mut slice = f.slice(&pages);
        let start = Sector((f.start + u64::from(pages.start)) * PAGE_SECTORS);
        let room = (cx.capacity - start).bytes();
        if slice.len() as u64 > room {
            slice = slice.slice(0..to_usize(room)); // PC-IO2
        }
        cx.folios.begin_writing(folio, &pages);
        let ioend = &mut self.open[open];
        ioend.segments.push(Segment { folio, pages, dirtied, round });
        ioend.slices.push(slice);
    }

    pub(crate) fn purpose(&self) -> Purpose {
        self.purpose
    }

    /// How many ioends are to be sent.
    pub(crate) fn ready(&self) -> u64 {
        self.ready.len() as u64
    }

    /// Closes all open ioends.
    pub(crate) fn close(&mut self) {
        assert!(self.tail.is_none(), "a run has been added to its end");
        self.ready.extend(self.open.drain(..));
    }

    /// Sets whether the pages that follow have failed before. Pages that have failed and others
    /// share no ioend.
    pub(crate) fn set_failed(&mut self, failed: bool) {
        if std::mem::replace(&mut self.failed, failed) != failed {
            self.close();
        }
    }

    /// Moves all open and ready ioends to a collector of another purpose.
    pub(crate) fn hand_over(&mut self, to: &mut Collector) {
        self.close();
        for mut ioend in self.ready.drain(..) {
            ioend.purpose = to.purpose;
            to.ready.push_back(ioend);
        }
    }

    /// The next ioend to be sent, in the order in which they were closed.
    pub(crate) fn take_ready(&mut self) -> Option<Ioend> {
        self.ready.pop_front()
    }
}
