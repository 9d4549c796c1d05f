// SPDX-License-Identifier: Apache-2.0 OR MIT
//! Sparse blocks: while no block is free, the objects of packed blocks with little in use are
//! restored to memory and written again, close together.
//!
//! Invariants
//! - ZR-SC1 A page is in memory, as any other, before its old block is released: nothing is lost
//!   when it cannot be written again.
//! - ZR-SC2 A round begins only when its pages take fewer blocks than it frees, by an eighth at
//!   least: so rounds come to an end. And only when so many pages may be moved: what is written
//!   again counts against the budget of the automatic rules, and `writeback_limit` must allow it,
//!   or else pages would stay in memory.
use std::ops::Range;

use block::{Buf, Class};
use reactor::{read, yield_now};

use super::{Candidates, Job, WALK_RUN};
use crate::backing::{Address, Backing};
use crate::pack::verify;
use crate::part::Part;
use crate::planted::Fault;
use crate::slot::{Flags, PAGE, Slot};

/// Blocks that are emptied in one round.
const VICTIMS_MAX: usize = 256;
/// Resolution of the fill of a block, in bytes.
const GRAIN: usize = 64;
/// A block with more in use is left alone.
const SPARSE_BYTES: usize = PAGE * 3 / 4;

/// Bytes in use in each block; `VICTIM` in those that are to be emptied.
type Fill = Vec<u16>;
const VICTIM: u16 = u16::MAX;

impl Job {
    /// Restores the pages of sparse blocks, which are written first then. Returns whether there
    /// were any.
    pub(super) async fn empty_sparse_blocks(&self, candidates: &mut Candidates) -> bool {
        let (part, backing) = (&*self.part, self.backing());
        if !backing.is_packed() {
            return false;
        }
        self.wait_in_flight(0).await;
        candidates.restored_set = candidates.restored.iter().copied().collect();
        let mut fill: Fill = vec![0; backing.space().blocks().count() as usize];
        part.each_backed(|slot| add_up(backing, slot, &mut fill)).await;
        let victims = choose(&mut fill);
        let (mut slots, mut bytes) = (Vec::new(), 0);
        part.each_backed(|(nth, slot)| {
            let mut blocks = backing.blocks_at(Address(slot.place), slot.size());
            if blocks.any(|block| fill[block as usize] == VICTIM) {
                slots.push((slot.place, nth));
                bytes += backing.bytes_of(slot.size());
            }
        })
        .await;
        let blocks = bytes.div_ceil(PAGE);
        let limit = &part.shared.budget;
        let may_move = slots.len() as u64 <= candidates.left_to_move()
            && (!limit.is_on() || blocks as u64 <= limit.left());
        if !may_move || blocks + victims / 8 >= victims {
            return false; // ZR-SC2
        }
        slots.sort_unstable();
        let mut restored = part.read_to_memory(backing, &slots).await;
        if restored.is_empty() {
            return false;
        }
        self.restored.set(self.restored.get() + restored.len() as u64);
        candidates.move_pages(restored.len() as u64);
        restored.sort_unstable();
        let size = |nth: &u32| backing.bytes_of(part.slot(*nth).size());
        candidates.bytes += restored.iter().map(size).sum::<usize>();
        candidates.restored_set.extend(&restored);
        candidates.restored.extend(restored);
        true
    }
}

/// Adds the bytes of a page's object to the fill of its blocks.
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

/// Marks the blocks with the least in use. Returns how many.
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

impl Part {
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

    /// Restores pages to memory if they are still where they were found. Returns their slots.
    async fn read_to_memory(&self, backing: &Backing, slots: &[(u64, u32)]) -> Vec<u32> {
        let space = backing.space();
        let _pin = space.pin();
        let mut restored = Vec::new();
        // The last read: objects of one block follow one another.
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
            let planted = space.is_planted(Fault::RestoreChangedPage);
            let slot = if planted { slot } else { self.slot(*nth) };
            if !is_there(slot) {
                continue;
            }
            let from = (blocks.start - range.start) as usize * PAGE;
            match buf.read(|b| self.restore(*nth, slot, &b[from..])) {
                RestoreOutcome::Yes => restored.push(*nth),
                RestoreOutcome::Damaged => {}
                RestoreOutcome::NoMemory => break,
            }
        }
        restored
    }

    /// Puts the object of a slot, which begins in the first of these blocks, into memory (ZR-SC1).
    fn restore(&self, nth: u32, slot: Slot, blocks: &[u8]) -> RestoreOutcome {
        let at = Address(slot.place);
        let Ok(found) = verify(&blocks[at.offset()..], nth, at.object_check()) else {
            return RestoreOutcome::Damaged;
        };
        let (priority, bytes) = (found.priority, found.bytes);
        if (bytes.len(), priority) != (slot.size(), slot.priority()) {
            return RestoreOutcome::Damaged; // Another object with the same checksum.
        }
        let Ok(handle) = self.store.borrow_mut().insert(nth, bytes) else {
            return RestoreOutcome::NoMemory;
        };
        let flags = slot.flags() & (Flags::IDLE | Flags::INCOMPRESSIBLE);
        let new = Slot::object(handle.0, bytes.len(), priority, slot.accessed).with(flags);
        self.replace(nth, new);
        RestoreOutcome::Yes
    }
}

enum RestoreOutcome {
    Yes,
    Damaged,
    NoMemory,
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn the_emptiest_blocks_are_chosen_but_no_full_or_free_one() {
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
