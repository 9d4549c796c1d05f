// SPDX-License-Identifier: Apache-2.0 OR MIT
//! Writes that go around the cache: to the origin, whose flush is what makes them durable.
//!
//! ```text
//!   write ─┬─ the cache has to keep the block ─▶ the cache, as ever
//!          └─ else: lock the range ─▶ drop clean copies ─▶ commit ─▶ one origin write ─▶ unlock
//!
//!   FLUSH ─▶ commit ─▶ one origin flush, if a write has gone around since the last
//! ```
//!
//! Invariants
//! - WC-I4 A block is written around only while its range is locked, no entry of it is live, and
//!   the log knows of none: else a read, or recovery, would find the entry instead.
//! - WC-A1 A FLUSH that begins after a write around has completed ends after an origin flush that
//!   began after it. Nothing else holds such data: when a flush of the origin fails meanwhile they
//!   may be gone, and the cache fails stop (WC-I8). A write that is in flight then ends in an
//!   error, and nothing was promised.
//!
//! Cost of a write around: one write of the origin; a commit before it if the cache has a clean
//! copy, or a commit is under way.
use std::cell::Cell;
use std::ops::Range;
use std::rc::{Rc, Weak};

use block::{Bufs, Class, Flags, Nanos, Sector, Status};

use crate::cache::Cache;
use crate::config::Mutation;
use crate::map::State;
use crate::media::CHANGES_AT_ONCE_MAX;

/// Writes around, counted.
#[derive(Default)]
pub(crate) struct WriteAround {
    /// Those that have ended well: what a failed one has left is nobody's promise.
    completed: Cell<u64>,
    /// How many of them are durable.
    durable: Cell<u64>,
    in_flight: Cell<u64>,
    last_ended: Cell<Option<Nanos>>,
    /// A task sleeps until writeback may go on.
    timer: Cell<bool>,
}

impl WriteAround {
    /// What an origin flush that begins now will cover.
    pub(crate) fn completed(&self) -> u64 {
        self.completed.get()
    }

    /// Whether any of them is not durable yet.
    pub(crate) fn is_pending(&self) -> bool {
        self.durable.get() < self.completed.get()
    }

    /// An origin flush that began when `completed` writes had completed has succeeded.
    pub(crate) fn flushed(&self, completed: u64) {
        self.durable.set(self.durable.get().max(completed));
    }

    /// How long ago the last write around ended; none if there was none.
    fn idle(&self) -> Option<Nanos> {
        match self.in_flight.get() {
            0 => self.last_ended.get().map(|at| Nanos(reactor::now().0 - at.0)),
            _ => Some(Nanos(0)),
        }
    }
}

impl Cache {
    /// Whether the cache takes nothing new and is written back until nothing is dirty.
    pub(crate) fn is_emptied(&self) -> bool {
        self.tuning().cleaner || self.is_drain_only()
    }

    /// Whether a write with these flags takes no new block of the cache. With `ordered` all do:
    /// what goes around can't be kept in order.
    pub(crate) fn goes_around(&self, flags: Flags) -> bool {
        let t = self.tuning();
        let around = self.is_emptied() || (t.metadata_only && !flags.contains(Flags::META));
        around && !self.config.ordered
    }

    /// Whether a write of this block has to go through the cache nevertheless: the origin does not
    /// hold what the cache holds. A clean copy is as good, but of no use to who empties the cache.
    fn keeps(&self, block: u64) -> bool {
        let Some(found) = self.slots.borrow().find(block) else { return false };
        match found.state {
            State::Dirty | State::Bad | State::Zero => !self.mutation(Mutation::AroundBesideLive),
            State::Clean => !self.is_emptied(),
            State::Free | State::Writing | State::Old | State::Limbo => {
                unreachable!("WC-M2: in the index")
            }
        }
    }

    /// From `range.start` on: the blocks of which the cache keeps none.
    fn uncached_part(&self, range: &Range<u64>) -> Range<u64> {
        let end = range.clone().find(|&b| self.keeps(b)).unwrap_or(range.end);
        range.start..end
    }

    /// Writes blocks: over those that the cache has to keep in the cache, the others around it.
    /// Returns whether any went through the cache.
    pub(crate) async fn write_around_or_over(
        &self,
        first: u64,
        bufs: &Bufs,
        class: Class,
        flags: Flags,
    ) -> Result<bool, Status> {
        let size = self.block_bytes();
        let end = first + (bufs.len_bytes() / size) as u64;
        let part_of = |range: &Range<u64>| {
            let at = |block: u64| usize::try_from(block - first).expect("within the bio") * size;
            bufs.slice(at(range.start)..at(range.end))
        };
        let mut through_cache = false;
        let mut at = first;
        while at < end {
            let around = self.uncached_part(&(at..end));
            if !around.is_empty() {
                let data = part_of(&around);
                at = self.write_around(around, Sector::ZERO, &data, class, flags).await?;
                continue;
            }
            let kept = (at..end).find(|&b| !self.keeps(b)).unwrap_or(end);
            let over = at..kept.max(at + 1);
            self.write_cached(over.start, &part_of(&over), class).await?;
            through_cache = true;
            at = over.end;
        }
        Ok(through_cache)
    }

