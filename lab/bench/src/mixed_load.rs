// SPDX-License-Identifier: Apache-2.0 OR MIT
//! Parts of `make bench-wbt`: a reader by the clock beside a writer that never stops, over NBD.
//!
//! ```text
//!   reader   a 4 KiB read at a random place each 1/rate s, whether the one before has ended or not
//!   writer   1 MiB writes in order, a few in flight, from the beginning again at the end
//! ```
//!
//! Invariants
//! - BE-B1 A read's latency counts from when it was due, not from when it could be sent: a device
//!   that stalls is not asked less often because of that.
use std::io;
use std::path::{Path, PathBuf};
use std::process::Command;
use std::sync::atomic::{AtomicBool, AtomicU64, Ordering};

use e2e::client::Client;
use hdrhistogram::Histogram;
use nbd::request::Request;
use nbd::wire::cmd;
use reproduce::clock;
use reproduce::mixed_load::{Devices, LoadResult, histogram};
use reproduce::scenario::wbt::local::Options;
use rustix::event::{PollFd, PollFlags, poll};
use rustix::time::Timespec;
use tempfile::TempDir;

use crate::peers::make_file;
use crate::process::Server;
use crate::replies::{Replies, wrong};

/// Bytes of a read.
const READ_BYTES: u32 = 4096;
/// Bytes of a write.
const WRITE_BYTES: u32 = 1 << 20;
/// Writes in flight.
const WRITE_DEPTH: u64 = 4;

/// A connection that keeps requests in flight.
#[derive(Debug)]
pub struct Conn {
    client: Client,
    replies: Replies,
}

impl Conn {
    /// Connects to the export `name`.
    ///
    /// # Errors
    /// What the system or the server said.
    pub fn open(socket: &Path, name: &str) -> io::Result<Conn> {
        let mut client = Client::connect(socket, name)?;
        // A write waits for the disk, however slow it is.
        client.stream().set_read_timeout(None)?;
        Ok(Conn { client, replies: Replies::new() })
    }

    /// The cookie of the next reply, when it is there: see [`Replies::next`].
    fn reply(&mut self, data: usize) -> io::Result<Option<u64>> {
        self.replies.next(data)
    }

    fn fill(&mut self) -> io::Result<()> {
        self.replies.fill(self.client.stream())
    }

    /// Waits until there is something to read, `seconds` at most.
    fn readable(&mut self, seconds: f64) -> io::Result<bool> {
        let seconds = seconds.max(0.0);
        let (tv_sec, tv_nsec) = (seconds.trunc() as i64, (seconds.fract() * 1e9) as i64);
        let mut fds = [PollFd::new(self.client.stream(), PollFlags::IN)];
        match poll(&mut fds, Some(&Timespec { tv_sec, tv_nsec })) {
            Ok(n) => Ok(n > 0),
            Err(rustix::io::Errno::INTR) => Ok(false),
            Err(e) => Err(e.into()),
        }
    }

    /// Reads by the clock, `rate` a second, for `seconds`, after `warm_up` seconds that do not
    /// count. Returns latencies in nanoseconds (BE-B1).
    ///
    /// # Errors
    /// What the system or the server said.
    pub fn read_at_rate(
        &mut self,
        rate: f64,
        (warm_up, seconds): (f64, f64),
        seed: u64,
    ) -> io::Result<Histogram<u64>> {
        let mut latency_ns = histogram();
        let blocks = self.client.size() / u64::from(READ_BYTES);
        let mut random = seed | 1;
        let begin = clock();
        // When each read was due; the cookie is its number.
        let due = |nth: u64| begin + nth as f64 / rate;
        let count = ((warm_up + seconds) * rate) as u64;
        let (mut sent, mut ended) = (0, 0);
        while ended < count {
            let now = clock();
            while sent < count && due(sent) <= now {
                random ^= random << 13;
                random ^= random >> 7;
                random ^= random << 17;
                let offset = random % blocks * u64::from(READ_BYTES);
                let (kind, len, cookie) = (cmd::READ, READ_BYTES, sent);
                let request = Request { flags: 0, kind, cookie, offset, len };
                self.client.send(request, &[])?;
                sent += 1;
            }
            let wait = if sent < count { due(sent) - clock() } else { 1.0 };
            if !self.readable(wait)? {
                continue;
            }
            self.fill()?;
            let now = clock();
            while let Some(cookie) = self.reply(READ_BYTES as usize)? {
                if cookie >= sent {
                    return Err(wrong("unknown cookie"));
                }
                if due(cookie) >= begin + warm_up {
                    latency_ns.saturating_record(((now - due(cookie)) * 1e9) as u64);
                }
                ended += 1;
            }
        }
        Ok(latency_ns)
    }

    /// Writes in order and begins again at the end, until told to stop; counts bytes that were
    /// answered. Ends with a FLUSH.
    ///
    /// # Errors
    /// What the system or the server said.
    pub fn write_on(&mut self, stop: &AtomicBool, written: &AtomicU64) -> io::Result<()> {
        let data = vec![0x77; WRITE_BYTES as usize];
        let pieces = self.client.size() / u64::from(WRITE_BYTES);
        let (mut sent, mut ended) = (0, 0);
        loop {
            while sent - ended < WRITE_DEPTH && !stop.load(Ordering::Relaxed) {
                let offset = sent % pieces * u64::from(WRITE_BYTES);
                let (kind, len, cookie) = (cmd::WRITE, WRITE_BYTES, sent);
                let request = Request { flags: 0, kind, cookie, offset, len };
                self.client.send(request, &data)?;
                sent += 1;
            }
            if sent == ended {
                break;
            }
            self.fill()?;
            while self.reply(0)?.is_some() {
                ended += 1;
                written.fetch_add(u64::from(WRITE_BYTES), Ordering::Relaxed);
            }
        }
        let flush = Request { flags: 0, kind: cmd::FLUSH, cookie: sent, offset: 0, len: 0 };
        self.client.send(flush, &[])?;
        while self.reply(0)?.is_none() {
            self.fill()?;
        }
        Ok(())
    }
}

