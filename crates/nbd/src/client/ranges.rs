// SPDX-License-Identifier: Apache-2.0 OR MIT
//! The ranges of a read that have arrived, so that no byte arrives twice and none is missing.

/// Separate runs of one read; servers send nearly in order.
const RUNS_MAX: usize = 1024;

/// Runs of arrived bytes, ascending, none touching another.
#[derive(Debug, Default)]
pub(crate) struct ReceivedRanges(Vec<(u32, u32)>);

impl ReceivedRanges {
    /// Adds `start..end`; false if some of it had arrived, or if there are too many runs.
    pub(crate) fn add(&mut self, start: u32, end: u32) -> bool {
        let at = self.0.partition_point(|run| run.1 < start);
        let touches = |run: Option<&(u32, u32)>, by: u32| run.is_some_and(|r| by >= r.0);
        if !touches(self.0.get(at), end) {
            self.0.insert(at, (start, end));
            return self.0.len() <= RUNS_MAX;
        }
        let run = &mut self.0[at];
        if run.1 == start {
            run.1 = end;
            // It may touch the next run now.
            if let Some(&next) = self.0.get(at + 1) {
                if next.0 < end {
                    return false;
                }
                if next.0 == end {
                    self.0[at].1 = next.1;
                    self.0.remove(at + 1);
                }
            }
            return true;
        }
        if run.0 == end {
            run.0 = start;
            return true;
        }
        false
    }

    /// Whether all of `0..len` has arrived.
    pub(crate) fn is_whole(&self, len: u32) -> bool {
        self.0 == [(0, len)]
    }

    /// Removes all ranges.
    pub(crate) fn clear(&mut self) {
        self.0.clear();
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn bytes_in_any_order_make_a_whole_and_none_comes_twice() {
        // Against a plain bitmap, all sequences of a small generator.
        for seed in 0..2000_u32 {
            let (mut fill, mut map, mut rng) = (ReceivedRanges::default(), [false; 16], seed);
            for _ in 0..12 {
                rng = rng.wrapping_mul(1_664_525).wrapping_add(1_013_904_223);
                let start = (rng >> 8) % 16;
                let end = start + 1 + (rng >> 16) % (16 - start);
                let part = start as usize..end as usize;
                let free = map[part.clone()].iter().all(|taken| !taken);
                assert_eq!(fill.add(start, end), free, "seed {seed}: {start}..{end}: {fill:?}");
                if !free {
                    break;
                }
                map[part].fill(true);
                assert_eq!(fill.is_whole(16), map.iter().all(|taken| *taken), "{fill:?}");
            }
        }
    }

    #[test]
    fn runs_are_bounded() {
        let mut fill = ReceivedRanges::default();
        let taken = (0..).take_while(|n| fill.add(n * 2, n * 2 + 1)).count();
        assert_eq!(taken, RUNS_MAX);
    }
}
