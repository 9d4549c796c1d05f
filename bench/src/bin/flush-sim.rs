// SPDX-License-Identifier: Apache-2.0 OR MIT
//! `make bench-flush-sim`: how long the flush of a write cache takes in virtual time, on two models
//! of a rotating disk: in LRU order, sorted, with gaps filled, with gaps filled from clean copies,
//! and the bound; what a full cache sustains; and how long a reader waits beside a flush.
//!
//! The same arguments print the same bytes on every machine. What is calibrated and what is a
//! prediction: `docs/hdd-model.md`. At the published sizes goals are judged: exit status 1 when one
//! is missed.
use std::io::{self, Write, stderr, stdout};
use std::process::ExitCode;
use std::sync::Mutex;
use std::thread::{available_parallelism, scope};

use reproduce::clock;
use reproduce::flush::{BLOCK_BYTES, Outcome, PUBLISHED_PERCENT, Scale, Way, percentile};
use reproduce::flush_sim::{Case, Disk, one_pass_s, run};
use reproduce::flush_steady::{self, Steady};
use serde_json::{Map, Value, json};

const USAGE: &str = "usage: flush-sim [--scale N]   sizes of the published run, divided by N";
const DISKS: [Disk; 2] = [Disk::Published, Disk::Textbook];
const WAYS: [Way; 4] = [Way::Lru, Way::Sorted, Way::GapFill, Way::GapKnown];
/// The ways that leave reads to the disk.
const READ_WAYS: [Way; 3] = [Way::Lru, Way::Sorted, Way::GapFill];
const STEADY_WAYS: [Way; 2] = [Way::Sorted, Way::GapFill];
/// Per cent of the origin that is dirty.
const FILLS: [u64; 4] = [10, 25, PUBLISHED_PERCENT, 90];
/// The full cache is measured on an eighth of the sizes: it writes everything many times.
const STEADY_DIVISOR: u64 = 8;

/// What the published run took.
fn published_s(way: Way) -> Option<f64> {
    match way {
        Way::Sorted => Some(44.0),
        Way::Lru => Some(99.2),
        Way::GapFill | Way::GapKnown => None,
    }
}

fn divisor() -> Result<u64, String> {
    let mut words = std::env::args().skip(1);
    let divisor = match (words.next().as_deref(), words.next(), words.next()) {
        (None, _, _) => Some(1),
        (Some("--scale"), Some(by), None) => by.parse().ok().filter(|by| (1..=512).contains(by)),
        _ => None,
    };
    divisor.ok_or_else(|| format!("N is 1 to 512; {USAGE}"))
}

/// One thing to do; those that take longest first.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
enum Job {
    Steady(Disk, Way),
    Flush(Case),
}

#[derive(Clone, Debug)]
enum Came {
    Steady(Steady),
    Flush(Outcome),
}

fn jobs() -> Vec<Job> {
    let mut jobs = Vec::new();
    for disk in DISKS {
        jobs.extend(STEADY_WAYS.map(|way| Job::Steady(disk, way)));
        let case = |way, fill_percent, reader| Case { disk, way, fill_percent, reader };
        jobs.extend(READ_WAYS.map(|way| Job::Flush(case(way, PUBLISHED_PERCENT, true))));
        for fill in FILLS {
            jobs.extend(WAYS.map(|way| Job::Flush(case(way, fill, false))));
        }
    }
    jobs
}

fn of_job(scale: Scale, divisor: u64, job: Job) -> Result<Came, String> {
    match job {
        Job::Flush(case) => run(scale, case).map(Came::Flush),
        Job::Steady(disk, way) => {
            let scale = Scale::divided(divisor * STEADY_DIVISOR);
            flush_steady::run(scale, disk, way).map(Came::Steady)
        }
    }
}

