// SPDX-License-Identifier: Apache-2.0 OR MIT
//! Tests of the rebuilt map: against a plain map of last entries, and its refusals.
use super::*;

fn entry(op: Op, block: u64, slot: u32) -> Entry {
    Entry { op, block, slot, crc: slot ^ 0xabcd }
}

/// What recovery means, in the plainest words: of each block the last entry counts.
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
            Op::Epoch | Op::WriteNext => unreachable!("no epochs here"),
        }
    }
    if let Some((&block, _)) = map.last_key_value().filter(|(b, _)| **b >= blocks) {
        return Err(Contradiction::Beyond(block));
    }
    let mut owners = BTreeMap::new();
    for e in map.values() {
        if e.slot >= slots || owners.insert(e.slot, e.block).is_some() {
            return Err(Contradiction::Slot { block: e.block, slot: e.slot });
        }
    }
    Ok(map)
}

fn rebuilt(entries: &[Entry], slots: u32, blocks: u64) -> Result<Slots, Contradiction> {
    let mut rebuild = Rebuild::new(slots);
    // In pieces of odd sizes, as units come.
    entries.chunks(37).for_each(|part| rebuild.apply(part.iter().copied()));
    rebuild.finish(blocks)
}

/// Few slots and blocks, so that slots are claimed twice all the time, beyond the end now and then.
#[test]
fn of_each_block_the_last_entry_counts_whoever_claims_its_slot_meanwhile() {
    let mut rng = sim::Rng::new(7);
    let (mut maps, mut refusals) = (0, [0; 2]);
    for _ in 0..4_000 {
        let slots = u32::try_from(rng.range(4, 40)).unwrap();
        let blocks = rng.range(8, 80);
        let (past_slots, past_blocks) = (rng.below(30) == 0, rng.below(30) == 0);
        // A checkpoint, in the order of slots or in none, which may name a block twice.
        let part = rng.pick(&[0, 500, 1000]);
        let mut dumped = (0..slots).filter(|_| rng.chance_per_mille(part)).collect::<Vec<_>>();
        if rng.below(2) == 0 {
            rng.shuffle(&mut dumped);
        }
        let mut entries: Vec<Entry> = dumped
            .into_iter()
            .map(|slot| entry(rng.pick(&[Op::Write, Op::Clean, Op::Bad]), rng.below(blocks), slot))
            .collect();
        let log: Vec<Entry> = (0..rng.below(120))
            .map(|_| {
                let op = rng.pick(&[Op::Write, Op::Write, Op::Clean, Op::Bad, Op::Evict, Op::Drop]);
                let block = rng.below(blocks + u64::from(past_blocks));
                let slot = u32::try_from(rng.below(u64::from(slots + u32::from(past_slots))));
                let long = rng.below(40) == 0;
                match op {
                    Op::Drop => {
                        entry(op, block, if long { 1 << 30 } else { 1 + rng.pick(&[0, 3]) })
                    }
                    Op::Write | Op::Clean | Op::Bad | Op::Evict => entry(op, block, slot.unwrap()),
                    Op::Epoch | Op::WriteNext => unreachable!("not drawn"),
                }
            })
            .collect();
        entries.extend(log);
        match (plain(&entries, slots, blocks), rebuilt(&entries, slots, blocks)) {
            (Ok(map), Ok(found)) => {
                maps += 1;
                found.check();
                assert_eq!(found.counts().slots - found.counts().free, map.len() as u32);
                for e in map.values() {
                    let at = found.find(e.block).expect("the block is there");
                    assert_eq!(
                        (at.held.slot, at.state, at.crc),
                        (e.slot, state_of(e.op), Some(e.crc))
                    );
                    assert!(found.slots[at.held.slot as usize].logged);
                }
            }
            (Err(Contradiction::Slot { .. }), Err(Contradiction::Slot { .. })) => refusals[0] += 1,
            (Err(Contradiction::Beyond(a)), Err(Contradiction::Beyond(b))) => {
                assert_eq!(a, b);
                refusals[1] += 1;
            }
            (a, b) => panic!("{entries:?}: {:?} but {:?}", a.err(), b.map(|s| s.counts())),
        }
    }
    assert!(maps > 100 && refusals.iter().all(|&n| n > 20), "{maps} maps, {refusals:?} refused");
}

/// As a block that is written in each of many epochs, or in a crafted checkpoint: a look at all
/// versions for each of them takes minutes.
#[test]
fn a_block_that_every_slot_claims_is_in_the_last_one() {
    let count = 300_000;
    let of_one = |op| (0..count).map(move |slot| entry(op, 7, slot));
    let clean = rebuilt(&of_one(Op::Clean).collect::<Vec<_>>(), count, 8).unwrap();
    let mut rebuild = Rebuild::new(count);
    rebuild.apply([Entry::epoch(1, 1)].into_iter().chain(of_one(Op::WriteNext)));
    let kept = rebuild.finish(8).unwrap();
    for found in [&clean, &kept] {
        assert_eq!(found.find(7).map(|at| at.held.slot), Some(count - 1));
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
    let twice = Contradiction::Twice { block: 5, epoch: 1 };
    assert_eq!(rebuilt([1, 2, 1]).err(), Some(twice), "one has been superseded, one has not");
}

/// What was written before the order of epochs was taken up is of the oldest, and the media do not
/// say so yet.
#[test]
fn writes_that_tell_no_epoch_make_a_checkpoint_due() {
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
        // In an order with no sense: an odd factor takes no block twice.
        let block = |slot: u32| (u64::from(slot) * 7_368_787) % blocks;
        let entries: Vec<Entry> = (0..count).map(|s| entry(Op::Write, block(s), s)).collect();
        let found = rebuilt(&entries, count, blocks).unwrap();
        assert_eq!(found.counts().dirty, count, "of {blocks}");
        assert!((0..count).all(|slot| found.dirty().contains(block(slot))), "of {blocks}");
        assert_eq!(found.dirty().len(), u64::from(count), "of {blocks}");
    }
}

