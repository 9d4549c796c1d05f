// SPDX-License-Identifier: Apache-2.0 OR MIT
//! Tidy: blocks in which little of use lies are emptied, so that what is free is in whole blocks.
//!
//! ```text
//!   stretch of blocks  │ a ░░░ b ░░░│░░░░░░│░░░ c ░░│░ d ░░░░░ e│    ░ superseded or free
//!                          └───────────── dirty again ─────┘
//!   unit               │ a │ b │ c │ d │ e │    pages in memory as any dirty page; others are
//!                                               read first
//! ```
//!
//! Runs by itself when an eighth of the data is free or less, and when no two free blocks lie
//! beside each other. It empties whole stretches, those first in which least is of use, and none
//! that are more than three quarters full: so what comes free lies together.
//!
//! Invariants
//! - ZR-TY1 An object is moved as its bytes are, after a check, and only if its slot is still
//!   there.
//! - ZR-TY2 A slot goes to the moved object when that is durable; until then the old one stays
//!   (ZR-PS3).
//! - ZR-TY3 One at a time; the last blocks are kept for it.
use std::collections::BTreeMap;
use std::ops::Range;
use std::rc::Rc;

use block::{Buf, Class, Status};
use format::zram::Object;
use reactor::{BioFuture, spawn, yield_now};

use super::Persist;
use super::bits::Bits;
use super::chain::Todo;
use super::image::Image;
use crate::pack::{BLOCK, verify};
use crate::shard::Shard;
use crate::slot::Flags;

/// Blocks that are emptied in one go, about.
const BLOCKS_AT_ONCE: usize = 512;
/// Stretches that the data are divided in, and how long one is at most.
const STRETCHES: u32 = 32;
const STRETCH_BLOCKS_MAX: u32 = 128;
/// A block of which more is in use, on the average of a stretch, is left alone.
const WORTH_BYTES: u64 = 3072;
/// Slots whose images are looked at in one go.
const SLOTS_AT_ONCE: u32 = 16384;
/// Reads in flight.
const READS: usize = 16;
/// Units until it is tried again after nothing was found.
const REST_UNITS: u64 = 64;

/// Objects that are on their way from one place to another.
#[derive(Default)]
pub(super) struct Moving(BTreeMap<u32, Vec<u8>>);

impl Moving {
    /// The bytes of a slot's object.
    pub(super) fn bytes(&self, nth: u32) -> &[u8] {
        self.0.get(&nth).expect("a slot that is dirty and not in memory is being moved")
    }
}

impl Persist {
    /// A slot is as its image, and shall be in a unit again.
    fn write_anew(&self, slot: u32) {
        self.dirty.borrow_mut().insert(slot);
        self.anew.borrow_mut().insert(slot);
    }

    fn free_and_data(&self, free: u32) -> (u32, u32) {
        let data = self.geometry.data();
        (free, data.end - data.start)
    }

    /// Whether blocks are few enough to be worth an effort.
    fn is_tight(&self, free: u32) -> bool {
        let (free, data) = self.free_and_data(free);
        free <= data / 8
    }

    /// Whether the blocks that are left are for tidying (ZR-TY3).
    pub(super) fn is_kept_for_tidying(&self, free: u32) -> bool {
        let (free, data) = self.free_and_data(free);
        self.tidying.get() && free <= data / 32
    }
}

impl Shard {
    /// Starts to tidy if that is due.
    pub(super) fn tidy_if_due(self: &Rc<Self>) {
        let persist = self.persist();
        let space = self.backing.as_ref().expect("a persistent device has one").space();
        let rested = persist.chain.borrow().sequence >= persist.tidy_from.get();
        let due = rested && persist.is_tight(space.blocks().free());
        if due && !persist.tidying.replace(true) {
            let shard = self.clone();
            spawn(async move {
                let persist = shard.persist();
                let space = shard.backing.as_ref().expect("it was there").space();
                // Many may be on their way.
                space.reclaimed().await;
                let is_tight = persist.is_tight(space.blocks().free());
                let emptied = if is_tight { shard.tidy_blocks().await } else { Ok(1) };
                shard.end_tidying(emptied);
            });
        }
    }

