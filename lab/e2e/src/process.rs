// SPDX-License-Identifier: Apache-2.0 OR MIT
//! Child processes: their output, a deadline, and no child left behind.
use std::io::{Read, Seek, SeekFrom};
use std::process::{Child, ChildStdout, Command, ExitStatus, Stdio};
use std::sync::{Arc, Mutex, PoisonError, Weak};
use std::time::Duration;

use rustix::process::{Pid, Signal, kill_process};

use crate::{Result, clock, pause};

/// How often a child is asked whether it has ended.
const LOOK: Duration = Duration::from_millis(3);

/// Every child that is alive, for [`kill_all`].
static CHILDREN: Mutex<Vec<Weak<Mutex<Child>>>> = Mutex::new(Vec::new());

/// A child process. Dropped, it is killed.
#[derive(Debug)]
pub struct Process {
    name: String,
    child: Arc<Mutex<Child>>,
}

/// What a child that has ended left.
#[derive(Debug)]
pub struct Ended {
    /// The command line.
    pub name: String,
    /// Exit code; 128 and the signal for one that was killed.
    pub code: i32,
    /// Its standard output.
    pub stdout: String,
    /// Its standard error.
    pub stderr: String,
}

impl Ended {
    /// The standard output of a child that had to succeed.
    pub fn ok(self) -> Result<String> {
        if self.code == 0 { Ok(self.stdout) } else { Err(self.complaint()) }
    }

    /// What to tell of a child that failed.
    pub fn complaint(&self) -> String {
        let Ended { name, code, stdout, stderr } = self;
        format!("{name}: exit code {code}\n{}{}", tail(stdout), tail(stderr))
    }
}

/// The end of a text: where the reason stands.
fn tail(text: &str) -> String {
    let lines: Vec<&str> = text.lines().collect();
    lines[lines.len().saturating_sub(30)..].iter().map(|l| format!("  | {l}\n")).collect()
}

fn held<T>(mutex: &Mutex<T>) -> std::sync::MutexGuard<'_, T> {
    mutex.lock().unwrap_or_else(PoisonError::into_inner)
}

/// Kills every child of this process, for who leaves in a hurry.
pub fn kill_all() {
    for child in held(&CHILDREN).drain(..).filter_map(|c| c.upgrade()) {
        let mut child = held(&child);
        let _ = child.kill(); // it may have ended
        let _ = child.wait();
    }
}

/// The command line as one would type it.
fn line(command: &Command) -> String {
    let words = std::iter::once(command.get_program()).chain(command.get_args());
    words.map(|w| w.to_string_lossy()).collect::<Vec<_>>().join(" ")
}

impl Process {
    /// Starts a command.
    pub fn start(command: &mut Command) -> Result<Process> {
        Process::start_with(command, Stdio::null())
    }

    fn start_with(command: &mut Command, stdin: Stdio) -> Result<Process> {
        let name = line(command);
        let child = command.stdin(stdin).spawn().map_err(|e| format!("{name}: {e}"))?;
        let child = Arc::new(Mutex::new(child));
        let mut children = held(&CHILDREN);
        children.retain(|c| c.strong_count() > 0);
        children.push(Arc::downgrade(&child));
        Ok(Process { name, child })
    }

    /// Starts a command whose standard output the caller takes on.
    pub fn start_piped(command: &mut Command) -> Result<(Process, ChildStdout)> {
        let process = Process::start(command.stdout(Stdio::piped()))?;
        let stdout = held(&process.child).stdout.take().expect("piped");
        Ok((process, stdout))
    }

    /// Its exit code, once it has ended.
    pub fn ended(&self) -> Option<i32> {
        let status = held(&self.child).try_wait();
        status.unwrap_or_else(|e| panic!("{}: cannot be waited for: {e}", self.name)).map(code)
    }

