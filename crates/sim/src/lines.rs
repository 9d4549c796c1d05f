// SPDX-License-Identifier: Apache-2.0 OR MIT
//! The contents of simulated persistent memory: as loads see them, and the part that is only in the
//! CPU's caches.
//!
//! ```text
//!   write submitted ── store ──▶ visible ───────────────────────────────▶ reads
//!                        │
//!                        └──▶ its cache line: stores in program order ── fence ──▶ durable
//!                               └── power cut: each line lost, kept, or a part of it ──▶ durable
//! ```
//!
//! As in the driver, a write is copied at submission and completes later. A line may be evicted at
//! any time, so any part of it may survive a power cut without a fence: either its stores up to
//! some moment (a line in a cache), or any words of them (non-temporal stores). Words of 8 bytes
//! are whole.
//!
//! Invariants
//! - SI-L1 A fence makes durable the stores of all writes that had completed when it was submitted,
//!   and the earlier stores of the same lines. It promises nothing for other stores.
//! - SI-L2 An older store to a word never replaces a newer one.
//! - SI-L3 Stores that a failed fence should have covered are not made durable by later fences,
//!   unless their line is stored to again. (A file behind the mapping may fail; memory can't.)

use std::collections::BTreeMap;
use std::rc::Rc;

use crate::image::{Image, PendingWrite};
use crate::media::{FlushMark, parts};
use crate::pages::{Page, Pages, pages_of};
use crate::rng::Rng;

/// Bytes of a cache line.
const LINE_BYTES: u64 = 64;
/// Bytes that are stored atomically.
const WORD_BYTES: u64 = 8;

/// The part of a write that lies in one line.
#[derive(Debug)]
struct Store {
    write: u64,
    offset: u64,
    data: Vec<u8>,
}

/// A write in flight, or with stores that are not durable.
#[derive(Debug)]
struct Write {
    offset: u64,
    len: usize,
    /// Stores that are not durable.
    left: usize,
    /// Order of completion; `None` while in flight.
    completed: Option<u64>,
    /// Number of the failure of a fence that should have covered it (SI-L3).
    abandoned: Option<u64>,
}

impl Write {
    fn is_covered(&self, mark: FlushMark) -> bool {
        self.completed.is_some_and(|nth| nth < mark.completed)
            && self.abandoned.is_none_or(|failure| failure > mark.failures)
    }
}

#[derive(Debug)]
pub(crate) struct Lines {
    visible: Pages,
    durable: Pages,
    /// Stores of each line that are not durable, in program order.
    unfenced: BTreeMap<u64, Vec<Store>>,
    /// Those that are in flight or have such stores.
    writes: BTreeMap<u64, Write>,
    next_write: u64,
    completed: u64,
    failures: u64,
}

impl Lines {
    pub(crate) fn new(capacity_bytes: u64) -> Lines {
        Lines {
            visible: Pages::new(capacity_bytes),
            durable: Pages::new(capacity_bytes),
            unfenced: BTreeMap::new(),
            writes: BTreeMap::new(),
            next_write: 0,
            completed: 0,
            failures: 0,
        }
    }

    pub(crate) fn read(&self, offset: u64, out: &mut [u8]) {
        self.visible.read(offset, out);
    }

    pub(crate) fn read_durable(&self, offset: u64, out: &mut [u8]) {
        self.durable.read(offset, out);
    }

    /// Stores a page in unwritten memory.
    pub(crate) fn put_page(&mut self, number: usize, page: &Rc<Page>) {
        self.visible.put_page(number, page.clone());
        self.durable.put_page(number, page.clone());
    }

    /// The contents that a power cut leaves in any case.
    pub(crate) fn durable(&self) -> Image {
        Image::of(&self.durable)
    }

    /// The stores that no fence has made durable, in program order, each write's that lie side by
    /// side together: any words of them may survive (SI-L2).
    pub(crate) fn unfenced(&self) -> Vec<PendingWrite> {
        let mut by_write: BTreeMap<u64, Vec<PendingWrite>> = BTreeMap::new();
        for store in self.unfenced.values().flatten() {
            let runs = by_write.entry(store.write).or_default();
            match runs.last_mut() {
                Some(run) if run.offset + run.data.len() as u64 == store.offset => {
                    run.data.extend_from_slice(&store.data);
                }
                _ => runs.push(PendingWrite { offset: store.offset, data: store.data.clone() }),
            }
        }
        by_write.into_values().flatten().collect()
    }

