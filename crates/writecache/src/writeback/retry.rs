// SPDX-License-Identifier: Apache-2.0 OR MIT
//! Retry: blocks that the origin has refused stay dirty and are tried again.
//!
//! ```text
//!               origin write fails                     time is up      
//!   dirty ──▶ picked ─────────────▶ failing, waiting ───────────────────▶ failing, ready ─┐
//!               ▲  ▲                                                                      │ alone
//!               │  └──────────────────────────────────────────────────────────────────────┘
//!               └── origin FLUSH fails: all that it should have covered
//! ```
//!
//! The wait of a block doubles each time (`policy::backoff_ns`), and it is written alone, so that a
//! bad sector does not delay its neighbours. Other blocks are written meanwhile. After a failed
//! flush of the origin all of writeback waits: it could not make any write durable.
//!
//! Invariants
//! - WC-RT1 A block is failing from the first error of a write of it until a version of it is
//!   durable on the origin, or it has left the cache.
//! - WC-RT2 (WC-I8) A write counts only if no flush of the origin has failed since it was
//!   submitted: that flush may have lost it, and the next one would succeed.
use std::cell::{Cell, Ref, RefCell};
use std::collections::{BTreeMap, BTreeSet};

use block::Status;
use reactor::now;
use roaring::RoaringTreemap;

use crate::map::next_in;

/// If so many blocks fail no others are picked: such an origin does not work at all. About 4 MiB of
/// memory.
const FAILING_MAX: usize = 1 << 16;
/// Failures in a row, within about 15 seconds, after which no writer waits for the block's slot.
const OFTEN_FAILED_MIN: u32 = 5;
/// Failures in a row after which a `flush` gives a block up: the error, and one retry.
pub(super) const GIVE_UP_FAILURES: u32 = 2;

/// Blocks that are tried at once when a writer finds no slot. Chosen: few for an origin that
/// refuses them again, and enough slots for many writers if it accepts them.
const RETRY_NOW_MAX: usize = 64;

#[derive(Clone, Copy)]
pub(super) struct FailingBlock {
    failures: u32,
    status: Status,
    /// Time of the next try, in nanoseconds; a key of `due` while it waits.
    due_ns: u64,
}

/// The flushes of the origin that have failed since the last one that succeeded.
#[derive(Clone, Copy)]
pub(super) struct FailedFlushes {
    pub(super) failures: u32,
    pub(super) status: Status,
    pub(super) until_ns: u64,
    /// Blocks that the failed flushes should have covered.
    pub(super) blocks: u64,
}

#[derive(Default)]
pub(crate) struct Retry {
    pub(super) failing: RefCell<BTreeMap<u64, FailingBlock>>,
    /// Blocks that wait, by the time of their next try; and the same as a set.
    due: RefCell<BTreeSet<(u64, u64)>>,
    waiting: RefCell<RoaringTreemap>,
    /// Blocks to be written now: it is time for their next try, or a failed flush may have lost
    /// them.
    ready: RefCell<RoaringTreemap>,
    /// How many blocks have failed at least `OFTEN_FAILED_MIN` times.
    often_failed: Cell<usize>,
    pub(super) flush: Cell<Option<FailedFlushes>>,
    /// Writeback waits because a flush has failed.
    pub(super) paused: Cell<bool>,
    /// How many flushes of the origin have failed (WC-RT2).
    pub(super) flush_errors: Cell<u64>,
}

/// The first number at or after `from` that is not in `set`.
pub(super) fn first_outside(set: &RoaringTreemap, from: u64) -> u64 {
    if !set.contains(from) {
        return from;
    }
    let is_full = |len: u64| set.range_cardinality(from..from + len) == len;
    let mut len = 1;
    while is_full(2 * len) {
        len *= 2;
    }
    // Full at `len`, not at twice that.
    let mut step = len;
    while step > 0 {
        if is_full(len + step) {
            len += step;
        }
        step /= 2;
    }
    from + len
}

impl Retry {
    /// A counter that a write reads when it is submitted, and compares when it has ended (WC-RT2).
    pub(crate) fn flush_errors(&self) -> u64 {
        self.flush_errors.get()
    }

    /// Whether no block may be picked now.
    pub(super) fn is_paused(&self) -> bool {
        self.paused.get()
    }

    pub(super) fn is_failing(&self, block: u64) -> bool {
        self.failing.borrow().contains_key(&block)
    }

    /// The first block at or after `block` that does not wait.
    pub(super) fn skip(&self, block: u64) -> u64 {
        first_outside(&self.waiting.borrow(), block)
    }

    /// Whether so many blocks fail that no others are picked.
    pub(super) fn is_full(&self) -> bool {
        self.failing.borrow().len() >= FAILING_MAX
    }

    /// Whether blocks are to be tried again now.
    pub(super) fn has_ready(&self) -> bool {
        !self.ready.borrow().is_empty()
    }

    /// Whether any of the blocks is ready or waits.
    pub(super) fn has_any(&self, blocks: &RoaringTreemap) -> bool {
        [&self.ready, &self.waiting].iter().any(|set| !set.borrow().is_disjoint(blocks))
    }

