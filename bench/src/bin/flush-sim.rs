// SPDX-License-Identifier: Apache-2.0 OR MIT
//! `make bench-flush-sim`: how long the flush of a full write cache takes in virtual time, in
//! sorted and in LRU order, on two models of a rotating disk.
//!
//! The same arguments print the same bytes on every machine. What is calibrated and what is a
//! prediction: `docs/hdd-model.md`. Gap filling is not part of the engine yet, so its keys are not
//! in the JSON line.
use std::io::{self, Write, stderr, stdout};
use std::process::ExitCode;
use std::sync::Mutex;
use std::thread::{available_parallelism, scope};

use bench::clock;
use bench::flush_sim::{
    BLOCK_BYTES, Case, Disk, Order, Outcome, Scale, one_pass_s, percentile, run,
};
use serde_json::{Map, Value, json};

const USAGE: &str = "usage: flush-sim [--scale N]   sizes of the published run, divided by N";
const DISKS: [Disk; 2] = [Disk::Published, Disk::Textbook];
const ORDERS: [Order; 2] = [Order::Sorted, Order::Lru];
/// Fill levels below the calibrated one, per cent of the cache.
const PARTLY: [u64; 3] = [10, 25, 50];

/// What the published run took.
fn published_s(order: Order) -> f64 {
    match order {
        Order::Sorted => 44.0,
        Order::Lru => 99.2,
    }
}

fn scale() -> Result<Scale, String> {
    let mut words = std::env::args().skip(1);
    let divisor = match (words.next().as_deref(), words.next(), words.next()) {
        (None, _, _) => Some(1),
        (Some("--scale"), Some(by), None) => by.parse().ok().filter(|by| (1..=512).contains(by)),
        _ => None,
    };
    divisor.map(Scale::divided).ok_or_else(|| format!("N is 1 to 512; {USAGE}"))
}

fn cases() -> Vec<Case> {
    let mut cases = Vec::new();
    for disk in DISKS {
        for order in ORDERS {
            let full = Case { disk, order, fill_percent: 100, reader: false };
            cases.extend([full, Case { reader: true, ..full }]);
            cases.extend(PARTLY.map(|fill_percent| Case { fill_percent, ..full }));
        }
    }
    cases
}

/// All outcomes, in the order of the cases; each run is a world of its own, so they run side by
/// side.
fn run_all(scale: Scale, cases: &[Case]) -> Result<Results, String> {
    let threads = available_parallelism().map_or(1, usize::from).min(4);
    let outcomes: Vec<Mutex<Option<Outcome>>> = cases.iter().map(|_| Mutex::new(None)).collect();
    let next = Mutex::new(0);
    let work = || -> Result<(), String> {
        loop {
            let number = {
                let mut next = next.lock().map_err(|e| e.to_string())?;
                *next += 1;
                *next - 1
            };
            let Some(&case) = cases.get(number) else { return Ok(()) };
            let start = clock();
            let outcome = run(scale, case)?;
            let (took_s, s) = (clock() - start, outcome.seconds());
            let Case { disk, order, fill_percent, .. } = case;
            let reader = if case.reader { ", with a reader" } else { "" };
            let _ = writeln!(
                stderr(),
                "run {} of {}: {}, {}, {fill_percent} % full{reader}: {s:.2} s in {took_s:.1} s",
                number + 1,
                cases.len(),
                disk.name(),
                order.name(),
            );
            *outcomes[number].lock().map_err(|e| e.to_string())? = Some(outcome);
        }
    };
    scope(|s| {
        let workers: Vec<_> = (0..threads).map(|_| s.spawn(work)).collect();
        workers.into_iter().try_for_each(|w| w.join().map_err(|_| "a run has panicked")?)
    })?;
    let found = outcomes.into_iter().filter_map(|o| o.into_inner().ok().flatten());
    Ok(Results { scale, rows: cases.iter().copied().zip(found).collect() })
}

