// SPDX-License-Identifier: Apache-2.0 OR MIT
//! The result of a run, as fio prints it: text for people, JSON with fio's keys where it has them.
use block::Nanos;
use serde_json::{Value, json};

use crate::args::LoadgenArgs;
use crate::cpu::Cpu;
use crate::job::{Done, Outcome, Sampling};
use crate::side::{Side, count, put};

/// The result of one device, all its turns together.
#[derive(Debug)]
pub(crate) struct DeviceReport {
    device: String,
    /// One for each job.
    jobs: Vec<Outcome>,
    /// All jobs together, turn by turn.
    turns_iops: Vec<f64>,
    cpu: Cpu,
}

impl DeviceReport {
    pub(crate) fn new(device: &str) -> DeviceReport {
        let device = device.into();
        DeviceReport { device, jobs: Vec::new(), turns_iops: Vec::new(), cpu: Cpu::default() }
    }

    /// Adds the results of the jobs of one turn.
    pub(crate) fn turn(&mut self, jobs: &[Outcome], cpu: Cpu) {
        let seconds = |o: &Outcome| o.elapsed.0.max(1) as f64 / 1e9;
        let ios: u64 = jobs.iter().map(|o| o.read.ios + o.write.ios).sum();
        let longest = jobs.iter().map(seconds).fold(0.0, f64::max);
        self.turns_iops.push(ios as f64 / longest);
        self.cpu = self.cpu.plus(cpu);
        self.jobs.resize_with(jobs.len(), Outcome::nothing);
        for (sum, one) in self.jobs.iter_mut().zip(jobs) {
            sum.add(one);
            sum.elapsed = Nanos(sum.elapsed.0 + one.elapsed.0);
        }
    }

    /// All jobs as one: requests of all, over the time of the longest.
    fn all(&self) -> Outcome {
        let mut all = Outcome::nothing();
        for one in &self.jobs {
            all.add(one);
            all.elapsed = all.elapsed.max(one.elapsed);
        }
        all
    }

    /// How many times as fast as `first`: the median of the turns, each compared with its
    /// neighbour, so that a slow phase of the machine slows both.
    fn ratio(&self, first: &DeviceReport) -> f64 {
        let pairs = self.turns_iops.iter().zip(&first.turns_iops);
        median(pairs.map(|(mine, other)| mine / other.max(1.0)).collect())
    }
}

impl Outcome {
    fn nothing() -> Outcome {
        let (read, write) = (Done::nothing(), Done::nothing());
        Outcome { read, write, elapsed: Nanos::ZERO, verified_blocks: 0 }
    }

    /// Adds all but the time: turns add up, jobs run in parallel.
    fn add(&mut self, other: &Outcome) {
        for (sum, done) in [(&mut self.read, &other.read), (&mut self.write, &other.write)] {
            sum.ios += done.ios;
            sum.latency_ns.add(&done.latency_ns).expect("the same bounds");
        }
        self.verified_blocks += other.verified_blocks;
    }
}

fn median(mut values: Vec<f64>) -> f64 {
    values.sort_by(f64::total_cmp);
    values.get(values.len() / 2).copied().unwrap_or(0.0)
}

/// The results of all devices.
#[derive(Debug)]
pub(crate) struct Report {
    rw: String,
    block_bytes: u64,
    depth: u32,
    mapping: &'static str,
    timed: String,
    verify: bool,
    devices: Vec<DeviceReport>,
}

