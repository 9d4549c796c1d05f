// SPDX-License-Identifier: Apache-2.0 OR MIT
//! One flush of a write cache in virtual time: fill a cache with random blocks, send `flush`, and
//! look at the clock of the simulator and at what the origin was asked for.
//!
//! ```text
//!   shuffled blocks ─ 4 KiB writes ─▶ writecache ─▶ Flash   ... then message `flush`, timed ─▶ Hdd
//!   a reader of random blocks ──────────▲   (only in the runs that ask for it)
//! ```
//!
//! The engine is the one that is served to clients, unchanged. Everything here is a function of
//! the case: no clock, no other chance than the seed.
//!
//! Invariants
//! - F1 The dirty set and its order of arrival depend on scale and fill level alone: all ways of
//!   writeback and all disks get the same.
//! - F2 The cache has an eighth more slots than the dirty set (with clean copies: than dirty set
//!   and origin): at least so much is free that no watermark starts writeback before the flush, not
//!   even one of 100 %.
use std::cell::{Cell, RefCell};
use std::rc::Rc;

use block::{Buf, Class, Error, Flags, Nanos, SECTOR_SIZE, Sector, Target};
use format::Geometry;
use reactor::{FileId, WaitList};
use sim::model::{Flash, FlashParams, HddParams};
use sim::{DiskSpec, Ended, Machine, Rng, World, WorldRef};
use writecache::{Config, WriteCache};

pub const BLOCK_BYTES: u64 = 4096;
const BLOCK_SECTORS: u64 = BLOCK_BYTES / SECTOR_SIZE as u64;
/// Writes in flight while filling. The order of arrival is the submitter's, whatever this is.
const FILL_DEPTH: usize = 64;
/// Seed of the dirty set and of the reader.
const SEED: u64 = 1;
/// Every so many blocks one carries a stamp that is looked for on the origin afterwards; the
/// others are zeroes, of which the simulator keeps no copy.
const STAMP_EVERY: u64 = 16;
/// Mean distance of two foreground reads: at 6 ms a random read the idle disk is busy for a
/// seventh of the time.
const READ_EVERY_NS: u64 = 40_000_000;
/// Reads of the idle phase: twenty of them lie above the 99th percentile.
const IDLE_READS: usize = 2_000;

/// Way of writeback.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum Way {
    /// Oldest first.
    Lru,
    /// Ascending, each run for itself.
    Sorted,
    /// Ascending, and gaps are filled where that is faster: the default.
    GapFill,
    /// The same, and the cache has clean copies of all that is not dirty.
    GapKnown,
}

impl Way {
    pub fn name(self) -> &'static str {
        match self {
            Way::Lru => "lru",
            Way::Sorted => "sorted",
            Way::GapFill => "gap_fill",
            Way::GapKnown => "gap_known",
        }
    }

    fn order(self) -> &'static str {
        match self {
            Way::Lru => "lru",
            Way::Sorted | Way::GapFill | Way::GapKnown => "sorted",
        }
    }

    fn fills(self) -> &'static str {
        match self {
            Way::Lru | Way::Sorted => "0",
            Way::GapFill | Way::GapKnown => "1",
        }
    }
}

/// Which rotating disk the origin is.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum Disk {
    Published,
    Textbook,
}

impl Disk {
    pub fn name(self) -> &'static str {
        match self {
            Disk::Published => "published",
            Disk::Textbook => "textbook",
        }
    }

    pub fn params(self) -> HddParams {
        match self {
            Disk::Published => HddParams::published(),
            Disk::Textbook => HddParams::textbook(),
        }
    }
}

/// Sizes of a bench; the published ones, or smaller ones of the same proportions.
#[derive(Clone, Copy, Debug)]
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

    /// Dirty blocks at a fill level.
    pub fn dirty_blocks(self, fill_percent: u64) -> u64 {
        match fill_percent {
            PUBLISHED_PERCENT => self.cache_blocks,
            percent => self.origin_blocks * percent / 100,
        }
    }

    /// Slots of the cache (F2).
    fn slots(self, case: &Case) -> u64 {
        let dirty = self.dirty_blocks(case.fill_percent);
        let all = if case.way == Way::GapKnown { dirty + self.origin_blocks } else { dirty };
        all + all / 8
    }
}

