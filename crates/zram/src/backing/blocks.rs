// SPDX-License-Identifier: Apache-2.0 OR MIT
//! Blocks: which blocks of a region are free, and how many objects lie in each of the others.
//!
//! ```text
//!   free ──take──▶ taken ──use_one──▶ live ──unuse_one, the last──▶ taken ──give_back──▶ free
//!                    └──────────────────give_back──────────────────────────▶
//! ```
//!
//! Runs are taken by next fit: a cursor goes up, so a device that fills sees one ascending write.
//!
//! Invariants
//! - ZR-BL1 A block is taken by one caller at a time, until it is given back.
//! - ZR-BL2 A live block is taken; it is given back only when no object lies in it any more.
//! - ZR-BL3 `free` counts the blocks that are not taken.
use std::ops::Range;

/// Runs that a search visits at most before it takes the longest one: so a fragmented region costs
/// a bounded time for each batch. Chosen: about a microsecond.
const RUNS_LOOKED_AT_MAX: u32 = 64;

/// The blocks of a region.
pub(crate) struct Blocks {
    /// A bit each: taken. Zeroed by the system when it is first touched, as the next.
    taken: Vec<u64>,
    /// Objects that lie in the block, wholly or in part: at most 171 of 24 bytes.
    live: Vec<u8>,
    free: u32,
    in_use: u32,
    cursor: u32,
}

impl Blocks {
    /// A region of `count` blocks, all free.
    pub(crate) fn new(count: u32) -> Blocks {
        let words = count.div_ceil(64) as usize;
        let (taken, live) = (vec![0; words], vec![0; count as usize]);
        Blocks { taken, live, free: count, in_use: 0, cursor: 0 }
    }

    pub(crate) fn count(&self) -> u32 {
        u32::try_from(self.live.len()).expect("made from a u32")
    }

    /// Blocks that can be taken.
    pub(crate) fn free(&self) -> u32 {
        self.free
    }

    /// Blocks in which an object lies.
    pub(crate) fn in_use(&self) -> u32 {
        self.in_use
    }

    pub(crate) fn is_live(&self, block: u32) -> bool {
        self.live[block as usize] > 0
    }

    /// Takes a run of at most `want` blocks: the next one that is long enough, or the longest of
    /// those visited. `None` only when no block is free.
    pub(crate) fn take(&mut self, want: u32) -> Option<Range<u32>> {
        assert!(want > 0, "a run of no blocks");
        if self.free == 0 {
            return None;
        }
        let run = self.find(want);
        self.mark(&run, true);
        self.free -= run.end - run.start;
        self.cursor = if run.end == self.count() { 0 } else { run.end };
        Some(run)
    }

    fn find(&self, want: u32) -> Range<u32> {
        let mut best = 0..0;
        let mut looked_at = 0;
        for (from, to) in [(self.cursor, self.count()), (0, self.cursor)] {
            let mut at = from;
            while let Some(start) = self.next(at, to, false) {
                let limit = self.count().min(start.saturating_add(want));
                let end = self.next(start, limit, true).unwrap_or(limit);
                if end - start > best.end - best.start {
                    best = start..end;
                }
                looked_at += 1;
                if end - start == want || looked_at == RUNS_LOOKED_AT_MAX {
                    return best;
                }
                at = end;
            }
        }
        // ZR-BL3
        assert!(best.start < best.end, "{} blocks are free, but none was found", self.free);
        best
    }

    /// The first block of `from..to` that is taken, or that is not.
    fn next(&self, from: u32, to: u32, taken: bool) -> Option<u32> {
        let mut at = from;
        while at < to {
            let word = self.taken[(at / 64) as usize];
            let rest = if taken { word } else { !word } >> (at % 64);
            if rest != 0 {
                let found = at + rest.trailing_zeros();
                return (found < to).then_some(found);
            }
            at = (at / 64 + 1) * 64;
        }
        None
    }

    fn mark(&mut self, run: &Range<u32>, taken: bool) {
        let mut at = run.start;
        while at < run.end {
            let end = run.end.min((at / 64 + 1) * 64);
            let mask = (u64::MAX >> (64 - (end - at))) << (at % 64);
            let word = &mut self.taken[(at / 64) as usize];
            let was = *word & mask;
            assert!(was == if taken { 0 } else { mask }, "blocks {at}..{end}: {was:#x}"); // ZR-BL1
            *word ^= mask;
            at = end;
        }
    }

