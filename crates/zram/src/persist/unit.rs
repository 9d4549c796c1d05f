// SPDX-License-Identifier: Apache-2.0 OR MIT
//! Units: dirty slots become objects of one write, in four steps.
//!
//! ```text
//!   collect   dirty slots ─▶ packed objects, until the unit is full
//!   place     the blocks of the unit; where the unit after it begins (ZR-CH2)
//!   seal      header with the link to the unit before
//!   send      one write; its end marks the unit as written
//! ```
//! All but the write happens without an `.await` (ZR-CH1).
use std::ops::Range;
use std::rc::Rc;

use block::{Buf, Class, Flags, Status};
use format::zram::{ChainStart, Object, UNIT_HEADER, UnitHeader};
use reactor::spawn;

use super::chain::{
    Chain, MovedObject, PendingUnit, ReplayUnit, UNIT_BLOCKS_MIN, take_run, take_wide_run,
};
use super::dirty_slots::DirtySlots;
use super::image::Image;
use crate::backing::Address;
use crate::pack::{BLOCK, Packer};
use crate::part::Part;
use crate::planted::Fault;
use crate::slot::Flags as SlotFlags;
use crate::store::Handle;

/// The outcome of building a unit.
pub(super) enum BuildOutcome {
    /// It is being written, and takes so many blocks.
    Unit(u32),
    /// No slot is dirty.
    NothingDirty,
    /// The blocks that it may have are too few for the next object, or not adjacent.
    TooFewBlocks,
    /// There is no place for it.
    NoPlace,
}

/// How a unit is written.
#[derive(Clone, Copy)]
pub(super) struct UnitWrite {
    pub(super) class: Class,
    /// Its blocks are granted by the writeback limit.
    pub(super) budgeted: bool,
}

/// The collected objects of a unit.
struct Collected {
    packer: Packer,
    superseded: Vec<Image>,
    moved: Vec<MovedObject>,
    object_bytes: u64,
}

impl Part {
    /// Builds a unit of the next dirty slots, of at most `blocks_max` blocks, and sends it.
    pub(super) fn build_unit(
        self: &Rc<Self>,
        slots: &mut DirtySlots,
        blocks_max: u32,
        how: UnitWrite,
    ) -> BuildOutcome {
        let persist = self.persist();
        if slots.next(persist).is_none() {
            return BuildOutcome::NothingDirty;
        }
        let mut chain = persist.chain.borrow_mut();
        let Some(run) = chain.next.clone() else { return BuildOutcome::NoPlace };
        let collected = self.collect(slots, &run, blocks_max, chain.sequence);
        let mut wide = None;
        if collected.packer.bytes() == UNIT_HEADER {
            if slots.next(persist).is_none() {
                return BuildOutcome::NothingDirty;
            }
            // A page that did not compress needs two blocks, and one is left: a unit without
            // objects leads on to a run of two.
            if run.end - run.start == 1 && blocks_max >= UNIT_BLOCKS_MIN {
                wide = take_wide_run(self.space());
            }
            if wide.is_none() {
                return BuildOutcome::TooFewBlocks;
            }
        }
        let Collected { packer, mut superseded, moved, object_bytes } = collected;
        let (buf, blocks) = packer.finish();
        let blocks = u32::try_from(blocks).expect("at most UNIT_BLOCKS_MAX");
        let unit = self.place(&mut chain, &run, blocks, wide);
        let sequence = self.seal(&mut chain, &buf, blocks);
        if persist.is_planted(Fault::FreeBeforeDurable) {
            superseded.drain(..).for_each(|image| self.unuse(image.blocks()));
        }
        chain.pending.push_back(PendingUnit { sequence, written: false, superseded, moved });
        if persist.is_planted(Fault::FreeUnitBeforeCheckpoint) {
            self.unuse(unit.clone());
        } else {
            chain.replay.push_back(ReplayUnit { sequence, blocks: unit.clone() });
            chain.replay_blocks += blocks;
        }
        self.counters.bd_object_bytes.add(object_bytes);
        self.send_unit(buf, unit, sequence, how);
        BuildOutcome::Unit(blocks)
    }

    /// Packs dirty slots into a unit that begins with `run`. They are as their images then.
    fn collect(
        &self,
        slots: &mut DirtySlots,
        run: &Range<u32>,
        blocks_max: u32,
        sequence: u64,
    ) -> Collected {
        let persist = self.persist();
        let blocks_max = blocks_max.min(run.end - run.start);
        let generation = (sequence & u64::from(u32::MAX)) as u32;
        let mut packer = Packer::new(blocks_max as usize * BLOCK, UNIT_HEADER, generation);
        let (mut superseded, mut moved) = (Vec::new(), Vec::new());
        let mut object_bytes = 0;
        while let Some(nth) = slots.next(persist) {
            let packed = self.pack_slot(nth, slots.end(), &mut packer, run.start);
            let Some((count, image)) = packed else { break };
            object_bytes += image.size() as u64;
            if image.is_page() {
                self.use_one(image.blocks());
            }
            for slot in nth..nth + count {
                persist.dirty.borrow_mut().remove(slot);
                persist.tidy.dirty.borrow_mut().remove(slot);
                let old = persist.images.borrow_mut().set(slot, image);
                if old.is_page() {
                    superseded.push(old);
                }
                if self.slot(slot).has(SlotFlags::BACKED) {
                    let object = MovedObject { slot, from: old, to: image };
                    if persist.is_planted(Fault::MoveBeforeDurable) {
                        self.moved(&object);
                    }
                    moved.push(object);
                }
            }
            slots.pass(count);
        }
        Collected { packer, superseded, moved, object_bytes }
    }