/// All outcomes; each run is a world of its own, so they run side by side.
fn run_all(divisor: u64, jobs: &[Job]) -> Result<Results, String> {
    let scale = Scale::divided(divisor);
    let threads = available_parallelism().map_or(1, usize::from).min(4);
    let outcomes: Vec<Mutex<Option<Came>>> = jobs.iter().map(|_| Mutex::new(None)).collect();
    let next = Mutex::new(0);
    let work = || -> Result<(), String> {
        loop {
            let number = {
                let mut next = next.lock().map_err(|e| e.to_string())?;
                *next += 1;
                *next - 1
            };
            let Some(&job) = jobs.get(number) else { return Ok(()) };
            let start = clock();
            let came = of_job(scale, divisor, job)?;
            let took_s = clock() - start;
            let said = match &came {
                Came::Flush(o) => format!("{:.2} s", o.seconds()),
                Came::Steady(s) => format!("{:.0} writes a second", s.writes_per_s),
            };
            let (nth, count) = (number + 1, jobs.len());
            let _ = writeln!(stderr(), "{nth} of {count}: {job:?}: {said} in {took_s:.1} s");
            *outcomes[number].lock().map_err(|e| e.to_string())? = Some(came);
        }
    };
    scope(|s| {
        let workers: Vec<_> = (0..threads).map(|_| s.spawn(work)).collect();
        workers.into_iter().try_for_each(|w| w.join().map_err(|_| "a run has panicked")?)
    })?;
    let found = outcomes.into_iter().filter_map(|o| o.into_inner().ok().flatten());
    Ok(Results { scale, divisor, rows: jobs.iter().copied().zip(found).collect() })
}

struct Results {
    scale: Scale,
    divisor: u64,
    rows: Vec<(Job, Came)>,
}

impl Results {
    fn of(&self, job: Job) -> &Came {
        let row = self.rows.iter().find(|(done, _)| *done == job);
        &row.expect("jobs() has every combination that is asked for").1
    }

    fn flush(&self, disk: Disk, way: Way, fill_percent: u64, reader: bool) -> &Outcome {
        match self.of(Job::Flush(Case { disk, way, fill_percent, reader })) {
            Came::Flush(outcome) => outcome,
            Came::Steady(_) => unreachable!("a flush comes of a flush"),
        }
    }

    fn steady(&self, disk: Disk, way: Way) -> Steady {
        match self.of(Job::Steady(disk, way)) {
            Came::Steady(steady) => *steady,
            Came::Flush(_) => unreachable!("no flush comes of a full cache"),
        }
    }

    fn seconds(&self, disk: Disk, way: Way, fill_percent: u64) -> f64 {
        self.flush(disk, way, fill_percent, false).seconds()
    }

    /// Microseconds at rest and during the flush.
    fn p99_us(&self, disk: Disk, way: Way) -> (f64, f64) {
        let outcome = self.flush(disk, way, PUBLISHED_PERCENT, true);
        let us = |sorted_ns: &[u64]| percentile(sorted_ns, 99).unwrap_or_default() as f64 / 1e3;
        (us(&outcome.idle_read_ns), us(&outcome.flush_read_ns))
    }

    fn print(&self, out: &mut impl Write) -> io::Result<()> {
        let mib = |blocks: u64| (blocks * BLOCK_BYTES) as f64 / f64::from(1 << 20);
        writeln!(
            out,
            "Virtual time. Random dirty 4 KiB blocks over {:.0} MiB, each written once; then one \
             `flush`.\nCache on an NVMe model, origin on a 7200 rpm model: docs/hdd-model.md. \
             Calibrated: `published`, {PUBLISHED_PERCENT} %,\nlru and sorted; the rest is \
             prediction. Bound: one pass over the origin.\n",
            mib(self.scale.origin_blocks),
        )?;
        self.print_flushes(out)?;
        self.print_steady(out)?;
        self.print_reader(out)?;
        self.print_goals(out)
    }

