// SPDX-License-Identifier: Apache-2.0 OR MIT
//! Where dirty pages lie below: what the device below says, kept for as long as it holds.
//!
//! ```text
//!   page ──▶ kept answer: covers it, and of this generation? ──yes──▶ base, sector
//!                                                          └──no──▶ ask the device below
//! ```
//!
//! `map_blocks=multi` looks once for all pages of a dirty run that the answer covers, in whatever
//! folio they lie; `single` looks for each page. Both ask the device below in the same way, for as
//! much as it will tell: one question for each extent, however many runs and folios lie in it.
//!
//! A device that takes its bios itself (one that is no pure mapping, or is suspended) is a place
//! like any other: the sector is the same. Bios that go there wait there, if they must.
//!
//! Invariants
//! - PC-IM1 An answer is used only while the generation of the device below is the one of the
//!   answer; `ioend` looks again before it sends anything.
//! - PC-IM2 A page that does not lie in one extent goes to the device below itself, which divides
//!   it.
//! - PC-IM3 Between passes a base is not held: a table that lets it go closes it.
use std::fmt;
use std::rc::{Rc, Weak};
use std::str::FromStr;

use block::{Base, BlockDevice, Sector};

use crate::PAGE_SECTORS;
use crate::ioend::Counts;

/// For what the mapping is looked at.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq)]
pub(crate) enum MapBlocks {
    /// Once for a run of dirty pages.
    #[default]
    Multi,
    /// For each page.
    Single,
}

impl FromStr for MapBlocks {
    type Err = String;

    fn from_str(word: &str) -> Result<MapBlocks, String> {
        match word {
            "multi" => Ok(MapBlocks::Multi),
            "single" => Ok(MapBlocks::Single),
            _ => Err(format!("`{word}` is neither `multi` nor `single`")),
        }
    }
}

impl fmt::Display for MapBlocks {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.write_str(match self {
            MapBlocks::Multi => "multi",
            MapBlocks::Single => "single",
        })
    }
}

/// A base, or the device below itself.
pub(crate) type Place = Option<Rc<dyn Base>>;

/// Whether bios for both go to the same device.
pub(crate) fn same(a: &Place, b: &Place) -> bool {
    match (a, b) {
        (Some(a), Some(b)) => std::ptr::addr_eq(Rc::as_ptr(a), Rc::as_ptr(b)),
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
    /// For how long it holds.
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
    kept: Answer,
    /// The base of `kept` between passes (PC-IM3).
    resting: Option<Weak<dyn Base>>,
}

impl Mapper {
    /// For the first `len` sectors of `below`.
    pub(crate) fn new(below: Rc<dyn BlockDevice>, len: Sector) -> Mapper {
        // It covers nothing.
        let kept = Answer { from: 0, to: 0, place: None, sector: 0, generation: 0 };
        Mapper { below, end: len.0, kept, resting: None }
    }

    /// Which answers hold now.
    pub(crate) fn generation(&self) -> u64 {
        self.below.map_generation()
    }

    /// Where `page` and those behind it lie, as far as one answer tells.
    pub(crate) fn locate(&mut self, page: u64, counts: &Counts) -> Located<'_> {
        let at = page * PAGE_SECTORS;
        assert!(at < self.end, "page {page} of a device of {} sectors", self.end);
        counts.map_checks.set(counts.map_checks.get() + 1);
        if let Some(base) = self.resting.take() {
            self.kept.place = base.upgrade();
            if self.kept.place.is_none() {
                self.kept.to = self.kept.from;
            }
        }
        let kept = &self.kept;
        if !(kept.from <= at && at < kept.to && kept.generation == self.generation()) {
            self.ask(at, counts);
        }
        let Answer { from, to, place, sector, generation } = &self.kept;
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

    /// For a planted fault: whatever is kept is taken for current.
    pub(crate) fn trust(&mut self) {
        self.kept.generation = self.generation();
    }

    /// A pass is over: the answer is kept, its base is not held (PC-IM3).
    pub(crate) fn rest(&mut self) {
        if let Some(base) = self.kept.place.take() {
            self.resting = Some(Rc::downgrade(&base));
        }
    }

    fn ask(&mut self, at: u64, counts: &Counts) {
        counts.map_calls.set(counts.map_calls.get() + 1);
        let generation = self.generation();
        let room = Sector(self.end - at);
        self.kept = match self.below.map_blocks(Sector(at), room) {
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
