// SPDX-License-Identifier: Apache-2.0 OR MIT
//! What came of all servers: tables, and keys of a JSON object.
use std::collections::BTreeMap;
use std::io::{Write, stderr};

use reproduce::median::{median, spread_percent};
use reproduce::table::{Table, fixed};
use serde_json::{Map, Value, json};

use super::cache::{self, CrashResult};
use super::client::{Job, Run};
use super::serve::{GROUPS, Group, OURS_BUFFERED};

const MIB: f64 = 1_048_576.0;

/// The runs of one job by one server.
#[derive(Debug)]
struct Cell {
    group: Group,
    job: Job,
    who: &'static str,
    runs: Vec<Run>,
}

/// What has come so far, in the order in which it came.
#[derive(Debug, Default)]
pub struct Results {
    cells: Vec<Cell>,
    pub caches: BTreeMap<&'static str, Vec<cache::Round>>,
    pub survivors: BTreeMap<&'static str, CrashResult>,
    /// What exactly is served by whom.
    pub served: Vec<String>,
    errors: Vec<String>,
}

fn middle<T>(runs: &[T], figure: impl Fn(&T) -> f64) -> f64 {
    median(&runs.iter().map(figure).collect::<Vec<_>>())
}

/// The median over the rounds of ours divided by theirs.
fn over<T>(ours: Option<&[T]>, theirs: &[T], figure: impl Fn(&T) -> f64) -> f64 {
    let pairs = ours.unwrap_or_default().iter().zip(theirs);
    median(&pairs.map(|(o, t)| figure(o) / figure(t)).collect::<Vec<_>>())
}

/// A figure that JSON can't hold is null.
fn figure(value: f64) -> Value {
    json!(value.is_finite().then_some(value))
}

impl Results {
    /// BE-P2.
    pub fn failed(&mut self, what: &str, why: &str) {
        let line = format!("{what}: {why}");
        if !self.errors.contains(&line) {
            let _ = writeln!(stderr(), "not measured: {line}"); // it is in the report, too
            self.errors.push(line);
        }
    }

    /// A run has ended.
    pub fn add(&mut self, group: Group, job: Job, who: &'static str, run: Run) {
        let same = |c: &&mut Cell| (c.group, c.job, c.who) == (group, job, who);
        match self.cells.iter_mut().find(same) {
            Some(cell) => cell.runs.push(run),
            None => self.cells.push(Cell { group, job, who, runs: vec![run] }),
        }
    }

    /// What of ours does what this one does.
    fn ours(&self, cell: &Cell) -> Option<&[Run]> {
        let ours = match (cell.group, cell.who) {
            (_, "kernel_lz4") => "ours_lz4",
            (Group::File, "nbdkit" | "nbd_server") => OURS_BUFFERED,
            _ => "ours",
        };
        let same = |c: &&Cell| (c.group, c.job, c.who) == (cell.group, cell.job, ours);
        self.cells.iter().find(same).map(|c| &c.runs[..])
    }

    fn table(&self, group: Group) -> Table {
        let mut table = Table::new(
            group.title(),
            &["job", "server"],
            &[
                "IOPS",
                "±%",
                "MiB/s",
                "p99 µs",
                "CPU µs",
                "memory MiB",
                "ours/ IOPS",
                "ours/ CPU",
                "ours/ memory",
            ],
        );
        let mut cells: Vec<&Cell> = self.cells.iter().filter(|c| c.group == group).collect();
        cells.sort_by_key(|c| group.jobs().iter().position(|job| *job == c.job));
        for cell in cells {
            let (runs, iops) = (&cell.runs, cell.runs.iter().map(|r| r.iops).collect::<Vec<_>>());
            let mut figures = vec![
                fixed(median(&iops), 0),
                fixed(spread_percent(&iops), 0),
                fixed(middle(runs, |r| r.bytes_per_s / MIB), 0),
                fixed(middle(runs, |r| r.p99_us), 0),
                fixed(middle(runs, |r| r.cpu_us), 2),
                fixed(middle(runs, |r| r.memory_bytes as f64 / MIB), 0),
            ];
            if !cell.who.starts_with("ours") {
                let ours = self.ours(cell);
                figures.push(fixed(over(ours, runs, |r| r.iops), 2));
                figures.push(fixed(over(ours, runs, |r| r.cpu_us), 2));
                figures.push(fixed(over(ours, runs, |r| r.memory_bytes as f64), 2));
            }
            table.row(&[&cell.job.name(), cell.who], figures);
        }
        group.notes().iter().for_each(|note| table.note(*note));
        table
    }

