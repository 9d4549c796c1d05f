// SPDX-License-Identifier: Apache-2.0 OR MIT
//! Writeback: pages that were asked for leave memory, in batches, in the order of their slots.
//!
//! ```text
//!   walk ─▶ candidates ─▶ budget ─▶ run of blocks ─▶ fill ─▶ one write ─┐   (many in flight)
//!                                                      │ PICKED         │
//!                                      settle: BACKED ◀┴── still PICKED?┘
//!                                      or the blocks are retired
//! ```
//!
//! A write covers neighbouring blocks, so pages that were neighbours stay so, and many writes are
//! in flight, so the device always has work. Normal I/O goes on: a page that is accessed meanwhile
//! is not cold, and stays in memory.
//!
//! Invariants
//! - ZR-WB1 A slot becomes BACKED only when the write that holds its page has completed and the
//!   slot still has the flag that it was given as the page was copied (ZR-Z2). Every access takes
//!   it away.
//! - ZR-WB2 What was granted by the budget is spent by a completed write, or refunded: exactly
//!   (ZR-Z5).
//! - ZR-WB3 A run of blocks is live, retired or given back in the end, whatever happens to its
//!   slots.
//! - ZR-WB4 One writeback at a time is at work on a shard, until its last write has completed: so a
//!   flag found at the end is the one that was set at the beginning.
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
use crate::command::Which;
use crate::mutation::Mutation;
use crate::shard::Shard;
use crate::slot::{Flags, PAGE};
use batch::{Added, Batch, Picked};

/// Writes that a shard can have in flight.
const INFLIGHT_MAX: usize = 64;
/// Pages that are copied in one go, about 50 microseconds of work.
const FILL_RUN: u32 = 32;
/// How many pages before its turn one is fetched: what lies cold in memory takes as long as it
/// takes to copy one or two that are not.
const PREFETCH: usize = 2;
/// Slots that are looked at in one go.
const WALK_RUN: u32 = 8192;

/// What a writeback has come to.
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
    /// That of several shards.
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

/// The error of the lower slot, whichever came first.
fn first_of(a: Option<(u64, Status)>, b: Option<(u64, Status)>) -> Option<(u64, Status)> {
    match (a, b) {
        (Some((slot, _)), Some((other, _))) if other < slot => b,
        (Some(_), _) => a,
        (None, _) => b,
    }
}

