// SPDX-License-Identifier: Apache-2.0 OR MIT
//! Fill: which bytes of a read have come, so that none comes twice and none is missing.

/// Runs of one read at a time that are no neighbours; servers send in order, or nearly.
const RUNS_MAX: usize = 1024;

/// Runs of bytes that have come, ascending, none touching another.
#[derive(Debug, Default)]
pub(crate) struct Fill(Vec<(u32, u32)>);

impl Fill {
    /// Adds `start..end`; false when some of it was there, or when the runs are too many.
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
            // It may reach the next one now.
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

    /// Whether all of `0..len` has come.
    pub(crate) fn is_whole(&self, len: u32) -> bool {
        self.0 == [(0, len)]
    }

    /// Forgets everything.
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
            let (mut fill, mut map, mut rng) = (Fill::default(), [false; 16], seed);
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
        let mut fill = Fill::default();
        let taken = (0..).take_while(|n| fill.add(n * 2, n * 2 + 1)).count();
        assert_eq!(taken, RUNS_MAX);
    }
}
