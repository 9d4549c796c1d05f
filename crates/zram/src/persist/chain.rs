// SPDX-License-Identifier: Apache-2.0 OR MIT
//! The chain: units are built at once, written many at a time, and durable in order.
//!
//! ```text
//!   run of blocks  │ unit 7 │ unit 8 │ unit 9 │ reserved: unit 10 begins here ... │
//!                     held since the checkpoint    next
//! ```
//!
//! Invariants
//! - ZR-CH1 A unit is built without an `.await`: what it says of its slots holds all at once, and
//!   its place in the chain is that of its building.
//! - ZR-CH2 A unit begins where the one before said, which is decided before that is written.
//! - ZR-CH3 Units become durable in order.
use std::collections::VecDeque;
use std::ops::Range;
use std::rc::Rc;

use block::{Class, Flags, Status};
use format::zram::{ChainStart, Object, UNIT_BLOCKS_MAX, UNIT_HEADER, UnitHeader};
use reactor::{spawn, yield_now};

use super::Persist;
use super::image::Image;
use crate::backing::{Address, Space};
use crate::mutation::Mutation;
use crate::pack::{BLOCK, Packer};
use crate::shard::Shard;
use crate::slot::Flags as Is;
use crate::store::Handle;

/// Blocks of a unit that takes a page which did not compress.
pub(super) const UNIT_BLOCKS_MIN: u32 = 2;

/// A unit that is not durable yet.
pub(super) struct Flight {
    sequence: u64,
    written: bool,
    /// Objects that it supersedes: nobody needs them once it is durable (ZR-PS3).
    superseded: Vec<Image>,
    /// Slots that are not in memory whose object was only moved: from where, to where.
    moved: Vec<(u32, Image, Image)>,
}

/// A unit that a replay would go through.
pub(super) struct Held {
    sequence: u64,
    blocks: Range<u32>,
}

impl Flight {
    pub(super) fn superseded(&self) -> &[Image] {
        &self.superseded
    }
}

impl Held {
    pub(super) fn blocks(&self) -> Range<u32> {
        self.blocks.clone()
    }
}

/// The end of the chain, and what of it is needed.
pub(super) struct Chain {
    /// The run in which the next unit will be; nothing when no place is reserved: then only a
    /// checkpoint leads on.
    pub(super) next: Option<Range<u32>>,
    /// Of the next unit.
    pub(super) sequence: u64,
    /// Checksum of the header of the last.
    pub(super) link: u32,
    /// The last unit that is durable, with all before it.
    pub(super) durable: u64,
    pub(super) flight: VecDeque<Flight>,
    pub(super) held: VecDeque<Held>,
    pub(super) held_blocks: u32,
}

impl Chain {
    pub(super) fn new(start: &ChainStart) -> Chain {
        Chain {
            next: (start.next > 0).then_some(start.next..start.next_end),
            sequence: start.sequence,
            link: start.link,
            durable: start.sequence - 1,
            flight: VecDeque::new(),
            held: VecDeque::new(),
            held_blocks: 0,
        }
    }

    /// Where a replay that begins after the last unit would begin.
    pub(super) fn end(&self) -> ChainStart {
        let next = self.next.clone().unwrap_or_default();
        let (sequence, link) = (self.sequence, self.link);
        ChainStart { next: next.start, next_end: next.end, sequence, link }
    }

    /// Units that are being written.
    fn in_flight(&self) -> usize {
        self.flight.iter().filter(|unit| !unit.written).count()
    }

    /// Whether every unit up to this one is written.
    fn is_written(&self, sequence: u64) -> bool {
        self.flight.iter().take_while(|u| u.sequence <= sequence).all(|u| u.written)
    }
}

/// Slots that somebody wants to have in units: ranges in ascending order, from where on.
pub(super) struct Todo {
    ranges: Vec<Range<u32>>,
    nth: usize,
}

impl Todo {
    pub(super) fn new(ranges: Vec<Range<u32>>) -> Todo {
        Todo { ranges, nth: 0 }
    }

    /// These slots, which ascend.
    pub(super) fn of_slots(slots: &[u32]) -> Todo {
        let mut ranges: Vec<Range<u32>> = Vec::new();
        for &slot in slots {
            match ranges.last_mut() {
                Some(last) if last.end == slot => last.end += 1,
                Some(_) | None => ranges.push(slot..slot + 1),
            }
        }
        Todo::new(ranges)
    }

