// SPDX-License-Identifier: Apache-2.0 OR MIT
//! `make bench-read-cache`: the read cache of a write cache in virtual time: reads in the shapes of
//! published traces, over a disk that spins. How often the cache has the block, beside LRU and
//! S3-FIFO of as many blocks; what the cache device is written for that; how long a read takes.
use std::process::ExitCode;
use std::rc::Rc;

use bench::eviction_models::{Lru, ModelCache, PlainS3Fifo};
use bench::output::{finish, progress};
use block::{Buf, Class, Sector, Target};
use reproduce::report::{Goal, Requirement, Section};
use reproduce::table::{Table, fixed};
use sim::model::{HddParams, Uniform};
use sim::{DiskSpec, Machine, Rng, World, Zipf};
use writecache::{Config, WriteCache};

const BLOCK: u64 = 4096;
const READS_DEFAULT: u64 = 400_000;
/// Blocks of a read of a scan: 64 KiB.
const SCAN_BLOCKS: u64 = 16;
/// Hits of S3-FIFO that must be reached, writes of LRU that may be, and what a scan may cost.
const HITS_MIN: f64 = 0.95;
const WRITES_MAX: f64 = 0.25;
const SCAN_LOSS_MAX: f64 = 0.02;
/// Hits of LRU that the second pass over blocks that fit must reach.
const AGAIN_MIN: f64 = 0.99;

/// Compares the read cache with LRU and S3-FIFO, in virtual time
///
/// The same arguments print the same figures on every machine. A goal that is missed makes the exit
/// status 1.
#[derive(Debug, clap::Args)]
#[command(after_help = "\
Examples:
  make bench-read-cache
  make bench-read-cache ARGS='--reads 100000'")]
pub(crate) struct Args {
    /// Reads of each trace that are measured, after as many that fill the cache
    #[arg(long, value_name = "N", default_value_t = READS_DEFAULT,
          value_parser = clap::value_parser!(u64).range(1000..=100_000_000))]
    reads: u64,
    /// Blocks of the origin; the cache has an eighth
    #[arg(long, value_name = "N", default_value_t = 65_536,
          value_parser = clap::value_parser!(u64).range(8192..=16_777_216))]
    blocks: u64,
}

/// What clients read.
#[derive(Clone, Copy, Debug, PartialEq)]
enum Shape {
    /// Block number n with a probability of 1/n to this power.
    Zipf(f64),
    /// A hot set of half the cache, and beside each read of it nothing.
    Hot,
    /// The same, and beside every fourth read of it 64 KiB of a scan.
    HotAndScan,
    /// The same, and beside every read of it one of a block that nobody reads again soon.
    HotAndOnce,
    /// A hot set of half the cache that moves by a tenth of itself now and then.
    Shifting,
    /// As `Zipf`, and at the same times the ranks of all blocks move by as much: what was read most
    /// is read least, and each other block is read a little more.
    Drifting(f64),
    /// As `Zipf`, so few reads that all their blocks fit, and then the same ones again: what counts
    /// is the second pass.
    Again(f64),
}

const SHAPES: [(&str, Shape); 9] = [
    ("zipf 0.8", Shape::Zipf(0.8)),
    ("zipf 1.0", Shape::Zipf(1.0)),
    ("zipf 1.2", Shape::Zipf(1.2)),
    ("hot set", Shape::Hot),
    ("hot set, scan", Shape::HotAndScan),
    ("hot set, others once", Shape::HotAndOnce),
    ("shifting set", Shape::Shifting),
    ("shifting zipf 1.0", Shape::Drifting(1.0)),
    ("the same again", Shape::Again(1.1)),
];

/// A read: its first block, how many, and whether it counts.
type Read = (u64, u64, bool);

/// The reads of a trace, so that all caches get the same.
fn trace(shape: Shape, blocks: u64, slots: u64, count: u64) -> Vec<Read> {
    let mut rng = Rng::new(7);
    if let Shape::Again(power) = shape {
        // With three reads a slot two thirds of the slots have a block.
        let pass = trace(Shape::Zipf(power), blocks, slots, 3 * slots);
        return [&pass[..], &pass[..]].concat();
    }
    // Ranks are spread over the device; an odd number is prime to a power of two.
    let spread = |rank: u64| (rank.wrapping_mul(0x9e37_79b9_7f4a_7c15)) % blocks;
    let zipf = match shape {
        Shape::Zipf(power) | Shape::Drifting(power) => Some(Zipf::new(blocks, power)),
        Shape::Hot | Shape::HotAndScan | Shape::HotAndOnce | Shape::Shifting | Shape::Again(_) => {
            None
        }
    };
    let (hot, mut scan, mut once) = (slots / 2, 0, 0);
    let mut reads = Vec::new();
    for n in 0..count {
        let moves = matches!(shape, Shape::Shifting | Shape::Drifting(_));
        let moved = if moves { n / (hot * 8) * (hot / 10) } else { 0 };
        if let Some(zipf) = &zipf {
            reads.push((spread(moved + zipf.draw(&mut rng)), 1, true));
            continue;
        }
        reads.push((spread(moved + rng.below(hot)), 1, true));
        if shape == Shape::HotAndScan && n % 4 == 0 {
            reads.push((scan, SCAN_BLOCKS, false));
            scan = (scan + SCAN_BLOCKS) % (blocks - SCAN_BLOCKS);
        } else if shape == Shape::HotAndOnce {
            reads.push((spread(hot + once), 1, false));
            once = (once + 1) % (blocks - hot);
        }
    }
    reads
}

