// SPDX-License-Identifier: Apache-2.0 OR MIT
//! A progress line on standard error while a run takes more than two seconds.
use std::cell::Cell;
use std::io::{IsTerminal, Write, stderr};
use std::rc::Rc;
use std::sync::Arc;

use block::Nanos;
use reactor::{now, sleep, spawn};

use crate::args::LoadgenArgs;
use crate::job::Counter;
use crate::side::count;

/// Shorter runs show no progress.
const QUIET: Nanos = Nanos::from_secs(2);
/// How often it is shown after that.
const EVERY: Nanos = Nanos::from_secs(1);

/// Shows progress until dropped.
pub(crate) struct ProgressLine {
    stop: Rc<Cell<bool>>,
    /// Whether a line is on the terminal, to be cleared.
    line: Rc<Cell<bool>>,
}

impl Drop for ProgressLine {
    fn drop(&mut self) {
        self.stop.set(true);
        if self.line.get() {
            // An error means that the terminal is closed.
            let _ = write!(stderr(), "\r\x1b[K");
        }
    }
}

/// Starts to show progress, if standard error is a terminal or `--progress` is given.
pub(crate) fn start(args: &LoadgenArgs, counters: Vec<Arc<Counter>>) -> Option<ProgressLine> {
    let terminal = stderr().is_terminal();
    if !terminal && !args.progress {
        return None;
    }
    let shown = ProgressLine { stop: Rc::default(), line: Rc::default() };
    let (stop, line) = (shown.stop.clone(), shown.line.clone());
    let turns = u64::from(args.turns) * args.drive.len().max(1) as u64;
    let runtime = args.runtime.map(|t| Nanos(t.0.saturating_mul(turns)));
    let block_bytes = args.bs.bytes();
    spawn(async move {
        let began = now();
        let sum = || counters.iter().map(|c| c.get()).sum::<u64>();
        sleep(QUIET).await;
        let mut last = (now(), sum());
        while !stop.get() {
            sleep(EVERY).await;
            if stop.get() {
                return;
            }
            let (at, ios) = (now(), sum());
            let rate = ios.saturating_sub(last.1) as f64 * 1e9 / (at.0 - last.0.0).max(1) as f64;
            last = (at, ios);
            let text = text(Nanos(at.0 - began.0), runtime, rate, block_bytes);
            let written = if terminal {
                line.set(true);
                write!(stderr(), "\r\x1b[Kloadgen: {text}")
            } else {
                writeln!(stderr(), "loadgen: {text}")
            };
            // An error means that standard error is closed.
            let _ = written;
        }
    });
    Some(shown)
}

fn text(elapsed: Nanos, runtime: Option<Nanos>, iops: f64, block_bytes: u64) -> String {
    let of = runtime.map_or_else(String::new, |t| format!(" of {:.0} s", t.0 as f64 / 1e9));
    let mib = iops * block_bytes as f64 / f64::from(1 << 20);
    let s = elapsed.0 as f64 / 1e9;
    format!("{s:.0} s{of}: {} IOPS, {mib:.0} MiB/s", count(iops))
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn a_line_says_time_rate_and_bandwidth() {
        let (at, all) = (Nanos::from_secs(3), Some(Nanos::from_secs(10)));
        assert_eq!(text(at, all, 2e6, 512), "3 s of 10 s: 2.000M IOPS, 977 MiB/s");
        assert_eq!(text(at, None, 100.0, 4096), "3 s: 100 IOPS, 0 MiB/s");
    }
}
