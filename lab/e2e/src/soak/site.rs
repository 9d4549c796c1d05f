// SPDX-License-Identifier: Apache-2.0 OR MIT
//! A daemon whose process changes, its files, and servers of qemu before it.
use std::fs::{File, OpenOptions};
use std::os::unix::ffi::OsStrExt;
use std::os::unix::fs::FileExt;
use std::path::{Path, PathBuf};
use std::process::Command;
use std::time::Duration;

use rustix::process::{Pid, Signal, kill_process};
use serde_json::Value;

use super::Plan;
use crate::client::Client;
use crate::daemon::Daemon;
use crate::fio::Fio;
use crate::process::{Job, Process};
use crate::{Result, clock, pause};

const MIB: u64 = 1 << 20;
/// How long a process may take to end, and a daemon to answer again.
const END: f64 = 60.0;
/// Longest time in which fio fills a cache.
const FILL: Duration = Duration::from_secs(1800);
/// How long qemu tries to reach a daemon that has ended, before it reports errors to its clients.
const RECONNECT_S: u64 = 120;
/// Longer than a process takes from a fork to its command line.
const EXEC: Duration = Duration::from_millis(20);
const CACHES: [&str; 2] = ["wc", "ordered"];

/// The folder and what runs in it.
#[derive(Debug)]
pub(super) struct Site {
    program: PathBuf,
    dir: PathBuf,
    /// None while the next one starts.
    daemon: Option<Daemon>,
    servers: Vec<Process>,
}

fn text(e: impl std::fmt::Display) -> String {
    e.to_string()
}

fn make_file(path: &Path, bytes: u64) -> Result<()> {
    let made = File::create(path).and_then(|f| f.set_len(bytes));
    made.map_err(|e| format!("{}: {e}", path.display()))
}

/// Whether a thread of a process runs: one that has ended and was not waited for does not. The
/// first thread of a killed process may have ended, while others still end.
fn is_alive(pid: Pid) -> bool {
    let threads = std::fs::read_dir(format!("/proc/{}/task", pid.as_raw_pid()));
    let runs = |thread: std::fs::DirEntry| {
        let stat = std::fs::read_to_string(thread.path().join("stat")).ok()?;
        // The state stands behind the name, which may hold anything.
        stat.rsplit(')').next()?.trim_start().chars().next()
    };
    let states = threads.into_iter().flatten().flatten().filter_map(runs);
    states.into_iter().any(|state| !matches!(state, 'Z' | 'X'))
}

/// Daemons of this run directory that are alive.
fn daemons_of(run_dir: &Path) -> Vec<Pid> {
    let run_dir = run_dir.as_os_str().as_bytes();
    let all = std::fs::read_dir("/proc").into_iter().flatten().flatten();
    let pids = all.filter_map(|entry| entry.file_name().to_str()?.parse().ok());
    let of_here = |pid: &i32| {
        let line = std::fs::read(format!("/proc/{pid}/cmdline")).unwrap_or_default();
        let mut words = line.split(|byte| *byte == 0);
        words.clone().any(|word| word == run_dir) && words.any(|word| word == b"daemon")
    };
    pids.filter(of_here).filter_map(Pid::from_raw).filter(|pid| is_alive(*pid)).collect()
}

