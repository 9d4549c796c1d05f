// SPDX-License-Identifier: Apache-2.0 OR MIT
//! The numbers that are exported besides those of the engines, whose tables are their own.
use block::Op;
use block::attr::{Attr, Kind, Metric, Spec};
use block::value::{TimeUnit, Value};
use queue::wbt::Report;

use super::process::ProcessFigures;
use super::snapshot::{DeviceState, LeafState, UnsavedBytes};
use crate::fuse_host::FuseStats;
use crate::ublk_door::DoorStats;

pub(super) const MILLPOND: &str = "millpond";
/// The names that all programs have for these.
pub(super) const PROCESS_PREFIX: &str = "process";
pub(super) const NBD_PREFIX: &str = "millpond_nbd";
pub(super) const FUSE_PREFIX: &str = "millpond_fuse";
pub(super) const UBLK_PREFIX: &str = "millpond_ublk";
pub(super) const DEVICE_PREFIX: &str = "millpond_device";
pub(super) const LEAF_PREFIX: &str = "millpond_queue";
pub(super) const WBT_PREFIX: &str = "millpond_wbt";

const fn spec(name: &'static str, help: &'static str, metric: Metric) -> Spec {
    Spec::new(name, Kind::Number { min: 0, max: u64::MAX, unit: "" }, help).metric(metric)
}

const fn counter<T>(name: &'static str, help: &'static str, get: fn(&T) -> Value) -> Attr<T> {
    Attr::read(spec(name, help, Metric::COUNTER), get)
}

const fn gauge<T>(name: &'static str, help: &'static str, get: fn(&T) -> Value) -> Attr<T> {
    Attr::read(spec(name, help, Metric::GAUGE), get)
}

/// Always 1, with the version as a label.
pub(super) static BUILD_INFO: Spec =
    spec("build_info", "1, with the daemon's version", Metric::GAUGE);

pub(super) static PROCESS: [Attr<ProcessFigures>; 6] = [
    Attr::read(
        spec(
            "cpu_seconds",
            "processor time of all threads",
            Metric::COUNTER.of_time(TimeUnit::Microsecond),
        ),
        |p| p.cpu_us.into(),
    ),
    gauge("resident_memory_bytes", "memory that is resident", |p| p.resident_bytes.into()),
    gauge("open_fds", "open file descriptors", |p| p.open_fds.into()),
    gauge("max_fds", "file descriptors that may be open", |p| p.max_fds.into()),
    gauge("threads", "threads", |p| p.threads.into()),
    Attr::read(
        spec(
            "start_time_seconds",
            "when the daemon started, since 1970",
            Metric::GAUGE.of_time(TimeUnit::Millisecond),
        ),
        |p| p.start_ms.into(),
    ),
];

pub(super) static NBD: [Attr<nbd::Stats>; 11] = [
    gauge("connections", "connections now", |s| s.connections.into()),
    counter("connections", "connections accepted", |s| s.connections_total.into()),
    counter("refused_connections", "connections refused: too many", |s| s.refused_total.into()),
    counter("stalled_connections", "connections cut off: no progress", |s| s.stalled_total.into()),
    counter("displaced_connections", "idle connections replaced by new ones", |s| {
        s.displaced_total.into()
    }),
    counter("requests", "requests taken", |s| s.requests_total.into()),
    counter("errors", "requests answered with an error", |s| s.errors_total.into()),
    counter("read_bytes", "data sent to clients", |s| s.read_bytes_total.into()),
    counter("write_bytes", "data received from clients", |s| s.write_bytes_total.into()),
    counter("receives", "receives from sockets", |s| s.receives_total.into()),
    counter("sends", "sends to sockets", |s| s.sends_total.into()),
];

pub(super) static FUSE: [Attr<FuseStats>; 2] = [
    counter("requests", "requests to files of devices", |s| s.requests.into()),
    gauge("open_files", "files of devices that are open", |s| s.open_files.into()),
];

pub(super) static UBLK: [Attr<DoorStats>; 6] = [
    gauge("block_devices", "block devices of the kernel", |s| s.disks.into()),
    gauge("in_flight_requests", "requests in flight", |s| s.in_flight.into()),
    counter("requests", "requests answered", |s| s.total.requests.into()),
    counter("errors", "requests answered with an error", |s| s.total.errors.into()),
    counter("read_bytes", "data that the kernel has read", |s| s.total.read_bytes.into()),
    counter("write_bytes", "data that the kernel has written", |s| s.total.write_bytes.into()),
];