    fn print_flushes(&self, out: &mut impl Write) -> io::Result<()> {
        writeln!(
            out,
            "{:10} {:>6} {:10} {:>8} {:>7} {:>7} {:>11} {:>12} {:>10} {:>9} {:>8}",
            "HDD model",
            "dirty",
            "way",
            "seconds",
            "of lru",
            "MiB/s",
            "origin I/Os",
            "bytes an I/O",
            "MiB written",
            "MiB read",
            "flushes"
        )?;
        for disk in DISKS {
            for fill in FILLS {
                let lru_s = self.seconds(disk, Way::Lru, fill);
                for way in WAYS {
                    let o = self.flush(disk, way, fill, false);
                    write!(
                        out,
                        "{:10} {fill:4} % {:10} {:8.2} {:7.2} {:7.2} {:11} {:12} {:11.0} {:9.0} \
                         {:8}",
                        disk.name(),
                        way.name(),
                        o.seconds(),
                        lru_s / o.seconds(),
                        o.mib_per_s(),
                        o.origin_writes,
                        o.mean_io_bytes(),
                        o.origin_write_bytes as f64 / f64::from(1 << 20),
                        o.origin_read_bytes as f64 / f64::from(1 << 20),
                        o.origin_flushes,
                    )?;
                    let measured = published_s(way).filter(|_| self.is_published(disk, fill));
                    if let Some(was) = measured {
                        let error = (o.seconds() / was - 1.0) * 100.0;
                        write!(out, "   measured {was:.1} s, {error:+.1} %")?;
                    }
                    writeln!(out)?;
                }
                let bound_s = one_pass_s(self.scale, disk);
                writeln!(out, "{:10} {fill:4} % {:10} {bound_s:8.2}", disk.name(), "bound")?;
            }
        }
        writeln!(out)
    }

    fn is_published(&self, disk: Disk, fill: u64) -> bool {
        disk == Disk::Published && fill == PUBLISHED_PERCENT && self.divisor == 1
    }

    fn print_steady(&self, out: &mut impl Write) -> io::Result<()> {
        writeln!(
            out,
            "A full cache, random writes without end, an {STEADY_DIVISOR}th of the sizes"
        )?;
        writeln!(
            out,
            "{:10} {:10} {:>9} {:>10} {:>10} {:>13}",
            "HDD model", "way", "writes/s", "p99 us", "worst us", "gaps a block"
        )?;
        for disk in DISKS {
            for way in STEADY_WAYS {
                let s = self.steady(disk, way);
                writeln!(
                    out,
                    "{:10} {:10} {:9.0} {:10} {:10} {:13.2}",
                    disk.name(),
                    way.name(),
                    s.writes_per_s,
                    s.p99_ns / 1000,
                    s.worst_ns / 1000,
                    s.filled_per_block
                )?;
            }
        }
        writeln!(out)
    }

    fn print_reader(&self, out: &mut impl Write) -> io::Result<()> {
        writeln!(
            out,
            "A reader of random blocks, 25 a second, beside the flush, {PUBLISHED_PERCENT} % dirty"
        )?;
        writeln!(
            out,
            "{:10} {:10} {:>11} {:>12} {:>6} {:>9}",
            "HDD model", "way", "p99 idle us", "p99 flush us", "ratio", "flush s"
        )?;
        for disk in DISKS {
            for way in READ_WAYS {
                let s = self.flush(disk, way, PUBLISHED_PERCENT, true).seconds();
                let (idle, busy) = self.p99_us(disk, way);
                let (disk, way, ratio) = (disk.name(), way.name(), busy / idle);
                writeln!(out, "{disk:10} {way:10} {idle:11.0} {busy:12.0} {ratio:6.2} {s:9.2}")?;
            }
        }
        writeln!(out)
    }

    /// What is wanted, what there is, and whether less is better.
    fn goals(&self) -> Vec<(String, f64, f64)> {
        let published = |way| self.seconds(Disk::Published, way, PUBLISHED_PERCENT);
        let mut goals = vec![
            (
                "sorted, part of lru".to_owned(),
                1.0 / 2.25,
                published(Way::Sorted) / published(Way::Lru),
            ),
            ("gaps filled, seconds".to_owned(), 30.0, published(Way::GapFill)),
            ("gaps known, seconds".to_owned(), 16.0, published(Way::GapKnown)),
        ];
        for disk in DISKS {
            let name = disk.name();
            for fill in FILLS {
                let of = |way| self.seconds(disk, way, fill);
                let part = of(Way::GapFill) / of(Way::Sorted);
                goals.push((format!("{name}, {fill} %: gaps filled, part of sorted"), 1.02, part));
            }
            let (idle, busy) = self.p99_us(disk, Way::GapFill);
            goals.push((format!("{name}: p99 of reads, times idle"), 2.0, busy / idle));
            let steady = |way| self.steady(disk, way).writes_per_s;
            let part = steady(Way::Sorted) / steady(Way::GapFill);
            goals.push((
                format!("{name}: full cache, sorted as part of gaps filled"),
                1.0 / 0.9,
                part,
            ));
        }
        goals
    }