    /// Stores a submitted write. Returns its number for `complete`.
    pub(crate) fn store(&mut self, offset: u64, data: &[u8]) -> u64 {
        self.visible.write(offset, data);
        let write = self.next_write;
        self.next_write += 1;
        let mut left = 0;
        for part in parts(offset, data.len(), LINE_BYTES) {
            left += 1;
            let at = offset + part.start as u64;
            let store = Store { write, offset: at, data: data[part].to_vec() };
            self.unfenced.entry(at / LINE_BYTES).or_default().push(store);
        }
        let record = Write { offset, len: data.len(), left, completed: None, abandoned: None };
        self.writes.insert(write, record);
        write
    }

    /// Completes a write; with `fua` it is durable.
    pub(crate) fn complete(&mut self, write: u64, fua: bool) {
        let nth = self.completed;
        self.completed += 1;
        let Some(record) = self.writes.get_mut(&write) else { return };
        record.completed = Some(nth);
        if record.left == 0 {
            self.writes.remove(&write);
        } else if fua {
            let (first, end) = (record.offset, record.offset + record.len as u64);
            for line in first / LINE_BYTES..end.div_ceil(LINE_BYTES) {
                self.fence_line(line, |store, _| store.write == write);
            }
        }
    }

    /// What a fence submitted now covers (SI-L1).
    pub(crate) fn flush_mark(&self) -> FlushMark {
        FlushMark { completed: self.completed, failures: self.failures }
    }

    /// Completes a fence.
    pub(crate) fn flush(&mut self, mark: FlushMark) {
        for line in self.unfenced.keys().copied().collect::<Vec<_>>() {
            self.fence_line(line, |_, write| write.is_covered(mark));
        }
    }

    /// Makes the line's stores up to the last one that `covers` accepts durable (SI-L1, SI-L2).
    fn fence_line(&mut self, line: u64, covers: impl Fn(&Store, &Write) -> bool) {
        let Some(stores) = self.unfenced.get_mut(&line) else { return };
        let writes = &self.writes;
        let last = stores.iter().rposition(|s| covers(s, &writes[&s.write]));
        let Some(last) = last else { return };
        for store in stores.drain(..=last) {
            self.durable.write(store.offset, &store.data);
            store_ended(&mut self.writes, store.write);
        }
        if stores.is_empty() {
            self.unfenced.remove(&line);
        }
    }

    /// Fails a fence (SI-L3).
    pub(crate) fn fail_flush(&mut self, mark: FlushMark) {
        self.failures += 1;
        for write in self.writes.values_mut() {
            if write.completed.is_some_and(|nth| nth < mark.completed) {
                write.abandoned.get_or_insert(self.failures);
            }
        }
    }

    /// Maps the memory in a new process.
    pub(crate) fn reopen(&mut self) {
        self.writes.values_mut().for_each(|write| write.abandoned = None);
    }

    /// Kills the process while it copies: of each write in flight the first part is stored.
    pub(crate) fn kill(&mut self, rng: &mut Rng) {
        let in_flight: Vec<u64> = {
            let open = self.writes.iter().filter(|(_, w)| w.completed.is_none());
            open.map(|(id, _)| *id).collect()
        };
        for id in in_flight {
            let write = &self.writes[&id];
            let words = write.len as u64 / WORD_BYTES;
            let some = rng.below(words + 1);
            let kept = rng.pick(&[words, words, 0, some]) * WORD_BYTES;
            let end = write.offset + kept;
            let lines =
                write.offset / LINE_BYTES..(write.offset + write.len as u64).div_ceil(LINE_BYTES);
            for line in lines {
                self.truncate_write(line, id, end);
            }
        }
        for write in self.writes.values_mut().filter(|w| w.completed.is_none()) {
            // The next process may fence it.
            write.completed = Some(self.completed);
        }
        self.completed += 1;
        self.writes.retain(|_, write| write.left > 0);
    }

    /// Removes the stores of `write` to `line` from `end` on.
    fn truncate_write(&mut self, line: u64, write: u64, end: u64) {
        let Some(stores) = self.unfenced.get_mut(&line) else { return };
        for store in stores.iter_mut().filter(|s| s.write == write) {
            let keep = usize::try_from(end.saturating_sub(store.offset)).expect("in memory");
            store.data.truncate(keep);
            if store.data.is_empty() {
                store_ended(&mut self.writes, write);
            }
        }
        stores.retain(|s| !s.data.is_empty());
        let mut bytes = [0; LINE_BYTES as usize];
        let at = line * LINE_BYTES;
        self.durable.read(at, &mut bytes);
        self.visible.write(at, &bytes);
        for store in &*stores {
            self.visible.write(store.offset, &store.data);
        }
        if stores.is_empty() {
            self.unfenced.remove(&line);
        }
    }

