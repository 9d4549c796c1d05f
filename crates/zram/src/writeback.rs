// SPDX-License-Identifier: Apache-2.0 OR MIT
//! Writeback: selected pages leave memory, in batches, in the order of their slots.
//!
//! ```text
//!   candidates ─▶ budget ─▶ run of blocks ─▶ batch ─▶ one write ─┐   (many in flight)
//!                                             │ PICKED           │
//!                           pages are BACKED ◀┴── still PICKED? ─┘
//!                           or their blocks are retired
//! ```
//!
//! One write covers neighbouring blocks, so neighbouring pages stay neighbours. Many writes are in
//! flight, so the device always has work. Other I/O goes on meanwhile: a page that is accessed is
//! not cold, and stays in memory.
//!
//! Invariants
//! - ZR-WB1 A slot becomes BACKED only when the write of its page has completed and the slot still
//!   has the flag PICKED, which it got when the page was copied (ZR-Z2). Every access clears the
//!   flag.
//! - ZR-WB2 Every block that the budget granted is spent by a completed write, or refunded (ZR-Z5).
//! - ZR-WB3 Every block of a run becomes live, or is retired or given back, whatever happens to its
//!   slots.
//! - ZR-WB4 One writeback works on a part at a time, until its last write has completed: so a flag
//!   that is found at the end is the one that was set at the beginning.
mod batch;
mod sparse;

use std::cell::{Cell, RefCell};
use std::collections::{BTreeSet, VecDeque};
use std::ops::Range;
use std::rc::Rc;
use std::sync::atomic::Ordering::Relaxed;

use block::{Buf, Class, Flags as BioFlags, Status};
use reactor::{BioFuture, TaskPool, write, yield_now};

use crate::backing::Backing;
use crate::command::PageSelection;
use crate::failures::FailureKind;
use crate::part::Part;
use crate::planted::Fault;
use crate::slot::{Flags, PAGE};
use batch::{AddResult, Batch, PickedPage};

/// Writes that a part can have in flight.
const INFLIGHT_MAX: usize = 64;
/// Pages that are copied between two yields: about 50 microseconds of work.
const FILL_RUN: u32 = 32;
/// How many pages ahead an object is prefetched: a cache miss takes as long as the copy of one or
/// two pages.
const PREFETCH: usize = 2;
/// Slots that are visited between two yields.
const WALK_RUN: u32 = 8192;

/// The result of a writeback.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq)]
pub(crate) struct Outcome {
    /// Pages that could have been written.
    pub(crate) candidates: u64,
    /// Pages that left memory.
    pub(crate) pages: u64,
    /// Blocks written.
    pub(crate) blocks: u64,
    /// It ended because the budget was used up.
    pub(crate) limit_reached: bool,
    /// It ended because no block was free.
    pub(crate) no_space: bool,
    /// The first slot of the device that could not be written, and why.
    pub(crate) error: Option<(u64, Status)>,
}

impl Outcome {
    /// Adds the results of two parts.
    pub(crate) fn and(self, other: Outcome) -> Outcome {
        Outcome {
            candidates: self.candidates + other.candidates,
            pages: self.pages + other.pages,
            blocks: self.blocks + other.blocks,
            limit_reached: self.limit_reached || other.limit_reached,
            no_space: self.no_space || other.no_space,
            error: first_of(self.error, other.error),
        }
    }
}

/// The error of the lower slot.
fn first_of(a: Option<(u64, Status)>, b: Option<(u64, Status)>) -> Option<(u64, Status)> {
    match (a, b) {
        (Some((slot, _)), Some((other, _))) if other < slot => b,
        (Some(_), _) => a,
        (None, _) => b,
    }
}

/// A writeback that runs.
struct Job {
    part: Rc<Part>,
    in_flight: Cell<u32>,
    outcome: Cell<Outcome>,
    /// Pages that were restored from sparse blocks.
    restored: Cell<u64>,
    /// Empty lists of pages, to be used again.
    free_lists: RefCell<Vec<Vec<PickedPage>>>,
}

