// SPDX-License-Identifier: Apache-2.0 OR MIT
//! Read-ahead for sequential readers, and folio sizes for sequential writers.
//!
//! Invariants
//! - PC-RH1 Pages that are read ahead lie on the device, after those that the reader has read.
use std::cell::{Cell, RefCell};
use std::ops::Range;

use block::Opener;
use reactor::QuiesceCounter;

use crate::config::Config;

/// The sequential streams of a device.
pub(crate) struct ReadAhead {
    reads: RefCell<policy::Streams>,
    writes: RefCell<policy::Streams>,
    pages_max: Cell<u32>,
    /// Windows that are being read; no client waits for them.
    pub(crate) in_flight: QuiesceCounter,
    windows: Cell<u64>,
    pages: Cell<u64>,
}

impl ReadAhead {
    pub(crate) fn new(config: &Config) -> ReadAhead {
        ReadAhead {
            reads: RefCell::default(),
            writes: RefCell::default(),
            pages_max: Cell::new(config.read_ahead_pages()),
            in_flight: QuiesceCounter::default(),
            windows: Cell::new(0),
            pages: Cell::new(0),
        }
    }

    /// The limit has been set.
    pub(crate) fn set_limit(&self, config: &Config) {
        self.pages_max.set(config.read_ahead_pages());
    }

    /// `opener` reads `pages`, cached or not, of a device of `end` pages: what to read ahead now.
    pub(crate) fn on_read(
        &self,
        opener: Opener,
        pages: &Range<u64>,
        end: u64,
    ) -> Option<Range<u64>> {
        let mut reads = self.reads.borrow_mut();
        let ahead = reads.on_read(opener.0, pages.clone(), self.pages_max.get())?;
        let ahead = ahead.start..ahead.end.min(end); // PC-RH1
        if ahead.is_empty() {
            return None;
        }
        self.windows.set(self.windows.get() + 1);
        self.pages.set(self.pages.get() + (ahead.end - ahead.start));
        Some(ahead)
    }

    /// `opener` writes `pages`, of which the first is in no folio: the order of the folio to make.
    pub(crate) fn write_order(&self, opener: Opener, pages: &Range<u64>) -> u8 {
        self.writes.borrow_mut().on_write(opener.0, pages)
    }

    /// Windows that were read ahead, and their pages.
    pub(crate) fn counts(&self) -> (u64, u64) {
        (self.windows.get(), self.pages.get())
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn read_ahead_stops_at_the_end_of_the_device() {
        let streams = ReadAhead::new(&Config::default());
        let read = |pages: Range<u64>| streams.on_read(Opener(1), &pages, 20);
        assert_eq!(read(0..4), None);
        assert_eq!(read(4..8), Some(8..20));
        assert_eq!(read(8..12), None);
        assert_eq!(read(12..20), None);
        assert_eq!(streams.counts(), (1, 12));
        let config = Config::parse(&["2", "read_ahead_kb", "0"]).unwrap();
        streams.set_limit(&config);
        let read = |page| streams.on_read(Opener(2), &(page..page + 1), 20);
        assert!((0..20).all(|page| read(page).is_none()));
    }

    #[test]
    fn folios_of_a_sequential_writer_double_in_size() {
        let streams = ReadAhead::new(&Config::default());
        let mut orders = Vec::new();
        let mut covered = 0;
        for page in 0..64 {
            if page < covered {
                continue;
            }
            // The pages of the folio were written one by one since.
            let order = streams.write_order(Opener(1), &(page..page + 1));
            for next in page + 1..page + (1 << order) {
                streams.write_order(Opener(1), &(next..next + 1));
            }
            covered = page + (1 << order);
            orders.push(order);
        }
        assert_eq!(orders, [0, 0, 1, 2, 3, 4, 5]);
        assert_eq!(streams.write_order(Opener(2), &(64..65)), 0);
        assert_eq!(streams.write_order(Opener(2), &(512..1024)), 9);
    }
}
