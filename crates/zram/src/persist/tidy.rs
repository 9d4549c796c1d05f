// SPDX-License-Identifier: Apache-2.0 OR MIT
//! Tidy: empties blocks with little in use, so that free space is in whole blocks.
//!
//! ```text
//!   stretch of blocks  │ a ░░░ b ░░░│░░░░░░│░░░ c ░░│░ d ░░░░░ e│    ░ superseded or free
//!                          └───────────── dirty again ─────┘
//!   unit               │ a │ b │ c │ d │ e │    pages in memory as any dirty page; others are
//!                                               read first
//! ```
//!
//! Starts by itself when an eighth of the data blocks or less is free, and when no two free blocks
//! are adjacent. It empties whole stretches, the emptiest first, and none that is more than three
//! quarters full, so that freed blocks are adjacent.
//!
//! Invariants
//! - ZR-TY1 The bytes of an object are moved unchanged, after a check, and only if its slot still
//!   names it.
//! - ZR-TY2 A slot names the moved object when that is durable; until then the old object stays
//!   (ZR-PS3).
//! - ZR-TY3 One tidying runs at a time; the last free blocks are kept for it.
use std::ops::Range;
use std::rc::Rc;

use block::{Buf, Class, Status};
use format::zram::Object;
use reactor::{BioFuture, spawn, yield_now};

use super::bits::Bits;
use super::chain::MovedObject;
use super::dirty_slots::DirtySlots;
use super::image::Image;
use super::state::Persist;
use super::write_units::UnitsFor;
use crate::pack::{BLOCK, verify};
use crate::part::Part;
use crate::slot::Flags;

/// Blocks that are emptied in one round, about.
const BLOCKS_AT_ONCE: usize = 512;
/// Stretches that the data blocks are divided into, and the length of one at most.
const STRETCHES: u32 = 32;
const STRETCH_BLOCKS_MAX: u32 = 128;
/// A stretch with more bytes in use, on average in a block, is left alone.
const WORTH_BYTES: u64 = 3072;
/// Slots whose images are visited between two yields.
const SLOTS_AT_ONCE: u32 = 16384;
/// Reads in flight.
const READS: usize = 16;
/// Units until the next try, after one that found no sparse blocks.
const REST_UNITS: u64 = 64;

impl Persist {
    /// Has a slot, which equals its image, written in a unit again.
    fn mark_for_tidy(&self, slot: u32) {
        self.dirty.borrow_mut().insert(slot);
        self.tidy.dirty.borrow_mut().insert(slot);
    }

    fn free_and_data(&self, free: u32) -> (u32, u32) {
        let data = self.geometry.data();
        (free, data.end - data.start)
    }

    /// Whether so few blocks are free that tidying is worth its cost.
    fn is_tight(&self, free: u32) -> bool {
        let (free, data) = self.free_and_data(free);
        free <= data / 8
    }

    /// Whether the free blocks are kept for tidying (ZR-TY3).
    pub(super) fn is_kept_for_tidying(&self, free: u32) -> bool {
        let (free, data) = self.free_and_data(free);
        self.tidy.running.get() && free <= data / 32
    }
}

impl Part {
    /// Starts tidying if it is due.
    pub(super) fn tidy_if_due(self: &Rc<Self>) {
        let persist = self.persist();
        let space = self.space();
        let rested = persist.chain.borrow().sequence >= persist.tidy.not_before.get();
        let due = rested && persist.is_tight(space.blocks().free());
        if due && !persist.tidy.running.replace(true) {
            let part = self.clone();
            spawn(async move {
                let persist = part.persist();
                let space = part.space();
                // Many blocks may be free soon.
                space.reclaimed().await;
                let is_tight = persist.is_tight(space.blocks().free());
                let emptied = if is_tight { part.tidy_blocks().await } else { Ok(1) };
                part.end_tidying(emptied);
            });
        }
    }

