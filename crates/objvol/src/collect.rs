// SPDX-License-Identifier: Apache-2.0 OR MIT
//! Garbage collection: live data of segments that are mostly garbage are moved to the end of the
//! log, and segments without live data are deleted.
//!
//! ```text
//!   mostly garbage ─ read, checked ─▶ moved records in the gathered segment
//!   no live sector in a durable checkpoint ─ grace time ─ look: own epoch is newest ─▶ deleted
//! ```
//!
//! Invariants
//! - OV-G1 A segment is garbage if the last durable checkpoint has nothing of it, never because the
//!   map in memory has not: what made it garbage in memory may be lost.
//! - OV-G2 Garbage is deleted only by a list in a durable checkpoint, after the grace time, and
//!   after a look that this epoch is the newest.
//! - OV-G3 Seals and manifests are never deleted, and no name at or behind a seal is used again.
//! - OV-G4 Garbage is bounded: while less than half of `gc_threshold` of the segments with live
//!   data is live, writers wait for its collection, unless there is nothing that it could collect.
//!   What has no live data any more waits for its grace time only.
use std::collections::BTreeSet;
use std::rc::Rc;

use block::{Nanos, Status};
use format::objvol::{CHECKPOINTS, Place, SECTOR, SEGMENTS, place_name};

use crate::log::{SegmentUse, StoredExtent};
use crate::map::Extent;
use crate::planted::Fault;
use crate::shared::{GarbageList, LOOK_EVERY, Shared};

/// How often the housekeeping task looks for work.
const HOUSEKEEPING_EVERY: Nanos = Nanos::from_secs(1);
/// Segments that are collected in one round. Chosen: at most 64 MiB are read into memory.
const VICTIMS_MAX: usize = 4;
/// A segment with a larger share of live data, in thousandths, is not worth its move.
const SHARE_MAX: u64 = 900;
/// Rounds until the next checkpoint. Chosen: a quarter of the segments between two checkpoints.
const ROUNDS_MAX: u32 = 16;

/// A pause of the housekeeping task while writers wait for it.
const HOUSEKEEPING_AGAIN: Nanos = Nanos::from_millis(10);
/// Writers begin to wait at this share of the live share that `gc_threshold` wants, and go on at
/// the second; percent. Chosen: space for two to three times the data, and one wait for a tenth of
/// them. So a wait is seldom, and not for each segment.
const PACED: [u64; 2] = [50, 60];
/// Segments with live data up to which nobody waits.
const UNPACED_SEGMENTS: usize = 32;

impl Shared {
    /// Starts the tasks of an opened volume.
    pub(crate) fn start(self: &Rc<Self>) {
        self.spawn(self.clone().watch());
        self.spawn(self.clone().keep_house());
    }

    /// Looks whether the volume was taken over, and sends what has been gathered for long: so the
    /// store alone is a disk of some seconds ago.
    async fn watch(self: Rc<Self>) {
        let mut gathering = 0;
        while self.pause(LOOK_EVERY).await {
            self.look().await;
            let next = {
                let log = self.log.borrow();
                if log.is_gathering() { log.next() } else { 0 }
            };
            if next > 0 && next == gathering {
                let _ = self.close_gathered().await;
            }
            gathering = next;
        }
    }

    async fn keep_house(self: Rc<Self>) {
        loop {
            let is_behind = self.is_collection_behind.get();
            let pause = if is_behind { HOUSEKEEPING_AGAIN } else { HOUSEKEEPING_EVERY };
            if !self.pause(pause).await {
                return;
            }
            let has_work = !self.victims().is_empty();
            let mut has_moved = false;
            for _ in 0..ROUNDS_MAX {
                // An error is that of a fence, or damage that readers find, too.
                if self.is_closing.get() || !self.collect().await.unwrap_or(false) {
                    break;
                }
                has_moved = true;
                self.pace_writers();
            }
            let behind = self.log.borrow().next() - 1 - self.checkpointed.get();
            // Segments can be collected once a checkpoint includes them.
            let is_due = has_moved || behind >= self.options.checkpoint_every;
            if is_due || self.is_collection_behind.get() {
                // An error is that of a fence.
                let _ = self.checkpoint().await;
            }
            // OV-G4. Work that moves nothing is on damaged segments.
            if !has_moved && (has_work || self.victims().is_empty()) {
                self.release_writers();
            }
            self.delete_garbage().await;
        }
    }