    fn cache_table(&self, size_mib: u64) -> Table {
        let title = format!(
            "Write-back cache over a file: {} MiB of random 4 KiB writes over {size_mib} MiB, \
             depth 16",
            size_mib / 4
        );
        let mut table = Table::new(
            title,
            &["cache"],
            &[
                "IOPS",
                "CPU µs",
                "flush s",
                "at file s",
                "its CPU s",
                "memory MiB",
                "kept, flushed",
                "kept, not flushed",
                "ours/ IOPS",
                "ours/ CPU",
                "ours/ at file",
            ],
        );
        let ours = self.caches.get("ours").map(|rounds| &rounds[..]);
        for (who, rounds) in &self.caches {
            let of = |figure: fn(&cache::Round) -> f64| middle(rounds, figure);
            let kept = self.survivors.get(who);
            let share = |n: Option<u64>| match (n, kept) {
                (Some(n), Some(s)) => format!("{n} of {}", s.of),
                _ => "-".to_owned(),
            };
            let mut figures = vec![
                fixed(of(|r| r.run.iops), 0),
                fixed(of(|r| r.run.cpu_us), 2),
                fixed(of(|r| r.flush_s), 3),
                fixed(of(|r| r.written_back_s), 3),
                fixed(of(|r| r.written_back_cpu_s), 3),
                fixed(of(|r| r.run.memory_bytes as f64 / MIB), 0),
                share(kept.map(|s| s.flushed)),
                share(kept.map(|s| s.unflushed)),
            ];
            if *who != "ours" {
                figures.push(fixed(over(ours, rounds, |r| r.run.iops), 2));
                figures.push(fixed(over(ours, rounds, |r| r.run.cpu_us), 2));
                figures.push(fixed(over(ours, rounds, |r| r.written_back_s), 2));
            }
            table.row(&[who], figures);
        }
        table
            .note("flush: until a client's flush was answered; at file: until all of it was there");
        table.note("kept: blocks that were there after kill -9 of the server and a new start");
        table
    }

    /// All tables that have a row.
    pub fn tables(&self, size_mib: u64) -> Vec<Table> {
        let groups = GROUPS.into_iter().map(|group| self.table(group));
        let all = groups.chain([self.cache_table(size_mib)]);
        all.filter(|table| !table.is_empty()).collect()
    }

    /// What could not be measured, each with its error.
    pub fn errors(&self) -> &[String] {
        &self.errors
    }

    /// The keys of the last line.
    pub fn keys(&self) -> Map<String, Value> {
        let mut keys = Map::new();
        for Cell { group, job, who, runs } in &self.cells {
            let mut put = |what: &str, value: f64| {
                let key = format!("{}_{who}_{}_{what}", group.key(), job.name());
                keys.insert(key, figure(value));
            };
            put("iops", middle(runs, |r| r.iops).round());
            put("cpu_us_per_io", middle(runs, |r| r.cpu_us));
            put("p99_us", middle(runs, |r| r.p99_us));
            put("memory_bytes", middle(runs, |r| r.memory_bytes as f64));
        }
        for (who, rounds) in &self.caches {
            let mut put = |what: &str, value: f64| {
                keys.insert(format!("cache_{who}_{what}"), figure(value));
            };
            put("randwrite_iops", middle(rounds, |r| r.run.iops).round());
            put("cpu_us_per_io", middle(rounds, |r| r.run.cpu_us));
            put("flush_s", middle(rounds, |r| r.flush_s));
            put("written_back_s", middle(rounds, |r| r.written_back_s));
            put("written_back_cpu_s", middle(rounds, |r| r.written_back_cpu_s));
        }
        for (who, s) in &self.survivors {
            keys.insert(format!("cache_{who}_kept_flushed"), json!(s.flushed));
            keys.insert(format!("cache_{who}_kept_unflushed"), json!(s.unflushed));
        }
        keys.insert("errors".to_owned(), json!(self.errors));
        keys
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn ours_is_compared_by_round_with_the_peer_of_the_same_job() {
        let run = |iops: f64, cpu_us: f64| Run {
            iops,
            bytes_per_s: iops * 4096.0,
            p99_us: 1.0,
            cpu_us,
            memory_bytes: 1 << 20,
        };
        let mut results = Results::default();
        let job = Group::Compressed.jobs()[0];
        for (who, iops, cpu_us) in [
            ("ours", 1000.0, 8.0),
            ("ours_lz4", 3000.0, 4.0),
            ("nbdkit", 500.0, 16.0),
            ("kernel_lz4", 6000.0, f64::NAN),
        ] {
            results.add(Group::Compressed, job, who, run(iops, cpu_us));
        }
        let text = results.table(Group::Compressed).to_string();
        let ends = |who: &str| {
            let line = text.lines().find(|l| l.split_whitespace().nth(1) == Some(who)).unwrap();
            line.split_whitespace().skip(8).collect::<Vec<_>>().join(" ")
        };
        assert_eq!(ends("nbdkit"), "2.00 0.50 1.00", "{text}");
        assert_eq!(ends("kernel_lz4"), "0.50 - 1.00", "{text}");
        let keys = results.keys();
        assert_eq!(keys["compressed_kernel_lz4_randread_4k_qd16_c1_cpu_us_per_io"], Value::Null);
        assert_eq!(keys["compressed_nbdkit_randread_4k_qd16_c1_iops"], json!(500.0));
    }
}
