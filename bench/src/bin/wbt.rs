// SPDX-License-Identifier: Apache-2.0 OR MIT
//! `make bench-wbt`: on this machine's disk, a reader by the clock beside a heavy buffered writer,
//! with writeback throttling off, as the kernel's, and by the tail of the reads.
//!
//! One file: `reader` is a linear device on its first half, `writer` a `buffered` one over a linear
//! one on the other half. Both are driven in process; with `--through daemon` over NBD, where two
//! CPUs have more to do than the disk. All loads alternate within a round; percentiles and
//! rates are the medians of the rounds', so that one stall of the machine does not decide.
use std::io::{self, Write, stderr, stdout};
use std::path::{Path, PathBuf};
use std::process::{Command, ExitCode};

use bench::beside::{self, Load};
use bench::process::Server;
use hdrhistogram::Histogram;
use reproduce::beside_local::{Local, While};
use reproduce::clock;
use reproduce::cpu::{cpus, pin};
use reproduce::median::{median, spread_percent};
use serde_json::{Map, Value, json};

const USAGE: &str = "usage: wbt [--rounds N] [--seconds S] [--warm-up S] [--rates R,R,...] \
                     [--size-mib N] [--memory-mib N] [--through process|daemon] [--ours PROGRAM] \
                     [--dir DIR]";
const MIB: u64 = 1 << 20;
const GIB: f64 = (1_u64 << 30) as f64;
/// Of this model are the figures: the disk of this machine.
const MODEL: &str = "disk";

struct Args {
    rounds: usize,
    seconds: f64,
    warm_up: f64,
    rates: Vec<f64>,
    size_mib: u64,
    memory_mib: u64,
    daemon: bool,
    ours: PathBuf,
    dir: PathBuf,
}

fn args() -> Result<Args, String> {
    let here = std::env::current_exe().map_err(|e| e.to_string())?;
    let mut args = Args {
        rounds: 5,
        seconds: 2.5,
        warm_up: 1.0,
        rates: vec![500.0],
        size_mib: 2048,
        memory_mib: 256,
        daemon: false,
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
            "--warm-up" => args.warm_up = value.parse().map_err(|_| bad())?,
            "--rates" => {
                let rates = value.split(',').map(str::parse).collect::<Result<_, _>>();
                args.rates = rates.map_err(|_| bad())?;
            }
            "--size-mib" => args.size_mib = value.parse().map_err(|_| bad())?,
            "--memory-mib" => args.memory_mib = value.parse().map_err(|_| bad())?,
            "--through" if ["process", "daemon"].contains(&&value[..]) => {
                args.daemon = value == "daemon";
            }
            "--ours" => args.ours = value.into(),
            "--dir" => args.dir = value.into(),
            _ => return Err(bad()),
        }
    }
    if args.daemon && !args.ours.exists() {
        let ours = args.ours.display();
        return Err(format!(
            "{ours}: not there; build it first: cargo build --release -p millpond"
        ));
    }
    let positive = |n: f64| n > 0.0 && n.is_finite();
    if args.rounds == 0 || !positive(args.seconds) || !args.rates.iter().all(|r| positive(*r)) {
        return Err(format!("rounds, seconds and rates are above 0; {USAGE}"));
    }
    if args.size_mib < 16 || !args.size_mib.is_multiple_of(2) || args.warm_up < 0.0 {
        return Err(format!(
            "the size is at least 16 and even, warming up takes no time back; {USAGE}"
        ));
    }
    Ok(args)
}

/// What throttles writeback at the leaf.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
enum Wbt {
    Off,
    Kernel,
    Tail,
}

const MODES: [Wbt; 3] = [Wbt::Off, Wbt::Kernel, Wbt::Tail];

impl Wbt {
    fn key(self) -> &'static str {
        match self {
            Wbt::Off => "off",
            Wbt::Kernel => "kernel",
            Wbt::Tail => "tail",
        }
    }
}

/// What was seen of one mode.
struct Seen {
    alone_bytes_per_s: Vec<f64>,
    /// For each rate.
    beside: Vec<Beside>,
}

struct Beside {
    /// Of each round.
    latency_ns: Vec<Histogram<u64>>,
    bytes_per_s: Vec<f64>,
}