impl Site {
    pub(super) fn start(program: &Path, dir: &Path, plan: Plan) -> Result<Site> {
        let origin_bytes = plan.area_bytes + plan.dirty_bytes;
        // Room for slots and their metadata.
        let watermarks =
            if plan.dirty_bytes > 0 { "high_watermark 100 low_watermark 99" } else { "" };
        let words = watermarks.split_whitespace().count();
        let sectors = origin_bytes / 512;
        let tables = [
            format!("0 {sectors} writecache s ./wc.img ./wc.cache 4096 {words} {watermarks}"),
            format!(
                "0 {} writecache s ./ordered.img ./ordered.cache 4096 1 ordered",
                plan.area_bytes / 512
            ),
            "0 8192 linear ./disk.img 0".to_owned(),
        ];
        make_file(&dir.join("wc.img"), origin_bytes)?;
        make_file(&dir.join("ordered.img"), plan.area_bytes)?;
        for (cache, bytes) in CACHES.iter().zip([plan.cache_bytes, plan.ordered_bytes]) {
            make_file(&dir.join(format!("{cache}.cache")), bytes)?;
        }
        make_file(&dir.join("disk.img"), 4 * MIB)?;
        let devices = [("wc", &*tables[0]), ("ordered", &*tables[1]), ("disk", &*tables[2])];
        let daemon = Some(Daemon::start(program, dir, &devices)?);
        Ok(Site { program: program.into(), dir: dir.into(), daemon, servers: Vec::new() })
    }

    fn daemon(&self) -> &Daemon {
        self.daemon.as_ref().expect("a failed start ends the run")
    }

    pub(super) fn dir(&self) -> &Path {
        &self.dir
    }

    pub(super) fn uri(&self, device: &str) -> String {
        self.daemon().uri(device)
    }

    pub(super) fn connect(&self, device: &str) -> Result<Client> {
        self.daemon().connect(device)
    }

    /// The URI of a server of qemu, a client of `device` that connects again.
    pub(super) fn qemu(&mut self, device: &str) -> Result<String> {
        let socket = self.dir.join(format!("qemu-{}.sock", self.servers.len()));
        let below = format!(
            "driver=nbd,node-name=disk,server.type=unix,server.path={},export={device},\
             reconnect-delay={RECONNECT_S}",
            self.daemon().socket().display()
        );
        let mut command = Command::new("qemu-storage-daemon");
        command.arg("--blockdev").arg(below);
        let address = format!("addr.type=unix,addr.path={}", socket.display());
        command.arg("--nbd-server").arg(address);
        command.arg("--export").arg("type=nbd,id=disk,node-name=disk,name=disk,writable=on");
        let server = Process::start(&mut command)?;
        let give_up = clock() + END;
        while !socket.exists() {
            if server.ended().is_some() || clock() > give_up {
                return Err("qemu-storage-daemon does not serve".into());
            }
            pause(Duration::from_millis(5));
        }
        self.servers.push(server);
        Ok(format!("nbd+unix:///disk?socket={}", socket.display()))
    }

    /// Writes behind the clients' area, and returns how many blocks are dirty then.
    pub(super) fn fill(&self, bytes: u64) -> Result<u64> {
        let fio = Fio::new(&self.dir, &self.uri("wc")).with(["--rw=write", "--iodepth=32"]);
        let area = std::fs::metadata(self.dir.join("ordered.img")).map_err(text)?.len();
        let fio = fio.with([&*format!("--offset={area}"), &*format!("--size={bytes}"), "--bs=64k"]);
        fio.run(FILL)?;
        self.daemon().attribute("wc", "dirty_blocks")
    }

    /// The process that has the run directory.
    pub(super) fn pid(&self) -> Result<i32> {
        let lock = self.dir.join("run/lock");
        let pid = std::fs::read_to_string(&lock).map_err(|e| format!("{}: {e}", lock.display()))?;
        pid.trim().parse().map_err(|_| format!("{}: no process: {pid}", lock.display()))
    }

    fn process(&self) -> Result<Pid> {
        Pid::from_raw(self.pid()?).ok_or_else(|| "process 0".into())
    }

    /// Upgrades, and returns the pause in ms.
    pub(super) fn upgrade(&self) -> Result<f64> {
        let done = self.daemon().verb(&["upgrade", "-o", "json"])?;
        let done: Value = serde_json::from_str(&done).map_err(text)?;
        done["successor"]["pause_ms"].as_f64().ok_or_else(|| format!("no pause in {done}"))
    }

    pub(super) fn start_verb(&self, words: &[&str]) -> Result<Job> {
        Job::start(&mut self.daemon().command(words))
    }

