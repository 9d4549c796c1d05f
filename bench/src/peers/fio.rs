// SPDX-License-Identifier: Apache-2.0 OR MIT
//! One run of fio, over NBD or on a file, and what it cost the server.
use std::path::Path;
use std::process::Command;

use serde_json::Value;

use super::serve::{Door, Served};

/// What fio does.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct Job {
    /// fio's name: `randread`, `write` ...
    pub rw: &'static str,
    /// Kibibytes of a request.
    pub kib: u32,
    pub depth: u32,
    /// Connections, each with its own depth.
    pub connections: u32,
}

impl Job {
    /// For tables and keys.
    pub fn name(&self) -> String {
        let Job { rw, kib, depth, connections } = self;
        let size = if *kib < 1024 { format!("{kib}k") } else { format!("{}m", kib / 1024) };
        format!("{rw}_{size}_qd{depth}_c{connections}")
    }
}

/// How long.
#[derive(Clone, Copy, Debug)]
pub enum Until {
    /// Seconds.
    Time(f64),
    /// Each block of the first so many bytes once, in random order.
    Written(u64),
}

/// What came of it.
#[derive(Clone, Copy, Debug)]
pub struct Run {
    pub iops: f64,
    pub bytes_per_s: f64,
    /// Microseconds.
    pub p99_us: f64,
    /// The server's CPU for a request, microseconds.
    pub cpu_us: f64,
    /// Resident memory of the server afterwards, bytes.
    pub resident_bytes: u64,
}

/// Runs a job against a server, with data of which half can be compressed.
///
/// # Errors
/// What fio said.
pub fn run(served: &Served, job: &Job, until: Until) -> Result<Run, String> {
    let mut command = Command::new("fio");
    command.args(["--name=bench", "--group_reporting", "--output-format=json"]);
    command.args(["--buffer_compress_percentage=50", "--refill_buffers"]);
    match &served.door {
        Door::Nbd { socket, export } => {
            let uri = format!("nbd+unix:///{export}?socket={}", socket.display());
            command.args(["--ioengine=nbd", &format!("--uri={uri}")]);
        }
        Door::File(file) => {
            // fio splits names at colons.
            let name = file.display().to_string().replace(':', "\\:");
            command.args(["--ioengine=io_uring", "--direct=1", "--allow_file_create=0"]);
            command.arg(format!("--filename={name}"));
        }
    }
    match until {
        Until::Time(s) => {
            command.args(["--time_based", &format!("--runtime={}ms", (s * 1e3) as u64)]);
            command.arg(format!("--size={}", served.bytes));
        }
        Until::Written(bytes) => {
            command.arg(format!("--size={}", served.bytes)).arg(format!("--io_size={bytes}"));
        }
    }
    command.args([format!("--rw={}", job.rw), format!("--bs={}k", job.kib)]);
    command.args([format!("--iodepth={}", job.depth), format!("--numjobs={}", job.connections)]);
    let before = served.server.cpu_seconds_of_all();
    let output = command.output().map_err(|e| format!("fio: {e}"))?;
    let cpu_s = served.server.cpu_seconds_of_all() - before;
    let result = parse(&output.stdout, job.rw.ends_with("write"));
    let (iops, bytes_per_s, ios, p99_ns) =
        result.filter(|_| output.status.success()).ok_or_else(|| {
            let text = String::from_utf8_lossy(&output.stderr).into_owned();
            let line = text.lines().find(|l| !l.trim().is_empty()).unwrap_or("no result");
            format!("fio {}: {line}", job.name())
        })?;
    let resident_bytes = served.server.resident_bytes();
    let (p99_us, cpu_us) = (p99_ns / 1e3, cpu_s * 1e6 / ios.max(1.0));
    Ok(Run { iops, bytes_per_s, p99_us, cpu_us, resident_bytes })
}

/// I/Os a second, bytes a second, I/Os, the 99th percentile in nanoseconds.
fn parse(stdout: &[u8], writes: bool) -> Option<(f64, f64, f64, f64)> {
    // Before the JSON stands what the engine has to say.
    let begin = stdout.iter().position(|b| *b == b'{')?;
    let parsed: Value = serde_json::from_slice(&stdout[begin..]).ok()?;
    let side = &parsed["jobs"][0][if writes { "write" } else { "read" }];
    let number = |v: &Value| v.as_f64();
    let p99_ns = number(&side["clat_ns"]["percentile"]["99.000000"])?;
    Some((number(&side["iops"])?, number(&side["bw_bytes"])?, number(&side["total_ios"])?, p99_ns))
}

/// Asks a server to flush, and waits; seconds.
///
/// # Errors
/// What the server said.
pub fn flush(socket: &Path, export: &str) -> Result<f64, String> {
    let failed = |e: std::io::Error| format!("flush: {e}");
    let mut conn = crate::conn::Conn::open(socket, export).map_err(failed)?;
    let begin = reproduce::clock();
    conn.flush().map_err(failed)?;
    Ok(reproduce::clock() - begin)
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn a_result_is_found_behind_what_the_engine_says() {
        let text = br#"note: nbd
{"jobs":[{"read":{"iops":10.5,"bw_bytes":43008,"total_ios":21,
"clat_ns":{"percentile":{"99.000000":1500}}},"write":{"iops":0}}]}"#;
        assert_eq!(parse(text, false), Some((10.5, 43008.0, 21.0, 1500.0)));
        assert_eq!(parse(text, true), None, "nothing was written");
        assert_eq!(parse(b"fio: failed", false), None);
    }
}
