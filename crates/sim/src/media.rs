// SPDX-License-Identifier: Apache-2.0 OR MIT
//! The contents of a simulated disk: on the medium, in its volatile cache, and after a power cut.
//!
//! ```text
//!  completed write ──► visible ──────────────────────────► reads
//!        │
//!        └──► unflushed, by order of completion ── flush covers it, or FUA ──► durable
//!                  └── power cut: each lost, kept or torn ──► durable ──► visible
//! ```
//!
//! Invariants
//! - SI-P1 `durable` holds exactly what completed flushes and FUA writes cover, and what power cuts
//!   have kept.
//! - SI-P2 Once a version of a sector is durable, no older version comes back: a FUA write excludes
//!   older unflushed versions, and a flushed write those that a failed flush left behind.
//! - SI-P3 Writes that a failed flush should have covered are not made durable by later flushes:
//!   they may be lost at any power cut until they are rewritten.
//! - SI-P4 With `keeps_order` a power cut loses the newest writes: of the completed ones all behind
//!   some moment, and those in flight if any of these. A failed flush loses nothing.

use std::collections::{BTreeMap, BTreeSet};
use std::rc::Rc;

use block::SECTOR_SIZE;

use crate::image::{Image, PendingWrite};
use crate::pages::{Page, Pages, pages_of};
use crate::rng::Rng;

/// A completed write that is only in the volatile cache.
#[derive(Debug)]
struct Unflushed {
    offset: u64,
    /// Shared by writes of zeroes: of those a few may be gigabytes.
    data: Rc<[u8]>,
    /// Number of the failure of a flush that should have covered it (SI-P3).
    abandoned: Option<u64>,
}

/// A write in flight at a power cut.
#[derive(Debug)]
pub(crate) struct InFlight {
    pub(crate) offset: u64,
    pub(crate) data: Vec<u8>,
}

/// The durable state; absent on a disk that never loses power.
#[derive(Debug)]
struct History {
    durable: Pages,
    unflushed: BTreeMap<u64, Unflushed>,
    /// Completion order of a sector's newest durable write, where older ones wait (SI-P2).
    newest_durable: BTreeMap<u64, u64>,
    /// Pages where visible and durable may differ.
    touched: BTreeSet<usize>,
}

#[derive(Debug)]
pub(crate) struct Media {
    visible: Pages,
    history: Option<History>,
    completed: u64,
    flush_failures: u64,
    tear_bytes: u64,
    /// See SI-P4.
    pub(crate) keeps_order: bool,
}

/// What a flush covers, decided when it is submitted.
#[derive(Clone, Copy, Debug, Default)]
pub(crate) struct FlushMark {
    pub(crate) completed: u64,
    pub(crate) failures: u64,
}

impl Media {
    /// An all-zero medium. `keeps_history` costs memory and is needed for power cuts.
    pub(crate) fn new(capacity_bytes: u64, tear_bytes: u64, keeps_history: bool) -> Media {
        assert!(tear_bytes.is_power_of_two(), "a disk tears at a power of two, not {tear_bytes}");
        let history = keeps_history.then(|| History {
            durable: Pages::new(capacity_bytes),
            unflushed: BTreeMap::new(),
            newest_durable: BTreeMap::new(),
            touched: BTreeSet::new(),
        });
        let visible = Pages::new(capacity_bytes);
        let keeps_order = false;
        Media { visible, history, completed: 0, flush_failures: 0, tear_bytes, keeps_order }
    }

    pub(crate) fn read(&self, offset: u64, out: &mut [u8]) {
        self.visible.read(offset, out);
    }

    /// Reads what a power cut leaves in any case.
    pub(crate) fn read_durable(&self, offset: u64, out: &mut [u8]) {
        let history = self.history.as_ref().expect("a disk that keeps history");
        history.durable.read(offset, out);
    }

    /// The contents that a power cut leaves in any case.
    pub(crate) fn durable(&self) -> Image {
        let history = self.history.as_ref().expect("a disk that keeps history");
        Image::of(&history.durable)
    }

