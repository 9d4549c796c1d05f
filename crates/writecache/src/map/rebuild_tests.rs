// SPDX-License-Identifier: Apache-2.0 OR MIT
//! Tests of the rebuilt map: against a plain map of last entries, and its refusals.
use std::collections::BTreeMap;

use super::*;

fn entry(op: Op, block: u64, slot: u32) -> Entry {
    Entry { op, block, slot, crc: slot ^ 0xabcd }
}

/// The plainest form of recovery: of each block the last entry counts.
fn plain(
    entries: &[Entry],
    slots: u32,
    blocks: u64,
) -> Result<BTreeMap<u64, Entry>, Contradiction> {
    let mut map: BTreeMap<u64, Entry> = BTreeMap::new();
    for e in entries {
        match e.op {
            Op::Write | Op::Clean | Op::Bad => drop(map.insert(e.block, *e)),
            Op::Evict => {
                if map.get(&e.block).is_some_and(|at| at.slot == e.slot) {
                    map.remove(&e.block);
                }
            }
            Op::Drop => {
                map.retain(|b, _| *b < e.block || *b >= e.block + u64::from(e.slot));
            }
            Op::Epoch | Op::WriteNext | Op::Zero => unreachable!("no epochs here"),
        }
    }
    if let Some((&block, _)) = map.last_key_value().filter(|(b, _)| **b >= blocks) {
        return Err(Contradiction::OutOfRange(block));
    }
    let mut owners = BTreeMap::new();
    for e in map.values() {
        if e.slot >= slots || owners.insert(e.slot, e.block).is_some() {
            return Err(Contradiction::Slot { block: e.block, slot: e.slot });
        }
    }
    Ok(map)
}

fn rebuilt(
    dumped: &[Entry],
    log: &[Entry],
    slots: u32,
    blocks: u64,
) -> Result<Slots, Contradiction> {
    let mut rebuild = Rebuild::new(slots);
    // In pieces of odd sizes, as units come.
    dumped.chunks(37).for_each(|part| rebuild.apply(part.iter().copied()));
    log.chunks(37).for_each(|part| rebuild.apply_log(part));
    rebuild.finish(blocks)
}

/// A number beyond 2^34 instead of each odd one, which has the hash of the even one before it.
fn wide(block: u64) -> u64 {
    let above = 0x9e37_79b9_7f4a_7c15 & ((1 << 34) - 1);
    if block.is_multiple_of(2) { block / 2 } else { 1 << 34 | (block / 2) ^ above }
}

#[test]
fn wide_blocks_share_a_hash_in_pairs() {
    assert!((0..100).all(|n| Index::hash(wide(2 * n)) == Index::hash(wide(2 * n + 1))));
}

