// SPDX-License-Identifier: Apache-2.0 OR MIT
//! `make bench-nbd`: 4 KiB random reads and writes over NBD, ours beside nbdkit and
//! qemu-storage-daemon, in one run, alternating.
//!
//! Two clients: fio, and a lean one of ours, `millpond bench --uri`. All servers run on one CPU and
//! all clients on another. The JSON keys of `*_iops` and `*_cpu_us_per_io` without another word are
//! of the lean client and memory.
use std::io::{self, Write, stderr, stdout};
use std::path::PathBuf;
use std::process::ExitCode;

use bench::peers::Ground;
use bench::peers::client::{Client, Job, Run, Until, run};
use bench::peers::serve::{FILL, Group, Served};
use reproduce::cpu::{cpus, pin};
use reproduce::median::{median, spread_percent};
use serde_json::{Map, Value, json};

const USAGE: &str = "usage: nbd [--rounds N] [--seconds S] [--size-mib N] [--ours PROGRAM] \
                     [--dir DIR]";

struct Args {
    rounds: usize,
    seconds: f64,
    size: u64,
    ours: PathBuf,
    dir: PathBuf,
}

fn args() -> Result<Args, String> {
    let here = std::env::current_exe().map_err(|e| e.to_string())?;
    let mut args = Args {
        rounds: 3,
        seconds: 0.7,
        size: 256 << 20,
        ours: here.with_file_name("millpond"),
        dir: std::env::temp_dir(),
    };
    let mut words = std::env::args().skip(1);
    while let Some(flag) = words.next() {
        let value = words.next().ok_or(USAGE)?;
        let bad = || format!("{flag} {value}: not understood; {USAGE}");
        match &flag[..] {
            "--rounds" => args.rounds = value.parse().map_err(|_| bad())?,
            "--seconds" => args.seconds = value.parse().map_err(|_| bad())?,
            "--size-mib" => args.size = value.parse::<u64>().map_err(|_| bad())? << 20,
            "--ours" => args.ours = value.into(),
            "--dir" => args.dir = value.into(),
            _ => return Err(bad()),
        }
    }
    if !args.ours.exists() {
        let ours = args.ours.display();
        return Err(format!(
            "{ours}: not there; build it first: cargo build --release -p millpond"
        ));
    }
    Ok(args)
}

#[derive(Clone, Copy, PartialEq, Eq)]
enum By {
    Lean,
    Fio,
}

impl By {
    fn name(self) -> &'static str {
        match self {
            By::Lean => "lean",
            By::Fio => "fio",
        }
    }
}

/// Who serves, as in the JSON keys.
const NAMES: [&str; 3] = ["ours", "nbdkit", "qsd"];
const BACKINGS: [Group; 2] = [Group::Memory, Group::File];
/// How long fio runs.
const FIO_S: f64 = 1.0;

/// One cell of the table: what is measured, and the runs of each server.
struct Cell {
    backing: Group,
    by: By,
    job: Job,
    runs: [Vec<Run>; NAMES.len()],
}

impl Cell {
    fn median(&self, nth: usize, field: impl Fn(&Run) -> f64) -> f64 {
        let runs: Vec<f64> = self.runs[nth].iter().map(field).collect();
        median(&runs)
    }
}

/// qemu-storage-daemon has no memory: it serves its null device, which does less.
fn start(backing: Group, who: &'static str, ground: &Ground) -> Result<Served, String> {
    let group = if (backing, who) == (Group::Memory, "qsd") { Group::Null } else { backing };
    Served::start(group, who, ground)
}

fn measure(served: &Served, cell: &Cell, args: &Args) -> Result<Run, String> {
    let (client, seconds) = match cell.by {
        By::Lean => (Client::Lean(&args.ours), args.seconds),
        By::Fio => (Client::Fio, FIO_S),
    };
    run(client, served, &cell.job, Until::Time(seconds))
}

fn cells() -> Vec<Cell> {
    let mut cells = Vec::new();
    let parts = [(Group::Memory, By::Lean), (Group::Memory, By::Fio), (Group::File, By::Lean)];
    for (backing, by) in parts {
        for rw in ["randread", "randwrite"] {
            for depth in [1, 16, 64] {
                let job = Job { rw, kib: 4, depth, connections: 1 };
                cells.push(Cell { backing, by, job, runs: Default::default() });
            }
        }
    }
    cells
}

