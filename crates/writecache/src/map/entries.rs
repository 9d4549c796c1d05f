// SPDX-License-Identifier: Apache-2.0 OR MIT
//! Entries of a commit in the kernel's format: which entries it writes, and which it erases.
//!
//! ```text
//!   slot    unnamed ──named──▶ committed ──erased──▶ unnamed, and free if not needed
//!   entry   free               (sector, seq)         (sector, all ones)
//! ```
//!
//! For the kernel every committed entry is a dirty block. So a clean block has no entry: its slot
//! is a clean copy only until the cache is closed.
//!
//! Invariants
//! - WC-KE1 `logged` is set if the media may name the slot; such a slot keeps its block, and is not
//!   reused, until its erased entry is durable (WC-M4, WC-I2).
//! - WC-KE2 Between two commits the media name one slot a block at most. In a commit the new one is
//!   named with a number above the old one's, and durable, before the old one is erased.
use std::ops::Range;

use format::dm::{ENTRY_BYTES, Entry};

use super::{Slots, State};

/// The slots of one commit, in ascending order.
#[derive(Debug, Default)]
pub(crate) struct EntryBatch {
    /// Slots whose blocks become committed.
    pub(crate) named: Vec<u32>,
    /// Slots whose entries are erased: superseded, dropped, or clean.
    pub(crate) erased: Vec<u32>,
    /// Those of `erased` that become free.
    freed: Vec<u32>,
}

/// The sequence numbers of the entries that one step of a commit writes: `seq` for the slots of the
/// batch, `seq - 1` for slots that were committed before.
#[derive(Clone, Copy, Debug)]
pub(crate) struct EntryVersions {
    pub(crate) seq: u64,
    /// The entries of `EntryBatch::erased` are erased in this step.
    pub(crate) erased: bool,
}

impl Slots {
    /// The cache device has failed in the commit of the batch.
    pub(crate) fn give_up_entries(&mut self, batch: &EntryBatch) {
        for slot in &batch.named {
            self.given_up.insert(self.slots[*slot as usize].block());
        }
    }

    /// Everything that a commit must write now.
    pub(crate) fn take_entries(&mut self) -> EntryBatch {
        let mut batch = EntryBatch::default();
        let mut blocks = std::mem::take(&mut self.committing);
        blocks.append(&mut self.unlogged);
        self.counts.unlogged = 0;
        for block in blocks.iter() {
            let Some(slot) = self.slot_of(block) else { continue };
            let s = &mut self.slots[slot as usize];
            match s.state {
                // The next start reads an unreadable block again.
                State::Dirty | State::Bad if !s.logged => {
                    s.logged = true;
                    batch.named.push(slot);
                }
                State::Clean if s.logged => batch.erased.push(slot),
                State::Dirty | State::Bad | State::Clean => {}
                State::Free | State::Writing | State::Old | State::Zero | State::Limbo => {
                    unreachable!("WC-M2: slot {slot} is in the index")
                }
            }
        }
        for slot in std::mem::take(&mut self.limbo) {
            // Otherwise the last commit erased its entry, when it was clean; it was superseded
            // since.
            if self.slots[slot as usize].logged {
                batch.freed.push(slot);
            } else {
                self.make_free(slot);
            }
        }
        batch.erased.extend(&batch.freed);
        batch.named.sort_unstable();
        batch.erased.sort_unstable();
        batch
    }

    /// The entries of the batch's erased slots are durably erased.
    pub(crate) fn complete_erase(&mut self, batch: &EntryBatch) {
        for &slot in &batch.erased {
            self.slots[slot as usize].logged = false;
        }
        for &slot in &batch.freed {
            assert_eq!(self.slots[slot as usize].state, State::Limbo);
            self.make_free(slot);
        }
    }

    /// Encodes the entries of `slots` into `out`. They depend only on the batch, so the steps of
    /// one commit agree, whatever changes in the map between them.
    pub(crate) fn encode_entries(
        &self,
        slots: Range<u32>,
        block_sectors: u64,
        batch: &EntryBatch,
        writing: EntryVersions,
        out: &mut [u8],
    ) {
        for (slot, out) in slots.zip(out.as_chunks_mut::<ENTRY_BYTES>().0) {
            let s = &self.slots[slot as usize];
            let is_in = |list: &[u32]| list.binary_search(&slot).is_ok();
            let entry = |seq_count| Entry { original_sector: s.block() * block_sectors, seq_count };
            let entry = if !s.logged {
                Entry::FREE
            } else if is_in(&batch.named) {
                entry(writing.seq)
            } else if writing.erased && is_in(&batch.erased) {
                // The kernel erases in the same way: only one word changes, and no power cut tears
                // a word.
                entry(u64::MAX)
            } else {
                entry(writing.seq.checked_sub(1).expect("committed, so some commit has ended"))
            };
            *out = entry.encode();
        }
    }

    /// Marks the checksums of all slots as unknown.
    pub(crate) fn forget_checksums(&mut self) {
        self.unchecked.insert_range(0..self.counts.slots);
    }
}