/// A daemon with both devices on one file.
pub struct Daemon {
    // Ends before its files go.
    _server: Server,
    program: PathBuf,
    run_dir: PathBuf,
    leaf: PathBuf,
    socket: PathBuf,
    _dir: TempDir,
}

impl Daemon {
    /// Makes the file in `dir`, and starts the daemon on `cpu`.
    ///
    /// # Errors
    /// What the file system or the daemon said.
    pub fn start(
        program: &Path,
        options: &Options,
        dir: &Path,
        cpu: usize,
    ) -> Result<Daemon, String> {
        let made = tempfile::Builder::new().prefix("millpond-bench-").tempdir_in(dir);
        let made = made.map_err(|e| format!("{}: {e}", dir.display()))?;
        let leaf = made.path().join("leaf");
        make_file(&leaf, options.file_bytes)?;
        let config = made.path().join("daemon.toml");
        let (half, shown) = (options.file_bytes / 512 / 2, leaf.display());
        let mut text = String::new();
        for (name, table) in [
            ("reader", format!("0 {half} linear {shown} 0")),
            ("low", format!("0 {half} linear {shown} {half}")),
            ("writer", format!("0 {half} buffered low 2 memory {}M", options.memory_mib)),
        ] {
            text.push_str(&format!("[[device]]\nname = '{name}'\ntable = '{table}'\n"));
        }
        std::fs::write(&config, text).map_err(|e| format!("{}: {e}", config.display()))?;
        let (run_dir, socket) = (made.path().join("run"), made.path().join("run/nbd.sock"));
        let mut command = Command::new(program);
        command.arg("daemon").arg("--run-dir").arg(&run_dir).arg("--config").arg(&config);
        let server = Server::start(&mut command, &[cpu], &socket)?;
        let program = program.to_owned();
        Ok(Daemon { _server: server, program, run_dir, leaf, socket, _dir: made })
    }

    fn said(&self, words: &[&str]) -> Result<String, String> {
        let mut command = Command::new(&self.program);
        let output = command.args(words).env("MILLPOND_RUN_DIR", &self.run_dir).output();
        let output = output.map_err(|e| format!("{}: {e}", self.program.display()))?;
        let text = |bytes| String::from_utf8_lossy(bytes).trim().to_owned();
        match output.status.success() {
            true => Ok(text(&output.stdout)),
            false => Err(text(&output.stderr)),
        }
    }

    fn open(&self, export: &str) -> Result<Conn, String> {
        Conn::open(&self.socket, export).map_err(|e| format!("{export}: cannot connect: {e}"))
    }
}

impl Devices for Daemon {
    fn attribute(&self, name: &str) -> Result<String, String> {
        self.said(&["get", &self.leaf.to_string_lossy(), name])
    }

    fn set_attribute(&self, name: &str, value: &str) -> Result<(), String> {
        self.said(&["set", &self.leaf.to_string_lossy(), name, value]).map(drop)
    }

    fn run(
        &self,
        rate: Option<f64>,
        writes: bool,
        time: (f64, f64),
        seed: u64,
    ) -> Result<LoadResult, String> {
        let (stop, written) = (AtomicBool::new(false), AtomicU64::new(0));
        let reader = rate.map(|rate| self.open("reader").map(|conn| (conn, rate))).transpose()?;
        let writer = writes.then(|| self.open("writer")).transpose()?;
        std::thread::scope(|threads| {
            let writing = writer.map(|mut conn| {
                let (stop, written) = (&stop, &written);
                threads.spawn(move || conn.write_on(stop, written))
            });
            let counting = threads.spawn(|| {
                pause(time.0);
                let (from, begin) = (written.load(Ordering::Relaxed), clock());
                pause(time.1);
                let bytes = written.load(Ordering::Relaxed) - from;
                bytes as f64 / (clock() - begin)
            });
            let latency_ns =
                reader.map(|(mut conn, rate)| conn.read_at_rate(rate, time, seed)).transpose();
            let rate = counting.join().map_err(|_| "the clock has panicked")?;
            stop.store(true, Ordering::Relaxed);
            let wrote =
                writing.map(|w| w.join().map_err(|_| "the writer has panicked")).transpose()?;
            let written_bytes_per_s = wrote.is_some().then_some(rate);
            wrote.transpose().map_err(|e| format!("writer: {e}"))?;
            let latency_ns = latency_ns.map_err(|e| format!("reader: {e}"))?;
            Ok(LoadResult { latency_ns, written_bytes_per_s, samples: Vec::new() })
        })
    }
}

fn pause(seconds: f64) {
    #[expect(clippy::disallowed_methods, reason = "a bench takes its time")]
    std::thread::sleep(std::time::Duration::from_secs_f64(seconds));
}
