// SPDX-License-Identifier: Apache-2.0 OR MIT
//! The record of the inputs with which the long checks have passed: CI runs a check again only when
//! its inputs are others.
//!
//! ```text
//!   xtask record CHECK COMMAND...            make fuzz, make guest: runs, then writes the record
//!   xtask unless-recorded CHECK COMMAND...   CI: runs unless the record has the inputs of now
//!   tests/passed.toml                        CHECK = "HASH", tracked
//! ```
//!
//! Invariants
//! - XT-P1 A record is written only after the command succeeded, and only if the inputs are at its
//!   end what they were when it began.
//!   `make -i` makes no failure a success.
//! - XT-P2 What is not understood (no record, two of them, a conflict, no git) means: run.

use std::path::Path;
use std::process::{Command, ExitCode};

use crate::inputs::{self, Check};

/// The record, from the root of the checkout.
pub(crate) const RECORD: &str = "tests/passed.toml";

const HEAD: &str = "\
# Inputs with which a long check has passed (docs/testing.md). `make fuzz` and `make guest` write
# this file when they succeed; CI leaves out a check whose inputs are still these. Never by hand:
# after a conflict take the line away, and the check runs.
";

/// Runs `command`, and records the inputs of `check` if it succeeds.
pub(crate) fn record(root: &Path, check: Check, command: &[&str]) -> ExitCode {
    let name = check.name();
    let before = inputs::hash(root, check);
    if !succeeds(root, command) {
        return ExitCode::FAILURE;
    }
    // XT-P1
    let written = before.and_then(|before| {
        if inputs::hash(root, check)? != before {
            return Err("inputs were changed meanwhile".to_owned());
        }
        write(root, check, &before)
    });
    match written {
        Ok(true) => println!("{name}: passed; {RECORD} has the inputs: commit it with them"),
        Ok(false) => println!("{name}: passed; {RECORD} had the inputs already"),
        Err(why) => println!("{name}: passed, but NOT recorded: {why}"),
    }
    ExitCode::SUCCESS
}

/// Runs `command` unless the inputs of `check` are those of the record.
pub(crate) fn run_unless_recorded(root: &Path, check: Check, command: &[&str]) -> ExitCode {
    let name = check.name();
    match is_recorded(root, check) {
        Ok(true) => {
            println!("{name}: NOT run: it has passed with exactly these inputs ({RECORD})");
            return ExitCode::SUCCESS;
        }
        Ok(false) => println!("{name}: runs: {RECORD} does not have its inputs"),
        Err(why) => println!("{name}: runs: {why}"),
    }
    if succeeds(root, command) { ExitCode::SUCCESS } else { ExitCode::FAILURE }
}

fn is_recorded(root: &Path, check: Check) -> Result<bool, String> {
    let text = std::fs::read_to_string(root.join(RECORD)).map_err(|e| format!("{RECORD}: {e}"))?;
    let recorded = recorded(&text, check)?;
    Ok(inputs::hash(root, check)? == recorded)
}

/// The hash that `text` has for `check`. XT-P2: anything but one good line is an error.
fn recorded(text: &str, check: Check) -> Result<String, String> {
    let mut found = Vec::new();
    for line in text.lines().filter(|line| !line.is_empty() && !line.starts_with('#')) {
        let (name, value) = line.split_once(" = ").ok_or(format!("{RECORD}: not read: {line}"))?;
        let value = value.strip_prefix('"').and_then(|v| v.strip_suffix('"'));
        let is_hash = |v: &&str| v.len() >= 40 && v.bytes().all(|b| b.is_ascii_hexdigit());
        let value = value.filter(is_hash).ok_or(format!("{RECORD}: no hash: {line}"))?;
        if name == check.name() {
            found.push(value);
        }
    }
    match found.as_slice() {
        [one] => Ok((*one).to_owned()),
        [] => Err(format!("{RECORD} has no line for it")),
        _ => Err(format!("{RECORD} has two lines for it")),
    }
}

/// Returns whether the record had another hash. The other checks' lines stay.
fn write(root: &Path, check: Check, hash: &str) -> Result<bool, String> {
    let path = root.join(RECORD);
    let old = std::fs::read_to_string(&path).unwrap_or_default(); // the first one
    let line = |other: Check| {
        let hash = if other == check { hash.to_owned() } else { recorded(&old, other).ok()? };
        Some(format!("{} = \"{hash}\"\n", other.name()))
    };
    let new: String =
        std::iter::once(HEAD.to_owned()).chain(Check::ALL.into_iter().filter_map(line)).collect();
    if new == old {
        return Ok(false);
    }
    std::fs::write(&path, new).map_err(|e| format!("{RECORD}: {e}"))?;
    Ok(true)
}

fn succeeds(root: &Path, command: &[&str]) -> bool {
    let [program, args @ ..] = command else { return false };
    let mut command = Command::new(program);
    // XT-P1
    for name in ["MAKEFLAGS", "MFLAGS", "GNUMAKEFLAGS"] {
        command.env_remove(name);
    }
    match command.args(args).current_dir(root).status() {
        Ok(status) => status.success(),
        Err(e) => {
            eprintln!("{program}: {e}");
            false
        }
    }
}

#[cfg(test)]
#[path = "passed_tests.rs"]
mod tests;