/// A writeback at work.
struct Job {
    shard: Rc<Shard>,
    in_flight: Cell<u32>,
    outcome: Cell<Outcome>,
    /// Pages that were brought back from sparse blocks.
    brought: Cell<u64>,
    /// Lists of pages that can be used again.
    spare: RefCell<Vec<Vec<Picked>>>,
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

/// A batch on its way.
struct Flight {
    job: Rc<Job>,
    write: BioFuture,
    /// Goes here, where the next batch finds it again, not where the driver lets go of it.
    _buf: Buf,
    run: Range<u32>,
    pages: Vec<Picked>,
    object_bytes: u64,
}

/// What there is too little of.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
enum Short {
    Limit,
    Space,
}

/// Where the walk over the slots is, and what it has found.
struct Walk {
    which: Which,
    runs: Vec<Range<u32>>,
    /// The run and slot to look at next.
    at: (usize, u32),
    looked_at: u32,
    found: VecDeque<u32>,
    /// Pages that were brought back from sparse blocks: they go first, whatever was asked for.
    again: VecDeque<u32>,
    /// Those that may still be in flight. One that changes meanwhile is not picked once more
    /// (ZR-WB4).
    brought: BTreeSet<u32>,
    /// Bytes that those found take on the device, about.
    bytes: usize,
    /// Pages that may still be found.
    left: u64,
}

impl Shard {
    /// Writes back the pages that `which` names, and waits until all of it is done.
    pub(crate) async fn writeback(self: &Rc<Self>, which: &Which) -> Outcome {
        let Some(backing) = &self.backing else { return Outcome::default() };
        backing.changed.wait_for(|| !backing.busy.replace(true)).await; // ZR-WB4
        let job = Rc::new(Job {
            shard: self.clone(),
            in_flight: Cell::default(),
            outcome: Cell::default(),
            brought: Cell::default(),
            spare: RefCell::default(),
        });
        let mut walk = Walk::new(which.clone(), self.slots.borrow().len());
        self.counters.done.set(0);
        self.counters.to_do.set(walk.slots());
        if self.persist.is_some() {
            let found = walk.all(self, backing).await;
            return self.evict(found).await;
        }
        job.work(&mut walk).await;
        job.landed(0).await;
        self.counters.done.set(self.counters.to_do.get());
        let outcome = job.outcome.get();
        Outcome { pages: outcome.pages.saturating_sub(job.brought.get()), ..outcome }
    }
}

impl Walk {
    fn new(which: Which, slots: u32) -> Walk {
        let (mut runs, left) = (which.runs(slots), which.max_pages);
        // A shard of a small device may have no slots.
        runs.retain(|run| !run.is_empty());
        let at = (0, runs.first().map_or(0, |run| run.start));
        Walk {
            which,
            runs,
            at,
            looked_at: 0,
            found: VecDeque::new(),
            again: VecDeque::new(),
            brought: BTreeSet::new(),
            bytes: 0,
            left,
        }
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

    /// Bytes that a slot takes on the device, when it is one to be written.
    fn takes(&self, shard: &Shard, backing: &Backing, nth: u32) -> Option<usize> {
        let slot = shard.slot(nth);
        let free = slot.is_resident() && !slot.has(Flags::PICKED);
        let wanted = || match self.again.front() {
            Some(first) if *first == nth => true,
            Some(_) | None => !self.brought.contains(&nth) && self.which.takes(nth, slot),
        };
        (free && wanted()).then(|| backing.bytes_of(slot.size()))
    }

    /// The candidate to write next.
    fn front(&self) -> Option<u32> {
        self.again.front().or(self.found.front()).copied()
    }

    /// Looks for candidates until they fill `blocks`.
    async fn gather(&mut self, shard: &Shard, backing: &Backing, blocks: u32) {
        while self.bytes < blocks as usize * PAGE && self.left > 0 {
            let Some(nth) = self.next() else { return };
            if let Some(bytes) = self.takes(shard, backing, nth) {
                self.found.push_back(nth);
                self.bytes += bytes;
                self.left -= 1;
            }
            if self.looked_at.is_multiple_of(WALK_RUN) {
                shard.counters.done.set(u64::from(self.looked_at));
                yield_now().await;
                if shard.shared.cancel.load(Relaxed) {
                    return;
                }
            }
        }
        shard.counters.done.set(u64::from(self.looked_at));
    }

    /// All candidates.
    async fn all(&mut self, shard: &Shard, backing: &Backing) -> Vec<u32> {
        let mut all = Vec::new();
        loop {
            self.gather(shard, backing, 256).await;
            if self.found.is_empty() {
                return all;
            }
            all.extend(self.found.drain(..));
            self.bytes = 0;
        }
    }

    /// Counts the candidates that are left.
    async fn count(&mut self, shard: &Shard, backing: &Backing) -> u64 {
        let mut count = 0;
        loop {
            self.gather(shard, backing, 256).await;
            if self.found.is_empty() {
                return count;
            }
            count += self.found.len() as u64;
            self.found.clear();
            self.bytes = 0;
        }
    }

    /// The front is done with; whether it was asked for.
    fn pop(&mut self, bytes: usize) -> bool {
        if self.again.pop_front().is_some() {
            self.bytes = self.bytes.saturating_sub(bytes);
            return false;
        }
        self.found.pop_front();
        // What was found may be of another size by now.
        self.bytes = if self.found.is_empty() { 0 } else { self.bytes.saturating_sub(bytes) };
        true
    }
}

impl Job {
    fn backing(&self) -> &Backing {
        self.shard.backing.as_ref().expect("a job is made only where there is one")
    }

    fn has(&self, mutation: Mutation) -> bool {
        self.backing().space().has(mutation)
    }

    fn note(&self, f: impl FnOnce(&mut Outcome)) {
        let mut outcome = self.outcome.get();
        f(&mut outcome);
        self.outcome.set(outcome);
    }

    /// Waits until at most so many writes are in flight.
    async fn landed(&self, at_most: u32) {
        self.backing().changed.wait_for(|| self.in_flight.get() <= at_most).await;
    }