    /// The first ready block at or after `from`.
    pub(super) fn next_ready(&self, from: u64) -> Option<u64> {
        next_in(&self.ready.borrow(), from)
    }

    /// Marks blocks as ready that a failed flush may have lost.
    pub(super) fn requeue(&self, blocks: impl Iterator<Item = u64>) {
        self.ready.borrow_mut().extend(blocks);
    }

    /// The blocks that wait.
    pub(super) fn waiting(&self) -> Ref<'_, RoaringTreemap> {
        self.waiting.borrow()
    }

    /// Removes a block from the ready ones: it is not dirty any more.
    pub(super) fn clear_ready(&self, block: u64) {
        self.ready.borrow_mut().remove(block);
    }

    /// How many blocks are failing (WC-RT1).
    pub(crate) fn blocks(&self) -> u64 {
        self.failing.borrow().len() as u64 + self.flush.get().map_or(0, |f| f.blocks)
    }

    /// The error to be shown, and the lowest failing block; no block if flushes fail.
    pub(crate) fn error(&self) -> Option<(Status, Option<u64>)> {
        let failing = self.failing.borrow();
        let first = failing.first_key_value().map(|(&block, f)| (f.status, Some(block)));
        first.or(self.flush.get().map(|f| (f.status, None)))
    }

    /// Whether none of the `dirty` blocks will be written soon.
    pub(crate) fn is_stuck(&self, dirty: u64) -> bool {
        let often_failed = self.often_failed.get();
        often_failed as u64 >= dirty
            || often_failed >= FAILING_MAX
            || self.flush.get().is_some_and(|f| f.failures >= OFTEN_FAILED_MIN)
    }

    /// The origin has refused a block. Returns how many times in a row.
    pub(super) fn record_failure(
        &self,
        block: u64,
        status: Status,
        wait_ns: impl Fn(u32) -> u64,
    ) -> u32 {
        let mut failing = self.failing.borrow_mut();
        let f = failing.entry(block).or_insert(FailingBlock { failures: 0, status, due_ns: 0 });
        f.failures = f.failures.saturating_add(1);
        f.status = status;
        if f.failures == OFTEN_FAILED_MIN {
            self.often_failed.set(self.often_failed.get() + 1);
        }
        // It is not in `due`: it was picked.
        f.due_ns = now().0.saturating_add(wait_ns(f.failures));
        self.due.borrow_mut().insert((f.due_ns, block));
        self.waiting.borrow_mut().insert(block);
        self.ready.borrow_mut().remove(block);
        f.failures
    }

    pub(super) fn remove(&self, block: u64) {
        self.ready.borrow_mut().remove(block);
        if let Some(f) = self.failing.borrow_mut().remove(&block) {
            self.due.borrow_mut().remove(&(f.due_ns, block));
            self.waiting.borrow_mut().remove(block);
            if f.failures >= OFTEN_FAILED_MIN {
                self.often_failed.set(self.often_failed.get() - 1);
            }
        }
    }

    /// The time of the next try of any block.
    pub(super) fn next_due(&self) -> Option<u64> {
        let block = self.due.borrow().first().map(|&(due_ns, _)| due_ns);
        let flush = self.flush.get().filter(|_| self.paused.get()).map(|f| f.until_ns);
        block.into_iter().chain(flush).min()
    }

    /// Makes blocks ready whose next try is due at `now_ns`.
    pub(super) fn make_ready(&self, now_ns: u64) {
        let mut due = self.due.borrow_mut();
        while let Some(&(at_ns, block)) = due.first().filter(|(at_ns, _)| *at_ns <= now_ns) {
            due.remove(&(at_ns, block));
            self.waiting.borrow_mut().remove(block);
            self.ready.borrow_mut().insert(block);
        }
        if self.flush.get().is_some_and(|f| f.until_ns <= now_ns) {
            self.paused.set(false);
        }
    }

    /// A writer waits for a slot: makes the first waiting blocks ready. Returns false if there are
    /// none.
    pub(crate) fn retry_now(&self) -> bool {
        let nth = self.due.borrow().iter().take(RETRY_NOW_MAX).next_back().copied();
        let paused = self.paused.replace(false);
        if let Some((due_ns, _)) = nth {
            self.make_ready(due_ns);
        }
        paused || nth.is_some()
    }

    /// A `flush` begins: makes all blocks ready.
    pub(super) fn make_all_ready(&self) {
        self.make_ready(u64::MAX);
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn the_end_of_a_run_of_numbers_is_found_wherever_it_is() {
        let mut set = RoaringTreemap::new();
        set.insert_range(3..4);
        set.insert_range(10..1000);
        set.insert_range((1 << 32) - 5..(1 << 32) + 70_000);
        // From, first number that is not in the set.
        let table = [
            (0, 0),
            (3, 4),
            (4, 4),
            (10, 1000),
            (11, 1000),
            (999, 1000),
            (1000, 1000),
            ((1 << 32) - 5, (1 << 32) + 70_000),
            ((1 << 32) + 69_999, (1 << 32) + 70_000),
        ];
        for (from, end) in table {
            assert_eq!(first_outside(&set, from), end, "{from}");
        }
    }
}
