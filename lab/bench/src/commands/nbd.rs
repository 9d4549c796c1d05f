// SPDX-License-Identifier: Apache-2.0 OR MIT
//! `make bench-nbd`: 4 KiB random reads and writes over NBD, ours beside nbdkit and
//! qemu-storage-daemon, in one run, alternating.
//!
//! Two clients: fio, and a lean one of ours, `loadgen --uri`. All servers run on one CPU and
//! all clients on another. The JSON keys of `*_iops` and `*_cpu_us_per_io` without another word are
//! of the lean client and memory.
use std::io::{self, Write, stderr, stdout};
use std::process::ExitCode;

use bench::output::{Dir, ProgramOption, ended, positive};
use bench::peers::TestBed;
use bench::peers::client::{Client, Job, Run, RunLength, run};
use bench::peers::serve::{FILL, Group, Served};
use reproduce::cpu::{cpus, pin};
use reproduce::median::{median, median_of, spread_percent};
use serde_json::{Map, Value, json};

/// Compares our NBD server with nbdkit and qemu-storage-daemon, in turns
#[derive(Debug, clap::Args)]
#[command(after_help = "\
Examples:
  make bench-nbd
  make bench-nbd ARGS='--rounds 5 --seconds 2'")]
pub(crate) struct Args {
    #[command(flatten)]
    dir: Dir,
    #[command(flatten)]
    ours: ProgramOption,
    /// How often everything is run
    #[arg(long, default_value_t = 3, value_parser = clap::value_parser!(u16).range(1..))]
    rounds: u16,
    /// Seconds of each run of the lean client
    #[arg(long, default_value_t = 0.7, value_parser = positive)]
    seconds: f64,
    /// Size of each device in MiB
    #[arg(long, default_value_t = 256, value_parser = clap::value_parser!(u64).range(1..1 << 20))]
    size_mib: u64,
}

#[derive(Clone, Copy, PartialEq, Eq)]
enum LoadClient {
    Lean,
    Fio,
}

impl LoadClient {
    fn name(self) -> &'static str {
        match self {
            LoadClient::Lean => "lean",
            LoadClient::Fio => "fio",
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
    client: LoadClient,
    job: Job,
    runs: [Vec<Run>; NAMES.len()],
}

impl Cell {
    fn median(&self, nth: usize, field: impl Fn(&Run) -> f64) -> f64 {
        median_of(&self.runs[nth], field)
    }
}

/// qemu-storage-daemon has no memory: it serves its null device, which does less.
fn start(backing: Group, who: &'static str, test_bed: &TestBed) -> Result<Served, String> {
    let group = if (backing, who) == (Group::Memory, "qsd") { Group::Null } else { backing };
    Served::start(group, who, test_bed)
}

fn measure(served: &Served, cell: &Cell, seconds: f64) -> Result<Run, String> {
    let (client, seconds) = match cell.client {
        LoadClient::Lean => (Client::Lean, seconds),
        LoadClient::Fio => (Client::Fio, FIO_S),
    };
    run(client, served, &cell.job, RunLength::Time(seconds))
}

fn cells() -> Vec<Cell> {
    let mut cells = Vec::new();
    let parts = [
        (Group::Memory, LoadClient::Lean),
        (Group::Memory, LoadClient::Fio),
        (Group::File, LoadClient::Lean),
    ];
    for (backing, client) in parts {
        for rw in ["randread", "randwrite"] {
            for depth in [1, 16, 64] {
                let job = Job { rw, kib: 4, depth, connections: 1 };
                cells.push(Cell { backing, client, job, runs: Default::default() });
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
        let what = [cell.backing.key(), cell.client.name(), cell.job.rw].join(" ");
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
        if cell.client == LoadClient::Fio {
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
    let folder =
        || tempfile::Builder::new().prefix("millpond-bench-nbd-").tempdir_in(&args.dir.dir);
    let dir = folder().map_err(|e| format!("{}: {e}", args.dir.dir.display()))?;
    let test_bed = TestBed {
        dir: dir.path().to_owned(),
        memory_dir: dir.path().to_owned(),
        ours: args.ours.program()?,
        cpus: vec![server_cpu],
        bytes: args.size_mib << 20,
    };
    let mut errors = Vec::new();
    let mut peers = Vec::new();
    for backing in BACKINGS {
        for who in NAMES {
            match start(backing, who, &test_bed) {
                Ok(served) => peers.push((backing, served)),
                Err(e) => errors.push(format!("{who} {}: {e}", backing.key())),
            }
        }
    }
    pin(client_cpu).map_err(|e| format!("cannot pin to CPU {client_cpu}: {e}"))?;
    for (_, served) in peers.iter().filter(|(backing, _)| *backing == Group::Memory) {
        run(Client::Lean, served, &FILL, RunLength::Written(served.bytes))?;
    }
    let mut cells = cells();
    for round in 0..usize::from(args.rounds) {
        for cell in &mut cells {
            for turn in 0..NAMES.len() {
                let nth = (turn + round) % NAMES.len();
                let fits = |p: &&(Group, Served)| p.0 == cell.backing && p.1.who == NAMES[nth];
                let Some((_, served)) = peers.iter().find(fits) else { continue };
                match measure(served, cell, args.seconds) {
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

pub(crate) fn main(args: &Args) -> ExitCode {
    ended("nbd", bench(args))
}
