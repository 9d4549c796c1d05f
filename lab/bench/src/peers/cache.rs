// SPDX-License-Identifier: Apache-2.0 OR MIT
//! A write-back cache over a file: how fast it takes random writes, how long until they are durable
//! and until they are at the file, and what of them a killed server has kept.
use std::fs::File;
use std::os::unix::fs::FileExt;
use std::path::{Path, PathBuf};

use reproduce::clock;

use super::client::{Client, Job, Run, RunLength, flush, run};
use super::serve::{EXPORT, Endpoint, Served, nbdkit_with, ours_with, qsd_with};
use super::{TestBed, make_file};

/// Who takes part; ours first.
pub const PEERS: [&str; 4] = ["ours", "nbdkit_4k", "nbdkit", "qsd"];

const WRITES: Job = Job { rw: "randwrite", kib: 4, depth: 16, connections: 1 };
/// Blocks of the test with a killed server, flushed ones and others.
const KILL_BLOCKS: u64 = 512;
const BLOCK: usize = 4096;

/// One round of one peer.
#[derive(Clone, Copy, Debug)]
pub struct Round {
    pub run: Run,
    /// Until a flush was answered.
    pub flush_s: f64,
    /// Until all of it was at the file.
    pub written_back_s: f64,
    /// CPU of the server for that.
    pub written_back_cpu_s: f64,
}

/// What of the blocks was there after a kill -9 and a new start.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct CrashResult {
    pub flushed: u64,
    pub unflushed: u64,
    /// Of each.
    pub of: u64,
}

/// A cache of `who` over the file `origin`, fresh or as it was left.
fn start(who: &'static str, origin: &Path, test_bed: &TestBed) -> Result<Served, String> {
    let dir = test_bed.folder(&format!("cache-{who}"))?;
    let (bytes, shown) = (test_bed.bytes, origin.display());
    match who {
        "ours" => {
            let cache = dir.join("cache");
            if !cache.exists() {
                make_file(&cache, bytes + bytes / 4 + (64 << 20))?;
                make_blank(&cache)?;
            }
            let cache = cache.display();
            // All of the writes fit: nobody writes back before it is asked to.
            let table =
                format!("0 {} writecache s {shown} {cache} 4096 2 high_watermark 100", bytes / 512);
            ours_with(who, &table, bytes, &dir, test_bed)
        }
        "qsd" => {
            let device = format!("driver=file,filename={shown},cache.direct=off");
            qsd_with(&device, bytes, &dir, test_bed)
        }
        _ => {
            let mut words = vec!["--filter=cache".to_owned(), "file".to_owned()];
            words.extend([shown.to_string(), "cache=writeback".to_owned()]);
            if who == "nbdkit_4k" {
                words.push("cache-min-block-size=4k".to_owned());
            }
            let mut served = nbdkit_with(&words, bytes, &dir, test_bed)?;
            served.who = who;
            Ok(served)
        }
    }
}

/// Makes a cache device a new one, and leaves it its space.
fn make_blank(cache: &Path) -> Result<(), String> {
    let file = File::options().write(true).open(cache);
    let blanked = file.and_then(|file| {
        file.write_all_at(&vec![0; 1 << 20], 0)?;
        file.sync_all()
    });
    blanked.map_err(|e| format!("{}: {e}", cache.display()))
}

/// The files of the caches, as new.
fn prepare(who: &'static str, test_bed: &TestBed) -> Result<PathBuf, String> {
    let dir = test_bed.folder(&format!("cache-{who}"))?;
    let origin = dir.join("origin");
    if !origin.exists() {
        make_file(&origin, test_bed.bytes)?;
    }
    let cache = dir.join("cache");
    if cache.exists() {
        make_blank(&cache)?;
    }
    Ok(origin)
}

/// Writes `bytes` of random blocks to a fresh cache, and has them written back.
///
/// # Errors
/// What a program said.
pub fn round(who: &'static str, bytes: u64, test_bed: &TestBed) -> Result<Round, String> {
    let origin = prepare(who, test_bed)?;
    let served = start(who, &origin, test_bed)?;
    let Endpoint::Nbd { socket, export } = &served.endpoint else {
        return Err("no socket".to_owned());
    };
    let run = run(Client::Fio, &served, &WRITES, RunLength::Written(bytes))?;
    let (begin, cpu) = (clock(), served.host.cpu_seconds());
    let flush_s = flush(socket, export)?;
    if who == "ours" {
        served.say(&test_bed.ours, &["message", EXPORT, "0", "flush"])?;
    }
    let written_back_s = clock() - begin;
    let written_back_cpu_s = served.host.cpu_seconds() - cpu;
    Ok(Round { run, flush_s, written_back_s, written_back_cpu_s })
}

fn block(nth: u64) -> Vec<u8> {
    (0x5eed_0000_0000 + nth).to_le_bytes().repeat(BLOCK / 8)
}

/// Where the nth block is: far from its neighbours.
fn place(nth: u64, bytes: u64) -> u64 {
    nth * 7919 % (bytes / BLOCK as u64) * BLOCK as u64
}

/// Writes blocks, flushes, writes others, kills the server at once, starts it again, and looks.
///
/// # Errors
/// What a program said.
pub fn survivors(who: &'static str, test_bed: &TestBed) -> Result<CrashResult, String> {
    let origin = prepare(who, test_bed)?;
    let failed = |e: std::io::Error| format!("{who}: {e}");
    let bytes = test_bed.bytes;
    let served = start(who, &origin, test_bed)?;
    let Endpoint::Nbd { socket, export } = &served.endpoint else {
        return Err("no socket".to_owned());
    };
    let mut client = e2e::client::Client::connect(socket, export).map_err(failed)?;
    for nth in 0..2 * KILL_BLOCKS {
        client.write(place(nth, bytes), &block(nth)).map_err(failed)?;
        if nth + 1 == KILL_BLOCKS {
            client.flush().map_err(failed)?;
        }
    }
    drop(served);
    drop(client);
    let served = start(who, &origin, test_bed)?;
    let Endpoint::Nbd { socket, export } = &served.endpoint else {
        return Err("no socket".to_owned());
    };
    let mut client = e2e::client::Client::connect(socket, export).map_err(failed)?;
    let mut found = vec![0; BLOCK];
    let mut there = [0; 2];
    for nth in 0..2 * KILL_BLOCKS {
        client.read(place(nth, bytes), &mut found).map_err(failed)?;
        let half = usize::from(nth >= KILL_BLOCKS);
        there[half] += u64::from(found == block(nth));
    }
    Ok(CrashResult { flushed: there[0], unflushed: there[1], of: KILL_BLOCKS })
}
