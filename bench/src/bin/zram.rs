// SPDX-License-Identifier: Apache-2.0 OR MIT
//! `make bench-zram`: compressed RAM disks and their writeback, as ratios of one run.
//!
//! ```text
//!   writeback   page by page, in batches, and the disk's plain sequential writes; packed
//!   simulated   the same on an NVMe drive in virtual time
//!   memory      memory used against bytes stored
//!   speed       a page in process, against the bare compressor
//!   served      4 KiB over NBD, against nbdkit's memory with allocator=zstd
//! ```
//!
//! What is compared alternates; figures are medians, ratios those of the runs of one round.
use std::io::{self, Write, stderr, stdout};
use std::path::{Path, PathBuf};
use std::process::ExitCode;

use bench::compressed::served::{self, NAMES, Served};
use bench::compressed::speed::{self, Speed};
use bench::peer;
use reproduce::compressed::data::Data;
use reproduce::compressed::memory::{self, Used};
use reproduce::compressed::place::{Local, Place, Simulated};
use reproduce::compressed::writeback::{self, BATCHED, Case, PACKED, SINGLE, Written};
use reproduce::cpu::{cpus, pin};
use reproduce::median::{median, spread_percent};
use serde_json::{Map, Value, json};

const USAGE: &str = "usage: zram [--size-mib N] [--rounds N] [--seconds S] [--only PART] \
                     [--ours PROGRAM] [--dir DIR]   PART: writeback, simulated, memory, speed \
                     or served";
const MIB: u64 = 1 << 20;
const PAGES_PER_MIB: u64 = 256;
/// Devices whose figures do not depend on their size.
const SMALL_MIB: u64 = 256;
/// What is served, as it was for the figures of other servers.
const SERVED_MIB: u64 = 512;
/// Random pages of one run in process.
const SPEED_PAGES: usize = 50_000;
const ALGORITHMS: [&str; 2] = ["lz4", "zstd"];

struct Args {
    size_mib: u64,
    rounds: usize,
    /// Of each kind of load over NBD, in each round.
    seconds: f64,
    only: Option<String>,
    ours: PathBuf,
    dir: PathBuf,
}

fn args() -> Result<Args, String> {
    let here = std::env::current_exe().map_err(|e| e.to_string())?;
    let mut args = Args {
        size_mib: 1024,
        rounds: 5,
        seconds: 0.5,
        only: None,
        ours: here.with_file_name("millpond"),
        dir: std::env::temp_dir(),
    };
    let mut words = std::env::args().skip(1);
    while let Some(flag) = words.next() {
        let value = words.next().ok_or(USAGE)?;
        let bad = || format!("{flag} {value}: not understood; {USAGE}");
        match &flag[..] {
            "--size-mib" => args.size_mib = value.parse().map_err(|_| bad())?,
            "--rounds" => args.rounds = value.parse().map_err(|_| bad())?,
            "--seconds" => args.seconds = value.parse().map_err(|_| bad())?,
            "--only" => args.only = Some(value),
            "--ours" => args.ours = value.into(),
            "--dir" => args.dir = value.into(),
            _ => return Err(bad()),
        }
    }
    if args.rounds == 0 || args.size_mib == 0 {
        return Err(format!("rounds and size are at least 1; {USAGE}"));
    }
    Ok(args)
}

/// The runs of one kind of data on one disk, a figure for each round.
struct Runs {
    key: &'static str,
    title: String,
    single: Vec<Written>,
    batched: Vec<Written>,
    /// The device divided among two cores.
    two_cores: Vec<Written>,
    packed: Vec<Written>,
    /// Seconds and CPU seconds of plain sequential writes.
    plain: Vec<(f64, f64)>,
}

fn of(runs: &[Written], field: impl Fn(&Written) -> f64) -> f64 {
    median(&runs.iter().map(field).collect::<Vec<_>>())
}

/// Middle one of the ratios of the runs of a round.
fn ratio<A, B>(runs: &[A], to: &[B], a: impl Fn(&A) -> f64, b: impl Fn(&B) -> f64) -> f64 {
    median(&runs.iter().zip(to).map(|(x, y)| a(x) / b(y)).collect::<Vec<_>>())
}

impl Runs {
    fn wall(&self) -> f64 {
        ratio(&self.single, &self.batched, |w| w.s, |w| w.s)
    }

