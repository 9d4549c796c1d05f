// SPDX-License-Identifier: Apache-2.0 OR MIT
//! Ioend: one write below, of many pages, with one end.
//!
//! ```text
//!   dirty runs, ascending      open ioends, one a base       in flight
//!   ▓▓▓▓ ▓▓▓▓▓▓▓▓ ▓▓ ──map──▶  base 0  ▓▓▓▓▓▓▓▓▓▓ ──full──▶  bio ──▶ end: pages are clean,
//!     folio   folio            base 1  ▓▓▓▓▓                         or dirty again
//! ```
//!
//! A run joins the open ioend of its base when it lies right behind it there, wherever the two lie
//! above: the chunks of one stripe come together though others lie between. An ioend is closed
//! when a run does not join, when it is full, or when whoever collects has nothing more.
//!
//! Invariants
//! - PC-IO1 An ioend has at most `ioend_bytes`, [`SEGMENTS_MAX`] segments (a segment is one run of
//!   pages of one folio), [`FOLIOS_MAX`] folios, one base, and one class.
//! - PC-IO2 Its bytes are those of its pages, less what lies beyond the end of the device.
//! - PC-IO3 It goes where the mapping says at the moment when it is sent: if the generation is
//!   another one than when it was collected, all of it is mapped anew.
//! - PC-IO4 Nothing is borrowed while a bio is submitted: a device may complete it at once.
//! - PC-IO5 Ioends are numbered as they are opened; `Tickets` tells when all up to a number have
//!   ended.
//! - PC-IO6 Pages are clean only after an ioend in whose time no flush below failed, or one with
//!   FUA: the failure may have found them in the device's cache. Else they are dirty again, and
//!   written again.
use std::cell::{Cell, RefCell};
use std::collections::VecDeque;
use std::ops::Range;

use block::{Bio, Bufs, Class, Flags, IoError, Nanos, Op, PAGE, SECTOR_SHIFT};
use block::{Sector, Slice, Status};
use smallvec::SmallVec;

use crate::cache::{Cache, FolioId};
use crate::iomap::{Mapper, Place, same};
use crate::{Mutation, PAGE_SECTORS, PageCache};

/// The kernel's BIO_MAX_VECS.
pub(crate) const SEGMENTS_MAX: usize = 256;
/// The kernel's IOEND_BATCH_SIZE. Each folio is a segment at least, so segments end first.
pub(crate) const FOLIOS_MAX: usize = 4096;
/// An ioend is closed after so many others were opened: so many are open at most.
pub(crate) const OPENED_MAX: u64 = 64;
const _: () = assert!(SEGMENTS_MAX <= FOLIOS_MAX);
/// Ioends by size: up to 4 KiB, up to 8 KiB, and so on; the last has all that are larger.
pub(crate) const SIZES: usize = 16;

/// What writeback has done.
#[derive(Default, Debug)]
pub(crate) struct Counts {
    pub(crate) ioends: Cell<u64>,
    pub(crate) ioend_bytes: Cell<u64>,
    /// Runs of pages of one folio in ioends.
    pub(crate) folios: Cell<u64>,
    /// Questions to the device below.
    pub(crate) map_calls: Cell<u64>,
    /// Looks at the answer that is kept.
    pub(crate) map_checks: Cell<u64>,
    /// Ioends that were mapped anew before they were sent.
    pub(crate) remaps: Cell<u64>,
    /// Ioends that have failed.
    pub(crate) errors: Cell<u64>,
    /// Ioends with pages that had failed before.
    pub(crate) retries: Cell<u64>,
    /// Ioends by size.
    pub(crate) sizes: [Cell<u64>; SIZES],
}

fn add(count: &Cell<u64>, more: u64) {
    count.set(count.get() + more);
}

impl Counts {
    /// Where an ioend of so many bytes is counted.
    pub(crate) fn size_class(bytes: u64) -> usize {
        let pages = bytes.div_ceil(PAGE as u64).max(1);
        (pages.next_power_of_two().ilog2() as usize).min(SIZES - 1)
    }

    fn sent(&self, bytes: u64, folios: usize) {
        add(&self.ioends, 1);
        add(&self.ioend_bytes, bytes);
        add(&self.folios, folios as u64);
        add(&self.sizes[Counts::size_class(bytes)], 1);
    }
}

