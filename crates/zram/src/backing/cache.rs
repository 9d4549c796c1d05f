// SPDX-License-Identifier: Apache-2.0 OR MIT
//! Cache: blocks that were read ahead of readers which go through the device block by block.
//!
//! ```text
//!   stream   next block expected ──▶ a read that begins there: an extent is read from it on
//!   extent   32 blocks │ a bit each: the contents are valid
//! ```
//!
//! Invariants
//! - ZR-CA1 A bit is set only while its block has been live ever since the read of the extent
//!   began. A live block does not change. So the bit is cleared when the block is released, and a
//!   block that was not live at the beginning never has it.
//! - ZR-CA2 Extents do not take more than [`EXTENTS_MAX`] times 128 KiB.
use std::cell::{Cell, RefCell};
use std::ops::Range;

use block::Buf;
use reactor::WaitList;

use crate::slot::PAGE;

/// Blocks that are read ahead: 128 KiB, the default of Linux' read-ahead.
pub(crate) const EXTENT_BLOCKS: u32 = 32;
const EXTENTS_MAX: usize = 8;
/// Sequential readers that are tracked.
const STREAMS: usize = 8;

struct Extent {
    id: u64,
    first: u32,
    good: u32,
    buf: Buf,
    loading: bool,
}

/// The state of a run of blocks in the cache.
pub(crate) enum Cached {
    /// The bytes, from here on in the buffer.
    Ready(Buf, usize),
    /// A read of them is in flight.
    Loading,
    Missing,
}

/// See the module.
#[derive(Default)]
pub(crate) struct Cache {
    /// The least recently used first.
    extents: RefCell<Vec<Extent>>,
    ids: Cell<u64>,
    /// The next block of each reader, the oldest first.
    streams: RefCell<Vec<u32>>,
    loaded: WaitList,
}

impl Extent {
    fn bits_of(&self, run: &Range<u32>) -> Option<u32> {
        let start = run.start.checked_sub(self.first)?;
        let end = run.end - self.first;
        (end <= EXTENT_BLOCKS && start < end)
            .then(|| (u32::MAX >> (EXTENT_BLOCKS - (end - start))) << start)
    }

    fn has(&self, run: &Range<u32>) -> bool {
        self.bits_of(run).is_some_and(|bits| self.good & bits == bits)
    }
}

impl Cache {
    pub(crate) fn find(&self, run: &Range<u32>) -> Cached {
        let mut extents = self.extents.borrow_mut();
        let Some(at) = extents.iter().rposition(|extent| extent.has(run)) else {
            return Cached::Missing;
        };
        if extents[at].loading {
            return Cached::Loading;
        }
        extents[at..].rotate_left(1);
        let extent = extents.last().expect("one was found");
        Cached::Ready(extent.buf.clone(), (run.start - extent.first) as usize * PAGE)
    }

    /// Waits until no read of these blocks is in flight.
    pub(crate) async fn wait(&self, run: &Range<u32>) {
        let loading = |extent: &Extent| extent.loading && extent.has(run);
        self.loaded.wait_for(|| !self.extents.borrow().iter().any(loading)).await;
    }

    /// Notes a read of a run. Returns whether the reader is sequential.
    pub(crate) fn is_sequential(&self, run: &Range<u32>) -> bool {
        let mut streams = self.streams.borrow_mut();
        // Packed pages: it may still be at the last block that it read.
        let follows = |next: &u32| *next == run.start || *next == run.start + 1;
        let known = streams.iter().position(follows);
        if let Some(at) = known {
            streams.remove(at);
        } else if streams.len() == STREAMS {
            streams.remove(0);
        }
        streams.push(run.end);
        known.is_some()
    }

    /// Begins an extent of `blocks`, all of which are live (ZR-CA1). Returns its number, and the
    /// buffer to read to; `None` while all extents are being read.
    pub(crate) fn begin(&self, first: u32, blocks: u32) -> Option<(u64, Buf)> {
        assert!((1..=EXTENT_BLOCKS).contains(&blocks), "an extent of {blocks} blocks");
        let mut extents = self.extents.borrow_mut();
        if extents.len() == EXTENTS_MAX {
            let oldest = extents.iter().position(|extent| !extent.loading)?;
            extents.remove(oldest);
        }
        let id = self.ids.get();
        self.ids.set(id + 1);
        let buf = Buf::alloc(blocks as usize * PAGE);
        let good = u32::MAX >> (EXTENT_BLOCKS - blocks);
        extents.push(Extent { id, first, good, buf: buf.clone(), loading: true });
        Some((id, buf))
    }

    /// An extent was read, or could not be.
    pub(crate) fn end(&self, id: u64, read: bool) {
        let mut extents = self.extents.borrow_mut();
        let at = extents.iter().position(|e| e.id == id).expect("a loading extent is kept");
        if read {
            extents[at].loading = false;
        } else {
            extents.remove(at);
        }
        drop(extents);
        self.loaded.wake_all();
    }

    /// A block is not live any more.
    pub(crate) fn forget(&self, block: u32) {
        for extent in self.extents.borrow_mut().iter_mut() {
            if let Some(bit) = extent.bits_of(&(block..block + 1)) {
                extent.good &= !bit;
            }
        }
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    fn is_ready(cache: &Cache, run: Range<u32>) -> bool {
        matches!(cache.find(&run), Cached::Ready(..))
    }

    #[test]
    fn only_what_was_live_all_the_time_is_found() {
        let cache = Cache::default();
        let (id, _) = cache.begin(10, 4).unwrap();
        assert!(matches!(cache.find(&(10..11)), Cached::Loading));
        cache.forget(12);
        cache.forget(9);
        cache.end(id, true);
        let found: Vec<bool> = (8..16).map(|b| is_ready(&cache, b..b + 1)).collect();
        assert_eq!(found, [false, false, true, true, false, true, false, false]);
        assert!(!is_ready(&cache, 12..14));
        cache.forget(10);
        assert!(!is_ready(&cache, 10..11));
    }

    #[test]
    fn a_failed_extent_is_gone_and_the_oldest_makes_room() {
        let cache = Cache::default();
        let (id, _) = cache.begin(0, 32).unwrap();
        cache.end(id, false);
        assert!(matches!(cache.find(&(0..32)), Cached::Missing));
        for nth in 0..9 {
            let (id, _) = cache.begin(nth * 32, 32).unwrap();
            cache.end(id, true);
            assert!(is_ready(&cache, 0..1) || nth == 8, "kept: it is used all the time");
            if nth == 8 {
                assert!(is_ready(&cache, 0..1) && !is_ready(&cache, 32..33));
            }
        }
        for nth in 0..8 {
            assert!(cache.begin(nth * 32, 32).is_some());
        }
        assert!(cache.begin(999, 1).is_none(), "all are being read");
    }

    #[test]
    fn a_reader_is_known_by_where_it_goes_on() {
        let cache = Cache::default();
        let steps = [(0..1, false), (1..2, true), (7..9, false), (2..3, true), (8..10, true)];
        for (run, sequential) in steps {
            assert_eq!(cache.is_sequential(&run), sequential, "{run:?}");
        }
    }
}
