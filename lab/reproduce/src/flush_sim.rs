// SPDX-License-Identifier: Apache-2.0 OR MIT
//! The flush of a write cache (`flush`) in virtual time, on models of disks (RP-R1).
use block::{Nanos, Sector};
use sim::model::{Cloud, CloudParams, Flash, FlashParams, HddParams};
use sim::{DiskSpec, Machine, World};

use crate::flush::{
    BLOCK_BYTES, Outcome, Plan, Reads, Scale, Strategy, cache_device_sectors, dirty_set, sectors,
};

/// Seed of the world.
const SEED: u64 = 1;
/// A random read takes 6 ms, so the idle disk is busy for a seventh of the time. Twenty reads of
/// the idle phase lie above the 99th percentile.
const READS: Reads = Reads { every: Nanos::from_millis(40), idle: 2_000 };

/// The model of the origin.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum Disk {
    /// A rotating disk, calibrated.
    Published,
    /// A rotating disk by data sheets.
    Textbook,
    /// A drive of flash that does not rotate, and says so.
    Nvme,
    /// A volume of a cloud: requests and bytes a second are limited.
    Cloud,
}

impl Disk {
    pub fn name(self) -> &'static str {
        match self {
            Disk::Published => "published",
            Disk::Textbook => "textbook",
            Disk::Nvme => "nvme",
            Disk::Cloud => "cloud",
        }
    }

    /// The disk as the origin of a cache.
    pub(crate) fn spec(self, capacity: Sector) -> DiskSpec {
        let hdd = |params| DiskSpec::hdd("origin", capacity, params);
        match self {
            Disk::Published => hdd(HddParams::published()),
            Disk::Textbook => hdd(HddParams::textbook()),
            Disk::Nvme => DiskSpec::flash("origin", capacity, FlashParams::nvme()),
            Disk::Cloud => {
                let model = Box::new(Cloud::new(CloudParams::general()));
                let spec = DiskSpec::new("origin", capacity, model);
                DiskSpec { keeps_history: false, ..spec }
            }
        }
    }

    /// Seconds that no flush of these dirty blocks can be faster than.
    ///
    /// A head has to pass over the origin once, if dirty blocks are in every part of it. Of the
    /// others it is the best of all lengths up to which gaps are filled: an extent with gaps is
    /// read once and written once, another one is only written.
    pub fn bound_s(self, scale: Scale, fill_percent: u64) -> f64 {
        let one_pass =
            |bytes_per_s: u64| (scale.origin_blocks * BLOCK_BYTES) as f64 / bytes_per_s as f64;
        let seconds: fn(Requests) -> f64 = match self {
            Disk::Published => return one_pass(HddParams::published().bytes_per_s),
            Disk::Textbook => return one_pass(HddParams::textbook().bytes_per_s),
            Disk::Nvme => |r| {
                let p = FlashParams::nvme();
                let bytes = |bytes: u64, rate: u64| bytes as f64 / rate as f64;
                let moved = bytes(r.read_bytes, p.read_bytes_per_s)
                    + bytes(r.write_bytes, p.write_bytes_per_s);
                moved.max(r.requests as f64 * p.command_ns as f64 / 1e9)
            },
            Disk::Cloud => |r| {
                let p = CloudParams::general();
                let requests = r.requests as f64 / p.iops as f64;
                let bytes = (r.read_bytes + r.write_bytes) as f64 / p.bytes_per_s as f64;
                requests.max(bytes) - p.burst_ns as f64 / 1e9
            },
        };
        let blocks = dirty_set(scale, fill_percent);
        let of = |gap_max| seconds(Requests::of(&blocks, gap_max));
        (0..64).map(of).fold(f64::INFINITY, f64::min)
    }
}

/// The requests of a flush that fills all gaps up to some length.
#[derive(Clone, Copy, Default)]
struct Requests {
    requests: u64,
    read_bytes: u64,
    write_bytes: u64,
}

impl Requests {
    fn of(blocks: &[u64], gap_max: u64) -> Requests {
        let mut all = Requests::default();
        for extent in blocks.chunk_by(|a, b| b - a - 1 <= gap_max) {
            let bytes = (extent[extent.len() - 1] - extent[0] + 1) * BLOCK_BYTES;
            let has_gaps = bytes > extent.len() as u64 * BLOCK_BYTES;
            let part = CloudParams::general().request_bytes;
            all.requests += bytes.div_ceil(part) * (1 + u64::from(has_gaps));
            all.write_bytes += bytes;
            all.read_bytes += if has_gaps { bytes } else { 0 };
        }
        all
    }
}

/// One run.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct Case {
    pub disk: Disk,
    pub strategy: Strategy,
    /// Of the origin.
    pub fill_percent: u64,
    /// Whether somebody reads, before the flush and during it.
    pub reader: bool,
}

