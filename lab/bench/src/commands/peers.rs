// SPDX-License-Identifier: Apache-2.0 OR MIT
//! `make bench-peers`: what people use instead, doing the same jobs for the same client in one run:
//! nbdkit with its filters, qemu-storage-daemon, nbd-server, nbdfuse and the kernel's zram beside
//! ours.
//!
//! The client is fio, on one CPU; all servers are on another. fio costs 5 to 8 µs of CPU a 4 KiB
//! request, more than a good server: where it is the limit, look at the servers' CPU, or take
//! `--lean`.
use std::io::{self, Write, stdout};
use std::path::PathBuf;
use std::process::ExitCode;

use bench::output::{Dir, ProgramOption, ended};
use bench::peers::TestBed;
use bench::peers::cache::{self, PEERS};
use bench::peers::client::{Client, RunLength, run};
use bench::peers::progress::Progress;
use bench::peers::report::Results;
use bench::peers::serve::{FILL, GROUPS, Group, Served};
use reproduce::cpu::{cpus, pin};
use serde_json::json;

/// What a run takes beside its time, a round of a cache, and a kill of one, in seconds: measured,
/// and only for the time that is left to be told.
const START_S: f64 = 0.25;
const CACHE_S: f64 = 2.5;
const KILL_S: f64 = 1.5;

/// Compares NBD servers, caches, compressed memory and FUSE files with what others offer.
///
/// Takes about ten minutes on two CPUs with nothing beside it.
#[derive(Debug, clap::Args)]
#[command(after_help = "\
Examples:
  make bench-peers
  make bench-peers ARGS='--only null,memory --lean'
  target/release/bench peers --markdown > tables.md")]
pub(crate) struct Args {
    #[command(flatten)]
    dir: Dir,
    /// A folder on a file system in memory.
    #[arg(long, default_value = "/dev/shm")]
    memory_dir: PathBuf,
    /// Size of each device in MiB; a quarter of it is written to the caches.
    #[arg(long, default_value_t = 256, value_parser = clap::value_parser!(u64).range(16..65_536))]
    size_mib: u64,
    /// How often everything is run.
    #[arg(long, default_value_t = 5, value_parser = clap::value_parser!(u64).range(1..))]
    rounds: u64,
    /// How long the client runs for each figure, in seconds.
    #[arg(long, default_value_t = 0.2)]
    seconds: f64,
    /// Only these parts: null, memory, file, offset, compressed, fuse, cache.
    #[arg(long, value_delimiter = ',')]
    only: Vec<String>,
    /// `loadgen --uri` as the client of NBD exports, instead of fio.
    #[arg(long)]
    lean: bool,
    /// Tables in Markdown.
    #[arg(long)]
    markdown: bool,
    #[command(flatten)]
    ours: ProgramOption,
}

impl Args {
    fn wanted(&self, part: &str) -> bool {
        self.only.is_empty() || self.only.iter().any(|p| p == part)
    }

    /// Seconds that everything should take.
    fn expected_s(&self) -> f64 {
        let rounds = self.rounds as f64;
        let runs = |g: Group| (g.peers().len() * g.jobs().len()) as f64;
        let runs: f64 = GROUPS.into_iter().filter(|g| self.wanted(g.key())).map(runs).sum();
        let of_caches = (rounds * CACHE_S + KILL_S) * PEERS.len() as f64;
        let caches = if self.wanted("cache") { of_caches } else { 0.0 };
        runs * rounds * self.run_s() + caches
    }

    fn run_s(&self) -> f64 {
        self.seconds + START_S
    }
}

/// One bench.
struct Bench<'a> {
    args: &'a Args,
    test_bed: TestBed,
    results: Results,
    progress: Progress,
}

