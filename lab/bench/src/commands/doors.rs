// SPDX-License-Identifier: Apache-2.0 OR MIT
//! `make bench-doors`: 4 KiB requests to one device through NBD, FUSE and vhost-user, ours beside
//! qemu-storage-daemon's, in one run, by turns; with the system calls and wake-ups of a request.
//!
//! All servers run on one CPU and all clients on another. The block device of the kernel (ublk) is
//! not here: it needs another kernel, in a guest (`make guest`).
use std::path::Path;
use std::process::ExitCode;

use bench::doors::counts::{Counter, sleeps};
use bench::doors::{Backing, DoorKind, DoorServer, cores};
use bench::output::{Dir, ProgramOption, finish, positive, progress};
use bench::peers::TestBed;
use bench::peers::client::Job;
use reproduce::cpu::{cpus, pin, pin_to};
use reproduce::median::{median_of, median_ratio, spread_percent};
use reproduce::report::{Goal, Requirement, Section};
use reproduce::rounds::turns;
use reproduce::table::{Table, fixed};

/// Compares our doors with qemu-storage-daemon's: requests a second, CPU, system calls, wake-ups
#[derive(Debug, clap::Args)]
#[command(after_help = "\
Examples:
  make bench-doors
  make bench-doors ARGS='--rounds 9 --only nbd,null --busy-poll 20us'")]
pub(crate) struct Args {
    #[command(flatten)]
    dir: Dir,
    #[command(flatten)]
    ours: ProgramOption,
    /// How often everything is run
    #[arg(long, default_value_t = 5, value_parser = clap::value_parser!(u16).range(1..))]
    rounds: u16,
    /// Seconds of each run
    #[arg(long, default_value_t = 0.5, value_parser = positive)]
    seconds: f64,
    /// Size of each device in MiB
    #[arg(long, default_value_t = 256, value_parser = clap::value_parser!(u64).range(4..1 << 20))]
    size_mib: u64,
    /// Only these doors and devices
    #[arg(long, value_delimiter = ',', value_parser = ONLY)]
    only: Vec<String>,
    /// What our second daemon has for `--busy-poll`
    #[arg(long, default_value = "50us")]
    busy_poll: String,
}

impl Args {
    fn requirement(&self) -> Requirement {
        match self.seconds >= 0.5 && self.rounds >= 3 {
            true => Requirement::Required,
            false => Requirement::FullSizeOnly,
        }
    }

    /// Whether `--only` has `name`, or none of its `kind`.
    fn names(&self, kind: &[&str], name: &str) -> bool {
        let mut of_kind = self.only.iter().filter(|only| kind.contains(&only.as_str())).peekable();
        of_kind.peek().is_none() || of_kind.any(|only| only == name)
    }
}

/// Who serves: ours, ours with `--busy-poll`, and the peer.
const NAMES: [&str; 3] = ["ours", "polling", "qsd"];
const QSD: usize = 2;
const BACKINGS: [Backing; 2] = [Backing::Null, Backing::File];
const DOORS: [DoorKind; 4] =
    [DoorKind::Nbd, DoorKind::Fuse, DoorKind::Vhost, DoorKind::PolledVhost];
/// The section that compares one core with two.
const CORES: &str = "cores";
const ONLY: [&str; 7] = ["nbd", "fuse", "vhost", "vhost-poll", CORES, "null", "file"];
/// A polling core is for clients that wait for each answer; it saves the front end of vhost-user
/// wake-ups at every depth.
const POLLED_DEPTH: u32 = 1;

/// One run of a client.
struct Run {
    iops: f64,
    /// The server's CPU for a request, microseconds.
    cpu_us: f64,
    /// How often a thread of the server was woken, for a request.
    wake_ups: f64,
}

/// What is measured, and the runs of each server.
struct Cell {
    backing: Backing,
    door: DoorKind,
    job: Job,
    runs: [Vec<Run>; NAMES.len()],
    /// System calls for a request.
    calls: [f64; NAMES.len()],
}

impl Cell {
    fn key(&self) -> String {
        let Job { rw, depth, .. } = self.job;
        format!("{}_{}_{rw}_qd{depth}", self.backing.name(), self.door.name())
    }

    fn has(&self, nth: usize) -> bool {
        let is_polled = match self.door {
            DoorKind::Vhost | DoorKind::PolledVhost => true,
            DoorKind::Nbd => self.job.depth == POLLED_DEPTH,
            DoorKind::Fuse => false,
        };
        NAMES[nth] != "polling" || is_polled
    }

    /// The median of the ratios of rounds, to qemu-storage-daemon.
    fn ratio(&self, nth: usize, figure: impl Fn(&Run) -> f64) -> f64 {
        let of = |nth: usize| self.runs[nth].iter().map(&figure).collect::<Vec<_>>();
        median_ratio(&of(nth), &of(QSD))
    }
}