/// Runs a case.
///
/// # Errors
/// An unexpected answer of the cache.
pub fn run(scale: Scale, case: Case) -> Result<Outcome, String> {
    run_watched(scale, case, false)
}

/// Runs a case; if `watched`, with sizes of writes and progress.
///
/// # Errors
/// An unexpected answer of the cache.
pub fn run_watched(scale: Scale, case: Case, watched: bool) -> Result<Outcome, String> {
    let Case { disk, strategy, fill_percent, reader } = case;
    let origin = disk.spec(sectors(scale.origin_blocks));
    let reads = reader.then_some(READS);
    run_on(origin, Plan { scale, strategy, fill_percent, reads, jobs: 0, nth: 0, watched })
}

fn run_on(origin: DiskSpec, plan: Plan) -> Result<Outcome, String> {
    let world = World::calm(SEED);
    let (origin, device) = {
        let mut w = world.borrow_mut();
        let flash = Box::new(Flash::new(FlashParams::nvme()));
        let sectors = cache_device_sectors(plan.scale.slots(plan.fill_percent, plan.strategy));
        let cache = DiskSpec::new("cache", sectors, flash);
        (w.add_disk(origin), w.add_disk(DiskSpec { keeps_history: false, ..cache }))
    };
    let machine = Machine::boot(&world, 1);
    let (origin, device) = (world.borrow().leaf(origin), world.borrow().leaf(device));
    finish(&machine, crate::flush::run(origin, device, plan))?
}

pub(crate) fn finish<T: 'static>(
    machine: &Machine,
    future: impl Future<Output = T> + 'static,
) -> Result<T, String> {
    machine.block_on(future).map_err(|ended| format!("the simulation stopped: {ended:?}"))
}

#[cfg(test)]
mod tests {
    use std::rc::Rc;

    use block::BlockDevice;
    use queue::FileLeaf;

    use super::*;
    use crate::flush::PUBLISHED_PERCENT;

    #[test]
    fn sorted_writes_each_block_once_in_fewer_writes_than_lru() {
        let scale = Scale::divided(64);
        let run = |strategy| {
            let fill_percent = PUBLISHED_PERCENT;
            run(scale, Case { disk: Disk::Textbook, strategy, fill_percent, reader: false })
                .unwrap()
        };
        let (sorted, lru) = (run(Strategy::Sorted), run(Strategy::Lru));
        for outcome in [&sorted, &lru] {
            assert_eq!(outcome.dirty_blocks, scale.cache_blocks);
            assert_eq!(outcome.origin_write_bytes, scale.cache_blocks * BLOCK_BYTES);
        }
        assert!(sorted.origin_writes < lru.origin_writes);
        assert!(sorted.flush_ns < lru.flush_ns);
    }

    #[test]
    fn the_published_run_takes_44_s_sorted_and_99_s_in_lru_order() {
        for (strategy, published_s) in [(Strategy::Sorted, 44.0), (Strategy::Lru, 99.2)] {
            let fill_percent = PUBLISHED_PERCENT;
            let case = Case { disk: Disk::Published, strategy, fill_percent, reader: false };
            let outcome = run(Scale::PUBLISHED, case).unwrap();
            let s = outcome.seconds();
            assert!((s / published_s - 1.0).abs() < 0.05, "{}: {s} s", strategy.name());
        }
    }

    /// The goals of the project: 30 s, and 16 s where the cache has the contents of the gaps.
    #[test]
    fn the_published_run_takes_30_s_gaps_filled_16_s_gaps_known() {
        for (strategy, goal_s) in [(Strategy::GapFill, 30.0), (Strategy::GapKnown, 16.0)] {
            let fill_percent = PUBLISHED_PERCENT;
            let case = Case { disk: Disk::Published, strategy, fill_percent, reader: false };
            let outcome = run(Scale::PUBLISHED, case).unwrap();
            let s = outcome.seconds();
            assert!(s <= goal_s, "{}: {s} s", strategy.name());
        }
    }

    /// With all gaps filled the flush to the first disk would take 2.1 times as long.
    #[test]
    fn gap_filling_does_not_slow_flash_that_claims_to_rotate() {
        let slow = FlashParams { write_bytes_per_s: 60_000_000, ..FlashParams::sata() };
        let disks = [("nvme", FlashParams::nvme()), ("sata", FlashParams::sata()), ("slow", slow)];
        for (name, params) in disks {
            let scale = Scale::divided(2);
            let seconds = |strategy| {
                let model = Box::new(Flash::new(params));
                let disk = DiskSpec::new("origin", sectors(scale.origin_blocks), model);
                let origin = DiskSpec { rotational: true, keeps_history: false, ..disk };
                let (fill_percent, reads) = (PUBLISHED_PERCENT, None);
                let plan =
                    Plan { scale, strategy, fill_percent, reads, jobs: 0, nth: 0, watched: false };
                run_on(origin, plan).unwrap().seconds()
            };
            let sorted = seconds(Strategy::Sorted);
            for strategy in [Strategy::GapFill, Strategy::GapKnown] {
                let s = seconds(strategy);
                assert!(s <= 1.1 * sorted, "{name}, {}: {s} s, sorted {sorted} s", strategy.name());
            }
        }
    }