impl Drop for Job {
    fn drop(&mut self) {
        let backing = self.backing();
        backing.busy.set(false); // ZR-WB4
        if !block::crashing() {
            backing.changed.wake_all();
        }
    }
}

/// A batch in flight.
struct InFlight {
    job: Rc<Job>,
    write: BioFuture,
    /// Dropped here, where the next batch gets the memory again, and not by the driver.
    _buf: Buf,
    run: Range<u32>,
    pages: Vec<PickedPage>,
    object_bytes: u64,
}

/// The limit or the space that is used up.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
enum Shortage {
    Limit,
    Space,
}

/// A pass over the slots, and the candidates that it has found.
struct Candidates {
    selection: PageSelection,
    runs: Vec<Range<u32>>,
    /// The run and slot to look at next.
    at: (usize, u32),
    looked_at: u32,
    found: VecDeque<u32>,
    /// Pages that were restored from sparse blocks: they are written first, whatever the selection.
    restored: VecDeque<u32>,
    /// Those of them that may be in flight. One that changes meanwhile is not picked a second time
    /// (ZR-WB4).
    restored_set: BTreeSet<u32>,
    /// Bytes that the candidates take on the device, about.
    bytes: usize,
    /// Pages that may still be found.
    left: u64,
}

impl Part {
    /// Writes back the selected pages, and waits until all writes have ended.
    pub(crate) async fn writeback(self: &Rc<Self>, selection: &PageSelection) -> Outcome {
        let Some(backing) = &self.backing else { return Outcome::default() };
        backing.changed.wait_for(|| !backing.busy.replace(true)).await; // ZR-WB4
        let job = Rc::new(Job {
            part: self.clone(),
            in_flight: Cell::default(),
            outcome: Cell::default(),
            restored: Cell::default(),
            free_lists: RefCell::default(),
        });
        let mut candidates = Candidates::new(selection.clone(), self.slots.borrow().len());
        self.counters.done.set(0);
        self.counters.to_do.set(candidates.slots());
        job.run(&mut candidates).await;
        job.wait_in_flight(0).await;
        self.counters.done.set(self.counters.to_do.get());
        let outcome = job.outcome.get();
        Outcome { pages: outcome.pages.saturating_sub(job.restored.get()), ..outcome }
    }
}

impl Candidates {
    fn new(selection: PageSelection, slots: u32) -> Candidates {
        let (mut runs, left) = (selection.runs(slots), selection.max_pages);
        // A part of a small device may have no slots.
        runs.retain(|run| !run.is_empty());
        let at = (0, runs.first().map_or(0, |run| run.start));
        Candidates {
            selection,
            runs,
            at,
            looked_at: 0,
            found: VecDeque::new(),
            restored: VecDeque::new(),
            restored_set: BTreeSet::new(),
            bytes: 0,
            left,
        }
    }

    /// Pages that may still be moved to make room.
    fn left_to_move(&self) -> u64 {
        self.selection.max_moved
    }

    fn move_pages(&mut self, pages: u64) {
        self.selection.max_moved -= pages;
    }

    fn slots(&self) -> u64 {
        self.runs.iter().map(|run| u64::from(run.end - run.start)).sum()
    }

    /// The next slot to look at.
    fn next(&mut self) -> Option<u32> {
        let run = self.runs.get(self.at.0)?;
        let nth = self.at.1;
        self.at.1 += 1;
        if self.at.1 >= run.end {
            let next = self.runs.get(self.at.0 + 1).map_or(0, |run| run.start);
            self.at = (self.at.0 + 1, next);
        }
        self.looked_at += 1;
        Some(nth)
    }

