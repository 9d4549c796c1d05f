// SPDX-License-Identifier: Apache-2.0 OR MIT
//! Nanoseconds a page in process: random 4 KiB writes and reads of a device, beside the bare
//! compressor, which is given the same pages in the same order by the same library calls. It keeps
//! nothing of what it compresses, and finds what it decompresses in one piece of memory.
//!
//! The time is that of the CPU: nothing here waits, and other programs do not count.
use std::path::Path;

use block::{Buf, Class, Flags, Sector};
use lz4::block::{CompressionMode, compress_to_buffer, decompress_to_buffer};
use reproduce::compressed::data::Data;
use reproduce::compressed::platform::{Local, Platform};
use reproduce::compressed::writeback::{device, end};
use reproduce::compressed::{PAGE_BYTES, PAGE_SECTORS};
use reproduce::cpu::cpu_seconds;
use reproduce::median::{median, median_ratio};
use reproduce::report::Section;
use reproduce::scenario::zram::ALGORITHMS;
use reproduce::table::{Table, fixed};
use sim::Rng;
use zstd::zstd_safe::{CCtx, CParameter, DCtx};

/// Different pages: as many as a few seconds of a client's work touch.
const POOL_PAGES: u64 = 4096;

/// Nanoseconds a page, a figure for each round.
#[derive(Clone, Debug, Default, PartialEq)]
struct Speed {
    write_ns: Vec<f64>,
    bare_write_ns: Vec<f64>,
    read_ns: Vec<f64>,
    bare_read_ns: Vec<f64>,
}

/// A compressor as the device has it.
enum BareCompressor {
    Lz4,
    Zstd(CCtx<'static>, DCtx<'static>),
}

impl BareCompressor {
    fn new(algorithm: &str) -> Result<BareCompressor, String> {
        match algorithm {
            "lz4" => Ok(BareCompressor::Lz4),
            "zstd" => {
                let mut to = CCtx::create();
                let level = CParameter::CompressionLevel(zstd::DEFAULT_COMPRESSION_LEVEL);
                for parameter in [level, CParameter::DictIdFlag(false)] {
                    to.set_parameter(parameter).map_err(|_| "zstd: level refused")?;
                }
                Ok(BareCompressor::Zstd(to, DCtx::create()))
            }
            other => Err(format!("{other}: not compared here")),
        }
    }

    fn compress(&mut self, page: &[u8], out: &mut [u8]) -> Option<usize> {
        match self {
            BareCompressor::Lz4 => {
                compress_to_buffer(page, Some(CompressionMode::FAST(1)), false, out).ok()
            }
            BareCompressor::Zstd(to, _) => to.compress2(out, page).ok(),
        }
    }

    fn decompress(&mut self, object: &[u8], page: &mut [u8]) -> Option<usize> {
        match self {
            BareCompressor::Lz4 => decompress_to_buffer(object, Some(PAGE_BYTES as i32), page).ok(),
            BareCompressor::Zstd(_, from) => from.decompress(page, object).ok(),
        }
    }
}

/// Objects of the pages of a device, one after the other.
struct Objects {
    bytes: Vec<u8>,
    /// Where each begins, and where the last ends.
    starts: Vec<usize>,
}

fn ns_per(count: usize, begin: f64) -> f64 {
    (cpu_seconds() - begin) * 1e9 / count as f64
}

/// Random pages of one run in each direction.
const COUNT: usize = 50_000;

/// Runs it on a device of so many bytes in memory; its backing file is in `dir`.
///
/// # Errors
/// What the device or the compressor said.
pub fn section(dir: &Path, bytes: u64, rounds: usize) -> Result<Section, String> {
    let platform = Local::new(dir, PAGE_BYTES as u64)?;
    let mut section = Section::default();
    let title = "a page of 4 KiB in process, random, half compressible; limit: the bare compressor";
    let mut table = Table::new(title, &[""], &["ns", "bare ns", "more ns", "reached"]);
    for algorithm in ALGORITHMS {
        let pages = bytes / PAGE_BYTES as u64;
        let Speed { write_ns, bare_write_ns, read_ns, bare_read_ns } =
            run(&platform, algorithm, (pages, COUNT, rounds))?;
        for (kind, ours, bare) in
            [("randwrite", write_ns, bare_write_ns), ("randread", read_ns, bare_read_ns)]
        {
            let (ns, bare_ns, reached) = (median(&ours), median(&bare), median_ratio(&bare, &ours));
            let figures = [(ns, 0), (bare_ns, 0), (ns - bare_ns, 0), (reached, 3)];
            let figures = figures.map(|(figure, digits)| fixed(figure, digits));
            table.row(&[&format!("{algorithm} {kind}")], figures);
            let mut put =
                |name: &str, value| section.put(format!("{algorithm}_{kind}_{name}"), value);
            put("ns", ns);
            put("bare_ns", bare_ns);
            put("of_bare", reached);
        }
    }
    section.tables.push(table);
    Ok(section)
}

