// SPDX-License-Identifier: Apache-2.0 OR MIT
//! One flush of a write cache: fills a cache with random blocks, sends the message `flush`,
//! measures how long it takes and counts the requests to the origin.
//!
//! ```text
//!   shuffled blocks ─ 4 KiB writes ─▶ writecache ─▶ cache device .. then `flush`, timed ─▶ origin
//!   a reader of random blocks ──────────▲   (in some runs only)
//! ```
//!
//! The engine is the one that serves clients, unchanged. The devices are models in virtual time
//! (`flush_sim`) or files of this machine (`flush_disk`).
//!
//! Invariants
//! - RP-F1 The dirty blocks and the order in which they arrive depend only on scale and fill level:
//!   they are the same for all strategies and all disks.
//! - RP-F2 The cache has an eighth more slots than dirty blocks (with clean copies: than dirty
//!   blocks and blocks of the origin). So much is free that no watermark starts writeback before
//!   the flush, not even one of 100 %.
use std::cell::{Cell, RefCell};
use std::rc::Rc;

use block::{BlockDevice, Buf, Class, Flags, Nanos, SECTOR_SIZE, Sector, Target};
use format::Geometry;
use reactor::WaitList;
use sim::Rng;
use writecache::{Config, WriteCache};

use crate::size_counter::{SizeCounter, SizeCounts};

pub const BLOCK_BYTES: u64 = 4096;
const BLOCK_SECTORS: u64 = BLOCK_BYTES / SECTOR_SIZE as u64;
/// Writes in flight while filling. The order of arrival is the order of submission in any case.
const FILL_DEPTH: usize = 64;
/// Seed of the dirty set and of the reader.
const SEED: u64 = 1;
/// Of so many blocks one carries a stamp, which is compared on the origin after the flush. The
/// others are zeroes, of which the simulator keeps no copy.
const STAMP_EVERY: u64 = 16;

/// The order of writeback, and what it does with gaps between dirty blocks.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum Strategy {
    /// Oldest first.
    Lru,
    /// Ascending; each run of dirty blocks is one write.
    Sorted,
    /// The same; each run reads its own slots, in its own requests.
    SortedAlone,
    /// Ascending; gaps are filled where that is faster. The default.
    GapFill,
    /// The same, with clean copies of all other blocks in the cache.
    GapKnown,
}

impl Strategy {
    pub fn name(self) -> &'static str {
        match self {
            Strategy::Lru => "lru",
            Strategy::Sorted => "sorted",
            Strategy::SortedAlone => "sorted_alone",
            Strategy::GapFill => "gap_fill",
            Strategy::GapKnown => "gap_known",
        }
    }

    pub(crate) fn order(self) -> &'static str {
        match self {
            Strategy::Lru => "lru",
            Strategy::Sorted | Strategy::SortedAlone | Strategy::GapFill | Strategy::GapKnown => {
                "sorted"
            }
        }
    }

    pub(crate) fn fills(self) -> &'static str {
        match self {
            Strategy::Lru | Strategy::Sorted | Strategy::SortedAlone => "0",
            Strategy::GapFill | Strategy::GapKnown => "1",
        }
    }
}

/// `writeback_buffer` of the strategies that read the slots of many runs together.
const WRITEBACK_BUFFER: &str = "256M";

/// The sizes of a run: the published ones, or smaller ones of the same proportions.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct Scale {
    pub origin_blocks: u64,
    /// Blocks of the published cache: 49 % of the origin's.
    pub cache_blocks: u64,
}

/// The fill level of the published run, per cent of the origin.
pub const PUBLISHED_PERCENT: u64 = 49;

impl Scale {
    /// The published run: a 1006 MiB cache device, which the kernel's format divides into 256,533
    /// blocks, over 2 GiB.
    pub const PUBLISHED: Scale = Scale { origin_blocks: 524_288, cache_blocks: 256_533 };

    /// The published sizes divided by `by`.
    #[must_use]
    pub fn divided(by: u64) -> Scale {
        let full = Scale::PUBLISHED;
        Scale { origin_blocks: full.origin_blocks / by, cache_blocks: full.cache_blocks / by }
    }