    /// Bytes that a slot takes on the device, if it is to be written.
    fn takes(&self, part: &Part, backing: &Backing, nth: u32) -> Option<usize> {
        let slot = part.slot(nth);
        let free = slot.is_resident() && !slot.has(Flags::PICKED);
        let wanted = || match self.restored.front() {
            Some(first) if *first == nth => true,
            Some(_) | None => !self.restored_set.contains(&nth) && self.selection.takes(nth, slot),
        };
        (free && wanted()).then(|| backing.bytes_of(slot.size()))
    }

    /// The candidate to be written next.
    fn front(&self) -> Option<u32> {
        self.restored.front().or(self.found.front()).copied()
    }

    /// Looks for candidates until they fill `blocks`.
    async fn gather(&mut self, part: &Part, backing: &Backing, blocks: u32) {
        while self.bytes < blocks as usize * PAGE && self.left > 0 {
            let Some(nth) = self.next() else { return };
            if let Some(bytes) = self.takes(part, backing, nth) {
                self.found.push_back(nth);
                self.bytes += bytes;
                self.left -= 1;
            }
            if self.looked_at.is_multiple_of(WALK_RUN) {
                part.counters.done.set(u64::from(self.looked_at));
                yield_now().await;
                if part.shared.cancel.load(Relaxed) {
                    return;
                }
            }
        }
        part.counters.done.set(u64::from(self.looked_at));
    }

    /// Counts the candidates that are left.
    async fn count(&mut self, part: &Part, backing: &Backing) -> u64 {
        let mut count = 0;
        loop {
            self.gather(part, backing, 256).await;
            if self.found.is_empty() {
                return count;
            }
            count += self.found.len() as u64;
            self.found.clear();
            self.bytes = 0;
        }
    }

    /// Removes the first candidate. Returns whether the selection named it.
    fn pop(&mut self, bytes: usize) -> bool {
        if self.restored.pop_front().is_some() {
            self.bytes = self.bytes.saturating_sub(bytes);
            return false;
        }
        self.found.pop_front();
        // A candidate may have another size by now.
        self.bytes = if self.found.is_empty() { 0 } else { self.bytes.saturating_sub(bytes) };
        true
    }
}

impl Job {
    fn backing(&self) -> &Backing {
        self.part.backing.as_ref().expect("a job is made only where there is one")
    }

    fn is_planted(&self, fault: Fault) -> bool {
        self.backing().space().is_planted(fault)
    }

    fn note(&self, f: impl FnOnce(&mut Outcome)) {
        let mut outcome = self.outcome.get();
        f(&mut outcome);
        self.outcome.set(outcome);
    }

    /// Waits until at most so many writes are in flight.
    async fn wait_in_flight(&self, at_most: u32) {
        self.backing().changed.wait_for(|| self.in_flight.get() <= at_most).await;
    }

    async fn run(self: &Rc<Self>, candidates: &mut Candidates) {
        let (part, backing) = (&*self.part, self.backing());
        let writes = TaskPool::new(INFLIGHT_MAX, finish_write);
        let mut filled = 0;
        loop {
            let pages = backing.batch_blocks(part.shared.batch_pages.load(Relaxed));
            candidates.gather(part, backing, pages).await;
            let Some(first) = candidates.front() else { return };
            if part.shared.cancel.load(Relaxed) {
                return;
            }
            let inflight = part.shared.inflight.load(Relaxed).clamp(1, INFLIGHT_MAX as u32);
            self.wait_in_flight(inflight - 1).await;
            let blocks =
                u32::try_from(candidates.bytes.div_ceil(PAGE)).unwrap_or(pages).clamp(1, pages);
            let least = self.least(first).min(pages);
            let (run, granted) = match self.room(blocks.max(least), least).await {
                Ok(room) => room,
                Err(Shortage::Space) if self.empty_sparse_blocks(candidates).await => continue,
                Err(why) if self.skip_page(candidates, first, why) => continue,
                Err(_) => return self.count_rest(candidates).await,
            };
            let mut batch = Batch::new(backing, &run, self.free_lists.borrow_mut().pop());
            self.fill(&mut batch, candidates, &mut filled).await;
            if let Some(nth) = candidates.front()
                && batch.is_empty()
                && granted < self.least(nth).min(pages)
            {
                // The page needs more blocks than were granted.
                self.note(|o| o.limit_reached = true);
                self.pop(candidates, backing.bytes_of(part.slot(nth).size()));
            }
            self.send(&writes, batch, run, granted);
        }
    }