/// Runs `rounds` of `count` random pages in each direction, on a device of `pages` in memory.
fn run(
    platform: &impl Platform,
    algorithm: &str,
    (pages, count, rounds): (u64, usize, usize),
) -> Result<Speed, String> {
    let zram = device(platform, (algorithm, &[]), (pages, 1), None)?;
    let pool: Vec<Buf> =
        (0..POOL_PAGES).map(|nth| Buf::copy_of(&Data::Half.pages(nth, 1))).collect();
    let page_of = |slot: u64| (slot % POOL_PAGES) as usize;
    let write = |slots: Vec<u64>| {
        let bufs: Vec<Buf> = slots.iter().map(|slot| pool[page_of(*slot)].clone()).collect();
        let device = zram.clone();
        async move {
            for (slot, buf) in slots.into_iter().zip(bufs) {
                let at = Sector(slot * PAGE_SECTORS);
                let (none, class) = (Flags::empty(), Class::Normal);
                reactor::write(&*device, none, class, at, buf.all().into()).await?;
            }
            Ok(())
        }
    };
    let read = |slots: Vec<u64>| {
        let (device, buf) = (zram.clone(), Buf::alloc(PAGE_BYTES));
        let last = slots.last().copied().unwrap_or_default();
        let wanted = pool[page_of(last)].clone();
        async move {
            for slot in slots {
                let at = Sector(slot * PAGE_SECTORS);
                reactor::read(&*device, Class::Normal, at, buf.all().into()).await?;
            }
            // RP-C1
            Ok(buf.read(|found| wanted.read(|wanted| found == wanted)))
        }
    };
    let refused = |status: block::Status| format!("{algorithm}: {status}");
    platform.finish(write((0..pages).collect()))?.map_err(refused)?;

    let mut bare = BareCompressor::new(algorithm)?;
    let mut out = [0; PAGE_BYTES];
    let mut objects = Objects { bytes: Vec::new(), starts: vec![0] };
    for slot in 0..pages {
        let len = pool[page_of(slot)].read(|page| bare.compress(page, &mut out));
        let len = len.ok_or("a page that should compress does not")?;
        objects.bytes.extend_from_slice(&out[..len]);
        objects.starts.push(objects.bytes.len());
    }

    let mut speed = Speed::default();
    let mut rng = Rng::new(3);
    for _ in 0..rounds {
        let slots: Vec<u64> = (0..count).map(|_| rng.below(pages)).collect();

        let work = write(slots.clone());
        let begin = cpu_seconds();
        platform.finish(work)?.map_err(refused)?;
        speed.write_ns.push(ns_per(count, begin));

        let begin = cpu_seconds();
        for slot in &slots {
            let len = pool[page_of(*slot)].read(|page| bare.compress(page, &mut out));
            std::hint::black_box(len);
        }
        speed.bare_write_ns.push(ns_per(count, begin));

        let work = read(slots.clone());
        let begin = cpu_seconds();
        let right = platform.finish(work)?.map_err(refused)?;
        speed.read_ns.push(ns_per(count, begin));
        if !right {
            return Err(format!("{algorithm}: a page is not what was written"));
        }

        let begin = cpu_seconds();
        for slot in &slots {
            let nth = *slot as usize;
            let object = &objects.bytes[objects.starts[nth]..objects.starts[nth + 1]];
            std::hint::black_box(bare.decompress(object, &mut out));
        }
        speed.bare_read_ns.push(ns_per(count, begin));
    }
    end(platform, zram)?;
    Ok(speed)
}
