// SPDX-License-Identifier: Apache-2.0 OR MIT
//! Processes under measurement: where they run, what CPU time they take, and that they end.
use std::io;
use std::path::Path;
use std::process::{Child, Command, Stdio};

use reproduce::clock;
use reproduce::cpu::{cpus, pin, pin_to};

/// Clock ticks a second in /proc, on every Linux.
const TICKS_PER_SECOND: f64 = 100.0;

/// A server that ends with this value.
#[derive(Debug)]
pub struct Server(Child);

impl Server {
    /// Starts `command` on `cpu` and waits until `socket` can be connected to.
    pub fn start(command: &mut Command, cpu: usize, socket: &Path) -> Result<Server, String> {
        let program = command.get_program().to_string_lossy().into_owned();
        let home = cpus();
        pin(cpu).map_err(|e| format!("cannot pin to CPU {cpu}: {e}"))?;
        let child = command.stdin(Stdio::piped()).stdout(Stdio::null()).stderr(Stdio::piped());
        let child = child.spawn();
        pin_to(&home).map_err(|e| format!("cannot unpin: {e}"))?;
        let mut server = Server(child.map_err(|e| format!("{program}: {e}"))?);
        let give_up = clock() + 10.0;
        while std::os::unix::net::UnixStream::connect(socket).is_err() {
            if let Ok(Some(status)) = server.0.try_wait() {
                return Err(format!("{program}: {status}: {}", server.complaint()));
            }
            if clock() > give_up {
                return Err(format!("{program}: no socket {} after 10 s", socket.display()));
            }
            #[expect(clippy::disallowed_methods, reason = "waits for another process")]
            std::thread::sleep(std::time::Duration::from_millis(20));
        }
        Ok(server)
    }

    /// The first line of what it wrote to its standard error; only for one that has ended.
    fn complaint(&mut self) -> String {
        let text = self.0.stderr.take().map(io::read_to_string).and_then(Result::ok);
        text.unwrap_or_default().lines().next().unwrap_or("no message").to_owned()
    }

    /// CPU seconds that the process has used with all its threads.
    pub fn cpu_seconds(&self) -> f64 {
        let stat = std::fs::read_to_string(format!("/proc/{}/stat", self.0.id()));
        let stat = stat.unwrap_or_default();
        // Fields 14 and 15, counted behind the name, which may hold blanks.
        let fields = stat.rsplit(')').next().unwrap_or_default().split_whitespace();
        fields.skip(11).take(2).filter_map(|f| f.parse::<f64>().ok()).sum::<f64>()
            / TICKS_PER_SECOND
    }
}

impl Server {
    /// Bytes of memory that the process has resident.
    pub fn resident_bytes(&self) -> u64 {
        let status = std::fs::read_to_string(format!("/proc/{}/status", self.0.id()));
        let status = status.unwrap_or_default();
        let line = status.lines().find_map(|l| l.strip_prefix("VmRSS:")).unwrap_or_default();
        let kib = line.trim().trim_end_matches("kB").trim().parse::<u64>();
        kib.unwrap_or_default() << 10
    }
}

impl Drop for Server {
    fn drop(&mut self) {
        // It serves throw-away data, so nothing is lost by the hard way.
        let _ = self.0.kill();
        let _ = self.0.wait();
    }
}