    fn cpu(&self) -> f64 {
        ratio(&self.single, &self.batched, |w| w.cpu_s, |w| w.cpu_s)
    }

    /// Of the disk's plain sequential bandwidth.
    fn share(&self, of: &[Written]) -> f64 {
        ratio(&self.plain, of, |p| p.0, |w| w.s)
    }
}

/// What is compared on a disk.
const KINDS: usize = 5;

/// Runs everything that is compared on a disk, in turns.
fn write_back(
    place: &impl Place,
    (key, data, mib, rounds): (&'static str, Data, u64, usize),
    title: String,
) -> Result<Runs, String> {
    let mut runs = Runs {
        key,
        title,
        single: Vec::new(),
        batched: Vec::new(),
        two_cores: Vec::new(),
        packed: Vec::new(),
        plain: Vec::new(),
    };
    for round in 0..rounds {
        for turn in 0..KINDS {
            let run = |options, cores| {
                // All pages once, then some: reading everything back takes longer than the rest.
                let compare_every = if round == 0 { 1 } else { 16 };
                let pages = mib * PAGES_PER_MIB;
                let case = Case { data, pages, algorithm: "lz4", options, cores, compare_every };
                writeback::run(place, &case)
            };
            match (round + turn) % KINDS {
                0 => runs.plain.push(writeback::sequential(place, mib * MIB)?),
                1 => runs.batched.push(run(BATCHED, 1)?),
                2 => runs.single.push(run(SINGLE, 1)?),
                3 if place.cores().len() > 1 => runs.two_cores.push(run(BATCHED, 2)?),
                // What does not compress is written as it is, packed or not.
                4 if data != Data::Random => runs.packed.push(run(PACKED, 1)?),
                _ => {}
            }
        }
        let _ = writeln!(stderr(), "{}: round {} of {rounds} done", runs.title, round + 1);
    }
    Ok(runs)
}

fn print_runs(out: &mut impl Write, runs: &Runs, mib: u64) -> io::Result<()> {
    writeln!(out, "\n{}", runs.title)?;
    let head = ["s", "+-%", "MiB/s", "CPU s", "us a page", "writes", "media MiB", "read MiB/s"];
    write!(out, "  {:20}", "")?;
    for title in head {
        write!(out, " {title:>10}")?;
    }
    writeln!(out)?;
    let pages = (mib * PAGES_PER_MIB) as f64;
    let line = |out: &mut dyn Write, name: &str, s: &[f64], cpu_s: f64| {
        let (wall, spread) = (median(s), spread_percent(s));
        write!(out, "  {name:20} {wall:10.3} {spread:10.0} {:10.0}", mib as f64 / wall)?;
        write!(out, " {cpu_s:10.3} {:10.2}", cpu_s * 1e6 / pages)
    };
    for (name, written) in [
        ("page by page", &runs.single),
        ("batched", &runs.batched),
        ("batched, two cores", &runs.two_cores),
        ("batched, packed", &runs.packed),
    ] {
        if written.is_empty() {
            continue;
        }
        let s: Vec<f64> = written.iter().map(|w| w.s).collect();
        line(out, name, &s, of(written, |w| w.cpu_s))?;
        let media = of(written, |w| w.media_bytes as f64) / MIB as f64;
        let read = of(written, |w| w.read_back_pages_per_s) / PAGES_PER_MIB as f64;
        writeln!(out, " {:10.0} {media:10.1} {read:10.0}", of(written, |w| w.writes as f64))?;
    }
    let s: Vec<f64> = runs.plain.iter().map(|p| p.0).collect();
    let cpu: Vec<f64> = runs.plain.iter().map(|p| p.1).collect();
    line(out, "plain sequential", &s, median(&cpu))?;
    writeln!(out)?;
    writeln!(out, "  page by page / batched: {:.1} wall, {:.1} CPU", runs.wall(), runs.cpu())?;
    let share = runs.share(&runs.batched);
    write!(out, "  limit: the disk's plain sequential writes; reached: {share:.3}")?;
    if !runs.two_cores.is_empty() {
        write!(out, ", two cores {:.3}", runs.share(&runs.two_cores))?;
    }
    writeln!(out)?;
    if !runs.packed.is_empty() {
        let over = of(&runs.packed, |w| w.media_bytes as f64 / w.compr_bytes as f64);
        writeln!(out, "  limit: the objects' bytes; packed media bytes to them: {over:.3}")?;
    }
    Ok(())
}

fn keys_of_runs(keys: &mut Map<String, Value>, runs: &Runs) {
    let mut put = |name: &str, value: f64| {
        keys.insert(format!("{}{name}", runs.key), json!(value));
    };
    put("single_s", of(&runs.single, |w| w.s));
    put("batched_s", of(&runs.batched, |w| w.s));
    put("disk_seq_s", median(&runs.plain.iter().map(|p| p.0).collect::<Vec<_>>()));
    put("wall_ratio", runs.wall());
    put("share_of_seq", runs.share(&runs.batched));
    put("read_back_pages_per_s", of(&runs.batched, |w| w.read_back_pages_per_s));
    // Virtual time knows of no CPU.
    if !runs.key.starts_with("sim_") {
        put("single_cpu_s", of(&runs.single, |w| w.cpu_s));
        put("batched_cpu_s", of(&runs.batched, |w| w.cpu_s));
        put("disk_seq_cpu_s", median(&runs.plain.iter().map(|p| p.1).collect::<Vec<_>>()));
        put("cpu_ratio", runs.cpu());
    }
    if !runs.two_cores.is_empty() {
        put("two_cores_s", of(&runs.two_cores, |w| w.s));
        put("two_cores_cpu_s", of(&runs.two_cores, |w| w.cpu_s));
        put("two_cores_share_of_seq", runs.share(&runs.two_cores));
    }
}

fn keys_of_packed(keys: &mut Map<String, Value>, runs: &Runs) {
    let mut put = |name: &str, value: f64| {
        keys.insert(name.into(), json!(value));
    };
    put("compressed_bytes", of(&runs.packed, |w| w.compr_bytes as f64));
    put("packed_media_bytes", of(&runs.packed, |w| w.media_bytes as f64));
    put("raw_media_bytes", of(&runs.batched, |w| w.media_bytes as f64));
    put("packed_s", of(&runs.packed, |w| w.s));
    put("packed_cpu_s", of(&runs.packed, |w| w.cpu_s));
    put("packed_read_back_pages_per_s", of(&runs.packed, |w| w.read_back_pages_per_s));
}

/// What is printed and what is kept for the last line.
struct Report<W> {
    out: W,
    keys: Map<String, Value>,
}

fn local(args: &Args, dir: &Path, report: &mut Report<impl Write>) -> Result<(), String> {
    // A little more than all pages, as in the published run.
    let place = Local::new(dir, (args.size_mib + 64) * MIB)?;
    if let Some(warning) = &place.warning {
        writeln!(report.out, "backing file: {warning}").map_err(|e| e.to_string())?;
    }
    let size = args.size_mib;
    let small = SMALL_MIB.min(size);
    for (key, data, mib, what) in [
        ("", Data::Random, size, "incompressible, as fio writes by default"),
        ("half_", Data::Half, small, "half compressible"),
    ] {
        let title = format!("idle writeback, local disk, lz4, {mib} MiB, {what}");
        let runs = write_back(&place, (key, data, mib, args.rounds), title)?;
        print_runs(&mut report.out, &runs, mib).map_err(|e| e.to_string())?;
        keys_of_runs(&mut report.keys, &runs);
        if data == Data::Half {
            keys_of_packed(&mut report.keys, &runs);
        }
    }
    if !place.is_allocated() {
        return Err("the backing file has lost blocks: its writes allocated some again".into());
    }
    Ok(())
}

fn simulated(report: &mut Report<impl Write>) -> Result<(), String> {
    for (key, data) in [("sim_", Data::Random), ("sim_half_", Data::Half)] {
        let place = Simulated::new((SMALL_MIB + 64) * MIB);
        let what = data.name();
        let title = format!("idle writeback, simulated NVMe, lz4, {SMALL_MIB} MiB, {what}");
        // Virtual time is the same every time.
        let runs = write_back(&place, (key, data, SMALL_MIB, 1), title)?;
        print_runs(&mut report.out, &runs, SMALL_MIB).map_err(|e| e.to_string())?;
        keys_of_runs(&mut report.keys, &runs);
    }
    writeln!(report.out, "  (CPU seconds are the simulator's own)").map_err(|e| e.to_string())
}

fn used(dir: &Path, report: &mut Report<impl Write>) -> Result<(), String> {
    let place = Local::new(dir, MIB)?;
    let io = |e: io::Error| e.to_string();
    writeln!(report.out, "\nmemory used, {SMALL_MIB} MiB; limit: the objects' bytes")
        .map_err(io)?;
    let head = ["stored MiB", "used MiB", "used/stored"];
    let head = format!("{:>12} {:>12} {:>12}", head[0], head[1], head[2]);
    writeln!(report.out, "  {:34} {head}", "").map_err(io)?;
    for algorithm in ALGORITHMS {
        for data in [Data::Mixed, Data::Half] {
            let both = memory::run(&place, data, algorithm, SMALL_MIB * PAGES_PER_MIB)?;
            for (used, when) in both.iter().zip(["filled", "overwritten"]) {
                let Used { compr_bytes, mem_bytes } = *used;
                let (stored, mem) = (compr_bytes as f64, mem_bytes as f64);
                let what = format!("{algorithm}, {}, {when}", data.name());
                let mib = MIB as f64;
                let row = (stored / mib, mem / mib, used.ratio());
                writeln!(report.out, "  {what:34} {:12.1} {:12.1} {:12.4}", row.0, row.1, row.2)
                    .map_err(io)?;
                let key = format!("{algorithm}_{}_{when}_used_over_stored", data.name());
                report.keys.insert(key, json!(used.ratio()));
                if (algorithm, data, when) == ("lz4", Data::Mixed, "overwritten") {
                    report.keys.insert("compr_data_size".into(), json!(compr_bytes));
                    report.keys.insert("mem_used_total".into(), json!(mem_bytes));
                }
            }
        }
    }
    Ok(())
}

fn in_process(args: &Args, dir: &Path, report: &mut Report<impl Write>) -> Result<(), String> {
    let place = Local::new(dir, MIB)?;
    let io = |e: io::Error| e.to_string();
    let title = "a page of 4 KiB in process, random, half compressible; limit: the bare compressor";
    writeln!(report.out, "\n{title}").map_err(io)?;
    let head = ["ns", "bare ns", "more ns", "reached"];
    let head = head.map(|h| format!("{h:>10}")).join(" ");
    writeln!(report.out, "  {:20} {head}", "").map_err(io)?;
    for algorithm in ALGORITHMS {
        let pages = SMALL_MIB * PAGES_PER_MIB;
        let speed = speed::run(&place, algorithm, (pages, SPEED_PAGES, args.rounds))?;
        let Speed { write_ns, bare_write_ns, read_ns, bare_read_ns } = &speed;
        for (kind, ours, bare) in
            [("randwrite", write_ns, bare_write_ns), ("randread", read_ns, bare_read_ns)]
        {
            let (ns, bare_ns) = (median(ours), median(bare));
            let reached = ratio(bare, ours, |b| *b, |o| *o);
            let more = ns - bare_ns;
            let what = format!("{algorithm} {kind}");
            writeln!(report.out, "  {what:20} {ns:10.0} {bare_ns:10.0} {more:10.0} {reached:10.3}")
                .map_err(io)?;
            let mut put = |name: &str, value: f64| {
                report.keys.insert(format!("{algorithm}_{kind}_{name}"), json!(value));
            };
            put("ns", ns);
            put("bare_ns", bare_ns);
            put("of_bare", reached);
        }
    }
    Ok(())
}

fn over_nbd(args: &Args, dir: &Path, report: &mut Report<impl Write>) -> Result<(), String> {
    if !args.ours.exists() {
        let ours = args.ours.display();
        return Err(format!("{ours}: not there; build it: cargo build --release -p millpond"));
    }
    let [server_cpu, client_cpu] = cpus()[..] else {
        return Err("needs two CPUs: one for the servers, one for the client".into());
    };
    let place = peer::Place { dir, program: &args.ours, cpu: server_cpu };
    let mut servers = Vec::new();
    for name in NAMES {
        servers.push(Served::start(name, SERVED_MIB * MIB, place)?);
    }
    pin(client_cpu).map_err(|e| format!("cannot pin to CPU {client_cpu}: {e}"))?;
    for round in 0..args.rounds {
        for turn in 0..servers.len() {
            let nth = (round + turn) % servers.len();
            servers[nth].round(args.seconds)?;
        }
        let _ = writeln!(stderr(), "over NBD: round {} of {} done", round + 1, args.rounds);
    }
    servers.iter_mut().for_each(|served| served.look(&args.ours));
    print_served(&mut report.out, &servers).map_err(|e| e.to_string())?;
    for served in &servers {
        let mut put = |name: &str, value: Value| {
            report.keys.insert(format!("{}_{name}", served.name.key()), value);
        };
        put("randwrite_iops", json!(median(&served.write_iops).round()));
        put("randread_iops", json!(median(&served.read_iops).round()));
        put("randwrite_cpu_us", json!(median(&served.write_cpu_us)));
        put("randread_cpu_us", json!(median(&served.read_cpu_us)));
        put("rss_filled_bytes", json!(served.filled_rss_bytes));
        put("rss_overwritten_bytes", json!(served.overwritten_rss_bytes));
        put("mem_used_bytes", json!(served.mem_used_bytes));
    }
    Ok(())
}

fn print_served(out: &mut impl Write, servers: &[Served]) -> io::Result<()> {
    let depth = served::DEPTH;
    writeln!(out, "\nover NBD, {SERVED_MIB} MiB, half compressible, 4 KiB, depth {depth}")?;
    let head = ["write IOPS", "CPU us", "read IOPS", "CPU us", "RSS MiB", "after", "used MiB"];
    writeln!(out, "  {:16} {} {:>10}", "", head.map(|h| format!("{h:>10}")).join(" "), "after")?;
    let mib = |bytes: u64| bytes as f64 / MIB as f64;
    for served in servers {
        let [write, write_cpu, read, read_cpu] = [
            median(&served.write_iops),
            median(&served.write_cpu_us),
            median(&served.read_iops),
            median(&served.read_cpu_us),
        ];
        write!(out, "  {:16} {write:10.0} {write_cpu:10.2}", served.name.key())?;
        write!(out, " {read:10.0} {read_cpu:10.2} {:10.1}", mib(served.filled_rss_bytes))?;
        write!(out, " {:10.1}", mib(served.overwritten_rss_bytes))?;
        for used in served.mem_used_bytes {
            write!(out, " {:>10}", used.map_or("-".into(), |b| format!("{:.1}", mib(b))))?;
        }
        writeln!(out)?;
    }
    let [zstd, lz4, nbdkit] = servers else { return Ok(()) };
    for ours in [zstd, lz4] {
        let write = ratio(&ours.write_iops, &nbdkit.write_iops, |a| *a, |b| *b);
        let read = ratio(&ours.read_iops, &nbdkit.read_iops, |a| *a, |b| *b);
        writeln!(out, "  {} / nbdkit: {write:.1} writes, {read:.1} reads", ours.name.key())?;
    }
    Ok(())
}

fn bench(args: &Args) -> Result<(), String> {
    let dir = args.dir.join(format!("millpond-bench-zram-{}", std::process::id()));
    std::fs::create_dir_all(&dir).map_err(|e| format!("{}: {e}", dir.display()))?;
    let mut report = Report { out: stdout().lock(), keys: Map::new() };
    let wants = |part: &str| args.only.as_ref().is_none_or(|only| only == part);
    let mut work = || {
        if wants("writeback") {
            local(args, &dir, &mut report)?;
        }
        if wants("simulated") {
            simulated(&mut report)?;
        }
        if wants("memory") {
            used(&dir, &mut report)?;
        }
        if wants("speed") {
            in_process(args, &dir, &mut report)?;
        }
        if wants("served") {
            over_nbd(args, &dir, &mut report)?;
        }
        Ok(())
    };
    let done: Result<(), String> = work();
    let _ = std::fs::remove_dir_all(&dir);
    done?;
    let Report { mut out, keys } = report;
    writeln!(out, "{}", Value::Object(keys)).map_err(|e| e.to_string())
}

fn main() -> ExitCode {
    let done = args().and_then(|args| bench(&args));
    match done {
        Ok(()) => ExitCode::SUCCESS,
        Err(e) => {
            let _ = writeln!(stderr(), "bench-zram: {e}");
            ExitCode::FAILURE
        }
    }
}
