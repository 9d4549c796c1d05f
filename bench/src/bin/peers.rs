// SPDX-License-Identifier: Apache-2.0 OR MIT
//! `make bench-peers`: what people use instead, doing the same jobs for the same client in one run:
//! nbdkit with its filters, qemu-storage-daemon and nbd-server beside ours.
//!
//! The client is fio, on one CPU; all servers are on another. fio costs 5 to 8 µs of CPU a 4 KiB
//! request, more than a good server: where it is the limit, look at the servers' CPU.
use std::collections::BTreeMap;
use std::io::{self, Write, stderr, stdout};
use std::path::PathBuf;
use std::process::ExitCode;

use bench::files::{self, Files};
use bench::peers::cache::{self, Survivors};
use bench::peers::fio::{Job, Run, Until, run};
use bench::peers::serve::{GROUPS, Group, Served};
use bench::peers::{Ground, cache::PEERS};
use clap::Parser;
use reproduce::cpu::{cpus, pin};
use reproduce::median::{median, spread_percent};
use serde_json::{Map, Value, json};

const MIB: f64 = 1_048_576.0;

/// Compares NBD servers, caches, compressed memory and FUSE files with what others offer.
#[derive(Debug, Parser)]
#[command(name = "peers")]
struct Args {
    /// Where files are made; they are gone afterwards.
    #[arg(long, default_value_os_t = std::env::temp_dir())]
    dir: PathBuf,
    /// A folder on a file system in memory.
    #[arg(long, default_value = "/dev/shm")]
    memory_dir: PathBuf,
    /// Size of each device in MiB; a quarter of it is written to the caches.
    #[arg(long, default_value_t = 256, value_parser = clap::value_parser!(u64).range(16..65_536))]
    size_mib: u64,
    /// How often everything is run.
    #[arg(long, default_value_t = 5, value_parser = clap::value_parser!(u64).range(1..))]
    rounds: u64,
    /// How long fio runs for each figure, in seconds.
    #[arg(long, default_value_t = 0.4)]
    seconds: f64,
    /// Only these parts: null, memory, file, offset, compressed, cache, fuse.
    #[arg(long, value_delimiter = ',')]
    only: Vec<String>,
    /// Our program [default: millpond beside this one].
    #[arg(long)]
    ours: Option<PathBuf>,
}

const fn job(rw: &'static str, kib: u32, depth: u32, connections: u32) -> Job {
    Job { rw, kib, depth, connections }
}

const ALL_JOBS: [Job; 12] = [
    job("randread", 4, 1, 1),
    job("randread", 4, 16, 1),
    job("randread", 4, 64, 1),
    job("randread", 4, 16, 4),
    job("randwrite", 4, 1, 1),
    job("randwrite", 4, 16, 1),
    job("randwrite", 4, 64, 1),
    job("randwrite", 4, 16, 4),
    job("read", 128, 16, 1),
    job("write", 128, 16, 1),
    job("read", 1024, 4, 1),
    job("write", 1024, 4, 1),
];

fn jobs(group: Group) -> &'static [Job] {
    match group {
        Group::Null | Group::Memory | Group::File => &ALL_JOBS,
        Group::Offset | Group::Compressed => &[ALL_JOBS[1], ALL_JOBS[5]],
    }
}

/// The runs of one job by one server.
type Runs = BTreeMap<(&'static str, String, &'static str), Vec<Run>>;

#[derive(Default)]
struct Results {
    runs: Runs,
    caches: BTreeMap<&'static str, Vec<cache::Round>>,
    survivors: BTreeMap<&'static str, Survivors>,
    /// Reads and writes a second on a FUSE file.
    fuse: BTreeMap<(&'static str, &'static str), Vec<f64>>,
    served: Vec<String>,
    errors: Vec<String>,
}

impl Results {
    /// P2.
    fn failed(&mut self, what: &str, why: &str) {
        let line = format!("{what}: {why}");
        if !self.errors.contains(&line) {
            let _ = writeln!(stderr(), "not measured: {line}");
            self.errors.push(line);
        }
    }
}