    /// The published proportions for so many dirty bytes.
    #[must_use]
    pub fn of_dirty(bytes: u64) -> Scale {
        let (full, cache_blocks) = (Scale::PUBLISHED, bytes / BLOCK_BYTES);
        let origin_blocks = cache_blocks * full.origin_blocks / full.cache_blocks;
        Scale { origin_blocks, cache_blocks }
    }

    /// Dirty blocks at a fill level.
    pub fn dirty_blocks(self, fill_percent: u64) -> u64 {
        match fill_percent {
            PUBLISHED_PERCENT => self.cache_blocks,
            percent => self.origin_blocks * percent / 100,
        }
    }

    /// Slots of the cache (RP-F2).
    pub fn slots(self, fill_percent: u64, strategy: Strategy) -> u64 {
        let dirty = self.dirty_blocks(fill_percent);
        let all = if strategy == Strategy::GapKnown { dirty + self.origin_blocks } else { dirty };
        all + (all / 8).max(ROOM_SLOTS_MIN)
    }
}

/// With so many free slots no cache begins to write back by itself, however small it is. It begins
/// when less than half of the slots that it keeps free, 256 at least, is left.
const ROOM_SLOTS_MIN: u64 = 129;

/// The smallest cache device with at least these slots.
pub fn cache_device_sectors(slots: u64) -> Sector {
    let mut area_bytes = slots * BLOCK_BYTES;
    loop {
        let geometry = Geometry::compute(area_bytes, BLOCK_BYTES as u32);
        if geometry.is_ok_and(|g| u64::from(g.slots) >= slots) {
            return Sector::from_bytes(area_bytes);
        }
        area_bytes += BLOCK_BYTES;
    }
}

/// Reads of random blocks at random moments, before the flush and during it.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct Reads {
    /// Mean time between two reads.
    pub every: Nanos,
    /// Number of reads before the flush.
    pub idle: usize,
}

/// One run.
#[derive(Clone, Copy, Debug)]
pub struct Plan {
    pub scale: Scale,
    pub strategy: Strategy,
    /// Of the origin.
    pub fill_percent: u64,
    pub reads: Option<Reads>,
    /// Writes of writeback in flight; 0: as many as there are.
    pub jobs: u32,
    /// The number of this run on these devices: each writes other bytes.
    pub nth: u64,
    /// Whether the origin's writes are counted by size and the progress of the flush is sampled.
    pub watched: bool,
}

/// The result of a run.
#[derive(Clone, Debug, PartialEq)]
pub struct Outcome {
    pub dirty_blocks: u64,
    pub flush_ns: u64,
    pub origin_writes: u64,
    pub origin_write_bytes: u64,
    pub origin_read_bytes: u64,
    pub origin_flushes: u64,
    /// Reads of the cache device that took the slots of many runs, and their bytes.
    pub slot_reads: u64,
    pub slot_read_bytes: u64,
    /// Latencies of the reader, sorted; empty without one.
    pub idle_read_ns: Vec<u64>,
    pub flush_read_ns: Vec<u64>,
    /// Of a watched run: the origin's writes by size, and (time, blocks written back).
    pub write_sizes: SizeCounts,
    pub progress: Vec<(u64, u64)>,
}

impl Outcome {
    /// Duration of the flush.
    pub fn seconds(&self) -> f64 {
        self.flush_ns as f64 / 1e9
    }

    pub fn mib_per_s(&self) -> f64 {
        (self.dirty_blocks * BLOCK_BYTES) as f64 / f64::from(1 << 20) / self.seconds()
    }

    pub fn mean_io_bytes(&self) -> u64 {
        self.origin_write_bytes / self.origin_writes.max(1)
    }
}

/// The value below which `per_cent` of the sorted values lie, by nearest rank; `None` if there is
/// no value.
pub fn percentile(sorted: &[u64], per_cent: usize) -> Option<u64> {
    let rank = (sorted.len() * per_cent).div_ceil(100);
    sorted.get(rank.max(1) - 1).copied()
}