fn table(out: &mut impl Write, cells: &[Cell]) -> io::Result<()> {
    writeln!(out, "{:32} {:>29} {:>29} {:>29} {:>17}", "4 KiB", "ours", "nbdkit", "qsd", "ours /")?;
    write!(out, "{:32}", "backing client op depth")?;
    for _ in NAMES {
        write!(out, " {:>9} {:>7} {:>5} {:>5}", "IOPS", "p99 us", "CPU", "+-%")?;
    }
    writeln!(out, " {:>8} {:>8}", "nbdkit", "qsd")?;
    for cell in cells {
        let what = [cell.backing.key(), cell.by.name(), cell.job.rw].join(" ");
        write!(out, "{what:28} {:3}", cell.job.depth)?;
        for nth in 0..NAMES.len() {
            let iops: Vec<f64> = cell.runs[nth].iter().map(|r| r.iops).collect();
            let (p99, cpu) = (cell.median(nth, |r| r.p99_us), cell.median(nth, |r| r.cpu_us));
            let spread = spread_percent(&iops);
            write!(out, " {:9.0} {p99:7.0} {cpu:5.2} {spread:5.0}", median(&iops))?;
        }
        let iops = |nth| cell.median(nth, |r| r.iops);
        writeln!(out, " {:8.2} {:8.2}", iops(0) / iops(1), iops(0) / iops(2))?;
    }
    Ok(())
}

/// Keys of the last line; what could not be measured is null.
fn summary(cells: &[Cell], errors: Vec<Value>) -> Value {
    let mut out = Map::new();
    for cell in cells {
        let mut prefix = String::new();
        if cell.by == By::Fio {
            prefix.push_str("fio_");
        }
        if cell.backing == Group::File {
            prefix.push_str("file_");
        }
        for (nth, name) in NAMES.into_iter().enumerate() {
            let cell_key = format!("{prefix}{}_qd{}", cell.job.rw, cell.job.depth);
            let key = |what: &str| format!("{name}_{cell_key}_{what}");
            let cpu = cell.median(nth, |r| r.cpu_us);
            out.insert(key("iops"), json!(cell.median(nth, |r| r.iops).round()));
            out.insert(key("cpu_us_per_io"), json!(cpu));
            out.insert(key("p99_us"), json!(cell.median(nth, |r| r.p99_us)));
            if cell_key == "randread_qd64" {
                out.insert(format!("{name}_cpu_us_per_io"), json!(cpu));
            }
        }
    }
    out.insert("errors".into(), Value::Array(errors));
    Value::Object(out)
}

fn bench(args: &Args) -> Result<(), String> {
    let allowed = cpus();
    let (server_cpu, client_cpu) = match allowed[..] {
        [first, second, ..] => (first, second),
        _ => return Err("needs two CPUs: one for the servers, one for the clients".into()),
    };
    let folder = || tempfile::Builder::new().prefix("millpond-bench-nbd-").tempdir_in(&args.dir);
    let dir = folder().map_err(|e| format!("{}: {e}", args.dir.display()))?;
    let ground = Ground {
        dir: dir.path().to_owned(),
        memory_dir: dir.path().to_owned(),
        ours: args.ours.clone(),
        cpu: server_cpu,
        bytes: args.size,
    };
    let mut errors = Vec::new();
    let mut peers = Vec::new();
    for backing in BACKINGS {
        for who in NAMES {
            match start(backing, who, &ground) {
                Ok(served) => peers.push((backing, served)),
                Err(e) => errors.push(format!("{who} {}: {e}", backing.key())),
            }
        }
    }
    pin(client_cpu).map_err(|e| format!("cannot pin to CPU {client_cpu}: {e}"))?;
    for (_, served) in peers.iter().filter(|(backing, _)| *backing == Group::Memory) {
        run(Client::Lean(&args.ours), served, &FILL, Until::Written(served.bytes))?;
    }
    let mut cells = cells();
    for round in 0..args.rounds {
        for cell in &mut cells {
            for turn in 0..NAMES.len() {
                let nth = (turn + round) % NAMES.len();
                let fits = |p: &&(Group, Served)| p.0 == cell.backing && p.1.who == NAMES[nth];
                let Some((_, served)) = peers.iter().find(fits) else { continue };
                match measure(served, cell, args) {
                    Ok(run) => cell.runs[nth].push(run),
                    Err(e) => errors.push(format!("{}: {e}", NAMES[nth])),
                }
            }
        }
        errors.dedup();
        let _ = writeln!(stderr(), "round {} of {} done", round + 1, args.rounds);
    }
    let what: Vec<&str> = peers.iter().map(|(_, p)| &p.what[..]).collect();
    let mut out = stdout().lock();
    let errors: Vec<Value> = errors.into_iter().map(Value::from).collect();
    let mut print = || {
        writeln!(out, "served: {}", what.join(", "))?;
        writeln!(
            out,
            "servers on CPU {server_cpu}, clients on CPU {client_cpu}; median of {} runs of \
             {} s (fio {FIO_S} s); CPU: server's microseconds a request\n",
            args.rounds, args.seconds
        )?;
        table(&mut out, &cells)?;
        for error in &errors {
            writeln!(out, "not measured: {error}")?;
        }
        writeln!(out, "{}", summary(&cells, errors.clone()))
    };
    let printed = print().map_err(|e| e.to_string());
    drop(peers);
    printed
}

fn main() -> ExitCode {
    let done = args().and_then(|args| bench(&args));
    match done {
        Ok(()) => ExitCode::SUCCESS,
        Err(e) => {
            let _ = writeln!(stderr(), "bench-nbd: {e}");
            ExitCode::FAILURE
        }
    }
}
