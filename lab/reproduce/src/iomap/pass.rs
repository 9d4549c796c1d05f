// SPDX-License-Identifier: Apache-2.0 OR MIT
//! One pass: data is copied into a cache and then written back.
use std::collections::BTreeMap;
use std::rc::Rc;

use block::{Buf, Class, Flags, Sector, Status, Target};
use pagecache::PageCache;
use sim::Rng;

use super::test_bed::TestBed;
use crate::compressed::{PAGE_BYTES, PAGE_SECTORS};
use crate::cpu::cpu_seconds;

const MIB: u64 = 1 << 20;
const PAGES_PER_MIB: u64 = MIB / PAGE_BYTES as u64;
/// One page of so many is read back: reading all pages would take longer than the rest.
const COMPARE_EVERY: usize = 15;

/// The order of the writes.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum Pattern {
    /// A MiB at a time, in order.
    Seq,
    /// A page at a time, each page at most once, in random order.
    Rand,
}

impl Pattern {
    /// Part of a key of the JSON line.
    pub fn key(self) -> &'static str {
        match self {
            Pattern::Seq => "seq",
            Pattern::Rand => "rand",
        }
    }
}

/// How often writeback calls the mapping.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum MapMode {
    /// Once for each page.
    PerPage,
    /// Once for each run.
    PerRun,
}

impl MapMode {
    /// The value of `map_blocks`.
    pub fn word(self) -> &'static str {
        match self {
            MapMode::PerPage => "single",
            MapMode::PerRun => "multi",
        }
    }
}

/// The result of one pass.
#[derive(Clone, Debug, Default, PartialEq)]
pub struct Pass {
    /// CPU seconds of our writes, including the copy.
    pub copy_cpu_s: f64,
    /// CPU seconds of the writeback.
    pub writeback_cpu_s: f64,
    /// Calls of the mapping. Each checks whether the cached answer is still valid ...
    pub map_calls: f64,
    /// ... and calls the device below if it is not.
    pub map_questions: f64,
    pub ioends: f64,
    /// Number of ioends by size; a key is the upper bound in KiB.
    pub sizes: BTreeMap<u64, u64>,
}

/// Counters of the cache.
#[derive(Clone, Debug, Default, PartialEq)]
struct Counters {
    map_calls: u64,
    map_questions: u64,
    ioends: u64,
    sizes: BTreeMap<u64, u64>,
}

impl Counters {
    fn parse(text: &str) -> Option<Counters> {
        let lines = text.lines().filter_map(|line| line.split_once(' '));
        let all: BTreeMap<&str, u64> =
            lines.map(|(name, n)| Some((name, n.parse().ok()?))).collect::<Option<_>>()?;
        let size = |name: &str| match name {
            "ioends_larger" => Some(u64::MAX),
            _ => name.strip_prefix("ioends_to_")?.strip_suffix("_kib")?.parse().ok(),
        };
        Some(Counters {
            map_calls: *all.get("map_checks")?,
            map_questions: *all.get("map_calls")?,
            ioends: *all.get("ioends")?,
            sizes: all.iter().filter_map(|(name, n)| Some((size(name)?, *n))).collect(),
        })
    }
}

/// A cache and the data that are written to it.
pub struct Work<'a> {
    test_bed: &'a TestBed,
    cache: Rc<PageCache>,
    /// The data of a pass, piece by piece.
    source: Buf,
    /// The page of the device where each piece of the source is written.
    places: Rc<Vec<u64>>,
    piece_pages: u64,
}

