// SPDX-License-Identifier: Apache-2.0 OR MIT
//! `make bench-wbt-sim`: writeback throttling in virtual time.
//!
//! A lone writer at several queue depths, and a reader beside a heavy writer on models of disks,
//! with wbt off, by the kernel's law and by ours. The same arguments print the same bytes on every
//! machine. What is calibrated and what is a prediction: `docs/wbt-model.md`. Beside a table the
//! last line is JSON; a goal that is missed makes the exit status 1.
use std::io::{Write, stderr, stdout};
use std::process::ExitCode;
use std::sync::Mutex;
use std::thread::{available_parallelism, scope};

use reproduce::clock;
use reproduce::wbt_sim::{Case, Load, Outcome, Results, Writer, cases, run};

const USAGE: &str = "usage: wbt-sim [--scale N] [--writer buffered|flusher]
  --scale N    sizes and times divided by N, 1 to 64
  --writer W   buffered: a client of a `buffered` device (default)
               flusher: a task that keeps writes in flight, much faster to simulate";

fn options() -> Result<(u64, Writer), String> {
    let (mut scale, mut writer) = (1, Writer::default());
    let mut words = std::env::args().skip(1);
    while let Some(option) = words.next() {
        let value = words.next().unwrap_or_default();
        let known = match option.as_str() {
            "--scale" => value.parse().ok().filter(|by| (1..=64).contains(by)).map(|by| scale = by),
            "--writer" => {
                let known = [("buffered", Writer::Buffered), ("flusher", Writer::Flusher)];
                known.iter().find(|(name, _)| *name == value).map(|(_, kind)| writer = *kind)
            }
            _ => None,
        };
        known.ok_or_else(|| format!("{option} {value}: not allowed\n{USAGE}"))?;
    }
    Ok((scale, writer))
}

fn describe(case: Case) -> String {
    let load = match case.load {
        Load::Lone { bytes } => format!("lone writer of {} MB", bytes / 1_000_000),
        Load::Beside { writer, reads_per_s, .. } => {
            let writer = if writer { "writer" } else { "no writer" };
            let reader = reads_per_s.map_or("no reader".to_owned(), |r| format!("{r} reads/s"));
            format!("{writer}, {reader}")
        }
    };
    format!("{}, {}, {load}", case.disk.key(), case.throttling.name())
}

/// All outcomes, in the order of the cases; each run is a world of its own, so they run side by
/// side.
fn run_all((scale, writer): (u64, Writer)) -> Result<Results, String> {
    let cases = cases(scale, writer);
    let threads = available_parallelism().map_or(1, usize::from).min(4);
    let outcomes: Vec<Mutex<Option<Outcome>>> = cases.iter().map(|_| Mutex::new(None)).collect();
    let next = Mutex::new(0);
    let work = || -> Result<(), String> {
        loop {
            let number = {
                let mut next = next.lock().map_err(|e| e.to_string())?;
                *next += 1;
                *next - 1
            };
            let Some(&case) = cases.get(number) else { return Ok(()) };
            let start = clock();
            let outcome = run(case).map_err(|e| format!("{}: {e}", describe(case)))?;
            let _ = writeln!(
                stderr(),
                "run {} of {}: {}: read p99 {:.0} us, {:.1} MB/s, {} waits, {} cut, {} probes, in \
                 {:.1} s",
                number + 1,
                cases.len(),
                describe(case),
                outcome.read_us(990),
                outcome.mb_per_s(),
                outcome.waits,
                outcome.splits,
                outcome.probes,
                clock() - start,
            );
            *outcomes[number].lock().map_err(|e| e.to_string())? = Some(outcome);
        }
    };
    scope(|s| {
        let workers: Vec<_> = (0..threads).map(|_| s.spawn(work)).collect();
        workers.into_iter().try_for_each(|w| w.join().map_err(|_| "a run has panicked")?)
    })?;
    let found = outcomes.into_iter().filter_map(|o| o.into_inner().ok().flatten());
    Ok(Results { scale, writer, rows: cases.iter().copied().zip(found).collect() })
}

fn main() -> ExitCode {
    let results = options().and_then(run_all);
    let printed = results.and_then(|results| {
        let mut out = stdout().lock();
        let done = results.print(&mut out).and_then(|()| writeln!(out, "{}", results.json()));
        done.map_err(|e| e.to_string())?;
        Ok(results.goals().iter().all(|goal| goal.is_met() || goal.beyond))
    });
    match printed {
        Ok(true) => ExitCode::SUCCESS,
        Ok(false) => ExitCode::FAILURE,
        Err(e) => {
            let _ = writeln!(stderr(), "bench-wbt-sim: {e}");
            ExitCode::FAILURE
        }
    }
}
