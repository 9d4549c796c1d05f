// SPDX-License-Identifier: Apache-2.0 OR MIT
//! The program as a child in a folder of its own: start, kill, orderly end, commands.

use std::fs::{File, OpenOptions};
use std::path::{Path, PathBuf};
use std::process::{Child, Command, ExitStatus, Stdio};

use rustix::process::{
    Pid, Signal, WaitOptions, getpid, kill_process, set_child_subreaper, waitpid,
};

use crate::{Result, clock, pause_ms};

/// Longest wait for a daemon to be ready, on a machine under load.
const START: f64 = 90.0;
/// Longest wait for an orderly end.
const STOP: f64 = 90.0;
/// Longest wait for an end at once, on a machine under load.
const AT_ONCE: f64 = 8.0;
/// Longest wait for a verb.
const VERB: f64 = 60.0;

/// How a child ended.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum Ended {
    /// By itself, with this exit code; 128 and the signal's number if by a signal.
    Code(i32),
    /// Not in time; it was killed.
    Late,
}

/// A process of the program: one that was started here, or its successor in an upgrade, which is
/// a child from the end of its predecessor on.
#[derive(Debug)]
enum Process {
    Child(Child),
    Successor(Pid),
}

impl Process {
    fn pid(&self) -> Option<Pid> {
        match self {
            Process::Child(child) => i32::try_from(child.id()).ok().and_then(Pid::from_raw),
            Process::Successor(pid) => Some(*pid),
        }
    }

    /// Its exit code, once it has ended.
    fn ended(&mut self) -> Option<i32> {
        match self {
            Process::Child(child) => child.try_wait().ok().flatten().map(code),
            Process::Successor(pid) => match waitpid(Some(*pid), WaitOptions::NOHANG) {
                Ok(found) => found.map(|(_, status)| {
                    let signal = status.terminating_signal().map(|s| 128 + s);
                    status.exit_status().or(signal).unwrap_or(-1)
                }),
                Err(_) => Some(-1), // nobody knows such a process
            },
        }
    }

    fn kill(&mut self) {
        if self.ended().is_none() {
            let _ = kill_process(self.pid().expect("a process"), Signal::KILL);
            while self.ended().is_none() {
                pause_ms(1);
            }
        }
    }
}

fn code(status: ExitStatus) -> i32 {
    use std::os::unix::process::ExitStatusExt;
    status.code().or(status.signal().map(|s| 128 + s)).unwrap_or(-1)
}

fn wait(process: &mut Process, limit: f64) -> Ended {
    let give_up = clock() + limit;
    loop {
        if let Some(code) = process.ended() {
            return Ended::Code(code);
        }
        if clock() > give_up {
            process.kill();
            return Ended::Late;
        }
        pause_ms(2);
    }
}

/// The program and the folder that all of its lives share.
#[derive(Clone, Debug)]
pub struct Place {
    /// The program.
    pub program: PathBuf,
    /// The folder.
    pub dir: PathBuf,
}

impl Place {
    /// The machine stops: the memory that outlives daemons is gone.
    pub fn forget_memory(&self) {
        let entries = std::fs::read_dir(self.dir.join("run"));
        for path in entries.into_iter().flatten().filter_map(|entry| Some(entry.ok()?.path())) {
            let name = path.file_name().unwrap_or_default().to_string_lossy();
            if name.starts_with("journal-") {
                let _ = std::fs::remove_file(&path);
            }
        }
    }

    /// Where NBD clients connect.
    pub fn socket(&self) -> PathBuf {
        self.dir.join("run/nbd.sock")
    }

    /// Where devices are as files.
    pub fn mount(&self) -> PathBuf {
        self.dir.join("mnt")
    }

    fn log_to(&self, name: &str) -> Result<File> {
        let path = self.dir.join(name);
        let file = OpenOptions::new().create(true).append(true).open(&path);
        file.map_err(|e| format!("{}: {e}", path.display()))
    }