/// Few slots and blocks, so that slots are claimed twice all the time, beyond the end now and then.
#[test]
fn the_last_entry_of_each_block_counts() {
    let mut rng = sim::Rng::new(7);
    let (mut maps, mut refusals) = ([0; 2], [0; 2]);
    for _ in 0..8_000 {
        let slots = u32::try_from(rng.range(4, 40)).unwrap();
        let blocks = rng.range(8, 80);
        let (past_slots, past_blocks) = (rng.below(30) == 0, rng.below(30) == 0);
        // Blocks beyond 2^34 now and then, two of a hash.
        let is_wide = rng.below(4) == 0;
        let (block, blocks) = match is_wide {
            true => (wide as fn(u64) -> u64, (blocks, 1 << 40)),
            false => (std::convert::identity as fn(u64) -> u64, (blocks, blocks)),
        };
        let (drawn, blocks) = blocks;
        // A checkpoint, in the order of slots or in none, which may name a block twice.
        let part = rng.pick(&[0, 500, 1000]);
        let mut dumped = (0..slots).filter(|_| rng.chance_per_mille(part)).collect::<Vec<_>>();
        match rng.below(3) {
            0 => rng.shuffle(&mut dumped),
            // With epochs a slot may be met twice.
            1 => dumped.extend(dumped.clone().iter().filter(|_| rng.below(4) == 0)),
            _ => {}
        }
        let op = |rng: &mut sim::Rng| rng.pick(&[Op::Write, Op::Clean, Op::Bad]);
        let dumped = dumped.into_iter();
        let dumped = dumped.map(|slot| entry(op(&mut rng), block(rng.below(drawn)), slot));
        let dumped: Vec<Entry> = dumped.collect();
        let log: Vec<Entry> = (0..rng.below(120))
            .map(|_| {
                let op = rng.pick(&[Op::Write, Op::Write, Op::Clean, Op::Bad, Op::Evict, Op::Drop]);
                let block = block(rng.below(drawn + u64::from(past_blocks)));
                let slot = u32::try_from(rng.below(u64::from(slots + u32::from(past_slots))));
                let long = rng.below(40) == 0;
                match op {
                    Op::Drop => {
                        entry(op, block, if long { 1 << 30 } else { 1 + rng.pick(&[0, 3, 70]) })
                    }
                    Op::Write | Op::Clean | Op::Bad | Op::Evict => entry(op, block, slot.unwrap()),
                    Op::Epoch | Op::WriteNext | Op::Zero => unreachable!("not drawn"),
                }
            })
            .collect();
        let entries = [&dumped[..], &log].concat();
        match (plain(&entries, slots, blocks), rebuilt(&dumped, &log, slots, blocks)) {
            (Ok(map), Ok(found)) => {
                maps[usize::from(is_wide)] += 1;
                found.check();
                assert_eq!(found.counts().slots - found.counts().free, map.len() as u32);
                for e in map.values() {
                    let at = found.find(e.block).expect("the block is there");
                    assert_eq!(
                        (at.slot_ref.slot, at.state, at.crc),
                        (e.slot, state_of(e.op), Some(e.crc))
                    );
                    assert!(found.slots[at.slot_ref.slot as usize].logged);
                }
            }
            (Err(Contradiction::Slot { .. }), Err(Contradiction::Slot { .. })) => refusals[0] += 1,
            (Err(Contradiction::OutOfRange(a)), Err(Contradiction::OutOfRange(b))) => {
                assert_eq!(a, b);
                refusals[1] += 1;
            }
            (a, b) => panic!("{entries:?}: {:?} but {:?}", a.err(), b.map(|s| s.counts())),
        }
    }
    assert!(maps.iter().chain(&refusals).all(|&n| n > 30), "{maps:?} maps, {refusals:?} refused");
}

/// A block that is written in each of many epochs, or in a crafted checkpoint: comparing each
/// version with all others would take minutes.
#[test]
fn a_block_that_every_slot_claims_is_in_the_last_one() {
    let count = 300_000;
    let of_one = |op| (0..count).map(move |slot| entry(op, 7, slot));
    let clean = rebuilt(&of_one(Op::Clean).collect::<Vec<_>>(), &[], count, 8).unwrap();
    let logged = rebuilt(&[], &of_one(Op::Clean).collect::<Vec<_>>(), count, 8).unwrap();
    let mut rebuild = Rebuild::new(count);
    rebuild.apply([Entry::epoch(1, 1)].into_iter().chain(of_one(Op::WriteNext)));
    let kept = rebuild.finish(8).unwrap();
    for found in [&clean, &logged, &kept] {
        assert_eq!(found.find(7).map(|at| at.slot_ref.slot), Some(count - 1));
    }
    assert_eq!((clean.counts().free, clean.counts().old), (count - 1, 0));
    assert_eq!((kept.counts().free, kept.counts().old), (0, count - 1));
}

/// An epoch has one version of a block: the later one took the place of the other. So it is
/// damage when a superseded version is in it, too.
#[test]
fn two_versions_of_one_epoch_are_refused() {
    let rebuilt = |epochs: [u64; 3]| {
        let mut rebuild = Rebuild::new(3);
        for (slot, epoch) in (0..).zip(epochs) {
            rebuild.apply([Entry::epoch(epoch, 1), entry(Op::Write, 5, slot)].into_iter());
        }
        rebuild.finish(8).map(|found| found.counts())
    };
    assert_eq!(rebuilt([1, 2, 3]).map(|counts| (counts.dirty, counts.old)), Ok((1, 2)));
    let twice = Contradiction::Duplicate { block: 5, epoch: 1 };
    assert_eq!(rebuilt([1, 2, 1]).err(), Some(twice), "one has been superseded, one has not");
}