impl Report {
    pub(crate) fn new(
        args: &LoadgenArgs,
        sampling: Sampling,
        devices: Vec<DeviceReport>,
    ) -> Report {
        Report {
            rw: format!("{:?}", args.rw).to_lowercase(),
            block_bytes: args.bs.bytes(),
            depth: args.iodepth,
            mapping: args.mapping.word(),
            timed: match sampling {
                Sampling::All => "every request".into(),
                Sampling::Every(n) => format!("one request in {n}"),
                Sampling::Nothing => "no request".into(),
            },
            verify: args.verify,
            devices,
        }
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

    /// fio's JSON: `jobs` has an entry for each job of each device. `devices` is ours: all jobs of
    /// a device together, its turns, and how it compares with the first.
    pub(crate) fn json(&self) -> String {
        let mut jobs = Vec::new();
        let mut devices = Vec::new();
        for driven in &self.devices {
            let (name, all) = (&driven.device, driven.all());
            jobs.extend(driven.jobs.iter().map(|o| self.outcome_json(name, o)));
            let percent = |ns: u64| 100.0 * ns as f64 / all.elapsed.0.max(1) as f64;
            let mut device = self.outcome_json(name, &all);
            device["turns_iops"] = json!(driven.turns_iops);
            device["iops_median"] = json!(median(driven.turns_iops.clone()));
            device["ratio_median"] = json!(driven.ratio(&self.devices[0]));
            device["usr_cpu"] = json!(percent(driven.cpu.user_ns));
            device["sys_cpu"] = json!(percent(driven.cpu.system_ns));
            device["cpu_ns"] = json!(driven.cpu.ns());
            devices.push(device);
        }
        let report = json!({
            "millpond version": env!("CARGO_PKG_VERSION"),
            "jobs": jobs,
            "devices": devices,
            "latency of": self.timed,
        });
        format!("{report:#}\n")
    }

    pub(crate) fn text(&self) -> String {
        let mut out = String::new();
        for driven in &self.devices {
            self.device_text(&mut out, driven);
        }
        if let [first, _, ..] = &self.devices[..] {
            let name = &first.device;
            put(
                &mut out,
                format_args!("{:24} {:>12} {:>10}\n", "median of turns", "IOPS", "ratio"),
            );
            for driven in &self.devices {
                let (iops, ratio) = (median(driven.turns_iops.clone()), driven.ratio(first));
                let device = &driven.device;
                put(&mut out, format_args!("{device:24} {:>12} {ratio:>10.3}\n", count(iops)));
            }
            put(&mut out, format_args!("ratio: to {name}, turn by turn\n"));
        }
        out
    }

    fn device_text(&self, out: &mut String, driven: &DeviceReport) {
        let (device, jobs) = (&driven.device, driven.jobs.len());
        let Report { rw, block_bytes, depth, mapping, timed, .. } = self;
        put(
            out,
            format_args!(
                "{device}: rw={rw}, bs={block_bytes}, iodepth={depth}, jobs={jobs}, \
                 mapping={mapping}, latency of {timed}\n"
            ),
        );
        let all = driven.all();
        if jobs > 1 {
            for (nth, one) in driven.jobs.iter().enumerate() {
                let ios = one.read.ios + one.write.ios;
                let rate = count(ios as f64 * 1e9 / one.elapsed.0.max(1) as f64);
                put(out, format_args!("  job {nth}: IOPS={rate}\n"));
            }
        }
        for (name, side) in self.sides(&all) {
            if side.ios > 0 {
                side.text(out, name);
            }
        }
        let ios = (all.read.ios + all.write.ios).max(1);
        let per_io = driven.cpu.ns() as f64 / ios as f64;
        let (user, system) = (driven.cpu.user_ns as f64 / 1e9, driven.cpu.system_ns as f64 / 1e9);
        put(
            out,
            format_args!("  cpu: usr={user:.2}s, sys={system:.2}s, {per_io:.1} nsec a request\n"),
        );
        if self.verify {
            put(out, format_args!("  verify: {} blocks as written\n", all.verified_blocks));
        }
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    fn outcome(latencies: impl Iterator<Item = u64>) -> Outcome {
        let mut one = Outcome { elapsed: Nanos::from_secs(2), ..Outcome::nothing() };
        for ns in latencies {
            one.read.ios += 1;
            one.read.latency_ns.saturating_record(ns);
        }
        one
    }

    fn report(devices: Vec<Vec<Vec<Outcome>>>) -> Report {
        let mut report = Report {
            rw: "randread".into(),
            block_bytes: 512,
            depth: 4,
            mapping: "in-place",
            timed: "every request".into(),
            verify: false,
            devices: Vec::new(),
        };
        for (nth, turns) in devices.into_iter().enumerate() {
            let mut driven = DeviceReport::new(&format!("d{nth}"));
            let cpu = Cpu { user_ns: 1_000_000_000, system_ns: 500_000_000 };
            turns.into_iter().for_each(|jobs| driven.turn(&jobs, cpu));
            report.devices.push(driven);
        }
        report
    }

    #[test]
    fn json_has_fios_keys_and_percentiles_of_what_was_recorded() {
        let report = report(vec![vec![vec![outcome(1..=1000), outcome(1001..=2000)]]]);
        let json: Value = serde_json::from_str(&report.json()).unwrap();
        let read = &json["jobs"][0]["read"];
        assert_eq!(read["total_ios"], 1000);
        assert_eq!(read["iops"], 500.0);
        assert_eq!(read["bw_bytes"], 256_000.0);
        assert_eq!(read["runtime"], 2000);
        assert_eq!(read["clat_ns"]["percentile"]["99.000000"], 990);
        assert_eq!(json["jobs"][0]["write"]["total_ios"], 0);
        let all = &json["devices"][0];
        assert_eq!(all["read"]["iops"], 1000.0);
        assert_eq!(all["read"]["clat_ns"]["N"], 2000);
        assert_eq!(all["read"]["clat_ns"]["percentile"]["50.000000"], 1000);
        assert_eq!((&all["usr_cpu"], &all["sys_cpu"]), (&json!(50.0), &json!(25.0)));
    }

    #[test]
    fn devices_are_compared_turn_by_turn_with_the_first() {
        let turns = |ios: [u64; 3]| ios.map(|n| vec![outcome(1..=n)]).to_vec();
        // The machine was slow in the second turn, for both.
        let report = report(vec![turns([1000, 100, 1000]), turns([500, 52, 490])]);
        let json: Value = serde_json::from_str(&report.json()).unwrap();
        let (first, second) = (&json["devices"][0], &json["devices"][1]);
        assert_eq!((&first["iops_median"], &first["ratio_median"]), (&json!(500.0), &json!(1.0)));
        assert_eq!(second["ratio_median"], 0.5);
        assert_eq!(second["turns_iops"], json!([250.0, 26.0, 245.0]));
        assert_eq!(second["read"]["total_ios"], 1042);
        assert!(report.text().contains("ratio: to d0"), "{}", report.text());
    }

    #[test]
    fn without_samples_json_has_no_percentiles_and_text_no_latency() {
        let mut none = outcome(std::iter::empty());
        none.read.ios = 10;
        let report = report(vec![vec![vec![none]]]);
        let json: Value = serde_json::from_str(&report.json()).unwrap();
        let clat = &json["jobs"][0]["read"]["clat_ns"];
        assert_eq!((&clat["N"], &clat["percentile"]), (&json!(0), &json!({})));
        assert!(!report.text().contains("clat"), "{}", report.text());
        assert!(report.text().contains("read: IOPS=5, "), "{}", report.text());
    }
}