    /// The end of the log of all daemons.
    pub fn log_tail(&self) -> String {
        let log = std::fs::read(self.dir.join("daemon.log")).unwrap_or_default();
        let log = String::from_utf8_lossy(&log).into_owned();
        let lines: Vec<&str> = log.lines().collect();
        lines[lines.len().saturating_sub(25)..].iter().map(|l| format!("  | {l}\n")).collect()
    }

    /// Gives an order by the command line.
    pub fn verb(&self, args: &[&str]) -> Result<Ended> {
        self.verb_within(args, VERB)
    }

    /// Gives an order that has to end within so many seconds.
    pub fn verb_within(&self, args: &[&str], limit: f64) -> Result<Ended> {
        let mut command = Command::new(&self.program);
        command.arg("--run-dir").arg(self.dir.join("run")).args(args).stdin(Stdio::null());
        command.stdout(self.log_to("verbs.log")?).stderr(self.log_to("verbs.log")?);
        let child = command.spawn();
        let child = child.map_err(|e| format!("{}: {e}", self.program.display()))?;
        Ok(wait(&mut Process::Child(child), limit))
    }

    fn verbs_log(&self) -> String {
        std::fs::read_to_string(self.dir.join("verbs.log")).unwrap_or_default()
    }

    /// The token that the last order was refused without.
    pub fn token(&self) -> Option<String> {
        self.token_if(|_| true)
    }

    /// The same, if it was refused because blocks are in memory alone.
    pub fn token_for_memory(&self) -> Option<String> {
        self.token_if(is_in_memory)
    }

    fn token_if(&self, wanted: impl Fn(&str) -> bool) -> Option<String> {
        let log = self.verbs_log();
        let last = log.lines().rev().find(|line| line.contains("--force="))?;
        let is_last = log.trim_end().ends_with(last.trim_end());
        let token = last.split("--force=").nth(1).filter(|_| is_last && wanted(last))?;
        Some(token.chars().take_while(char::is_ascii_hexdigit).collect())
    }
}

/// The process that an answer of `upgrade` names.
fn successor(answer: &str) -> Option<Pid> {
    let of_it = answer.split("\"successor\"").nth(1)?;
    let number = of_it.split("\"pid\":").nth(1)?.trim_start();
    let digits: String = number.chars().take_while(char::is_ascii_digit).collect();
    Pid::from_raw(digits.parse().ok()?)
}

fn is_in_memory(refusal: &str) -> bool {
    refusal.contains("are in memory alone")
}

/// A daemon. Dropped, it is killed.
#[derive(Debug)]
pub struct Daemon {
    process: Process,
    place: Place,
    log_from: u64,
}

impl Daemon {
    /// Starts one from the config that is there.
    pub fn start(place: &Place) -> Result<Daemon> {
        let log = place.log_to("daemon.log")?;
        let log_from = log.metadata().map_or(0, |m| m.len());
        let mut command = Command::new(&place.program);
        command.arg("--run-dir").arg(place.dir.join("run")).arg("daemon");
        command.arg("--config").arg(place.dir.join("millpond.toml"));
        command.stdin(Stdio::null()).stdout(Stdio::null()).stderr(log);
        let child = command.spawn().map_err(|e| format!("{}: {e}", place.program.display()))?;
        Ok(Daemon { process: Process::Child(child), place: place.clone(), log_from })
    }

    /// Waits until it serves.
    pub fn wait_ready(&mut self) -> Result<()> {
        let give_up = clock() + START;
        loop {
            let log = std::fs::read(self.place.dir.join("daemon.log")).unwrap_or_default();
            let from = (self.log_from as usize).min(log.len());
            if String::from_utf8_lossy(&log[from..]).contains("millpond: ready") {
                return Ok(());
            }
            if let Some(code) = self.process.ended() {
                let text = self.place.log_tail();
                return Err(format!("the daemon ends at its start with {code}\n{text}"));
            }
            if clock() > give_up {
                let text = self.place.log_tail();
                return Err(format!("the daemon is not ready after {START} s\n{text}"));
            }
            pause_ms(3);
        }
    }

