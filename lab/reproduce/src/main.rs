// SPDX-License-Identifier: Apache-2.0 OR MIT
//! The program `reproduce`: the published results on this machine, or on models in virtual time, as
//! tables, JSON and one page.
//!
//! The scenarios run on a thread of their own; this one waits for them and for signals. Their files
//! have no names, so an interrupted run leaves nothing behind.
use std::io::IsTerminal;
use std::path::{Path, PathBuf};
use std::process::ExitCode;
use std::time::Duration;

use block::ErrorKind;
use clap::Parser;
use control::{EXIT_DONE, EXIT_FAILED, Failure, parse_size};
use host::{
    abort_on_panic, flush_log, ignore_file_size_signal, io_failure, print, print_error, start_log,
};
use indicatif::{ProgressBar, ProgressStyle};
use reproduce::dm_bench::load_generator;
use reproduce::machine;
use reproduce::report::{Report, Section};
use reproduce::scenario::{Plan, SIZES, Scenario};
use tokio::signal::unix::{SignalKind, signal};
use tokio::time::Instant;
use tracing::Level;

/// The name of all scenarios together.
const ALL: &str = "all";
/// Steps of the progress bar.
const PARTS: u64 = 1000;

/// Show what each mechanism gains, on this machine or on models of disks
///
/// Runs each mechanism off and on in turns, and prints both beside the ratio that others have
/// published and beside the limit that no method can pass. Files in DIR have no names: nothing is
/// left behind, however the run ends. With --sim everything runs in virtual time on models of
/// disks: the same bytes on every machine. Progress is on standard error.
#[derive(Clone, Debug, Parser)]
#[command(
    name = "reproduce",
    version,
    max_term_width = 100,
    after_help = "\
Examples:
  reproduce
  reproduce --sim
  reproduce writecache zram --dir /srv --size 1G
  reproduce --html page.html --json figures.json
  reproduce --markdown > figures.md

Exit codes: 0 done; 1 a scenario could not be run (the others were), interrupted, or no room for the
files; 2 usage; 3 a directory is not there."
)]
struct ReproduceArgs {
    /// What to run: writecache, wbt, iomap, zram, noclone or all [default: all]
    #[arg(value_name = "SCENARIO", value_parser = scenario)]
    scenarios: Vec<Choice>,
    /// Where files are made [default: the system's directory for temporary files]
    #[arg(long, value_name = "DIR")]
    dir: Option<PathBuf>,
    /// Data in each scenario: 64M, 1G [default: 256M; with --sim what was published, or less]
    #[arg(long, value_name = "SIZE", value_parser = size)]
    size: Option<u64>,
    /// Virtual time, on models of disks
    #[arg(long, conflicts_with = "dir")]
    sim: bool,
    /// Write all figures to FILE, as JSON
    #[arg(long, value_name = "FILE")]
    json: Option<PathBuf>,
    /// Write one page with tables and plots to FILE
    #[arg(long, value_name = "FILE")]
    html: Option<PathBuf>,
    /// Print the tables as Markdown
    #[arg(long)]
    markdown: bool,
}

/// A scenario, or all of them.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
enum Choice {
    All,
    One(Scenario),
}

fn scenario(text: &str) -> Result<Choice, String> {
    let found = Scenario::ALL.into_iter().find(|s| s.name() == text).map(Choice::One);
    let all = (text == ALL).then_some(Choice::All);
    let names = Scenario::ALL.map(Scenario::name).join(", ");
    found.or(all).ok_or_else(|| format!("there are {names} and {ALL}"))
}

fn size(text: &str) -> Result<u64, String> {
    let bytes = parse_size(text).map_err(|e| e.to_string())?;
    let (least, most) = SIZES;
    if (least..=most).contains(&bytes) {
        Ok(bytes / (1 << 20) * (1 << 20))
    } else {
        Err(format!("{} MiB to {} GiB are allowed", least >> 20, most >> 30))
    }
}

impl ReproduceArgs {
    /// Each once, in the order of [`Scenario::ALL`].
    fn chosen(&self) -> Vec<Scenario> {
        let all = self.scenarios.is_empty() || self.scenarios.contains(&Choice::All);
        let is_meant = |s: &Scenario| all || self.scenarios.contains(&Choice::One(*s));
        Scenario::ALL.into_iter().filter(is_meant).collect()
    }

    /// The command that gives the same report, and what it depends on besides the machine.
    fn described(&self) -> Vec<(&'static str, String)> {
        let names: Vec<&str> = self.chosen().into_iter().map(Scenario::name).collect();
        let all = names.len() == Scenario::ALL.len();
        let mut command = "reproduce".to_owned();
        if !all {
            command = format!("{command} {}", names.join(" "));
        }
        if self.sim {
            command.push_str(" --sim");
        } else {
            command = format!("{command} --dir {}", self.dir().display());
        }
        let size = match self.size {
            Some(bytes) => {
                command = format!("{command} --size {}M", bytes >> 20);
                format!("{} MiB in each scenario", bytes >> 20)
            }
            None => {
                let of = |s: Scenario| format!("{} {}", s.name(), s.default_bytes(self.sim) >> 20);
                let sizes: Vec<String> = self.chosen().into_iter().map(of).collect();
                format!("the default, in MiB: {}", sizes.join(", "))
            }
        };
        let version = env!("CARGO_PKG_VERSION").to_owned();
        vec![("command", command), ("version", version), ("size", size)]
    }

