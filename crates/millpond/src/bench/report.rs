// SPDX-License-Identifier: Apache-2.0 OR MIT
//! What came of a run, in fio's manner: text for people, JSON with fio's keys where it has them.
use std::fmt::Write;

use block::Nanos;
use hdrhistogram::Histogram;
use serde_json::{Map, Value, json};

use crate::bench::args::BenchArgs;
use crate::bench::job::{Done, Outcome, Sampling, Work};

/// The percentiles that are told, as fio writes them.
const PERCENTILES: [(&str, f64); 6] = [
    ("50.000000", 0.5),
    ("90.000000", 0.9),
    ("95.000000", 0.95),
    ("99.000000", 0.99),
    ("99.900000", 0.999),
    ("99.990000", 0.9999),
];

/// The kernel counts a process's time in these; the same on every architecture that Linux has.
const TICK_NS: u64 = 10_000_000;

/// CPU time of this process, all its threads: of its own and in the kernel. Read from /proc, as
/// valgrind hides what the C library's faster ways stand on; to ten milliseconds.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq)]
pub(crate) struct Cpu {
    user_ns: u64,
    system_ns: u64,
}

impl Cpu {
    /// So far; nothing where there is no /proc.
    pub(crate) fn now() -> Cpu {
        std::fs::read_to_string("/proc/self/stat").map_or_else(|_| Cpu::default(), |s| Cpu::of(&s))
    }

    fn of(stat: &str) -> Cpu {
        // The fields behind the name, which may hold blanks and parentheses.
        let fields = stat.rsplit(')').next().unwrap_or_default().split_whitespace();
        let mut ticks = fields.skip(11).map(|f| f.parse::<u64>().unwrap_or(0) * TICK_NS);
        Cpu { user_ns: ticks.next().unwrap_or(0), system_ns: ticks.next().unwrap_or(0) }
    }

    pub(crate) fn since(self, before: Cpu) -> Cpu {
        Cpu { user_ns: self.user_ns - before.user_ns, system_ns: self.system_ns - before.system_ns }
    }

    fn ns(self) -> u64 {
        self.user_ns + self.system_ns
    }
}

/// What came of all jobs.
#[derive(Debug)]
pub(crate) struct Report {
    device: String,
    rw: String,
    block_bytes: u64,
    depth: u32,
    mapping: &'static str,
    timed: String,
    verify: bool,
    outcomes: Vec<Outcome>,
    cpu: Cpu,
}

/// Rates of one direction, of one job or of all.
struct Side<'a> {
    ios: u64,
    bytes: u64,
    elapsed: Nanos,
    latency_ns: &'a Histogram<u64>,
}

impl Side<'_> {
    fn seconds(&self) -> f64 {
        (self.elapsed.0.max(1)) as f64 / 1e9
    }

    fn iops(&self) -> f64 {
        self.ios as f64 / self.seconds()
    }

    fn bytes_per_s(&self) -> f64 {
        self.bytes as f64 / self.seconds()
    }

    fn json(&self) -> Value {
        let l = self.latency_ns;
        let some = !l.is_empty();
        let percentile = PERCENTILES.map(|(name, q)| (name.into(), json!(l.value_at_quantile(q))));
        let percentile: Map<String, Value> = percentile.into_iter().filter(|_| some).collect();
        json!({
            "io_bytes": self.bytes,
            "io_kbytes": self.bytes >> 10,
            "bw_bytes": self.bytes_per_s().round(),
            "bw": (self.bytes_per_s() / 1024.0).round(),
            "iops": self.iops(),
            "runtime": self.elapsed.0 / 1_000_000,
            "runtime_ns": self.elapsed.0,
            "total_ios": self.ios,
            "clat_ns": {
                "min": if some { l.min() } else { 0 },
                "max": l.max(),
                "mean": if some { l.mean() } else { 0.0 },
                "stddev": if some { l.stdev() } else { 0.0 },
                "N": l.len(),
                "percentile": percentile,
            },
        })
    }

    fn text(&self, out: &mut String, name: &str) {
        let (mib, mb) = (self.bytes_per_s() / f64::from(1 << 20), self.bytes_per_s() / 1e6);
        let moved = size(self.bytes);
        let ms = self.elapsed.0 / 1_000_000;
        let iops = count(self.iops());
        put(out, format_args!("  {name}: IOPS={iops}, BW={mib:.1}MiB/s ({mb:.1}MB/s)"));
        put(out, format_args!("({moved}/{ms}msec)\n"));
        let l = self.latency_ns;
        if l.is_empty() {
            return;
        }
        let (unit, by) =
            if l.value_at_quantile(0.5) >= 10_000 { ("usec", 1e3) } else { ("nsec", 1.0) };
        let scaled = |ns: u64| ns as f64 / by;
        let (min, max) = (scaled(l.min()), scaled(l.max()));
        let (mean, dev) = (l.mean() / by, l.stdev() / by);
        put(
            out,
            format_args!(
                "    clat ({unit}): min={min:.0}, max={max:.0}, avg={mean:.2}, stdev={dev:.2}, \
                 samples={}\n",
                l.len()
            ),
        );
        put(out, format_args!("    clat percentiles ({unit}):\n     |"));
        for (name, q) in PERCENTILES {
            let value = scaled(l.value_at_quantile(q));
            put(out, format_args!(" {}th=[{value:.0}]", &name[..5]));
        }
        out.push('\n');
    }
}