    fn end_tidying(&self, emptied: Result<usize, Status>) {
        let persist = self.persist();
        self.forget_moving();
        let rest = if emptied.is_ok_and(|blocks| blocks > 0) { 1 } else { REST_UNITS };
        persist.tidy.not_before.set(persist.chain.borrow().sequence + rest);
        persist.tidy.running.set(false);
        persist.changed.wake_all();
    }

    /// Makes room for a page that did not compress. Each try costs more than the one before; the
    /// last one fails with `NoSpace`.
    pub(super) async fn make_wide_room(
        self: &Rc<Self>,
        tries: &mut u32,
        tidying: bool,
    ) -> Result<(), Status> {
        let persist = self.persist();
        *tries += 1;
        match *tries {
            // Frees objects that were superseded lately.
            1 => self.sync().await?,
            // Frees units that only a replay needs.
            2 => self.checkpoint().await?,
            3 if !tidying => {
                if !persist.tidy.running.replace(true) {
                    let part = self.clone();
                    spawn(async move {
                        let emptied = part.tidy_blocks().await;
                        part.end_tidying(emptied);
                    });
                }
                persist.changed.wait_for(|| !persist.tidy.running.get()).await;
            }
            _ => return Err(Status::NoSpace),
        }
        let space = self.space();
        space.reclaimed().await;
        persist.health()
    }

    /// Tidies. Returns the number of blocks that were emptied.
    async fn tidy_blocks(self: &Rc<Self>) -> Result<usize, Status> {
        let persist = self.persist();
        // A checkpoint frees blocks that only a replay needs.
        let held = persist.chain.borrow().replay_blocks;
        let (_, data) = persist.free_and_data(0);
        if held > data / 16 {
            self.checkpoint().await?;
        }
        let (sparse, count) = self.sparse_blocks().await;
        if count == 0 {
            return Ok(0);
        }
        let mut slots = Vec::new();
        let mut todo = Vec::new();
        self.each_image(|nth, image| {
            let lies_in = image.blocks().any(|block| sparse.has(block));
            if lies_in && !persist.dirty.borrow().has(nth) {
                if self.slot(nth).is_resident() {
                    persist.mark_for_tidy(nth);
                    todo.push(nth);
                } else {
                    slots.push((nth, image));
                }
            }
        })
        .await;
        slots.sort_unstable_by_key(|(_, image)| image.address().0);
        for some in slots.chunks(READS) {
            self.read_objects(some, &mut todo).await;
            persist.health()?;
        }
        todo.sort_unstable();
        self.write_units(&mut DirtySlots::of_slots(&todo), UnitsFor::Tidy).await?;
        self.sync().await?;
        Ok(count)
    }

    /// Calls `f` with the image of every slot whose page is an object; yields in between.
    async fn each_image(&self, mut f: impl FnMut(u32, Image)) {
        let persist = self.persist();
        let slots = persist.images.borrow().len();
        for first in (0..slots).step_by(SLOTS_AT_ONCE as usize) {
            for nth in first..slots.min(first.saturating_add(SLOTS_AT_ONCE)) {
                let image = persist.image(nth);
                if image.is_page() {
                    f(nth, image);
                }
            }
            yield_now().await;
        }
    }