/// For whom something is written.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(crate) enum Purpose {
    /// Nobody waits.
    Background,
    /// A FLUSH waits.
    Sync,
    /// It is to be durable when it ends.
    Fua,
}

impl Purpose {
    fn flags(self) -> Flags {
        match self {
            Purpose::Background => Flags::BACKGROUND,
            Purpose::Sync => Flags::SYNC,
            Purpose::Fua => Flags::SYNC | Flags::FUA,
        }
    }

    /// What it may have in flight, by what the flusher may.
    pub(crate) fn share(self) -> u64 {
        match self {
            Purpose::Background => 1,
            Purpose::Sync | Purpose::Fua => 2,
        }
    }

    fn class(self) -> Class {
        match self {
            Purpose::Background => Class::Background,
            Purpose::Sync | Purpose::Fua => Class::Foreground,
        }
    }
}

/// Which ioends have not ended.
#[derive(Default)]
pub(crate) struct Tickets {
    oldest: Cell<u64>,
    /// Ioends of `oldest` and of each number behind it.
    open: RefCell<VecDeque<u32>>,
}

impl Tickets {
    /// A new number.
    pub(crate) fn draw(&self) -> u64 {
        let mut open = self.open.borrow_mut();
        open.push_back(1);
        self.oldest.get() + open.len() as u64 - 1
    }

    fn count(&self, ticket: u64) -> std::cell::RefMut<'_, u32> {
        let at = usize::try_from(ticket - self.oldest.get()).expect("few are in flight");
        std::cell::RefMut::map(self.open.borrow_mut(), |open| &mut open[at])
    }

    /// One more ioend of a number that has one.
    fn share(&self, ticket: u64) {
        *self.count(ticket) += 1;
    }

    pub(crate) fn give_back(&self, ticket: u64) {
        *self.count(ticket) -= 1;
        let mut open = self.open.borrow_mut();
        while open.front() == Some(&0) {
            open.pop_front();
            self.oldest.set(self.oldest.get() + 1);
        }
    }

    /// The number that the next ioend will have.
    pub(crate) fn next(&self) -> u64 {
        self.oldest.get() + self.open.borrow().len() as u64
    }

    /// Whether all ioends with numbers below `ticket` have ended.
    pub(crate) fn all_ended(&self, ticket: u64) -> bool {
        self.oldest.get() >= ticket
    }
}

/// A run of pages of one folio in an ioend.
pub(crate) struct Part {
    folio: FolioId,
    /// Pages of the folio.
    pages: Range<u32>,
    /// How old they are, should they be dirty again.
    dirtied: Nanos,
    round: u64,
}

/// See the module.
pub(crate) struct Ioend {
    place: Place,
    /// Where it begins there.
    sector: Sector,
    len: Sector,
    /// Where its first page lies on the device below itself.
    at: Sector,
    purpose: Purpose,
    generation: u64,
    ticket: u64,
    parts: Vec<Part>,
    slices: Vec<Slice>,
}

impl Ioend {
    fn is_followed_by(&self, place: &Place, sector: Sector) -> bool {
        self.sector + self.len == sector && same(&self.place, place)
    }

    /// Pages that it can still take.
    fn room(&self, pages_max: u64) -> u64 {
        pages_max.saturating_sub(self.len.0.div_ceil(PAGE_SECTORS))
    }
}

/// What is kept of an ioend until it ends.
pub(crate) struct Flying {
    parts: Vec<Part>,
    at: Sector,
    bytes: u64,
    ticket: u64,
    purpose: Purpose,
    /// How many changes there were, and flushes below that had failed, when it was sent.
    changes: u64,
    flush_errors: u64,
}

/// The last run of an open ioend, which may still grow.
struct Tail {
    open: usize,
    folio: FolioId,
    pages: Range<u32>,
}

/// Builds ioends.
pub(crate) struct Collector {
    purpose: Purpose,
    /// One a base.
    open: Vec<Ioend>,
    tail: Option<Tail>,
    /// What is open has pages that have failed before.
    failed: bool,
    /// To be sent.
    ready: VecDeque<Ioend>,
}

