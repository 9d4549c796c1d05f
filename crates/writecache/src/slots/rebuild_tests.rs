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
        // A checkpoint, in the order of slots, which may name a block twice.
        let part = rng.pick(&[0, 500, 1000]);
        let dumped = (0..slots).filter(|_| rng.chance_per_mille(part)).collect::<Vec<_>>();
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

#[test]
fn the_dirty_blocks_of_more_than_one_sorted_run_are_all_found() {
    let count = u32::try_from(SORT_BLOCKS).unwrap() + 1000;
    // Every block of twice as many, in an order with no sense.
    let blocks = u64::from(count) * 2;
    let block = |slot: u32| (u64::from(slot) * 7_368_787) % blocks;
    let entries: Vec<Entry> = (0..count).map(|s| entry(Op::Write, block(s), s)).collect();
    let found = rebuilt(&entries, count, blocks).unwrap();
    assert_eq!(found.counts().dirty, count);
    assert_eq!(found.dirty().len(), u64::from(count));
    assert!((0..count).all(|slot| found.dirty().contains(block(slot))));
}
