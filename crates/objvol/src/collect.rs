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
//!   What no list has yet gets one: soon where it is much, and else once nobody writes; what an
//!   epoch before has left, too.
//! - OV-G5 What can't be read is left as it is, and everything else is collected: a damaged segment
//!   counts neither as garbage to collect nor against OV-G4.
use std::collections::{BTreeMap, BTreeSet};
use std::rc::Rc;

use block::{Nanos, Status};
use format::objvol::{CHECKPOINTS, Place, SECTOR, SEGMENTS, place_name};

use crate::config::OpenOptions;
use crate::join::{Pending, join_all};
use crate::log::{SegmentUse, StoredExtent};
use crate::map::Extent;
use crate::planted::Fault;
use crate::read::Fetched;
use crate::shared::{GarbageList, LOOK_EVERY, Shared};

/// How often the housekeeping task looks for work.
const HOUSEKEEPING_EVERY: Nanos = Nanos::from_secs(1);
/// Segments that are collected in one round. Chosen: at most 64 MiB are read into memory.
const VICTIMS_MAX: usize = 4;
/// A segment with a larger share of live data, in thousandths, is not worth its move.
const SHARE_MAX: u64 = 900;
/// Rounds until the next checkpoint. Chosen: a quarter of the segments between two checkpoints.
const ROUNDS_MAX: u32 = 16;

/// Segments that are deleted at once. Chosen: 640 a second at 50 ms a request, more than are
/// written.
const DELETIONS_AT_ONCE: usize = 32;

/// A checkpoint waits at most so many times as long as is asked for. Chosen: the heads of 4096
/// segments, which an opening then reads, take 4 s at 50 ms a request.
const EVERY_MOST: u64 = 16;

/// So many full segments of garbage in no list are worth a checkpoint. Chosen: one PUT for eight.
const UNLISTED_SEGMENTS: u64 = 8;
/// Turns without a write after which less is worth one, too. Chosen: half a minute; who writes a
/// block now and then does not pay a checkpoint for each.
const IDLE_TURNS: u32 = 30;

/// A pause of the housekeeping task while writers wait for it.
const HOUSEKEEPING_AGAIN: Nanos = Nanos::from_millis(10);
/// Writers begin to wait at this share of the live share that `gc_threshold` wants, and go on at
/// the second; percent. Chosen: space for two to three times the data, and one wait for a tenth of
/// them. So a wait is seldom, and not for each segment.
const PACED: [u64; 2] = [50, 60];
/// Segments with live data up to which nobody waits.
const UNPACED_SEGMENTS: usize = 32;