/// Runs a plan. The cache device must be blank, or have no superblock.
///
/// # Errors
/// An unexpected answer of the cache.
pub async fn run(
    origin: Rc<dyn BlockDevice>,
    device: Rc<dyn BlockDevice>,
    plan: Plan,
) -> Result<Outcome, String> {
    let counter = plan.watched.then(|| SizeCounter::new(origin.clone()));
    let below = counter.clone().map_or(origin.clone(), |counter| counter as Rc<dyn BlockDevice>);
    let cache = open(&below, device, plan).await?;
    let origin_blocks = plan.scale.origin_blocks;
    if plan.strategy == Strategy::GapKnown {
        fill(cache.clone(), (0..origin_blocks).collect(), None).await?;
        clean(cache.clone()).await?;
    }
    let blocks = shuffled_blocks(plan.scale, plan.fill_percent);
    let dirty_blocks = blocks.len() as u64;
    let blocks: Rc<[u64]> = blocks.into();
    fill(cache.clone(), blocks.clone(), Some(plan.nth)).await?;

    let reader = Rc::new(Reader::default());
    let mut idle_read_ns = Vec::new();
    if let Some(reads) = plan.reads {
        reactor::spawn(reader.clone().run(cache.clone(), origin_blocks, reads.every));
        let enough = || reader.latencies_ns.borrow().len() >= reads.idle;
        reader.ended.wait_for(enough).await;
        idle_read_ns = reader.latencies_ns.take();
    }
    let (before, start) = (counts(&cache)?, reactor::now());
    let watch = Rc::new(ProgressSampler::default());
    if let Some(counter) = &counter {
        counter.take();
        reactor::spawn(watch.clone().run(cache.clone(), start));
    }
    let flushed = cache.clone().message(vec!["flush".to_owned()]).await;
    flushed.map_err(|e| e.chain())?;
    let flush_ns = reactor::now().0 - start.0;
    let progress = watch.end(flush_ns, dirty_blocks);
    let write_sizes = counter.map(|counter| counter.take()).unwrap_or_default();
    let after = counts(&cache)?;
    // A read that began during the flush counts, even if it ends after it.
    reader.stop.set(true);
    reader.ended.wait_for(|| reader.in_flight.get() == 0).await;
    if let Some(why) = reader.failure.take() {
        return Err(why);
    }
    let mut flush_read_ns = reader.latencies_ns.take();
    idle_read_ns.sort_unstable();
    flush_read_ns.sort_unstable();
    check(&*origin, &cache, &blocks, plan.nth).await?;
    cache.suspend().await.map_err(|e| e.chain())?;
    let [
        origin_writes,
        origin_write_bytes,
        origin_read_bytes,
        origin_flushes,
        slot_reads,
        slot_read_bytes,
    ] = std::array::from_fn(|nth| after[nth] - before[nth]);
    Ok(Outcome {
        dirty_blocks,
        flush_ns,
        origin_writes,
        origin_write_bytes,
        origin_read_bytes,
        origin_flushes,
        slot_reads,
        slot_read_bytes,
        idle_read_ns,
        flush_read_ns,
        write_sizes,
        progress,
    })
}

/// RP-F1. The dirty blocks in the order in which they arrive.
fn shuffled_blocks(scale: Scale, fill_percent: u64) -> Vec<u64> {
    let mut blocks: Vec<u64> = (0..scale.origin_blocks).collect();
    Rng::new(SEED).shuffle(&mut blocks);
    blocks.truncate(usize_of(scale.dirty_blocks(fill_percent)));
    blocks
}

/// The dirty blocks, ascending.
pub(crate) fn dirty_set(scale: Scale, fill_percent: u64) -> Vec<u64> {
    let mut blocks = shuffled_blocks(scale, fill_percent);
    blocks.sort_unstable();
    blocks
}

/// The requests of writeback to the origin: writes, their bytes, bytes read, flushes; and its large
/// reads of the cache device, with their bytes.
fn counts(cache: &WriteCache) -> Result<[u64; 6], String> {
    let names = [
        "origin_writes",
        "origin_write_bytes",
        "gap_bytes_read",
        "origin_flushes",
        "slot_reads",
        "slot_read_bytes",
    ];
    let mut counts = [0; 6];
    for (count, name) in counts.iter_mut().zip(names) {
        let value = cache.attribute(name).map_err(|e| e.chain())?;
        *count = value.number().ok_or_else(|| format!("{name} is `{value}`"))?;
    }
    Ok(counts)
}

