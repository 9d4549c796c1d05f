// SPDX-License-Identifier: Apache-2.0 OR MIT
//! Developer commands that are longer than one line of the Makefile.
//!
//! `xtask arch` checks that a room sees only lower floors and that few files of a crate import each
//! other, `xtask tidy` the style rules that a machine can check, `xtask licences` the licence and
//! the documentation of every dependency, `xtask fuzz` runs every fuzz target for a while,
//! `xtask sanitize` tests under sanitizers and Miri. Checks print one line for each finding; a
//! circle of imports has one more for each import.

use std::path::{Path, PathBuf};
use std::process::ExitCode;

mod arch;
mod circles;
mod fuzz;
mod imports;
mod labels;
mod licences;
mod metadata;
mod sanitize;
mod sizes;
mod source;
mod tidy;
mod words;

const USAGE: &str = "\
usage: xtask CHECK...           any of: arch tidy licences
       xtask fuzz [SECONDS]     every target in fuzz/, 60 seconds each by default
       xtask sanitize [TOOL...] tests under address, thread, miri; all of them by default

exit status: 0 nothing found, 1 something found or failed, 2 wrong usage";

fn main() -> ExitCode {
    let words: Vec<String> = std::env::args().skip(1).collect();
    let words: Vec<&str> = words.iter().map(String::as_str).collect();
    match words.as_slice() {
        [] | ["-h" | "--help" | "help"] => {
            println!("{USAGE}");
            if words.is_empty() { ExitCode::from(2) } else { ExitCode::SUCCESS }
        }
        ["fuzz"] => fuzz::run(&root(), 60),
        ["fuzz", seconds] => match seconds.parse() {
            Ok(seconds) => fuzz::run(&root(), seconds),
            Err(_) => usage_error(&format!("fuzz: '{seconds}' is not a number of seconds")),
        },
        ["sanitize", tools @ ..] => sanitize::run(&root(), tools),
        checks => run_checks(checks),
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