    /// The writes of the volatile cache, oldest first, as far as no newer durable version of their
    /// sectors outlaws them (SI-P2).
    pub(crate) fn unflushed(&self) -> Vec<PendingWrite> {
        let history = self.history.as_ref().expect("a disk that keeps history");
        let mut pending: Vec<PendingWrite> = Vec::new();
        for (&id, write) in &history.unflushed {
            let mut run: Option<PendingWrite> = None;
            for part in parts(write.offset, write.data.len(), SECTOR_SIZE as u64) {
                let offset = write.offset + part.start as u64;
                let newest = history.newest_durable.get(&(offset / SECTOR_SIZE as u64));
                if newest.is_some_and(|&newer| newer > id) {
                    pending.extend(run.take());
                    continue;
                }
                let run = run.get_or_insert(PendingWrite { offset, data: Vec::new() });
                run.data.extend_from_slice(&write.data[part]);
            }
            pending.extend(run);
        }
        pending
    }

    /// Stores a page on an unwritten medium.
    pub(crate) fn put_page(&mut self, number: usize, page: &Rc<Page>) {
        self.visible.put_page(number, page.clone());
        if let Some(h) = &mut self.history {
            h.durable.put_page(number, page.clone());
        }
    }

    /// A write completes.
    pub(crate) fn write(&mut self, offset: u64, data: &[u8], fua: bool) {
        self.end_write(offset, data, fua, || data.into());
    }

    /// The same with data that others have too.
    pub(crate) fn write_shared(&mut self, offset: u64, data: &Rc<[u8]>) {
        self.end_write(offset, data, false, || data.clone());
    }

    fn end_write(&mut self, offset: u64, data: &[u8], fua: bool, kept: impl Fn() -> Rc<[u8]>) {
        self.visible.write(offset, data);
        let id = self.completed;
        self.completed += 1;
        let Some(h) = &mut self.history else { return };
        h.touched.extend(pages_of(offset, data.len()));
        if fua {
            h.durable.write(offset, data);
            if !h.unflushed.is_empty() {
                h.exclude_older(id, offset, data.len());
            }
        } else {
            let write = Unflushed { offset, data: kept(), abandoned: None };
            h.unflushed.insert(id, write);
        }
    }

    /// What a flush submitted now covers: everything completed before.
    pub(crate) fn flush_mark(&self) -> FlushMark {
        FlushMark { completed: self.completed, failures: self.flush_failures }
    }

    /// A flush completes.
    pub(crate) fn flush(&mut self, mark: FlushMark) {
        let Some(h) = &mut self.history else { return };
        let later = h.unflushed.split_off(&mark.completed);
        let covered = std::mem::replace(&mut h.unflushed, later);
        let is_left = |w: &Unflushed| w.abandoned.is_some_and(|failure| failure <= mark.failures);
        let some_left = covered.values().any(is_left);
        for (id, write) in covered {
            if is_left(&write) {
                h.unflushed.insert(id, write);
                continue;
            }
            h.make_durable(id, write.offset, &write.data);
            if some_left {
                h.exclude_older(id, write.offset, write.data.len());
            }
        }
        if h.unflushed.is_empty() {
            h.newest_durable.clear();
        }
    }

    /// Fails a flush: what it should have covered may be lost at the next power cut (SI-P3).
    pub(crate) fn fail_flush(&mut self, mark: FlushMark) {
        self.flush_failures += 1;
        let Some(h) = self.history.as_mut().filter(|_| !self.keeps_order) else { return };
        for (_, write) in h.unflushed.range_mut(..mark.completed) {
            write.abandoned.get_or_insert(self.flush_failures);
        }
    }

    /// The last flush that failed takes the newest write with it, which was in flight then (SI-P3).
    pub(crate) fn abandon_newest(&mut self) {
        let history = self.history.as_mut().filter(|_| !self.keeps_order);
        let newest = history.and_then(|h| h.unflushed.last_entry());
        if let Some(mut newest) = newest {
            newest.get_mut().abandoned.get_or_insert(self.flush_failures);
        }
    }

    /// Opens the disk in a new process, which does not know of failures reported to the old one:
    /// the next flush covers all data in the cache again.
    pub(crate) fn reopen(&mut self) {
        let Some(h) = &mut self.history else { return };
        for write in h.unflushed.values_mut() {
            write.abandoned = None;
        }
    }