/// What a collector works with.
pub(crate) struct With<'a> {
    pub(crate) cache: &'a mut Cache,
    pub(crate) mapper: &'a mut Mapper,
    pub(crate) counts: &'a Counts,
    pub(crate) tickets: &'a Tickets,
    pub(crate) spare: &'a Spare,
    /// Largest ioend, in pages.
    pub(crate) pages_max: u64,
    /// Look at the mapping for each page.
    pub(crate) single: bool,
    /// Sectors of the device.
    pub(crate) capacity: Sector,
}

/// Lists that were used before.
#[derive(Default)]
pub(crate) struct Spare {
    parts: RefCell<Vec<Vec<Part>>>,
    slices: RefCell<Vec<Vec<Slice>>>,
}

/// More lists than can be of use are let go.
const SPARE_MAX: usize = 64;

impl Spare {
    fn keep<T>(lists: &RefCell<Vec<Vec<T>>>, mut list: Vec<T>) {
        list.clear();
        let mut lists = lists.borrow_mut();
        if lists.len() < SPARE_MAX {
            lists.push(list);
        }
    }
}

impl Collector {
    pub(crate) fn new(purpose: Purpose) -> Collector {
        Collector { purpose, open: Vec::new(), tail: None, failed: false, ready: VecDeque::new() }
    }

    /// Takes a dirty run of a folio, none of it being written, into ioends.
    pub(crate) fn add(&mut self, with: &mut With<'_>, folio: FolioId, run: &Range<u32>) {
        let start = with.cache.folio(folio).start;
        let mut at = run.start;
        while at < run.end {
            let left = if with.single { 1 } else { run.end - at };
            at += self.add_extent(with, folio, start, at..at + left);
        }
        // From here on the run is being written.
        self.end_tail(with);
    }

    /// Adds what one look at the mapping tells of, up to the end of an ioend. Returns how many
    /// pages that were.
    fn add_extent(
        &mut self,
        with: &mut With<'_>,
        folio: FolioId,
        start: u64,
        pages: Range<u32>,
    ) -> u32 {
        let first = start + u64::from(pages.start);
        let here = with.mapper.locate(first, with.counts);
        let (sector, there, generation) = (here.sector, here.pages, here.generation);
        let joined = self.open.iter().position(|o| o.is_followed_by(here.place, sector));
        let tail = self.tail.as_ref();
        let grows = tail.is_some_and(|t| {
            joined == Some(t.open) && t.folio == folio && t.pages.end == pages.start
        });
        let fits = |open: &usize| {
            let segments = self.open[*open].parts.len() + usize::from(tail.is_some());
            self.open[*open].room(with.pages_max) > 0 && (grows || segments < SEGMENTS_MAX)
        };
        let (open, grows) = match joined.filter(fits) {
            Some(open) => (open, grows),
            None => {
                let place = here.place.clone();
                self.end_tail(with);
                (self.open_one(with, place, sector, first, generation), false)
            }
        };
        if !grows {
            self.end_tail(with);
            self.tail = Some(Tail { open, folio, pages: pages.start..pages.start });
        }
        let ioend = &mut self.open[open];
        let count = there.min(ioend.room(with.pages_max)).min(pages.len() as u64);
        let at = first * PAGE_SECTORS;
        ioend.len += Sector((count * PAGE_SECTORS).min(with.capacity.0 - at)); // PC-IO2
        let count = u32::try_from(count).expect("at most those of the run");
        self.tail.as_mut().expect("there is one now").pages.end += count;
        count
    }

    /// Opens an ioend for a base; the one that the base has is ready.
    fn open_one(
        &mut self,
        with: &With<'_>,
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
            ticket: with.tickets.draw(),
            parts: with.spare.parts.borrow_mut().pop().unwrap_or_default(),
            slices: with.spare.slices.borrow_mut().pop().unwrap_or_default(),
        };
        // None waits for long because nothing joins it while others come and go.
        let stale = |o: &mut Ioend| new.ticket - o.ticket >= OPENED_MAX;
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

    /// The last run does not grow any more: its pages are being written, from the memory that they
    /// have now.
    fn end_tail(&mut self, with: &mut With<'_>) {
        let Some(Tail { open, folio, pages }) = self.tail.take() else { return };
        let f = with.cache.folio(folio);
        let (dirtied, round) = (Nanos(f.dirtied_ns), f.dirty_round);
        let mut slice = f.slice(&pages);
        let room =
            (with.capacity - Sector((f.start + u64::from(pages.start)) * PAGE_SECTORS)).bytes();
        if slice.len() as u64 > room {
            let room = usize::try_from(room).expect("less than the slice");
            slice = slice.slice(0..room); // PC-IO2
        }
        with.cache.begin_writing(folio, &pages);
        let ioend = &mut self.open[open];
        ioend.parts.push(Part { folio, pages, dirtied, round });
        ioend.slices.push(slice);
    }

