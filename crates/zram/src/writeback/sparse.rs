// SPDX-License-Identifier: Apache-2.0 OR MIT
//! Sparse blocks: packed blocks in which little lies any more, while none is free. What lies in
//! them is brought back to memory and written again, close together.
//!
//! Invariants
//! - ZR-SC1 A page that is brought back is in memory as any other before its block is let go, so
//!   nothing is lost when it cannot be written again.
//! - ZR-SC2 A round is begun only when its pages take fewer blocks than it frees, by an eighth at
//!   least: so rounds come to an end.
use std::ops::Range;

use block::{Buf, Class};
use format::zram::Object;
use reactor::{read, yield_now};

use super::{Job, WALK_RUN, Walk};
use crate::backing::{Address, Backing};
use crate::mutation::Mutation;
use crate::pack::verify;
use crate::shard::Shard;
use crate::slot::{Flags, PAGE, Slot};

/// Blocks that are emptied in one round.
const VICTIMS_MAX: usize = 256;
/// Sizes of a block's content that are told apart.
const GRAIN: usize = 64;
/// A block that is fuller is not worth it.
const SPARSE_BYTES: usize = PAGE * 3 / 4;

/// Bytes in each block, as far as they are of use; `VICTIM` in those that are to be emptied.
type Fill = Vec<u16>;
const VICTIM: u16 = u16::MAX;

impl Job {
    /// Empties sparse blocks, whose pages then go first; whether there were any.
    pub(super) async fn bring_back(&self, walk: &mut Walk) -> bool {
        let (shard, backing) = (&*self.shard, self.backing());
        if !backing.is_packed() {
            return false;
        }
        self.landed(0).await;
        walk.brought = walk.again.iter().copied().collect();
        let mut fill: Fill = vec![0; backing.space().blocks().count() as usize];
        shard.each_backed(|slot| add_up(backing, slot, &mut fill)).await;
        let victims = choose(&mut fill);
        let (mut slots, mut bytes) = (Vec::new(), 0);
        shard
            .each_backed(|(nth, slot)| {
                let mut blocks = backing.blocks_at(Address(slot.place), slot.size());
                if blocks.any(|block| fill[block as usize] == VICTIM) {
                    slots.push((slot.place, nth));
                    bytes += backing.bytes_of(slot.size());
                }
            })
            .await;
        if bytes.div_ceil(PAGE) + victims / 8 >= victims {
            return false; // ZR-SC2
        }
        slots.sort_unstable();
        let mut brought = shard.read_to_memory(backing, &slots).await;
        if brought.is_empty() {
            return false;
        }
        self.brought.set(self.brought.get() + brought.len() as u64);
        brought.sort_unstable();
        let size = |nth: &u32| backing.bytes_of(shard.slot(*nth).size());
        walk.bytes += brought.iter().map(size).sum::<usize>();
        walk.brought.extend(&brought);
        walk.again.extend(brought);
        true
    }
}

/// Adds the parts of a page's object to what lies in its blocks.
fn add_up(backing: &Backing, (_, slot): (u32, Slot), fill: &mut Fill) {
    let at = Address(slot.place);
    let (mut offset, mut left) = (at.offset(), backing.bytes_of(slot.size()));
    for block in backing.blocks_at(at, slot.size()) {
        let here = left.min(PAGE - offset);
        let bytes = &mut fill[block as usize];
        *bytes = bytes.saturating_add(u16::try_from(here).expect("at most a block"));
        (offset, left) = (0, left - here);
    }
}

/// Marks the blocks in which least lies; how many that are.
fn choose(fill: &mut Fill) -> usize {
    let grain = |bytes: u16| usize::from(bytes).div_ceil(GRAIN);
    let mut of_grain = [0; SPARSE_BYTES / GRAIN + 1];
    for bytes in fill.iter().filter(|bytes| **bytes > 0) {
        if let Some(count) = of_grain.get_mut(grain(*bytes)) {
            *count += 1;
        }
    }
    let mut room = VICTIMS_MAX;
    let full = of_grain.iter().position(|count| {
        let enough = *count >= room;
        room = room.saturating_sub(*count);
        enough
    });
    let most = full.unwrap_or(SPARSE_BYTES / GRAIN);
    let mut victims = 0;
    for bytes in fill.iter_mut().filter(|bytes| **bytes > 0) {
        if grain(*bytes) <= most && victims < VICTIMS_MAX {
            *bytes = VICTIM;
            victims += 1;
        }
    }
    victims
}