fn put(out: &mut String, what: std::fmt::Arguments<'_>) {
    out.write_fmt(what).expect("a string takes everything");
}

/// A number with k or M, as fio writes IOPS.
pub(crate) fn count(n: f64) -> String {
    match n {
        n if n >= 1e7 => format!("{:.2}M", n / 1e6),
        n if n >= 1e6 => format!("{:.3}M", n / 1e6),
        n if n >= 1e4 => format!("{:.1}k", n / 1e3),
        n => format!("{n:.0}"),
    }
}

fn size(bytes: u64) -> String {
    match bytes as f64 {
        b if b >= 10.0 * f64::from(1 << 30) => format!("{:.1}GiB", b / f64::from(1 << 30)),
        b if b >= 10.0 * f64::from(1 << 20) => format!("{:.1}MiB", b / f64::from(1 << 20)),
        b => format!("{:.1}KiB", b / 1024.0),
    }
}

impl Report {
    pub(crate) fn new(
        device: &str,
        args: &BenchArgs,
        work: &Work,
        outcomes: Vec<Outcome>,
        cpu: Cpu,
    ) -> Report {
        Report {
            device: device.into(),
            rw: format!("{:?}", work.kind).to_lowercase(),
            block_bytes: work.block.bytes(),
            depth: work.depth,
            mapping: args.mapping.word(),
            timed: match work.sampling {
                Sampling::All => "every request".into(),
                Sampling::Every(n) => format!("one request in {n}"),
                Sampling::Nothing => "no request".into(),
            },
            verify: work.verify,
            outcomes,
            cpu,
        }
    }

    /// All jobs as one: requests of all, over the time of the longest.
    fn all(&self) -> Outcome {
        let mut all = Outcome {
            read: Done::nothing(),
            write: Done::nothing(),
            elapsed: Nanos::ZERO,
            verified_blocks: 0,
        };
        for one in &self.outcomes {
            for (sum, done) in [(&mut all.read, &one.read), (&mut all.write, &one.write)] {
                sum.ios += done.ios;
                sum.latency_ns.add(&done.latency_ns).expect("the same bounds");
            }
            all.elapsed = all.elapsed.max(one.elapsed);
            all.verified_blocks += one.verified_blocks;
        }
        all
    }

