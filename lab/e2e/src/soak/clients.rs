// SPDX-License-Identifier: Apache-2.0 OR MIT
//! Clients that verify while the daemon changes.
use std::path::{Path, PathBuf};
use std::sync::Arc;
use std::sync::atomic::{AtomicBool, AtomicU64, Ordering};
use std::thread::JoinHandle;
use std::time::Duration;

use super::Outcome;
use crate::client::Client;
use crate::fio::Fio;
use crate::stamp::Random;
use crate::{Result, clock, pause};

/// Longest round of a client.
const ROUND: Duration = Duration::from_secs(600);
/// Longest wait for a read.
const READ: f64 = 60.0;
const BLOCK: u64 = 4096;
/// fio's ways to verify, another one each round: it takes no block of the round before for one of
/// this round.
const VERIFY: [&str; 4] = ["crc32c", "xxhash", "crc64", "sha1"];

#[derive(Clone, Copy, Debug, Default)]
struct Rounds {
    rounds: u64,
    writes: u64,
    reads: u64,
}

/// A fio for each device: it writes each block of its area once, in random order, reads all of it,
/// and begins again.
#[derive(Debug)]
pub(super) struct Clients {
    stop: Arc<AtomicBool>,
    threads: Vec<JoinHandle<Result<Rounds>>>,
    failure: Arc<std::sync::Mutex<Option<String>>>,
}

/// Starts a thread of a client.
fn start<T: Send + 'static>(work: impl FnOnce() -> T + Send + 'static) -> JoinHandle<T> {
    #[expect(clippy::disallowed_methods, reason = "clients are beside each other")]
    std::thread::spawn(work)
}

fn rounds(dir: &Path, uri: &str, area_bytes: u64, seed: u64, stop: &AtomicBool) -> Result<Rounds> {
    let mut done = Rounds::default();
    while !stop.load(Ordering::Relaxed) {
        let verify = VERIFY[done.rounds as usize % VERIFY.len()];
        let fio = Fio::new(dir, uri).with(["--rw=randwrite", "--iodepth=16", "--fsync=64"]).with([
            &*format!("--size={area_bytes}"),
            &*format!("--verify={verify}"),
            &*format!("--randseed={}", seed + done.rounds),
            "--verify_state_save=0",
        ]);
        let measured = fio.run(ROUND)?;
        done.rounds += 1;
        done.writes += measured.writes;
        done.reads += measured.reads;
    }
    Ok(done)
}

impl Clients {
    pub(super) fn start(dir: &Path, area_bytes: u64, uris: &[&str], seed: u64) -> Clients {
        let (stop, failure) = (Arc::new(AtomicBool::new(false)), Arc::default());
        let mut clients = Clients { stop, threads: Vec::new(), failure };
        for (nth, uri) in (0_u64..).zip(uris) {
            let (stop, failure) = (clients.stop.clone(), clients.failure.clone());
            let (dir, uri): (PathBuf, String) = (dir.into(), (*uri).into());
            clients.threads.push(start(move || {
                let done = rounds(&dir, &uri, area_bytes, seed * 1_000_003 + nth * 500_009, &stop);
                if let Err(e) = &done {
                    let mut failure = failure.lock().unwrap_or_else(|e| e.into_inner());
                    failure.get_or_insert_with(|| format!("{uri}: {e}"));
                }
                done
            }));
        }
        clients
    }

    /// Fails once a client has failed.
    pub(super) fn check(&self) -> Result<()> {
        let failure = self.failure.lock().unwrap_or_else(|e| e.into_inner());
        failure.clone().map_or(Ok(()), Err)
    }

    /// Has each client end its round, which verifies it, and adds up.
    pub(super) fn finish(mut self, outcome: &mut Outcome) -> Result<()> {
        self.stop.store(true, Ordering::Relaxed);
        for thread in self.threads.drain(..) {
            let done = thread.join().map_err(|_| "a client's thread has panicked")??;
            outcome.rounds += done.rounds;
            outcome.writes += done.writes;
            outcome.reads += done.reads;
        }
        self.check()
    }
}

impl Drop for Clients {
    fn drop(&mut self) {
        self.stop.store(true, Ordering::Relaxed);
    }
}

#[derive(Debug, Default)]
struct ProbeFigures {
    /// Reads begun and ended.
    begun: AtomicU64,
    ended: AtomicU64,
    longest_us: AtomicU64,
    stop: AtomicBool,
}

/// A client that reads one block after the other, and notes the longest time.
#[derive(Debug)]
pub(super) struct Probe {
    figures: Arc<ProbeFigures>,
    thread: Option<JoinHandle<Result<()>>>,
}

impl Probe {
    pub(super) fn start(client: Client) -> Probe {
        let figures = Arc::new(ProbeFigures::default());
        let theirs = figures.clone();
        let thread = Some(start(move || read_on(client, &theirs)));
        Probe { figures, thread }
    }

    /// Forgets what was longest.
    pub(super) fn begin(&self) {
        self.figures.longest_us.store(0, Ordering::SeqCst);
    }

    /// The longest read since, in ms, one that was under way at the call included.
    pub(super) fn end(&mut self) -> Result<f64> {
        let begun = self.figures.begun.load(Ordering::SeqCst);
        let give_up = clock() + READ;
        while self.figures.ended.load(Ordering::SeqCst) < begun {
            if self.thread.as_ref().is_none_or(JoinHandle::is_finished) {
                let failed = self.thread.take().map(JoinHandle::join);
                return Err(format!("the client of one request at a time: {failed:?}"));
            }
            if clock() > give_up {
                return Err(format!("the client of one request at a time waits for {READ} s"));
            }
            pause(Duration::from_micros(200));
        }
        Ok(self.figures.longest_us.load(Ordering::SeqCst) as f64 / 1000.0)
    }
}

fn read_on(mut client: Client, figures: &ProbeFigures) -> Result<()> {
    let mut random = Random::new(9);
    let mut data = vec![0; BLOCK as usize];
    while !figures.stop.load(Ordering::Relaxed) {
        let at = random.below(client.size() / BLOCK) * BLOCK;
        figures.begun.fetch_add(1, Ordering::SeqCst);
        let begun = clock();
        client.read(at, &mut data).map_err(|e| format!("a read at {at}: {e}"))?;
        let us = ((clock() - begun) * 1e6) as u64;
        figures.longest_us.fetch_max(us, Ordering::SeqCst);
        figures.ended.fetch_add(1, Ordering::SeqCst);
        // It is there to notice a pause, not to load the machine.
        pause(Duration::from_millis(1));
    }
    Ok(())
}

impl Drop for Probe {
    fn drop(&mut self) {
        self.figures.stop.store(true, Ordering::Relaxed);
        if let Some(thread) = self.thread.take() {
            let _ = thread.join();
        }
    }
}
