// SPDX-License-Identifier: Apache-2.0 OR MIT
//! Read-ahead for sequential readers, and folio sizes for sequential writers.
//!
//! ```text
//!  read so far ──────▶│ requested │ window, being read ahead      │
//!                                 ▲ marker: a read from here on asks for the next window,
//!                                   so that it is there before the reader is
//! ```
//!
//! Windows grow as in the kernel: the first is two or four times the request, the next ones double
//! or quadruple up to the limit (`get_init_ra_size`, `get_next_ra_size`).
//!
//! Invariants
//! - PO-RA1 Two adjacent reads make a stream; random reads cause no read-ahead.
//! - PO-RA2 Windows of a stream do not overlap, and each begins at the end of the previous one, or
//!   after the last read.
//! - PO-RA3 No window is larger than the limit, and the table has [`STREAMS_MAX`] rows at most.
use std::ops::Range;

/// Streams kept: the least recently used one goes. Chosen: some clients with several each.
pub const STREAMS_MAX: usize = 64;
/// Streams of one opener, so that random reads do not evict all other streams.
const STREAMS_OF_OPENER: usize = 16;
/// Largest folio: 2 MiB.
pub const ORDER_MAX: u8 = 9;

#[derive(Clone, Copy, Debug)]
struct Stream {
    opener: u32,
    /// One page behind the last one that was asked for.
    next: u64,
    /// Pages in order up to `next`.
    run: u64,
    /// Whether a second read went on where the first one ended.
    goes_on: bool,
    /// The last window; 0 while there was none.
    window: u32,
    /// Where a request begins that goes on with it: from here on, and no more than `span` behind.
    from: u64,
    span: u64,
    /// Up to where was read ahead.
    ahead_end: u64,
    /// A read of this page or a later one asks for the next window.
    marker: u64,
    used_at: u64,
}

impl Stream {
    /// Works out anew which requests go on with it.
    fn settle(&mut self, reorder_pages: u64) {
        let behind = if self.goes_on { reorder_pages } else { 1 };
        let ahead = if self.window == 0 { 0 } else { reorder_pages };
        self.from = self.next.saturating_sub(behind);
        self.span = self.next.saturating_add(ahead) - self.from;
    }

    /// Pages in order up to `page`.
    fn run_before(&self, page: u64) -> u64 {
        self.run.saturating_sub(self.next - page)
    }
}

/// The usual streams. Chosen: 32 reads of 128 KiB in flight.
pub type Streams = StreamsWithin<1024>;

/// The streams of all openers of a device, of reads or of writes. Requests of a stream may come in
/// another order than they were sent, within `REORDER_PAGES`: the more, the more random requests
/// are taken for one.
#[derive(Clone, Debug, Default)]
pub struct StreamsWithin<const REORDER_PAGES: u64> {
    rows: Vec<Stream>,
    clock: u64,
}

impl<const REORDER_PAGES: u64> StreamsWithin<REORDER_PAGES> {
    /// None.
    #[must_use]
    pub fn new() -> Self {
        Self::default()
    }

    /// `opener` reads `pages`: what to read ahead now, in windows of at most `max_pages`. It may
    /// reach beyond the end of the device.
    pub fn on_read(
        &mut self,
        opener: u32,
        pages: Range<u64>,
        max_pages: u32,
    ) -> Option<Range<u64>> {
        let (stream, is_ahead) = self.follow(opener, &pages)?;
        if max_pages == 0 || !is_ahead {
            return None;
        }
        if stream.window == 0 {
            let asked = u32::try_from(pages.end - pages.start).unwrap_or(u32::MAX);
            stream.window = first_window(asked, max_pages);
            stream.ahead_end = stream.next;
        } else if pages.end > stream.marker {
            stream.window = next_window(stream.window, max_pages);
        } else {
            return None;
        }
        let from = stream.ahead_end.max(stream.next); // PO-RA2
        stream.marker = from;
        stream.ahead_end = from + u64::from(stream.window);
        stream.settle(REORDER_PAGES);
        Some(from..stream.ahead_end)
    }

    /// `opener` writes `pages`, of which the first is in no folio: returns the order of the folio
    /// to make. Writes into existing folios are not reported here, so the stream's next write is
    /// expected behind the folio.
    pub fn on_write(&mut self, opener: u32, pages: &Range<u64>) -> u8 {
        let left = pages.end - pages.start;
        let Some(stream) = self.writer(opener, pages) else {
            return folio_order(pages.start, left, 0);
        };
        let order = folio_order(pages.start, left, stream.run_before(pages.start));
        let end = pages.start + (1 << order);
        if end > stream.next {
            stream.run += end - stream.next;
            stream.next = end;
            stream.settle(REORDER_PAGES);
        }
        order
    }

    /// `opener` writes or reads `pages`: how many pages in order up to their end the stream has
    /// that they go on with. A request that is asked about twice counts once.
    pub fn run_of(&mut self, opener: u32, pages: &Range<u64>) -> u64 {
        let own = pages.end - pages.start;
        let stream = self.writer(opener, pages);
        stream.map_or(own, |stream| stream.run_before(pages.end.min(stream.next)).max(own))
    }

