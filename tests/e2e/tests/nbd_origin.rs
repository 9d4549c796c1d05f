// SPDX-License-Identifier: Apache-2.0 OR MIT
//! Exports of real servers as origins: nbdkit and qemu-storage-daemon below a linear device and
//! below a write cache, killed and started again while a client writes.
#![expect(clippy::unwrap_used, reason = "helpers of tests")]

use std::path::{Path, PathBuf};
use std::process::Command;
use std::sync::atomic::{AtomicBool, Ordering};
use std::time::Duration;

use e2e::binary::{Build, millpond};
use e2e::client::Client;
use e2e::daemon::Daemon;
use e2e::pond::clients;
use e2e::process::{Job, Process, output};
use e2e::stamp::{BLOCK_BYTES, fill};
use e2e::{clock, pause};
use rustix::process::Signal;
use tempfile::TempDir;

const SIZE: u64 = 32 << 20;
/// How long a server lives under load, and how long it is away.
const LIVES: Duration = Duration::from_millis(1500);
const AWAY: Duration = Duration::from_millis(100);
const KILLS: u32 = 4;
const WAIT: Duration = Duration::from_secs(60);

/// A server of `origin.img` in a folder.
#[derive(Clone, Copy)]
enum Kind {
    Nbdkit,
    Qemu,
}

impl Kind {
    fn program(self) -> &'static str {
        match self {
            Kind::Nbdkit => "nbdkit",
            Kind::Qemu => "qemu-storage-daemon",
        }
    }

    fn start(self, dir: &Path) -> Process {
        let (socket, image) = (dir.join("origin.sock"), dir.join("origin.img"));
        let _ = std::fs::remove_file(&socket); // left by one that was killed
        let mut command = Command::new(self.program());
        let (shown, file) = (socket.display(), image.display());
        match self {
            Kind::Nbdkit => {
                command.args(["-f", "-U"]).arg(&socket).arg("file").arg(&image);
            }
            Kind::Qemu => {
                command.args(["--blockdev", &format!("file,filename={file},node-name=f")]);
                command.args(["--nbd-server", &format!("addr.type=unix,addr.path={shown}")]);
                command.args(["--export", "nbd,id=e,node-name=f,name=disk,writable=on"]);
            }
        }
        let process = Process::start(&mut command).unwrap();
        let give_up = clock() + WAIT.as_secs_f64();
        while !socket.exists() {
            assert!(clock() < give_up && process.ended().is_none(), "{} is there", self.program());
            pause(Duration::from_millis(5));
        }
        process
    }
}

fn kill(server: &Process) {
    server.signal(Signal::KILL).unwrap();
    server.wait(WAIT).unwrap();
}

struct Ground {
    daemon: Daemon,
    server: Process,
    dir: TempDir,
}

/// A daemon with devices whose origin is `ORIGIN` in these tables.
fn ground(kind: Kind, tables: &[(&str, &str)]) -> Ground {
    let dir = tempfile::Builder::new().prefix("millpond-e2e-").tempdir().unwrap();
    for (name, bytes) in [("origin.img", SIZE), ("cache.img", SIZE / 2)] {
        std::fs::File::create(dir.path().join(name)).unwrap().set_len(bytes).unwrap();
    }
    let server = kind.start(dir.path());
    let uri = format!("nbd+unix:///disk?socket={}/origin.sock", dir.path().display());
    let tables: Vec<(&str, String)> =
        tables.iter().map(|(name, table)| (*name, table.replace("ORIGIN", &uri))).collect();
    let devices: Vec<_> = tables.iter().map(|(name, table)| (*name, &**table)).collect();
    let program = millpond(Build::Workspace).unwrap();
    let daemon = Daemon::start(&program, dir.path(), &devices).unwrap();
    Ground { daemon, server, dir }
}

