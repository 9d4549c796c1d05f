// SPDX-License-Identifier: Apache-2.0 OR MIT
//! Runs every fuzz target for a bounded time, with cargo-fuzz and the nightly toolchain.
//!
//! Inputs that reach new code are kept in fuzz/corpus (not in git); those worth keeping for
//! everyone are copied by hand to fuzz/seeds/TARGET and tried first in every run.

use std::path::Path;
use std::process::{Command, ExitCode};

/// The exit status by which scripts/setup.sh says that this machine cannot fuzz.
const NO_NIGHTLY: i32 = 3;

/// One target may use this much memory before that counts as a finding (libFuzzer's own default
/// is 2048): the parsers under test promise bounded allocations.
const MEMORY_MAX_MIB: u32 = 1024;

/// Runs all targets, `seconds` each. Without nightly that is a failure, but in CI only a notice:
/// a machine without it must still be able to run the tests.
pub(crate) fn run(root: &Path, seconds: u32) -> ExitCode {
    let setup = Command::new("scripts/setup.sh").arg("fuzz").current_dir(root).status();
    match setup.map(|status| status.code()) {
        Ok(Some(0)) => {}
        Ok(Some(NO_NIGHTLY)) if std::env::var_os("CI").is_some() => {
            println!("fuzz: SKIPPED, needs a nightly toolchain and there is none");
            return ExitCode::SUCCESS;
        }
        other => {
            eprintln!("fuzz: cannot run here (scripts/setup.sh fuzz: {other:?})");
            return ExitCode::FAILURE;
        }
    }
    let targets = match targets(&root.join("fuzz")) {
        Ok(targets) => targets,
        Err(problem) => {
            eprintln!("fuzz: {problem}");
            return ExitCode::FAILURE;
        }
    };
    let mut failed = Vec::new();
    for target in &targets {
        println!("fuzz: {target}, {seconds} s");
        if !run_one(root, target, seconds) {
            failed.push(target.as_str());
        }
    }
    if failed.is_empty() {
        println!("fuzz: {} targets, nothing found", targets.len());
        return ExitCode::SUCCESS;
    }
    eprintln!("fuzz: FAILED: {}; inputs are in fuzz/artifacts", failed.join(" "));
    ExitCode::FAILURE
}

/// Names of the targets: one file each in fuzz/fuzz_targets.
fn targets(fuzz: &Path) -> Result<Vec<String>, String> {
    let folder = fuzz.join("fuzz_targets");
    let entries = std::fs::read_dir(&folder).map_err(|e| format!("{}: {e}", folder.display()))?;
    let mut names: Vec<String> = entries
        .filter_map(|entry| entry.ok()?.file_name().into_string().ok())
        .filter_map(|name| name.strip_suffix(".rs").map(str::to_owned))
        .collect();
    names.sort();
    if names.is_empty() { Err(format!("{}: no targets", folder.display())) } else { Ok(names) }
}

fn run_one(root: &Path, target: &str, seconds: u32) -> bool {
    let corpus = format!("fuzz/corpus/{target}");
    let seeds = format!("fuzz/seeds/{target}");
    if let Err(e) = std::fs::create_dir_all(root.join(&corpus)) {
        eprintln!("fuzz: {corpus}: {e}");
        return false;
    }
    let mut command = Command::new("cargo");
    command.args(["+nightly", "fuzz", "run", target, &corpus]).current_dir(root);
    if root.join(&seeds).is_dir() {
        command.arg(&seeds);
    }
    command.arg("--").arg(format!("-max_total_time={seconds}"));
    command.arg(format!("-rss_limit_mb={MEMORY_MAX_MIB}")).arg("-print_final_stats=1");
    // cargo finds `cargo fuzz` on PATH; set-up puts it into the checkout.
    let path = std::env::var_os("PATH").unwrap_or_default();
    let tools = root.join("target/tools/bin");
    let all = std::iter::once(tools).chain(std::env::split_paths(&path));
    match std::env::join_paths(all) {
        Ok(path) => command.env("PATH", path),
        Err(_) => &mut command, // a colon in the checkout's path: hope for one on PATH
    };
    // The environment of the cargo that started us names the stable toolchain and its target.
    for name in ["CARGO", "RUSTUP_TOOLCHAIN", "RUSTC", "RUSTFLAGS", "CARGO_TARGET_DIR"] {
        command.env_remove(name);
    }
    match command.status() {
        Ok(status) => status.success(),
        Err(e) => {
            eprintln!("fuzz: cargo: {e}");
            false
        }
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn every_target_of_the_workspace_is_declared_in_its_manifest() {
        let fuzz = crate::root().join("fuzz");
        let manifest = std::fs::read_to_string(fuzz.join("Cargo.toml")).unwrap();
        for target in targets(&fuzz).unwrap() {
            assert!(manifest.contains(&format!("name = \"{target}\"")), "{target}");
        }
    }
}
