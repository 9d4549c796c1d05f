// SPDX-License-Identifier: Apache-2.0 OR MIT
//! Compressed memory over NBD: the servers of bench-peers, ours and nbdkit's, with our lean client;
//! half compressible data, speed and memory.
use std::path::Path;

use reproduce::cpu::{cpus, pin};
use reproduce::median::{median, median_ratio};
use reproduce::report::Section;
use reproduce::rounds::turns;
use reproduce::table::{Table, fixed};
use serde_json::json;

use crate::peers::TestBed;
use crate::peers::client::{Client, Job, Run, RunLength, run};
use crate::peers::serve::{EXPORT, FILL, Group, Served};

/// Of each device, as it was for the figures of other servers.
const SIZE_BYTES: u64 = 512 << 20;
/// Requests in flight.
const DEPTH: u32 = 16;
/// Who serves, and what begins the keys of the JSON line.
const NAMES: [(&str, &str); 3] =
    [("ours", "ours"), ("ours_lz4", "ours_lz4"), ("nbdkit", "nbdkit_zstd")];

const fn job(rw: &'static str) -> Job {
    Job { rw, kib: 4, depth: DEPTH, connections: 1 }
}

const JOBS: [Job; 2] = [job("randwrite"), job("randread")];

/// A server, filled, and what it has done.
struct Filled {
    key: &'static str,
    served: Served,
    /// Resident before it was filled.
    empty_bytes: u64,
    /// Growth of what is resident, after the fill and after all rounds; and what `mm_stat` calls
    /// used, where there is one.
    grown_bytes: [u64; 2],
    mem_used_bytes: [Option<u64>; 2],
    /// Of each of [`JOBS`].
    runs: [Vec<Run>; 2],
}

impl Filled {
    /// Starts a server and fills it.
    fn start(
        (who, key): (&'static str, &'static str),
        test_bed: &TestBed,
    ) -> Result<Filled, String> {
        let served = Served::start(Group::Compressed, who, test_bed)?;
        let mut filled = Filled {
            key,
            empty_bytes: served.memory_bytes(),
            served,
            grown_bytes: [0; 2],
            mem_used_bytes: [None; 2],
            runs: [Vec::new(), Vec::new()],
        };
        run(Client::Lean, &filled.served, &FILL, RunLength::Written(test_bed.bytes))?;
        filled.look(0, test_bed);
        Ok(filled)
    }

    /// Looks at its memory, after the fill (0) or at the end (1).
    fn look(&mut self, when: usize, test_bed: &TestBed) {
        self.grown_bytes[when] = self.served.memory_bytes().saturating_sub(self.empty_bytes);
        let told = self.served.say(&test_bed.ours, &["get", EXPORT, "mm_stat"]);
        let used = told.ok().and_then(|text| text.split_whitespace().nth(2)?.parse().ok());
        self.mem_used_bytes[when] = used;
    }

    /// One round: random writes, then random reads.
    fn round(&mut self, seconds: f64) -> Result<(), String> {
        for (job, runs) in JOBS.iter().zip(&mut self.runs) {
            runs.push(run(Client::Lean, &self.served, job, RunLength::Time(seconds))?);
        }
        Ok(())
    }

    /// A figure of all runs of a job.
    fn all(&self, job: usize, figure: impl Fn(&Run) -> f64) -> Vec<f64> {
        self.runs[job].iter().map(figure).collect()
    }
}

/// Serves and measures all of them for so many rounds, each kind of load for so many seconds.
///
/// # Errors
/// What a server or the client said, or that there are too few CPUs.
pub fn section(program: &Path, dir: &Path, rounds: usize, seconds: f64) -> Result<Section, String> {
    let [server_cpu, client_cpu, ..] = cpus()[..] else {
        return Err("needs two CPUs: one for the servers, one for the client".into());
    };
    let made = tempfile::Builder::new().prefix("millpond-bench-").tempdir_in(dir);
    let made = made.map_err(|e| format!("{}: {e}", dir.display()))?;
    let test_bed = TestBed {
        dir: made.path().to_owned(),
        memory_dir: made.path().to_owned(),
        ours: program.to_owned(),
        cpus: vec![server_cpu],
        bytes: SIZE_BYTES,
    };
    pin(client_cpu).map_err(|e| format!("cannot pin to CPU {client_cpu}: {e}"))?;
    let mut all = NAMES
        .into_iter()
        .map(|name| Filled::start(name, &test_bed))
        .collect::<Result<Vec<Filled>, String>>()?;
    for (_, at) in turns(rounds, all.len()) {
        all[at].round(seconds)?;
    }
    all.iter_mut().for_each(|filled| filled.look(1, &test_bed));
    Ok(shown(&all))
}

fn shown(all: &[Filled]) -> Section {
    let mut section = Section::default();
    let mib = |bytes: u64| fixed(bytes as f64 / f64::from(1 << 20), 1);
    let title =
        format!("over NBD, {} MiB, half compressible, 4 KiB, depth {DEPTH}", SIZE_BYTES >> 20);
    let head =
        ["write IOPS", "CPU us", "read IOPS", "CPU us", "RSS MiB", "after", "used MiB", "after"];
    let mut table = Table::new(title, &[""], &head);
    for filled in all {
        let (key, mut figures) = (filled.key, Vec::new());
        for (job, Job { rw, .. }) in JOBS.iter().enumerate() {
            let iops = median(&filled.all(job, |run| run.iops));
            let cpu_us = median(&filled.all(job, |run| run.cpu_us));
            figures.extend([fixed(iops, 0), fixed(cpu_us, 2)]);
            section.put(format!("{key}_{rw}_iops"), iops);
            section.put(format!("{key}_{rw}_cpu_us"), cpu_us);
        }
        for (name, bytes) in ["filled", "overwritten"].iter().zip(filled.grown_bytes) {
            figures.push(mib(bytes));
            section.put(format!("{key}_rss_{name}_bytes"), bytes as f64);
        }
        figures.extend(filled.mem_used_bytes.map(|used| used.map_or("-".into(), mib)));
        section.keys.insert(format!("{key}_mem_used_bytes"), json!(filled.mem_used_bytes));
        table.row(&[key], figures);
    }
    if let [zstd, lz4, nbdkit] = all {
        for ours in [zstd, lz4] {
            let [writes, reads] = [0, 1].map(|job| {
                median_ratio(&ours.all(job, |run| run.iops), &nbdkit.all(job, |run| run.iops))
            });
            table.note(format!("{} / nbdkit: {writes:.1} writes, {reads:.1} reads", ours.key));
        }
    }
    section.tables.push(table);
    section
}