    /// Cuts the power and restores it.
    pub(crate) fn power_cut(&mut self, rng: &mut Rng) {
        // Each cut draws how much it loses, so that "all" and "nothing" occur, too.
        let keep_per_mille = rng.pick(&[0, 100, 500, 900, 1000]);
        let part_per_mille = rng.pick(&[0, 100, 500, 1000]);
        for (line, stores) in std::mem::take(&mut self.unfenced) {
            let of_store = |s: &Store| parts(s.offset, s.data.len(), WORD_BYTES).count();
            let words: usize = stores.iter().map(of_store).sum();
            // Number of words stored before the eviction; `None`: random words.
            let first = if rng.chance_per_mille(part_per_mille) {
                if rng.chance_per_mille(500) { None } else { Some(rng.index(words + 1)) }
            } else if rng.chance_per_mille(keep_per_mille) {
                Some(words)
            } else {
                Some(0)
            };
            let mut nth = 0;
            for store in &stores {
                for part in parts(store.offset, store.data.len(), WORD_BYTES) {
                    let survives = match first {
                        Some(first) => nth < first,
                        None => rng.chance_per_mille(500),
                    };
                    nth += 1;
                    if survives {
                        let at = store.offset + part.start as u64;
                        self.durable.write(at, &store.data[part]);
                    }
                }
            }
            for page in pages_of(line * LINE_BYTES, LINE_BYTES as usize) {
                self.visible.copy_page(page, &self.durable);
            }
        }
        self.writes.clear();
    }

    /// Flips one bit of the medium silently.
    pub(crate) fn flip_bit(&mut self, offset: u64, bit: u32) {
        for pages in [&mut self.visible, &mut self.durable] {
            let mut byte = [0];
            pages.read(offset, &mut byte);
            pages.write(offset, &[byte[0] ^ (1 << bit)]);
        }
    }

    pub(crate) fn resident_bytes(&self) -> u64 {
        self.visible.resident_bytes() + self.durable.resident_bytes()
    }
}

/// Counts a store of write `id` that has become durable or was dropped.
fn store_ended(writes: &mut BTreeMap<u64, Write>, id: u64) {
    let write = writes.get_mut(&id).expect("kept while a store is left");
    write.left -= 1;
    if write.left == 0 && write.completed.is_some() {
        writes.remove(&id);
    }
}

#[cfg(test)]
mod tests {
    use std::collections::BTreeSet;

    use super::*;

    fn words(lines: &Lines, offset: u64, count: usize) -> Vec<u8> {
        let mut out = vec![0; count * 8];
        lines.read(offset, &mut out);
        assert!(out.chunks(8).all(|w| w.iter().all(|b| *b == w[0])), "a word is torn: {out:?}");
        out.chunks(8).map(|w| w[0]).collect()
    }

    /// What eight words hold after a cut, over many seeds.
    fn outcomes(f: impl Fn(&mut Lines)) -> BTreeSet<Vec<u8>> {
        let mut seen = BTreeSet::new();
        for seed in 0..2000 {
            let mut lines = Lines::new(1 << 16);
            f(&mut lines);
            lines.power_cut(&mut Rng::new(seed));
            let after = words(&lines, 0, 8);
            lines.power_cut(&mut Rng::new(seed + 1));
            assert_eq!(after, words(&lines, 0, 8), "what is lost is lost for good");
            seen.insert(after);
        }
        seen
    }

    #[test]
    fn a_cut_loses_only_unfenced_stores_grouped_by_write() {
        let mut lines = Lines::new(1 << 16);
        let first = lines.store(0, &[1; 64]);
        lines.complete(first, false);
        lines.flush(lines.flush_mark());
        let second = lines.store(32, &[2; 128]);
        lines.store(64, &[3; 8]);
        let pending = |offset, byte, len| PendingWrite { offset, data: vec![byte; len] };
        assert_eq!(lines.unfenced(), [pending(32, 2, 128), pending(64, 3, 8)]);
        let mut durable = Image::default();
        durable.write(0, &[1; 64]);
        assert_eq!(lines.durable().hash(), durable.hash());
        lines.complete(second, true);
        assert_eq!(lines.unfenced(), [pending(64, 3, 8)]);
    }