impl Shard {
    /// Calls `f` with each slot whose page is on the backing device.
    async fn each_backed(&self, mut f: impl FnMut((u32, Slot))) {
        let slots = self.slots.borrow().len();
        for first in (0..slots).step_by(WALK_RUN as usize) {
            for nth in first..slots.min(first.saturating_add(WALK_RUN)) {
                let slot = self.slot(nth);
                if slot.has(Flags::BACKED) {
                    f((nth, slot));
                }
            }
            yield_now().await;
        }
    }

    /// Brings pages back to memory that are where they were found; which of them.
    async fn read_to_memory(&self, backing: &Backing, slots: &[(u64, u32)]) -> Vec<u32> {
        let space = backing.space();
        let _pin = space.pin();
        let mut brought = Vec::new();
        // What was read last: objects of one block come one after the other.
        let mut last: Option<(Range<u32>, Buf)> = None;
        for (place, nth) in slots {
            let is_there = |slot: Slot| slot.has(Flags::BACKED) && slot.place == *place;
            let slot = self.slot(*nth);
            if !is_there(slot) {
                continue;
            }
            let blocks = backing.blocks_at(Address(*place), slot.size());
            let have =
                last.take_if(|(r, _)| blocks.start < r.start || blocks.end > r.end).is_none()
                    && last.is_some();
            if !have {
                let buf = Buf::alloc((blocks.end - blocks.start) as usize * PAGE);
                let (at, to) = (space.sector(blocks.start), buf.all().into());
                if read(space.device(), Class::Background, at, to).await.is_err() {
                    continue;
                }
                last = Some((blocks.clone(), buf));
            }
            let Some((range, buf)) = &last else { continue };
            let planted = space.has(Mutation::BringBackAnyway);
            let slot = if planted { slot } else { self.slot(*nth) };
            if !is_there(slot) {
                continue;
            }
            let from = (blocks.start - range.start) as usize * PAGE;
            match buf.read(|b| self.keep(*nth, slot, &b[from..])) {
                Kept::Yes => brought.push(*nth),
                Kept::Damaged => {}
                Kept::NoMemory => break,
            }
        }
        brought
    }

    /// Puts the object of a slot, which begins in the first of these blocks, in memory (ZR-SC1).
    fn keep(&self, nth: u32, slot: Slot, blocks: &[u8]) -> Kept {
        let at = Address(slot.place);
        let Ok(found) = verify(&blocks[at.offset()..], nth, at.object_check()) else {
            return Kept::Damaged;
        };
        let Object::Page { priority, bytes } = found.object else { return Kept::Damaged };
        if (bytes.len(), priority) != (slot.size(), slot.priority()) {
            return Kept::Damaged; // Another one, whose check happens to be the same.
        }
        let Ok(handle) = self.store.borrow_mut().insert(nth, bytes) else { return Kept::NoMemory };
        let flags = slot.flags() & (Flags::IDLE | Flags::INCOMPRESSIBLE);
        let new = Slot::object(handle.0, bytes.len(), priority, slot.accessed).with(flags);
        self.replace(nth, new);
        Kept::Yes
    }
}

enum Kept {
    Yes,
    Damaged,
    NoMemory,
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn the_emptiest_blocks_are_chosen_and_none_that_is_full_or_free() {
        let mut fill: Fill = vec![4096, 0, 100, 3072, 3073 + 64, 5, 4096];
        assert_eq!(choose(&mut fill), 3);
        let chosen: Vec<usize> = (0..7).filter(|b| fill[*b] == VICTIM).collect();
        assert_eq!(chosen, [2, 3, 5]);
        let mut fill: Fill = (0..2000).map(|n| n % 4096 + 1).collect();
        assert_eq!(choose(&mut fill), VICTIMS_MAX);
        assert!(fill[..192].iter().all(|bytes| *bytes == VICTIM));
        assert!(fill[320..].iter().all(|bytes| *bytes != VICTIM));
    }
}