struct Results {
    /// The reader alone, for each rate, of each round.
    alone: Vec<Vec<Histogram<u64>>>,
    /// By [`MODES`].
    modes: Vec<Seen>,
    stats: Vec<String>,
}

/// Where both devices are.
enum Place<'a> {
    Process(Local),
    Daemon(Pond<'a>),
}

impl Place<'_> {
    fn attribute(&self, name: &str) -> Result<String, String> {
        match self {
            Place::Process(local) => local.get(name),
            Place::Daemon(pond) => pond.said(&["get", &pond.leaf.to_string_lossy(), name]),
        }
    }

    fn set_attribute(&self, name: &str, value: &str) -> Result<(), String> {
        match self {
            Place::Process(local) => local.set(name, value),
            Place::Daemon(pond) => {
                pond.said(&["set", &pond.leaf.to_string_lossy(), name, value]).map(drop)
            }
        }
    }

    fn set(&self, wbt: Wbt) -> Result<(), String> {
        match wbt {
            Wbt::Off => self.set_attribute("queue/wbt_lat_usec", "0"),
            Wbt::Kernel | Wbt::Tail => {
                self.set_attribute("queue/wbt_mode", wbt.key())?;
                self.set_attribute("queue/wbt_lat_usec", "-1")
            }
        }
    }

    fn run(
        &self,
        args: &Args,
        reader: Option<f64>,
        writes: bool,
        seed: usize,
    ) -> Result<While, String> {
        let seed = 0x9e37_79b9_7f4a_7c15_u64.wrapping_mul(seed as u64 + 1);
        let time = (args.warm_up, args.seconds);
        match self {
            Place::Process(local) => local.run(reader, writes, time, seed),
            Place::Daemon(pond) => beside::run(&Load {
                socket: &pond.socket,
                reader: reader.map(|rate| ("reader", rate)),
                writer: writes.then_some("writer"),
                time,
                seed,
            }),
        }
    }
}

/// A daemon with both devices.
struct Pond<'a> {
    _server: Server,
    ours: &'a Path,
    run_dir: PathBuf,
    leaf: PathBuf,
    socket: PathBuf,
}

/// A file whose blocks are all there.
fn make_file(path: &Path, bytes: u64) -> io::Result<()> {
    let mut file = std::fs::File::create(path)?;
    let piece = vec![0x5a; MIB as usize];
    for _ in 0..bytes / MIB {
        file.write_all(&piece)?;
    }
    file.sync_all()
}