    fn dir(&self) -> PathBuf {
        self.dir.clone().unwrap_or_else(std::env::temp_dir)
    }

    /// Whether there is room; before anything runs.
    fn check(&self) -> Result<(), Failure> {
        for file in self.json.iter().chain(&self.html) {
            can_be_written(file).map_err(|e| io_failure(&e, file.display()))?;
        }
        let bytes = |s: &Scenario| self.size.unwrap_or(s.default_bytes(self.sim));
        let chosen = self.chosen();
        let memory = chosen.iter().map(|s| s.memory_bytes(bytes(s), self.sim)).max().unwrap_or(0);
        if let Some(available) = machine::available_memory_bytes().filter(|a| *a < memory) {
            let least = |s: &Scenario| s.memory_bytes(SIZES.0, self.sim);
            let is_by_size = chosen.iter().map(least).max().unwrap_or(0) < memory;
            let hint = if is_by_size { "; a smaller --size needs less" } else { "" };
            let message = format!(
                "{} MiB of memory are available, {} are needed{hint}",
                available >> 20,
                memory >> 20
            );
            return Err(Failure::new(ErrorKind::Limit, message));
        }
        if self.sim {
            return Ok(());
        }
        if chosen.contains(&Scenario::Noclone) {
            load_generator().map_err(|e| Failure::new(ErrorKind::NoFile, e))?;
        }
        let dir = self.dir();
        let needed = chosen.iter().map(|s| s.disk_bytes(bytes(s))).max().unwrap_or(0);
        let meta = std::fs::metadata(&dir).map_err(|e| io_failure(&e, dir.display()))?;
        if !meta.is_dir() {
            let message = format!("{}: is no directory", dir.display());
            return Err(Failure::new(ErrorKind::Invalid, message));
        }
        tempfile::tempfile_in(&dir).map_err(|e| {
            let message = format!("{}: no file can be made there: {e}", dir.display());
            Failure::new(ErrorKind::Denied, message)
        })?;
        let room = rustix::fs::statvfs(&dir).map_err(|e| io_failure(&e.into(), dir.display()))?;
        let free = room.f_bavail.saturating_mul(room.f_frsize);
        if free < needed {
            let message = format!(
                "{}: {} MiB are free, {} are needed; a smaller --size needs less",
                dir.display(),
                free >> 20,
                needed >> 20
            );
            return Err(Failure::new(ErrorKind::NoSpace, message));
        }
        Ok(())
    }
}

/// Checks before the run that the file can be written after it. It leaves no file behind.
fn can_be_written(file: &Path) -> std::io::Result<()> {
    let was_there = file.exists();
    std::fs::OpenOptions::new().write(true).create(true).truncate(false).open(file)?;
    if was_there { Ok(()) } else { std::fs::remove_file(file) }
}

fn main() -> ExitCode {
    ignore_file_size_signal();
    let args = ReproduceArgs::parse();
    start_log(Level::WARN);
    abort_on_panic();
    let runtime = tokio::runtime::Builder::new_current_thread().enable_all().build();
    let ended = runtime.map_err(|e| io_failure(&e, "runtime")).and_then(|r| r.block_on(run(args)));
    let code = ended.unwrap_or_else(|failure| {
        print_error(&format!("reproduce: {failure}"));
        failure.exit_code()
    });
    flush_log();
    code.into()
}

/// Runs the scenarios; returns the exit code.
async fn run(args: ReproduceArgs) -> Result<u8, Failure> {
    args.check()?;
    let failed = |e| io_failure(&e, "signals");
    let mut interrupt = signal(SignalKind::interrupt()).map_err(failed)?;
    let mut terminate = signal(SignalKind::terminate()).map_err(failed)?;
    let work = args.clone();
    let scenarios = tokio::task::spawn_blocking(move || all(&work));
    let report = tokio::select! {
        report = scenarios => report.expect("a panic ends the program"),
        _ = interrupt.recv() => interrupted(),
        _ = terminate.recv() => interrupted(),
    };
    let json = format!("{:#}\n", report.json());
    let page = args.html.as_ref().map(|file| (file, report.html()));
    for (file, text) in args.json.as_ref().map(|file| (file, json)).into_iter().chain(page) {
        std::fs::write(file, text).map_err(|e| io_failure(&e, file.display()))?;
    }
    print(&if args.markdown { report.markdown() } else { report.text() })?;
    Ok(if report.is_complete() { EXIT_DONE } else { EXIT_FAILED })
}