    /// Notes what is used up. If there is just no room for the first candidate, skips it and
    /// returns true.
    fn skip_page(&self, candidates: &mut Candidates, first: u32, why: Shortage) -> bool {
        let backing = self.backing();
        let none = backing.space().blocks().free() == 0;
        self.note(|o| match why {
            Shortage::Limit => o.limit_reached = true,
            Shortage::Space => o.no_space = true,
        });
        if why == Shortage::Limit || none {
            return false;
        }
        self.pop(candidates, backing.bytes_of(self.part.slot(first).size()));
        true
    }

    /// Copies candidates into a batch until it is full. `filled` counts pages between two yields.
    async fn fill(&self, batch: &mut Batch, candidates: &mut Candidates, filled: &mut u32) {
        let (part, backing) = (&*self.part, self.backing());
        while let Some(nth) = candidates.front() {
            if let Some(soon) = candidates.found.get(PREFETCH) {
                part.prefetch(*soon);
            }
            let added = match candidates.takes(part, backing, nth) {
                Some(_) => batch.add(part, nth),
                None => AddResult::NotWanted,
            };
            match added {
                AddResult::NoRoom => break,
                AddResult::NotWanted => drop(candidates.pop(PAGE)),
                AddResult::Added(bytes) => self.pop(candidates, bytes),
                AddResult::Damaged(status) => {
                    self.failed(nth, status, "its object in memory is damaged");
                    self.pop(candidates, PAGE);
                }
            }
            *filled = filled.wrapping_add(1);
            if filled.is_multiple_of(FILL_RUN) {
                yield_now().await;
            }
        }
    }

    /// Blocks that the page of a slot needs.
    fn least(&self, nth: u32) -> u32 {
        self.backing().blocks_of(self.part.slot(nth).size())
    }

    /// Removes the first candidate, and counts it.
    fn pop(&self, candidates: &mut Candidates, bytes: usize) {
        let selected = candidates.pop(bytes);
        self.note(|o| o.candidates += u64::from(selected));
    }

    /// No more page can be written: counts the remaining candidates.
    async fn count_rest(&self, candidates: &mut Candidates) {
        let rest = candidates.found.len() as u64;
        candidates.found.clear();
        candidates.restored.clear();
        candidates.bytes = 0;
        let rest = rest + candidates.count(&self.part, self.backing()).await;
        self.note(|o| o.candidates += rest);
    }

    /// Takes a run of `least` to `blocks` blocks; fewer if the budget grants less than `least`.
    /// Also returns how many the budget has granted, which is at least the length of the run.
    async fn room(&self, blocks: u32, least: u32) -> Result<(Range<u32>, u32), Shortage> {
        let budget = &self.part.shared.budget;
        let mut granted = budget.take(u64::from(blocks));
        while granted == 0 {
            // Other parts hold blocks that they may refund, and the limit is exact.
            self.wait_in_flight(0).await;
            let held = budget.held();
            granted = budget.take(u64::from(blocks));
            if granted == 0 && held == 0 {
                return Err(Shortage::Limit);
            }
            if granted == 0 {
                reactor::sleep(block::Nanos(100_000)).await;
            }
        }
        let granted = u32::try_from(granted).expect("at most what was wanted");
        let space = self.backing().space();
        let least = least.min(granted);
        let mut run = space.take_run(granted, least).await;
        if run.is_none() {
            // Blocks of writes in flight may be freed.
            self.wait_in_flight(0).await;
            run = space.take_run(granted, least).await;
        }
        let Some(run) = run else {
            budget.refund(u64::from(granted));
            return Err(Shortage::Space);
        };
        Ok((run, granted))
    }