/// What a cache made of the second half of a trace.
#[derive(Clone, Copy, Debug, Default)]
struct Outcome {
    hit_ratio: f64,
    /// Bytes written to the cache device.
    written: f64,
    hits: f64,
    /// Mean time of a read.
    mean_us: f64,
}

impl Outcome {
    fn written_per_hit(&self) -> f64 {
        self.written / self.hits.max(1.0)
    }
}

fn of_model(cache: &mut dyn ModelCache, reads: &[Read]) -> Outcome {
    let (mut hits, mut counted, mut before) = (0u64, 0u64, 0);
    for (n, (first, len, counts)) in reads.iter().enumerate() {
        if n == reads.len() / 2 {
            before = cache.entered();
        }
        for block in *first..first + len {
            let hit = cache.read(block);
            if n >= reads.len() / 2 && *counts {
                counted += 1;
                hits += u64::from(hit);
            }
        }
    }
    let written = (cache.entered() - before) * BLOCK;
    let hit_ratio = hits as f64 / counted.max(1) as f64;
    Outcome { hit_ratio, written: written as f64, hits: hits as f64, mean_us: f64::NAN }
}

/// A figure of the cache.
fn number(cache: &WriteCache, name: &str) -> u64 {
    cache.attribute(name).ok().and_then(|value| value.number()).unwrap_or(0)
}

/// The engine over a disk that spins, with a cache device of so many KiB. Returns its slots, too.
fn of_engine(
    read_cache: bool,
    blocks: u64,
    cache_kib: u64,
    reads: impl FnOnce(u64) -> Vec<Read> + 'static,
) -> Result<(u64, Outcome), String> {
    let world = World::calm(1);
    let sectors = Sector(blocks * BLOCK / 512);
    let (origin, device) = {
        let mut w = world.borrow_mut();
        let origin = w.add_disk(DiskSpec::hdd("origin", sectors, HddParams::textbook()));
        let model = Box::new(Uniform::new(2, 60_000, 90_000));
        let spec = DiskSpec::new("cache", Sector(cache_kib * 2), model);
        let device = w.add_disk(DiskSpec { keeps_history: false, ..spec });
        (w.leaf(origin), w.leaf(device))
    };
    let option = ["read_cache", if read_cache { "1" } else { "0" }];
    let words = ["s", "origin", "cache", "4096", "2", option[0], option[1]];
    let config = Config::parse(&words).map_err(|e| e.to_string())?;
    let cache =
        WriteCache::new("wc", config, origin, device, sectors).map_err(|e| e.to_string())?;
    let machine = Machine::boot(&world, 1);
    let done = machine.block_on(async move {
        cache.clone().resume().await.map_err(|e| e.to_string())?;
        let slots = number(&cache, "total_blocks");
        Ok((slots, replay(&cache, &reads(slots)).await?))
    });
    machine.kill();
    done.map_err(|_| "no power cut was planned".to_owned())?
}

async fn replay(cache: &Rc<WriteCache>, reads: &[Read]) -> Result<Outcome, String> {
    let buf = Buf::zeroed(usize::try_from(SCAN_BLOCKS * BLOCK).map_err(|e| e.to_string())?);
    let written = || number(cache, "admitted_write_bytes") + number(cache, "metadata_write_bytes");
    let (mut hits, mut counted, mut before, mut took) = (0u64, 0u64, 0, 0u64);
    for (n, (first, len, counts)) in reads.iter().enumerate() {
        if n == reads.len() / 2 {
            before = written();
        }
        let is_measured = n >= reads.len() / 2 && *counts;
        let had = if is_measured { number(cache, "read_hits") } else { 0 };
        let began = reactor::now().0;
        let len = usize::try_from(len * BLOCK).map_err(|e| e.to_string())?;
        let at = Sector(first * BLOCK / 512);
        let data = buf.slice(0..len).into();
        let read = reactor::read(&**cache, Class::Foreground, at, data).await;
        read.map_err(|status| format!("block {first}: {status}"))?;
        if is_measured {
            took += reactor::now().0 - began;
            counted += 1;
            hits += number(cache, "read_hits") - had;
        }
    }
    let count = counted.max(1) as f64;
    Ok(Outcome {
        hit_ratio: hits as f64 / count,
        written: (written() - before) as f64,
        hits: hits as f64,
        mean_us: took as f64 / count / 1000.0,
    })
}