    /// Makes the file of the plain disk longer.
    pub(super) fn grow_disk(&self) -> Result<()> {
        let path = self.dir.join("disk.img");
        let grow = || {
            let file = OpenOptions::new().write(true).open(&path)?;
            file.set_len(file.metadata()?.len() + MIB)
        };
        grow().map_err(|e| format!("{}: {e}", path.display()))
    }

    /// `kill -9`, and the time in ms in which the next daemon is ready.
    pub(super) fn kill(&mut self) -> Result<f64> {
        let pid = self.process()?;
        kill_process(pid, Signal::KILL).map_err(|e| format!("kill {}: {e}", pid.as_raw_pid()))?;
        wait_until(|| !is_alive(pid), "the daemon does not end after `kill -9`")?;
        self.start_again()
    }

    fn start_again(&mut self) -> Result<f64> {
        // Its end would end the next one.
        drop(self.daemon.take());
        let begun = clock();
        self.daemon = Some(Daemon::restart(&self.program, &self.dir)?);
        Ok((clock() - begun) * 1000.0)
    }

    /// Begins an upgrade, and kills one of its two processes after `time`. Returns the time of the
    /// start of another daemon, where neither goes on.
    pub(super) fn kill_in_upgrade(
        &mut self,
        of_successor: bool,
        time: Duration,
    ) -> Result<Option<f64>> {
        let old = self.process()?;
        let run_dir = self.dir.join("run");
        let verb = self.start_verb(&["upgrade"])?;
        let begun = clock();
        let mut successor = None;
        while clock() - begun < time.as_secs_f64() {
            successor = daemons_of(&run_dir).into_iter().find(|pid| *pid != old).or(successor);
            pause(Duration::from_micros(500));
        }
        let killed = if of_successor { successor } else { Some(old) };
        if let Some(killed) = killed {
            let _ = kill_process(killed, Signal::KILL); // it may have ended
        }
        // Whatever it reports: nobody may have answered it.
        verb.wait(super::VERB)?;
        let give_up = clock() + END;
        loop {
            // A process that is about to run another program has no command line for a moment.
            let is_empty = || daemons_of(&run_dir).is_empty();
            if is_empty() && {
                pause(EXEC);
                is_empty()
            } {
                return self.start_again().map(Some);
            }
            if self.daemon().try_verb(&["ls"])?.code == 0 {
                return Ok(None);
            }
            if clock() > give_up {
                return Err("no daemon answers after a kill in an upgrade".into());
            }
            pause(Duration::from_millis(5));
        }
    }

    /// Writes all back, and compares the origins with the devices.
    pub(super) fn compare(&self) -> Result<()> {
        for device in CACHES {
            let (mut client, path) =
                (self.connect(device)?, self.dir.join(format!("{device}.img")));
            self.daemon().verb(&["message", device, "0", "flush"])?;
            let origin = File::open(&path).map_err(|e| format!("{}: {e}", path.display()))?;
            let mut both = [vec![0; MIB as usize], vec![0; MIB as usize]];
            for at in (0..client.size()).step_by(MIB as usize) {
                let part = usize::try_from(MIB.min(client.size() - at)).map_err(text)?;
                let [ours, theirs] = &mut both;
                client.read(at, &mut ours[..part]).map_err(|e| format!("{device}: {e}"))?;
                origin.read_exact_at(&mut theirs[..part], at).map_err(text)?;
                if ours[..part] != theirs[..part] {
                    let path = path.display();
                    return Err(format!("{device}: {path} differs from it in the MiB at {at}"));
                }
            }
        }
        Ok(())
    }
}

fn wait_until(is_done: impl Fn() -> bool, what: &str) -> Result<()> {
    let give_up = clock() + END;
    while !is_done() {
        if clock() > give_up {
            return Err(what.into());
        }
        pause(Duration::from_millis(1));
    }
    Ok(())
}
