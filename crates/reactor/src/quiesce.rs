// SPDX-License-Identifier: Apache-2.0 OR MIT
//! `QuiesceCounter`: counts what is in flight. A task can wait until all that began before a moment
//! has ended, while more keeps coming.
//!
//! ```text
//!   generation   0 0 0 0 0 │ 1 1 1 1 1 1 1 │ 0 0 ...
//!   quiesced()             ▲ flips, then waits for the count of generation 0 alone
//! ```
//!
//! Invariant
//! - RE-Q1 While no task waits in `quiesced`, nothing is in flight in the generation that is not
//!   the current one.
use std::cell::Cell;

use crate::wait::WaitList;

/// The generation in which something began; [`QuiesceCounter::leave`] takes it back.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct Generation(bool);

/// What is in flight, counted by generation.
#[derive(Default)]
pub struct QuiesceCounter {
    generation: Cell<bool>,
    in_flight: [Cell<usize>; 2],
    /// A task waits for a generation to end; others that want to wait must queue behind it.
    ending: Cell<bool>,
    ended: WaitList,
}

impl QuiesceCounter {
    /// Counts one that begins.
    pub fn enter(&self) -> Generation {
        let generation = self.generation.get();
        let count = &self.in_flight[usize::from(generation)];
        count.set(count.get() + 1);
        Generation(generation)
    }

    /// Counts one that has ended.
    pub fn leave(&self, Generation(generation): Generation) {
        let count = &self.in_flight[usize::from(generation)];
        let left = count.get() - 1;
        count.set(left);
        if left == 0 && !self.ended.is_empty() {
            self.ended.wake_all();
        }
    }

    /// How many have begun and not ended.
    pub fn in_flight(&self) -> usize {
        self.in_flight[0].get() + self.in_flight[1].get()
    }

    /// Waits until all that had begun before the call has ended.
    pub async fn quiesced(&self) {
        if self.in_flight() == 0 {
            return;
        }
        self.ended.wait_for(|| !self.ending.replace(true)).await;
        let old = self.generation.get();
        self.generation.set(!old);
        self.ended.wait_for(|| self.in_flight[usize::from(old)].get() == 0).await;
        self.ending.set(false);
        self.ended.wake_all();
    }
}

impl Generation {
    /// As the lowest bit of a tag for [`crate::chain`]; the other bits are zero.
    pub fn tag(self) -> u64 {
        u64::from(self.0)
    }

    /// From the lowest bit of a tag.
    pub fn from_tag(tag: u64) -> Generation {
        Generation(tag & 1 == 1)
    }
}

block::debug_as!(QuiesceCounter, s => "QuiesceCounter({} in flight)", s.in_flight());