    async fn work(self: &Rc<Self>, walk: &mut Walk) {
        let (shard, backing) = (&*self.shard, self.backing());
        let flights = TaskPool::new(INFLIGHT_MAX, land);
        let mut filled = 0;
        loop {
            let pages = backing.batch_blocks(shard.shared.batch_pages.load(Relaxed));
            walk.gather(shard, backing, pages).await;
            let Some(first) = walk.front() else { return };
            if shard.shared.cancel.load(Relaxed) {
                return;
            }
            let inflight = shard.shared.inflight.load(Relaxed).clamp(1, INFLIGHT_MAX as u32);
            self.landed(inflight - 1).await;
            let blocks = u32::try_from(walk.bytes.div_ceil(PAGE)).unwrap_or(pages).clamp(1, pages);
            let least = self.least(first).min(pages);
            let (run, granted) = match self.room(blocks.max(least), least).await {
                Ok(room) => room,
                Err(Short::Space) if self.bring_back(walk).await => continue,
                Err(why) => {
                    let none = backing.space().blocks().free() == 0;
                    self.note(|o| match why {
                        Short::Limit => o.limit_reached = true,
                        Short::Space => o.no_space = true,
                    });
                    if why == Short::Limit || none {
                        return self.give_up(walk).await;
                    }
                    // It is just this page for which there is no room.
                    self.pop(walk, backing.bytes_of(shard.slot(first).size()));
                    continue;
                }
            };
            let mut batch = Batch::new(backing, &run, self.spare.borrow_mut().pop());
            while let Some(nth) = walk.front() {
                if let Some(soon) = walk.found.get(PREFETCH) {
                    shard.prefetch(*soon);
                }
                let added = match walk.takes(shard, backing, nth) {
                    Some(_) => batch.add(shard, nth),
                    None => Added::Gone,
                };
                match added {
                    Added::Full => break,
                    Added::Gone => drop(walk.pop(PAGE)),
                    Added::Yes(bytes) => self.pop(walk, bytes),
                    Added::Damaged(status) => {
                        self.failed(nth, status, "its object in memory is damaged");
                        self.pop(walk, PAGE);
                    }
                }
                filled += 1;
                if filled % FILL_RUN == 0 {
                    yield_now().await;
                }
            }
            if let Some(nth) = walk.front()
                && batch.is_empty()
                && granted < self.least(nth).min(pages)
            {
                // A page that what was granted does not hold.
                self.note(|o| o.limit_reached = true);
                self.pop(walk, backing.bytes_of(shard.slot(nth).size()));
            }
            self.send(&flights, batch, run, granted);
        }
    }

    /// Blocks that the page of a slot needs at least.
    fn least(&self, nth: u32) -> u32 {
        self.backing().blocks_of(self.shard.slot(nth).size())
    }

    /// The front is done with.
    fn pop(&self, walk: &mut Walk, bytes: usize) {
        let asked_for = walk.pop(bytes);
        self.note(|o| o.candidates += u64::from(asked_for));
    }

    /// Nothing more can be written: counts what could have been.
    async fn give_up(&self, walk: &mut Walk) {
        let rest = walk.found.len() as u64;
        walk.found.clear();
        walk.again.clear();
        walk.bytes = 0;
        let rest = rest + walk.count(&self.shard, self.backing()).await;
        self.note(|o| o.candidates += rest);
    }

    /// A run of `least` to `blocks` blocks, and what the budget has granted, which is at least as
    /// much. When the budget grants less than `least`, so many.
    async fn room(&self, blocks: u32, least: u32) -> Result<(Range<u32>, u32), Short> {
        let budget = &self.shard.shared.budget;
        let mut granted = budget.take(u64::from(blocks));
        while granted == 0 {
            // What others hold may be refunded, and the limit is exact.
            self.landed(0).await;
            let held = budget.held();
            granted = budget.take(u64::from(blocks));
            if granted == 0 && held == 0 {
                return Err(Short::Limit);
            }
            if granted == 0 {
                reactor::sleep(block::Nanos(100_000)).await;
            }
        }
        let granted = u32::try_from(granted).expect("at most what was asked for");
        let space = self.backing().space();
        let least = least.min(granted);
        let mut run = space.take_run(granted, least).await;
        if run.is_none() {
            // What is in flight may come free.
            self.landed(0).await;
            run = space.take_run(granted, least).await;
        }
        let Some(run) = run else {
            budget.refund(u64::from(granted));
            return Err(Short::Space);
        };
        Ok((run, granted))
    }

