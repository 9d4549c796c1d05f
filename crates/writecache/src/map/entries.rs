// SPDX-License-Identifier: Apache-2.0 OR MIT
//! Entries of a commit in the kernel's format: which to write, which to erase.
//!
//! ```text
//!   slot    unnamed ──named──▶ committed ──erased──▶ unnamed, and free if not needed
//!   entry   free               (sector, seq)         (sector, all ones)
//! ```
//!
//! The kernel takes every committed entry for dirty. So a clean block has none: its slot remains
//! as a copy that is lost with the memory.
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
    /// Slots whose entries go: superseded, dropped, or clean.
    pub(crate) erased: Vec<u32>,
    /// Those of `erased` that are not needed any more.
    freed: Vec<u32>,
}

/// How a part of the entries is to stand on the media: the batch's slots are named with number
/// `seq`, and what was committed before has one below it.
#[derive(Clone, Copy, Debug)]
pub(crate) struct Writing {
    pub(crate) seq: u64,
    /// What the batch erases is erased by now.
    pub(crate) erased: bool,
}

impl Slots {
    /// All that a commit must write now.
    pub(crate) fn take_entries(&mut self) -> EntryBatch {
        let mut batch = EntryBatch::default();
        let mut blocks = std::mem::take(&mut self.committing);
        blocks |= std::mem::take(&mut self.unlogged);
        self.counts.unlogged = 0;
        for block in blocks {
            let Some(slot) = self.slot_of(block) else { continue };
            let s = &mut self.slots[slot as usize];
            match s.state {
                // A block that could not be read gets another chance at the next start.
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
            // Clean when the last commit erased it, and superseded since.
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
    pub(crate) fn entries_erased(&mut self, batch: &EntryBatch) {
        for &slot in &batch.erased {
            self.slots[slot as usize].logged = false;
        }
        for &slot in &batch.freed {
            assert_eq!(self.slots[slot as usize].state, State::Limbo);
            self.make_free(slot);
        }
    }

    /// Makes the entries of `slots` in `out`. Only the batch decides their contents, so two
    /// writings of one commit never contradict each other, whatever changes between them.
    pub(crate) fn encode_entries(
        &self,
        slots: Range<u32>,
        block_sectors: u64,
        batch: &EntryBatch,
        writing: Writing,
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
                // The kernel erases so, too: what changes is one word, which no power cut tears.
                entry(u64::MAX)
            } else {
                entry(writing.seq.checked_sub(1).expect("committed, so some commit has ended"))
            };
            *out = entry.encode();
        }
    }

    /// No checksum of what the slots hold now is known.
    pub(crate) fn forget_checksums(&mut self) {
        self.unchecked.insert_range(0..self.counts.slots);
    }
}