fn per_cpu_second(run: &Run) -> f64 {
    1e6 / run.cpu_us
}

fn cells() -> Vec<Cell> {
    let mut cells = Vec::new();
    for backing in BACKINGS {
        for door in DOORS {
            for (rw, depth) in [("randread", 1), ("randread", 32), ("randwrite", 32)] {
                let job = Job { rw, kib: 4, depth, connections: 1 };
                let (runs, calls) = (Default::default(), [f64::NAN; NAMES.len()]);
                cells.push(Cell { backing, door, job, runs, calls });
            }
        }
    }
    cells
}

/// One server and what is asked of it.
struct Measurement<'a> {
    served: &'a DoorServer,
    cell: &'a Cell,
    seconds: f64,
}

impl Measurement<'_> {
    fn requests(&self) -> Result<f64, String> {
        let Cell { door, job, .. } = self.cell;
        Ok(self.served.run(*door, job, self.seconds)?.ios)
    }

    fn run(&self) -> Result<Run, String> {
        let (server, Cell { door, job, .. }) = (&self.served.server, self.cell);
        let (cpu, before) = (server.cpu_seconds(), sleeps(server.id()));
        let done = self.served.run(*door, job, self.seconds)?;
        let cpu_us = (server.cpu_seconds() - cpu) * 1e6 / done.ios;
        let slept = sleeps(server.id()).saturating_sub(before);
        Ok(Run { iops: done.iops, cpu_us, wake_ups: slept as f64 / done.ios })
    }

    fn system_calls(&self, counter: Counter, dir: &Path) -> Result<f64, String> {
        let id = self.served.server.id();
        let (calls, requests) = counter.system_calls(id, dir, || self.requests())?;
        Ok(calls / requests)
    }
}

fn table(cells: &[Cell]) -> Table {
    let texts = ["backing", "door", "job", "server"];
    let figures =
        ["requests/s", "+-%", "to qsd", "CPU us", "per CPU s, to qsd", "wake-ups", "system calls"];
    let mut table = Table::new("4 KiB requests, one client", &texts, &figures);
    for cell in cells {
        let job = format!("{} {}", cell.job.rw, cell.job.depth);
        for (nth, runs) in cell.runs.iter().enumerate().filter(|(_, runs)| !runs.is_empty()) {
            let iops: Vec<f64> = runs.iter().map(|run| run.iops).collect();
            table.row(
                &[cell.backing.name(), cell.door.name(), &job, NAMES[nth]],
                [
                    fixed(median_of(runs, |run| run.iops), 0),
                    fixed(spread_percent(&iops), 0),
                    fixed(cell.ratio(nth, |run| run.iops), 2),
                    fixed(median_of(runs, |run| run.cpu_us), 2),
                    fixed(cell.ratio(nth, per_cpu_second), 2),
                    fixed(median_of(runs, |run| run.wake_ups), 2),
                    fixed(cell.calls[nth], 2),
                ],
            );
        }
    }
    table
}

fn goals(cells: &[Cell], requirement: Requirement) -> Vec<Goal> {
    let goal = |what: String, figure: f64, bound: f64, requirement: Requirement| Goal {
        what,
        figure,
        bound,
        is_at_most: false,
        requirement,
    };
    let mut goals = Vec::new();
    for cell in cells {
        let job = format!("{} {} {}", cell.backing.name(), cell.job.rw, cell.job.depth);
        match cell.door {
            DoorKind::Vhost | DoorKind::PolledVhost => {
                let door = cell.door.name();
                for (nth, name) in ["", ", polling"].into_iter().enumerate() {
                    goals.push(goal(
                        format!("{door}, {job}{name}: requests a CPU second, to qsd"),
                        cell.ratio(nth, per_cpu_second),
                        2.0,
                        requirement,
                    ));
                }
            }
            DoorKind::Nbd if cell.job.depth == 1 => {
                for (nth, name) in ["", ", polling"].into_iter().enumerate() {
                    goals.push(goal(
                        format!("NBD, {job}{name}: requests a second, to qsd"),
                        cell.ratio(nth, |run| run.iops),
                        1.0,
                        requirement,
                    ));
                }
            }
            DoorKind::Nbd | DoorKind::Fuse => {}
        }
    }
    goals
}

fn section(args: &Args, cells: &[Cell], notes: Vec<String>) -> Section {
    let mut section = Section { name: "doors", ..Section::default() };
    for cell in cells {
        for (nth, runs) in cell.runs.iter().enumerate().filter(|(_, runs)| !runs.is_empty()) {
            let key = |what: &str| format!("{}_{}_{what}", NAMES[nth], cell.key());
            section.put(key("iops"), median_of(runs, |run| run.iops));
            section.put(key("cpu_us_per_io"), median_of(runs, |run| run.cpu_us));
            section.put(key("wake_ups_per_io"), median_of(runs, |run| run.wake_ups));
            section.put(key("system_calls_per_io"), cell.calls[nth]);
        }
    }
    section.tables.push(table(cells));
    section.goals = goals(cells, args.requirement());
    section.notes = notes;
    section
}

