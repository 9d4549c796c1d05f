// SPDX-License-Identifier: Apache-2.0 OR MIT
//! A snapshot of all devices and leaves, taken on core 0 and read on other threads.
use std::rc::Rc;

use block::attr::Spec;
use block::latency::LatencyCounts;
use block::{Op, UnsavedBlocks};
use dm::MappedDevice;
use queue::wbt::Report;
use queue::{Counts, Leaf};

use crate::engine::Engine;
use crate::fuse_host::{self, FuseStats};
use crate::ublk_door::DoorStats;

/// The operations of requests, with their names in labels.
pub(super) const OPS: [(Op, &str); Op::ALL.len()] = [
    (Op::Read, "read"),
    (Op::Write, "write"),
    (Op::Flush, "flush"),
    (Op::Discard, "discard"),
    (Op::WriteZeroes, "write_zeroes"),
];

/// Cells of maps of dirty data.
const MAP_CELLS: u32 = 64;

/// What there is to see.
#[derive(Debug)]
pub(crate) struct Snapshot {
    pub(super) nbd: nbd::Stats,
    pub(super) fuse: Option<FuseStats>,
    pub(super) ublk: Option<DoorStats>,
    pub(super) devices: Vec<DeviceState>,
    pub(super) engines: Vec<EngineState>,
    pub(super) leaves: Vec<LeafState>,
}

/// A mapped device.
#[derive(Debug)]
pub(super) struct DeviceState {
    pub(super) name: String,
    pub(super) size_sectors: u64,
    pub(super) suspended: bool,
    pub(super) live_table: bool,
    pub(super) opens: u64,
    pub(super) events: u32,
    /// Target types of the live table, each once.
    pub(super) targets: Vec<String>,
    /// Of its caches together; `None` when it has none.
    pub(super) unsaved: Option<UnsavedBytes>,
    /// As its clients see them, by [`OPS`].
    pub(super) latencies: [LatencyCounts; OPS.len()],
    /// What its engines report.
    pub(super) problems: Vec<String>,
}

/// Data that the devices below a cache do not have.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq)]
pub(super) struct UnsavedBytes {
    pub(super) dirty: u64,
    pub(super) failing: u64,
    pub(super) lost: u64,
}

/// The numbers of an engine.
#[derive(Debug)]
pub(super) struct EngineState {
    pub(super) kind: &'static str,
    pub(super) device: String,
    pub(super) figures: Vec<(&'static Spec, u64)>,
    /// Dirty bytes in equal parts of it, of a cache.
    pub(super) dirty_map: Option<Vec<u64>>,
}

/// A leaf.
#[derive(Debug)]
pub(super) struct LeafState {
    pub(super) name: String,
    /// By [`OPS`].
    pub(super) counts: [Counts; OPS.len()],
    /// By [`OPS`]; none of a leaf in memory, whose requests take no time.
    pub(super) latencies: Option<[LatencyCounts; OPS.len()]>,
    pub(super) errors: u64,
    /// Requests that the device itself failed.
    pub(super) failures: u64,
    pub(super) in_flight: u64,
    pub(super) problem: Option<String>,
    pub(super) throttle: Option<Report>,
}

impl UnsavedBytes {
    fn of(blocks: &UnsavedBlocks) -> UnsavedBytes {
        let bytes = |count: u64| count.saturating_mul(blocks.block_bytes);
        UnsavedBytes {
            dirty: bytes(blocks.dirty),
            failing: bytes(blocks.failing),
            lost: bytes(blocks.unreadable),
        }
    }

    fn add(self, other: UnsavedBytes) -> UnsavedBytes {
        UnsavedBytes {
            dirty: self.dirty + other.dirty,
            failing: self.failing + other.failing,
            lost: self.lost + other.lost,
        }
    }
}

impl LeafState {
    /// Requests of one operation.
    pub(super) fn of(&self, op: Op) -> Counts {
        let at = OPS.iter().position(|(other, _)| *other == op).expect("all are in the list");
        self.counts[at]
    }
}

/// Takes a snapshot.
pub(crate) async fn snapshot(engine: &Engine) -> Snapshot {
    let mut engines = Vec::new();
    for ((kind, device), target) in engine.claims.engines() {
        let dirty_map = target.clone().dirty_map(MAP_CELLS).await;
        engines.push(EngineState { kind, device, figures: target.metrics(), dirty_map });
    }
    // No await from here on: the rest is of one moment.
    let refusing = engine.leaves.refusing();
    let devices = engine.dm.devices();
    let devices = devices.iter().map(|device| state(engine, device, &refusing)).collect();
    let leaves = engine.leaves.opened().into_iter().map(|leaf| {
        let stats = leaf.stats();
        let is_timed = queue::requests_are_timed() && !leaf.is_in_memory();
        LeafState {
            name: leaf.name().to_owned(),
            counts: OPS.map(|(op, _)| stats.of(op)),
            latencies: is_timed.then(|| OPS.map(|(op, _)| stats.latencies(op))),
            errors: stats.errors(),
            failures: stats.failures(),
            in_flight: stats.in_flight(),
            problem: leaf.problem(),
            throttle: leaf.wbt().map(|wbt| wbt.report()),
        }
    });
    let (nbd, fuse, ublk) = (engine.server.stats(), fuse_host::stats(), engine.disk_stats());
    Snapshot { nbd, fuse, ublk, devices, engines, leaves: leaves.collect() }
}

fn state(engine: &Engine, device: &Rc<MappedDevice>, refusing: &[Rc<dyn Leaf>]) -> DeviceState {
    let info = device.info();
    let engines = engine.claims.of(device);
    let unsaved = engines.iter().filter_map(|engine| engine.unsaved());
    let unsaved = unsaved.map(|blocks| UnsavedBytes::of(&blocks)).reduce(UnsavedBytes::add);
    let mut targets: Vec<String> = device.table().into_iter().map(|line| line.kind).collect();
    targets.sort_unstable();
    targets.dedup();
    DeviceState {
        name: info.name,
        targets,
        size_sectors: info.size_sectors,
        suspended: info.suspended,
        live_table: info.live_table,
        opens: info.open_count.into(),
        events: info.event_nr,
        unsaved,
        latencies: OPS.map(|(op, _)| device.latencies().counts(op)),
        problems: engine.problems_of(device, refusing),
    }
}