    fn print_goals(&self, out: &mut impl Write) -> io::Result<()> {
        for (what, most, is) in self.goals() {
            let verdict = match (self.divisor, is <= most) {
                (1, true) => "reached",
                (1, false) => "MISSED",
                (_, _) => "not judged at this scale",
            };
            writeln!(out, "goal: {what} <= {most:.2}: {is:.2}, {verdict}")?;
        }
        writeln!(out)
    }

    fn are_goals_reached(&self) -> bool {
        self.divisor > 1 || self.goals().iter().all(|(_, most, is)| is <= most)
    }

    fn json(&self) -> Value {
        let mut keys = Map::new();
        for disk in DISKS {
            let prefix = if disk == Disk::Textbook { "textbook_" } else { "" };
            let mut put =
                |name: String, value: Value| keys.insert(format!("{prefix}{name}"), value);
            put("bound_s".to_owned(), seconds(one_pass_s(self.scale, disk)));
            for way in WAYS {
                let (name, full) = (way.name(), self.flush(disk, way, PUBLISHED_PERCENT, false));
                put(format!("{name}_s"), seconds(full.seconds()));
                put(format!("{name}_ios"), json!(full.origin_writes));
                put(format!("{name}_mean_io_bytes"), json!(full.mean_io_bytes()));
                put(format!("{name}_write_bytes"), json!(full.origin_write_bytes));
                put(format!("{name}_read_bytes"), json!(full.origin_read_bytes));
                put(format!("{name}_origin_flushes"), json!(full.origin_flushes));
                for fill in FILLS.into_iter().filter(|&fill| fill != PUBLISHED_PERCENT) {
                    let s = self.seconds(disk, way, fill);
                    put(format!("{name}_{fill}_percent_s"), seconds(s));
                }
            }
            // The default way has the plain keys.
            for way in READ_WAYS {
                let (idle, busy) = self.p99_us(disk, way);
                let owner = match way {
                    Way::GapFill => String::new(),
                    Way::Lru | Way::Sorted | Way::GapKnown => format!("{}_", way.name()),
                };
                put(format!("{owner}foreground_p99_idle_us"), json!(idle.round()));
                put(format!("{owner}foreground_p99_flush_us"), json!(busy.round()));
            }
            for way in STEADY_WAYS {
                let steady = self.steady(disk, way);
                put(
                    format!("{}_steady_writes_per_s", way.name()),
                    json!(steady.writes_per_s.round()),
                );
                put(format!("{}_steady_p99_us", way.name()), json!(steady.p99_ns / 1000));
            }
        }
        Value::Object(keys)
    }
}

/// Milliseconds are enough for a key.
fn seconds(s: f64) -> Value {
    json!((s * 1e3).round() / 1e3)
}

fn main() -> ExitCode {
    let results = divisor().and_then(|divisor| run_all(divisor, &jobs()));
    let printed = results.and_then(|results| {
        let mut out = stdout().lock();
        let done = results.print(&mut out).and_then(|()| writeln!(out, "{}", results.json()));
        done.map_err(|e| e.to_string()).map(|()| results.are_goals_reached())
    });
    match printed {
        Ok(true) => ExitCode::SUCCESS,
        Ok(false) => {
            let _ = writeln!(stderr(), "bench-flush-sim: goals were missed");
            ExitCode::FAILURE
        }
        Err(e) => {
            let _ = writeln!(stderr(), "bench-flush-sim: {e}");
            ExitCode::FAILURE
        }
    }
}