    fn failed(&self, nth: u32, status: Status, why: &str) {
        let slot = self.part.global(nth);
        self.note(|o| o.error = first_of(o.error, Some((slot, status))));
        let what = format!("slot {slot}: writeback: {why}");
        self.part.note_failure(FailureKind::Writeback, what);
    }

    /// Writes a batch to the first blocks of its run, and gives the others back.
    fn send(
        self: &Rc<Self>,
        writes: &TaskPool<InFlight>,
        batch: Batch,
        run: Range<u32>,
        granted: u32,
    ) {
        let (backing, budget) = (self.backing(), &self.part.shared.budget);
        let full = batch.finish();
        let blocks = full.blocks;
        let used = run.start..run.start + blocks;
        backing.space().give_back(used.end..run.end);
        budget.refund(u64::from(granted - blocks)); // ZR-WB2
        if blocks == 0 {
            return self.free_lists.borrow_mut().push(full.pages);
        }
        let at = backing.space().sector(used.start);
        let bufs = full.buf.slice(0..blocks as usize * PAGE).into();
        let device = backing.space().device();
        let write = write(device, BioFlags::BACKGROUND, Class::Background, at, bufs);
        self.in_flight.set(self.in_flight.get() + 1);
        let (job, pages, object_bytes) = (self.clone(), full.pages, full.object_bytes);
        writes.push(InFlight { job, write, _buf: full.buf, run: used, pages, object_bytes });
    }

    /// A write has completed: its pages leave memory, except those that were accessed meanwhile.
    fn evict_written(&self, write: &InFlight) {
        let (part, backing) = (&self.part, self.backing());
        let blocks = u64::from(write.run.end - write.run.start);
        part.shared.budget.spend(blocks);
        part.counters.bd_writes.add(blocks);
        part.counters.bd_object_bytes.add(write.object_bytes);
        let mut pages = 0;
        for page in &write.pages {
            let slot = part.slot(page.nth);
            let planted = self.is_planted(Fault::EvictChangedPage) && page.is_of(slot);
            if !slot.has(Flags::PICKED) && !planted {
                continue; // ZR-WB1
            }
            assert!(slot.is_resident() && page.is_of(slot), "{slot:?} was picked as {page:?}");
            part.counters.bd_count.add(u64::from(backing.occupy(page.at, slot.size())));
            part.move_to_backing(page.nth, page.at);
            pages += 1;
        }
        self.note(|o| {
            o.pages += pages;
            o.blocks += blocks;
        });
    }

    /// A write has failed: its pages stay in memory.
    fn keep_failed(&self, write: &InFlight, status: Status) {
        let part = &self.part;
        let blocks = u64::from(write.run.end - write.run.start);
        if self.is_planted(Fault::KeepBudgetOfFailed) {
            part.shared.budget.spend(blocks);
        } else {
            part.shared.budget.refund(blocks); // ZR-WB2
        }
        for page in &write.pages {
            part.clear_flags(page.nth, Flags::PICKED);
        }
        let block = self.backing().space().block_of_device(write.run.start);
        self.failed(write.pages[0].nth, status, &format!("write at block {block}: {status}"));
    }
}

/// Waits for a write, and handles its pages and blocks.
async fn finish_write(mut write: InFlight) {
    let done = (&mut write.write).await;
    let job = write.job.clone();
    match done {
        Ok(()) => job.evict_written(&write),
        Err(_) if job.is_planted(Fault::EvictFailedWrite) => job.evict_written(&write),
        Err(status) => job.keep_failed(&write, status),
    }
    if !job.is_planted(Fault::LeakBlocks) {
        job.backing().retire_unused(write.run.clone()); // ZR-WB3
    }
    write.pages.clear();
    job.free_lists.borrow_mut().push(write.pages);
    job.in_flight.set(job.in_flight.get() - 1);
    job.backing().changed.wake_all();
}