    #[test]
    fn a_store_is_durable_after_a_fence_that_follows_its_end() {
        let mut lines = Lines::new(1 << 16);
        let write = lines.store(0, &[1; 64]);
        assert_eq!(words(&lines, 0, 8), [1; 8]);
        let early = lines.flush_mark();
        lines.complete(write, false);
        lines.flush(early);
        let mut durable = [9; 64];
        lines.read_durable(0, &mut durable);
        assert_eq!(durable, [0; 64], "a fence promises nothing of what had not completed");
        lines.flush(lines.flush_mark());
        lines.power_cut(&mut Rng::new(0));
        assert_eq!(words(&lines, 0, 8), [1; 8]);
    }

    #[test]
    fn of_an_unfenced_line_any_whole_words_may_survive() {
        let seen = outcomes(|lines| {
            let write = lines.store(0, &[1; 64]);
            lines.complete(write, false);
        });
        for whole in [vec![0; 8], vec![1; 8]] {
            assert!(seen.contains(&whole));
        }
        assert!(seen.contains(&vec![1, 1, 1, 0, 0, 0, 0, 0]), "the first words");
        let gaps = |w: &Vec<u8>| w.windows(2).any(|p| p == [0, 1]);
        assert!(seen.iter().any(gaps), "words in any order");
        assert!(seen.len() > 100, "{} outcomes", seen.len());
    }

    #[test]
    fn lines_are_lost_and_kept_each_by_itself() {
        let mut seen = BTreeSet::new();
        for seed in 0..500 {
            let mut lines = Lines::new(1 << 16);
            let write = lines.store(0, &[1; 128]);
            lines.complete(write, false);
            lines.power_cut(&mut Rng::new(seed));
            let mut ends = [0; 128];
            lines.read(0, &mut ends);
            seen.insert((ends[0], ends[127]));
        }
        assert_eq!(seen.len(), 4);
    }

    #[test]
    fn no_older_store_comes_back_over_a_newer_one_that_is_durable() {
        let seen = outcomes(|lines| {
            let older = lines.store(0, &[1; 64]);
            let newer = lines.store(16, &[2; 16]);
            lines.complete(older, false);
            lines.complete(newer, true);
            lines.flush(lines.flush_mark());
        });
        assert_eq!(seen, BTreeSet::from([vec![1, 1, 2, 2, 1, 1, 1, 1]]));
        let seen = outcomes(|lines| {
            let older = lines.store(0, &[1; 16]);
            let newer = lines.store(8, &[2; 16]);
            lines.complete(newer, true);
            lines.complete(older, false);
        });
        // One line: what it held before the fence left the cache with it.
        assert_eq!(seen, BTreeSet::from([vec![1, 2, 2, 0, 0, 0, 0, 0]]));
    }

    #[test]
    fn a_missing_fence_is_seen() {
        let fenced = outcomes(|lines| {
            let write = lines.store(0, &[1; 64]);
            lines.complete(write, false);
            lines.flush(lines.flush_mark());
        });
        assert_eq!(fenced.len(), 1);
    }

    #[test]
    fn a_fence_does_not_cover_what_a_failed_fence_may_have_lost() {
        let seen = outcomes(|lines| {
            let write = lines.store(0, &[1; 64]);
            lines.complete(write, false);
            lines.fail_flush(lines.flush_mark());
            lines.flush(lines.flush_mark());
        });
        assert!(seen.contains(&vec![0; 8]));
    }

    #[test]
    fn a_kill_keeps_completed_writes_and_the_begin_of_a_copy() {
        let mut seen = BTreeSet::new();
        for seed in 0..300 {
            let mut lines = Lines::new(1 << 16);
            let done = lines.store(0, &[1; 64]);
            lines.complete(done, false);
            lines.store(0, &[2; 64]);
            lines.kill(&mut Rng::new(seed));
            let after = words(&lines, 0, 8);
            assert!(after.is_sorted_by(|a, b| a >= b), "{after:?}");
            assert!(after.iter().all(|w| *w > 0));
            lines.flush(lines.flush_mark());
            lines.power_cut(&mut Rng::new(seed));
            assert_eq!(after, words(&lines, 0, 8));
            seen.insert(after);
        }
        assert_eq!(seen.len(), 9);
    }
}