    /// One span for all dirty blocks took 1.6 times the bound: nothing was written meanwhile.
    #[test]
    fn a_flush_to_an_nvme_drive_is_near_its_bound() {
        let (scale, disk, strategy) = (Scale::divided(8), Disk::Nvme, Strategy::GapFill);
        for fill_percent in [25, PUBLISHED_PERCENT, 90] {
            let case = Case { disk, strategy, fill_percent, reader: false };
            let (s, bound_s) =
                (run(scale, case).unwrap().seconds(), disk.bound_s(scale, fill_percent));
            assert!(s <= 1.2 * bound_s, "{fill_percent} %: {s} s, bound {bound_s} s");
            assert!(s >= bound_s, "{fill_percent} %: {s} s is below the bound of {bound_s} s");
        }
    }

    /// Without gaps filled it took 1.9 times the bound at 49 %.
    #[test]
    fn a_flush_to_a_volume_of_a_cloud_is_near_its_bound() {
        let (scale, disk) = (Scale::divided(4), Disk::Cloud);
        for fill_percent in [PUBLISHED_PERCENT, 90] {
            let seconds = |strategy| {
                let case = Case { disk, strategy, fill_percent, reader: false };
                run(scale, case).unwrap().seconds()
            };
            let (s, bound_s) = (seconds(Strategy::GapFill), disk.bound_s(scale, fill_percent));
            assert!(s <= 1.2 * bound_s, "{fill_percent} %: {s} s, bound {bound_s} s");
            assert!(s <= 1.02 * seconds(Strategy::Sorted), "{fill_percent} %: {s} s");
        }
    }

    #[test]
    fn a_reader_is_seen_before_and_during_the_flush() {
        let (strategy, fill_percent) = (Strategy::Sorted, PUBLISHED_PERCENT);
        let case = Case { disk: Disk::Published, strategy, fill_percent, reader: true };
        let outcome = run(Scale::divided(64), case).unwrap();
        assert_eq!(outcome.idle_read_ns.len(), READS.idle);
        assert!(outcome.flush_read_ns.len() > 5);
    }

    /// Flash that says wrongly that it rotates, as virtual disks do. While it was at rest its reads
    /// have shown what it can do; the first window of the throttle ends after a sixth of the flush.
    #[test]
    fn reads_beside_the_begin_of_a_flush_are_protected() {
        let scale = Scale::divided(4);
        let origin_blocks = scale.origin_blocks;
        let world = World::calm(SEED);
        let flash = |params| Box::new(Flash::new(params));
        let disk = |name, sectors, params| DiskSpec {
            rotational: true,
            keeps_history: false,
            ..DiskSpec::new(name, sectors, flash(params))
        };
        let slots = scale.slots(PUBLISHED_PERCENT, Strategy::Sorted);
        let (origin, cache) = {
            let mut w = world.borrow_mut();
            let origin = disk("origin", sectors(origin_blocks), FlashParams::sata());
            let cache = disk("cache", cache_device_sectors(slots), FlashParams::nvme());
            (w.add_disk(origin), w.add_disk(cache))
        };
        let limits = |file| world.borrow().leaf(file).limits();
        let (origin_limits, cache_limits) = (limits(origin), limits(cache));
        let machine = Machine::boot(&world, 1);
        let plan = Plan {
            scale,
            strategy: Strategy::Sorted,
            fill_percent: PUBLISHED_PERCENT,
            reads: Some(Reads { every: Nanos::from_millis(2), idle: 500 }),
            jobs: 0,
            nth: 0,
            watched: false,
        };
        let flush = async move {
            let origin = Rc::new(FileLeaf::new("origin", origin, origin_limits));
            let cache = Rc::new(FileLeaf::new("cache", cache, cache_limits));
            crate::flush::run(origin, cache, plan).await
        };
        let outcome = finish(&machine, flush).unwrap().unwrap();
        let p99 = |sorted: &[u64]| sorted[(sorted.len() - 1) * 99 / 100];
        let (rest, beside) = (p99(&outcome.idle_read_ns), p99(&outcome.flush_read_ns));
        assert!(outcome.flush_read_ns.len() > 100, "{} reads", outcome.flush_read_ns.len());
        assert!(beside < 3 * rest, "{beside} ns, at rest {rest} ns");
    }
}