    /// Writes sectors of one block, around the cache unless it has to keep the block. Returns
    /// whether they went around.
    pub(crate) async fn write_part_around(
        &self,
        block: u64,
        at: Sector,
        data: &Bufs,
        class: Class,
        flags: Flags,
    ) -> Result<bool, Status> {
        let range = block..block + 1;
        while !self.keeps(block) {
            let skip = at - self.sector_of(block);
            if self.write_around(range.clone(), skip, data, class, flags).await? == range.end {
                return Ok(true);
            }
        }
        self.merge_sectors(block, at, data, class).await?;
        Ok(false)
    }

    /// Writes `data` from `skip` after the beginning of `range` on. Returns the block up to which
    /// it has written: blocks may have come into the cache meanwhile.
    async fn write_around(
        &self,
        range: Range<u64>,
        skip: Sector,
        data: &Bufs,
        class: Class,
        flags: Flags,
    ) -> Result<u64, Status> {
        // WC-I4: no origin write of these blocks is in flight, and none begins.
        self.lock_origin(range.clone()).await?;
        let written = self.write_locked(&range, skip, data, class, flags).await;
        self.writeback.unlock(range);
        self.waits.wake_all();
        written
    }

    async fn write_locked(
        &self,
        range: &Range<u64>,
        skip: Sector,
        data: &Bufs,
        class: Class,
        flags: Flags,
    ) -> Result<u64, Status> {
        let part = self.uncached_part(range);
        self.retire_durably(&part).await?;
        // WC-I4. Nothing of a locked range becomes clean or leaves the cache, so that what is not
        // in it now is not in the log either.
        let part = self.uncached_part(&part);
        if part.is_empty() {
            return Ok(part.end);
        }
        let blocks = usize::try_from(part.end - part.start).expect("within the bio");
        let data = data.slice(0..data.len_bytes().min(blocks * self.block_bytes()));
        self.stats.writes_around.add(blocks as u64);
        let a = &self.around;
        a.in_flight.set(a.in_flight.get() + 1);
        let at = self.sector_of(part.start) + skip;
        let flush_errors = self.origin_flush_errors();
        let outcome = reactor::write(&*self.origin, flags, class, at, data).await;
        a.in_flight.set(a.in_flight.get() - 1);
        a.last_ended.set(Some(reactor::now()));
        outcome?; // Not sticky: the writer hears of it.
        // WC-RT2. A flush of the origin that failed meanwhile may have taken it along.
        if self.origin_flush_errors() != flush_errors
            && !self.mutation(Mutation::AroundBesideFlushError)
        {
            return Err(Status::Io);
        }
        a.completed.set(a.completed.get() + 1);
        Ok(part.end)
    }

    /// Drops clean copies, and waits until the log says that the cache has nothing of the range.
    async fn retire_durably(&self, range: &Range<u64>) -> Result<(), Status> {
        if range.is_empty() || self.mutation(Mutation::AroundBesideLive) {
            return Ok(());
        }
        let live = self.slots.borrow().live_in(range.clone());
        for part in live.chunks(CHANGES_AT_ONCE_MAX) {
            self.reserve_unlogged(part.len()).await;
            let mut slots = self.slots.borrow_mut();
            part.iter().for_each(|&(block, slot_ref)| {
                slots.drop_clean(block, slot_ref);
            });
        }
        let unlogged = || self.slots.borrow().any_needs_logging(range);
        if (self.commits.is_running() || unlogged()) && !self.mutation(Mutation::AroundBeforeDrop) {
            self.commit().await?;
        }
        Ok(())
    }

    /// WC-A1: makes durable what has gone around.
    ///
    /// Cost: one flush of the origin, shared, if there is anything.
    pub(crate) async fn flush_around(&self, class: Class) -> Result<(), Status> {
        if self.around.is_pending() && !self.mutation(Mutation::FlushWithoutOrigin) {
            self.flush_origin(class, self.origin_flush_errors()).await?;
        }
        Ok(())
    }

    /// Whether writeback leaves the origin to writes that have just gone there (`pause_writeback`).
    /// No writer of the cache is slowed for that.
    pub(crate) fn is_paused(&self) -> bool {
        let pause = self.tuning().pause_writeback;
        let slowed = || u64::from(self.free_blocks()) < self.pacer.borrow().start();
        self.around.idle().is_some_and(|idle| idle < pause) && !slowed()
    }

    /// Sees to it that somebody looks again when the pause is over.
    pub(crate) fn time_pause(self: &Rc<Cache>) {
        let paused = self.is_paused() && !self.stopping.get();
        if paused && !self.around.timer.replace(true) {
            reactor::spawn(Cache::pause_task(Rc::downgrade(self)));
        }
    }

    /// A task while there is a pause. Asleep it does not keep the cache, and suspend does not wait
    /// for it.
    async fn pause_task(weak: Weak<Cache>) {
        while let Some(cache) = weak.upgrade() {
            if !cache.is_paused() || cache.stopping.get() || cache.health().is_err() {
                cache.around.timer.set(false);
                cache.writeback.recheck();
                cache.waits.wake_all();
                return;
            }
            let idle = cache.around.idle().unwrap_or_default();
            let left = Nanos(cache.tuning().pause_writeback.0.saturating_sub(idle.0).max(1));
            drop(cache);
            reactor::sleep(left).await;
        }
    }
}