/// A journal tells of two versions again, which have other slots in the log since their own refused
/// their data (WC-RB6).
#[test]
fn versions_that_are_told_again_take_the_place_of_those_before() {
    let rebuilt = |epochs: &[u64]| {
        let mut rebuild = Rebuild::new(8);
        for (slot, &epoch) in (0..).zip(epochs) {
            rebuild.apply([Entry::epoch(epoch, 1), entry(Op::Write, 5, slot)].into_iter());
        }
        rebuild.finish(8).map(|found| pending(&found).to_vec())
    };
    assert_eq!(rebuilt(&[1, 2, 1, 2]), Ok(vec![(1, 2), (2, 3)]));
    assert_eq!(rebuilt(&[1, 2, 3, 1, 2, 3]), Ok(vec![(1, 3), (2, 4), (3, 5)]));
    assert_eq!(rebuilt(&[1, 2, 3, 2, 3]), Ok(vec![(1, 0), (2, 3), (3, 4)]), "its beginning is cut");
    let twice = Contradiction::Duplicate { block: 5, epoch: 1 };
    assert_eq!(rebuilt(&[1, 2, 3, 1, 2]), Err(twice), "it tells all to the end");
}

/// What was written before the order of epochs was taken up is of the oldest, and the media do not
/// say so yet.
#[test]
fn writes_without_an_epoch_make_a_checkpoint_due() {
    for before in [false, true] {
        let mut rebuild = Rebuild::new(2);
        if before {
            rebuild.apply([entry(Op::Write, 3, 0)].into_iter());
        }
        rebuild.apply([Entry::epoch(4, 2), entry(Op::Write, 5, 1)].into_iter());
        let mut found = rebuild.finish(8).unwrap();
        let expected: &[(u64, u32)] = if before { &[(2, 0), (4, 1)] } else { &[(4, 1)] };
        assert_eq!(pending(&found), expected);
        assert_eq!(found.set_ordered(true), before, "written before: {before}");
    }
}

/// Side by side, and far from each other.
#[test]
fn the_dirty_blocks_of_more_than_one_sorted_run_are_all_found() {
    let count = u32::try_from(SORT_BLOCKS).unwrap() + 1000;
    for blocks in [u64::from(count) * 2, 1 << 34] {
        // In a scattered order: an odd factor takes no block twice.
        let block = |slot: u32| (u64::from(slot) * 7_368_787) % blocks;
        let entries: Vec<Entry> = (0..count).map(|s| entry(Op::Write, block(s), s)).collect();
        let found = rebuilt(&entries, &[], count, blocks).unwrap();
        assert_eq!(found.counts().dirty, count, "of {blocks}");
        assert!((0..count).all(|slot| found.dirty().contains(block(slot))), "of {blocks}");
        assert_eq!(found.dirty().len(), u64::from(count), "of {blocks}");
    }
}

/// Every slot that is not vacant: slot, block, state, checksum.
fn slot_ref(slots: &Slots) -> Vec<(u32, u64, State, u32)> {
    let slot_ref = (0u32..).zip(&slots.slots).filter(|(_, s)| s.state != State::Free);
    slot_ref.map(|(slot, s)| (slot, s.block(), s.state, s.crc)).collect()
}

/// What is pending: epochs and slots, in their order.
fn pending(slots: &Slots) -> Vec<(u64, u32)> {
    let queue = &slots.epochs.as_ref().expect("the entries name epochs").pending;
    let (mut place, mut pending) = (crate::map::pending::Place::default(), Vec::new());
    while let Some((epoch, slots)) = queue.next(&mut place, queue.end(), 100) {
        pending.extend(slots.map(|slot| (epoch, slot)));
    }
    pending
}

/// Zeroes over some of the blocks.
fn zero(rng: &mut sim::Rng, slot: u32, blocks: u64) -> Entry {
    let block = rng.below(blocks);
    let longest = (blocks - block).min(rng.pick(&[1, 5, 100]));
    let crc = u32::try_from(rng.range(1, longest + 1)).unwrap();
    Entry { op: Op::Zero, block, slot, crc }
}