/// Of block devices, with the core that has served them as a label.
pub(super) static UBLK_CORE: [Attr<ublk::Stats>; 1] =
    [counter("core_requests", "requests that the core has answered", |s| s.requests.into())];

/// Of mapped devices, with the operation as a label.
pub(super) static REQUEST_DURATION: Spec = spec(
    "request_duration_seconds",
    "time that clients' requests took, from their admission by a door to their reply",
    Metric::HISTOGRAM,
);

/// The same of leaves, except those in memory.
pub(super) static LEAF_DURATION: Spec = spec(
    "request_duration_seconds",
    "time that requests of the leaf took, waits in its throttle included; only by `--metrics`",
    Metric::HISTOGRAM,
);

pub(super) static DEVICE: [Attr<DeviceState>; 6] = [
    gauge("size_bytes", "size of the live table", |d| (d.size_sectors << 9).into()),
    gauge("live", "1: it has a live table", |d| d.live_table.into()),
    gauge("suspended", "1: its requests wait", |d| d.suspended.into()),
    gauge("opens", "clients and devices that have it open", |d| d.opens.into()),
    counter("events", "events, as `wait` counts them", |d| d.events.into()),
    gauge("problems", "reasons for which /healthz reports it", |d| {
        (d.problems.len() as u64).into()
    }),
];

/// Of devices with a write cache.
pub(super) static UNSAVED: [Attr<UnsavedBytes>; 3] = [
    gauge("unsaved_bytes", "data that only the cache has: not on the origin yet, or lost", |u| {
        (u.dirty + u.lost).into()
    }),
    gauge("failing_bytes", "dirty data that the origin has refused", |u| u.failing.into()),
    gauge("lost_bytes", "dirty data that the cache device can't read", |u| u.lost.into()),
];

pub(super) static LEAF: [Attr<LeafState>; 12] = [
    counter("read_requests", "reads done", |l| l.of(Op::Read).ios.into()),
    counter("write_requests", "writes done", |l| l.of(Op::Write).ios.into()),
    counter("flush_requests", "flushes done", |l| l.of(Op::Flush).ios.into()),
    counter("discard_requests", "discards done", |l| l.of(Op::Discard).ios.into()),
    counter("write_zeroes_requests", "writes of zeroes done", |l| l.of(Op::WriteZeroes).ios.into()),
    counter("read_bytes", "bytes read", |l| l.of(Op::Read).bytes.into()),
    counter("write_bytes", "bytes written", |l| l.of(Op::Write).bytes.into()),
    counter("discard_bytes", "bytes discarded", |l| l.of(Op::Discard).bytes.into()),
    counter("write_zeroes_bytes", "bytes zeroed", |l| l.of(Op::WriteZeroes).bytes.into()),
    counter("errors", "requests that failed", |l| l.errors.into()),
    counter("failures", "requests that the device itself failed", |l| l.failures.into()),
    gauge("in_flight_requests", "requests in flight", |l| l.in_flight.into()),
];

pub(super) static WBT: [Attr<Report>; 6] = [
    counter("waits", "requests that the throttle of writeback delayed", |r| r.waits.into()),
    Attr::read(
        spec(
            "waited_seconds",
            "how long they waited",
            Metric::COUNTER.of_time(TimeUnit::Microsecond),
        ),
        |r| (r.waited_ns / 1000).into(),
    ),
    gauge("waiting_requests", "requests that the throttle delays now", |r| {
        r.waiting.iter().map(|n| *n as u64).sum::<u64>().into()
    }),
    gauge("background_depth", "writes of writeback that may be in flight; 0: off", |r| {
        u64::from(r.depth.background).into()
    }),
    gauge("in_flight_bytes", "writes that the throttle counts in flight", |r| {
        r.in_flight_bytes.into()
    }),
    Attr::read(
        spec(
            "read_target_seconds",
            "latency of reads that it keeps; 0: off",
            Metric::GAUGE.of_time(TimeUnit::Microsecond),
        ),
        |r| (r.target_ns / 1000).into(),
    ),
];
