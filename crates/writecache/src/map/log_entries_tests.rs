// SPDX-License-Identifier: Apache-2.0 OR MIT
//! Commits and checkpoints of a map give the same map when the cache is opened.
use format::{ENTRIES_PER_UNIT, Entry, Op};

use super::{Dump, MergeRule, PhaseState, Rebuild, Slots, State};

/// A map, and what is on the media.
struct Checked {
    slots: Slots,
    blocks: u64,
    checkpoint: Vec<Vec<Entry>>,
    log: Vec<Vec<Entry>>,
    /// A checkpoint in progress, and the length of the log when it began.
    dump: Option<(Dump, Vec<Vec<Entry>>, usize)>,
    /// Slots whose data were rotten: recovery may find pending versions that no epoch waits for.
    rotten: Vec<u32>,
}

impl Checked {
    /// With the order of epochs from this one on, if there is one.
    fn new(slots: u32, blocks: u64, epoch: Option<u64>) -> Checked {
        let mut rebuild = Rebuild::new(slots);
        rebuild.apply(epoch.map(|epoch| Entry::epoch(epoch, epoch)).into_iter());
        let Ok(mut slots) = rebuild.finish(blocks) else { panic!("an empty map") };
        slots.set_ordered(epoch.is_some());
        Checked {
            slots,
            blocks,
            checkpoint: Vec::new(),
            log: Vec::new(),
            dump: None,
            rotten: Vec::new(),
        }
    }

    fn commit(&mut self) {
        self.slots.begin_commit();
        while !self.slots.is_commit_complete() {
            let batch = self.slots.take_batch(2 * ENTRIES_PER_UNIT);
            self.log.extend(batch.entries.chunks(ENTRIES_PER_UNIT).map(<[Entry]>::to_vec));
            self.slots.complete_batch(batch);
        }
    }

    /// Goes on with a checkpoint; at its end all that has changed meanwhile is committed.
    fn continue_dump(&mut self, max: usize) {
        let begun = |slots: &mut Slots, log: usize| (slots.begin_dump(), Vec::new(), log);
        let (mut dump, mut units, from) =
            self.dump.take().unwrap_or_else(|| begun(&mut self.slots, self.log.len()));
        let unit = self.slots.dump(&mut dump, max);
        if !unit.is_empty() {
            units.push(unit);
            self.dump = Some((dump, units, from));
            return;
        }
        self.slots.end_dump();
        self.commit();
        self.checkpoint = units;
        self.log.drain(..from);
    }

    /// Writes some blocks back, in the order of epochs if there are any; some are rotten.
    fn write_back(&mut self, rng: &mut sim::Rng) {
        self.commit();
        match self.slots.phase_state() {
            PhaseState::Due => {
                self.slots.begin_phase(rng.pick(&[MergeRule::Never, MergeRule::Single]));
                return self.commit();
            }
            PhaseState::Written => return self.slots.retire_phase(),
            PhaseState::Writing | PhaseState::Idle => {}
        }
        if self.slots.phase_zeroes().is_some() && rng.below(3) == 0 {
            self.slots.complete_phase_zeroes();
        }
        let todo = self.slots.phase_blocks().unwrap_or_else(|| self.slots.dirty()).clone();
        for block in &todo {
            let chance = rng.below(60);
            let Some((slot_ref, _)) = self.slots.to_write(block).filter(|_| chance < 40) else {
                continue;
            };
            if chance > 1 {
                self.slots.retire(block, slot_ref);
                continue;
            }
            self.rotten.push(slot_ref.slot);
            if !self.slots.quarantine(block, slot_ref) {
                self.slots.drop_unreadable_old(block, slot_ref);
            }
        }
    }

    /// Drops a block: without epochs any, with epochs a clean one or one whose data are rotten.
    fn drop_some(&mut self, rng: &mut sim::Rng, ordered: bool) {
        let first = rng.below(self.blocks);
        for block in first..(first + rng.pick(&[1, 1, 3, 100])).min(self.blocks) {
            let Some(found) = self.slots.find(block) else { continue };
            match ordered {
                true => self.slots.drop_clean(block, found.slot_ref),
                false => self.slots.drop_block(block, found.slot_ref),
            };
        }
    }

    /// Zeroes, if there is an order to keep.
    fn zero_some(&mut self, rng: &mut sim::Rng, ordered: bool) {
        if !ordered || !self.slots.has_room_for_zeroes() {
            return;
        }
        let Some(run) = self.slots.allocate(1) else { return };
        let first = rng.below(self.blocks);
        let end = (first + rng.pick(&[1, 4, 100])).min(self.blocks);
        let max = rng.pick(&[1, 3, usize::MAX]);
        let live = self.slots.live_in(first..end).len();
        let asked = first..end;
        let end = self.slots.install_zeroes(asked.clone(), run.start, max);
        assert!(end > first && (end == asked.end || live > max), "{end} of {asked:?}");
        for block in first..end {
            assert_eq!(self.slots.find(block).expect("zeroes").state, State::Zero);
        }
    }

