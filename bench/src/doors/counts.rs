// SPDX-License-Identifier: Apache-2.0 OR MIT
//! What a process has done, counted from outside: how often its threads were woken, and its system
//! calls.
use std::path::Path;
use std::process::{Command, Stdio};
use std::time::Duration;

use reproduce::clock;
use rustix::process::{Pid, Signal, kill_process};

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

/// System calls of all threads of a process, of whatever kind, while `work` runs; and what `work`
/// returned. strace stops the process at each: its times mean nothing meanwhile.
///
/// # Errors
/// Those of `work`, and when strace is not there or may not trace the process.
pub fn system_calls<T>(
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