struct Results {
    scale: Scale,
    rows: Vec<(Case, Outcome)>,
}

impl Results {
    fn of(&self, disk: Disk, order: Order, fill_percent: u64, reader: bool) -> &Outcome {
        let wanted = |c: &Case| {
            (c.disk, c.order, c.fill_percent, c.reader) == (disk, order, fill_percent, reader)
        };
        let row = self.rows.iter().find(|(case, _)| wanted(case));
        &row.expect("cases() has every combination that is asked for").1
    }

    fn full(&self, disk: Disk, order: Order) -> &Outcome {
        self.of(disk, order, 100, false)
    }

    fn print(&self, out: &mut impl Write) -> io::Result<()> {
        let Scale { origin_blocks, cache_blocks } = self.scale;
        let mib = |blocks: u64| (blocks * BLOCK_BYTES) as f64 / f64::from(1 << 20);
        writeln!(
            out,
            "Virtual time. A cache full of random dirty 4 KiB blocks ({cache_blocks} blocks, {:.1} \
             MiB), over {:.0} MiB, one `flush`.",
            mib(cache_blocks),
            mib(origin_blocks),
        )?;
        writeln!(
            out,
            "Each block was written once; cache on an NVMe model, origin on a 7200 rpm model: \
             docs/hdd-model.md.\n"
        )?;
        self.print_full(out)?;
        self.print_partly(out)?;
        self.print_reader(out)
    }

    fn print_full(&self, out: &mut impl Write) -> io::Result<()> {
        writeln!(
            out,
            "{:10} {:7} {:>8} {:>7} {:>11} {:>12} {:>8} {:>10} {:>7}",
            "HDD model",
            "order",
            "seconds",
            "MiB/s",
            "origin I/Os",
            "bytes an I/O",
            "flushes",
            "measured s",
            "error"
        )?;
        for disk in DISKS {
            for order in ORDERS {
                let o = self.full(disk, order);
                write!(
                    out,
                    "{:10} {:7} {:8.2} {:7.2} {:11} {:12} {:8}",
                    disk.name(),
                    order.name(),
                    o.seconds(),
                    o.mib_per_s(),
                    o.origin_writes,
                    o.mean_io_bytes(),
                    o.origin_flushes
                )?;
                if self.is_published_run(disk) {
                    let (was, error) = (published_s(order), self.error_percent(order));
                    write!(out, " {was:10.1} {error:+5.1} %  calibrated")?;
                }
                writeln!(out)?;
            }
            let bound_s = one_pass_s(self.scale, disk);
            let (ratio, share) = (self.ratio(disk), self.full(disk, Order::Sorted).seconds());
            write!(out, "{:10} sorted is {ratio:.2} times as fast", "")?;
            if self.is_published_run(disk) {
                write!(out, " (measured: 2.25)")?;
            }
            writeln!(
                out,
                "; one pass over the origin: {bound_s:.1} s, {:.2} of it",
                bound_s / share
            )?;
        }
        writeln!(out)
    }

    /// Only at the published sizes there is something to compare with.
    fn is_published_run(&self, disk: Disk) -> bool {
        disk == Disk::Published && self.scale.cache_blocks == Scale::PUBLISHED.cache_blocks
    }

    fn error_percent(&self, order: Order) -> f64 {
        (self.full(Disk::Published, order).seconds() / published_s(order) - 1.0) * 100.0
    }

    fn ratio(&self, disk: Disk) -> f64 {
        self.full(disk, Order::Lru).seconds() / self.full(disk, Order::Sorted).seconds()
    }

