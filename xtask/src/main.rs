// SPDX-License-Identifier: Apache-2.0 OR MIT
//! Developer commands that are longer than one line of the Makefile.
//!
//! `xtask arch` checks that a room sees only lower floors and that few files of a crate import each
//! other, `xtask tidy` the style rules that a machine can check, `xtask licences` the licence and
//! the documentation of every dependency, `xtask examples` that those of the documentation are
//! tests, `xtask commits` the subjects of commits. Checks print one line for each finding; a circle
//! of imports has one more for each import.
//!
//! `xtask fuzz` runs every fuzz target for a while, `xtask sanitize` tests under sanitizers and
//! Miri. `xtask record` runs a long check and records its inputs; `xtask unless-recorded` runs it
//! if it has others. `xtask release` makes a release. `xtask lines` counts lines of code.

use std::path::{Path, PathBuf};
use std::process::ExitCode;

mod arch;
mod circles;
mod commits;
mod doc_examples;
mod fuzz;
mod imports;
mod inputs;
mod labels;
mod licences;
mod lines;
mod metadata;
mod passed;
mod release;
mod sanitize;
mod sizes;
mod source;
mod tidy;
mod words;

use fuzz::Without;
use inputs::Check;

const USAGE: &str = "\
usage: xtask CHECK...           any of: arch tidy licences examples commits
       xtask fuzz [SECONDS]     every target in fuzz/, 60 seconds each by default
       xtask fuzz --or-skip [SECONDS]  the same; without a nightly toolchain that is no failure
       xtask sanitize [TOOL...] tests under address, thread, miri; all of them by default
       xtask record CHECK COMMAND...           runs it; if it succeeds, records CHECK's inputs
       xtask unless-recorded CHECK COMMAND...  runs it unless CHECK's inputs are recorded
                                               (CHECK: fuzz guest)
       xtask lines [REVISION]   lines of code by crate; what has changed since REVISION
       xtask release STEP VERSION   makes a release; `xtask release` lists the steps

exit status: 0 nothing found, 1 something found or failed, 2 wrong usage";

fn main() -> ExitCode {
    let words: Vec<String> = std::env::args().skip(1).collect();
    let words: Vec<&str> = words.iter().map(String::as_str).collect();
    match words.as_slice() {
        [] | ["-h" | "--help" | "help"] => {
            println!("{USAGE}");
            if words.is_empty() { ExitCode::from(2) } else { ExitCode::SUCCESS }
        }
        ["fuzz", "--or-skip", rest @ ..] => run_fuzz(rest, Without::Skip),
        ["fuzz", rest @ ..] => run_fuzz(rest, Without::Fail),
        ["record", name, command @ ..] if !command.is_empty() => match Check::named(name) {
            Some(check) => passed::record(&root(), check, command),
            None => usage_error(&format!("no check '{name}': fuzz and guest are allowed")),
        },
        ["unless-recorded", name, command @ ..] if !command.is_empty() => {
            match Check::named(name) {
                Some(check) => passed::run_unless_recorded(&root(), check, command),
                None => usage_error(&format!("no check '{name}': fuzz and guest are allowed")),
            }
        }
        ["lines"] => lines::run(&root(), None),
        ["lines", since] => lines::run(&root(), Some(since)),
        ["sanitize", tools @ ..] => sanitize::run(&root(), tools),
        ["release", words @ ..] => release::run(&root(), words),
        checks => run_checks(checks),
    }
}

fn run_fuzz(words: &[&str], without: Without) -> ExitCode {
    match words {
        [] => fuzz::run(&root(), 60, without),
        [seconds] => match seconds.parse() {
            Ok(seconds) => fuzz::run(&root(), seconds, without),
            Err(_) => usage_error(&format!("fuzz: '{seconds}' is not a number of seconds")),
        },
        _ => usage_error("fuzz: one number of seconds is allowed"),
    }
}

fn run_checks(names: &[&str]) -> ExitCode {
    let root = root();
    let mut found = 0;
    for name in names {
        let result = match *name {
            "arch" => arch::check(&root),
            "tidy" => tidy::check(&root),
            "licences" => licences::check(&root),
            "examples" => doc_examples::check(&root),
            "commits" => commits::check(&root),
            other => return usage_error(&format!("no command '{other}'")),
        };
        match result {
            Ok(findings) if findings.is_empty() => println!("{name}: ok"),
            Ok(findings) => {
                found += findings.len();
                for finding in &findings {
                    println!("{name}: {finding}");
                }
            }
            Err(problem) => {
                eprintln!("{name}: could not check: {problem}");
                found += 1;
            }
        }
    }
    if found == 0 { ExitCode::SUCCESS } else { ExitCode::FAILURE }
}

fn usage_error(message: &str) -> ExitCode {
    eprintln!("xtask: {message}\n{USAGE}");
    ExitCode::from(2)
}

/// The checkout that this program was built from.
fn root() -> PathBuf {
    let here = Path::new(env!("CARGO_MANIFEST_DIR"));
    here.parent().expect("xtask lies in the root of the checkout").to_path_buf()
}