    /// Gives a run back.
    pub(crate) fn give_back(&mut self, run: Range<u32>) {
        assert!(run.clone().all(|b| !self.is_live(b)), "{run:?} is in use"); // ZR-BL2
        self.mark(&run, false);
        self.free += run.end - run.start;
        if self.cursor == run.end || (self.cursor == 0 && run.end == self.count()) {
            // The unused end of the last run: the next run begins there.
            self.cursor = run.start;
        }
    }

    /// One more object lies in a block that is taken.
    pub(crate) fn use_one(&mut self, block: u32) {
        let live = &mut self.live[block as usize];
        self.in_use += u32::from(*live == 0);
        *live = live.checked_add(1).expect("at most 171 objects lie in a block");
    }

    /// One object less lies in a block. Returns whether it was the last.
    pub(crate) fn unuse_one(&mut self, block: u32) -> bool {
        let live = &mut self.live[block as usize];
        *live = live.checked_sub(1).expect("an object lies in the block");
        self.in_use -= u32::from(*live == 0);
        *live == 0
    }
}

#[cfg(test)]
mod tests {
    use proptest::prelude::*;

    use super::*;

    #[test]
    fn runs_ascend_and_the_unused_end_of_one_begins_the_next() {
        let mut blocks = Blocks::new(200);
        assert_eq!(blocks.take(32), Some(0..32));
        assert_eq!(blocks.take(100), Some(32..132));
        blocks.give_back(100..132);
        assert_eq!(blocks.take(32), Some(100..132));
        blocks.give_back(0..32);
        assert_eq!(blocks.take(32), Some(132..164), "not back to what came free behind");
        assert_eq!(blocks.take(32), Some(164..196));
        assert_eq!(blocks.take(32), Some(0..32), "round, past a run that is too short");
        assert_eq!((blocks.take(9), blocks.take(1)), (Some(196..200), None));
    }

    #[test]
    fn the_longest_run_is_taken_when_none_is_long_enough() {
        let mut blocks = Blocks::new(300);
        blocks.take(300).unwrap();
        for run in [3..5, 70..80, 100..101, 127..130, 299..300] {
            blocks.give_back(run);
        }
        assert_eq!(blocks.take(32), Some(70..80));
        assert_eq!(blocks.take(32), Some(127..130));
        assert_eq!(blocks.take(32), Some(3..5));
        assert_eq!((blocks.take(32), blocks.take(32)), (Some(100..101), Some(299..300)));
        assert_eq!((blocks.take(32), blocks.free()), (None, 0));
    }

    #[test]
    #[should_panic(expected = "is in use")]
    fn a_block_in_use_is_not_given_back() {
        let mut blocks = Blocks::new(10);
        let run = blocks.take(2).unwrap();
        blocks.use_one(run.start);
        blocks.give_back(run);
    }

    #[test]
    #[should_panic(expected = "blocks 0..2")]
    fn a_block_is_not_given_back_twice() {
        let mut blocks = Blocks::new(10);
        let run = blocks.take(2).unwrap();
        blocks.give_back(run.clone());
        blocks.give_back(run);
    }

    proptest! {
        /// Against the simplest model: a vector with the owner of each block.
        #[test]
        fn blocks_are_given_to_one_taker_at_a_time(
            count in 1u32..300,
            steps in prop::collection::vec(
                (any::<bool>(), 1u32..80, any::<prop::sample::Index>()),
                1..200,
            ),
        ) {
            let mut blocks = Blocks::new(count);
            let mut taken = vec![false; count as usize];
            let mut runs: Vec<Range<u32>> = Vec::new();
            for (take, want, which) in steps {
                if take || runs.is_empty() {
                    let left = taken.iter().filter(|t| !**t).count();
                    let run = blocks.take(want);
                    prop_assert_eq!(run.is_none(), left == 0);
                    let Some(run) = run else { continue };
                    prop_assert!(run.start < run.end && run.end - run.start <= want);
                    for b in run.clone() {
                        prop_assert!(!std::mem::replace(&mut taken[b as usize], true));
                        blocks.use_one(b);
                    }
                    runs.push(run);
                } else {
                    // A part of it, so that holes of all kinds come about.
                    let at = which.index(runs.len());
                    let run = runs[at].clone();
                    let part = run.start..run.end.min(run.start + want);
                    for b in part.clone() {
                        prop_assert!(blocks.unuse_one(b));
                        taken[b as usize] = false;
                    }
                    blocks.give_back(part.clone());
                    runs[at].start = part.end;
                    if runs[at].is_empty() {
                        runs.swap_remove(at);
                    }
                }
                let left = u32::try_from(taken.iter().filter(|t| !**t).count()).unwrap();
                prop_assert_eq!(blocks.free(), left);
                prop_assert_eq!(blocks.in_use(), count - left);
            }
        }
    }
}