/// Cost-benefit: the space that a collection frees, times the age of what it moves, for each byte
/// that it moves. What has not been overwritten for long is cold, and the space stays free for
/// long; what is young will be overwritten by itself. `age` is the number of segments with live
/// data that are not older (decision 0045).
fn worth(segment: &SegmentUse, age: u64) -> u64 {
    let share = segment.share_per_mille();
    (1000 - share) * age * 1000 / share.max(1)
}

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
        // The gathered segment at the last turn.
        let mut before = 0;
        // Something was collected that no checkpoint knows.
        let mut has_collected = false;
        let mut idle_turns = 0u32;
        loop {
            let is_behind = self.is_collection_behind.get();
            let pause = if is_behind { HOUSEKEEPING_AGAIN } else { HOUSEKEEPING_EVERY };
            if !self.pause(pause).await {
                return;
            }
            let mut has_moved = false;
            for _ in 0..ROUNDS_MAX {
                // An error is that of a fence.
                if self.is_closing.get() || !self.collect().await.unwrap_or(false) {
                    break;
                }
                has_moved = true;
                self.pace_writers();
            }
            if has_moved {
                self.close_if_room();
            }
            has_collected |= has_moved;
            let next = self.log.borrow().next();
            let is_idle = std::mem::replace(&mut before, next) == next;
            idle_turns = if is_idle { idle_turns.saturating_add(1) } else { 0 };
            if self.is_checkpoint_due(has_collected, idle_turns) {
                if self.log.borrow().next() == 1 {
                    self.log.borrow_mut().gather_nothing(); // OV-K2
                }
                // An error is that of a fence.
                let _ = self.checkpoint().await;
                has_collected = false;
                before = self.log.borrow().next();
            }
            // OV-G4
            if !has_moved && self.victims().is_empty() {
                self.release_writers();
            }
            self.delete_garbage().await;
        }
    }

    /// Whether to write a checkpoint: it is wanted because something was collected, the space of
    /// which it frees, or because there is garbage in no list, or because an opening would have to
    /// read many segments. Only what it includes can be collected, so it is due at once while
    /// writers wait for that. Else it waits until it is small beside what was written.
    fn is_checkpoint_due(&self, has_collected: bool, idle_turns: u32) -> bool {
        if self.is_collection_behind.get() {
            return true;
        }
        let OpenOptions { checkpoint_every, checkpoint_worth, .. } = self.options;
        let (log, last) = (self.log.borrow(), self.checkpointed.get());
        let behind = log.next() - 1 - last;
        let is_idle = idle_turns > 0;
        let is_wanted = has_collected || behind >= checkpoint_every || self.has_garbage(idle_turns);
        let is_worth =
            || log.bytes_after(last) >= checkpoint_worth.saturating_mul(log.image_bytes());
        let is_long = behind >= checkpoint_every.saturating_mul(EVERY_MOST);
        is_wanted && (is_idle || is_long || is_worth())
    }

    /// Whether what is in no list is worth a checkpoint (OV-G4).
    fn has_garbage(&self, idle_turns: u32) -> bool {
        let unlisted = match self.options.gc_threshold {
            0 => 0,
            _ => self.log.borrow().unlisted_garbage(self.checkpointed.get()),
        };
        let much = UNLISTED_SEGMENTS * u64::from(self.manifest.segment_bytes);
        unlisted >= much || (unlisted > 0 && idle_turns >= IDLE_TURNS)
    }

    /// The readable segments with live data (OV-G5), their live sectors and all of their sectors.
    fn live_uses(&self) -> (Vec<SegmentUse>, u64, u64) {
        let mut uses = self.log.borrow().uses();
        let unreadable = self.unreadable.borrow();
        uses.retain(|segment| segment.live > 0 && !unreadable.places.contains(&segment.place));
        let sum = |of: fn(&SegmentUse) -> u32| uses.iter().map(|s| u64::from(of(s))).sum::<u64>();
        let (live, all) = (sum(|segment| segment.live), sum(|segment| segment.sectors));
        (uses, live, all)
    }

    /// OV-G4: measures what is live, and has writers wait or go on.
    pub(crate) fn pace_writers(&self) {
        let (uses, live, all) = self.live_uses();
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

    /// Segments worth collecting, best first: none while enough of all segments is live. Only those
    /// that a checkpoint includes: younger ones are still being overwritten. Segments without live
    /// data are as good as deleted.
    fn victims(&self) -> Vec<SegmentUse> {
        let last = Place::new(self.epoch(), self.checkpointed.get());
        let (mut uses, live, all) = self.live_uses();
        if live * 100 >= all * u64::from(self.options.gc_threshold) {
            return Vec::new();
        }
        uses.sort_by_key(|segment| segment.place);
        let younger = (0..uses.len() as u64).rev();
        let mut ranked: Vec<(u64, SegmentUse)> = uses
            .into_iter()
            .zip(younger)
            .filter(|(segment, _)| segment.place <= last && segment.share_per_mille() < SHARE_MAX)
            .map(|(segment, younger)| (worth(&segment, younger + 1), segment))
            .collect();
        ranked.sort_by_key(|(worth, _)| std::cmp::Reverse(*worth));
        ranked.into_iter().map(|(_, segment)| segment).take(VICTIMS_MAX).collect()
    }

    /// Ends the gathered segment, unless the window is full.
    fn close_if_room(self: &Rc<Self>) {
        if self.log.borrow().may_close(self.manifest.window) {
            self.close_segment();
        }
    }

    /// Moves the live data of some segments. Whether there were any.
    async fn collect(self: &Rc<Self>) -> Result<bool, Status> {
        let victims = self.victims();
        if victims.is_empty() {
            return Ok(false);
        }
        let ids: BTreeSet<_> = victims.iter().map(|segment| segment.id).collect();
        let runs: Vec<(u64, Extent, StoredExtent, u32)> = {
            let log = self.log.borrow();
            let run = |(start, extent): (u64, Extent)| {
                let stored = log.stored(&extent);
                (start, extent, stored, stored.at + u32::from(extent.skip))
            };
            log.runs_in(&ids).into_iter().map(run).collect()
        };
        let fetched = self.fetch_readable(runs.iter().map(|(_, _, stored, _)| *stored)).await?;
        // Cold data have segments of their own, as far as that costs few requests (decision 0045).
        if !self.log.borrow().gathers_moved() {
            self.close_if_room();
        }
        for (start, extent, stored, from_at) in runs {
            let Some(data) = fetched.get(&stored) else { continue }; // OV-G5
            let bytes = usize::from(extent.sectors) * SECTOR;
            self.wait_for_room(bytes).await?;
            let skip = usize::from(extent.skip) * SECTOR;
            let mut log = self.log.borrow_mut();
            data.read(|data| {
                log.move_data(start, &data[skip..skip + bytes], extent.segment, from_at)
            });
        }
        Ok(true)
    }

    /// The data of these extents, but for those of segments of which something can't be read.
    async fn fetch_readable(
        &self,
        wanted: impl Iterator<Item = StoredExtent>,
    ) -> Result<Fetched, Status> {
        let mut by_segment: BTreeMap<Place, Vec<StoredExtent>> = BTreeMap::new();
        wanted.for_each(|stored| by_segment.entry(stored.place).or_default().push(stored));
        let fetch = |wanted: &Vec<StoredExtent>| -> Pending<'_, _> {
            let (requests, wanted) = (&self.requests, wanted.clone());
            Box::pin(async move { requests.fetch(&wanted).await })
        };
        let outcomes = join_all(by_segment.values().map(fetch).collect()).await;
        let mut fetched = Fetched::new();
        for (place, outcome) in by_segment.keys().zip(outcomes) {
            match outcome {
                Ok(Some(data)) => fetched.extend(data),
                Ok(None) => self.skip_segment(*place, "it is missing").await?,
                Err(status) => self.skip_segment(*place, &status.to_string()).await?,
            }
        }
        Ok(fetched)
    }

    /// OV-G5: the segment can't be read; it is left alone as long as the volume is open.
    async fn skip_segment(&self, place: Place, why: &str) -> Result<(), Status> {
        // Whoever has taken the volume over may have deleted it.
        if !self.look().await {
            return Err(Status::Stale);
        }
        if !self.options.planted.is(Fault::StopAtDamage) {
            let mut unreadable = self.unreadable.borrow_mut();
            unreadable.places.insert(place);
            unreadable.met += 1;
            unreadable.last = format!("segment {place}: {why}");
        }
        self.changed.wake_all();
        Ok(())
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
        for places in list.checkpoints.chunks(DELETIONS_AT_ONCE) {
            if !self.delete_all(CHECKPOINTS, places).await {
                return;
            }
        }
        for places in list.segments.chunks(DELETIONS_AT_ONCE) {
            if !self.delete_all(SEGMENTS, places).await {
                return;
            }
            for place in places {
                self.log.borrow_mut().forget(*place);
                self.unreadable.borrow_mut().places.remove(place);
            }
        }
    }

    /// Whether all of them are deleted: a close gives up on a store that does not work.
    async fn delete_all(&self, folder: &str, places: &[Place]) -> bool {
        let delete = |place: &Place| -> Pending<'_, bool> {
            let name = place_name(folder, *place);
            Box::pin(async move { self.delete(&name).await })
        };
        let deleted = join_all(places.iter().map(delete).collect()).await;
        deleted.into_iter().all(|is_deleted| is_deleted)
    }

    async fn delete(&self, name: &str) -> bool {
        while let Err(denial) = self.requests.delete(name).await {
            if self.is_closing.get() {
                return false;
            }
            self.wait_out(denial).await;
        }
        true
    }
}