    pub(crate) fn purpose(&self) -> Purpose {
        self.purpose
    }

    /// How many ioends are to be sent.
    pub(crate) fn ready(&self) -> u64 {
        self.ready.len() as u64
    }

    /// Nothing more joins what is open.
    pub(crate) fn close(&mut self) {
        assert!(self.tail.is_none(), "a run has been added to its end");
        self.ready.extend(self.open.drain(..));
    }

    /// What is added from here on has failed before, or not: the two share no ioend.
    pub(crate) fn set_failed(&mut self, failed: bool) {
        if std::mem::replace(&mut self.failed, failed) != failed {
            self.close();
        }
    }

    /// All that is open or ready, for another purpose: somebody waits for it now.
    pub(crate) fn hand_over(&mut self, to: &mut Collector) {
        self.close();
        for mut ioend in self.ready.drain(..) {
            ioend.purpose = to.purpose;
            to.ready.push_back(ioend);
        }
    }

    /// One ioend to be sent, in the order in which they were closed.
    fn take_ready(&mut self) -> Option<Ioend> {
        self.ready.pop_front()
    }
}

impl PageCache {
    /// Sends what is ready.
    pub(crate) fn send_ready(&self, collector: &RefCell<Collector>) {
        // PC-IO4: the borrow ends before each bio goes.
        let next = || collector.borrow_mut().take_ready();
        while let Some(ioend) = next() {
            let stale = self.has(Mutation::StaleMap);
            if stale || ioend.generation == self.below.map_generation() {
                self.send(ioend);
            } else {
                self.map_anew(ioend).into_iter().for_each(|part| self.send(part)); // PC-IO3
            }
        }
    }

    fn send(&self, ioend: Ioend) {
        let Ioend { place, sector, len, at, purpose, ticket, parts, mut slices, .. } = ioend;
        let wb = &self.writeback;
        let bytes = len.bytes();
        wb.counts.sent(bytes, parts.len());
        if self.errors.is_failing() && self.has_failed(&parts) {
            add(&wb.counts.retries, 1);
        }
        let mut bufs = Bufs::new();
        bufs.extend(slices.drain(..));
        Spare::keep(&wb.spare.slices, slices);
        debug_assert_eq!(bufs.len_bytes() as u64, bytes, "PC-IO2");
        self.writing_begins(purpose, bytes);
        let (changes, flush_errors) = (self.errors.changes(), self.errors.flush_errors());
        let flying = Flying { parts, at, bytes, ticket, purpose, changes, flush_errors };
        let tag = wb.flying.borrow_mut().insert(flying) as u64;
        let done = reactor::watched(self.writeback.ends(&self.me), tag);
        let bio = Bio {
            op: Op::Write,
            flags: purpose.flags(),
            class: purpose.class(),
            opener: self.opener,
            sector: at,
            len,
            bufs,
            done,
        };
        match place {
            Some(base) => base.submit_at(sector, bio),
            None => self.below.submit(bio),
        }
    }

    /// Whether any of the pages has failed before.
    fn has_failed(&self, parts: &[Part]) -> bool {
        let cache = self.cache.borrow();
        parts.iter().any(|part| {
            let pages = device_pages(&cache, part);
            self.errors.next_failed(pages.start).is_some_and(|failed| failed.start < pages.end)
        })
    }