    fn failed(&self, nth: u32, status: Status, why: &str) {
        let slot = self.shard.global(nth);
        self.note(|o| o.error = first_of(o.error, Some((slot, status))));
        self.shard.note_error(format!("slot {slot}: writeback: {why}"));
    }

    /// Writes a batch to the front of its run; what it does not fill is given back.
    fn send(
        self: &Rc<Self>,
        flights: &TaskPool<Flight>,
        batch: Batch,
        run: Range<u32>,
        granted: u32,
    ) {
        let (backing, budget) = (self.backing(), &self.shard.shared.budget);
        let full = batch.finish();
        let blocks = full.blocks;
        let used = run.start..run.start + blocks;
        backing.space().give_back(used.end..run.end);
        budget.refund(u64::from(granted - blocks)); // ZR-WB2
        if blocks == 0 {
            return self.spare.borrow_mut().push(full.pages);
        }
        let at = backing.space().sector(used.start);
        let bufs = full.buf.slice(0..blocks as usize * PAGE).into();
        let device = backing.space().device();
        let write = write(device, BioFlags::BACKGROUND, Class::Background, at, bufs);
        self.in_flight.set(self.in_flight.get() + 1);
        let (job, pages, object_bytes) = (self.clone(), full.pages, full.object_bytes);
        flights.push(Flight { job, write, _buf: full.buf, run: used, pages, object_bytes });
    }

    /// The pages of a completed write are on the device; those that have not changed leave memory.
    fn settle(&self, flight: &Flight) {
        let (shard, backing) = (&self.shard, self.backing());
        let blocks = u64::from(flight.run.end - flight.run.start);
        shard.shared.budget.spend(blocks);
        shard.counters.bd_writes.add(blocks);
        shard.counters.bd_object_bytes.add(flight.object_bytes);
        let mut pages = 0;
        for page in &flight.pages {
            let slot = shard.slot(page.nth);
            let planted = self.has(Mutation::SettleChanged) && page.is_of(slot);
            if !slot.has(Flags::PICKED) && !planted {
                continue; // ZR-WB1
            }
            assert!(slot.is_resident() && page.is_of(slot), "{slot:?} was picked as {page:?}");
            shard.counters.bd_count.add(u64::from(backing.occupy(page.at, slot.size())));
            shard.settle(page.nth, page.at);
            pages += 1;
        }
        self.note(|o| {
            o.pages += pages;
            o.blocks += blocks;
        });
    }

    /// A write has failed: its pages stay in memory.
    fn stay(&self, flight: &Flight, status: Status) {
        let shard = &self.shard;
        let blocks = u64::from(flight.run.end - flight.run.start);
        if self.has(Mutation::KeepGrant) {
            shard.shared.budget.spend(blocks);
        } else {
            shard.shared.budget.refund(blocks); // ZR-WB2
        }
        for page in &flight.pages {
            shard.clear_flags(page.nth, Flags::PICKED);
        }
        let block = self.backing().space().block_of_device(flight.run.start);
        self.failed(flight.pages[0].nth, status, &format!("write at block {block}: {status}"));
    }
}

/// Waits for a batch, and sees to its pages and blocks.
async fn land(mut flight: Flight) {
    let done = (&mut flight.write).await;
    let job = flight.job.clone();
    match done {
        Ok(()) => job.settle(&flight),
        Err(_) if job.has(Mutation::SettleFailed) => job.settle(&flight),
        Err(status) => job.stay(&flight, status),
    }
    if !job.has(Mutation::LeakBlocks) {
        job.backing().retire_unused(flight.run.clone()); // ZR-WB3
    }
    flight.pages.clear();
    job.spare.borrow_mut().push(flight.pages);
    job.in_flight.set(job.in_flight.get() - 1);
    job.backing().changed.wake_all();
}
