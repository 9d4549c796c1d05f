// SPDX-License-Identifier: Apache-2.0 OR MIT
//! Tests of what commits still have to log (WC-M3), with operations in any order; and of references
//! to versions that are no more (WC-M5).
use std::collections::BTreeMap;

use super::*;

const BLOCKS: u64 = 40;

impl Slots {
    /// A complete batch of the running commit.
    pub(crate) fn take_batch(&mut self, max: usize) -> Batch {
        let mut batch = self.begin_batch();
        assert!(self.extend_batch(&mut batch, max, usize::MAX), "one piece is enough");
        batch
    }

    /// The batch is durable.
    pub(crate) fn complete_batch(&mut self, mut batch: Batch) {
        self.end_batch(&batch);
        assert!(self.free_superseded(&mut batch, usize::MAX), "one piece is enough");
    }
}

/// A commit that is running.
enum Running {
    /// Entries are being added to the batch, of which there are so many at most.
    Adding(Batch, usize),
    Written(Batch),
    /// Its superseded slots are being freed.
    Durable(Batch),
}

/// The log's version of each block: its slot, and the operation of its entry.
type Log = BTreeMap<u64, (u32, Op)>;

fn log(batch: &Batch, log: &mut Log) {
    for e in &batch.entries {
        match e.op {
            Op::Drop => log.retain(|b, _| *b < e.block || *b >= e.block + u64::from(e.slot)),
            Op::Write | Op::Clean | Op::Bad => drop(log.insert(e.block, (e.slot, e.op))),
            Op::Evict | Op::Epoch | Op::WriteNext | Op::Zero => unreachable!("not logged here"),
        }
    }
}

/// WC-M3, and its count.
fn check(slots: &Slots, log: &Log) {
    for block in 0..BLOCKS {
        let now = slots.find(block).map(|found| match found.state {
            State::Dirty => (found.slot_ref.slot, Op::Write),
            State::Clean => (found.slot_ref.slot, Op::Clean),
            State::Bad => (found.slot_ref.slot, Op::Bad),
            State::Free | State::Writing | State::Old | State::Zero | State::Limbo => {
                unreachable!("WC-M2")
            }
        });
        let to_say = slots.unlogged.contains(block) || slots.committing.contains(block);
        assert_eq!(slots.needs_logging(block), to_say);
        assert!(to_say || log.get(&block).copied() == now, "block {block} is {now:?}");
    }
    assert_eq!(slots.counts.unlogged, slots.unlogged.len() + slots.committing.len());
    slots.check();
}

#[test]
fn every_block_that_differs_from_the_log_is_unlogged() {
    let mut rng = sim::Rng::new(11);
    for _ in 0..200 {
        let Ok(mut slots) = Rebuild::new(64).finish(BLOCKS) else { panic!("an empty map") };
        let (mut log_state, mut running) = (Log::new(), None::<Running>);
        for _ in 0..300 {
            let block = rng.below(BLOCKS);
            let found = slots.find(block).map(|found| found.slot_ref);
            match (rng.below(12), found) {
                (0..5, _) => {
                    if let Some(slot) = slots.allocate(1) {
                        slots.install(block, slot.start, 7);
                    }
                }
                (5, _) if slots.is_commit_complete() => slots.begin_commit(),
                (6 | 7, _) => {
                    let piece = rng.index(4) + 1;
                    let begun = || Running::Adding(slots.begin_batch(), rng.index(6) + 1);
                    running = match running.take().unwrap_or_else(begun) {
                        Running::Adding(mut batch, max) => {
                            let is_complete = slots.extend_batch(&mut batch, max, piece);
                            log(&batch, &mut log_state);
                            match is_complete {
                                true => Some(Running::Written(batch)),
                                false => Some(Running::Adding(batch, max)),
                            }
                        }
                        Running::Written(batch) => {
                            slots.end_batch(&batch);
                            Some(Running::Durable(batch))
                        }
                        Running::Durable(mut batch) => {
                            let is_done = slots.free_superseded(&mut batch, piece);
                            (!is_done).then_some(Running::Durable(batch))
                        }
                    };
                }
                (8, Some(slot_ref)) => slots.retire(block, slot_ref),
                (9, Some(slot_ref)) => slots.make_dirty(block, slot_ref),
                (10, Some(slot_ref)) => drop(slots.drop_block(block, slot_ref)),
                (11, _) => drop(slots.evict(2, None)),
                _ => {}
            }
            check(&slots, &log_state);
        }
    }
}

/// WC-M5: the same block in the same slot, and yet another version.
#[test]
fn an_old_reference_does_not_stand_for_a_newer_version() {
    let Ok(mut slots) = Rebuild::new(1).finish(BLOCKS) else { panic!("an empty map") };
    let write = |slots: &mut Slots| {
        let slot = slots.allocate(1).expect("the slot is free").start;
        slots.install(5, slot, 7);
        slots.find(5).expect("installed above").slot_ref
    };
    let old = write(&mut slots);
    assert!(slots.drop_block(5, old));
    let new = write(&mut slots);
    assert_eq!(new.slot, old.slot);
    slots.retire(5, old);
    assert_eq!(slots.find(5).map(|found| found.state), Some(State::Dirty));
    assert!(!slots.quarantine(5, old) && !slots.drop_block(5, old));
    assert_eq!(slots.to_write_most_likely(5, old).map(|(slot_ref, _)| slot_ref), Some(new));
    slots.retire(5, new);
    assert_eq!(slots.find(5).map(|found| found.state), Some(State::Clean));
}