    /// The same pages where they lie now.
    fn map_anew(&self, old: Ioend) -> SmallVec<[Ioend; 2]> {
        let wb = &self.writeback;
        add(&wb.counts.remaps, 1);
        let mut cache = self.cache.borrow_mut();
        let mut mapper = wb.mapper.borrow_mut();
        let generation = mapper.generation();
        let pages_max = self.ioend_pages();
        let mut all: SmallVec<[Ioend; 2]> = SmallVec::new();
        for (part, slice) in old.parts.into_iter().zip(old.slices) {
            let start = cache.folio(part.folio).start;
            let (mut at, mut done) = (part.pages.start, 0);
            while at < part.pages.end {
                let first = start + u64::from(at);
                let here = mapper.locate(first, &wb.counts);
                let (place, sector, left) = (here.place, here.sector, part.pages.end - at);
                let joins =
                    |o: &Ioend| o.is_followed_by(place, sector) && o.parts.len() < SEGMENTS_MAX;
                let joined = all.iter().position(joins).filter(|&i| all[i].room(pages_max) > 0);
                let to = joined.unwrap_or_else(|| {
                    wb.tickets.share(old.ticket); // Whoever waits for the old one waits for all.
                    all.push(Ioend {
                        place: place.clone(),
                        sector,
                        len: Sector::ZERO,
                        at: Sector(first * PAGE_SECTORS),
                        purpose: old.purpose,
                        generation,
                        ticket: old.ticket,
                        parts: Vec::new(),
                        slices: Vec::new(),
                    });
                    all.len() - 1
                });
                let count = here.pages.min(all[to].room(pages_max)).min(u64::from(left));
                let count = u32::try_from(count).expect("at most those of the part");
                let end = (done + count as usize * PAGE).min(slice.len());
                let to = &mut all[to];
                to.len += Sector(((end - done) >> SECTOR_SHIFT) as u64);
                to.slices.push(slice.slice(done..end));
                if at > part.pages.start {
                    cache.folio_mut(part.folio).pins += 1; // Each part has one.
                }
                to.parts.push(Part { folio: part.folio, pages: at..at + count, ..part });
                (at, done) = (at + count, end);
            }
        }
        wb.tickets.give_back(old.ticket);
        all
    }

    /// An ioend has ended.
    pub(crate) fn ioend_ended(&self, status: Status, tag: u64) {
        let wb = &self.writeback;
        let key = usize::try_from(tag).expect("made from a slab index");
        let flying = wb.flying.borrow_mut().remove(key);
        let Flying { parts, at, bytes, ticket, purpose, changes, flush_errors } = flying;
        let failed = status.ok().is_err();
        let in_doubt = purpose != Purpose::Fua && self.is_in_doubt(flush_errors); // PC-IO6
        let runs = (failed || self.errors.is_failing()).then(|| self.runs_of(&parts));
        {
            let mut cache = self.cache.borrow_mut();
            for Part { folio, pages, dirtied, round } in &parts {
                let again = failed && !self.has(Mutation::DropFailed) || in_doubt;
                cache.end_writing(*folio, pages, again.then_some((*dirtied, *round)));
                if self.has(Mutation::CleanAtTheEnd) && !failed && !in_doubt {
                    cache.clear_dirty(*folio, pages);
                }
            }
        }
        Spare::keep(&wb.spare.parts, parts);
        wb.tickets.give_back(ticket);
        if failed {
            add(&wb.counts.errors, 1);
            let runs = runs.as_deref().unwrap_or_default();
            let device = self.below.name().to_owned();
            let error = IoError { device, op: Op::Write, sector: at, cause: status };
            let news = !self.errors.is_failing();
            self.errors.write_failed(error, reactor::now(), runs);
            wb.tell_failure(status, runs);
            if news {
                self.tell_failure();
            }
        } else {
            if !in_doubt {
                self.errors.went_below(changes);
            }
            self.errors.write_done();
            runs.iter().flatten().for_each(|run| self.errors.settled(run));
        }
        self.writing_ends(purpose, bytes, failed || in_doubt);
    }

    /// Whether a flush below has failed since there were so many failures: what was in flight
    /// meanwhile may be lost.
    pub(crate) fn is_in_doubt(&self, flush_errors: u64) -> bool {
        self.errors.flush_errors() != flush_errors && !self.has(Mutation::BesideFailedFlush)
    }

    fn runs_of(&self, parts: &[Part]) -> SmallVec<[Range<u64>; 4]> {
        let cache = self.cache.borrow();
        parts.iter().map(|part| device_pages(&cache, part)).collect()
    }
}

/// The pages of a part, as pages of the device.
fn device_pages(cache: &Cache, part: &Part) -> Range<u64> {
    let start = cache.folio(part.folio).start;
    start + u64::from(part.pages.start)..start + u64::from(part.pages.end)
}

#[cfg(test)]
#[path = "ioend_tests.rs"]
mod tests;
