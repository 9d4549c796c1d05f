// SPDX-License-Identifier: Apache-2.0 OR MIT
//! Ioend: one write below, of many pages, with one completion.
//!
//! ```text
//!   dirty runs, ascending      open ioends, one a base       in flight
//!   ▓▓▓▓ ▓▓▓▓▓▓▓▓ ▓▓ ──map──▶  base 0  ▓▓▓▓▓▓▓▓▓▓ ──full──▶  bio ──▶ end: pages are clean,
//!     folio   folio            base 1  ▓▓▓▓▓                         or dirty again
//! ```
//! The [`crate::collector`] builds ioends, [`crate::ioends`] sends them.
//!
//! Invariants
//! - PC-IO1 An ioend has at most `ioend_bytes`, [`SEGMENTS_MAX`] segments, [`FOLIOS_MAX`] folios,
//!   one base and one class.
//! - PC-IO2 Its bytes are those of its pages, minus what lies beyond the end of the device.
use std::cell::{Cell, RefCell};
use std::ops::Range;

use block::{Class, Flags, Nanos, PAGE, Sector, Slice};

use crate::folio_map::{FolioId, FolioMap};
use crate::iomap::{Place, same};
use crate::units::PAGE_SECTORS;

/// The kernel's BIO_MAX_VECS.
pub(crate) const SEGMENTS_MAX: usize = 256;
/// The kernel's IOEND_BATCH_SIZE. Each folio is a segment at least, so segments end first.
pub(crate) const FOLIOS_MAX: usize = 4096;
const _: () = assert!(SEGMENTS_MAX <= FOLIOS_MAX);

/// Why something is written.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(crate) enum Purpose {
    /// Background writeback: no client waits.
    Background,
    /// A FLUSH waits.
    Sync,
    /// A FUA write waits: it must be durable when it ends.
    Fua,
}

impl Purpose {
    pub(crate) fn flags(self) -> Flags {
        match self {
            Purpose::Background => Flags::BACKGROUND,
            Purpose::Sync => Flags::SYNC,
            Purpose::Fua => Flags::SYNC | Flags::FUA,
        }
    }

    /// How much it may have in flight, as a multiple of what background writeback may.
    pub(crate) fn share(self) -> u64 {
        match self {
            Purpose::Background => 1,
            Purpose::Sync | Purpose::Fua => 2,
        }
    }

    pub(crate) fn class(self) -> Class {
        match self {
            Purpose::Background => Class::Background,
            Purpose::Sync | Purpose::Fua => Class::Foreground,
        }
    }
}

/// A run of pages of one folio in an ioend.
pub(crate) struct Segment {
    pub(crate) folio: FolioId,
    /// Pages of the folio.
    pub(crate) pages: Range<u32>,
    /// The age of the pages, for the case that they are dirty again.
    pub(crate) dirtied: Nanos,
    pub(crate) round: u64,
}

impl Segment {
    /// Its pages, as pages of the device.
    pub(crate) fn device_pages(&self, folios: &FolioMap) -> Range<u64> {
        let start = folios.folio(self.folio).start;
        start + u64::from(self.pages.start)..start + u64::from(self.pages.end)
    }
}

/// See the module.
pub(crate) struct Ioend {
    pub(crate) place: Place,
    /// Where it begins at `place`.
    pub(crate) sector: Sector,
    pub(crate) len: Sector,
    /// Where its first page lies on the device below itself.
    pub(crate) at: Sector,
    pub(crate) purpose: Purpose,
    /// Generation of the mapping by which `place` was found.
    pub(crate) generation: u64,
    /// Its number in the `Sequence`.
    pub(crate) number: u64,
    pub(crate) segments: Vec<Segment>,
    pub(crate) slices: Vec<Slice>,
}

impl Ioend {
    pub(crate) fn is_followed_by(&self, place: &Place, sector: Sector) -> bool {
        self.sector + self.len == sector && same(&self.place, place)
    }

    /// Pages that it can still take.
    pub(crate) fn room(&self, pages_max: u64) -> u64 {
        pages_max.saturating_sub(self.len.0.div_ceil(PAGE_SECTORS))
    }
}

/// Empty vectors of ioends that have ended, kept for the next ones.
#[derive(Default)]
pub(crate) struct FreeLists {
    pub(crate) segments: FreeList<Segment>,
    pub(crate) slices: FreeList<Slice>,
}

/// Vectors kept at most, of each kind. Chosen: more were never in use at once.
const FREE_MAX: usize = 64;

/// Empty vectors that have kept their memory.
pub(crate) struct FreeList<T>(RefCell<Vec<Vec<T>>>);

impl<T> Default for FreeList<T> {
    fn default() -> Self {
        FreeList(RefCell::default())
    }
}

impl<T> FreeList<T> {
    pub(crate) fn take(&self) -> Vec<T> {
        self.0.borrow_mut().pop().unwrap_or_default()
    }

    pub(crate) fn put(&self, mut list: Vec<T>) {
        list.clear();
        let mut lists = self.0.borrow_mut();
        if lists.len() < FREE_MAX {
            lists.push(list);
        }
    }
}

/// Ioends by size: up to 4 KiB, up to 8 KiB, and so on; the last class has all larger ones.
pub(crate) const SIZES: usize = 16;

/// Counts of writeback since the cache was made.
#[derive(Default, Debug)]
pub(crate) struct IoendStats {
    pub(crate) ioends: Cell<u64>,
    pub(crate) ioend_bytes: Cell<u64>,
    /// Segments of all ioends.
    pub(crate) segments: Cell<u64>,
    /// Queries to the device below.
    pub(crate) map_calls: Cell<u64>,
    /// Look-ups in the cached answer.
    pub(crate) map_checks: Cell<u64>,
    /// Ioends that were mapped again before they were sent.
    pub(crate) remaps: Cell<u64>,
    /// Ioends that failed.
    pub(crate) errors: Cell<u64>,
    /// Ioends with pages that had failed before.
    pub(crate) retries: Cell<u64>,
    pub(crate) sizes: [Cell<u64>; SIZES],
}

/// Adds to a counter.
pub(crate) fn add(count: &Cell<u64>, more: u64) {
    count.set(count.get() + more);
}

impl IoendStats {
    /// The class in `sizes` of an ioend of so many bytes.
    pub(crate) fn size_class(bytes: u64) -> usize {
        let pages = bytes.div_ceil(PAGE as u64).max(1);
        (pages.next_power_of_two().ilog2() as usize).min(SIZES - 1)
    }

    pub(crate) fn sent(&self, bytes: u64, segments: usize) {
        add(&self.ioends, 1);
        add(&self.ioend_bytes, bytes);
        add(&self.segments, segments as u64);
        add(&self.sizes[IoendStats::size_class(bytes)], 1);
    }
}
