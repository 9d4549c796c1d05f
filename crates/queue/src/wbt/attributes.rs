// SPDX-License-Identifier: Apache-2.0 OR MIT
//! The attributes of a leaf's queue, by the kernel's names where it has them.
use std::fmt::Write;

use block::value::{TimeUnit, choice, number, refused, time_in};
use block::{Access, Error, ErrorKind};
use policy::wbt::{LatencyTarget, Mode, ThrottleClass, Verdict};

use super::{Report, Wbt};

const LAT: &str = "queue/wbt_lat_usec";
const MODE: &str = "queue/wbt_mode";
const STATS: &str = "queue/wbt_stats";
const REQUESTS: &str = "queue/nr_requests";

/// The longest target. Chosen: nothing that is longer is a latency.
const TARGET_MAX_USEC: u64 = 10_000_000;
/// The deepest queue. Chosen: what NVMe can have.
const QUEUE_DEPTH_MAX: u32 = 65_536;

const NS_PER_USEC: u64 = 1000;

impl Wbt {
    /// Names that [`Wbt::get`] and [`Wbt::set`] know.
    pub fn attributes() -> &'static [&'static str] {
        &[REQUESTS, LAT, MODE, STATS]
    }

    /// Who may do what with an attribute; [`Wbt::set`] refuses the rest all the same.
    pub fn access(name: &str) -> Access {
        if name == STATS { Access::ReadMany } else { Access::ReadWrite }
    }

    /// Reads an attribute. Errors: `ENXIO` for unknown names.
    pub fn get(&self, name: &str) -> Result<String, Error> {
        Ok(match name {
            LAT => self.report().target_ns.div_ceil(NS_PER_USEC).to_string(),
            MODE => {
                let now = self.mode();
                let named = |mode: &Mode| match mode.name() {
                    name if *mode == now => format!("[{name}]"),
                    name => name.to_owned(),
                };
                Mode::ALL.iter().map(named).collect::<Vec<_>>().join(" ")
            }
            STATS => stats(&self.report()),
            REQUESTS => self.queue_depth().to_string(),
            _ => return Err(self.unknown(name)),
        })
    }

    /// Writes an attribute. What waits for tokens and may go then, goes then. Errors: `ENXIO` for
    /// unknown names, `EINVAL` for values that are not allowed, `EACCES` for statistics.
    pub fn set(&self, name: &str, value: &str) -> Result<(), Error> {
        let value = value.trim();
        match name {
            LAT => {
                let allowed =
                    "-1 (default), 0 (off), or 1 to 10000000 us, or a time with us, ms, s,";
                let usec = TimeUnit::Microsecond;
                let target = match time_in(name, value, usec, 0..=TARGET_MAX_USEC) {
                    Ok(0) => LatencyTarget::Off,
                    Ok(usec) => LatencyTarget::Ns(usec * NS_PER_USEC),
                    Err(_) if value == "-1" => LatencyTarget::Default,
                    Err(_) => return Err(self.within(refused(name, value, allowed))),
                };
                self.set_target(target);
            }
            MODE => {
                let names = Mode::ALL.map(Mode::name);
                let word = choice(name, value, &names).map_err(|e| self.within(e))?;
                let known = Mode::ALL.into_iter().find(|mode| mode.name() == word);
                self.set_mode(known.expect("one of their names"));
            }
            REQUESTS => {
                let depth = number(name, value, 1..=QUEUE_DEPTH_MAX).map_err(|e| self.within(e))?;
                self.set_queue_depth(depth);
            }
            STATS => {
                let e = format!("{}: {name} can only be read", self.device_name());
                return Err(Error::new(ErrorKind::Denied, e));
            }
            _ => return Err(self.unknown(name)),
        }
        Ok(())
    }

    fn device_name(&self) -> &str {
        self.throttle().stats.device()
    }

    fn unknown(&self, name: &str) -> Error {
        let hint = block::name_hint(name, Wbt::attributes());
        let device = self.device_name();
        Error::not_found(format!("{device}: no attribute `{name}`: {hint}"))
    }

    fn within(&self, e: Error) -> Error {
        e.within(self.device_name())
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