/// A checkpoint as a cache with epochs writes it: clean blocks in the order of slots, then versions
/// in the order of epochs. Each unit has the oldest pending epoch, which may have been retired
/// meanwhile.
fn checkpoint_of_epochs(rng: &mut sim::Rng, slots: u32, blocks: u64) -> Vec<Vec<Entry>> {
    let mut vacant: Vec<u32> = (0..slots).collect();
    rng.shuffle(&mut vacant);
    // Only the low half of an epoch is kept of each version.
    let oldest = rng.range(1, 4) + rng.pick(&[0, 3 << 30, (1 << 32) - 8]);
    let mut clean: Vec<u32> = vacant.drain(..rng.below(u64::from(slots) / 2) as usize).collect();
    clean.sort_unstable();
    let epoch_entry = |n: u64| Entry::epoch(oldest + n, oldest);
    let mut units = vec![vec![epoch_entry(0)]];
    for slot in clean {
        units[0].push(entry(Op::Clean, rng.below(blocks), slot));
    }
    let mut epoch = 0;
    while !vacant.is_empty() {
        let mut of_epoch: Vec<u64> = (0..blocks).filter(|_| rng.chance_per_mille(300)).collect();
        rng.shuffle(&mut of_epoch);
        for block in of_epoch {
            let Some(slot) = vacant.pop() else { break };
            if rng.below(5) == 0 {
                units.push(vec![epoch_entry(epoch)]);
            }
            units.last_mut().expect("one from the start").push(entry(Op::Write, block, slot));
        }
        if rng.below(4) == 0
            && let Some(slot) = vacant.pop()
        {
            epoch += 1;
            units.push(vec![epoch_entry(epoch), zero(rng, slot, blocks)]);
        }
        // The next epoch, in one of its two encodings; or some later one.
        if rng.below(2) == 0
            && let Some(slot) = vacant.pop()
        {
            epoch += 1;
            let next = entry(Op::WriteNext, rng.below(blocks), slot);
            units.last_mut().expect("as above").push(next);
        }
        epoch += rng.range(1, 4);
        units.push(vec![epoch_entry(epoch)]);
    }
    units
}

/// A version in the model: its entry, its epoch.
type Version = (Entry, u64);

/// The plainest form of recovery with epochs: the newest version of each block, and those that a
/// write of a later epoch superseded.
#[derive(Default)]
struct Plain {
    current: BTreeMap<u64, Version>,
    superseded: Vec<Version>,
    zeroes: Vec<Version>,
    oldest: u64,
}

impl Plain {
    fn apply(&mut self, unit: &[Entry]) {
        let mut epoch = 0; // of a write without an epoch
        for e in unit {
            match e.op {
                Op::Epoch => {
                    (epoch, self.oldest) = (e.block, self.oldest.max(e.block - u64::from(e.slot)));
                }
                Op::Drop => {
                    self.current.retain(|b, _| *b < e.block || *b >= e.block + u64::from(e.slot));
                }
                Op::Evict => {
                    if self.current.get(&e.block).is_some_and(|(at, _)| at.slot == e.slot) {
                        self.current.remove(&e.block);
                    }
                }
                Op::Zero => {
                    self.claim(e.slot);
                    let range = e.block..e.block + u64::from(e.crc);
                    let ended = self.current.extract_if(range, |_, _| true);
                    let is_kept = |(old, before): &Version| {
                        old.op == Op::Write && old.slot != e.slot && *before < epoch
                    };
                    self.superseded.extend(ended.map(|(_, old)| old).filter(is_kept));
                    self.zeroes.push((*e, epoch));
                }
                Op::Write | Op::WriteNext | Op::Clean | Op::Bad => {
                    epoch += u64::from(e.op == Op::WriteNext);
                    let op = if e.op == Op::WriteNext { Op::Write } else { e.op };
                    let old = self.current.insert(e.block, (Entry { op, ..*e }, epoch));
                    // A version that claims the slot of a kept one gets it.
                    self.claim(e.slot);
                    let is_kept = |(old, before): &Version| {
                        old.op == Op::Write && old.slot != e.slot && *before < epoch
                    };
                    self.superseded.extend(old.filter(is_kept));
                }
            }
        }
    }

