// SPDX-License-Identifier: Apache-2.0 OR MIT
//! A daemon in a folder of its own: started from a config, killed, ended, steered.
use std::fs::OpenOptions;
use std::path::{Path, PathBuf};
use std::process::Command;
use std::time::Duration;

use rustix::process::{Pid, Signal, kill_process};

use crate::client::Client;
use crate::process::{Ended, Process, run};
use crate::{Result, clock, pause};

/// Longest wait for a daemon to be ready; recovery is included, and a machine under load.
const START: Duration = Duration::from_secs(60);
/// Longest wait for an orderly end.
const STOP: Duration = Duration::from_secs(60);
/// Longest wait for a verb, a flush of everything included.
const VERB: Duration = Duration::from_secs(600);

/// A device for the config: its name and table.
pub type Device<'a> = (&'a str, &'a str);

/// A daemon. Dropped, it is killed, and so is the process that has taken over from it.
#[derive(Debug)]
pub struct Daemon {
    program: PathBuf,
    dir: PathBuf,
    process: Process,
}

/// The names inside a daemon's folder.
fn config_of(dir: &Path) -> PathBuf {
    dir.join("millpond.toml")
}
fn run_dir_of(dir: &Path) -> PathBuf {
    dir.join("run")
}
fn log_of(dir: &Path) -> PathBuf {
    dir.join("daemon.log")
}
fn environment_of(dir: &Path) -> PathBuf {
    dir.join("environment")
}

