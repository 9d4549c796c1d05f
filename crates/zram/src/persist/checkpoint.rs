// SPDX-License-Identifier: Apache-2.0 OR MIT
//! Checkpoint: writes all images while units go on, so that the chain before it is not needed.
//!
//! ```text
//!  chain:  ... unit │ L ...... units meanwhile ...... │ written, flush │ superblock: (area, L)
//!  map:             └─ images 0..n, each as it stands ─┘
//! ```
//!
//! The map is fuzzy: each image is written with its state at that moment. This is right because
//! every image that changes after L is in a unit from L on, and a replay applies these units to the
//! map.
//!
//! When there is no place for a unit, only a checkpoint frees blocks. Then slots that have become
//! empty or same-filled, which need no block, go into its map directly, so that discards make room
//! on a full device.
//!
//! Invariants
//! - ZR-CK1 A superblock is written when the map, and every unit whose objects may be in it, is
//!   durable (ZR-PS4).
//! - ZR-CK2 One checkpoint runs at a time.
//!
//! Cost: 16 bytes a page and three flushes, once in `due_blocks` blocks of units.
use std::rc::Rc;

use block::Status;
use format::zram::{ChainStart, Checkpoint, MAP_ENTRIES, MapEntry, Superblock};
use reactor::{spawn, yield_now};

use super::chain::take_run;
use super::image::Image;
use super::media::{MapWriter, write_superblock};
use super::state::Persist;
use crate::part::Part;
use crate::planted::Fault;
use crate::slot::Flags;

/// Units of the chain at which a checkpoint is due take at least as many blocks: 4 MiB.
const DUE_BLOCKS_MIN: u32 = 1024;
/// Slots whose images are visited between two yields.
const SLOTS_AT_ONCE: u32 = 16384;

impl Persist {
    /// Blocks of the chain at which a checkpoint is due: four times what it writes itself, but no
    /// more than a quarter of the data, which can't be reused before.
    fn due_blocks(&self) -> u32 {
        let data = self.geometry.data();
        let most = (data.end - data.start) / 4;
        self.geometry.map_units.saturating_mul(4).max(DUE_BLOCKS_MIN).min(most)
    }

    /// Whether the chain is so long that a checkpoint must shorten it first.
    pub(super) fn is_overdue(&self) -> bool {
        self.checkpointing.get() && self.chain.borrow().replay_blocks >= 2 * self.due_blocks()
    }
}

impl Part {
    /// Starts a checkpoint in the background when the chain has become long.
    pub(super) fn checkpoint_if_due(self: &Rc<Self>) {
        let persist = self.persist();
        let due = persist.chain.borrow().replay_blocks >= persist.due_blocks();
        if due && !persist.checkpointing.replace(true) {
            let part = self.clone();
            spawn(async move {
                part.checkpoint_in_turn().await;
            });
        }
    }

    /// Makes a checkpoint, after the running one if there is one.
    pub(crate) async fn checkpoint(&self) -> Result<(), Status> {
        let persist = self.persist();
        persist.changed.wait_for(|| !persist.checkpointing.get()).await;
        persist.health()?;
        persist.checkpointing.set(true);
        self.checkpoint_in_turn().await;
        persist.health()
    }

    async fn checkpoint_in_turn(&self) {
        let persist = self.persist();
        if let Err(status) = self.make_checkpoint().await {
            self.persist_failed("a checkpoint could not be written", status);
        }
        persist.absorbing.set(false);
        persist.checkpointing.set(false); // ZR-CK2
        persist.changed.wake_all();
    }

    /// Makes room for another unit; fails with `NoSpace` on a full device.
    pub(super) async fn make_room(&self, tidying: bool) -> Result<(), Status> {
        let persist = self.persist();
        for _ in 0..2 {
            if persist.chain.borrow().next.is_some() {
                return Ok(());
            }
            self.checkpoint().await?;
        }
        if !tidying && persist.chain.borrow().next.is_none() && persist.tidy.running.get() {
            persist.changed.wait_for(|| !persist.tidy.running.get()).await;
            self.checkpoint().await?;
        }
        match persist.chain.borrow().next {
            Some(_) => Ok(()),
            None => Err(Status::NoSpace),
        }
    }