async fn open(
    origin: &Rc<dyn BlockDevice>,
    device: Rc<dyn BlockDevice>,
    plan: Plan,
) -> Result<Rc<WriteCache>, String> {
    let jobs = plan.jobs.to_string();
    let args = [
        "s",
        "origin",
        "cache",
        "4096",
        "10",
        "high_watermark",
        "100",
        "writeback_jobs",
        &jobs,
        "writeback_order",
        plan.strategy.order(),
        "gap_fill",
        plan.strategy.fills(),
        "writeback_buffer",
        if plan.strategy == Strategy::SortedAlone { "0" } else { WRITEBACK_BUFFER },
    ];
    let config = Config::parse(&args).map_err(|e| e.chain())?;
    let length = sectors(plan.scale.origin_blocks);
    let cache = WriteCache::new("bench", config, origin.clone(), device, length);
    let cache = cache.map_err(|e| e.chain())?;
    cache.clone().resume().await.map_err(|e| e.chain())?;
    let slots = cache.attribute("total_blocks").map_err(|e| e.chain())?;
    let wanted = plan.scale.slots(plan.fill_percent, plan.strategy);
    if slots.number() != Some(wanted) {
        return Err(format!("the cache has {slots} slots, not {wanted}"));
    }
    Ok(cache)
}

/// Writes the blocks in this order, a few at a time, and flushes.
async fn fill(cache: Rc<WriteCache>, blocks: Rc<[u64]>, nth: Option<u64>) -> Result<(), String> {
    let (next, running) = (Rc::new(Cell::new(0)), Rc::new(Cell::new(FILL_DEPTH)));
    let (ended, failure) = (Rc::new(WaitList::new()), Rc::new(Cell::new(None)));
    let zeroes = Buf::zeroed(usize_of(BLOCK_BYTES));
    for _ in 0..FILL_DEPTH {
        let (cache, blocks, zeroes) = (cache.clone(), blocks.clone(), zeroes.clone());
        let (next, running) = (next.clone(), running.clone());
        let (ended, failure) = (ended.clone(), failure.clone());
        reactor::spawn(async move {
            while let Some(&block) = blocks.get(next.replace(next.get() + 1)) {
                let stamp = nth.and_then(|nth| stamp(block, nth));
                let data = stamp.map_or_else(|| zeroes.clone(), |s| Buf::copy_of(&s));
                let at = sectors(block);
                let (flags, class) = (Flags::empty(), Class::Normal);
                let written = reactor::write(&*cache, flags, class, at, data.all().into()).await;
                if let Err(status) = written {
                    failure.set(Some(format!("write of block {block}: {status}")));
                }
            }
            running.set(running.get() - 1);
            ended.wake_all();
        });
    }
    ended.wait_for(|| running.get() == 0).await;
    failure.take().map_or(Ok(()), Err)?;
    let flushed = reactor::flush(&*cache, Class::Foreground).await;
    flushed.map_err(|status| format!("flush after filling: {status}"))
}

/// Has everything written back, so that the cache holds clean copies of all blocks.
async fn clean(cache: Rc<WriteCache>) -> Result<(), String> {
    let set = async |name: &str, value: &str| {
        let set = cache.clone().set_attribute(name.to_owned(), value.to_owned());
        set.await.map_err(|e| e.chain())
    };
    set("low_watermark", "0").await?;
    set("high_watermark", "0").await?;
    while cache.attribute("dirty_blocks").map_err(|e| e.chain())? != "0" {
        reactor::sleep(Nanos::from_millis(100)).await;
    }
    set("high_watermark", "100").await?;
    set("low_watermark", "45").await
}

/// The contents of a stamped block after run `nth`; none for other blocks.
fn stamp(block: u64, nth: u64) -> Option<Vec<u8>> {
    let word = ((nth << 32) + block + 1).to_le_bytes();
    block.is_multiple_of(STAMP_EVERY).then(|| word.repeat(usize_of(BLOCK_BYTES) / word.len()))
}