/// One group: all servers at the same time, each job by each in turn.
fn group(group: Group, args: &Args, ground: &Ground, results: &mut Results) {
    let mut servers = Vec::new();
    for &who in group.peers() {
        match Served::start(group, who, ground) {
            Ok(served) => {
                results.served.push(format!("{} {who}: {}", group.key(), served.what));
                servers.push(served);
            }
            Err(why) => results.failed(&format!("{} {who}", group.key()), &why),
        }
    }
    // Reads find data; what is first pays for memory that nobody had before.
    for served in servers.iter().filter(|_| group != Group::Null) {
        let fill = job("write", 1024, 4, 1);
        if let Err(why) = run(served, &fill, Until::Written(served.bytes)) {
            results.failed(&format!("{} {}", group.key(), served.who), &why);
        }
    }
    for round in 0..args.rounds {
        for job in jobs(group) {
            for turn in 0..servers.len() {
                let nth = (turn + usize::try_from(round).unwrap_or(0)) % servers.len();
                let served = &servers[nth];
                match run(served, job, Until::Time(args.seconds)) {
                    Ok(run) => {
                        let key = (group.key(), job.name(), served.who);
                        results.runs.entry(key).or_default().push(run);
                    }
                    Err(why) => results.failed(&format!("{} {}", group.key(), served.who), &why),
                }
            }
        }
        progress(group.key(), round, args);
    }
}

fn progress(part: &str, round: u64, args: &Args) {
    let _ = writeln!(stderr(), "{part}: round {} of {} done", round + 1, args.rounds);
}

fn caches(args: &Args, ground: &Ground, results: &mut Results) {
    for round in 0..args.rounds {
        for who in PEERS {
            match cache::round(who, ground.bytes / 4, ground) {
                Ok(round) => results.caches.entry(who).or_default().push(round),
                Err(why) => results.failed(&format!("cache {who}"), &why),
            }
        }
        progress("cache", round, args);
    }
    for who in PEERS {
        match cache::survivors(who, ground) {
            Ok(survivors) => drop(results.survivors.insert(who, survivors)),
            Err(why) => results.failed(&format!("cache {who}, killed"), &why),
        }
    }
}

fn fuse(args: &Args, ground: &Ground, results: &mut Results) {
    let mut mounted = Vec::new();
    let dir = ground.dir.join("fuse-ours");
    match Files::ours(&ground.ours, &dir) {
        Ok((files, _, linear)) => mounted.push(("ours", files, linear)),
        Err(why) => results.failed("fuse ours", &why),
    }
    for (who, start) in [
        ("qsd", Files::qsd as fn(&std::path::Path) -> Result<(Files, PathBuf), String>),
        ("nbdfuse", Files::nbdfuse),
    ] {
        match start(&ground.dir.join(format!("fuse-{who}"))) {
            Ok((files, file)) => mounted.push((who, files, file)),
            Err(why) => results.failed(&format!("fuse {who}"), &why),
        }
    }
    for round in 0..args.rounds {
        for (name, job) in [("randread", files::RANDREAD), ("randwrite", files::RANDWRITE)] {
            for (who, _, file) in &mounted {
                match files::fio(file, job, args.seconds) {
                    Ok(iops) => results.fuse.entry((name, who)).or_default().push(iops),
                    Err(why) => results.failed(&format!("fuse {who} {name}"), &why),
                }
            }
        }
        progress("fuse", round, args);
    }
}

fn middle<T>(runs: &[T], figure: impl Fn(&T) -> f64) -> f64 {
    median(&runs.iter().map(figure).collect::<Vec<_>>())
}

/// The median over the rounds of ours divided by theirs.
fn over<T>(ours: Option<&Vec<T>>, theirs: &[T], figure: impl Fn(&T) -> f64) -> f64 {
    let pairs = ours.into_iter().flatten().zip(theirs);
    median(&pairs.map(|(o, t)| figure(o) / figure(t)).collect::<Vec<_>>())
}