/// Every slot that is not vacant: slot, block, state, checksum.
fn held(slots: &Slots) -> Vec<(u32, u64, State, u32)> {
    let held = (0u32..).zip(&slots.slots).filter(|(_, s)| s.state != State::Free);
    held.map(|(slot, s)| (slot, s.block(), s.state, s.crc)).collect()
}

/// What is pending: epochs and slots, in their order.
fn pending(slots: &Slots) -> Vec<(u64, u32)> {
    let said = &slots.epochs.as_ref().expect("the entries tell of epochs").said;
    let (mut place, mut pending) = (crate::slots::said::Place::default(), Vec::new());
    while let Some((epoch, slots)) = said.next(&mut place, said.end(), 100) {
        pending.extend(slots.map(|slot| (epoch, slot)));
    }
    pending
}

/// A checkpoint as a cache with epochs tells it: clean blocks by their slots, then versions by
/// their epochs, wherever they lie. Each unit tells the oldest epoch that is pending, which may
/// have been retired meanwhile.
fn checkpoint_of_epochs(rng: &mut sim::Rng, slots: u32, blocks: u64) -> Vec<Vec<Entry>> {
    let mut vacant: Vec<u32> = (0..slots).collect();
    rng.shuffle(&mut vacant);
    let oldest = rng.range(1, 4);
    let mut clean: Vec<u32> = vacant.drain(..rng.below(u64::from(slots) / 2) as usize).collect();
    clean.sort_unstable();
    let told = |n: u64| Entry::epoch(oldest + n, oldest);
    let mut units = vec![vec![told(0)]];
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
                units.push(vec![told(epoch)]);
            }
            units.last_mut().expect("one from the start").push(entry(Op::Write, block, slot));
        }
        // The next one, told one way or the other; or some later one.
        if rng.below(2) == 0
            && let Some(slot) = vacant.pop()
        {
            epoch += 1;
            let next = entry(Op::WriteNext, rng.below(blocks), slot);
            units.last_mut().expect("as above").push(next);
        }
        epoch += rng.range(1, 4);
        units.push(vec![told(epoch)]);
    }
    units
}

/// RB4: without the index the last version of each block is found, and which ones stay, as with it.
#[test]
fn a_checkpoint_of_epochs_makes_the_same_map_with_and_without_the_index() {
    let mut rng = sim::Rng::new(11);
    let (mut olds, mut superseded) = (0, 0);
    for _ in 0..2_000 {
        let slots = u32::try_from(rng.range(4, 60)).unwrap();
        let blocks = rng.range(8, 40);
        let units = checkpoint_of_epochs(&mut rng, slots, blocks);
        let retired = rng.below(2) * 3;
        let last = Entry::epoch(1000, 1 + retired);
        let maps = [false, true].map(|indexed| {
            let mut rebuild = if indexed { Rebuild::indexed(slots) } else { Rebuild::new(slots) };
            units.iter().for_each(|unit| rebuild.apply(unit.iter().copied()));
            assert_eq!(rebuild.unindexed.is_none(), indexed, "{units:?}");
            rebuild.apply([last].into_iter());
            let found = rebuild.finish(blocks).unwrap();
            found.check();
            found
        });
        assert_eq!(held(&maps[0]), held(&maps[1]), "{units:?}");
        assert_eq!(pending(&maps[0]), pending(&maps[1]), "{units:?}");
        olds += maps[0].counts().old;
        superseded += maps[0].counts().free;
    }
    assert!(olds > 1000 && superseded > 1000, "{olds} are kept, {superseded} are not");
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
        let said = pending(&found);
        let Some(&(first, _)) = said.first() else { continue };
        let (of_first, later): (Vec<_>, Vec<_>) = said.iter().partition(|(e, _)| *e == first);
        larger[usize::from(later.len() < of_first.len())] += 1;
        found.begin_phase(crate::slots::Merge::Never);
        let versions = of_first.iter().map(|(_, slot)| found.slots[*slot as usize].block());
        let mut expected: Vec<u64> = versions.collect();
        expected.sort_unstable();
        assert!(found.phase_blocks().expect("begun").iter().eq(expected), "{units:?}");
        for (_, slot) in of_first {
            let block = found.slots[slot as usize].block();
            assert_eq!(found.to_write(block).map(|(held, _)| held.slot), Some(slot));
        }
    }
    assert!(larger.iter().all(|&n| n > 50), "{larger:?}");
}
