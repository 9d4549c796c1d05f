// SPDX-License-Identifier: Apache-2.0 OR MIT
//! Folio: a run of pages that are neighbours on the device and in memory, 4 KiB to 2 MiB.
//!
//! Each page has four bits:
//!
//! | bit | the page |
//! |---|---|
//! | up to date | holds the data of the device, or newer data |
//! | dirty | was written by a client and is in no ioend yet; it is up to date |
//! | writing | is in an ioend that has not ended |
//! | reading | is being read from the device; it is not up to date |
//!
//! Invariants
//! - PC-FO1 The memory of a page that is being written does not change until that write has ended.
//!   A writer first moves the folio to new memory, or waits.
//! - PC-FO2 A page that is being read or written lies in a folio with a pin. A folio with pins is
//!   not removed.
use std::ops::Range;

use block::{Bufs, Slice};

use crate::arena::Piece;
use crate::bits::Bits;

/// See the module.
pub(crate) struct Folio {
    /// First page, a multiple of the number of pages.
    pub(crate) start: u64,
    pub(crate) memory: Piece,
    pub(crate) uptodate: Bits,
    pub(crate) dirty: Bits,
    pub(crate) writing: Bits,
    pub(crate) reading: Bits,
    /// When the oldest dirty page became so.
    pub(crate) dirtied_ns: u64,
    /// The round of flushes in which the oldest dirty page became so.
    pub(crate) dirty_round: u64,
    /// Ioends, reads and tasks that refer to it.
    pub(crate) pins: u32,
    /// Old memory that ioends still write from (PC-FO1), each with the pages that are written.
    retired: Vec<(Piece, Bits)>,
}

impl Folio {
    /// A folio with no page up to date.
    pub(crate) fn new(start: u64, memory: Piece) -> Folio {
        let pages = 1 << memory.order();
        let bits = || Bits::new(pages);
        Folio {
            start,
            memory,
            uptodate: bits(),
            dirty: bits(),
            writing: bits(),
            reading: bits(),
            dirtied_ns: 0,
            dirty_round: 0,
            pins: 0,
            retired: Vec::new(),
        }
    }

    pub(crate) fn pages(&self) -> u32 {
        1 << self.memory.order()
    }

    /// One past its last page.
    pub(crate) fn end(&self) -> u64 {
        self.start + u64::from(self.pages())
    }

    /// The pages of the folio that lie in `pages` of the device.
    pub(crate) fn inside(&self, pages: &Range<u64>) -> Range<u32> {
        let own = |page: u64| {
            let page = page.clamp(self.start, self.end()) - self.start;
            u32::try_from(page).expect("a folio has at most 512 pages")
        };
        own(pages.start)..own(pages.end)
    }

    /// The memory of some of its pages.
    pub(crate) fn slice(&self, pages: &Range<u32>) -> Slice {
        self.memory.pages(pages)
    }

    /// Copies bytes of a request in, at `to` bytes from the folio's start.
    pub(crate) fn copy_in(&self, to: usize, from: &Bufs, at: usize, len: usize) {
        self.memory.bufs().put_from(to, from, at, len);
    }

    /// Copies bytes of the folio, from `from` on, to a request.
    pub(crate) fn copy_out(&self, from: usize, to: &Bufs, at: usize, len: usize) {
        to.put_from(at, self.memory.bufs(), from, len);
    }

    /// Moves the folio to other memory of the same size, and copies its contents (PC-FO1).
    pub(crate) fn move_to(&mut self, memory: Piece) {
        assert_eq!(memory.order(), self.memory.order(), "another size");
        assert!(!self.reading.any(), "moved while it is being read");
        let mut at = 0;
        while let Some(run) = self.uptodate.next_run(at..self.pages()) {
            let from = run.start as usize * block::PAGE;
            let len = run.len() * block::PAGE;
            memory.bufs().put_from(from, self.memory.bufs(), from, len);
            at = run.end;
        }
        let old = std::mem::replace(&mut self.memory, memory);
        self.retired.push((old, self.writing.clone()));
    }

    /// The write of `pages` has ended: frees old memory that no ioend writes from any more.
    pub(crate) fn drop_retired(&mut self, pages: &Range<u32>) {
        self.retired.retain_mut(|(_, writing)| {
            writing.clear(pages);
            writing.any()
        });
    }

    /// The first run of pages that are neither up to date nor being read.
    pub(crate) fn next_to_read(&self, pages: Range<u32>) -> Option<Range<u32>> {
        self.uptodate.next_run_in_neither(&self.reading, pages)
    }

    /// The first run of pages that are dirty and not being written.
    pub(crate) fn next_to_write(&self, mut pages: Range<u32>) -> Option<Range<u32>> {
        while let Some(run) = self.dirty.next_run(pages.clone()) {
            match self.writing.next_run(run.clone()) {
                None => return Some(run),
                Some(busy) if busy.start > run.start => return Some(run.start..busy.start),
                Some(busy) => pages.start = busy.end,
            }
        }
        None
    }

    /// Whether it can be evicted: nothing is dirty or in flight, and no task refers to it.
    pub(crate) fn is_idle(&self) -> bool {
        self.pins == 0 && !self.dirty.any()
    }
}