fn print_runs(out: &mut impl Write, results: &Results) -> io::Result<()> {
    writeln!(
        out,
        "{:11} {:24} {:11} {:>9} {:>5} {:>8} {:>8} {:>8} {:>8} {:>9} {:>9}",
        "what",
        "job",
        "server",
        "IOPS",
        "+-%",
        "MiB/s",
        "p99 us",
        "CPU us",
        "RSS MiB",
        "ours/IOPS",
        "ours/CPU"
    )?;
    for ((group, job, who), runs) in &results.runs {
        let ours = results.runs.get(&(*group, job.clone(), "ours"));
        let iops: Vec<f64> = runs.iter().map(|r| r.iops).collect();
        write!(
            out,
            "{group:11} {job:24} {who:11} {:9.0} {:5.0} {:8.0} {:8.0} {:8.2} {:8.0}",
            median(&iops),
            spread_percent(&iops),
            middle(runs, |r| r.bytes_per_s / MIB),
            middle(runs, |r| r.p99_us),
            middle(runs, |r| r.cpu_us),
            middle(runs, |r| r.resident_bytes as f64 / MIB),
        )?;
        match *who {
            "ours" => writeln!(out)?,
            _ => {
                let (iops, cpu) = (over(ours, runs, |r| r.iops), over(ours, runs, |r| r.cpu_us));
                writeln!(out, " {iops:9.2} {cpu:9.2}")?;
            }
        }
    }
    writeln!(out)
}

fn print_caches(out: &mut impl Write, args: &Args, results: &Results) -> io::Result<()> {
    if results.caches.is_empty() {
        return Ok(());
    }
    writeln!(
        out,
        "Write-back cache over a file: {} MiB of random 4 KiB writes over {} MiB, depth 16; \
         flush: until\na client's flush was answered; at file: until all of it was there",
        args.size_mib / 4,
        args.size_mib
    )?;
    writeln!(
        out,
        "{:11} {:>9} {:>8} {:>9} {:>9} {:>9} {:>8} {:>14} {:>14}",
        "cache",
        "IOPS",
        "CPU us",
        "flush s",
        "at file s",
        "its CPU s",
        "RSS MiB",
        "kept, flushed",
        "not flushed"
    )?;
    for (who, rounds) in &results.caches {
        let of = |figure: fn(&cache::Round) -> f64| middle(rounds, figure);
        write!(
            out,
            "{who:11} {:9.0} {:8.2} {:9.3} {:9.3} {:9.3} {:8.0}",
            of(|r| r.run.iops),
            of(|r| r.run.cpu_us),
            of(|r| r.flush_s),
            of(|r| r.written_back_s),
            of(|r| r.written_back_cpu_s),
            of(|r| r.run.resident_bytes as f64 / MIB),
        )?;
        match results.survivors.get(who) {
            Some(Survivors { flushed, unflushed, of }) => {
                writeln!(out, " {flushed:>8} of {of} {unflushed:>8} of {of}")?;
            }
            None => writeln!(out)?,
        }
    }
    writeln!(out, "kept: blocks that were there after kill -9 of the server and a new start\n")
}

fn print_fuse(out: &mut impl Write, results: &Results) -> io::Result<()> {
    if results.fuse.is_empty() {
        return Ok(());
    }
    writeln!(out, "Files through FUSE, 4 KiB, O_DIRECT, depth 32; ours over memory, others null")?;
    for ((job, who), iops) in &results.fuse {
        let ours = over(results.fuse.get(&(*job, "ours")), iops, |n| *n);
        let (iops, spread) = (median(iops), spread_percent(iops));
        writeln!(out, "{job:11} {who:8} {iops:9.0} IOPS +-{spread:.0} %, ours over it {ours:.2}")?;
    }
    writeln!(out)
}

