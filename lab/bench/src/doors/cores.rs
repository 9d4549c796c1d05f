// SPDX-License-Identifier: Apache-2.0 OR MIT
//! One device served to four NBD connections by one core, and by two: what a request takes, and how
//! the cores share the work. Servers and clients may use all CPUs. So many requests are in flight
//! that two cores find as many at a time as one: else it is the batches that are compared.
use reproduce::median::{median_of, median_ratio};
use reproduce::report::{Goal, Requirement};
use reproduce::rounds::turns;
use reproduce::table::{Table, fixed};

use super::{Backing, DoorKind, DoorServer};
use crate::peers::TestBed;
use crate::peers::client::Job;

const CORES: [&str; 2] = ["1", "2"];
const JOBS: [Job; 2] = [
    Job { rw: "randread", kib: 4, depth: 64, connections: 4 },
    Job { rw: "randwrite", kib: 4, depth: 64, connections: 4 },
];
/// A request on two cores may take so much more CPU than on one.
const CPU_MAX: f64 = 1.15;
/// No core may have more of the work.
const SHARE_MAX: f64 = 0.60;

/// One run against one server.
struct Run {
    iops: f64,
    /// The server's CPU for a request, microseconds.
    cpu_us: f64,
    /// What the busiest core has used of the CPU of all.
    busiest: f64,
}

/// What was measured.
#[derive(Debug)]
pub struct Figures {
    pub table: Table,
    pub goals: Vec<Goal>,
}

/// Serves each of `backings` by one core and by two, and compares.
///
/// # Errors
/// What a server or a client said.
pub fn measure(
    backings: &[Backing],
    test_bed: &TestBed,
    (rounds, seconds): (u16, f64),
    requirement: Requirement,
) -> Result<Figures, String> {
    let figures = ["requests/s", "CPU us", "of one core's", "busiest core"];
    let title = "NBD, four connections, 64 requests of 4 KiB in flight on each";
    let mut table = Table::new(title, &["backing", "job", "cores"], &figures);
    let mut goals = Vec::new();
    for &backing in backings {
        let start = |who: &'static str| {
            DoorServer::ours(
                who,
                &["--cores", who],
                backing,
                &TestBed { dir: test_bed.folder("cores")?, ..test_bed.clone() },
            )
        };
        let servers = [start(CORES[0])?, start(CORES[1])?];
        for job in &JOBS {
            let mut runs = [Vec::new(), Vec::new()];
            for (_, nth) in turns(rounds.into(), CORES.len()) {
                runs[nth].push(run(&servers[nth], job, seconds)?);
            }
            let cpu = |nth: usize| runs[nth].iter().map(|run| run.cpu_us).collect::<Vec<_>>();
            let to_one = median_ratio(&cpu(1), &cpu(0));
            for (nth, runs) in runs.iter().enumerate() {
                table.row(
                    &[backing.name(), job.rw, CORES[nth]],
                    [
                        fixed(median_of(runs, |run| run.iops), 0),
                        fixed(median_of(runs, |run| run.cpu_us), 2),
                        fixed(if nth == 0 { 1.0 } else { to_one }, 2),
                        fixed(median_of(runs, |run| run.busiest), 2),
                    ],
                );
            }
            let what = format!("NBD on two cores, {} {}", backing.name(), job.rw);
            let goal = |what: String, figure, bound| Goal {
                what,
                figure,
                bound,
                is_at_most: true,
                requirement,
            };
            let busiest = median_of(&runs[1], |run| run.busiest);
            goals.push(goal(format!("{what}: CPU of a request, to one core"), to_one, CPU_MAX));
            goals.push(goal(format!("{what}: share of the busiest core"), busiest, SHARE_MAX));
        }
    }
    Ok(Figures { table, goals })
}

fn run(served: &DoorServer, job: &Job, seconds: f64) -> Result<Run, String> {
    let server = &served.server;
    let (cpu, cores) = (server.cpu_seconds(), server.thread_seconds("core"));
    let done = served.run(DoorKind::Nbd, job, seconds)?;
    let cpu_us = (server.cpu_seconds() - cpu) * 1e6 / done.ios;
    let after = server.thread_seconds("core");
    let used: Vec<f64> = after.iter().zip(&cores).map(|(after, before)| after - before).collect();
    let busiest = used.iter().copied().fold(0.0, f64::max) / used.iter().sum::<f64>();
    Ok(Run { iops: done.iops, cpu_us, busiest })
}