    fn claim(&mut self, slot: u32) {
        self.superseded.retain(|(kept, _)| kept.slot != slot);
        self.zeroes.retain(|(zeroes, _)| zeroes.slot != slot);
    }

    /// Slot, block, state, checksum of what is in the map, by slot.
    fn slot_ref(&self) -> Vec<(u32, u64, State, u32)> {
        let current = self.current.values().map(|(e, _)| (e, state_of(e.op)));
        let pending = self.superseded.iter().filter(|(_, epoch)| *epoch >= self.oldest);
        let olds = pending.map(|(e, _)| (e, State::Old));
        let zeroes = self.zeroes.iter().filter(|(_, epoch)| *epoch >= self.oldest);
        let olds = olds.chain(zeroes.map(|(e, _)| (e, State::Zero)));
        let mut slot_ref: Vec<_> =
            current.chain(olds).map(|(e, state)| (e.slot, e.block, state, e.crc)).collect();
        slot_ref.sort_unstable_by_key(|slot_ref| slot_ref.0);
        slot_ref
    }

    /// Epochs and slots of what is pending, in order.
    fn pending(&self) -> Vec<(u64, u32)> {
        let dirty = self.current.values().filter(|(e, _)| e.op == Op::Write);
        let olds = self.superseded.iter().filter(|(_, epoch)| *epoch >= self.oldest);
        let epoch = |epoch: u64| epoch.max(self.oldest).max(1);
        let zeroes = self.zeroes.iter().filter(|(_, epoch)| *epoch >= self.oldest);
        let all = dirty.chain(olds).chain(zeroes);
        let mut pending: Vec<_> = all.map(|(e, of)| (epoch(*of), e.slot)).collect();
        pending.sort_unstable();
        pending
    }
}

/// A log after a checkpoint, as a cache writes it: writes to free slots, in epochs that end now and
/// then and are retired in order; and blocks that are written back or leave.
fn log_of_epochs(
    rng: &mut sim::Rng,
    model: &mut Plain,
    slots: u32,
    blocks: u64,
) -> Vec<Vec<Entry>> {
    let newest = model.pending().last().map_or(model.oldest, |last| last.0);
    let (mut epoch, mut units) = (newest.max(1), Vec::new());
    for _ in 0..rng.below(60) {
        epoch += rng.below(2);
        model.oldest = model.oldest.max(epoch.saturating_sub(rng.below(6)));
        let mut unit = vec![Entry::epoch(epoch, model.oldest)];
        for _ in 0..rng.below(4) {
            let slot_ref = model.slot_ref();
            let pending: Vec<u32> = model.pending().iter().map(|p| p.1).collect();
            let vacant: Vec<u32> =
                (0..slots).filter(|slot| slot_ref.iter().all(|h| h.0 != *slot)).collect();
            let retired =
                model.current.values().find(|(e, of)| e.op == Op::Write && *of < model.oldest);
            let gone = model.current.values().find(|(e, _)| e.op == Op::Clean);
            let first = rng.below(blocks);
            // Only clean blocks leave.
            let count = rng.pick(&[2, 5, 200]);
            let mut leaving = model.current.range(first..first + u64::from(count));
            let leaves = leaving.all(|(_, (e, _))| e.op == Op::Clean);
            // And nothing that is pending was before, as zeroes may have it.
            let left = first..first + u64::from(count);
            let pends = |(e, of): &Version| *of >= model.oldest && left.contains(&e.block);
            let leaves = leaves && !model.superseded.iter().any(pends);
            if rng.below(12) == 0 && !vacant.is_empty() {
                let slot = rng.pick(&vacant);
                let zero = zero(rng, slot, blocks);
                let pair = [Entry::epoch(epoch + 1, model.oldest), zero];
                epoch += 2;
                model.apply(&pair);
                unit.extend(pair);
                unit.push(Entry::epoch(epoch, model.oldest));
                continue;
            }
            let next = match rng.below(8) {
                0 => retired.map(|(e, _)| Entry { op: Op::Clean, ..*e }),
                1 => gone.map(|(e, _)| Entry { op: Op::Drop, slot: 1, ..*e }),
                2 => gone.map(|(e, _)| Entry { op: Op::Evict, ..*e }),
                3 if leaves => Some(entry(Op::Drop, first, count)),
                4 if !vacant.is_empty() => Some(entry(Op::WriteNext, first, rng.pick(&vacant))),
                _ if !vacant.is_empty() => Some(entry(Op::Write, first, rng.pick(&vacant))),
                _ => None,
            };
            assert!(next.is_none_or(|e| e.op != Op::Write || !pending.contains(&e.slot)));
            let Some(next) = next else { continue };
            model.apply(&[Entry::epoch(epoch, model.oldest), next]);
            epoch += u64::from(next.op == Op::WriteNext);
            unit.push(next);
        }
        units.push(unit);
    }
    units
}