/// With fewer reads than by default caches are not in their steady state.
fn goal(reads: u64, what: String, figure: f64, bound: f64, is_at_most: bool) -> Goal {
    let requirement = match reads >= READS_DEFAULT {
        true => Requirement::Required,
        false => Requirement::FullSizeOnly,
    };
    Goal { what, figure, bound, is_at_most, requirement }
}

fn bench(args: &Args) -> Result<Section, String> {
    let (blocks, reads) = (args.blocks, args.reads);
    let mut section = Section::default();
    let mut table = Table::new(
        format!("{reads} reads of {blocks} blocks, a cache of an eighth (virtual time)"),
        &["reads"],
        &["hits", "S3-FIFO", "LRU", "B/hit", "S3-FIFO", "LRU", "mean us", "off"],
    );
    let mut hot = f64::NAN;
    for (nth, (name, shape)) in SHAPES.into_iter().enumerate() {
        progress(nth as f64 / SHAPES.len() as f64, name);
        let make = move |slots| trace(shape, blocks, slots, 2 * reads);
        let (slots, ours) = of_engine(true, blocks, blocks / 8 * 4, make)?;
        // Enough to know the mean of a disk.
        let few = move |slots| trace(shape, blocks, slots, reads.min(20_000));
        let (_, off) = of_engine(false, blocks, blocks / 8 * 4, few)?;
        let all = make(slots);
        let capacity = usize::try_from(slots).map_err(|e| e.to_string())?;
        let s3 = of_model(&mut PlainS3Fifo::new(capacity), &all);
        let lru = of_model(&mut Lru::new(capacity), &all);
        let percent = |outcome: &Outcome| fixed(100.0 * outcome.hit_ratio, 1);
        let per_hit = |outcome: &Outcome| fixed(outcome.written_per_hit(), 0);
        table.row(
            &[name],
            [&ours, &s3, &lru]
                .map(percent)
                .into_iter()
                .chain([&ours, &s3, &lru].map(per_hit))
                .chain([fixed(ours.mean_us, 0), fixed(off.mean_us, 0)]),
        );
        let key = name.replace([' ', ',', '.'], "_").replace("__", "_");
        section.put(format!("{key}_hit_ratio"), ours.hit_ratio);
        section.put(format!("{key}_s3_fifo_hit_ratio"), s3.hit_ratio);
        section.put(format!("{key}_lru_hit_ratio"), lru.hit_ratio);
        section.put(format!("{key}_bytes_per_hit"), ours.written_per_hit());
        section.put(format!("{key}_lru_bytes_per_hit"), lru.written_per_hit());
        section.put(format!("{key}_mean_us"), ours.mean_us);
        section.put(format!("{key}_off_mean_us"), off.mean_us);
        let of_s3 = ours.hit_ratio / s3.hit_ratio;
        section.goals.push(goal(
            reads,
            format!("{name}: hits of S3-FIFO's"),
            of_s3,
            HITS_MIN,
            false,
        ));
        // Of a hot set that fits LRU writes each block once: nobody writes less.
        if !matches!(shape, Shape::Hot | Shape::Shifting | Shape::Again(_)) {
            let of_lru = ours.written / lru.written.max(1.0);
            let what = format!("{name}: bytes written of LRU's");
            section.goals.push(goal(reads, what, of_lru, WRITES_MAX, true));
        }
        match shape {
            Shape::Hot => hot = ours.hit_ratio,
            Shape::HotAndScan | Shape::HotAndOnce => {
                let what = format!("{name}: what the hot set loses");
                section.goals.push(goal(
                    reads,
                    what,
                    1.0 - ours.hit_ratio / hot,
                    SCAN_LOSS_MAX,
                    true,
                ));
            }
            Shape::Again(_) => {
                let what = format!("{name}: hits of LRU's");
                let of_lru = ours.hit_ratio / lru.hit_ratio;
                section.goals.push(goal(reads, what, of_lru, AGAIN_MIN, false));
            }
            Shape::Zipf(_) | Shape::Drifting(_) | Shape::Shifting => {}
        }
    }
    section.tables.push(table);
    section.notes.push("B/hit: bytes written to the cache device for each hit".to_owned());
    section
        .notes
        .push("LRU enters each block of a shifting set once, so no cache writes less".to_owned());
    section.notes.push(
        "the same again: reads by zipf 1.1 of blocks that fit; the second pass counts".to_owned(),
    );
    section.notes.push("off: the mean of a read without the read cache".to_owned());
    Ok(section)
}

pub(crate) fn main(args: &Args) -> ExitCode {
    finish("read-cache", bench(args))
}
