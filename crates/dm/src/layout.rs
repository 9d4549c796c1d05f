// SPDX-License-Identifier: Apache-2.0 OR MIT
//! Layout: how striped deals chunks of sectors out to its stripes.
//!
//! ```text
//!   sector s:  c = s / chunk    r = s % chunk    stripe = c % n    row = c / n
//!   it lives on that stripe at   row * chunk + r
//! ```
use block::Sector;

/// Divisor that is a shift when it can be.
#[derive(Clone, Copy, Debug)]
pub(crate) struct Divisor {
    pub(crate) value: u64,
    shift: Option<u32>,
}

impl Divisor {
    fn new(value: u64) -> Divisor {
        assert!(value > 0, "checked when the table was loaded");
        let shift = value.is_power_of_two().then(|| value.trailing_zeros());
        Divisor { value, shift }
    }

    fn divide(self, x: u64) -> (u64, u64) {
        match self.shift {
            Some(shift) => (x >> shift, x & (self.value - 1)),
            None => (x / self.value, x % self.value),
        }
    }
}

/// Where sectors live, counted on each stripe from its offset.
#[derive(Clone, Copy, Debug)]
pub(crate) struct Layout {
    pub(crate) n: Divisor,
    pub(crate) chunk: Divisor,
}

impl Layout {
    pub(crate) fn new(n: u64, chunk: u64) -> Layout {
        Layout { n: Divisor::new(n), chunk: Divisor::new(chunk) }
    }

    /// Whether stripes and chunk are powers of two.
    pub(crate) fn is_shifts(self) -> bool {
        self.n.shift.is_some() && self.chunk.shift.is_some()
    }

    /// Stripe, sector on it, and sectors left in the chunk.
    pub(crate) fn locate(self, at: Sector) -> (usize, Sector, Sector) {
        let (chunk, inside) = self.chunk.divide(at.0);
        let (row, stripe) = self.n.divide(chunk);
        let stripe = usize::try_from(stripe).expect("below the number of stripes");
        (stripe, Sector(row * self.chunk.value + inside), Sector(self.chunk.value - inside))
    }

    /// Calls `each` with the sectors that `len` sectors from `from` on of a stripe are, by chunks.
    pub(crate) fn for_each_chunk(
        self,
        stripe: usize,
        from: Sector,
        len: Sector,
        mut each: impl FnMut(Sector, Sector),
    ) {
        let (mut at, end) = (from, from + len);
        while at < end {
            let (row, inside) = self.chunk.divide(at.0);
            let chunk = row * self.n.value + stripe as u64;
            let len = Sector(self.chunk.value - inside).min(end - at);
            each(Sector(chunk * self.chunk.value + inside), len);
            at += len;
        }
    }

    /// The boundary `at` as seen on `stripe`: everything before it there lies before `at`.
    pub(crate) fn boundary(self, at: Sector, stripe: usize) -> Sector {
        let (holder, place, left) = self.locate(at);
        let chunk_start = Sector(place.0 - (self.chunk.value - left.0));
        match stripe.cmp(&holder) {
            std::cmp::Ordering::Equal => place,
            std::cmp::Ordering::Less => chunk_start + Sector(self.chunk.value),
            std::cmp::Ordering::Greater => chunk_start,
        }
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    /// Sector, then (stripe, sector on it) for (n, chunk) = (3,128) (2,8) (3,100) (5,7).
    const VECTORS: [(u64, [(usize, u64); 4]); 13] = [
        (0, [(0, 0), (0, 0), (0, 0), (0, 0)]),
        (7, [(0, 7), (0, 7), (0, 7), (1, 0)]),
        (8, [(0, 8), (1, 0), (0, 8), (1, 1)]),
        (99, [(0, 99), (0, 51), (0, 99), (4, 15)]),
        (100, [(0, 100), (0, 52), (1, 0), (4, 16)]),
        (127, [(0, 127), (1, 63), (1, 27), (3, 22)]),
        (128, [(1, 0), (0, 64), (1, 28), (3, 23)]),
        (255, [(1, 127), (1, 127), (2, 55), (1, 52)]),
        (256, [(2, 0), (0, 128), (2, 56), (1, 53)]),
        (384, [(0, 128), (0, 192), (0, 184), (4, 76)]),
        (1000, [(1, 360), (1, 496), (1, 300), (2, 202)]),
        (4096, [(2, 1280), (0, 2048), (1, 1396), (0, 820)]),
        (65535, [(1, 21887), (1, 32767), (1, 21835), (2, 13105)]),
    ];

    #[test]
    fn sectors_map_as_the_kernel_maps_them() {
        let layouts = [(3, 128), (2, 8), (3, 100), (5, 7)].map(|(n, c)| Layout::new(n, c));
        for (sector, wants) in VECTORS {
            for (layout, (stripe, at)) in layouts.iter().zip(wants) {
                let (got, place, _) = layout.locate(Sector(sector));
                assert_eq!((got, place.0), (stripe, at), "sector {sector} in {layout:?}");
            }
        }
    }

    #[test]
    fn the_chunks_of_a_run_of_a_stripe_lie_where_its_sectors_do() {
        for layout in [(3, 128), (2, 8), (3, 100), (5, 7), (1, 16)].map(|(n, c)| Layout::new(n, c))
        {
            for (from, len) in [(0, 1), (5, 300), (127, 2), (100, 100), (7, 7)] {
                for stripe in 0..usize::try_from(layout.n.value).unwrap() {
                    let mut next = from;
                    layout.for_each_chunk(stripe, Sector(from), Sector(len), |at, len| {
                        for s in at.0..at.0 + len.0 {
                            let (on, place, _) = layout.locate(Sector(s));
                            assert_eq!((on, place.0), (stripe, next), "{s} in {layout:?}");
                            next += 1;
                        }
                    });
                    assert_eq!(next, from + len);
                }
            }
        }
    }

    #[test]
    fn a_discard_is_dealt_out_by_the_kernels_rounding_rule() {
        let layout = Layout::new(3, 128);
        // The range, then begin and end on each stripe; equal when nothing goes there.
        let cases = [
            ((0, 384), [(0, 128), (0, 128), (0, 128)]),
            ((0, 128), [(0, 128), (0, 0), (0, 0)]),
            ((100, 300), [(100, 128), (0, 128), (0, 44)]),
            ((130, 140), [(128, 128), (2, 12), (0, 0)]),
            ((200, 1000), [(128, 384), (72, 360), (0, 256)]),
            ((384, 768), [(128, 256), (128, 256), (128, 256)]),
            ((5, 4096), [(5, 1408), (0, 1408), (0, 1280)]),
        ];
        for ((begin, end), wants) in cases {
            for (stripe, want) in wants.into_iter().enumerate() {
                let from = layout.boundary(Sector(begin), stripe).0;
                let to = layout.boundary(Sector(end), stripe).0;
                assert_eq!((from, to), want, "stripe {stripe} of {begin}..{end}");
            }
        }
    }
}