/// Writes the whole device in runs, in no order, `version` in every block; what fails, and what a
/// failed flush may have lost, is written again, as any program that cares would.
fn write_all(client: &mut Client, version: u64, until: impl Fn() -> bool) {
    const RUN: usize = 16;
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

/// Writes to `device` while its server is killed and started again; then the image is right.
fn killed_under_load(kind: Kind, tables: &[(&str, &str)], device: &str) {
    if !clients(&[kind.program(), "sha256sum"]) {
        return;
    }
    let Ground { daemon, mut server, dir } = ground(kind, tables);
    let killing = AtomicBool::new(true);
    std::thread::scope(|scope| {
        let over = || !killing.load(Ordering::Relaxed);
        let daemon = &daemon;
        let writer = scope.spawn(move || {
            let mut client = daemon.connect(device).unwrap();
            write_all(&mut client, 1, over);
            write_all(&mut client, 2, || true);
            // What was written is read back through the device.
            let mut data = vec![0; BLOCK_BYTES];
            let mut want = data.clone();
            for block in (0..SIZE / BLOCK_BYTES as u64).step_by(97) {
                client.read(block * BLOCK_BYTES as u64, &mut data).unwrap();
                fill(&mut want, block, 2);
                assert!(data == want, "block {block}");
            }
        });
        // On this thread: nbdkit ends with the thread that has started it.
        for _ in 0..KILLS {
            pause(LIVES);
            kill(&server);
            pause(AWAY);
            server = kind.start(dir.path());
        }
        killing.store(false, Ordering::Relaxed);
        writer.join().unwrap();
    });
    assert!(daemon.log().contains("connected again"), "{}", daemon.log());
    if device == "wc" {
        daemon.verb(&["message", "wc", "0", "flush"]).unwrap();
    }
    daemon.terminate().unwrap();
    kill(&server);
    let want = sha256(&expected(dir.path(), 2));
    assert_eq!(sha256(&dir.path().join("origin.img")), want);
}

const LINEAR: &[(&str, &str)] = &[("lin", "0 65536 linear ORIGIN 0")];
const CACHED: &[(&str, &str)] =
    &[("wc", "0 65536 writecache s ORIGIN ./cache.img 4096 4 high_watermark 20 low_watermark 10")];

#[test]
fn a_linear_device_outlives_its_nbdkit() {
    killed_under_load(Kind::Nbdkit, LINEAR, "lin");
}

#[test]
fn a_linear_device_outlives_its_qemu_storage_daemon() {
    killed_under_load(Kind::Qemu, LINEAR, "lin");
}

#[test]
fn a_write_cache_outlives_the_nbdkit_of_its_origin() {
    killed_under_load(Kind::Nbdkit, CACHED, "wc");
}

#[test]
fn a_write_cache_outlives_the_qemu_storage_daemon_of_its_origin() {
    killed_under_load(Kind::Qemu, CACHED, "wc");
}

#[test]
fn one_daemon_is_the_origin_of_another_and_bench_drives_it() {
    let files = [("disk.img", SIZE)];
    let below = e2e::pond::Pond::start(&files, &[("disk", "0 65536 linear ./disk.img 0")]);
    let (uri, bench) = (below.uri("disk"), millpond(Build::Workspace).unwrap());
    let table = format!("0 65536 linear {uri} 0");
    let above = e2e::pond::Pond::start(&[], &[("top", &table)]);
    for uri in [uri, above.uri("top")] {
        let mut command = Command::new(&bench);
        command.args(["bench", "--uri", &uri, "--rw", "randrw", "--iodepth", "32", "--jobs", "2"]);
        command.args(["--verify", "--number-ios", "2000", "-o", "json"]);
        let said = Job::start(&mut command).unwrap().wait(WAIT).unwrap().ok().unwrap();
        let report: serde_json::Value = serde_json::from_str(&said).unwrap();
        assert!(report.to_string().contains("verif"), "{said}");
    }
    let e = above.daemon().verb(&["create", "x", "--table", "0 8 linear nbd://h/%zz 0"]);
    assert!(e.unwrap_err().contains("nbd://HOST[:PORT]/EXPORT"));
}