    /// Waits for its end; it is killed when it takes longer than `limit`.
    pub fn wait(&self, limit: Duration) -> Result<i32> {
        let give_up = clock() + limit.as_secs_f64();
        loop {
            if let Some(code) = self.ended() {
                return Ok(code);
            }
            if clock() > give_up {
                let _ = held(&self.child).kill();
                return Err(format!("{}: not ended after {limit:?}, killed", self.name));
            }
            pause(LOOK);
        }
    }

    /// Sends a signal.
    pub fn signal(&self, signal: Signal) -> Result<()> {
        // Held, so that nobody reaps the child and the number stays its own.
        let child = held(&self.child);
        let pid = i32::try_from(child.id()).ok().and_then(Pid::from_raw);
        kill_process(pid.expect("the number of a process"), signal)
            .map_err(|e| format!("{}: signal: {e}", self.name))
    }

    /// The process's number.
    pub fn id(&self) -> u32 {
        held(&self.child).id()
    }
}

impl Drop for Process {
    fn drop(&mut self) {
        let mut child = held(&self.child);
        let _ = child.kill(); // EE-E1; most have ended before
        let _ = child.wait();
    }
}

/// The code as shells have it.
fn code(status: ExitStatus) -> i32 {
    use std::os::unix::process::ExitStatusExt;
    status.code().or(status.signal().map(|s| 128 + s)).unwrap_or(-1)
}

/// A child whose output is kept in files, so that nobody has to read along.
#[derive(Debug)]
pub struct Job {
    process: Process,
    stdout: std::fs::File,
    stderr: std::fs::File,
}

impl Job {
    /// Starts a command.
    pub fn start(command: &mut Command) -> Result<Job> {
        Job::start_with(command, Stdio::null())
    }

    /// Starts a command that reads from `stdin`.
    pub fn start_with(command: &mut Command, stdin: Stdio) -> Result<Job> {
        let name = line(command);
        let file = || -> std::io::Result<_> {
            let file = tempfile::tempfile()?;
            Ok((file.try_clone()?, file))
        };
        let failed = |e: std::io::Error| format!("{name}: file for its output: {e}");
        let (stdout, to_stdout) = file().map_err(failed)?;
        let (stderr, to_stderr) = file().map_err(failed)?;
        let process = Process::start_with(command.stdout(to_stdout).stderr(to_stderr), stdin)?;
        Ok(Job { process, stdout, stderr })
    }

    /// Waits for its end.
    pub fn wait(mut self, limit: Duration) -> Result<Ended> {
        let code = self.process.wait(limit);
        let (stdout, stderr) = (text(&mut self.stdout), text(&mut self.stderr));
        let name = self.process.name.clone();
        match code {
            Ok(code) => Ok(Ended { name, code, stdout, stderr }),
            Err(late) => Err(format!("{late}\n{}{}", tail(&stdout), tail(&stderr))),
        }
    }

    /// Sends a signal.
    pub fn signal(&self, signal: Signal) -> Result<()> {
        self.process.signal(signal)
    }

    /// Whether it runs.
    pub fn is_running(&self) -> bool {
        self.process.ended().is_none()
    }
}

fn text(file: &mut std::fs::File) -> String {
    let mut bytes = Vec::new();
    let read = file.seek(SeekFrom::Start(0)).and_then(|_| file.read_to_end(&mut bytes));
    read.expect("a temporary file can be read");
    String::from_utf8_lossy(&bytes).into_owned()
}

/// Runs a command to its end.
pub fn run(command: &mut Command, limit: Duration) -> Result<Ended> {
    Job::start(command)?.wait(limit)
}

/// Runs a program that has to succeed, and returns what it printed.
pub fn output(program: &str, args: &[&str]) -> Result<String> {
    run(Command::new(program).args(args), Duration::from_secs(60))?.ok()
}

/// Which of these programs are not there.
pub fn missing<'a>(programs: &[&'a str]) -> Vec<&'a str> {
    let path = std::env::var_os("PATH").unwrap_or_default();
    let there = |p: &str| std::env::split_paths(&path).any(|dir| dir.join(p).is_file());
    programs.iter().copied().filter(|p| !there(p)).collect()
}
