// SPDX-License-Identifier: Apache-2.0 OR MIT
//! Iomap: where dirty pages lie below. Keeps the last answer of the device below while it holds.
//!
//! ```text
//!   page ──▶ cached answer: covers it, same generation? ──yes──▶ base, sector
//!                                                       └──no──▶ ask the device below
//! ```
//!
//! `map_blocks=multi` asks once for all pages of a dirty run that the answer covers, in whatever
//! folios they lie; `single` looks for each page. Both ask the device below in the same way, for as
//! long an extent as it can give: one query for each extent, however many runs lie in it.
//!
//! A device that takes its bios itself (because it is no pure mapping, or is suspended) is a place
//! like any other, with the sector unchanged. Bios that are sent to a suspended device wait there.
//!
//! Invariants
//! - PC-IM1 An answer is used only while the device below still has the generation of the answer.
//!   [`crate::ioends`] checks that again before it sends an ioend.
//! - PC-IM2 A page that does not lie in one extent goes to the device below itself, which divides
//!   it.
//! - PC-IM3 Between two passes the cache holds no reference to a base: a table that is replaced can
//!   close it.
use std::rc::{Rc, Weak};

use block::{Base, BlockDevice, Sector, same_device};

use crate::ioend::IoendStats;
use crate::units::PAGE_SECTORS;

/// A base, or the device below itself.
pub(crate) type Place = Option<Rc<dyn Base>>;

/// Whether bios for both go to the same device.
pub(crate) fn same(a: &Place, b: &Place) -> bool {
    match (a, b) {
        (Some(a), Some(b)) => same_device(a, b),
        (None, None) => true,
        (Some(_), None) | (None, Some(_)) => false,
    }
}

/// Where a run of pages lies.
pub(crate) struct Located<'a> {
    pub(crate) place: &'a Place,
    pub(crate) sector: Sector,
    /// Pages; at least 1. The last one may reach beyond the end of the device.
    pub(crate) pages: u64,
    /// The generation for which this holds.
    pub(crate) generation: u64,
}

/// An answer of the device below.
struct Answer {
    from: u64,
    /// One past its last sector.
    to: u64,
    place: Place,
    /// Where `from` lies.
    sector: u64,
    generation: u64,
}

/// Asks the device below.
pub(crate) struct Mapper {
    below: Rc<dyn BlockDevice>,
    /// One past the last sector of the cache.
    end: u64,
    cached: Answer,
    /// The base of `cached` between passes (PC-IM3).
    released: Option<Weak<dyn Base>>,
}

impl Mapper {
    /// For the first `len` sectors of `below`.
    pub(crate) fn new(below: Rc<dyn BlockDevice>, len: Sector) -> Mapper {
        // It covers no sector.
        let cached = Answer { from: 0, to: 0, place: None, sector: 0, generation: 0 };
        Mapper { below, end: len.0, cached, released: None }
    }

    /// The generation of the mapping as it is now.
    pub(crate) fn generation(&self) -> u64 {
        self.below.map_generation()
    }

    /// Where `page` lies, and how many pages follow it in the same extent.
    pub(crate) fn locate(&mut self, page: u64, stats: &IoendStats) -> Located<'_> {
        let at = page * PAGE_SECTORS;
        assert!(at < self.end, "page {page} of a device of {} sectors", self.end);
        stats.map_checks.set(stats.map_checks.get() + 1);
        if let Some(base) = self.released.take() {
            self.cached.place = base.upgrade();
            if self.cached.place.is_none() {
                self.cached.to = self.cached.from;
            }
        }
        let cached = &self.cached;
        if !(cached.from <= at && at < cached.to && cached.generation == self.generation()) {
            self.ask(at, stats);
        }
        let Answer { from, to, place, sector, generation } = &self.cached;
        let generation = *generation;
        let pages = match *to == self.end {
            true => (to - at).div_ceil(PAGE_SECTORS),
            false => (to - at) / PAGE_SECTORS,
        };
        if pages == 0 {
            return Located { place: &None, sector: Sector(at), pages: 1, generation }; // PC-IM2
        }
        Located { place, sector: Sector(sector + (at - from)), pages, generation }
    }

    /// For a planted fault: uses the cached answer whatever its generation.
    pub(crate) fn trust(&mut self) {
        self.cached.generation = self.generation();
    }

    /// A pass is over: keeps the answer without a reference to its base (PC-IM3).
    pub(crate) fn release_base(&mut self) {
        if let Some(base) = self.cached.place.take() {
            self.released = Some(Rc::downgrade(&base));
        }
    }

    fn ask(&mut self, at: u64, stats: &IoendStats) {
        stats.map_calls.set(stats.map_calls.get() + 1);
        let generation = self.generation();
        let room = Sector(self.end - at);
        self.cached = match self.below.map_blocks(Sector(at), room) {
            Some(mapped) => {
                let len = mapped.len.min(room).0;
                assert!(len > 0, "{} maps no sector at {at}", self.below.name());
                let (sector, place) = (mapped.sector.0, Some(mapped.base));
                Answer { from: at, to: at + len, place, sector, generation }
            }
            None => Answer { from: 0, to: self.end, place: None, sector: 0, generation },
        };
    }
}
