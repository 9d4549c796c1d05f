// SPDX-License-Identifier: Apache-2.0 OR MIT
//! What every bench takes and says: our program, a directory; progress on standard error, tables
//! for people, and as its last line one JSON object.
use std::io::{self, Write, stderr, stdout};
use std::path::PathBuf;
use std::process::ExitCode;

use clap::Args;
use reproduce::report::{Goal, Section};
use serde_json::{Map, Value, json};

/// Where files are made.
#[derive(Clone, Debug, Args)]
pub struct Dir {
    /// Where files are made; they are gone afterwards
    #[arg(long, value_name = "DIR", default_value_os_t = std::env::temp_dir())]
    pub dir: PathBuf,
}

/// Our program.
#[derive(Clone, Debug, Args)]
pub struct Ours {
    /// The program under measurement [default: `millpond` beside this one]
    #[arg(long, value_name = "PROGRAM")]
    ours: Option<PathBuf>,
}

impl Ours {
    /// Where it is.
    ///
    /// # Errors
    /// That it is not there.
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

/// Seconds, rates: a number above 0.
///
/// # Errors
/// That it is none.
pub fn positive(text: &str) -> Result<f64, String> {
    let number = text.parse().ok().filter(|n: &f64| *n > 0.0 && n.is_finite());
    number.ok_or_else(|| "a number above 0 is needed".to_owned())
}

/// Says how far a bench is.
pub fn progress(done: f64, what: &str) {
    let _ = writeln!(stderr(), "{:3.0} %: {what}", done * 100.0); // nobody has to listen
}

/// Prints what a bench has seen, or why not. It fails, too, when a goal is missed.
pub fn finish(name: &str, done: Result<Section, String>) -> ExitCode {
    let missed = done.and_then(|section| {
        print(name, &section).map_err(|e| format!("standard output: {e}"))?;
        Ok(section.goals.iter().filter(|goal| goal.is_missed()).count())
    });
    let complaint = match missed {
        Ok(0) => return ExitCode::SUCCESS,
        Ok(count) => format!("goals that were missed: {count}"),
        Err(why) => why,
    };
    let _ = writeln!(stderr(), "bench-{name}: {complaint}");
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
