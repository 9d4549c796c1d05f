// SPDX-License-Identifier: Apache-2.0 OR MIT
//! Batches: what one record of the log says of the blocks that have changed (WC-M3), and which
//! slots become free when it is durable (WC-M4).
use format::{Entry, Op};

use super::Slots;
use super::slot::State;

/// Blocks whose slots are searched together.
const FOUND_TOGETHER: usize = 16;

/// The memory of a batch is reused by the next one if it has at most so many entries: 48 KiB.
const SPARE_MAX: usize = 1024;

/// Entries of one commit, and the slots that become free when it is durable.
#[derive(Default)]
pub(crate) struct Batch {
    pub(crate) entries: Vec<Entry>,
    pub(super) freed: Vec<u32>,
    /// The oldest pending epoch, as the entries name it.
    pub(super) oldest: Option<u64>,
}

impl Batch {
    /// Versions have moved from one slot to another since the batch was taken. Returns whether the
    /// batch has any of them.
    pub(crate) fn follow(&mut self, moves: Vec<(u32, u32)>) -> bool {
        let mut any = false;
        for (from, to) in moves {
            let is_version = |e: &&mut Entry| matches!(e.op, Op::Write | Op::WriteNext | Op::Clean);
            let versions = self.entries.iter_mut().filter(is_version).map(|entry| &mut entry.slot);
            for slot in versions.chain(&mut self.freed).filter(|slot| **slot == from) {
                (*slot, any) = (to, true);
            }
        }
        any
    }
}

impl Slots {
    /// A batch without entries.
    pub(crate) fn begin_batch(&mut self) -> Batch {
        std::mem::take(&mut self.spare)
    }

    /// Adds the next entries of the running commit to a batch, which has at most `max`; none when
    /// all is logged. Returns whether the batch is complete: without epochs only `piece` blocks are
    /// looked at, and others may change before the next piece.
    pub(crate) fn extend_batch(&mut self, batch: &mut Batch, max: usize, piece: usize) -> bool {
        if let Some(mut epochs) = self.epochs.take() {
            *batch = self.take_batch_of_epochs(&mut epochs, max);
            self.epochs = Some(epochs);
            return true;
        }
        let Batch { entries, freed, .. } = batch;
        let (mut last_taken, mut is_complete) = (None, true);
        let mut members = self.committing.iter();
        let (mut left, mut nth, mut count) = (piece, 0, 0);
        let mut found = [(0, None); FOUND_TOGETHER];
        loop {
            if nth == count {
                (nth, count) = (0, 0);
                // Together: the processor then waits for many of their slots at the same time.
                while count < FOUND_TOGETHER.min(left)
                    && let Some(block) = members.next()
                {
                    found[count] = (block, self.slot_of(block));
                    count += 1;
                }
                left -= count;
            }
            if count == 0 {
                is_complete = left > 0 || members.next().is_none();
                break;
            }
            let (block, slot) = found[nth];
            nth += 1;
            let entry = match slot {
                Some(slot) => {
                    let s = &mut self.slots[slot as usize];
                    s.logged = true;
                    let op = match s.state {
                        State::Dirty => Op::Write,
                        State::Clean => Op::Clean,
                        State::Bad => Op::Bad,
                        State::Free | State::Writing | State::Old | State::Zero | State::Limbo => {
                            unreachable!("WC-M2: slot {slot} is in the index")
                        }
                    };
                    Entry { op, block, slot, crc: s.crc }
                }
                None => Entry { op: Op::Drop, block, slot: 1, crc: 0 },
            };
            let extends =
                |last: &Entry| last.op == Op::Drop && last.block + u64::from(last.slot) == block;
            let full = entries.len() == max;
            match entries.last_mut().filter(|last| entry.op == Op::Drop && extends(last)) {
                Some(last) => last.slot += 1,
                None if full => break,
                None => entries.push(entry),
            }
            last_taken = Some(block);
            // One that changed again since the commit began is logged too: the entry has the newest
            // state.
            if !self.unlogged.is_empty() {
                self.unlogged.remove(block);
            }
        }
        if let Some(last) = last_taken {
            self.committing.remove_range(..=last);
        }
        self.counts.unlogged = self.unlogged.len() + self.committing.len();
        if is_complete {
            self.take_unnamed(freed);
        }
        is_complete
    }

    /// Moves slots out of limbo that no record names any more when the batch that was just built is
    /// durable.
    pub(super) fn take_unnamed(&mut self, freed: &mut Vec<u32>) {
        let mut limbo = std::mem::take(&mut self.limbo);
        freed.extend(limbo.extract_if(.., |slot| {
            let block = self.slots[*slot as usize].block();
            !self.needs_logging(block)
        }));
        self.limbo = limbo;
    }

    /// The batch is durable: the slots that it supersedes may be freed (WC-I2).
    pub(crate) fn end_batch(&mut self, batch: &Batch) {
        if let (Some(e), Some(oldest)) = (&mut self.epochs, batch.oldest) {
            e.oldest_logged = oldest;
        }
        if self.is_commit_complete() {
            self.end_commit();
        }
    }

    /// The cache device has failed in the commit of the batch.
    pub(crate) fn give_up_batch(&mut self, batch: &Batch) {
        for entry in &batch.entries {
            let blocks = match entry.op {
                Op::Write | Op::WriteNext => 1,
                Op::Zero => u64::from(entry.crc),
                Op::Clean | Op::Evict | Op::Bad | Op::Epoch | Op::Drop => 0,
            };
            self.given_up.insert_range(entry.block..entry.block + blocks);
        }
    }

    /// Frees slots that a durable batch supersedes, `piece` at most. Returns whether all are free;
    /// then the batch is done with.
    pub(crate) fn free_superseded(&mut self, batch: &mut Batch, piece: usize) -> bool {
        let left = batch.freed.len().saturating_sub(piece);
        for slot in batch.freed.drain(left..) {
            assert_eq!(self.slots[slot as usize].state, State::Limbo);
            self.make_free(slot);
        }
        if left > 0 {
            return false;
        }
        batch.entries.clear();
        if batch.entries.capacity().max(batch.freed.capacity()) <= SPARE_MAX {
            self.spare = std::mem::take(batch);
        }
        true
    }

    /// A checkpoint is durable, and nothing was committed since it began. So the slots in limbo are
    /// free, except those of unlogged blocks (WC-M4). Without this, a cache that is opened without
    /// ordered mode would never free the slots that it had kept for its epochs: no commit names
    /// them.
    pub(crate) fn free_after_checkpoint(&mut self) {
        let mut freed = Vec::new();
        self.take_unnamed(&mut freed);
        freed.into_iter().for_each(|slot| self.make_free(slot));
    }
}