    async fn make_checkpoint(&self) -> Result<(), Status> {
        let persist = self.persist();
        let start = persist.chain.borrow().end();
        let absorbed = if start.next == 0 { self.absorb() } else { Vec::new() };
        let old = persist.superblock.borrow().checkpoint;
        let area = if old.id == 0 { 0 } else { 1 - old.area };
        let mut checkpoint = Checkpoint { area, units: 0, id: old.id + 1 };
        if persist.is_planted(Fault::SuperblockBeforeData) {
            let slots = persist.images.borrow().len();
            let pages = (0..slots).filter(|nth| !persist.image(*nth).is_none()).count();
            checkpoint.units = u32::try_from(pages.div_ceil(MAP_ENTRIES)).expect("few units");
            self.put_superblock(checkpoint, start).await?;
        }
        checkpoint.units = self.dump(checkpoint).await?;
        let last = persist.chain.borrow().sequence - 1;
        self.flush_after(last).await?; // ZR-CK1
        self.put_superblock(checkpoint, start).await?;
        self.release_units(start.sequence);
        absorbed.into_iter().for_each(|image| self.unuse(image.blocks()));
        if start.next == 0 {
            self.reserve_next(checkpoint).await?;
        }
        Ok(())
    }

    /// Sets the images of dirty slots that need no block, for the map. Returns the objects that are
    /// superseded when the checkpoint is durable.
    fn absorb(&self) -> Vec<Image> {
        let persist = self.persist();
        let mut absorbed = Vec::new();
        let mut dirty = persist.dirty.borrow_mut();
        let mut images = persist.images.borrow_mut();
        let mut from = 0;
        while let Some(nth) = dirty.first(&(from..images.len())) {
            from = nth + 1;
            let slot = self.slot(nth);
            let image = if slot.is_empty() {
                Image::default()
            } else if slot.has(Flags::SAME) {
                Image::same(slot.place)
            } else {
                continue;
            };
            dirty.remove(nth);
            let old = images.set(nth, image);
            if old.is_page() {
                absorbed.push(old);
            }
            persist.absorbing.set(true);
        }
        absorbed
    }

    /// Reserves a place for the next unit among the freed blocks, if there are any.
    async fn reserve_next(&self, checkpoint: Checkpoint) -> Result<(), Status> {
        let persist = self.persist();
        let space = self.space();
        let mut run = take_run(space);
        if run.is_none() {
            // Released blocks are freed a little later.
            space.reclaimed().await;
            run = take_run(space);
        }
        let Some(run) = run else { return Ok(()) };
        let mut start = persist.chain.borrow().end();
        assert_eq!(start.next, 0, "units were built without a place");
        (start.next, start.next_end) = (run.start, run.end);
        self.put_superblock(checkpoint, start).await?;
        persist.chain.borrow_mut().next = Some(run);
        Ok(())
    }

    async fn put_superblock(
        &self,
        checkpoint: Checkpoint,
        chain: ChainStart,
    ) -> Result<(), Status> {
        let persist = self.persist();
        let space = self.space();
        let new = {
            let old = persist.superblock.borrow();
            Superblock { generation: old.generation + 1, checkpoint, chain, ..old.clone() }
        };
        let at = |block: u32| space.sector(block);
        write_superblock(space.device(), at, &new).await?;
        *persist.superblock.borrow_mut() = new;
        Ok(())
    }

    /// Writes all images to a checkpoint area. Returns the number of units.
    async fn dump(&self, checkpoint: Checkpoint) -> Result<u32, Status> {
        let persist = self.persist();
        let space = self.space();
        let mut map = {
            let superblock = persist.superblock.borrow();
            MapWriter::new(&superblock, checkpoint)
        };
        let slots = persist.images.borrow().len();
        let first = persist.geometry.map(checkpoint.area);
        let mut from = 0;
        while from < slots {
            let end = slots.min(from.saturating_add(SLOTS_AT_ONCE));
            let entries: Vec<MapEntry> = {
                let images = persist.images.borrow();
                (from..end).filter_map(|nth| images.get(nth).entry(nth)).collect()
            };
            map.push(&entries);
            map.write(space.device(), |unit| space.sector(first + unit), false).await?;
            from = end;
            yield_now().await;
        }
        map.write(space.device(), |unit| space.sector(first + unit), true).await?;
        Ok(map.units())
    }
}