    /// Whether it has ended, which nobody asked for.
    pub fn has_ended(&mut self) -> Option<i32> {
        self.process.ended()
    }

    /// `kill -9`.
    pub fn kill(mut self) {
        self.process.kill();
        unmount(&self.place.mount());
    }

    /// Hands over to another process of the same program, each step within `timeout`; that process
    /// is this daemon from then on.
    pub fn upgrade(&mut self, timeout: &str) -> Result<Ended> {
        set_child_subreaper(Some(getpid())).map_err(|e| format!("PR_SET_CHILD_SUBREAPER: {e}"))?;
        let before = self.place.verbs_log().len();
        let ended = self.place.verb(&["upgrade", "--timeout", timeout, "-o", "json"])?;
        if ended != Ended::Code(0) {
            return Ok(ended);
        }
        let log = self.place.verbs_log();
        let pid = successor(&log[before..]).ok_or("`upgrade` does not name the successor")?;
        if wait(&mut self.process, STOP) != Ended::Code(0) {
            return Err(format!("handed over, and then\n{}", self.place.log_tail()));
        }
        self.process = Process::Successor(pid);
        Ok(ended)
    }

    fn ask_to_end(&self) {
        let _ = kill_process(self.process.pid().expect("a process"), Signal::TERM);
    }

    /// Waits for an end that was asked for.
    pub fn wait_within(mut self, limit: f64) -> Ended {
        let ended = wait(&mut self.process, limit);
        unmount(&self.place.mount());
        ended
    }

    /// SIGTERM; how it ended.
    pub fn terminate(self) -> Ended {
        self.terminate_within(STOP)
    }

    /// SIGTERM; how it ended, within so many seconds.
    pub fn terminate_within(self, limit: f64) -> Ended {
        self.ask_to_end();
        self.wait_within(limit)
    }

    /// SIGTERM, and another one so many milliseconds later; how it ended.
    pub fn terminate_twice(self, after_ms: u64) -> Ended {
        self.ask_to_end();
        pause_ms(after_ms);
        self.terminate_within(AT_ONCE)
    }
}

impl Drop for Daemon {
    fn drop(&mut self) {
        self.process.kill(); // most have ended before
        unmount(&self.place.mount());
    }
}

/// Takes away what a killed daemon leaves: for root the first one works, for others the second.
fn unmount(mount: &Path) {
    if mount.symlink_metadata().is_ok_and(|m| m.is_dir()) && mount.read_dir().is_ok() {
        return; // an empty folder, or none
    }
    let _ = Command::new("umount").arg("-lq").arg(mount).output();
    let _ = Command::new("fusermount3").args(["-uzq", "--"]).arg(mount).output();
}

#[cfg(test)]
mod tests {
    use std::os::unix::fs::PermissionsExt;

    use super::*;

    /// The bounds of an orderly end are measured: one that takes no notice is late.
    #[test]
    fn a_program_that_does_not_end_is_late() {
        let dir = tempfile::tempdir().expect("a folder");
        let program = dir.path().join("deaf");
        let text = "#!/bin/sh\ntrap '' TERM\necho deaf >&2\nwhile :; do sleep 0.05; done\n";
        std::fs::write(&program, text).expect("a script");
        let all = std::fs::Permissions::from_mode(0o755);
        std::fs::set_permissions(&program, all).expect("it may be run");
        let place = Place { program, dir: dir.path().into() };
        let daemon = Daemon::start(&place).expect("it starts");
        while !place.log_tail().contains("deaf") {
            pause_ms(5);
        }
        assert_eq!(daemon.terminate_within(0.3), Ended::Late);
    }
}