/// The smallest cache device with at least these slots.
pub(crate) fn cache_device_sectors(slots: u64) -> Sector {
    let mut area_bytes = slots * BLOCK_BYTES;
    loop {
        let geometry = Geometry::compute(area_bytes, BLOCK_BYTES as u32);
        if geometry.is_ok_and(|g| u64::from(g.slots) >= slots) {
            return Sector::from_bytes(area_bytes);
        }
        area_bytes += BLOCK_BYTES;
    }
}

/// One run.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct Case {
    pub disk: Disk,
    pub way: Way,
    /// Of the origin.
    pub fill_percent: u64,
    /// Whether somebody reads, before the flush and during it.
    pub reader: bool,
}

/// What came out of it.
#[derive(Clone, Debug, PartialEq)]
pub struct Outcome {
    pub dirty_blocks: u64,
    pub flush_ns: u64,
    pub origin_writes: u64,
    pub origin_write_bytes: u64,
    pub origin_read_bytes: u64,
    pub origin_flushes: u64,
    /// Latencies of the reader, sorted; empty without one.
    pub idle_read_ns: Vec<u64>,
    pub flush_read_ns: Vec<u64>,
}

impl Outcome {
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

/// The value below which `per_cent` of the sorted values lie, by nearest rank; `None` of nothing.
pub fn percentile(sorted: &[u64], per_cent: usize) -> Option<u64> {
    let rank = (sorted.len() * per_cent).div_ceil(100);
    sorted.get(rank.max(1) - 1).copied()
}

/// Seconds of one pass over the origin: no method that moves a head can be faster, once the dirty
/// blocks are everywhere.
pub fn one_pass_s(scale: Scale, disk: Disk) -> f64 {
    (scale.origin_blocks * BLOCK_BYTES) as f64 / disk.params().bytes_per_s as f64
}

/// Runs a case.
///
/// # Errors
/// What the cache answered when it was not what it should have been.
pub fn run(scale: Scale, case: Case) -> Result<Outcome, String> {
    let world = World::calm(SEED);
    let (origin_file, cache_file) = {
        let mut w = world.borrow_mut();
        let origin = DiskSpec::hdd("origin", sectors(scale.origin_blocks), case.disk.params());
        let flash = Box::new(Flash::new(FlashParams::nvme()));
        let sectors = cache_device_sectors(scale.slots(&case));
        let cache = DiskSpec::new("cache", sectors, flash);
        (w.add_disk(origin), w.add_disk(DiskSpec { keeps_history: false, ..cache }))
    };
    let machine = Machine::boot(&world, 1);
    let cache = open(&machine, &world, (origin_file, cache_file), scale, &case)?;
    if case.way == Way::GapKnown {
        let all: Rc<[u64]> = (0..scale.origin_blocks).collect();
        finish(&machine, fill(cache.clone(), all, false))??;
        finish(&machine, clean(cache.clone()))??;
    }

    let mut blocks: Vec<u64> = (0..scale.origin_blocks).collect();
    Rng::new(SEED).shuffle(&mut blocks); // F1
    blocks.truncate(usize_of(scale.dirty_blocks(case.fill_percent)));
    let dirty_blocks = blocks.len() as u64;
    let blocks: Rc<[u64]> = blocks.into();
    finish(&machine, fill(cache.clone(), blocks.clone(), true))??;

    let reader = Rc::new(Reader::default());
    let mut idle_read_ns = Vec::new();
    if case.reader {
        let enough = || reader.latencies_ns.borrow().len() >= IDLE_READS;
        machine.spawn(0, reader.clone().run(cache.clone(), scale.origin_blocks));
        ended(machine.run(enough))?;
        idle_read_ns = reader.latencies_ns.take();
    }
    let (before, start) = (world.borrow().stats(origin_file), world.borrow().now());
    let target = cache.clone();
    let flushed = async move { target.message(vec!["flush".to_owned()]).await };
    finish(&machine, flushed)?.map_err(|e| e.chain())?;
    let flush_ns = world.borrow().now().0 - start.0;
    let after = world.borrow().stats(origin_file);
    // A read that began during the flush counts, however late it ends.
    reader.stop.set(true);
    if case.reader {
        ended(machine.run(|| reader.in_flight.get() == 0))?;
    }
    if let Some(status) = reader.failure.take() {
        return Err(status);
    }
    let mut flush_read_ns = reader.latencies_ns.take();
    idle_read_ns.sort_unstable();
    flush_read_ns.sort_unstable();
    check(&world, origin_file, &cache, &blocks)?;
    Ok(Outcome {
        dirty_blocks,
        flush_ns,
        origin_writes: after.writes - before.writes,
        origin_write_bytes: after.write_bytes - before.write_bytes,
        origin_read_bytes: after.read_bytes - before.read_bytes,
        origin_flushes: after.flushes - before.flushes,
        idle_read_ns,
        flush_read_ns,
    })
}

fn open(
    machine: &Machine,
    world: &WorldRef,
    (origin, device): (FileId, FileId),
    scale: Scale,
    case: &Case,
) -> Result<Rc<WriteCache>, String> {
    let args = [
        "s",
        "origin",
        "cache",
        "4096",
        "6",
        "high_watermark",
        "100",
        "writeback_order",
        case.way.order(),
        "gap_fill",
        case.way.fills(),
    ];
    let config = Config::parse(&args).map_err(|e| e.chain())?;
    let (origin, device) = (world.borrow().leaf(origin), world.borrow().leaf(device));
    let cache = WriteCache::new("bench", config, origin, device, sectors(scale.origin_blocks));
    let cache = cache.map_err(|e| e.chain())?;
    let target = cache.clone();
    let resumed: Result<(), Error> = finish(machine, async move { target.resume().await })?;
    resumed.map_err(|e| e.chain())?;
    let slots = cache.attribute("total_blocks").map_err(|e| e.chain())?;
    if slots.parse() != Ok(scale.slots(case)) {
        return Err(format!("the cache has {slots} slots, not {}", scale.slots(case)));
    }
    Ok(cache)
}

/// Writes the blocks in their order, a few at a time, and lets the cache come to rest.
async fn fill(cache: Rc<WriteCache>, blocks: Rc<[u64]>, stamped: bool) -> Result<(), String> {
    let (next, running) = (Rc::new(Cell::new(0)), Rc::new(Cell::new(FILL_DEPTH)));
    let (ended, failure) = (Rc::new(WaitList::new()), Rc::new(Cell::new(None)));
    let zeroes = Buf::zeroed(usize_of(BLOCK_BYTES));
    for _ in 0..FILL_DEPTH {
        let (cache, blocks, zeroes) = (cache.clone(), blocks.clone(), zeroes.clone());
        let (next, running) = (next.clone(), running.clone());
        let (ended, failure) = (ended.clone(), failure.clone());
        reactor::spawn(async move {
            while let Some(&block) = blocks.get(next.replace(next.get() + 1)) {
                let data = stamp(block)
                    .filter(|_| stamped)
                    .map_or_else(|| zeroes.clone(), |s| Buf::copy_of(&s));
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
    reactor::sleep(Nanos::from_millis(3_000)).await; // longer than autocommit_time
    failure.take().map_or(Ok(()), Err)
}

/// Has everything written back, so that the cache holds clean copies of all.
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

/// What a stamped block holds.
fn stamp(block: u64) -> Option<Vec<u8>> {
    let word = (block + 1).to_le_bytes();
    block.is_multiple_of(STAMP_EVERY).then(|| word.repeat(usize_of(BLOCK_BYTES) / word.len()))
}

/// After the flush nothing is dirty, nothing failed, and the origin has the stamps.
fn check(
    world: &WorldRef,
    origin: FileId,
    cache: &WriteCache,
    blocks: &[u64],
) -> Result<(), String> {
    for name in ["error", "dirty_blocks", "bad_blocks"] {
        let value = cache.attribute(name).map_err(|e| e.chain())?;
        if value != "0" {
            return Err(format!("{name} is {value} after the flush"));
        }
    }
    let mut found = vec![0; usize_of(BLOCK_BYTES)];
    for &block in blocks {
        let Some(wanted) = stamp(block) else { continue };
        world.borrow().peek(origin, sectors(block), &mut found);
        if found != wanted {
            return Err(format!("the origin does not hold block {block} after the flush"));
        }
    }
    Ok(())
}

/// Reads random blocks of the device at random moments, whether or not earlier reads have ended:
/// a slow read must not keep the next one from being asked.
#[derive(Default)]
struct Reader {
    latencies_ns: RefCell<Vec<u64>>,
    in_flight: Cell<usize>,
    stop: Cell<bool>,
    failure: RefCell<Option<String>>,
}

impl Reader {
    async fn run(self: Rc<Reader>, device: Rc<WriteCache>, blocks: u64) {
        let mut rng = Rng::new(SEED + 1);
        loop {
            reactor::sleep(Nanos(rng.below(2 * READ_EVERY_NS))).await;
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
            });
        }
    }
}

pub(crate) fn finish<T: 'static>(
    machine: &Machine,
    future: impl Future<Output = T> + 'static,
) -> Result<T, String> {
    machine.block_on(future).map_err(|ended| format!("the simulation stopped: {ended:?}"))
}

fn ended(how: Ended) -> Result<(), String> {
    match how {
        Ended::Until => Ok(()),
        Ended::PowerCut | Ended::Idle => Err(format!("the simulation stopped: {how:?}")),
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

    #[test]
    fn both_orders_write_every_dirty_block_once_and_sorted_in_fewer_larger_writes() {
        let scale = Scale::divided(64);
        let run = |way| {
            let fill_percent = PUBLISHED_PERCENT;
            run(scale, Case { disk: Disk::Textbook, way, fill_percent, reader: false }).unwrap()
        };
        let (sorted, lru) = (run(Way::Sorted), run(Way::Lru));
        for outcome in [&sorted, &lru] {
            assert_eq!(outcome.dirty_blocks, scale.cache_blocks);
            assert_eq!(outcome.origin_write_bytes, scale.cache_blocks * BLOCK_BYTES);
        }
        assert!(sorted.origin_writes < lru.origin_writes);
        assert!(sorted.flush_ns < lru.flush_ns);
    }

    #[test]
    fn the_published_run_through_the_engine_takes_44_s_sorted_and_99_s_in_lru_order() {
        for (way, published_s) in [(Way::Sorted, 44.0), (Way::Lru, 99.2)] {
            let fill_percent = PUBLISHED_PERCENT;
            let case = Case { disk: Disk::Published, way, fill_percent, reader: false };
            let outcome = run(Scale::PUBLISHED, case).unwrap();
            let s = outcome.seconds();
            assert!((s / published_s - 1.0).abs() < 0.05, "{}: {s} s", way.name());
        }
    }

    /// The goals of the project: 30 s, and 16 s where the cache has the contents of the gaps.
    #[test]
    fn the_published_run_takes_30_s_with_gaps_filled_and_16_s_with_gaps_known() {
        for (way, goal_s) in [(Way::GapFill, 30.0), (Way::GapKnown, 16.0)] {
            let fill_percent = PUBLISHED_PERCENT;
            let case = Case { disk: Disk::Published, way, fill_percent, reader: false };
            let outcome = run(Scale::PUBLISHED, case).unwrap();
            let s = outcome.seconds();
            assert!(s <= goal_s, "{}: {s} s", way.name());
        }
    }

    #[test]
    fn a_reader_is_seen_before_and_during_the_flush() {
        let (way, fill_percent) = (Way::Sorted, PUBLISHED_PERCENT);
        let case = Case { disk: Disk::Published, way, fill_percent, reader: true };
        let outcome = run(Scale::divided(64), case).unwrap();
        assert_eq!(outcome.idle_read_ns.len(), IDLE_READS);
        assert!(outcome.flush_read_ns.len() > 5);
    }
}