impl Bench<'_> {
    fn client(&self, served: &Served) -> Client {
        let has_uri = !served.endpoint.uri().is_empty();
        if self.args.lean && has_uri { Client::Lean } else { Client::Fio }
    }

    /// One group: all servers at the same time, each job by each in turn.
    fn group(&mut self, group: Group) {
        let mut servers = Vec::new();
        for &who in group.peers() {
            match Served::start(group, who, &self.test_bed) {
                Ok(served) => {
                    let line = format!("{} {who}: {}", group.key(), served.what);
                    self.results.served.push(line);
                    servers.push(served);
                }
                Err(why) => self.results.failed(&format!("{} {who}", group.key()), &why),
            }
        }
        // Reads find data; what is first pays for memory that nobody had before.
        for served in servers.iter().filter(|_| group != Group::Null) {
            if let Err(why) = run(Client::Fio, served, &FILL, RunLength::Written(served.bytes)) {
                self.results.failed(&format!("{} {}", group.key(), served.who), &why);
            }
        }
        for round in 0..self.args.rounds {
            for job in group.jobs() {
                for turn in 0..servers.len() {
                    let nth = (turn + usize::try_from(round).unwrap_or(0)) % servers.len();
                    let (served, until) = (&servers[nth], RunLength::Time(self.args.seconds));
                    match run(self.client(served), served, job, until) {
                        Ok(run) => self.results.add(group, *job, served.who, run),
                        Err(why) => {
                            self.results.failed(&format!("{} {}", group.key(), served.who), &why);
                        }
                    }
                    self.progress.step(group.key(), self.args.run_s());
                }
            }
        }
    }

    fn caches(&mut self) {
        for _ in 0..self.args.rounds {
            for who in PEERS {
                match cache::round(who, self.test_bed.bytes / 4, &self.test_bed) {
                    Ok(round) => self.results.caches.entry(who).or_default().push(round),
                    Err(why) => self.results.failed(&format!("cache {who}"), &why),
                }
                self.progress.step("cache", CACHE_S);
            }
        }
        for who in PEERS {
            match cache::survivors(who, &self.test_bed) {
                Ok(survivors) => drop(self.results.survivors.insert(who, survivors)),
                Err(why) => self.results.failed(&format!("cache {who}, killed"), &why),
            }
            self.progress.step("cache, killed", KILL_S);
        }
    }
}

fn print(
    out: &mut impl Write,
    args: &Args,
    results: &Results,
    (server_cpu, client_cpu): (usize, usize),
) -> io::Result<()> {
    let client = if args.lean { "loadgen" } else { "fio" };
    let method = format!(
        "Servers on CPU {server_cpu}, {client} on CPU {client_cpu}; medians of {} runs of {} s. \
         CPU: of the server, a request; ours/: ours as a multiple of the server's (of bandwidth it \
         is that of IOPS). _qd: requests in flight of each connection, _c: connections.",
        args.rounds, args.seconds
    );
    if args.markdown {
        writeln!(out, "{method}\n")?;
        results.served.iter().try_for_each(|what| writeln!(out, "- {what}"))?;
        let tables = results.tables(args.size_mib);
        tables.iter().try_for_each(|table| write!(out, "\n{}", table.markdown()))?;
        writeln!(out)?;
        results.errors().iter().try_for_each(|error| writeln!(out, "- not measured: {error}"))?;
    } else {
        results.served.iter().try_for_each(|what| writeln!(out, "{what}"))?;
        writeln!(out, "\n{method}")?;
        let tables = results.tables(args.size_mib);
        tables.iter().try_for_each(|table| write!(out, "\n{table}"))?;
        results.errors().iter().try_for_each(|error| writeln!(out, "not measured: {error}"))?;
    }
    let mut keys = results.keys();
    keys.insert("bench".to_owned(), json!("peers"));
    keys.insert("size_mib".to_owned(), json!(args.size_mib));
    writeln!(out, "{}", serde_json::Value::Object(keys))
}

fn bench(args: &Args) -> Result<(), String> {
    let (server_cpu, client_cpu) = match cpus()[..] {
        [first, second, ..] => (first, second),
        _ => return Err("needs two CPUs: one for the servers, one for the client".into()),
    };
    let parts: Vec<&str> = GROUPS.iter().map(|g| g.key()).chain(["cache"]).collect();
    if let Some(unknown) = args.only.iter().find(|part| !parts.contains(&&part[..])) {
        return Err(format!("--only {unknown}: {} are allowed", parts.join(", ")));
    }
    let ours = args.ours.program()?;
    let folder = |dir: &PathBuf| tempfile::Builder::new().prefix("millpond-peers-").tempdir_in(dir);
    let failed = |e: io::Error| e.to_string();
    let (dir, memory_dir) =
        (folder(&args.dir.dir).map_err(failed)?, folder(&args.memory_dir).map_err(failed)?);
    let test_bed = TestBed {
        dir: dir.path().to_owned(),
        memory_dir: memory_dir.path().to_owned(),
        ours,
        cpus: vec![server_cpu],
        bytes: args.size_mib << 20,
    };
    pin(client_cpu).map_err(|e| format!("cannot pin to CPU {client_cpu}: {e}"))?;
    let progress = Progress::begin(args.expected_s());
    let mut bench = Bench { args, test_bed, results: Results::default(), progress };
    for part in GROUPS.into_iter().filter(|g| args.wanted(g.key())) {
        bench.group(part);
    }
    if args.wanted("cache") {
        bench.caches();
    }
    let mut results = bench.results;
    results
        .failed("SPDK", "Debian has no package of it: no peer for mapping layers, nor OCF's cache");
    print(&mut stdout().lock(), args, &results, (server_cpu, client_cpu)).map_err(failed)
}

pub(crate) fn main(args: &Args) -> ExitCode {
    ended("peers", bench(args))
}