    fn sides<'a>(&self, outcome: &'a Outcome) -> [(&'static str, Side<'a>); 2] {
        [("read", &outcome.read), ("write", &outcome.write)].map(|(name, done)| {
            let (ios, elapsed) = (done.ios, outcome.elapsed);
            let bytes = ios * self.block_bytes;
            (name, Side { ios, bytes, elapsed, latency_ns: &done.latency_ns })
        })
    }

    fn outcome_json(&self, name: &str, outcome: &Outcome) -> Value {
        let [(_, read), (_, write)] = self.sides(outcome);
        let mut job = json!({
            "jobname": name,
            "error": 0,
            "job options": {
                "rw": self.rw,
                "bs": self.block_bytes.to_string(),
                "iodepth": self.depth.to_string(),
                "mapping": self.mapping,
            },
            "read": read.json(),
            "write": write.json(),
        });
        if self.verify {
            job["verify"] = json!({ "blocks": outcome.verified_blocks, "errors": 0 });
        }
        job
    }

    /// fio's JSON: `jobs` has an entry a job; `all` is ours, all of them together.
    pub(crate) fn json(&self) -> String {
        let all = self.all();
        let percent = |ns: u64| 100.0 * ns as f64 / all.elapsed.0.max(1) as f64;
        let jobs: Vec<Value> =
            self.outcomes.iter().map(|o| self.outcome_json(&self.device, o)).collect();
        let report = json!({
            "millpond version": env!("CARGO_PKG_VERSION"),
            "jobs": jobs,
            "all": self.outcome_json(&self.device, &all),
            "latency of": self.timed,
            "usr_cpu": percent(self.cpu.user_ns),
            "sys_cpu": percent(self.cpu.system_ns),
            "cpu_ns": self.cpu.ns(),
        });
        format!("{report:#}\n")
    }

    pub(crate) fn text(&self) -> String {
        let mut out = String::new();
        put(
            &mut out,
            format_args!(
                "{}: rw={}, bs={}, iodepth={}, jobs={}, mapping={}, latency of {}\n",
                self.device,
                self.rw,
                self.block_bytes,
                self.depth,
                self.outcomes.len(),
                self.mapping,
                self.timed
            ),
        );
        let all = self.all();
        if self.outcomes.len() > 1 {
            for (nth, one) in self.outcomes.iter().enumerate() {
                let ios = one.read.ios + one.write.ios;
                let rate = count(ios as f64 * 1e9 / one.elapsed.0.max(1) as f64);
                put(&mut out, format_args!("  job {nth}: IOPS={rate}\n"));
            }
        }
        for (name, side) in self.sides(&all) {
            if side.ios > 0 {
                side.text(&mut out, name);
            }
        }
        let ios = (all.read.ios + all.write.ios).max(1);
        let per_io = self.cpu.ns() as f64 / ios as f64;
        let (user, system) = (self.cpu.user_ns as f64 / 1e9, self.cpu.system_ns as f64 / 1e9);
        put(
            &mut out,
            format_args!("  cpu: usr={user:.2}s, sys={system:.2}s, {per_io:.1} nsec a request\n"),
        );
        if self.verify {
            put(&mut out, format_args!("  verify: {} blocks as written\n", all.verified_blocks));
        }
        out
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    fn outcome(latencies: impl Iterator<Item = u64>) -> Outcome {
        let mut read = Done::nothing();
        for ns in latencies {
            read.ios += 1;
            read.latency_ns.saturating_record(ns);
        }
        let write = Done::nothing();
        Outcome { read, write, elapsed: Nanos::from_secs(2), verified_blocks: 0 }
    }

    fn report(outcomes: Vec<Outcome>) -> Report {
        Report {
            device: "d".into(),
            rw: "randread".into(),
            block_bytes: 512,
            depth: 4,
            mapping: "in-place",
            timed: "every request".into(),
            verify: false,
            outcomes,
            cpu: Cpu { user_ns: 1_000_000_000, system_ns: 500_000_000 },
        }
    }

    #[test]
    fn json_has_fios_keys_and_percentiles_of_what_was_recorded() {
        let report = report(vec![outcome(1..=1000), outcome(1001..=2000)]);
        let json: Value = serde_json::from_str(&report.json()).unwrap();
        let read = &json["jobs"][0]["read"];
        assert_eq!(read["total_ios"], 1000);
        assert_eq!(read["iops"], 500.0);
        assert_eq!(read["bw_bytes"], 256_000.0);
        assert_eq!(read["runtime"], 2000);
        assert_eq!(read["clat_ns"]["percentile"]["99.000000"], 990);
        assert_eq!(json["jobs"][0]["write"]["total_ios"], 0);
        assert_eq!(json["all"]["read"]["iops"], 1000.0);
        assert_eq!(json["all"]["read"]["clat_ns"]["N"], 2000);
        assert_eq!(json["all"]["read"]["clat_ns"]["percentile"]["50.000000"], 1000);
    }

    #[test]
    fn without_samples_json_has_no_percentiles_and_text_no_latency() {
        let mut none = outcome(std::iter::empty());
        none.read.ios = 10;
        let report = report(vec![none]);
        let json: Value = serde_json::from_str(&report.json()).unwrap();
        let clat = &json["jobs"][0]["read"]["clat_ns"];
        assert_eq!((&clat["N"], &clat["percentile"]), (&json!(0), &json!({})));
        assert!(!report.text().contains("clat"), "{}", report.text());
        assert!(report.text().contains("read: IOPS=5, "), "{}", report.text());
    }

    #[test]
    fn cpu_time_is_found_behind_any_name() {
        let stat = "1 (a (b) c) S 2 3 4 5 6 7 8 9 10 11 250 50 0 0";
        assert_eq!(Cpu::of(stat), Cpu { user_ns: 2_500_000_000, system_ns: 500_000_000 });
        assert_eq!(Cpu::of(""), Cpu::default());
        let report = report(vec![outcome(1..=1000)]);
        let json: Value = serde_json::from_str(&report.json()).unwrap();
        assert_eq!((&json["usr_cpu"], &json["sys_cpu"]), (&json!(50.0), &json!(25.0)));
    }

    #[test]
    fn large_counts_are_short() {
        for (n, text) in
            [(999.4, "999"), (12_345.0, "12.3k"), (2.5e6, "2.500M"), (1.234e7, "12.34M")]
        {
            assert_eq!(count(n), text);
        }
    }
}