    /// The blocks that are worth emptying, and their number.
    async fn sparse_blocks(&self) -> (Bits, usize) {
        let persist = self.persist();
        let data = persist.geometry.data();
        let mut used = vec![0u16; data.end as usize];
        self.each_image(|_, image| {
            let mut left = image.bytes();
            let mut room = BLOCK - image.address().offset();
            for block in image.blocks() {
                let here = u16::try_from(left.min(room)).expect("at most a block's bytes");
                let used = &mut used[block as usize];
                *used = used.saturating_add(here);
                (left, room) = (left - usize::from(here), BLOCK);
            }
        })
        .await;
        // Units that a replay needs are not changed.
        for unit in &persist.chain.borrow().replay {
            unit.blocks.clone().for_each(|block| used[block as usize] = u16::MAX);
        }
        let length = ((data.end - data.start) / STRETCHES).clamp(1, STRETCH_BLOCKS_MAX);
        let mut stretches: Vec<(u64, Range<u32>)> = data
            .clone()
            .step_by(length as usize)
            .map(|start| {
                let stretch = start..data.end.min(start + length);
                let bytes = &used[stretch.start as usize..stretch.end as usize];
                (bytes.iter().map(|b| u64::from(*b)).sum(), stretch)
            })
            .filter(|(bytes, stretch)| (1..=WORTH_BYTES * stretch.len() as u64).contains(bytes))
            .collect();
        stretches.sort_by_key(|(bytes, stretch)| bytes / stretch.len() as u64);
        let mut sparse = Bits::new(data.end);
        for (_, stretch) in stretches {
            if sparse.len() as usize >= BLOCKS_AT_ONCE {
                break;
            }
            let in_use = |block: &u32| used[*block as usize] > 0;
            stretch.filter(in_use).for_each(|block| sparse.insert(block));
        }
        let count = sparse.len() as usize;
        (sparse, count)
    }

    /// Reads objects that are not in memory. Intact ones are moved with the next unit; one that
    /// cannot be read stays where it is.
    async fn read_objects(&self, some: &[(u32, Image)], todo: &mut Vec<u32>) {
        let persist = self.persist();
        let space = self.space();
        let _pin = space.pin();
        let is_there = |nth: u32, image: Image| {
            let slot = self.slot(nth);
            persist.image(nth) == image
                && slot.has(Flags::BACKED)
                && slot.place == image.address().0
        };
        let mut reads: Vec<(u32, Image, Buf, BioFuture)> = Vec::with_capacity(READS);
        for &(nth, image) in some.iter().filter(|(nth, image)| is_there(*nth, *image)) {
            let blocks = image.blocks();
            let buf = Buf::alloc(blocks.len() * BLOCK);
            let (at, data) = (space.sector(blocks.start), buf.all().into());
            let read = reactor::read(space.device(), Class::Background, at, data);
            reads.push((nth, image, buf, read));
        }
        for (nth, image, buf, read) in reads {
            if read.await.is_err() || !is_there(nth, image) {
                continue; // ZR-TY1
            }
            let at = image.address();
            let object = buf.read(|b| match verify(&b[at.offset()..], nth, at.object_check()) {
                Ok(found) => match found.object {
                    Object::Page { bytes, .. } if bytes.len() == image.size() => {
                        Some(bytes.to_vec())
                    }
                    Object::Page { .. } | Object::Same(_) | Object::Discarded { .. } => None,
                },
                Err(_) => None,
            });
            if let Some(bytes) = object {
                persist.tidy.moving.borrow_mut().insert(nth, bytes);
                persist.mark_for_tidy(nth);
                todo.push(nth);
            }
        }
    }

    /// Forgets objects that were not moved: they are where they were.
    fn forget_moving(&self) {
        let persist = self.persist();
        persist.tidy.moving.borrow_mut().clear();
        let mut tidy = persist.tidy.dirty.borrow_mut();
        let mut dirty = persist.dirty.borrow_mut();
        let all = 0..persist.images.borrow().len();
        while let Some(nth) = tidy.first(&all) {
            tidy.remove(nth);
            dirty.remove(nth);
        }
    }

    /// The new place of a moved object is durable: its slot goes there (ZR-TY2).
    pub(super) fn moved(&self, object: &MovedObject) {
        let slot = self.slot(object.slot);
        let was_there = slot.has(Flags::BACKED) && slot.place == object.from.address().0;
        if was_there && self.persist().image(object.slot) == object.to {
            self.slots.borrow_mut().set(object.slot, slot.at(object.to.address().0));
        }
    }
}
