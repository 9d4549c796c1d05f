// SPDX-License-Identifier: Apache-2.0 OR MIT
//! The numbers that are exported besides those of the engines, whose tables are their own.
use block::Op;
use block::attr::{Attr, Kind, Metric, Spec, counter, figure, gauge};
use block::value::TimeUnit;
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

/// Always 1, with the version as a label.
pub(super) static BUILD_INFO: Spec =
    spec("build_info", "1, with the daemon's version", Metric::GAUGE);

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

const fn spec(name: &'static str, help: &'static str, metric: Metric) -> Spec {
    Spec::new(name, Kind::number(0..=u64::MAX, ""), help).metric(metric)
}

/// A time that is counted in microseconds.
const fn microseconds(metric: Metric) -> Spec {
    figure("").metric(metric.of_time(TimeUnit::Microsecond))
}

block::attrs! {
    pub(super) static PROCESS: [Attr<ProcessFigures>];

    cpu_seconds: microseconds(Metric::COUNTER), "processor time of all threads", get |p| p.cpu_us;
    resident_memory_bytes: gauge(""), "memory that is resident", get |p| p.resident_bytes;
    open_fds: gauge(""), "open file descriptors", get |p| p.open_fds;
    max_fds: gauge(""), "file descriptors that may be open", get |p| p.max_fds;
    threads: gauge(""), "threads", get |p| p.threads;
    start_time_seconds: figure("").metric(Metric::GAUGE.of_time(TimeUnit::Millisecond)),
        "when the daemon started, since 1970", get |p| p.start_ms;
}

block::attrs! {
    pub(super) static NBD: [Attr<nbd::Stats>];

    connections: gauge(""), "connections now", get |s| s.connections;
    connections: counter(""), "connections accepted", get |s| s.connections_total;
    refused_connections: counter(""), "connections refused: too many", get |s| s.refused_total;
    stalled_connections: counter(""), "connections cut off: no progress", get |s| s.stalled_total;
    displaced_connections: counter(""), "idle connections replaced by new ones",
        get |s| s.displaced_total;
    requests: counter(""), "requests taken", get |s| s.requests_total;
    errors: counter(""), "requests answered with an error", get |s| s.errors_total;
    read_bytes: counter(""), "data sent to clients", get |s| s.read_bytes_total;
    write_bytes: counter(""), "data received from clients", get |s| s.write_bytes_total;
    receives: counter(""), "receives from sockets", get |s| s.receives_total;
    sends: counter(""), "sends to sockets", get |s| s.sends_total;
}

block::attrs! {
    pub(super) static FUSE: [Attr<FuseStats>];

    requests: counter(""), "requests to files of devices", get |s| s.requests;
    open_files: gauge(""), "files of devices that are open", get |s| s.open_files;
}

block::attrs! {
    pub(super) static UBLK: [Attr<DoorStats>];

    block_devices: gauge(""), "block devices of the kernel", get |s| s.disks;
    in_flight_requests: gauge(""), "requests in flight", get |s| s.in_flight;
    requests: counter(""), "requests answered", get |s| s.total.requests;
    errors: counter(""), "requests answered with an error", get |s| s.total.errors;
    read_bytes: counter(""), "data that the kernel has read", get |s| s.total.read_bytes;
    write_bytes: counter(""), "data that the kernel has written", get |s| s.total.write_bytes;
}

block::attrs! {
    /// Of block devices, with the core that has served them as a label.
    pub(super) static UBLK_CORE: [Attr<ublk::Stats>];

    core_requests: counter(""), "requests that the core has answered", get |s| s.requests;
}

block::attrs! {
    pub(super) static DEVICE: [Attr<DeviceState>];

    size_bytes: gauge(""), "size of the live table", get |d| d.size_sectors << 9;
    live: gauge(""), "1: it has a live table", get |d| d.live_table;
    suspended: gauge(""), "1: its requests wait", get |d| d.suspended;
    opens: gauge(""), "clients and devices that have it open", get |d| d.opens;
    events: counter(""), "events, as `wait` counts them", get |d| d.events;
    problems: gauge(""), "reasons for which /healthz reports it",
        get |d| d.problems.len() as u64;
}

block::attrs! {
    /// Of devices with a write cache.
    pub(super) static UNSAVED: [Attr<UnsavedBytes>];

    unsaved_bytes: gauge(""), "data that only the cache has: not on the origin yet, or lost",
        get |u| u.dirty + u.lost;
    failing_bytes: gauge(""), "dirty data that the origin has refused", get |u| u.failing;
    lost_bytes: gauge(""), "dirty data that the cache device can't read", get |u| u.lost;
}

block::attrs! {
    pub(super) static LEAF: [Attr<LeafState>];

    read_requests: counter(""), "reads done", get |l| l.of(Op::Read).ios;
    write_requests: counter(""), "writes done", get |l| l.of(Op::Write).ios;
    flush_requests: counter(""), "flushes done", get |l| l.of(Op::Flush).ios;
    discard_requests: counter(""), "discards done", get |l| l.of(Op::Discard).ios;
    write_zeroes_requests: counter(""), "writes of zeroes done", get |l| l.of(Op::WriteZeroes).ios;
    read_bytes: counter(""), "bytes read", get |l| l.of(Op::Read).bytes;
    write_bytes: counter(""), "bytes written", get |l| l.of(Op::Write).bytes;
    discard_bytes: counter(""), "bytes discarded", get |l| l.of(Op::Discard).bytes;
    write_zeroes_bytes: counter(""), "bytes zeroed", get |l| l.of(Op::WriteZeroes).bytes;
    errors: counter(""), "requests that failed", get |l| l.errors;
    failures: counter(""), "requests that the device itself failed", get |l| l.failures;
    in_flight_requests: gauge(""), "requests in flight", get |l| l.in_flight;
}

block::attrs! {
    pub(super) static WBT: [Attr<Report>];

    waits: counter(""), "requests that the throttle of writeback delayed", get |r| r.waits;
    waited_seconds: microseconds(Metric::COUNTER), "how long they waited",
        get |r| r.waited_ns / 1000;
    waiting_requests: gauge(""), "requests that the throttle delays now",
        get |r| r.waiting.iter().map(|n| *n as u64).sum::<u64>();
    background_depth: gauge(""), "writes of writeback that may be in flight; 0: off",
        get |r| r.depth.background;
    in_flight_bytes: gauge(""), "writes that the throttle counts in flight",
        get |r| r.in_flight_bytes;
    read_target_seconds: microseconds(Metric::GAUGE), "latency of reads that it keeps; 0: off",
        get |r| r.target_ns / 1000;
}
