// SPDX-License-Identifier: Apache-2.0 OR MIT
//! One run of a client, over NBD or on a file, and what it cost the server.
//!
//! fio costs 5 to 8 µs of CPU a 4 KiB request, more than a good server, and hides it;
//! `loadgen --uri` a quarter of that.
use std::path::Path;
use std::process::Command;

use reproduce::dm_bench::load_generator;
use serde_json::Value;

use super::serve::{Endpoint, Served};

/// Who asks.
#[derive(Clone, Copy, Debug)]
pub enum Client {
    Fio,
    /// `loadgen --uri`.
    Lean,
}

/// What it does.
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
pub enum RunLength {
    /// Seconds.
    Time(f64),
    /// Each block of the first so many bytes once.
    Written(u64),
}

/// What came of it.
#[derive(Clone, Copy, Debug)]
pub struct Run {
    pub iops: f64,
    pub bytes_per_s: f64,
    /// Microseconds.
    pub p99_us: f64,
    /// The server's CPU for a request, microseconds; NaN where it has no process.
    pub cpu_us: f64,
    /// The server's memory afterwards.
    pub memory_bytes: u64,
}

/// Runs a job against a server; what fio writes can be compressed to half.
///
/// # Errors
/// What the client said.
pub fn run(client: Client, served: &Served, job: &Job, until: RunLength) -> Result<Run, String> {
    let before = served.host.cpu_seconds();
    let done = ask(client, (&served.endpoint, served.bytes), job, until)?;
    let cpu_s = served.host.cpu_seconds() - before;
    let Done { iops, bytes_per_s, ios, p99_ns } = done;
    let memory_bytes = served.memory_bytes();
    let (p99_us, cpu_us) = (p99_ns / 1e3, cpu_s * 1e6 / ios.max(1.0));
    Ok(Run { iops, bytes_per_s, p99_us, cpu_us, memory_bytes })
}

/// Runs a job against a device of so many bytes.
///
/// # Errors
/// What the client said.
pub fn ask(
    client: Client,
    device: (&Endpoint, u64),
    job: &Job,
    until: RunLength,
) -> Result<Done, String> {
    let mut command = match client {
        Client::Fio => fio(device, job, until),
        Client::Lean => lean(device.0, job, until)?,
    };
    let name = command.get_program().to_string_lossy().into_owned();
    let output = command.output().map_err(|e| format!("{name}: {e}"))?;
    parse(&output.stdout, job.rw.ends_with("write")).filter(|_| output.status.success()).ok_or_else(
        || {
            let text = String::from_utf8_lossy(&output.stderr).into_owned();
            let line = text.lines().find(|l| !l.trim().is_empty()).unwrap_or("no result");
            format!("{name}: {}: {line}", job.name())
        },
    )
}

fn fio((endpoint, bytes): (&Endpoint, u64), job: &Job, until: RunLength) -> Command {
    let mut command = Command::new("fio");
    command.args(["--name=bench", "--group_reporting", "--output-format=json"]);
    command.args(["--buffer_compress_percentage=50", "--refill_buffers"]);
    match endpoint {
        Endpoint::Nbd { .. } => {
            command.args(["--ioengine=nbd", &format!("--uri={}", endpoint.uri())]);
        }
        Endpoint::File(file) => {
            // fio splits names at colons.
            let name = file.display().to_string().replace(':', "\\:");
            command.args(["--ioengine=io_uring", "--direct=1", "--allow_file_create=0"]);
            command.arg(format!("--filename={name}"));
        }
    }
    match until {
        RunLength::Time(s) => {
            command.args(["--time_based", &format!("--runtime={}ms", (s * 1e3) as u64)]);
            command.arg(format!("--size={bytes}"));
        }
        RunLength::Written(written) => {
            command.arg(format!("--size={bytes}")).arg(format!("--io_size={written}"));
        }
    }
    command.args([format!("--rw={}", job.rw), format!("--bs={}k", job.kib)]);
    command.args([format!("--iodepth={}", job.depth), format!("--numjobs={}", job.connections)]);
    command
}

fn lean(endpoint: &Endpoint, job: &Job, until: RunLength) -> Result<Command, String> {
    if matches!(endpoint, Endpoint::File(_)) {
        return Err("loadgen --uri is for NBD".to_owned());
    }
    let mut command = Command::new(load_generator()?);
    command.args(["--uri", &endpoint.uri(), "--output", "json", "--rw", job.rw]);
    command.args(["--buffer-compress-percentage", "50"]);
    command.args(["--bs", &format!("{}K", job.kib), "--iodepth", &job.depth.to_string()]);
    command.args(["--jobs", &job.connections.to_string()]);
    match until {
        RunLength::Time(s) => command.args(["--runtime", &format!("{}ms", (s * 1e3) as u64)]),
        RunLength::Written(bytes) => {
            let ios = bytes / (u64::from(job.kib) << 10);
            command.args(["--number-ios", &ios.to_string()])
        }
    };
    Ok(command)
}

/// What a client says.
#[derive(Clone, Copy, Debug, PartialEq)]
pub struct Done {
    pub iops: f64,
    pub bytes_per_s: f64,
    /// Requests in all.
    pub ios: f64,
    pub p99_ns: f64,
}

/// Takes fio's JSON, or that of `loadgen`, which has all jobs together as `devices`.
fn parse(stdout: &[u8], writes: bool) -> Option<Done> {
    // Before the JSON stands what an engine of fio has to say.
    let begin = stdout.iter().position(|b| *b == b'{')?;
    let parsed: Value = serde_json::from_slice(&stdout[begin..]).ok()?;
    let all = parsed.get("devices").unwrap_or(&parsed["jobs"]);
    let side = &all[0][if writes { "write" } else { "read" }];
    Some(Done {
        iops: side["iops"].as_f64()?,
        bytes_per_s: side["bw_bytes"].as_f64()?,
        ios: side["total_ios"].as_f64()?,
        p99_ns: side["clat_ns"]["percentile"]["99.000000"].as_f64()?,
    })
}

/// Asks a server to flush, and waits; seconds.
///
/// # Errors
/// What the server said.
pub fn flush(socket: &Path, export: &str) -> Result<f64, String> {
    let failed = |e: std::io::Error| format!("flush: {e}");
    let mut client = e2e::client::Client::connect(socket, export).map_err(failed)?;
    // A server with much to write back takes minutes.
    client.stream().set_read_timeout(None).map_err(failed)?;
    let begin = reproduce::clock();
    client.flush().map_err(failed)?;
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
        let done = Done { iops: 10.5, bytes_per_s: 43008.0, ios: 21.0, p99_ns: 1500.0 };
        assert_eq!(parse(text, false), Some(done));
        let ours = text.strip_prefix(b"note: nbd\n").unwrap();
        let ours = String::from_utf8_lossy(ours).replace("jobs", "devices");
        assert_eq!(parse(ours.as_bytes(), false), Some(done));
        assert_eq!(parse(text, true), None, "nothing was written");
        assert_eq!(parse(b"fio: failed", false), None);
    }
}
