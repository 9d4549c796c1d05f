// SPDX-License-Identifier: Apache-2.0 OR MIT
//! Space: the free blocks of a region, and those that will be free soon.
//!
//! Nothing needs a freed block at once. So retired blocks are gathered for a while, sorted into
//! runs and discarded on the device, unless a task waits for blocks. This keeps discards few and
//! long, and out of the way of writers.
use std::cell::{Cell, RefCell, RefMut};
use std::ops::Range;
use std::rc::Rc;

use block::{BlockDevice, Class, Nanos, Planted, Sector, Status};
use reactor::{Generation, QuiesceCounter, WaitList, discard, sleep, spawn};
use smallvec::SmallVec;

use super::blocks::Blocks;
use crate::layout::{PAGE_SECTORS, Region};
use crate::planted::Fault;
use crate::slot::PAGE;

/// How long blocks are gathered before they are discarded, and the interval of looks whether a task
/// waits for them. Chosen: a burst of overwrites is one round, and no task waits long.
const GATHER: Nanos = Nanos(100_000_000);
const LOOK: Nanos = Nanos(5_000_000);
/// Discards in flight: they must not fill a disk's queue.
const DISCARDS_IN_FLIGHT: usize = 4;
/// Blocks of one discard: 256 MiB.
const DISCARD_BLOCKS_MAX: u32 = 1 << 16;

/// The blocks of a region.
pub(crate) struct Space {
    device: Rc<dyn BlockDevice>,
    region: Region,
    blocks: RefCell<Blocks>,
    reads: QuiesceCounter,
    /// Written once, not in use any more, not yet free.
    retired: RefCell<Vec<Range<u32>>>,
    /// The task that makes them free runs.
    reclaiming: Cell<bool>,
    /// How often blocks were freed.
    freed: Cell<u64>,
    /// Tasks that wait for blocks, or for the end of the reclaim.
    waiting: Cell<u32>,
    changed: WaitList,
    discards: Cell<bool>,
    granularity: u32,
    pub(super) planted: Cell<Planted<Fault>>,
}

/// While it exists, no block that was live when it was made is written.
pub(crate) struct Pin<'a>(&'a Space, Generation);

impl Drop for Pin<'_> {
    fn drop(&mut self) {
        if !block::crashing() {
            self.0.reads.leave(self.1);
            self.0.changed.wake_all();
        }
    }
}

impl Space {
    pub(crate) fn new(device: Rc<dyn BlockDevice>, region: Region) -> Space {
        let granularity = device.limits().discard_granularity_bytes;
        Space {
            device,
            region,
            blocks: RefCell::new(Blocks::new(region.blocks)),
            reads: QuiesceCounter::default(),
            retired: RefCell::default(),
            reclaiming: Cell::new(false),
            freed: Cell::new(0),
            waiting: Cell::new(0),
            changed: WaitList::new(),
            discards: Cell::new(granularity > 0),
            granularity: granularity.div_ceil(PAGE as u32).max(1),
            planted: Cell::default(),
        }
    }

    pub(crate) fn device(&self) -> &dyn BlockDevice {
        &*self.device
    }

