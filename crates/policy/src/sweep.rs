// SPDX-License-Identifier: Apache-2.0 OR MIT
//! The order of writeback: ascending sweeps over the origin, like an elevator, one after another.
//!
//! ```text
//!   0 ────────────── origin blocks ──────────────► end
//!        done │ cursor ► [run) [run)   [run)      wraps to the lowest
//! ```
//!
//! Invariants
//! - PO-SW1 Between two wraps the runs ascend and do not overlap.
//! - PO-SW2 A block that stays eligible is reached within one round: blocks that become eligible
//!   behind the cursor wait for the next round.
//! - PO-SW3 Every block of a run was eligible when asked, and a run has 1 to `max_blocks` blocks.

/// Consecutive origin blocks `start..end`, to be written back as one.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct Run {
    /// First block.
    pub start: u64,
    /// Block after the last.
    pub end: u64,
}

impl Run {
    /// Number of blocks.
    #[must_use]
    pub fn blocks(&self) -> u64 {
        self.end - self.start
    }
}

/// The place of the sweep.
#[derive(Clone, Debug, Default, PartialEq, Eq)]
pub struct Sweep {
    cursor: u64,
    wraps: u64,
}

impl Sweep {
    /// A sweep that begins at block 0.
    #[must_use]
    pub fn new() -> Sweep {
        Sweep::default()
    }

    /// The block from which the next run is looked for.
    #[must_use]
    pub fn cursor(&self) -> u64 {
        self.cursor
    }

    /// How often the sweep has gone back to the lowest block.
    #[must_use]
    pub fn wraps(&self) -> u64 {
        self.wraps
    }

    /// Moves the cursor to the block with which the next run begins.
    pub fn seek(&mut self, mut next_eligible: impl FnMut(u64) -> Option<u64>) -> Option<u64> {
        let start = match next_eligible(self.cursor) {
            Some(start) => start,
            None => {
                let lowest = next_eligible(0)?;
                self.wraps += 1;
                lowest
            }
        };
        self.cursor = start;
        Some(start)
    }

    /// What lies before `block` counts as done.
    pub fn advance_to(&mut self, block: u64) {
        self.cursor = self.cursor.max(block);
    }

    /// The next run, or `None` if nothing is eligible anywhere. The cursor moves behind it.
    ///
    /// `next_eligible(from)` gives the lowest block at or above `from` that is dirty and not
    /// already on its way. It is asked once for a block of the run, and at most twice more.
    pub fn next_run(
        &mut self,
        max_blocks: u64,
        mut next_eligible: impl FnMut(u64) -> Option<u64>,
    ) -> Option<Run> {
        assert!(max_blocks > 0);
        let start = self.seek(&mut next_eligible)?;
        let limit = start.saturating_add(max_blocks);
        let mut end = start + 1;
        while end < limit && next_eligible(end) == Some(end) {
            end += 1;
        }
        self.cursor = end;
        Some(Run { start, end })
    }
}

#[cfg(test)]
mod tests {
    use std::collections::BTreeSet;

    use super::*;

    /// Takes runs out of `dirty` until it is empty.
    fn drain(sweep: &mut Sweep, max_blocks: u64, dirty: &mut BTreeSet<u64>) -> Vec<(u64, u64)> {
        let mut runs = Vec::new();
        while let Some(run) = next(sweep, max_blocks, dirty) {
            (run.start..run.end).for_each(|block| assert!(dirty.remove(&block), "PO-SW3: {run:?}"));
            runs.push((run.start, run.end));
        }
        runs
    }

    fn next(sweep: &mut Sweep, max_blocks: u64, dirty: &BTreeSet<u64>) -> Option<Run> {
        sweep.next_run(max_blocks, |from| dirty.range(from..).next().copied())
    }

    #[test]
    fn runs_are_contiguous_ascending_and_no_longer_than_allowed() {
        // Dirty blocks, longest run, runs.
        type Row = (&'static [u64], u64, &'static [(u64, u64)]);
        let table: [Row; 5] = [
            (&[], 4, &[]),
            (&[7], 4, &[(7, 8)]),
            (&[9, 1, 2, 8, 5], 4, &[(1, 3), (5, 6), (8, 10)]),
            (&[0, 1, 2, 3, 4, 5, 6, 7, 8], 4, &[(0, 4), (4, 8), (8, 9)]),
            (&[3, 4], 1, &[(3, 4), (4, 5)]),
        ];
        for (blocks, max_blocks, runs) in table {
            let mut dirty = blocks.iter().copied().collect();
            assert_eq!(drain(&mut Sweep::new(), max_blocks, &mut dirty), runs, "{blocks:?}");
        }
    }

    #[test]
    fn newcomers_behind_the_cursor_wait_for_the_next_round() {
        let mut sweep = Sweep::new();
        let mut dirty = BTreeSet::from([10, 20, 30]);
        assert_eq!(next(&mut sweep, 8, &dirty), Some(Run { start: 10, end: 11 }));
        dirty.remove(&10);
        dirty.extend([5, 11]);
        assert_eq!(drain(&mut sweep, 8, &mut dirty), [(11, 12), (20, 21), (30, 31), (5, 6)]);
        assert_eq!(sweep.wraps(), 1);
    }

    #[test]
    fn a_run_does_not_reach_round_the_end() {
        let mut sweep = Sweep::new();
        let mut dirty = BTreeSet::from([0, 1, 98, 99]);
        let first = next(&mut sweep, 2, &BTreeSet::from([50]));
        assert_eq!(first, Some(Run { start: 50, end: 51 }));
        assert_eq!(drain(&mut sweep, 8, &mut dirty), [(98, 100), (0, 2)]);
    }

    #[test]
    fn blocks_on_their_way_cut_a_run_and_are_not_given_twice() {
        let mut sweep = Sweep::new();
        let dirty: BTreeSet<u64> = (0..6).collect();
        let busy = BTreeSet::from([2]);
        let ask = |sweep: &mut Sweep| {
            sweep.next_run(8, |from| dirty.range(from..).find(|b| !busy.contains(b)).copied())
        };
        assert_eq!(ask(&mut sweep), Some(Run { start: 0, end: 2 }));
        assert_eq!(ask(&mut sweep), Some(Run { start: 3, end: 6 }));
    }

    #[test]
    fn nothing_eligible_leaves_the_cursor_where_it_was() {
        let mut sweep = Sweep::new();
        next(&mut sweep, 8, &BTreeSet::from([40]));
        assert_eq!(next(&mut sweep, 8, &BTreeSet::new()), None);
        assert_eq!((sweep.cursor(), sweep.wraps()), (41, 0));
    }

    #[test]
    fn the_next_dirty_block_of_one_writer_starves_no_other() {
        // PO-SW2: the writer runs ahead of the cursor for a while, but the origin has an end.
        let mut sweep = Sweep::new();
        let mut dirty = BTreeSet::from([0, 50]);
        next(&mut sweep, 1, &dirty);
        dirty.insert(0);
        let mut order = Vec::new();
        for _ in 0..102 {
            let run = next(&mut sweep, 1, &dirty).unwrap();
            dirty.remove(&run.start);
            order.push(run.start);
            if run.end < 100 {
                dirty.insert(run.end);
            }
        }
        let first_of_others = order.iter().position(|&block| block == 0);
        assert_eq!(first_of_others, Some(50), "block 0 comes right after block 99");
    }
}
