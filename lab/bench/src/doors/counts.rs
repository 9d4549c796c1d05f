// SPDX-License-Identifier: Apache-2.0 OR MIT
//! What a process has done, counted from outside: how often its threads were woken, and its system
//! calls.
use std::io::Read;
use std::path::Path;
use std::process::{Command, Stdio};
use std::time::Duration;

use reproduce::clock;
use rustix::process::{Pid, Signal, kill_process};

/// What perf counts.
const EVENT: &str = "raw_syscalls:sys_enter";
/// How long strace may take to attach to a process.
const ATTACH_SECONDS: f64 = 10.0;

/// The `status` of each thread of a process.
fn threads(pid: u32) -> impl Iterator<Item = String> {
    let tasks = std::fs::read_dir(format!("/proc/{pid}/task")).into_iter().flatten().flatten();
    tasks.filter_map(|task| std::fs::read_to_string(task.path().join("status")).ok())
}

fn number_of(status: &str, field: &str) -> u64 {
    let value = status.lines().find_map(|line| line.strip_prefix(field));
    value.and_then(|value| value.trim().parse().ok()).unwrap_or(0)
}

/// How often threads of a process have gone to sleep, and so were woken. Those that have ended do
/// not count.
pub fn sleeps(pid: u32) -> u64 {
    threads(pid).map(|status| number_of(&status, "voluntary_ctxt_switches:")).sum()
}

/// Who counts system calls.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum Counter {
    /// The kernel's tracepoint, which costs little.
    Perf,
    /// strace stops the process at each: its times mean nothing meanwhile, and it finds work that
    /// it would have slept for.
    Strace,
}

impl Counter {
    /// perf where it may count, else strace.
    pub fn find() -> Counter {
        let mut probe = Command::new("perf");
        let probe = probe.args(["stat", "-e", EVENT, "true"]).stdin(Stdio::null());
        let probe = probe.stdout(Stdio::null()).stderr(Stdio::null()).status();
        if probe.is_ok_and(|status| status.success()) { Counter::Perf } else { Counter::Strace }
    }

    /// For notes.
    pub fn name(self) -> &'static str {
        match self {
            Counter::Perf => "perf",
            Counter::Strace => "strace, which slows the server",
        }
    }

    /// System calls of all threads of a process, of whatever kind, while `work` runs; and what
    /// `work` returned.
    ///
    /// # Errors
    /// Those of `work`, and when the counter is not there or may not trace the process.
    pub fn system_calls<T>(
        self,
        pid: u32,
        dir: &Path,
        work: impl FnOnce() -> Result<T, String>,
    ) -> Result<(f64, T), String> {
        match self {
            Counter::Perf => count_by_perf(pid, dir, work),
            Counter::Strace => count_by_strace(pid, dir, work),
        }
    }
}

/// perf counts while a command runs, which says when it begins, and waits for a line.
fn count_by_perf<T>(
    pid: u32,
    dir: &Path,
    work: impl FnOnce() -> Result<T, String>,
) -> Result<(f64, T), String> {
    let failed = |e: std::io::Error| format!("perf: {e}");
    let report = dir.join("perf");
    let mut command = Command::new("perf");
    command.args(["stat", "-x", ",", "-e", EVENT, "-p", &pid.to_string(), "-o"]).arg(&report);
    command.args(["--", "sh", "-c", "echo; read line"]);
    let command = command.stdin(Stdio::piped()).stdout(Stdio::piped()).stderr(Stdio::null());
    let mut counter = command.spawn().map_err(failed)?;
    let (input, output) = (counter.stdin.take(), counter.stdout.take());
    let has_begun = output.is_some_and(|mut output| output.read_exact(&mut [0]).is_ok());
    let done = if has_begun { Some(work()) } else { None };
    drop(input);
    counter.wait().map_err(failed)?;
    let done = done.ok_or_else(|| format!("perf: can't count process {pid}"))?;
    let text = std::fs::read_to_string(&report).map_err(failed)?;
    let line = text.lines().find(|line| line.contains(EVENT));
    let count = line.and_then(|line| line.split(',').next()?.parse().ok());
    Ok((count.ok_or("perf: no count in its report")?, done?))
}

fn count_by_strace<T>(
    pid: u32,
    dir: &Path,
    work: impl FnOnce() -> Result<T, String>,
) -> Result<(f64, T), String> {
    let report = dir.join("strace");
    let mut command = Command::new("strace");
    command.args(["-f", "-c", "-p", &pid.to_string(), "-o"]).arg(&report);
    let tracer = command.stdin(Stdio::null()).stdout(Stdio::null()).stderr(Stdio::null());
    let mut tracer = tracer.spawn().map_err(|e| format!("strace: {e}"))?;
    let give_up = clock() + ATTACH_SECONDS;
    while threads(pid).any(|status| number_of(&status, "TracerPid:") == 0) {
        let has_ended = !matches!(tracer.try_wait(), Ok(None));
        if has_ended || clock() > give_up {
            let _ = tracer.kill();
            let _ = tracer.wait();
            return Err(format!("strace: can't trace process {pid}"));
        }
        #[expect(clippy::disallowed_methods, reason = "waits for another process")]
        std::thread::sleep(Duration::from_millis(10));
    }
    let done = work();
    // It detaches, and writes its report.
    let _ = kill_process(Pid::from_child(&tracer), Signal::INT);
    tracer.wait().map_err(|e| format!("strace: {e}"))?;
    let text = std::fs::read_to_string(&report).map_err(|e| format!("strace: {e}"))?;
    let calls = total(&text).ok_or("strace: no total in its report")?;
    Ok((calls, done?))
}

/// The calls of the last line of a report: `100.00 0.01 1 6 3 total`.
fn total(report: &str) -> Option<f64> {
    let line = report.lines().rev().find(|line| line.ends_with(" total"))?;
    line.split_whitespace().nth(3)?.parse().ok()
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn the_total_of_a_report_is_its_last_line() {
        let text = "% time     seconds  usecs/call     calls    errors syscall\n\
                    ------ ----------- ----------- --------- --------- ------------\n\
                    \x20 0.00    0.000000           0         6         1 read\n\
                    ------ ----------- ----------- --------- --------- ------------\n\
                    100.00    0.000000           0         7         1 total\n";
        assert_eq!(total(text), Some(7.0));
        assert_eq!(total(""), None);
    }

    #[test]
    fn a_thread_that_sleeps_is_counted() {
        // A process of one thread: threads that end take their counts with them.
        let mut sleeper = Command::new("sh");
        let sleeper = sleeper.args(["-c", "for n in 1 2 3 4 5; do sleep 0.1; done"]);
        let mut sleeper = sleeper.spawn().unwrap();
        let before = sleeps(sleeper.id());
        let mut most = before;
        while sleeper.try_wait().unwrap().is_none() {
            most = most.max(sleeps(sleeper.id()));
        }
        assert!((before + 2..before + 40).contains(&most), "{before} and then {most}");
    }
}