    fn writer(&mut self, opener: u32, pages: &Range<u64>) -> Option<&mut Stream> {
        self.follow(opener, pages).map(|(stream, _)| stream)
    }

    /// The stream that `pages` go on with, and whether they go beyond what was seen of it.
    fn follow(&mut self, opener: u32, pages: &Range<u64>) -> Option<(&mut Stream, bool)> {
        self.clock += 1;
        // The row that is nearest, and what `start` needs if there is none: all in one pass, as
        // random reads have it every time.
        let (mut nearest, mut distance) = (None, u64::MAX);
        let mut own = Oldest::NONE;
        for (nth, s) in self.rows.iter().enumerate() {
            if s.opener != opener {
                continue;
            }
            // One comparison, as what lies before `from` wraps around.
            let goes_on = pages.start.wrapping_sub(s.from) <= s.span;
            if goes_on && s.next.abs_diff(pages.start) < distance {
                (nearest, distance) = (Some(nth), s.next.abs_diff(pages.start));
            }
            own.look_at(nth, s);
        }
        let Some(nth) = nearest else {
            self.start(opener, pages, own);
            return None;
        };
        let nth = self.going_on(nth, pages.start);
        let stream = &mut self.rows[nth];
        stream.used_at = self.clock;
        let is_ahead = pages.end > stream.next;
        if is_ahead {
            let asked = pages.end - pages.start;
            let has_gap = pages.start > stream.next;
            stream.run += (pages.end - stream.next).min(asked);
            stream.next = pages.end;
            stream.goes_on |= !has_gap;
            stream.settle(REORDER_PAGES);
        }
        if stream.goes_on { Some((stream, is_ahead)) } else { None } // PO-RA1
    }

    /// The row to take instead of row `nth`, which may be a request alone that a stream has met.
    fn going_on(&self, nth: usize, start: u64) -> usize {
        let found = &self.rows[nth];
        let is_there = |s: &Stream| {
            s.goes_on && s.opener == found.opener && start.wrapping_sub(s.from) <= s.span
        };
        let as_near = |s: &Stream| s.next.abs_diff(start) == found.next.abs_diff(start);
        let other = || self.rows.iter().position(|s| is_there(s) && as_near(s));
        if found.goes_on { nth } else { other().unwrap_or(nth) }
    }

    /// PO-RA3: a new stream, in the place of the opener's oldest if it has enough, or of the oldest
    /// of all when the table is full.
    fn start(&mut self, opener: u32, pages: &Range<u64>, own: Oldest) {
        let mut stream = Stream {
            opener,
            next: pages.end,
            run: pages.end - pages.start,
            goes_on: false,
            window: 0,
            from: 0,
            span: 0,
            ahead_end: 0,
            marker: 0,
            used_at: self.clock,
        };
        stream.settle(REORDER_PAGES);
        let mut of = own;
        if of.rows < STREAMS_OF_OPENER && self.rows.len() >= STREAMS_MAX {
            of = Oldest::NONE;
            self.rows.iter().enumerate().for_each(|(nth, s)| of.look_at(nth, s));
        }
        if of.rows >= STREAMS_OF_OPENER {
            self.rows[of.nth] = stream;
        } else {
            self.rows.push(stream);
        }
    }
}

/// The least recently used one of some rows.
#[derive(Clone, Copy, Debug)]
struct Oldest {
    rows: usize,
    nth: usize,
    used_at: u64,
}

impl Oldest {
    const NONE: Oldest = Oldest { rows: 0, nth: 0, used_at: u64::MAX };

    fn look_at(&mut self, nth: usize, stream: &Stream) {
        if stream.used_at < self.used_at {
            (self.nth, self.used_at) = (nth, stream.used_at);
        }
        self.rows += 1;
    }
}

/// The kernel's first window for a request.
fn first_window(asked: u32, max: u32) -> u32 {
    let size = asked.min(max).next_power_of_two();
    match size {
        _ if size <= max / 32 => size * 4,
        _ if size <= max / 4 => size * 2,
        _ => max,
    }
}

/// The kernel's window after one of `size`.
fn next_window(size: u32, max: u32) -> u32 {
    match size {
        _ if size < max / 16 => size * 4,
        _ if size <= max / 2 => size * 2,
        _ => max,
    }
}

/// The order of the folio to begin at `page`, when `left` pages are written (or read) from there
/// on, by a writer that wrote `run` pages in order before: the largest that is aligned, and that
/// the request fills or that doubles what was written, up to [`ORDER_MAX`].
fn folio_order(page: u64, left: u64, run: u64) -> u8 {
    let wanted = left.max(run).max(1).ilog2();
    let order = wanted.min(page.trailing_zeros()).min(u32::from(ORDER_MAX));
    u8::try_from(order).expect("at most ORDER_MAX")
}

#[cfg(test)]
#[path = "readahead_tests.rs"]
mod tests;