    /// OV-G4: measures what is live, and has writers wait or go on.
    pub(crate) fn pace_writers(&self) {
        let mut uses = self.log.borrow().uses();
        uses.retain(|segment| segment.live > 0);
        let sum = |of: fn(&SegmentUse) -> u32| uses.iter().map(|s| u64::from(of(s))).sum::<u64>();
        let (live, all) = (sum(|segment| segment.live), sum(|segment| segment.sectors));
        let [begin, end] = PACED;
        let share = if self.is_collection_behind.get() { end } else { begin };
        let least = all * u64::from(self.options.gc_threshold) * share;
        let is_behind = uses.len() > UNPACED_SEGMENTS && live * 10_000 < least;
        if !is_behind {
            self.release_writers();
        } else if !self.options.planted.is(Fault::UnpacedWriters) {
            self.is_collection_behind.set(true);
        }
    }

    fn release_writers(&self) {
        if self.is_collection_behind.replace(false) {
            self.changed.wake_all();
        }
    }

    /// Segments worth collecting, those with the smallest share of live data first: none while
    /// enough of all segments is live. Only those that a checkpoint includes: younger ones are
    /// still being overwritten. Segments without live data are as good as deleted.
    fn victims(&self) -> Vec<SegmentUse> {
        let last = Place::new(self.epoch(), self.checkpointed.get());
        let mut uses = self.log.borrow().uses();
        uses.retain(|segment| segment.live > 0);
        let sum = |of: fn(&SegmentUse) -> u32| uses.iter().map(|s| u64::from(of(s))).sum::<u64>();
        let (live, all) = (sum(|segment| segment.live), sum(|segment| segment.sectors));
        if live * 100 >= all * u64::from(self.options.gc_threshold) {
            return Vec::new();
        }
        uses.retain(|segment| segment.place <= last && segment.share_per_mille() < SHARE_MAX);
        uses.sort_by_key(SegmentUse::share_per_mille);
        uses.truncate(VICTIMS_MAX);
        uses
    }

    /// Moves the live data of some segments. Whether there were any.
    async fn collect(self: &Rc<Self>) -> Result<bool, Status> {
        let ids: BTreeSet<_> = self.victims().iter().map(|segment| segment.id).collect();
        if ids.is_empty() {
            return Ok(false);
        }
        let runs: Vec<(u64, Extent, StoredExtent, u32)> = {
            let log = self.log.borrow();
            let run = |(start, extent): (u64, Extent)| {
                let stored = log.stored(&extent);
                (start, extent, stored, stored.at + u32::from(extent.skip))
            };
            log.runs_in(&ids).into_iter().map(run).collect()
        };
        let wanted: Vec<StoredExtent> = runs.iter().map(|(_, _, stored, _)| *stored).collect();
        let Some(fetched) = self.fetch(&wanted).await? else { return Ok(false) };
        for (start, extent, stored, from_at) in runs {
            let bytes = usize::from(extent.sectors) * SECTOR;
            self.wait_for_room(bytes).await?;
            let skip = usize::from(extent.skip) * SECTOR;
            let mut log = self.log.borrow_mut();
            fetched[&stored].read(|data| {
                log.move_data(start, &data[skip..skip + bytes], extent.segment, from_at)
            });
        }
        Ok(true)
    }

    /// Deletes the lists that are due (OV-G2).
    pub(crate) async fn delete_garbage(self: &Rc<Self>) {
        let is_due = |list: &GarbageList| list.due <= reactor::now();
        if !self.garbage.borrow().front().is_some_and(is_due) {
            return;
        }
        if !self.options.planted.is(Fault::DeleteUnlooked) && !self.look().await {
            return;
        }
        let Some(mut list) = self.garbage.borrow_mut().pop_front() else { return };
        if self.options.planted.is(Fault::GarbageByMemory) {
            let uses = self.log.borrow().uses();
            let dead = uses.iter().filter(|segment| segment.live == 0);
            list.segments = dead.map(|segment| segment.place).collect();
        }
        for place in list.checkpoints {
            self.delete(&place_name(CHECKPOINTS, place)).await;
        }
        for place in list.segments {
            self.delete(&place_name(SEGMENTS, place)).await;
            self.log.borrow_mut().forget(place);
        }
    }

    async fn delete(&self, name: &str) {
        while let Err(denial) = self.requests.delete(name).await {
            self.wait_out(denial).await;
            if self.is_closing.get() {
                return;
            }
        }
    }
}