    fn end_tidying(&self, emptied: Result<usize, Status>) {
        let persist = self.persist();
        self.forget_moving();
        let rest = if emptied.is_ok_and(|blocks| blocks > 0) { 1 } else { REST_UNITS };
        persist.tidy_from.set(persist.chain.borrow().sequence + rest);
        persist.tidying.set(false);
        persist.changed.wake_all();
    }

    /// Makes place for a page that did not compress, by what costs more each time; in the end says
    /// that the device is full.
    pub(super) async fn make_wide_room(
        self: &Rc<Self>,
        tries: &mut u32,
        tidying: bool,
    ) -> Result<(), Status> {
        let persist = self.persist();
        *tries += 1;
        match *tries {
            // What was superseded lately comes free.
            1 => self.sync().await?,
            // And the units that only a replay needs.
            2 => self.checkpoint().await?,
            3 if !tidying => {
                if !persist.tidying.replace(true) {
                    let shard = self.clone();
                    spawn(async move {
                        let emptied = shard.tidy_blocks().await;
                        shard.end_tidying(emptied);
                    });
                }
                persist.changed.wait_for(|| !persist.tidying.get()).await;
            }
            _ => return Err(Status::NoSpace),
        }
        let space = self.backing.as_ref().expect("a persistent device has one").space();
        space.reclaimed().await;
        persist.health()
    }

    /// Returns the number of blocks that were emptied.
    async fn tidy_blocks(self: &Rc<Self>) -> Result<usize, Status> {
        let persist = self.persist();
        // Blocks that only a replay needs come free by a checkpoint.
        let held = persist.chain.borrow().held_blocks;
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
                    persist.write_anew(nth);
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
        self.write_units_tidying(&mut Todo::of_slots(&todo)).await?;
        self.sync().await?;
        Ok(count)
    }

    /// Calls `f` with the image of every slot whose page is an object; lets others go in between.
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

    /// The blocks that are worth emptying, and how many they are.
    async fn sparse_blocks(&self) -> (Bits, usize) {
        let persist = self.persist();
        let data = persist.geometry.data();
        let mut used = vec![0u16; data.end as usize];
        self.each_image(|_, image| {
            let mut left = image.bytes();
            let mut room = BLOCK - image.address().offset();
            for block in image.blocks() {
                let part = u16::try_from(left.min(room)).expect("at most a block's bytes");
                let used = &mut used[block as usize];
                *used = used.saturating_add(part);
                (left, room) = (left - usize::from(part), BLOCK);
            }
        })
        .await;
        // What a replay goes through stays as it is.
        for unit in &persist.chain.borrow().held {
            unit.blocks().for_each(|block| used[block as usize] = u16::MAX);
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

    /// Reads objects that are not in memory; those that are intact are moved with the next unit.
    /// One that can't be read stays where it is.
    async fn read_objects(&self, some: &[(u32, Image)], todo: &mut Vec<u32>) {
        let persist = self.persist();
        let space = self.backing.as_ref().expect("a persistent device has one").space();
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
                persist.moving.borrow_mut().0.insert(nth, bytes);
                persist.write_anew(nth);
                todo.push(nth);
            }
        }
    }

    /// What was not moved in the end is where it was.
    fn forget_moving(&self) {
        let persist = self.persist();
        persist.moving.borrow_mut().0.clear();
        let mut anew = persist.anew.borrow_mut();
        let mut dirty = persist.dirty.borrow_mut();
        let all = 0..persist.images.borrow().len();
        while let Some(nth) = anew.first(&all) {
            anew.remove(nth);
            dirty.remove(nth);
        }
    }

    /// An object that was moved is durable where it is now (ZR-TY2).
    pub(super) fn moved(&self, nth: u32, from: Image, to: Image) {
        let slot = self.slot(nth);
        let was_there = slot.has(Flags::BACKED) && slot.place == from.address().0;
        if was_there && self.persist().image(nth) == to {
            self.slots.borrow_mut().set(nth, slot.at(to.address().0));
        }
    }
}
