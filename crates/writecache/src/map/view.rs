// SPDX-License-Identifier: Apache-2.0 OR MIT
//! View: read access to the map for tools and tests.
use std::ops::Range;

use roaring::RoaringTreemap;

use super::{Counts, SlotRef, Slots, State};

impl Slots {
    /// Every slot that holds a block: slot, block, state, checksum.
    pub(crate) fn live(&self) -> impl Iterator<Item = (u32, u64, State, u32)> {
        let all = (0..self.counts.slots).zip(&self.slots);
        all.filter(|(slot, _)| self.is_live(*slot))
            .map(|(slot, s)| (slot, s.block(), s.state, s.crc))
    }

    /// The block in a slot, and its version, if the slot holds the newest one.
    pub(crate) fn holder(&self, slot: u32) -> Option<(u64, SlotRef)> {
        let s = self.slots.get(slot as usize).filter(|_| self.is_live(slot))?;
        Some((s.block(), SlotRef { slot, stamp: s.stamp }))
    }

    /// Runs of blocks in a range that the origin may not have: dirty blocks and zeroes, as (start,
    /// end).
    pub(crate) fn unsaved_runs(&self, range: Range<u64>) -> Vec<(u64, u64)> {
        let mut runs: Vec<(u64, u64)> = Vec::new();
        let mut iter = self.dirty.iter();
        iter.advance_to(range.start);
        for block in iter.take_while(|&block| block < range.end) {
            match runs.last_mut() {
                Some((_, end)) if *end == block => *end += 1,
                _ => runs.push((block, block + 1)),
            }
        }
        let zeroes = self.zero_ranges().filter(|z| z.start < range.end && range.start < z.end);
        let before = runs.len();
        runs.extend(zeroes.map(|z| (z.start.max(range.start), z.end.min(range.end))));
        if runs.len() > before {
            runs.sort_unstable();
            runs.dedup_by(|next, run| {
                let touches = next.0 <= run.1;
                if touches {
                    run.1 = run.1.max(next.1);
                }
                touches
            });
        }
        runs
    }

    /// How many blocks the origin may not have, in a version that no durable commit has either.
    pub(crate) fn uncommitted_count(&self) -> u64 {
        let unlogged_zeroes = self.zero_ranges().filter(|z| self.is_zero_unlogged(z.start));
        let mut changed: RoaringTreemap =
            self.unlogged.iter().chain(self.committing.iter()).collect();
        changed |= &self.given_up;
        for range in unlogged_zeroes {
            changed.insert_range(range);
        }
        let mut unsaved = self.dirty.clone();
        for range in self.zero_ranges() {
            unsaved.insert_range(range);
        }
        changed.intersection_len(&unsaved)
    }

    /// Checks WC-M1 and WC-M2 by counting everything; for tests.
    pub(crate) fn check(&self) {
        let mut seen = Counts { slots: self.counts.slots, ..Counts::default() };
        seen.unlogged = self.unlogged.len() + self.committing.len();
        for (slot, s) in (0..self.counts.slots).zip(&self.slots) {
            match s.state {
                State::Free => seen.free += 1,
                State::Writing => seen.writing += 1,
                State::Dirty => seen.dirty += 1,
                State::Clean => seen.clean += 1,
                State::Bad => seen.bad += 1,
                State::Old => seen.old += 1,
                State::Zero => seen.zero += 1,
                State::Limbo => seen.limbo += 1,
            }
            assert_eq!(self.free.is_free(slot), s.state == State::Free);
            assert!(s.state != State::Free || !s.logged, "WC-M4: slot {slot}");
            let kept = matches!(s.state, State::Old | State::Zero);
            seen.unlogged += u64::from(kept && !s.logged);
            if self.is_live(slot) {
                assert_eq!(self.slot_of(s.block()), Some(slot), "WC-M2");
            }
            assert_eq!(
                s.state == State::Dirty,
                self.is_live(slot) && self.dirty.contains(s.block()),
                "slot {slot} {:?}",
                s.state
            );
        }
        assert_eq!(self.bad.len(), u64::from(seen.bad));
        assert_eq!(seen, self.counts, "WC-M1");
        assert_eq!(self.index.len(), (seen.dirty + seen.clean + seen.bad) as usize, "WC-M2");
        assert_eq!(self.free.len(), seen.free);
        self.check_marks();
    }
}
