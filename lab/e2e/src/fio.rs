// SPDX-License-Identifier: Apache-2.0 OR MIT
//! Runs of fio over NBD, and what they measured.
use std::path::{Path, PathBuf};
use std::process::Command;
use std::time::Duration;

use serde_json::Value;

use crate::Result;
use crate::process::{Ended, Job};

/// A run of fio that can be started. It sees one job after another the same way every time.
#[derive(Clone, Debug)]
pub struct Fio {
    dir: PathBuf,
    args: Vec<String>,
}

/// What all jobs of a run did together.
#[derive(Clone, Copy, Debug, PartialEq)]
pub struct Measured {
    /// Writes done.
    pub writes: u64,
    /// Reads done, those of the verification included.
    pub reads: u64,
    /// Writes a second.
    pub write_iops: f64,
    /// Reads a second.
    pub read_iops: f64,
    /// Half of the reads took less; of the first job.
    pub read_p50_us: f64,
}

/// A run that is under way.
#[derive(Debug)]
pub struct Running {
    job: Job,
    report: PathBuf,
}

impl Fio {
    /// 4 KiB requests against the export `uri`; `dir` takes fio's files.
    pub fn new(dir: &Path, uri: &str) -> Fio {
        Fio::with_engine(dir, "nbd").with([&format!("--uri={uri}")])
    }

    /// 4 KiB requests against a file, without a server.
    pub fn on_file(dir: &Path, file: &Path) -> Fio {
        // A colon separates files.
        let file = file.display().to_string().replace(':', "\\:");
        Fio::with_engine(dir, "psync").with([&format!("--filename={file}")])
    }

    fn with_engine(dir: &Path, engine: &str) -> Fio {
        let fio = Fio { dir: dir.into(), args: Vec::new() };
        // Known before other options, which depend on it.
        fio.with(["--name=e2e", &format!("--ioengine={engine}"), "--bs=4k"]).with([
            "--output-format=json",
            "--thread",
            "--group_reporting",
        ])
    }

    /// With more options.
    #[must_use]
    pub fn with<'a>(
        mut self,
        args: impl IntoIterator<Item = &'a (impl AsRef<str> + ?Sized + 'a)>,
    ) -> Fio {
        self.args.extend(args.into_iter().map(|a| a.as_ref().to_owned()));
        self
    }

    /// Starts it.
    pub fn start(&self) -> Result<Running> {
        // Nobody else has this name: the file is there while we have it.
        let report = tempfile::Builder::new().prefix("fio-").tempfile_in(&self.dir);
        let (_, report) = report.and_then(|f| Ok(f.keep()?)).map_err(|e| format!("fio: {e}"))?;
        let mut command = Command::new("fio");
        command.args(&self.args).current_dir(&self.dir);
        command.arg(format!("--output={}", report.display()));
        Ok(Running { job: Job::start(&mut command)?, report })
    }

    /// Runs it to its end, which has to be a success: every verification included.
    pub fn run(&self, limit: Duration) -> Result<Measured> {
        self.start()?.wait(limit)
    }
}

impl Running {
    /// Whether it still runs.
    pub fn is_running(&self) -> bool {
        self.job.is_running()
    }

    /// Waits for its end, which has to be a success.
    pub fn wait(self, limit: Duration) -> Result<Measured> {
        let report = self.report.clone();
        let ended = self.job.wait(limit)?;
        let text = std::fs::read_to_string(&report).unwrap_or_default();
        if ended.code != 0 {
            return Err(complaint(&ended, &text));
        }
        measured(&text).ok_or_else(|| format!("fio: its report is not understood: {text}"))
    }

    /// Waits for its end after the server was killed: which has to be a failure:
    /// returns what it said.
    pub fn wait_failed(self, limit: Duration) -> Result<String> {
        let ended = self.job.wait(limit)?;
        match ended.code {
            0 => Err("fio: the server was killed, but fio did not fail".into()),
            _ => Ok(ended.complaint()),
        }
    }
}

/// The command and the first of fio's many lines, where the cause stands.
fn complaint(ended: &Ended, report: &str) -> String {
    let before_json = report.split('{').next().unwrap_or_default();
    let lines = ended.stderr.lines().chain(before_json.lines()).take(5);
    let lines: String = lines.map(|l| format!("\n  | {l}")).collect();
    format!("{}: exit code {}{lines}", ended.name, ended.code)
}

/// 0 where nothing was read.
fn p50_us(direction: &Value) -> f64 {
    direction["clat_ns"]["percentile"]["50.000000"].as_f64().unwrap_or(0.0) / 1000.0
}

fn measured(report: &str) -> Option<Measured> {
    // Messages may stand before the JSON.
    let json = &report[report.find('{')?..];
    let json: Value = serde_json::from_str(json).ok()?;
    let jobs = json["jobs"].as_array()?;
    let sum = |of: &str, key: &str| jobs.iter().map(|j| j[of][key].as_f64()).sum::<Option<f64>>();
    Some(Measured {
        writes: sum("write", "total_ios")? as u64,
        reads: sum("read", "total_ios")? as u64,
        write_iops: sum("write", "iops")?,
        read_iops: sum("read", "iops")?,
        read_p50_us: p50_us(&jobs.first()?["read"]),
    })
}