fn summary(args: &Args, results: &Results) -> Value {
    let mut keys = Map::new();
    keys.insert("bench".to_owned(), json!("peers"));
    keys.insert("size_mib".to_owned(), json!(args.size_mib));
    for ((group, job, who), runs) in &results.runs {
        let mut put = |what: &str, value: f64| {
            keys.insert(format!("{group}_{who}_{job}_{what}"), json!(value));
        };
        put("iops", middle(runs, |r| r.iops).round());
        put("cpu_us_per_io", middle(runs, |r| r.cpu_us));
        put("p99_us", middle(runs, |r| r.p99_us));
        put("resident_bytes", middle(runs, |r| r.resident_bytes as f64));
    }
    for (who, rounds) in &results.caches {
        let mut put = |what: &str, value: f64| {
            keys.insert(format!("cache_{who}_{what}"), json!(value));
        };
        put("randwrite_iops", middle(rounds, |r| r.run.iops).round());
        put("cpu_us_per_io", middle(rounds, |r| r.run.cpu_us));
        put("flush_s", middle(rounds, |r| r.flush_s));
        put("written_back_s", middle(rounds, |r| r.written_back_s));
        put("written_back_cpu_s", middle(rounds, |r| r.written_back_cpu_s));
    }
    for (who, s) in &results.survivors {
        keys.insert(format!("cache_{who}_kept_flushed"), json!(s.flushed));
        keys.insert(format!("cache_{who}_kept_unflushed"), json!(s.unflushed));
    }
    for ((job, who), iops) in &results.fuse {
        keys.insert(format!("fuse_{who}_{job}_iops"), json!(median(iops).round()));
    }
    keys.insert("errors".to_owned(), json!(results.errors));
    Value::Object(keys)
}

fn bench(args: &Args) -> Result<(), String> {
    let (server_cpu, client_cpu) = match cpus()[..] {
        [first, second, ..] => (first, second),
        _ => return Err("needs two CPUs: one for the servers, one for the client".into()),
    };
    let parts: Vec<&str> = GROUPS.iter().map(|g| g.key()).chain(["cache", "fuse"]).collect();
    if let Some(unknown) = args.only.iter().find(|part| !parts.contains(&&part[..])) {
        return Err(format!("--only {unknown}: {} are allowed", parts.join(", ")));
    }
    let beside = std::env::current_exe().map_err(|e| e.to_string())?.with_file_name("millpond");
    let ours = args.ours.clone().unwrap_or(beside);
    if !ours.exists() {
        let ours = ours.display();
        return Err(format!(
            "{ours}: not there; build it first: cargo build --release -p millpond"
        ));
    }
    let folder = |dir: &PathBuf| tempfile::Builder::new().prefix("millpond-peers-").tempdir_in(dir);
    let failed = |e: io::Error| e.to_string();
    let (dir, memory_dir) =
        (folder(&args.dir).map_err(failed)?, folder(&args.memory_dir).map_err(failed)?);
    let ground = Ground {
        dir: dir.path().to_owned(),
        memory_dir: memory_dir.path().to_owned(),
        ours,
        cpu: server_cpu,
        bytes: args.size_mib << 20,
    };
    pin(client_cpu).map_err(|e| format!("cannot pin to CPU {client_cpu}: {e}"))?;
    let wanted = |part: &str| args.only.is_empty() || args.only.iter().any(|p| p == part);
    let mut results = Results::default();
    for part in GROUPS.into_iter().filter(|g| wanted(g.key())) {
        group(part, args, &ground, &mut results);
    }
    if wanted("cache") {
        caches(args, &ground, &mut results);
    }
    if wanted("fuse") {
        fuse(args, &ground, &mut results);
    }
    results.failed("SPDK", "Debian has no package of it: no peer for mapping layers");
    let mut out = stdout().lock();
    let mut print = || {
        results.served.iter().try_for_each(|what| writeln!(out, "{what}"))?;
        writeln!(
            out,
            "\nservers on CPU {server_cpu}, fio on CPU {client_cpu}; medians of {} runs of {} s; \
             CPU: of the server,\na request; ours/: ours as a multiple of the server's\n",
            args.rounds, args.seconds
        )?;
        print_runs(&mut out, &results)?;
        print_caches(&mut out, args, &results)?;
        print_fuse(&mut out, &results)?;
        results.errors.iter().try_for_each(|error| writeln!(out, "not measured: {error}"))?;
        writeln!(out, "{}", summary(args, &results))
    };
    print().map_err(failed)
}

fn main() -> ExitCode {
    match bench(&Args::parse()) {
        Ok(()) => ExitCode::SUCCESS,
        Err(why) => {
            let _ = writeln!(stderr(), "bench-peers: {why}");
            ExitCode::FAILURE
        }
    }
}