    /// The next dirty one. Whatever becomes dirty behind it is not looked at again, so every pass
    /// ends.
    fn next(&mut self, persist: &Persist) -> Option<u32> {
        let dirty = persist.dirty.borrow();
        while let Some(range) = self.ranges.get_mut(self.nth) {
            if let Some(slot) = dirty.first(range) {
                range.start = slot;
                return Some(slot);
            }
            self.nth += 1;
        }
        None
    }

    /// Done with these.
    fn pass(&mut self, slots: u32) {
        let range = &mut self.ranges[self.nth];
        range.start = range.end.min(range.start + slots);
    }

    /// How far the range of the next one goes on.
    fn end(&self) -> u32 {
        self.ranges[self.nth].end
    }
}

/// What became of a wish for a unit.
pub(super) enum Built {
    /// It is on its way, with so many blocks.
    Unit(u32),
    /// No slot is dirty.
    Nothing,
    /// The blocks that it may have are too few for the next object, or not beside each other.
    TooFew,
    /// There is no place for it.
    NoPlace,
}

/// A run for units, which has at least one block.
pub(super) fn take_run(space: &Space) -> Option<Range<u32>> {
    space.blocks().take(UNIT_BLOCKS_MAX)
}

/// A run that takes any object; nothing when none was found.
fn take_wide_run(space: &Space) -> Option<Range<u32>> {
    let run = space.blocks().take(UNIT_BLOCKS_MIN)?;
    if run.end - run.start < UNIT_BLOCKS_MIN {
        space.give_back(run);
        return None;
    }
    Some(run)
}

impl Shard {
    /// Builds a unit of the next slots of `todo` that are dirty, at most `blocks_wanted` long, and
    /// sends it off (ZR-CH1).
    fn build(
        self: &Rc<Self>,
        todo: &mut Todo,
        blocks_wanted: u32,
        class: Class,
        budgeted: bool,
    ) -> Built {
        let persist = self.persist();
        let backing = self.backing.as_ref().expect("a persistent device has one");
        if todo.next(persist).is_none() {
            return Built::Nothing;
        }
        let mut chain = persist.chain.borrow_mut();
        let Some(run) = chain.next.clone() else { return Built::NoPlace };
        let blocks_max = blocks_wanted.min(run.end - run.start);
        let generation = (chain.sequence & u64::from(u32::MAX)) as u32;
        let mut packer = Packer::new(blocks_max as usize * BLOCK, UNIT_HEADER, generation);
        let (mut superseded, mut moved) = (Vec::new(), Vec::new());
        let mut object_bytes = 0;
        while let Some(nth) = todo.next(persist) {
            let Some((slots, image)) = self.pack(nth, todo.end(), &mut packer, run.start) else {
                break;
            };
            object_bytes += image.size() as u64;
            if image.is_page() {
                self.use_one(image.blocks());
            }
            for slot in nth..nth + slots {
                persist.dirty.borrow_mut().remove(slot);
                persist.anew.borrow_mut().remove(slot);
                let old = persist.images.borrow_mut().set(slot, image);
                if old.is_page() {
                    superseded.push(old);
                }
                if self.slot(slot).has(Is::BACKED) {
                    moved.push((slot, old, image));
                    if persist.mutation(Mutation::MoveBeforeDurable) {
                        self.moved(slot, old, image);
                    }
                }
            }
            todo.pass(slots);
        }
        let mut wide = None;
        if packer.bytes() == UNIT_HEADER {
            if todo.next(persist).is_none() {
                return Built::Nothing;
            }
            // A page that did not compress, and one block: a unit without objects leads on to two.
            if run.end - run.start == 1 && blocks_wanted >= UNIT_BLOCKS_MIN {
                wide = take_wide_run(backing.space());
            }
            if wide.is_none() {
                return Built::TooFew;
            }
        }
        let (buf, blocks) = packer.finish();
        let blocks = u32::try_from(blocks).expect("at most UNIT_BLOCKS_MAX");
        let unit = run.start..run.start + blocks;
        self.use_one(unit.clone()); // ZR-PS3: held
        let rest = unit.end..run.end;
        chain.next = match wide {
            None if rest.is_empty() => take_run(backing.space()),
            None => Some(rest),
            wide => wide,
        };
        let ChainStart { mut next, mut next_end, sequence, link } = chain.end(); // ZR-CH2
        if persist.mutation(Mutation::WrongNext) && next + 1 < next_end && sequence % 16 == 0 {
            (next, next_end) = (next + 1, next_end);
        }
        let header = {
            let superblock = persist.superblock.borrow();
            let (uuid, shard, life) = (superblock.uuid, superblock.shard, superblock.life);
            let durable = chain.durable;
            UnitHeader { uuid, shard, life, sequence, durable, next, next_end, link, blocks }
        };
        let bytes = blocks as usize * BLOCK;
        chain.link = buf.write(|b| header.seal(&mut b[..bytes]));
        chain.sequence += 1;
        if persist.mutation(Mutation::FreeBeforeDurable) {
            superseded.drain(..).for_each(|image| self.unuse(image.blocks()));
        }
        chain.flight.push_back(Flight { sequence, written: false, superseded, moved });
        if persist.mutation(Mutation::FreeUnitBeforeCheckpoint) {
            self.unuse(unit.clone());
        } else {
            chain.held.push_back(Held { sequence, blocks: unit.clone() });
            chain.held_blocks += blocks;
        }
        self.counters.bd_object_bytes.add(object_bytes);
        let shard = self.clone();
        spawn(async move {
            let data = buf.slice(0..bytes).into();
            let flags = match class {
                Class::Background => Flags::BACKGROUND,
                Class::Foreground | Class::Normal | Class::Idle => Flags::SYNC,
            };
            let space = shard.backing.as_ref().expect("it was there").space().clone();
            let at = space.sector(unit.start);
            let written = reactor::write(space.device(), flags, class, at, data).await;
            if budgeted {
                let budget = &shard.shared.budget;
                match written {
                    Ok(()) => budget.spend(u64::from(blocks)),
                    Err(_) => budget.refund(u64::from(blocks)),
                }
            }
            shard.unit_written(sequence, unit, written);
        });
        Built::Unit(blocks)
    }