    /// Cuts the power and restores it.
    pub(crate) fn power_cut(&mut self, mut in_flight: Vec<InFlight>, rng: &mut Rng) {
        let h = self.history.as_mut().expect("only a disk that keeps history can lose power");
        // Writes in flight together take effect in any order.
        rng.shuffle(&mut in_flight);
        let tear_bytes = self.tear_bytes;
        // Each cut draws how much it loses, so that "all" and "nothing" occur, too.
        let keep_per_mille = rng.pick(&[0, 100, 500, 900, 1000]);
        let tear_per_mille = rng.pick(&[0, 100, 500]);
        let mut completed = std::mem::take(&mut h.unflushed);
        if self.keeps_order {
            // SI-P4: all before a moment are kept, all behind it are lost.
            let kept = rng.index(completed.len() + 1);
            for _ in 0..kept {
                let (id, first) = completed.pop_first().expect("as many are there");
                h.touched.extend(pages_of(first.offset, first.data.len()));
                h.make_durable(id, first.offset, &first.data);
            }
            if let Some((_, torn)) = completed.pop_first() {
                in_flight = vec![InFlight { offset: torn.offset, data: torn.data.to_vec() }];
            }
            h.touched.extend(completed.values().flat_map(|w| pages_of(w.offset, w.data.len())));
            completed.clear();
        }
        let completed = completed.into_iter().map(|(id, w)| (id, w.offset, w.data));
        let in_flight = in_flight.into_iter().map(|w| (u64::MAX, w.offset, w.data.into()));
        for (id, offset, data) in completed.chain(in_flight) {
            h.touched.extend(pages_of(offset, data.len()));
            if rng.chance_per_mille(tear_per_mille) {
                for part in parts(offset, data.len(), tear_bytes) {
                    if rng.chance_per_mille(500) {
                        h.make_durable(id, offset + part.start as u64, &data[part]);
                    }
                }
            } else if rng.chance_per_mille(keep_per_mille) {
                h.make_durable(id, offset, &data);
            }
        }
        h.newest_durable.clear();
        for page in std::mem::take(&mut h.touched) {
            self.visible.copy_page(page, &h.durable);
        }
    }

    /// Flips one bit of the medium silently.
    pub(crate) fn flip_bit(&mut self, offset: u64, bit: u32) {
        let flip = |pages: &mut Pages| {
            let mut byte = [0];
            pages.read(offset, &mut byte);
            pages.write(offset, &[byte[0] ^ (1 << bit)]);
        };
        flip(&mut self.visible);
        if let Some(h) = &mut self.history {
            flip(&mut h.durable);
        }
    }

    pub(crate) fn resident_bytes(&self) -> u64 {
        let durable = self.history.as_ref().map_or(0, |h| h.durable.resident_bytes());
        self.visible.resident_bytes() + durable
    }
}

impl History {
    fn exclude_older(&mut self, id: u64, offset: u64, len: usize) {
        for sector in sectors_of(offset, len) {
            let newest = self.newest_durable.entry(sector).or_insert(id);
            *newest = id.max(*newest);
        }
    }

    /// Makes write `id` durable, except for sectors whose durable version is newer (SI-P2).
    fn make_durable(&mut self, id: u64, offset: u64, data: &[u8]) {
        if self.newest_durable.is_empty() {
            self.durable.write(offset, data);
            return;
        }
        for part in parts(offset, data.len(), SECTOR_SIZE as u64) {
            let at = offset + part.start as u64;
            let sector = at / SECTOR_SIZE as u64;
            if self.newest_durable.get(&sector).is_none_or(|&newer| newer < id) {
                self.durable.write(at, &data[part]);
            }
        }
    }
}

fn sectors_of(offset: u64, len: usize) -> std::ops::Range<u64> {
    let sector = SECTOR_SIZE as u64;
    offset / sector..(offset + len as u64).div_ceil(sector)
}

/// Splits `len` bytes at `offset` at the multiples of `unit`.
pub(crate) fn parts(
    offset: u64,
    len: usize,
    unit: u64,
) -> impl Iterator<Item = std::ops::Range<usize>> {
    let mut at = 0;
    std::iter::from_fn(move || {
        (at < len).then(|| {
            let pos = offset + at as u64;
            let room = usize::try_from(unit - pos % unit).expect("a unit fits in memory");
            let part = at..len.min(at + room);
            at = part.end;
            part
        })
    })
}

#[cfg(test)]
mod tests {
    use super::*;

    fn byte(media: &Media, offset: u64) -> u8 {
        let mut b = [0];
        media.read(offset, &mut b);
        b[0]
    }
    fn each_seed(mut f: impl FnMut(&mut Media, &mut Rng)) {
        for seed in 0..500 {
            f(&mut Media::new(1 << 20, 512, true), &mut Rng::new(seed));
        }
    }

