// SPDX-License-Identifier: Apache-2.0 OR MIT
//! Idle frames: memory that is allocated and not in use, and when it is given back to the system.
//!
//! Giving frames back costs about as much as compressing a page, whether it is one frame or a
//! thousand in a row. So some are kept for the next use. Work that frees very many keeps them all,
//! and sweeps afterwards, when they lie in long rows.
use block::PAGE;

use super::Store;
use super::classes::FRAMES_MAX;

/// Frames that are kept for the next use before they are given back, half of them at once: a page
/// fault costs as much as a short compression. 1 MiB.
pub(super) const IDLE_MAX: usize = 256;
/// Cells of one step of a sweep: half a millisecond of work at most.
const SWEEP_CELLS: u32 = 16;

impl Store {
    /// Keeps idle frames from now on, or does so no more. Those that were kept are given back by
    /// sweeps.
    pub(crate) fn keep_idle(&mut self, keep: bool) {
        self.keep = keep;
    }

    /// A step of a sweep, which gives idle frames back in the order of their places: those of some
    /// cells from `cell` on. Returns where it goes on.
    pub(crate) fn sweep(&mut self, cell: u32) -> Option<u32> {
        let cells = self.spans.cells();
        let end = cells.min(cell.saturating_add(SWEEP_CELLS));
        let frames = cell as usize * FRAMES_MAX..end as usize * FRAMES_MAX;
        let mut run = frames.start..frames.start;
        for frame in frames {
            let span = self.spans.get_mut((frame / FRAMES_MAX) as u32);
            let bit = 1 << (frame % FRAMES_MAX);
            if span.idle() & bit == 0 {
                continue;
            }
            span.resident &= !bit;
            self.idle_count -= 1;
            if run.end != frame {
                self.punch(&run);
                run.start = frame;
            }
            run.end = frame + 1;
        }
        self.punch(&run);
        if end < cells {
            return Some(end);
        }
        if self.idle_count == 0 {
            self.idle.clear();
        }
        None
    }

    fn punch(&self, frames: &std::ops::Range<usize>) {
        if !frames.is_empty() {
            self.ram.punch(frames.start * PAGE..frames.end * PAGE);
        }
    }

    /// Frames of a cell, by bits, are not in use any more.
    pub(super) fn release(&mut self, cell: u32, frames: u32) {
        self.spans.get_mut(cell).in_use &= !frames;
        let count = frames.count_ones();
        self.memory.give(u64::from(count));
        self.frames -= u64::from(count);
        self.idle_count += count as usize;
        if self.keep {
            return;
        }
        let first = u64::from(cell) * FRAMES_MAX as u64;
        let mut left = frames;
        while left != 0 {
            self.idle.push_back(first + u64::from(left.trailing_zeros()));
            left &= left - 1;
        }
    }

    /// ZR-ST3
    pub(super) fn bound_idle(&mut self) {
        if self.idle_count > IDLE_MAX && !self.keep {
            self.give_back(IDLE_MAX / 2);
        }
        // Those that are in use again fall out; some became idle once more and are in twice.
        while self.idle.len() > 4 * IDLE_MAX && !self.keep {
            self.give_back(self.idle_count.saturating_sub(1));
        }
    }

    /// Gives the memory of idle frames back, the oldest first, until so many are left.
    fn give_back(&mut self, left: usize) {
        let mut frames = Vec::new();
        while self.idle_count > left {
            let Some(frame) = self.idle.pop_front() else { break };
            let (cell, bit) = split(frame);
            let span = self.spans.get_mut(cell);
            if span.idle() & bit != 0 {
                span.resident &= !bit;
                self.idle_count -= 1;
                frames.push(frame);
            }
        }
        frames.sort_unstable();
        for run in frames.chunk_by(|a, b| a + 1 == *b) {
            let first = usize::try_from(run[0]).expect("the region is mapped");
            self.ram.punch(first * PAGE..(first + run.len()) * PAGE);
        }
    }
}

/// The cell of a frame, and which bit it is there.
fn split(frame: u64) -> (u32, u32) {
    let cell = u32::try_from(frame / FRAMES_MAX as u64).expect("a frame of the region");
    (cell, 1 << (frame % FRAMES_MAX as u64))
}