    fn print_partly(&self, out: &mut impl Write) -> io::Result<()> {
        writeln!(out, "Prediction (only the full cache is calibrated): cache partly full")?;
        writeln!(
            out,
            "{:10} {:>7} {:>9} {:>9} {:>6}",
            "HDD model", "full", "sorted s", "lru s", "ratio"
        )?;
        for disk in DISKS {
            for fill in PARTLY {
                let seconds = |order| self.of(disk, order, fill, false).seconds();
                let (sorted, lru) = (seconds(Order::Sorted), seconds(Order::Lru));
                let (name, ratio) = (disk.name(), lru / sorted);
                writeln!(out, "{name:10} {fill:5} % {sorted:9.2} {lru:9.2} {ratio:6.2}")?;
            }
        }
        writeln!(out)
    }

    fn print_reader(&self, out: &mut impl Write) -> io::Result<()> {
        writeln!(
            out,
            "Prediction: a reader of random blocks, 25 a second, beside the flush of the full cache"
        )?;
        writeln!(
            out,
            "{:10} {:7} {:>11} {:>12} {:>6} {:>9}",
            "HDD model", "order", "p99 idle us", "p99 flush us", "ratio", "flush s"
        )?;
        let us = |v: Option<u64>| v.map_or_else(|| "-".to_owned(), |v| v.to_string());
        for disk in DISKS {
            for order in ORDERS {
                let o = self.of(disk, order, 100, true);
                let (idle, busy) = (p99_us(&o.idle_read_ns), p99_us(&o.flush_read_ns));
                let ratio =
                    idle.zip(busy).map_or(f64::NAN, |(idle, busy)| busy as f64 / idle as f64);
                let (name, order, s) = (disk.name(), order.name(), o.seconds());
                let (idle, busy) = (us(idle), us(busy));
                writeln!(out, "{name:10} {order:7} {idle:>11} {busy:>12} {ratio:6.2} {s:9.2}")?;
            }
        }
        writeln!(out)
    }

    fn json(&self) -> Value {
        let mut keys = Map::new();
        for disk in DISKS {
            let prefix = if disk == Disk::Textbook { "textbook_" } else { "" };
            let mut put =
                |name: String, value: Value| keys.insert(format!("{prefix}{name}"), value);
            put("bound_s".to_owned(), seconds(one_pass_s(self.scale, disk)));
            let idle = p99_us(&self.of(disk, Order::Sorted, 100, true).idle_read_ns);
            put("foreground_p99_idle_us".to_owned(), json!(idle));
            for order in ORDERS {
                let (name, full) = (order.name(), self.full(disk, order));
                put(format!("{name}_s"), seconds(full.seconds()));
                put(format!("{name}_ios"), json!(full.origin_writes));
                put(format!("{name}_mean_io_bytes"), json!(full.mean_io_bytes()));
                put(format!("{name}_origin_flushes"), json!(full.origin_flushes));
                for fill in PARTLY {
                    let s = self.of(disk, order, fill, false).seconds();
                    put(format!("{name}_{fill}_percent_full_s"), seconds(s));
                }
                let p99 = p99_us(&self.of(disk, order, 100, true).flush_read_ns);
                let owner = if order == Order::Sorted { "" } else { "lru_" };
                put(format!("{owner}foreground_p99_flush_us"), json!(p99));
            }
        }
        Value::Object(keys)
    }
}

fn p99_us(sorted_ns: &[u64]) -> Option<u64> {
    percentile(sorted_ns, 99).map(|ns| ns / 1000)
}

/// Milliseconds are enough for a key.
fn seconds(s: f64) -> Value {
    json!((s * 1e3).round() / 1e3)
}

fn main() -> ExitCode {
    let results = scale().and_then(|scale| run_all(scale, &cases()));
    let printed = results.and_then(|results| {
        let mut out = stdout().lock();
        let done = results.print(&mut out).and_then(|()| writeln!(out, "{}", results.json()));
        done.map_err(|e| e.to_string())
    });
    match printed {
        Ok(()) => ExitCode::SUCCESS,
        Err(e) => {
            let _ = writeln!(stderr(), "bench-flush-sim: {e}");
            ExitCode::FAILURE
        }
    }
}
