// SPDX-License-Identifier: Apache-2.0 OR MIT
//! The attributes of a leaf's queue, by the kernel's names where it has them.
use std::fmt::Write;

use block::attr::{self, Attr, Kind, SetShared, Spec, setting, text};
use block::value::{TimeUnit, Value};
use block::{Access, Error};
use policy::wbt::{LatencyTarget, Mode, ThrottleClass, Verdict};

use super::{Report, Wbt};

/// The longest target. Chosen: nothing that is longer is a latency.
const TARGET_MAX_USEC: u64 = 10_000_000;
/// The deepest queue. Chosen: what NVMe can have.
const QUEUE_DEPTH_MAX: u64 = 65_536;
/// The word that stands for the default of the target.
const DEFAULT: &str = "-1";

const NS_PER_USEC: u64 = 1000;

const TARGET: Kind =
    Kind::Time { unit: TimeUnit::Microsecond, min: 0, max: TARGET_MAX_USEC, or: Some(DEFAULT) };

block::attrs! {
    /// The attributes of a throttle.
    static ATTRIBUTES: [Attr<Wbt, SetShared<Wbt>>];

    "queue/nr_requests": setting(Kind::number(1..=QUEUE_DEPTH_MAX, ""), ""),
        "requests that the device takes at once",
        get |wbt| wbt.queue_depth(), set |wbt, v| wbt.set_queue_depth(v);
    "queue/wbt_lat_usec": setting(TARGET, DEFAULT),
        "the latency of reads that writeback must leave; 0 is off, -1 the default",
        get |wbt| usec(wbt.report().target_ns),
        set |wbt, v: Option<u64>| wbt.set_target(match v {
            None => LatencyTarget::Default,
            Some(0) => LatencyTarget::Off,
            Some(usec) => LatencyTarget::Ns(usec * NS_PER_USEC),
        });
    "queue/wbt_mode": setting(Kind::Choice(&["tail", "kernel"]), "tail"), "how it throttles",
        get |wbt| {
            let now = wbt.mode();
            let named = |mode: &Mode| match mode.name() {
                name if *mode == now => format!("[{name}]"),
                name => name.to_owned(),
            };
            Mode::ALL.iter().map(named).collect::<Vec<_>>().join(" ")
        },
        set |wbt, v: String| {
            let known = Mode::ALL.into_iter().find(|mode| v == mode.name());
            wbt.set_mode(known.expect("one of the words above"));
        };
    "queue/wbt_stats": text("name value lines").access(Access::ReadMany),
        "figures of the throttle", get |wbt| stats(&wbt.report());
}

impl Wbt {
    /// The attributes that [`Wbt::get`] and [`Wbt::set`] know.
    pub fn attributes() -> Vec<&'static Spec> {
        attr::specs(&ATTRIBUTES)
    }

    /// Reads an attribute. Errors: `ENXIO` for unknown names.
    pub fn get(&self, name: &str) -> Result<Value, Error> {
        attr::get(&ATTRIBUTES, name, self).ok_or_else(|| self.unknown(name))
    }

    /// Writes an attribute. What waits for tokens and may go then, goes then. Errors: `ENXIO` for
    /// unknown names, `EINVAL` for values that are not allowed, `EACCES` for statistics.
    pub fn set(&self, name: &str, value: &str) -> Result<(), Error> {
        let known = attr::find(&ATTRIBUTES, name).ok_or_else(|| self.unknown(name))?;
        let within = |e: Error| e.within(self.device_name());
        let set = known.set.ok_or_else(|| within(attr::read_only(name)))?;
        set(self, &known.spec.parse(value).map_err(within)?);
        Ok(())
    }

    fn device_name(&self) -> &str {
        self.throttle().stats.device()
    }

    fn unknown(&self, name: &str) -> Error {
        attr::unknown(self.device_name(), name, &attr::names(&Wbt::attributes()))
    }
}

/// A number, or a word for what stands for no limit.
fn bounded(n: u64, none: u64) -> String {
    if n == none { "none".to_owned() } else { n.to_string() }
}

fn usec(ns: u64) -> u64 {
    ns.div_ceil(NS_PER_USEC)
}

fn known_usec(ns: Option<u64>) -> String {
    ns.map_or_else(|| "unknown".to_owned(), |ns| usec(ns).to_string())
}

/// A line for each figure: its name, a blank, its value.
fn stats(report: &Report) -> String {
    let mut out = String::new();
    let mut line = |name: &str, value: &dyn std::fmt::Display| {
        writeln!(out, "{name} {value}").expect("a string takes everything");
    };
    let control = &report.control;
    line("mode", &report.mode.name());
    line("target_usec", &usec(report.target_ns));
    line("target_from", &control.target_source.name());
    line("step", &report.step);
    line("depth_max", &report.depth.max);
    line("depth_normal", &report.depth.normal);
    line("depth_background", &report.depth.background);
    line("limit_bytes", &bounded(control.limit_bytes, u64::MAX));
    line("piece_bytes", &bounded(control.piece_bytes.into(), u32::MAX.into()));
    line("in_flight_writes", &report.in_flight[0]);
    line("in_flight_discards", &report.in_flight[1]);
    line("in_flight_bytes", &report.in_flight_bytes);
    for who in ThrottleClass::ALL {
        let name = match who {
            ThrottleClass::Sync => "waiting_sync",
            ThrottleClass::Normal => "waiting_normal",
            ThrottleClass::Background => "waiting_background",
            ThrottleClass::Discard => "waiting_discard",
        };
        line(name, &report.waiting[who as usize]);
    }
    line("waits", &report.waits);
    line("wait_usec", &usec(report.waited_ns));
    line("wait_max_usec", &usec(report.waited_max_ns));
    line("split", &report.splits);
    line("overdue", &report.overdue);
    for verdict in Verdict::ALL {
        let name = match verdict {
            Verdict::Ok => "windows_ok",
            Verdict::Exceeded => "windows_exceeded",
            Verdict::UnknownWrites => "windows_unknown_writes",
            Verdict::Unknown => "windows_unknown",
        };
        line(name, &report.windows[verdict as usize]);
    }
    line("verdict", &report.verdict.map_or("none", Verdict::name));
    line("read_p50_usec", &known_usec(report.read_p50_ns));
    line("read_p99_usec", &known_usec(report.read_p99_ns));
    line("clean_read_usec", &known_usec(control.clean_read_ns));
    line("probes", &control.probes);
    out
}