    pub(crate) fn blocks(&self) -> RefMut<'_, Blocks> {
        self.blocks.borrow_mut()
    }

    /// Where a block of the region lies on the device.
    pub(crate) fn block_of_device(&self, block: u32) -> u64 {
        self.region.first + u64::from(block)
    }

    pub(crate) fn sector(&self, block: u32) -> Sector {
        Sector(self.block_of_device(block) * PAGE_SECTORS)
    }

    /// A read holds it from the look-up of a page until it has the data.
    pub(crate) fn pin(&self) -> Pin<'_> {
        Pin(self, self.reads.enter())
    }

    /// Whether a fault is planted.
    pub(crate) fn is_planted(&self, fault: Fault) -> bool {
        self.planted.get().is(fault)
    }

    /// Takes a run of `least` to `want` blocks; waits for blocks that will be free soon.
    pub(crate) async fn take_run(&self, want: u32, least: u32) -> Option<Range<u32>> {
        loop {
            let run = self.blocks().take(want);
            match run {
                Some(run) if run.end - run.start >= least => return Some(run),
                Some(short) => self.give_back(short),
                None => {}
            }
            if !self.reclaiming.get() {
                return None;
            }
            self.waiting.set(self.waiting.get() + 1);
            let freed = self.freed.get();
            let ready = || self.freed.get() != freed || !self.reclaiming.get();
            self.changed.wait_for(ready).await;
            self.waiting.set(self.waiting.get() - 1);
        }
    }

    /// Gives back blocks that were taken and not written.
    pub(crate) fn give_back(&self, run: Range<u32>) {
        if !run.is_empty() {
            self.blocks().give_back(run);
        }
    }

    /// Retires blocks that were written, or may have been, and are not in use any more. They are
    /// free when reads in flight have ended (ZR-BK1).
    pub(crate) fn retire(self: &Rc<Self>, run: Range<u32>) {
        let at_once = !self.reclaiming.get() && !self.discards.get() && self.reads.in_flight() == 0;
        if at_once || self.is_planted(Fault::ReuseDuringRead) {
            return self.give_back(run);
        }
        let mut retired = self.retired.borrow_mut();
        match retired.last_mut() {
            Some(last) if last.end == run.start => last.end = run.end,
            Some(_) | None => retired.push(run),
        }
        if !self.reclaiming.replace(true) {
            spawn(reclaim(self.clone()));
        }
    }

    /// Waits until no read and no discard is in flight.
    pub(crate) async fn quiesce(&self) {
        self.waiting.set(self.waiting.get() + 1);
        self.changed.wait_for(|| !self.reclaiming.get() && self.reads.in_flight() == 0).await;
        self.waiting.set(self.waiting.get() - 1);
    }

    /// The part of a run that a discard of this device can free.
    fn discardable(&self, run: &Range<u32>) -> Range<u32> {
        let unit = u64::from(self.granularity);
        let start = self.block_of_device(run.start).next_multiple_of(unit) - self.region.first;
        let end = self.block_of_device(run.end) / unit * unit;
        let end = end.saturating_sub(self.region.first);
        let within = |at: u64| u32::try_from(at).unwrap_or(u32::MAX).min(run.end);
        within(start)..within(end).max(within(start))
    }
}

/// Frees retired blocks until there are none.
async fn reclaim(space: Rc<Space>) {
    let mut runs = Vec::new();
    loop {
        let mut slept = Nanos::ZERO;
        while space.discards.get() && space.waiting.get() == 0 && slept < GATHER {
            sleep(LOOK).await;
            slept = slept + LOOK;
        }
        std::mem::swap(&mut runs, &mut *space.retired.borrow_mut());
        if runs.is_empty() {
            break;
        }
        merge(&mut runs);
        space.reads.quiesced().await; // ZR-BK1
        for some in runs.chunks(DISCARDS_IN_FLIGHT) {
            let late = space.is_planted(Fault::FreeBeforeDiscard);
            if late {
                some.iter().for_each(|run| space.give_back(run.clone()));
            }
            if space.discards.get() && space.waiting.get() == 0 {
                discard_all(&space, some).await;
            }
            if !late {
                some.iter().for_each(|run| space.give_back(run.clone()));
            }
            space.freed.set(space.freed.get() + 1);
            space.changed.wake_all();
        }
        runs.clear();
    }
    space.reclaiming.set(false);
    space.changed.wake_all();
}

/// Discards runs. A device that cannot discard gets no more discards.
async fn discard_all(space: &Space, runs: &[Range<u32>]) {
    let mut sent: SmallVec<[_; DISCARDS_IN_FLIGHT]> = SmallVec::new();
    for run in runs {
        let run = space.discardable(run);
        for start in run.clone().step_by(DISCARD_BLOCKS_MAX as usize) {
            let blocks = DISCARD_BLOCKS_MAX.min(run.end - start);
            let len = Sector(u64::from(blocks) * PAGE_SECTORS);
            sent.push(discard(space.device(), Class::Idle, space.sector(start), len));
        }
    }
    for one in sent {
        if one.await == Err(Status::NotSupported) {
            space.discards.set(false);
        }
    }
}

/// Sorts runs that do not overlap and joins neighbours.
fn merge(runs: &mut Vec<Range<u32>>) {
    runs.sort_unstable_by_key(|run| run.start);
    runs.dedup_by(|next, last| {
        let joins = last.end == next.start;
        if joins {
            last.end = next.end;
        }
        joins
    });
}

#[cfg(test)]
#[path = "space_tests.rs"]
mod tests;
