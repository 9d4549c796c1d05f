// SPDX-License-Identifier: Apache-2.0 OR MIT
//! Options and output that all benches share: a directory and our program; progress on standard
//! error, tables, and one JSON object as the last line.
use std::io::{self, Write, stderr, stdout};
use std::path::PathBuf;
use std::process::ExitCode;

use clap::Args;
use reproduce::report::{Goal, Section};
use serde_json::{Map, Value, json};

/// The option `--dir`.
#[derive(Clone, Debug, Args)]
pub struct Dir {
    /// Where files are made; they are gone afterwards
    #[arg(long, value_name = "DIR", default_value_os_t = std::env::temp_dir())]
    pub dir: PathBuf,
}

/// The option `--ours`.
#[derive(Clone, Debug, Args)]
pub struct ProgramOption {
    /// The program under measurement [default: `millpond` beside this one]
    #[arg(long, value_name = "PROGRAM")]
    ours: Option<PathBuf>,
}

impl ProgramOption {
    /// Its path.
    ///
    /// # Errors
    /// If it does not exist.
    pub fn program(&self) -> Result<PathBuf, String> {
        let beside = || {
            let here = std::env::current_exe().map_err(|e| e.to_string())?;
            Ok::<PathBuf, String>(here.with_file_name("millpond"))
        };
        let ours = self.ours.clone().map_or_else(beside, Ok)?;
        if ours.exists() {
            return Ok(ours);
        }
        let ours = ours.display();
        Err(format!("{ours}: not there; build it first: cargo build --release -p millpond"))
    }
}

/// A number above 0, of seconds or a rate.
///
/// # Errors
/// If it is none.
pub fn positive(text: &str) -> Result<f64, String> {
    let number = text.parse().ok().filter(|n: &f64| *n > 0.0 && n.is_finite());
    number.ok_or_else(|| "a number above 0 is needed".to_owned())
}

/// Prints the progress of a bench.
pub fn progress(done: f64, what: &str) {
    let _ = writeln!(stderr(), "{:3.0} %: {what}", done * 100.0); // progress is optional
}

/// Prints the result or the error of a bench. A missed goal is an error, too.
pub fn finish(name: &str, done: Result<Section, String>) -> ExitCode {
    let missed = done.and_then(|section| {
        print(name, &section).map_err(|e| format!("standard output: {e}"))?;
        Ok(section.goals.iter().filter(|goal| goal.is_missed()).count())
    });
    let done = missed.and_then(|count| match count {
        0 => Ok(()),
        count => Err(format!("goals that were missed: {count}")),
    });
    ended(name, done)
}

/// The exit status of a bench; an error goes to standard error.
pub fn ended(name: &str, done: Result<(), String>) -> ExitCode {
    let Err(why) = done else { return ExitCode::SUCCESS };
    let _ = writeln!(stderr(), "bench-{name}: {why}"); // there is no other place to report it
    ExitCode::FAILURE
}

fn print(name: &str, section: &Section) -> io::Result<()> {
    let mut out = stdout().lock();
    for table in &section.tables {
        writeln!(out, "{table}")?;
    }
    if !section.goals.is_empty() {
        writeln!(out, "{}", Goal::table(&section.goals))?;
    }
    for note in &section.notes {
        writeln!(out, "note: {note}")?;
    }
    writeln!(out, "{}", Value::Object(last_line(name, section)))
}

fn last_line(name: &str, section: &Section) -> Map<String, Value> {
    let mut keys = section.keys.clone();
    keys.insert("bench".to_owned(), json!(name));
    if !section.goals.is_empty() {
        let missed = section.goals.iter().filter(|goal| goal.is_missed());
        keys.insert("missed".to_owned(), json!(missed.map(|goal| &goal.what).collect::<Vec<_>>()));
    }
    keys
}