/// WC-RB3: which versions stay, and in which order they are written back.
#[test]
fn checkpoint_and_log_of_epochs_make_the_models_map() {
    let mut rng = sim::Rng::new(11);
    let (mut olds, mut zeroes, mut superseded, mut retired) = (0, 0, 0, 0);
    for _ in 0..4_000 {
        let slots = u32::try_from(rng.range(4, 60)).unwrap();
        let blocks = rng.range(8, 40);
        let mut model = Plain::default();
        let units = checkpoint_of_epochs(&mut rng, slots, blocks);
        units.iter().for_each(|unit| model.apply(unit));
        let log = log_of_epochs(&mut rng, &mut model, slots, blocks);
        let mut rebuild = Rebuild::new(slots);
        units.iter().for_each(|unit| rebuild.apply(unit.iter().copied()));
        log.iter().for_each(|unit| rebuild.apply_log(unit));
        let found = rebuild.finish(blocks).unwrap();
        found.check();
        assert_eq!(slot_ref(&found), model.slot_ref(), "{units:?} {log:?}");
        assert_eq!(pending(&found), model.pending(), "{units:?} {log:?}");
        olds += found.counts().old;
        zeroes += found.counts().zero;
        superseded += found.counts().free;
        retired += model.superseded.len() - found.counts().old as usize;
    }
    let counted = [olds as usize, zeroes as usize, superseded as usize, retired];
    assert!(counted.iter().all(|&n| n > 1000), "{counted:?} kept, zeroes, free, retired");
}

/// Whether the epoch that is written back first is most of what is pending, or a small part of it.
#[test]
fn the_first_phase_writes_all_versions_of_the_first_epoch() {
    let mut rng = sim::Rng::new(12);
    let mut larger = [0, 0];
    for _ in 0..1_000 {
        let slots = u32::try_from(rng.range(4, 60)).unwrap();
        let mut rebuild = Rebuild::new(slots);
        let mut units = checkpoint_of_epochs(&mut rng, slots, 40);
        units.truncate(rng.range(1, 9) as usize);
        units.iter().for_each(|unit| rebuild.apply(unit.iter().copied()));
        let mut found = rebuild.finish(40).unwrap();
        let versions = pending(&found);
        let Some(&(first, _)) = versions.first() else { continue };
        let (of_first, later): (Vec<_>, Vec<_>) = versions.iter().partition(|(e, _)| *e == first);
        larger[usize::from(later.len() < of_first.len())] += 1;
        found.begin_phase(crate::map::MergeRule::Never);
        let is_zero = |slot: u32| found.slots[slot as usize].state == State::Zero;
        let zeroes = of_first.iter().filter(|(_, slot)| is_zero(*slot)).count();
        assert_eq!(found.phase_zeroes().map_or(0, |(_, count)| count), zeroes);
        if zeroes > 0 {
            assert!(zeroes == of_first.len() && found.phase_blocks().is_none(), "WC-Z2");
            found.complete_phase_zeroes();
            continue;
        }
        let versions = of_first.iter().map(|(_, slot)| found.slots[*slot as usize].block());
        let mut expected: Vec<u64> = versions.collect();
        expected.sort_unstable();
        assert!(found.phase_blocks().expect("begun").iter().eq(expected), "{units:?}");
        for (_, slot) in of_first {
            let block = found.slots[slot as usize].block();
            assert_eq!(found.to_write(block).map(|(slot_ref, _)| slot_ref.slot), Some(slot));
        }
    }
    assert!(larger.iter().all(|&n| n > 50), "{larger:?}");
}