    #[test]
    fn a_flush_covers_exactly_what_completed_before_submission() {
        let mut late_lost = false;
        each_seed(|m, rng| {
            m.write(0, &[1; 512], false);
            let mark = m.flush_mark();
            m.write(512, &[2; 512], false);
            m.flush(mark);
            m.power_cut(Vec::new(), rng);
            assert_eq!(byte(m, 0), 1);
            late_lost |= byte(m, 512) == 0;
        });
        assert!(late_lost, "the simulator must be able to lose the later write");
    }

    #[test]
    fn no_older_version_comes_back_over_a_fua_write() {
        each_seed(|m, rng| {
            m.write(0, &[1; 1024], false);
            let mark = m.flush_mark();
            m.write(0, &[2; 512], true);
            if rng.chance_per_mille(500) {
                m.flush(mark);
            }
            m.power_cut(Vec::new(), rng);
            assert_eq!(byte(m, 0), 2);
        });
    }

    #[test]
    fn a_cut_may_lose_keep_and_tear_and_forgets_the_lost_for_good() {
        let mut seen = BTreeSet::new();
        each_seed(|m, rng| {
            m.write(0, &[1; 1024], false);
            m.power_cut(vec![InFlight { offset: 4096, data: vec![7; 512] }], rng);
            let after = (byte(m, 0), byte(m, 512), byte(m, 4096));
            m.power_cut(Vec::new(), rng);
            assert_eq!(after, (byte(m, 0), byte(m, 512), byte(m, 4096)));
            seen.insert(after);
        });
        assert_eq!(seen.len(), 8, "{seen:?}");
    }

    #[test]
    fn a_flush_does_not_cover_what_a_failed_flush_lost() {
        let mut lost = false;
        each_seed(|m, rng| {
            m.write(0, &[1; 512], false);
            m.fail_flush(m.flush_mark());
            m.write(512, &[2; 512], false);
            m.flush(m.flush_mark());
            m.power_cut(Vec::new(), rng);
            assert_eq!(byte(m, 512), 2);
            lost |= byte(m, 0) == 0;
        });
        assert!(lost);
    }

    #[test]
    fn data_of_a_failed_flush_do_not_replace_newer_data() {
        each_seed(|m, rng| {
            m.write(0, &[1; 512], false);
            m.fail_flush(m.flush_mark());
            m.write(0, &[2; 512], false);
            m.flush(m.flush_mark());
            if rng.chance_per_mille(500) {
                m.reopen();
                m.flush(m.flush_mark());
            }
            m.power_cut(Vec::new(), rng);
            assert_eq!(byte(m, 0), 2);
        });
    }

    #[test]
    fn a_cut_of_an_ordered_disk_loses_the_newest_writes() {
        let mut seen = BTreeSet::new();
        each_seed(|m, rng| {
            m.keeps_order = true;
            for n in 0..3 {
                m.write(n * 4096, &[1; 512], false);
                m.fail_flush(m.flush_mark());
            }
            m.power_cut(vec![InFlight { offset: 3 * 4096, data: vec![1; 512] }], rng);
            let kept: Vec<u8> = (0..4).map(|n| byte(m, n * 4096)).collect();
            assert!(kept.is_sorted_by(|before, after| before >= after), "{kept:?}");
            seen.insert(kept);
        });
        assert_eq!(seen.len(), 5, "{seen:?}");
    }

    #[test]
    fn a_cut_loses_only_unflushed_data_with_no_newer_durable() {
        let mut m = Media::new(1 << 20, 512, true);
        m.write(0, &[1; 512], false);
        m.flush(m.flush_mark());
        m.write(0, &[2; 2048], false);
        m.write(512, &[3; 512], true);
        let mut durable = Image::default();
        durable.write(0, &[1; 512]);
        durable.write(512, &[3; 512]);
        assert_eq!(m.durable().hash(), durable.hash());
        let part = |offset, len| PendingWrite { offset, data: vec![2; len] };
        assert_eq!(m.unflushed(), [part(0, 512), part(1024, 1024)]);
        m.flush(m.flush_mark());
        assert_eq!(m.unflushed(), []);
    }

    #[test]
    fn parts_are_cut_at_multiples_of_the_unit() {
        let cut: Vec<_> = parts(1536, 4096, 2048).collect();
        assert_eq!(cut, [0..512, 512..2560, 2560..4096]);
    }
}