/// Ends the process although the thread of the scenarios runs.
fn interrupted() -> ! {
    reproduce::dm_bench::kill_child();
    print_error("reproduce: interrupted; no files are left behind");
    flush_log();
    std::process::exit(EXIT_FAILED.into())
}

fn all(args: &ReproduceArgs) -> Report {
    let (chosen, dir) = (args.chosen(), args.dir());
    let facts = if args.sim { Vec::new() } else { machine::facts(&dir) };
    let plan = Plan { is_simulated: args.sim, dir: &dir, size_bytes: args.size };
    let whole: f64 = chosen.iter().map(|s| s.weight(args.sim)).sum();
    let (mut progress, mut before) = (RunProgress::new(), 0.0);
    let mut sections = Vec::new();
    for scenario in chosen {
        let weight = scenario.weight(args.sim);
        let mut report = |part: f64, what: &str| {
            let done = (before + part * weight) / whole;
            progress.show(done, &format!("{}: {what}", scenario.name()));
        };
        let section = scenario.run(&plan, &mut report);
        sections.push(section.unwrap_or_else(|e| Section::failed(scenario.name(), e)));
        before += weight;
    }
    progress.finish();
    Report { is_simulated: args.sim, run: args.described(), facts, sections }
}

/// Progress on standard error: a bar on a terminal, a line a step elsewhere.
struct RunProgress {
    began: Instant,
    bar: Option<ProgressBar>,
}

impl RunProgress {
    fn new() -> RunProgress {
        let bar = std::io::stderr().is_terminal().then(|| {
            let style = ProgressStyle::with_template("{wide_bar} {percent} %, {msg}")
                .expect("a constant template");
            ProgressBar::new(PARTS).with_style(style)
        });
        RunProgress { began: Instant::now(), bar }
    }

    fn show(&mut self, done: f64, what: &str) {
        let text = format!("{}, {what}", left(done, self.began.elapsed()));
        match &self.bar {
            Some(bar) => {
                bar.set_position((done * PARTS as f64) as u64);
                bar.set_message(text);
            }
            None => print_error(&format!("reproduce: {:.0} %, {text}", done * 100.0)),
        }
    }

    fn finish(&self) {
        if let Some(bar) = &self.bar {
            bar.finish_and_clear();
        }
    }
}

/// How long the rest takes, at the pace of what is done.
fn left(done: f64, elapsed: Duration) -> String {
    if done < 0.02 {
        return "time left unknown".to_owned();
    }
    let seconds = elapsed.as_secs_f64() * (1.0 - done) / done;
    if seconds < 90.0 {
        format!("about {seconds:.0} s left")
    } else {
        format!("about {:.0} min left", seconds / 60.0)
    }
}

#[cfg(test)]
mod tests {
    use clap::Parser;

    use super::*;

    fn parsed(line: &str) -> Result<ReproduceArgs, String> {
        let words = std::iter::once("reproduce").chain(line.split_ascii_whitespace());
        ReproduceArgs::try_parse_from(words).map_err(|e| e.to_string())
    }

    #[test]
    fn scenarios_are_run_once_in_their_order_and_all_without_a_name() {
        let chosen = |line| parsed(line).unwrap().chosen();
        assert_eq!(chosen("zram wbt zram"), [Scenario::Wbt, Scenario::Zram]);
        assert_eq!(chosen(""), Scenario::ALL);
        assert_eq!(chosen("zram all"), Scenario::ALL);
    }

    #[test]
    fn the_command_of_a_report_is_the_shortest_one_that_gives_it() {
        let described = |line: &str| parsed(line).unwrap().described();
        let of = |line: &str| described(line)[0].1.clone();
        assert_eq!(of("--sim --html x.html"), "reproduce --sim");
        let line = "zram wbt --size 16M --dir /srv";
        assert_eq!(of(line), "reproduce wbt zram --dir /srv --size 16M");
        assert_eq!(described(line)[2].1, "16 MiB in each scenario");
    }

    #[test]
    fn a_wrong_value_is_refused_with_what_is_allowed() {
        for (line, said) in [
            ("cache", "there are writecache, wbt, iomap, zram, noclone and all"),
            ("--size 1M", "4 MiB to 64 GiB are allowed"),
            ("--size lots", "lots"),
            ("--sim --dir /tmp", "cannot be used with"),
        ] {
            let error = parsed(line).unwrap_err();
            assert!(error.contains(said), "{line}: {error}");
        }
        assert_eq!(parsed("--size 5000k").unwrap().size, Some(4 << 20), "whole MiB");
    }

    #[test]
    fn time_left_is_what_the_rest_takes_at_the_same_pace() {
        assert_eq!(left(0.0, Duration::ZERO), "time left unknown");
        assert_eq!(left(0.25, Duration::from_secs(10)), "about 30 s left");
        assert_eq!(left(0.5, Duration::from_secs(300)), "about 5 min left");
    }
}