    /// Puts a dirty slot into the unit that begins at block `first`; a run of empty slots before
    /// `end` becomes one object. Returns how many slots that were, and their image; `None` when
    /// there is no room.
    fn pack_slot(
        &self,
        nth: u32,
        end: u32,
        packer: &mut Packer,
        first: u32,
    ) -> Option<(u32, Image)> {
        let persist = self.persist();
        let slot = self.slot(nth);
        if slot.is_empty() {
            let dirty = persist.dirty.borrow();
            let also = |n: &u32| dirty.has(*n) && self.slot(*n).is_empty();
            let last = (nth..end).take_while(also).last().unwrap_or(nth);
            let slots = last - nth + 1;
            if (nth..=last).all(|n| persist.image(n).is_none()) {
                return Some((slots, Image::default()));
            }
            let object = Object::Discarded { slots };
            return packer.fits(object.len()).then(|| {
                packer.push(nth, &object);
                (slots, Image::default())
            });
        }
        if slot.has(SlotFlags::SAME) {
            let image = Image::same(slot.place);
            if persist.image(nth) == image {
                return Some((1, image));
            }
            let object = Object::Same(slot.place);
            return packer.fits(object.len()).then(|| {
                packer.push(nth, &object);
                (1, image)
            });
        }
        let (size, priority) = (slot.size(), slot.priority());
        packer.fits(size).then(|| {
            let fill = |to: &mut [u8]| {
                if slot.has(SlotFlags::BACKED) {
                    let moving = persist.tidy.moving.borrow();
                    let bytes = moving.get(&nth);
                    to.copy_from_slice(bytes.expect("a dirty slot not in memory is being moved"));
                } else {
                    self.store.borrow().read(Handle(slot.place), to);
                }
            };
            let offset = packer.push_page(nth, priority, size, fill);
            let block = first + u32::try_from(offset.at / BLOCK).expect("within a unit");
            let at = Address::packed(block, offset.at % BLOCK, offset.check);
            (1, Image::page(at, size, priority))
        })
    }

    /// Takes the first `blocks` of a run for a unit, and reserves a place for the unit after it:
    /// `wide`, or the rest of the run, or a new run.
    fn place(
        &self,
        chain: &mut Chain,
        run: &Range<u32>,
        blocks: u32,
        wide: Option<Range<u32>>,
    ) -> Range<u32> {
        let unit = run.start..run.start + blocks;
        self.use_one(unit.clone()); // ZR-PS3: a replay needs it
        let rest = unit.end..run.end;
        chain.next = match wide {
            None if rest.is_empty() => take_run(self.space()),
            None => Some(rest),
            wide => wide,
        };
        unit
    }

    /// Writes the header of a unit, whose successor has its place. Returns the unit's number.
    fn seal(&self, chain: &mut Chain, buf: &Buf, blocks: u32) -> u64 {
        let persist = self.persist();
        let ChainStart { mut next, mut next_end, sequence, link } = chain.end(); // ZR-CH2
        if persist.is_planted(Fault::WrongNext) && next + 1 < next_end && sequence % 16 == 0 {
            (next, next_end) = (next + 1, next_end);
        }
        let header = {
            let superblock = persist.superblock.borrow();
            let (uuid, part, incarnation) =
                (superblock.uuid, superblock.part, superblock.incarnation);
            let durable = chain.durable;
            UnitHeader { uuid, part, incarnation, sequence, durable, next, next_end, link, blocks }
        };
        chain.link = buf.write(|b| header.seal(&mut b[..blocks as usize * BLOCK]));
        chain.sequence += 1;
        sequence
    }

    fn send_unit(self: &Rc<Self>, buf: Buf, unit: Range<u32>, sequence: u64, how: UnitWrite) {
        let part = self.clone();
        spawn(async move {
            let blocks = unit.end - unit.start;
            let data = buf.slice(0..blocks as usize * BLOCK).into();
            let flags = match how.class {
                Class::Background => Flags::BACKGROUND,
                Class::Foreground | Class::Normal | Class::Idle => Flags::SYNC,
            };
            let space = part.space().clone();
            let at = space.sector(unit.start);
            let written = reactor::write(space.device(), flags, how.class, at, data).await;
            if how.budgeted {
                let budget = &part.shared.budget;
                match written {
                    Ok(()) => budget.spend(u64::from(blocks)),
                    Err(_) => budget.refund(u64::from(blocks)),
                }
            }
            part.unit_written(sequence, unit, written);
        });
    }

    fn unit_written(&self, sequence: u64, blocks: Range<u32>, written: Result<(), Status>) {
        let persist = self.persist();
        if let Err(status) = written {
            self.counters.failed_writes.add(1);
            return self.persist_failed("a unit could not be written", status);
        }
        self.counters.bd_writes.add(u64::from(blocks.end - blocks.start));
        let backing = self.persistent_backing();
        // The cache may have read these blocks ahead before they were written.
        blocks.for_each(|block| backing.cache().forget(block));
        let mut chain = persist.chain.borrow_mut();
        let unit = chain.pending.iter_mut().find(|unit| unit.sequence == sequence);
        unit.expect("a unit is in flight until it is written").written = true;
        persist.changed.wake_all();
    }
}
