// SPDX-License-Identifier: Apache-2.0 OR MIT
//! `make bench-nbd`: 4 KiB random reads and writes over NBD, ours beside nbdkit and
//! qemu-storage-daemon, in one run, alternating.
//!
//! Two clients: fio, and a lean one of ours (`bench::load`). All servers run on one CPU and all
//! clients on another. The JSON keys of `*_iops` and `*_cpu_us_per_io` without another word are
//! of the lean client and memory.
use std::io::{self, Write, stderr, stdout};
use std::path::{Path, PathBuf};
use std::process::{Command, ExitCode};

use bench::load::{Client, Kind};
use bench::peer::{Backing, EXPORT, NAMES, Name, Peer};
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

/// One cell of the table: what is measured, and the runs of each server.
struct Cell {
    backing: Backing,
    by: By,
    kind: Kind,
    depth: usize,
    runs: [Vec<Run>; NAMES.len()],
}

#[derive(Clone, Copy)]
struct Run {
    iops: f64,
    cpu_us: f64,
    p99_us: f64,
}

impl Cell {
    fn median(&self, name: Name, field: impl Fn(&Run) -> f64) -> f64 {
        let runs: Vec<f64> = self.runs[name as usize].iter().map(field).collect();
        median(&runs)
    }
}

fn fio(socket: &Path, kind: Kind, depth: usize, size: u64) -> Result<(f64, f64, f64), String> {
    let uri = format!("--uri=nbd+unix:///{EXPORT}?socket={}", socket.display());
    let output = Command::new("fio")
        .args(["--name=bench", "--ioengine=nbd", "--bs=4k", "--time_based", "--runtime=1"])
        .args(["--output-format=json", &uri, &format!("--rw={}", kind.name())])
        .args([format!("--iodepth={depth}"), format!("--size={size}")])
        .output()
        .map_err(|e| format!("fio: {e}"))?;
    // Before the JSON stands what the engine has to say.
    let begin = output.stdout.iter().position(|b| *b == b'{').unwrap_or(0);
    let parsed: Value = serde_json::from_slice(&output.stdout[begin..]).unwrap_or_default();
    let side = match kind {
        Kind::RandRead => &parsed["jobs"][0]["read"],
        Kind::RandWrite => &parsed["jobs"][0]["write"],
    };
    let number = |v: &Value| v.as_f64().ok_or("fio: no result");
    let p99_ns = number(&side["clat_ns"]["percentile"]["99.000000"])?;
    Ok((number(&side["iops"])?, number(&side["total_ios"])?, p99_ns / 1e3))
}

fn measure(peer: &Peer, cell: &Cell, args: &Args) -> Result<Run, String> {
    let failed = |e: io::Error| format!("{}: {e}", peer.what);
    let before = peer.server.cpu_seconds();
    let (iops, ios, p99_us) = match cell.by {
        By::Lean => {
            let mut client = Client::connect(&peer.socket, EXPORT).map_err(failed)?;
            let done = client.run(cell.kind, cell.depth, args.seconds).map_err(failed)?;
            let p99_ns = done.latency_ns.value_at_quantile(0.99);
            (done.iops, done.ios as f64, p99_ns as f64 / 1e3)
        }
        By::Fio => fio(&peer.socket, cell.kind, cell.depth, args.size)?,
    };
    let cpu_us = (peer.server.cpu_seconds() - before) * 1e6 / ios;
    Ok(Run { iops, cpu_us, p99_us })
}

fn cells() -> Vec<Cell> {
    let mut cells = Vec::new();
    let parts =
        [(Backing::Memory, By::Lean), (Backing::Memory, By::Fio), (Backing::File, By::Lean)];
    for (backing, by) in parts {
        for kind in [Kind::RandRead, Kind::RandWrite] {
            for depth in [1, 16, 64] {
                cells.push(Cell { backing, by, kind, depth, runs: Default::default() });
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
        let what = [cell.backing.name(), cell.by.name(), cell.kind.name()].join(" ");
        write!(out, "{what:28} {:3}", cell.depth)?;
        for name in NAMES {
            let iops: Vec<f64> = cell.runs[name as usize].iter().map(|r| r.iops).collect();
            let (p99, cpu) = (cell.median(name, |r| r.p99_us), cell.median(name, |r| r.cpu_us));
            let spread = spread_percent(&iops);
            write!(out, " {:9.0} {p99:7.0} {cpu:5.2} {spread:5.0}", median(&iops))?;
        }
        let iops = |name| cell.median(name, |r| r.iops);
        let ours = iops(Name::Ours);
        writeln!(out, " {:8.2} {:8.2}", ours / iops(Name::Nbdkit), ours / iops(Name::Qsd))?;
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
        if cell.backing == Backing::File {
            prefix.push_str("file_");
        }
        for name in NAMES {
            let cell_key = format!("{prefix}{}_qd{}", cell.kind.name(), cell.depth);
            let key = |what: &str| format!("{}_{cell_key}_{what}", name.key());
            let cpu = cell.median(name, |r| r.cpu_us);
            out.insert(key("iops"), json!(cell.median(name, |r| r.iops).round()));
            out.insert(key("cpu_us_per_io"), json!(cpu));
            out.insert(key("p99_us"), json!(cell.median(name, |r| r.p99_us)));
            if cell_key == "randread_qd64" {
                out.insert(format!("{}_cpu_us_per_io", name.key()), json!(cpu));
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
    let dir = args.dir.join(format!("millpond-bench-nbd-{}", std::process::id()));
    let mut errors = Vec::new();
    let mut peers = Vec::new();
    for backing in [Backing::Memory, Backing::File] {
        for name in NAMES {
            match Peer::start(name, backing, args.size, (&dir, &args.ours, server_cpu)) {
                Ok(peer) => peers.push((backing, peer)),
                Err(e) => errors.push(format!("{} {}: {e}", name.key(), backing.name())),
            }
        }
    }
    pin(client_cpu).map_err(|e| format!("cannot pin to CPU {client_cpu}: {e}"))?;
    for (_, peer) in peers.iter().filter(|(backing, _)| *backing == Backing::Memory) {
        let fill = Client::connect(&peer.socket, EXPORT);
        let filled = fill.and_then(|mut client| client.write_all(&vec![0x5a; 1 << 20]));
        filled.map_err(|e| format!("{}: {e}", peer.what))?;
    }
    let mut cells = cells();
    for round in 0..args.rounds {
        for cell in &mut cells {
            for turn in 0..NAMES.len() {
                let name = NAMES[(turn + round) % NAMES.len()];
                let fits = |p: &&(Backing, Peer)| p.0 == cell.backing && p.1.name == name;
                let Some((_, peer)) = peers.iter().find(fits) else { continue };
                match measure(peer, cell, args) {
                    Ok(run) => cell.runs[name as usize].push(run),
                    Err(e) => errors.push(format!("{}: {e}", name.key())),
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
             {} s (fio 1 s); CPU: server's microseconds a request\n",
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
    let _ = std::fs::remove_dir_all(&dir);
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