impl<'a> Work<'a> {
    /// A cache that can hold `mib` MiB of dirty data without writing back by itself (RP-IB2), over
    /// a device that is four times as large.
    ///
    /// # Errors
    /// The error of the cache.
    pub fn new(test_bed: &'a TestBed, pattern: Pattern, mib: u64) -> Result<Work<'a>, String> {
        // Half of the memory may be dirty. Writers are not slowed below the middle of both limits.
        let [memory, dirty, background] = [mib * 4, mib * 2, mib + mib / 2];
        let bytes = [memory, dirty, background].map(|mib| (mib * MIB).to_string());
        let options = [
            ["memory", &bytes[0]],
            ["dirty_bytes", &bytes[1]],
            ["dirty_background_bytes", &bytes[2]],
            ["dirty_writeback_centisecs", "0"],
        ]
        .concat();
        let count = options.len().to_string();
        let cache = test_bed.cache(&[&[&*count], &options[..]].concat())?;
        let pages = mib * PAGES_PER_MIB;
        let (places, piece_pages) = match pattern {
            Pattern::Seq => ((0..mib).map(|nth| nth * PAGES_PER_MIB).collect(), PAGES_PER_MIB),
            Pattern::Rand => {
                let mut all: Vec<u64> = (0..pages * 4).collect();
                Rng::new(1).shuffle(&mut all);
                all.truncate(usize::try_from(pages).expect("a page's number"));
                (all, 1)
            }
        };
        let bytes = usize::try_from(mib * MIB).expect("memory of this machine");
        let source = Buf::zeroed(bytes);
        Ok(Work { test_bed, cache, source, places: Rc::new(places), piece_pages })
    }

    /// Writes the data of pass `nth`: each page holds its address and the number of the pass.
    fn stamp(&self, nth: u64) {
        self.source.write(|bytes| {
            for (at, page) in bytes.chunks_exact_mut(PAGE_BYTES).enumerate() {
                page[..8].copy_from_slice(&self.page_of(at as u64).to_le_bytes());
                page[8..16].copy_from_slice(&nth.to_le_bytes());
            }
        });
    }

    /// The page of the device where page `nth` of the source is written.
    fn page_of(&self, nth: u64) -> u64 {
        let piece = usize::try_from(nth / self.piece_pages).expect("an index of the source");
        self.places[piece] + nth % self.piece_pages
    }

    /// Runs pass `nth` with this mode.
    ///
    /// # Errors
    /// The error of the cache; or that the device does not hold the written data (RP-IB3).
    pub fn run(&self, mode: MapMode, nth: u64, compare: bool) -> Result<Pass, String> {
        self.set("map_blocks", mode.word())?;
        self.stamp(nth);
        let before = self.counters()?;
        let (cache, source, places) =
            (self.cache.clone(), self.source.clone(), self.places.clone());
        let piece = usize::try_from(self.piece_pages).expect("at most a MiB") * PAGE_BYTES;
        let begin = cpu_seconds();
        let copied = self.test_bed.finish(async move {
            for (nth, page) in places.iter().enumerate() {
                let data = source.slice(nth * piece..(nth + 1) * piece);
                let (none, class) = (Flags::empty(), Class::Normal);
                let at = Sector(page * PAGE_SECTORS);
                reactor::write(&*cache, none, class, at, data.into()).await?;
            }
            Ok(())
        });
        let copy_cpu_s = cpu_seconds() - begin;
        copied.map_err(|status: Status| format!("copying in: {status}"))?;
        let between = self.counters()?;
        if between.ioends != before.ioends {
            return Err("something was written back while data was copied in".into());
        }
        let cache = self.cache.clone();
        let begin = cpu_seconds();
        let flushed =
            self.test_bed.finish(async move { reactor::flush(&*cache, Class::Foreground).await });
        let writeback_cpu_s = cpu_seconds() - begin;
        flushed.map_err(|status| format!("writing back: {status}"))?;
        let after = self.counters()?;
        let sizes = after
            .sizes
            .iter()
            .map(|(size, n)| (*size, n - before.sizes.get(size).copied().unwrap_or_default()));
        let pass = Pass {
            copy_cpu_s,
            writeback_cpu_s,
            map_calls: (after.map_calls - before.map_calls) as f64,
            map_questions: (after.map_questions - before.map_questions) as f64,
            ioends: (after.ioends - before.ioends) as f64,
            sizes: sizes.filter(|(_, n)| *n > 0).collect(),
        };
        if compare && self.test_bed.keeps() {
            self.compare()?;
        }
        Ok(pass)
    }

    /// RP-IB3
    fn compare(&self) -> Result<(), String> {
        let pages = self.places.len() as u64 * self.piece_pages;
        for nth in (0..pages).step_by(COMPARE_EVERY) {
            let (page, below, found) =
                (self.page_of(nth), self.test_bed.below(), Buf::zeroed(PAGE_BYTES));
            let (at, into) = (Sector(page * PAGE_SECTORS), found.all().into());
            let read = self
                .test_bed
                .finish(async move { reactor::read(&*below, Class::Normal, at, into).await });
            read.map_err(|status| format!("reading back: {status}"))?;
            let from = usize::try_from(nth).expect("an index of the source") * PAGE_BYTES;
            let wanted = self.source.slice(from..from + PAGE_BYTES);
            if !wanted.read(|wanted| found.read(|found| wanted == found)) {
                return Err(format!("page {page} is not what was written"));
            }
        }
        Ok(())
    }

    fn set(&self, name: &str, value: &str) -> Result<(), String> {
        let set = self.cache.clone().set_attribute(name.to_owned(), value.to_owned());
        self.test_bed.finish(set).map_err(|e| e.chain())
    }

    fn counters(&self) -> Result<Counters, String> {
        let text = self.cache.clone().get_attribute("ioend_stats".to_owned());
        let text = self.test_bed.finish(text).map_err(|e| e.chain())?.to_string();
        Counters::parse(&text).ok_or_else(|| format!("ioend_stats: {text}"))
    }

    /// Ends the cache; dirty data are written first.
    ///
    /// # Errors
    /// Why data could not be written.
    pub fn end(self) -> Result<(), String> {
        self.test_bed.finish(self.cache.suspend()).map_err(|e| e.chain())
    }
}

/// CPU seconds of copying `mib` MiB between regions of memory that are in no CPU cache.
pub fn memcpy_s(mib: u64) -> f64 {
    let bytes = usize::try_from(mib * MIB).expect("memory of this machine");
    let (from, mut to) = (vec![0x5a_u8; bytes], vec![0xa5_u8; bytes]);
    let begin = cpu_seconds();
    for (from, to) in from.chunks(MIB as usize).zip(to.chunks_mut(MIB as usize)) {
        to.copy_from_slice(from);
    }
    let s = cpu_seconds() - begin;
    std::hint::black_box(to);
    s
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn counters_are_read_by_their_names() {
        let text = "ioends 3\nioend_bytes 9\nmap_calls 2\nmap_checks 7\nioends_to_4_kib 1\n\
                    ioends_to_1024_kib 2\nioends_larger 0";
        let read = Counters::parse(text).unwrap();
        assert_eq!((read.map_calls, read.map_questions, read.ioends), (7, 2, 3));
        assert_eq!(read.sizes, BTreeMap::from([(4, 1), (1024, 2), (u64::MAX, 0)]));
        assert_eq!(Counters::parse("ioends 3"), None);
    }
}