impl<'a> Pond<'a> {
    fn start(args: &'a Args, leaf: PathBuf, dir: &Path, cpu: usize) -> Result<Pond<'a>, String> {
        let config = dir.join("pond.toml");
        let half = args.size_mib * MIB / 512 / 2;
        let shown = leaf.display();
        let memory = args.memory_mib;
        let mut text = String::new();
        for (name, table) in [
            ("reader", format!("0 {half} linear {shown} 0")),
            ("low", format!("0 {half} linear {shown} {half}")),
            ("writer", format!("0 {half} buffered low 2 memory {memory}M")),
        ] {
            text.push_str(&format!("[[device]]\nname = '{name}'\ntable = '{table}'\n"));
        }
        std::fs::write(&config, text).map_err(|e| format!("{}: {e}", config.display()))?;
        let (run_dir, socket) = (dir.join("run"), dir.join("run/nbd.sock"));
        let mut command = Command::new(&args.ours);
        command.arg("daemon").arg("--run-dir").arg(&run_dir).arg("--config").arg(&config);
        let server = Server::start(&mut command, cpu, &socket)?;
        Ok(Pond { _server: server, ours: &args.ours, run_dir, leaf, socket })
    }

    fn said(&self, words: &[&str]) -> Result<String, String> {
        let mut command = Command::new(self.ours);
        let output = command.args(words).env("MILLPOND_RUN_DIR", &self.run_dir).output();
        let output = output.map_err(|e| format!("{}: {e}", self.ours.display()))?;
        let text = |bytes| String::from_utf8_lossy(bytes).trim().to_owned();
        match output.status.success() {
            true => Ok(text(&output.stdout)),
            false => Err(text(&output.stderr)),
        }
    }
}

/// All loads once, in an order that moves from round to round.
fn round(place: &Place<'_>, args: &Args, nth: usize, into: &mut Results) -> Result<(), String> {
    for (at, rate) in args.rates.iter().enumerate() {
        let alone = place.run(args, Some(*rate), false, nth)?.latency_ns;
        let alone = alone.ok_or("the reader has read nothing")?;
        into.alone[at].push(alone);
    }
    for turn in 0..MODES.len() {
        let mode = (turn + nth) % MODES.len();
        place.set(MODES[mode])?;
        let seen = &mut into.modes[mode];
        let alone = place.run(args, None, true, nth)?.written_bytes_per_s;
        seen.alone_bytes_per_s.push(alone.ok_or("the writer has written nothing")?);
        for (rate, beside) in args.rates.iter().zip(&mut seen.beside) {
            let both = place.run(args, Some(*rate), true, nth)?;
            let latency_ns = both.latency_ns.ok_or("the reader has read nothing")?;
            beside.latency_ns.push(latency_ns);
            let written = both.written_bytes_per_s;
            beside.bytes_per_s.push(written.ok_or("the writer has written nothing")?);
        }
        if MODES[mode] != Wbt::Off {
            let stats = place.attribute("queue/wbt_stats")?;
            into.stats[mode] = stats;
        }
    }
    Ok(())
}

fn us(rounds: &[Histogram<u64>], quantile: f64) -> f64 {
    let each = rounds.iter().map(|round| round.value_at_quantile(quantile) as f64 / 1e3);
    median(&each.collect::<Vec<_>>())
}

fn table(out: &mut impl Write, args: &Args, results: &Results) -> io::Result<()> {
    let mib = |rates: &[f64]| median(rates) / MIB as f64;
    for (at, rate) in args.rates.iter().enumerate() {
        let alone = &results.alone[at];
        writeln!(out, "\nreader: 4 KiB, {rate} a second; latency from when due, us")?;
        write!(out, "  {:18} {:>7} {:>7} {:>7} {:>7}", "", "p50", "p99", "p99.9", "max")?;
        write!(out, " {:>9} {:>9}   {:>7} {:>5}", "p99/al.", "p99.9/al.", "MiB/s", "+-%")?;
        writeln!(out, " {:>8} {:>7}", "of alone", "of off")?;
        let line = |out: &mut dyn Write, name: &str, h: &[Histogram<u64>]| {
            write!(out, "  {name:18}")?;
            for q in [0.5, 0.99, 0.999, 1.0] {
                write!(out, " {:7.0}", us(h, q))?;
            }
            let over = |q| us(h, q) / us(alone, q);
            write!(out, " {:9.2} {:9.2}", over(0.99), over(0.999))
        };
        line(out, "alone", alone)?;
        writeln!(out)?;
        let off = mib(&results.modes[0].beside[at].bytes_per_s);
        for (mode, seen) in MODES.iter().zip(&results.modes) {
            let beside = &seen.beside[at];
            line(out, &format!("beside, wbt {}", mode.key()), &beside.latency_ns)?;
            let rate = mib(&beside.bytes_per_s);
            let spread = spread_percent(&beside.bytes_per_s);
            let share = rate / mib(&seen.alone_bytes_per_s);
            writeln!(out, "   {rate:7.0} {spread:5.0} {share:8.2} {:7.2}", rate / off)?;
        }
    }
    writeln!(out, "\nwriter alone")?;
    for (mode, seen) in MODES.iter().zip(&results.modes) {
        let (rate, spread) =
            (mib(&seen.alone_bytes_per_s), spread_percent(&seen.alone_bytes_per_s));
        writeln!(out, "  wbt {:14} {rate:7.0} MiB/s +-{spread:.0} %", mode.key())?;
    }
    for (mode, stats) in MODES.iter().zip(&results.stats).filter(|(_, stats)| !stats.is_empty()) {
        writeln!(
            out,
            "\nqueue/wbt_stats, {}, at the end:\n  {}",
            mode.key(),
            stats.replace('\n', "\n  ")
        )?;
    }
    Ok(())
}

/// Keys of the last line. `on` is the default mode. Of several rates the last one has the keys
/// without its number.
fn summary(args: &Args, results: &Results) -> Value {
    let mut out = Map::new();
    let name = |mode: Wbt| if mode == Wbt::Tail { "on" } else { mode.key() };
    for (mode, seen) in MODES.iter().zip(&results.modes) {
        let alone = median(&seen.alone_bytes_per_s);
        let key = format!("{MODEL}_writer_alone_{}_s", name(*mode));
        out.insert(key, json!(GIB / alone));
        for (at, rate) in args.rates.iter().enumerate() {
            let share = median(&seen.beside[at].bytes_per_s) / alone;
            let share_key = format!("writer_share_{}", name(*mode));
            out.insert(format!("{MODEL}_{rate}_{share_key}"), json!(share));
            out.insert(format!("{MODEL}_{share_key}"), json!(share));
        }
    }
    let mut percentiles = |who: &str, rate: f64, latency_ns: &[Histogram<u64>]| {
        for (percentile, q) in [("p50", 0.5), ("p99", 0.99), ("p999", 0.999)] {
            let value = us(latency_ns, q);
            out.insert(format!("{MODEL}_{rate}_read_{percentile}_{who}_us"), json!(value));
            out.insert(format!("{MODEL}_read_{percentile}_{who}_us"), json!(value));
        }
    };
    for (at, rate) in args.rates.iter().enumerate() {
        percentiles("alone", *rate, &results.alone[at]);
        for (mode, seen) in MODES.iter().zip(&results.modes) {
            percentiles(name(*mode), *rate, &seen.beside[at].latency_ns);
        }
    }
    out.insert("bench".into(), json!("wbt"));
    Value::Object(out)
}

fn bench(args: &Args, dir: &Path) -> Result<(), String> {
    let failed = |path: &Path, e: io::Error| format!("{}: {e}", path.display());
    std::fs::create_dir_all(dir).map_err(|e| failed(dir, e))?;
    let leaf = dir.join("leaf");
    make_file(&leaf, args.size_mib * MIB).map_err(|e| failed(&leaf, e))?;
    let place = if args.daemon {
        let [server_cpu, client_cpu, ..] = cpus()[..] else {
            return Err("needs two CPUs: one for the daemon, one for the clients".into());
        };
        let pond = Pond::start(args, leaf, dir, server_cpu)?;
        pin(client_cpu).map_err(|e| format!("cannot pin to CPU {client_cpu}: {e}"))?;
        Place::Daemon(pond)
    } else {
        Place::Process(Local::new(&leaf, args.size_mib * MIB, args.memory_mib)?)
    };
    let rates = || args.rates.iter();
    let beside = || rates().map(|_| Beside { latency_ns: Vec::new(), bytes_per_s: Vec::new() });
    let seen = || Seen { alone_bytes_per_s: Vec::new(), beside: beside().collect() };
    let mut results = Results {
        alone: rates().map(|_| Vec::new()).collect(),
        modes: MODES.iter().map(|_| seen()).collect(),
        stats: vec![String::new(); MODES.len()],
    };
    let begin = clock();
    for nth in 0..args.rounds {
        round(&place, args, nth, &mut results)?;
        let s = clock() - begin;
        let _ = writeln!(stderr(), "round {} of {} done, {s:.0} s", nth + 1, args.rounds);
    }
    let mut out = stdout().lock();
    let mut print = || {
        let (mib, dir) = (args.size_mib, args.dir.display());
        let (rounds, seconds) = (args.rounds, args.seconds);
        writeln!(
            out,
            "a file of {mib} MiB in {dir}; {rounds} rounds, each load {seconds} s a round"
        )?;
        writeln!(out, "{}", if args.daemon { "over NBD" } else { "in process" })?;
        table(&mut out, args, &results)?;
        writeln!(out, "{}", summary(args, &results))
    };
    print().map_err(|e| format!("standard output: {e}"))
}

fn main() -> ExitCode {
    let done = args().and_then(|args| {
        let dir = args.dir.join(format!("millpond-bench-wbt-{}", std::process::id()));
        let done = bench(&args, &dir);
        let _ = std::fs::remove_dir_all(&dir); // nothing better to do about it
        done
    });
    match done {
        Ok(()) => ExitCode::SUCCESS,
        Err(e) => {
            let _ = writeln!(stderr(), "wbt: {e}");
            ExitCode::FAILURE
        }
    }
}