/// Checks that nothing is dirty, nothing has failed, and the origin holds the stamps.
async fn check(
    origin: &dyn BlockDevice,
    cache: &WriteCache,
    blocks: &[u64],
    nth: u64,
) -> Result<(), String> {
    for name in ["error", "dirty_blocks", "bad_blocks"] {
        let value = cache.attribute(name).map_err(|e| e.chain())?;
        if value != "0" {
            return Err(format!("{name} is {value} after the flush"));
        }
    }
    let (found, at) = (Buf::alloc(usize_of(BLOCK_BYTES)), |block| sectors(block));
    for &block in blocks {
        let Some(wanted) = stamp(block, nth) else { continue };
        let read = reactor::read(origin, Class::Foreground, at(block), found.all().into()).await;
        read.map_err(|status| format!("read of origin's block {block}: {status}"))?;
        if !found.all().read(|bytes| bytes == wanted) {
            return Err(format!("the origin does not hold block {block} after the flush"));
        }
    }
    Ok(())
}

/// Samples the progress of a flush, at growing intervals.
#[derive(Default)]
struct ProgressSampler {
    points: RefCell<Vec<(u64, u64)>>,
    has_ended: Cell<bool>,
}

/// Most points of a flush that are kept.
const POINTS_MAX: usize = 256;

impl ProgressSampler {
    async fn run(self: Rc<ProgressSampler>, cache: Rc<WriteCache>, start: Nanos) {
        let mut every = Nanos::from_millis(2);
        loop {
            reactor::sleep(every).await;
            let done = cache.attribute("flush_done_blocks").ok().and_then(|done| done.number());
            if self.has_ended.get() {
                return;
            }
            let mut points = self.points.borrow_mut();
            let before = points.last().map_or(0, |(_, done)| *done);
            // The count begins again when the flush has ended: that is no fall.
            if let Some(done) = done.filter(|done| *done >= before) {
                points.push((reactor::now().0 - start.0, done));
            }
            if points.len() == POINTS_MAX {
                let mut nth = 0;
                points.retain(|_| {
                    nth += 1;
                    nth % 2 == 0
                });
                every = Nanos(every.0 * 2);
            }
        }
    }

    /// All points, from the begin of the flush to its end; only of a watched run.
    fn end(&self, flush_ns: u64, blocks: u64) -> Vec<(u64, u64)> {
        self.has_ended.set(true);
        let points = self.points.take();
        let ends = ([(0, 0)], [(flush_ns, blocks)]);
        ends.0.into_iter().chain(points).chain(ends.1).collect()
    }
}

/// Reads random blocks of the device at random times. It does not wait for earlier reads: a slow
/// read must not delay the next one.
#[derive(Default)]
struct Reader {
    latencies_ns: RefCell<Vec<u64>>,
    in_flight: Cell<usize>,
    stop: Cell<bool>,
    failure: RefCell<Option<String>>,
    /// Waits for the end of a read.
    ended: WaitList,
}

impl Reader {
    async fn run(self: Rc<Reader>, device: Rc<WriteCache>, blocks: u64, every: Nanos) {
        let mut rng = Rng::new(SEED + 1);
        loop {
            reactor::sleep(Nanos(rng.below(2 * every.0))).await;
            if self.stop.get() {
                return;
            }
            let (reader, device, block) = (self.clone(), device.clone(), rng.below(blocks));
            self.in_flight.set(self.in_flight.get() + 1);
            reactor::spawn(async move {
                let start = reactor::now();
                let buf = Buf::alloc(usize_of(BLOCK_BYTES));
                let (at, data) = (sectors(block), buf.all().into());
                if let Err(status) = reactor::read(&*device, Class::Foreground, at, data).await {
                    *reader.failure.borrow_mut() = Some(format!("read of block {block}: {status}"));
                }
                reader.latencies_ns.borrow_mut().push(reactor::now().0 - start.0);
                reader.in_flight.set(reader.in_flight.get() - 1);
                reader.ended.wake_all();
            });
        }
    }
}

pub(crate) fn sectors(blocks: u64) -> Sector {
    Sector(blocks * BLOCK_SECTORS)
}

pub(crate) fn usize_of(n: u64) -> usize {
    usize::try_from(n).expect("sizes of the bench fit in memory")
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn percentiles_are_of_the_nearest_rank() {
        let sorted: Vec<u64> = (1..=200).collect();
        assert_eq!(percentile(&sorted, 99), Some(198));
        assert_eq!(percentile(&sorted, 50), Some(100));
        assert_eq!(percentile(&[7], 99), Some(7));
        assert_eq!(percentile(&[], 99), None);
    }
}