fn bench(args: &Args) -> Result<Section, String> {
    let (server_cpu, client_cpu) = match cpus()[..] {
        [first, second, ..] => (first, second),
        _ => return Err("needs two CPUs: one for the servers, one for the clients".into()),
    };
    let dir = tempfile::Builder::new().prefix("millpond-bench-doors-").tempdir_in(&args.dir.dir);
    let dir = dir.map_err(|e| format!("{}: {e}", args.dir.dir.display()))?;
    let test_bed = TestBed {
        dir: dir.path().to_owned(),
        memory_dir: dir.path().to_owned(),
        ours: args.ours.program()?,
        cpus: vec![server_cpu],
        bytes: args.size_mib << 20,
    };
    let counter = Counter::find();
    let mut notes = vec![format!(
        "servers on CPU {server_cpu}, clients on CPU {client_cpu}; medians of {} runs of {} s, \
         ratios of the same round; CPU us: the server's for a request; polling: ours with \
         --busy-poll {}; vhost-poll: the front end polls; system calls: counted by {}",
        args.rounds,
        args.seconds,
        args.busy_poll,
        counter.name()
    )];
    let mut cells = cells();
    let sections = ["nbd", "fuse", "vhost", "vhost-poll", CORES];
    cells.retain(|cell| args.names(&sections, cell.door.name()));
    cells.retain(|cell| args.names(&BACKINGS.map(Backing::name), cell.backing.name()));
    let mut servers = Vec::new();
    let needed = |backing: &Backing| cells.iter().any(|cell| cell.backing == *backing);
    for backing in BACKINGS.into_iter().filter(needed) {
        let started = [
            DoorServer::ours(NAMES[0], &[], backing, &test_bed),
            DoorServer::ours(NAMES[1], &["--busy-poll", &args.busy_poll], backing, &test_bed),
            DoorServer::qsd(backing, &test_bed),
        ];
        for (started, name) in started.into_iter().zip(NAMES) {
            match started {
                Ok(served) => servers.push(served),
                Err(e) => notes.push(format!("{name}, {}: not measured: {e}", backing.name())),
            }
        }
    }
    pin(client_cpu).map_err(|e| format!("cannot pin to CPU {client_cpu}: {e}"))?;
    notes.extend(servers.iter().map(|served| served.what.clone()));
    let mut errors = Vec::new();
    for at in 0..cells.len() {
        progress(at as f64 / cells.len() as f64, &cells[at].key());
        measure(&mut cells[at], &servers, (args, dir.path(), counter), &mut errors);
    }
    errors.dedup();
    notes.extend(errors.into_iter().map(|e| format!("not measured: {e}")));
    drop(servers);
    let mut cores = None;
    if args.names(&sections, CORES) {
        let all = [server_cpu, client_cpu];
        pin_to(&all).map_err(|e| format!("cannot pin to CPUs {all:?}: {e}"))?;
        let test_bed = TestBed { cpus: all.to_vec(), ..test_bed };
        let of_args = |backing: &Backing| args.names(&BACKINGS.map(Backing::name), backing.name());
        let backings: Vec<Backing> = BACKINGS.into_iter().filter(of_args).collect();
        let length = (args.rounds, args.seconds);
        cores = Some(cores::measure(&backings, &test_bed, length, args.requirement())?);
    }
    let mut section = section(args, &cells, notes);
    if let Some(cores::Figures { table, goals }) = cores {
        section.tables.push(table);
        section.goals.extend(goals);
    }
    Ok(section)
}

/// All rounds of one cell, the servers by turns.
fn measure(
    cell: &mut Cell,
    servers: &[DoorServer],
    (args, dir, counter): (&Args, &Path, Counter),
    errors: &mut Vec<String>,
) {
    for (round, nth) in turns(usize::from(args.rounds), NAMES.len()) {
        let fits = |s: &&DoorServer| s.backing == cell.backing && s.who == NAMES[nth];
        let Some(served) = servers.iter().find(fits).filter(|_| cell.has(nth)) else { continue };
        let one = Measurement { served, cell, seconds: args.seconds };
        let (measured, counted) = (one.run(), (round == 0).then(|| one.system_calls(counter, dir)));
        let mut failed = |e: String| errors.push(format!("{}, {}: {e}", NAMES[nth], cell.key()));
        let run = measured.map_err(&mut failed).ok();
        let calls = counted.and_then(|counted| counted.map_err(&mut failed).ok());
        cell.runs[nth].extend(run);
        if let Some(calls) = calls {
            cell.calls[nth] = calls;
        }
    }
}

pub(crate) fn main(args: &Args) -> ExitCode {
    finish("doors", bench(args))
}