/// Variables for all daemons that are started in a folder.
pub type Variables = [(&'static str, String)];

/// Has the daemons of a folder, and their verbs, started with these variables.
pub fn set_environment(dir: &Path, variables: &Variables) -> Result<()> {
    let lines: String = variables.iter().map(|(name, value)| format!("{name}={value}\n")).collect();
    std::fs::write(environment_of(dir), lines).map_err(|e| e.to_string())
}

/// The variables that were set for a folder.
fn environment(dir: &Path) -> Vec<(String, String)> {
    let lines = std::fs::read_to_string(environment_of(dir)).unwrap_or_default(); // seldom there
    let pair = |line: &str| line.split_once('=').map(|(n, v)| (n.to_owned(), v.to_owned()));
    lines.lines().filter_map(pair).collect()
}

impl Drop for Daemon {
    fn drop(&mut self) {
        let run_dir = run_dir_of(&self.dir);
        let lock = std::fs::read_to_string(run_dir.join("lock")).unwrap_or_default();
        let Some(pid) = lock.trim().parse().ok().and_then(Pid::from_raw) else { return };
        let command = format!("/proc/{}/cmdline", pid.as_raw_pid());
        let command = std::fs::read(command).unwrap_or_default();
        let is_of_here = String::from_utf8_lossy(&command).contains(&*run_dir.to_string_lossy());
        if is_of_here && u32::try_from(pid.as_raw_pid()) != Ok(self.id()) {
            let _ = kill_process(pid, Signal::KILL); // it may have ended
        }
    }
}

impl Daemon {
    /// Starts `program` in `dir` with these devices, and waits until it is ready. Relative paths
    /// in tables are relative to `dir`.
    pub fn start(program: &Path, dir: &Path, devices: &[Device<'_>]) -> Result<Daemon> {
        Daemon::start_with(program, dir, "", devices)
    }

    /// The same with options as the config has them.
    pub fn start_with(
        program: &Path,
        dir: &Path,
        options: &str,
        devices: &[Device<'_>],
    ) -> Result<Daemon> {
        let mut config = format!("{options}\n");
        for (name, table) in devices {
            config.push_str(&format!("[[device]]\nname = '{name}'\ntable = '''{table}'''\n"));
        }
        let path = config_of(dir);
        std::fs::write(&path, config).map_err(|e| format!("{}: {e}", path.display()))?;
        Daemon::restart(program, dir)
    }

    /// Starts it with the config that is there.
    pub fn restart(program: &Path, dir: &Path) -> Result<Daemon> {
        let log = OpenOptions::new().create(true).append(true).open(log_of(dir));
        let log = log.map_err(|e| format!("{}: {e}", log_of(dir).display()))?;
        let old = log.metadata().map_err(|e| e.to_string())?.len();
        let mut command = Command::new(program);
        command.arg("--run-dir").arg(run_dir_of(dir));
        command.envs(environment(dir));
        command.arg("daemon").arg("--config").arg(config_of(dir)).stderr(log);
        let process = Process::start(&mut command)?;
        let daemon = Daemon { program: program.into(), dir: dir.into(), process };
        let give_up = clock() + START.as_secs_f64();
        while !daemon.log_from(old).contains("millpond: ready") {
            if let Some(code) = daemon.process.ended() {
                let log = daemon.log_from(old);
                return Err(format!("the daemon ended with exit code {code}:\n{log}"));
            }
            if clock() > give_up {
                return Err(format!("no daemon after {START:?}:\n{}", daemon.log_from(old)));
            }
            pause(Duration::from_millis(10));
        }
        Ok(daemon)
    }

    fn log_from(&self, offset: u64) -> String {
        let log = std::fs::read(log_of(&self.dir)).unwrap_or_default();
        let from = usize::try_from(offset).unwrap_or(usize::MAX).min(log.len());
        String::from_utf8_lossy(&log[from..]).into_owned()
    }

    /// What all daemons of this folder have logged. A line is written a moment after what it tells.
    pub fn log(&self) -> String {
        pause(Duration::from_millis(50));
        self.log_from(0)
    }

    /// Whether it is alive.
    pub fn is_running(&self) -> bool {
        self.process.ended().is_none()
    }

    /// Its exit code, once it has ended.
    pub fn exit_code(&self) -> Option<i32> {
        self.process.ended()
    }

    /// Sends it a signal.
    pub fn signal(&self, signal: Signal) -> Result<()> {
        self.process.signal(signal)
    }

    /// Its process.
    pub fn id(&self) -> u32 {
        self.process.id()
    }

    /// `kill -9`.
    pub fn kill(self) -> Result<()> {
        self.process.signal(Signal::KILL)?;
        let code = self.process.wait(STOP)?;
        if code == 137 { Ok(()) } else { Err(format!("killed, but it ended with {code}")) }
    }

    /// SIGTERM; it has to exit with 0.
    pub fn terminate(self) -> Result<()> {
        self.process.signal(Signal::TERM)?;
        match self.process.wait(STOP)? {
            0 => Ok(()),
            code => Err(format!("SIGTERM: exit code {code}:\n{}", self.log())),
        }
    }

    /// A verb's command line.
    pub fn command(&self, args: &[&str]) -> Command {
        let mut command = Command::new(&self.program);
        command.envs(environment(&self.dir));
        command.arg("--run-dir").arg(run_dir_of(&self.dir)).args(args);
        command
    }

    /// Runs a verb, whatever comes of it.
    pub fn try_verb(&self, args: &[&str]) -> Result<Ended> {
        run(&mut self.command(args), VERB)
    }

    /// Runs a verb that has to succeed.
    pub fn verb(&self, args: &[&str]) -> Result<String> {
        self.try_verb(args)?.ok()
    }

    /// A number that a device tells of itself.
    pub fn attribute(&self, device: &str, name: &str) -> Result<u64> {
        let value = self.verb(&["get", device, name])?;
        value.trim().parse().map_err(|_| format!("{device}: {name} is no number: {value}"))
    }

    /// The NBD socket.
    pub fn socket(&self) -> PathBuf {
        run_dir_of(&self.dir).join("nbd.sock")
    }

    /// The export of a device, as clients take it.
    pub fn uri(&self, device: &str) -> String {
        format!("nbd+unix:///{device}?socket={}", self.socket().display())
    }

    /// A connection to a device.
    pub fn connect(&self, device: &str) -> Result<Client> {
        Client::connect(&self.socket(), device).map_err(|e| format!("{device}: {e}"))
    }
}