    /// Puts a slot, which is dirty, into the unit that begins at block `first`; a run of empty ones
    /// before `end` together. Returns how many slots that were, and their image; nothing when there
    /// is no room.
    fn pack(&self, nth: u32, end: u32, packer: &mut Packer, first: u32) -> Option<(u32, Image)> {
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
        if slot.has(Is::SAME) {
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
                if slot.has(Is::BACKED) {
                    to.copy_from_slice(persist.moving.borrow().bytes(nth));
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

    fn unit_written(&self, sequence: u64, blocks: Range<u32>, written: Result<(), Status>) {
        let persist = self.persist();
        if let Err(status) = written {
            self.counters.failed_writes.add(1);
            return self.persist_failed("a unit could not be written", status);
        }
        self.counters.bd_writes.add(u64::from(blocks.end - blocks.start));
        let backing = self.backing.as_ref().expect("a persistent device has one");
        // What was read ahead of these blocks may be what lay there before.
        blocks.for_each(|block| backing.cache().forget(block));
        let mut chain = persist.chain.borrow_mut();
        let unit = chain.flight.iter_mut().find(|unit| unit.sequence == sequence);
        unit.expect("a unit is in flight until it is written").written = true;
        persist.changed.wake_all();
    }

    /// As [`Shard::write_units`], with the blocks that are kept for tidying too.
    pub(super) async fn write_units_tidying(
        self: &Rc<Self>,
        todo: &mut Todo,
    ) -> Result<(), Status> {
        let mut tries = 0;
        loop {
            self.unit_room(true).await?;
            match self.build(todo, self.unit_blocks(), Class::Background, false) {
                Built::Unit(_) => {
                    tries = 0;
                    yield_now().await;
                }
                Built::Nothing => return Ok(()),
                Built::NoPlace => self.make_room(true).await?,
                Built::TooFew => self.make_wide_room(&mut tries, true).await?,
            }
        }
    }

    /// Sends units off until no slot of `todo` is dirty.
    pub(super) async fn write_units(
        self: &Rc<Self>,
        todo: &mut Todo,
        class: Class,
    ) -> Result<(), Status> {
        let mut tries = 0;
        loop {
            self.unit_room(false).await?;
            match self.build(todo, self.unit_blocks(), class, false) {
                Built::Unit(_) => {
                    tries = 0;
                    self.checkpoint_if_due();
                    self.tidy_if_due();
                    yield_now().await;
                }
                Built::Nothing => return Ok(()),
                Built::NoPlace => self.make_room(false).await?,
                Built::TooFew => self.make_wide_room(&mut tries, false).await?,
            }
        }
    }

    /// As [`Shard::write_units`], as long as the budget lasts; whether it has.
    pub(super) async fn write_units_within_budget(
        self: &Rc<Self>,
        todo: &mut Todo,
        written: &mut u64,
    ) -> Result<bool, Status> {
        let mut tries = 0;
        loop {
            self.unit_room(false).await?;
            if todo.next(self.persist()).is_none() {
                return Ok(true);
            }
            let want = self.unit_blocks();
            let budget = &self.shared.budget;
            let held = budget.held();
            let granted = budget.take(u64::from(want));
            if granted == 0 && held > 0 {
                // What others hold may be refunded, and the limit is exact.
                reactor::sleep(block::Nanos(100_000)).await;
                continue;
            }
            let blocks = u32::try_from(granted).expect("at most what was wanted");
            let built = match blocks {
                0 => Built::TooFew,
                _ => self.build(todo, blocks, Class::Background, true),
            };
            let used = if let Built::Unit(blocks) = built { u64::from(blocks) } else { 0 };
            self.shared.budget.refund(granted - used);
            *written += used;
            match built {
                Built::Unit(_) => {
                    tries = 0;
                    self.checkpoint_if_due();
                    self.tidy_if_due();
                    yield_now().await;
                }
                Built::Nothing => return Ok(true),
                Built::TooFew if blocks < want => return Ok(false),
                Built::NoPlace => self.make_room(false).await?,
                Built::TooFew => self.make_wide_room(&mut tries, false).await?,
            }
        }
    }

    fn unit_blocks(&self) -> u32 {
        let pages = self.shared.batch_pages.load(std::sync::atomic::Ordering::Relaxed);
        let backing = self.backing.as_ref().expect("a persistent device has one");
        backing.batch_blocks(pages).clamp(UNIT_BLOCKS_MIN, UNIT_BLOCKS_MAX)
    }

    /// Waits until another unit may be in flight, and the chain is not too long.
    async fn unit_room(&self, tidying: bool) -> Result<(), Status> {
        let persist = self.persist();
        let inflight = self.shared.inflight.load(std::sync::atomic::Ordering::Relaxed) as usize;
        let room = || persist.chain.borrow().in_flight() < inflight.max(1);
        let space = self.backing.as_ref().expect("a persistent device has one").space();
        let kept = || !tidying && persist.is_kept_for_tidying(space.blocks().free());
        let ready = || (room() && !persist.is_overdue() && !kept()) || persist.failure().is_some();
        persist.changed.wait_for(ready).await;
        persist.health()
    }

    /// Every unit that is built when this is called is durable when it returns.
    ///
    /// Cost: a flush of the device, shared with all who want one; nothing when all are durable.
    pub(super) async fn sync(&self) -> Result<(), Status> {
        let persist = self.persist();
        let last = persist.chain.borrow().sequence - 1;
        if persist.chain.borrow().durable >= last {
            return persist.health();
        }
        self.flush_after(last).await
    }

    /// Waits for the units up to `last`, then flushes the device: they and all else that was
    /// written before are durable.
    pub(super) async fn flush_after(&self, last: u64) -> Result<(), Status> {
        let persist = self.persist();
        let written = || persist.chain.borrow().is_written(last);
        persist.changed.wait_for(|| written() || persist.failure().is_some()).await;
        persist.health()?;
        if !persist.mutation(Mutation::SkipFlush) {
            let backing = self.backing.as_ref().expect("a persistent device has one");
            let flushed = reactor::flush(backing.space().device(), Class::Foreground).await;
            if let Err(status) = flushed {
                if persist.mutation(Mutation::ForgetFailedFlush) {
                    return Err(status);
                }
                self.persist_failed("a flush of the backing device failed", status);
                return Err(status);
            }
        }
        persist.health()?;
        self.settle_units(last);
        Ok(())
    }

    /// Units up to `last` are durable (ZR-CH3).
    fn settle_units(&self, last: u64) {
        let mut chain = self.persist().chain.borrow_mut();
        chain.durable = chain.durable.max(last);
        while chain.flight.front().is_some_and(|unit| unit.sequence <= last) {
            let unit = chain.flight.pop_front().expect("there is one");
            assert!(unit.written, "unit {} is durable but not written", unit.sequence);
            unit.moved.into_iter().for_each(|(nth, from, to)| self.moved(nth, from, to));
            unit.superseded.into_iter().for_each(|old| self.unuse(old.blocks()));
        }
    }

    /// A replay does not go through the units before `sequence` any more.
    pub(super) fn let_go_of_units(&self, sequence: u64) {
        let mut chain = self.persist().chain.borrow_mut();
        while chain.held.front().is_some_and(|unit| unit.sequence < sequence) {
            let unit = chain.held.pop_front().expect("there is one");
            chain.held_blocks -= unit.blocks.end - unit.blocks.start;
            self.unuse(unit.blocks);
        }
    }
}
