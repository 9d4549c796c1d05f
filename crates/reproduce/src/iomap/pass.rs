// SPDX-License-Identifier: Apache-2.0 OR MIT
//! One pass: data is copied into a cache, and then written back.
use std::collections::BTreeMap;
use std::rc::Rc;

use block::{Buf, Class, Flags, Sector, Status, Target};
use pagecache::PageCache;
use sim::Rng;

use super::ground::Ground;
use crate::compressed::{PAGE_BYTES, PAGE_SECTORS};
use crate::cpu::cpu_seconds;

const MIB: u64 = 1 << 20;
const PAGES_PER_MIB: u64 = MIB / PAGE_BYTES as u64;
/// One page of so many is read back: reading all takes longer than the rest.
const COMPARE_EVERY: usize = 15;

/// Where data is written.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum Pattern {
    /// A MiB at a time, in order.
    Seq,
    /// A page at a time, each page at most once, in no order.
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

/// How a mapping is asked.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum Ask {
    /// Once for each block.
    Single,
    /// Once for each run.
    Multi,
}

impl Ask {
    /// The value of `map_blocks`.
    pub fn word(self) -> &'static str {
        match self {
            Ask::Single => "single",
            Ask::Multi => "multi",
        }
    }
}

/// What came of one pass.
#[derive(Clone, Debug, Default, PartialEq)]
pub struct Pass {
    /// CPU seconds of our writes, the copy in them.
    pub copy_cpu_s: f64,
    /// CPU seconds of the writeback.
    pub writeback_cpu_s: f64,
    /// Calls of the mapping: each looks whether the answer that is kept holds ...
    pub map_calls: f64,
    /// ... and asks the device below when it does not.
    pub map_questions: f64,
    pub ioends: f64,
    /// Ioends by size: up to so many KiB, how many.
    pub sizes: BTreeMap<u64, u64>,
}

/// What the cache has counted since it was made.
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

/// A cache and what is written to it.
pub struct Work<'a> {
    ground: &'a Ground,
    cache: Rc<PageCache>,
    /// One after the other in here, each at its place.
    source: Buf,
    /// Where each piece of the source goes, in pages.
    places: Rc<Vec<u64>>,
    piece_pages: u64,
}

impl<'a> Work<'a> {
    /// A cache that holds `mib` dirty MiB without writing any back by itself (IB2), of a device
    /// that is four times as large.
    ///
    /// # Errors
    /// What the cache said.
    pub fn new(ground: &'a Ground, pattern: Pattern, mib: u64) -> Result<Work<'a>, String> {
        // Half of the memory may be dirty, and nobody is slowed below the middle of both limits.
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
        let cache = ground.cache(&[&[&*count], &options[..]].concat())?;
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
        Ok(Work { ground, cache, source, places: Rc::new(places), piece_pages })
    }

    /// The data of pass `nth`: each page says where it goes, and when.
    fn stamp(&self, nth: u64) {
        self.source.write(|bytes| {
            for (at, page) in bytes.chunks_exact_mut(PAGE_BYTES).enumerate() {
                page[..8].copy_from_slice(&self.page_of(at as u64).to_le_bytes());
                page[8..16].copy_from_slice(&nth.to_le_bytes());
            }
        });
    }

    /// Where the page of the source goes.
    fn page_of(&self, nth: u64) -> u64 {
        let piece = usize::try_from(nth / self.piece_pages).expect("an index of the source");
        self.places[piece] + nth % self.piece_pages
    }

    /// Runs pass `nth` by `ask`.
    ///
    /// # Errors
    /// What the cache answered; that the device does not have what was written (IB3).
    pub fn run(&self, ask: Ask, nth: u64, compare: bool) -> Result<Pass, String> {
        self.set("map_blocks", ask.word())?;
        self.stamp(nth);
        let before = self.counters()?;
        let (cache, source, places) =
            (self.cache.clone(), self.source.clone(), self.places.clone());
        let piece = usize::try_from(self.piece_pages).expect("at most a MiB") * PAGE_BYTES;
        let begin = cpu_seconds();
        let copied = self.ground.finish(async move {
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
            self.ground.finish(async move { reactor::flush(&*cache, Class::Foreground).await });
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
        if compare && self.ground.keeps() {
            self.compare()?;
        }
        Ok(pass)
    }

    /// IB3
    fn compare(&self) -> Result<(), String> {
        let pages = self.places.len() as u64 * self.piece_pages;
        for nth in (0..pages).step_by(COMPARE_EVERY) {
            let (page, below, found) =
                (self.page_of(nth), self.ground.below(), Buf::zeroed(PAGE_BYTES));
            let (at, into) = (Sector(page * PAGE_SECTORS), found.all().into());
            let read = self
                .ground
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
        self.ground.finish(set).map_err(|e| e.chain())
    }

    fn counters(&self) -> Result<Counters, String> {
        let text = self.cache.clone().get_attribute("ioend_stats".to_owned());
        let text = self.ground.finish(text).map_err(|e| e.chain())?;
        Counters::parse(&text).ok_or_else(|| format!("ioend_stats: {text}"))
    }

    /// Ends the cache, with what is dirty.
    ///
    /// # Errors
    /// What could not be written.
    pub fn end(self) -> Result<(), String> {
        self.ground.finish(self.cache.suspend()).map_err(|e| e.chain())
    }
}

/// CPU seconds of copying so many MiB, from memory that is not in a CPU's cache to such memory.
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