    /// In the log, and in the checkpoint, no write is of an earlier epoch than one before it.
    fn check_epochs(&self) {
        for units in [&self.checkpoint, &self.log] {
            let (mut epoch, mut last) = (0, 0);
            for e in units.iter().flatten() {
                match e.op {
                    Op::Epoch => epoch = e.block,
                    Op::WriteNext => epoch += 1,
                    Op::Write | Op::Clean | Op::Bad | Op::Evict | Op::Drop | Op::Zero => {}
                }
                if matches!(e.op, Op::Write | Op::WriteNext | Op::Zero) {
                    assert!(epoch >= last, "{e:?}, of {epoch}: {units:?}");
                    last = epoch;
                }
            }
        }
    }

    /// What opening the cache finds; all has been committed.
    fn check(&self) -> (u32, u32) {
        let mut rebuild = Rebuild::new(self.slots.counts().slots);
        self.checkpoint.iter().for_each(|unit| rebuild.apply(unit.iter().copied()));
        self.log.iter().for_each(|unit| rebuild.apply_log(unit));
        let what = format!("{:?} {:?}", self.checkpoint, self.log);
        let found = rebuild.finish(self.blocks).unwrap_or_else(|e| panic!("{e:?}: {what}"));
        found.check();
        let place = |slots: &Slots, block| {
            let at = slots.find(block)?;
            // Recovery reads rotten blocks again.
            let state = if at.state == State::Bad { State::Dirty } else { at.state };
            // If zeroes of an epoch overlap, either slot is right.
            let slot = (state != State::Zero).then_some(at.slot_ref.slot);
            Some((slot, state, at.crc))
        };
        for block in 0..self.blocks {
            assert_eq!(place(&found, block), place(&self.slots, block), "block {block}: {what}");
        }
        let olds = |slots: &Slots| {
            let state = |slot: u32| slots.slots[slot as usize].state;
            let old = |slot: &u32| matches!(state(*slot), State::Old | State::Zero);
            let slots = (0..slots.counts.slots).filter(old);
            slots.filter(|slot| !self.rotten.contains(slot)).collect::<Vec<_>>()
        };
        let (opened, lived) = (olds(&found), olds(&self.slots));
        match self.slots.phase_state() {
            // Some versions of the phase only wait for its end.
            PhaseState::Writing | PhaseState::Written => {
                assert!(opened.iter().all(|slot| lived.contains(slot)), "{what}");
            }
            PhaseState::Idle | PhaseState::Due => assert_eq!(opened, lived, "{what}"),
        }
        (found.counts().old, found.counts().zero)
    }
}

#[test]
fn opening_a_cache_finds_what_it_has_logged() {
    let (mut olds, mut zeroes, mut checkpoints) = (0, 0, 0);
    for seed in 0..4_000 {
        let mut rng = sim::Rng::new(seed);
        let ordered = seed % 3 != 0;
        let slots = u32::try_from(rng.range(4, 40)).expect("few");
        // Only the low half of an epoch is kept of each version.
        let first = rng.pick(&[1, 3 << 30, (1 << 32) - 5]);
        let mut model = Checked::new(slots, rng.range(3, 120), ordered.then_some(first));
        for _ in 0..rng.range(20, 200) {
            match rng.below(15) {
                0..=5 => match model.slots.allocate(1) {
                    Some(run) => {
                        let crc = u32::try_from(rng.below(1 << 30)).expect("below 2^30");
                        model.slots.install(rng.below(model.blocks), run.start, crc);
                    }
                    None => drop(model.slots.evict(3, None)),
                },
                6 => model.slots.close_epoch(),
                7 => model.commit(),
                8..=10 => model.write_back(&mut rng),
                11 => model.drop_some(&mut rng, ordered),
                12 => model.zero_some(&mut rng, ordered),
                _ => model.continue_dump(if ordered { 8 } else { 3 }),
            }
            if rng.below(20) == 0 {
                model.commit();
                model.check_epochs();
                let found = model.check();
                (olds, zeroes) = (olds + found.0, zeroes + found.1);
                checkpoints += u32::from(!model.checkpoint.is_empty());
            }
        }
    }
    let seen = [olds, zeroes, checkpoints];
    assert!(seen.iter().all(|&n| n > 1000), "{seen:?} kept, zeroes, with a checkpoint");
}
