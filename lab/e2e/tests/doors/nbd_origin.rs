// SPDX-License-Identifier: Apache-2.0 OR MIT
//! Exports of real servers as origins: nbdkit, qemu-nbd and qemu-storage-daemon below a linear
//! device and below a write cache, killed and started again while a client writes.

use std::path::{Path, PathBuf};
use std::sync::atomic::{AtomicBool, AtomicU64, Ordering};
use std::time::Duration;

use e2e::binary::{Build, millpond};
use e2e::client::Client;
use e2e::daemon::Daemon;
use e2e::origin::{IMAGE, Kind, Origin, Transport};
use e2e::process::output;
use e2e::stamp::{BLOCK_BYTES, fill};
use e2e::test_bed::clients;
use e2e::{clock, pause};
use tempfile::TempDir;

const SIZE: u64 = 8 << 20;
/// Blocks of one write.
const RUN: usize = 16;
/// So many writes are answered before a server is killed, and so long it is away then.
const LIVES_WRITES: u64 = 64;
const AWAY: Duration = Duration::from_millis(50);
const KILLS: u32 = 3;
const WAIT: Duration = Duration::from_secs(60);

struct Setup {
    daemon: Daemon,
    origin: Origin,
    dir: TempDir,
}

/// A daemon with a device whose origin is `ORIGIN` in its table; the server belongs to the thread
/// that calls.
fn setup(kind: Kind, transport: Transport, (name, table): (&str, &str)) -> Setup {
    let dir = tempfile::Builder::new().prefix("millpond-e2e-").tempdir().unwrap();
    for (name, bytes) in [(IMAGE, SIZE), ("cache.img", SIZE)] {
        std::fs::File::create(dir.path().join(name)).unwrap().set_len(bytes).unwrap();
    }
    let origin = Origin::start(kind, transport, dir.path());
    let table = table.replace("ORIGIN", &origin.uri(""));
    let program = millpond(Build::Workspace).unwrap();
    let daemon = Daemon::start(&program, dir.path(), &[(name, &table)]).unwrap();
    Setup { daemon, origin, dir }
}

/// Writes the whole device in runs, in no order, `version` in every block; what fails, and what a
/// failed flush may have lost, is written again, as any program that cares would.
fn write_all(client: &mut Client, version: u64, answered: &AtomicU64, until: impl Fn() -> bool) {
    let runs = SIZE as usize / BLOCK_BYTES / RUN;
    let give_up = clock() + WAIT.as_secs_f64();
    let mut rounds = 0;
    loop {
        let mut failed = false;
        for nth in 0..runs {
            let first = (nth * 7919) % runs * RUN;
            let mut data = vec![0; RUN * BLOCK_BYTES];
            for (block, data) in (first as u64..).zip(data.chunks_exact_mut(BLOCK_BYTES)) {
                fill(data, block, version);
            }
            failed |= client.write((first * BLOCK_BYTES) as u64, &data).is_err();
            answered.fetch_add(1, Ordering::Relaxed);
        }
        failed |= client.flush().is_err();
        rounds += 1;
        assert!(clock() < give_up, "not written after {rounds} rounds");
        if until() && !failed {
            return;
        }
    }
}

fn sha256(file: &Path) -> String {
    let line = output("sha256sum", &[&file.display().to_string()]).unwrap();
    line.split_whitespace().next().unwrap().to_owned()
}

/// The image that must be there in the end.
fn expected(dir: &Path, version: u64) -> PathBuf {
    let mut data = vec![0; SIZE as usize];
    for (block, data) in (0..).zip(data.chunks_exact_mut(BLOCK_BYTES)) {
        fill(data, block, version);
    }
    let path = dir.join("expected.img");
    std::fs::write(&path, data).unwrap();
    path
}

/// Waits until so many more writes have been answered.
fn wait_for_writes(answered: &AtomicU64, more: u64) {
    let (give_up, from) = (clock() + WAIT.as_secs_f64(), answered.load(Ordering::Relaxed));
    while answered.load(Ordering::Relaxed) < from + more {
        assert!(clock() < give_up, "nobody writes");
        pause(Duration::from_millis(5));
    }
}

/// Writes to a device while its server is killed and started again; then the image is right.
fn killed_under_load(kind: Kind, transport: Transport, device: (&str, &str)) {
    if !clients(&[kind.program(), "sha256sum"]) {
        return;
    }
    let Setup { daemon, mut origin, dir } = setup(kind, transport, device);
    let (name, killing, answered) = (device.0, AtomicBool::new(true), AtomicU64::new(0));
    std::thread::scope(|scope| {
        let over = || !killing.load(Ordering::Relaxed);
        let (daemon, answered) = (&daemon, &answered);
        let writer = scope.spawn(move || {
            let mut client = daemon.connect(name).unwrap();
            write_all(&mut client, 1, answered, over);
            write_all(&mut client, 2, answered, || true);
            // What was written is read back through the device.
            let mut data = vec![0; BLOCK_BYTES];
            let mut want = data.clone();
            for block in (0..SIZE / BLOCK_BYTES as u64).step_by(97) {
                client.read(block * BLOCK_BYTES as u64, &mut data).unwrap();
                fill(&mut want, block, 2);
                assert!(data == want, "block {block}");
            }
        });
        for _ in 0..KILLS {
            wait_for_writes(answered, LIVES_WRITES);
            origin.kill();
            pause(AWAY);
            origin.start_again();
        }
        killing.store(false, Ordering::Relaxed);
        writer.join().unwrap();
    });
    assert!(daemon.log().contains("connected again"), "{}", daemon.log());
    if device == CACHED {
        daemon.verb(&["message", name, "0", "flush"]).unwrap();
    }
    daemon.terminate().unwrap();
    origin.kill();
    let want = sha256(&expected(dir.path(), 2));
    assert_eq!(sha256(&origin.image()), want);
}

const LINEAR: (&str, &str) = ("lin", "0 16384 linear ORIGIN 0");
const CACHED: (&str, &str) =
    ("wc", "0 16384 writecache s ORIGIN ./cache.img 4096 4 high_watermark 20 low_watermark 10");

#[test]
fn a_linear_device_outlives_its_nbdkit() {
    killed_under_load(Kind::Nbdkit, Transport::Tcp, LINEAR);
}

#[test]
fn a_linear_device_outlives_its_qemu_nbd() {
    killed_under_load(Kind::QemuNbd, Transport::Tcp, LINEAR);
}

#[test]
fn a_linear_device_outlives_its_qemu_storage_daemon() {
    killed_under_load(Kind::QemuStorageDaemon, Transport::Unix, LINEAR);
}

#[test]
fn a_write_cache_outlives_the_nbdkit_below() {
    killed_under_load(Kind::Nbdkit, Transport::Unix, CACHED);
}

#[test]
fn a_write_cache_outlives_the_qemu_storage_daemon_below() {
    killed_under_load(Kind::QemuStorageDaemon, Transport::Tcp, CACHED);
}
