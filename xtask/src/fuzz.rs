// SPDX-License-Identifier: Apache-2.0 OR MIT
//! Builds every fuzz target with the nightly toolchain, and runs each for a bounded time: as many
//! at once as there are cores.
//!
//! ```text
//!   fuzz/seeds/TARGET      inputs that every run tries first, in git
//!   fuzz/corpus/TARGET     inputs that reached new code on this machine
//!   fuzz/artifacts/TARGET  inputs that failed
//! ```
//!
//! What is worth keeping for everyone is copied by hand from `corpus` to `seeds`.

use std::fs::File;
use std::path::{Path, PathBuf};
use std::process::{Child, Command, ExitCode, Stdio};

/// The exit status by which scripts/setup.sh says that this machine cannot fuzz.
const NO_NIGHTLY: i32 = 3;

/// One target may use this much memory before that counts as a finding (libFuzzer's own default
/// is 2048): the parsers under test promise bounded allocations.
const MEMORY_MAX_MIB: u32 = 1024;

/// What it means that there is no nightly toolchain.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub(crate) enum Without {
    /// A failure: who asked for it wants to know.
    Fail,
    /// A notice, in CI: a machine without it must still be able to run the tests.
    Skip,
}

/// Runs all targets, `seconds` each.
pub(crate) fn run(root: &Path, seconds: u32, without: Without) -> ExitCode {
    let setup = Command::new("scripts/setup.sh").arg("fuzz").current_dir(root).status();
    match setup.map(|status| status.code()) {
        Ok(Some(0)) => {}
        Ok(Some(NO_NIGHTLY)) if without == Without::Skip => {
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
    if !build(root) {
        return ExitCode::FAILURE;
    }
    let at_once = std::thread::available_parallelism().map_or(1, std::num::NonZero::get);
    let mut failed = Vec::new();
    for group in targets.chunks(at_once) {
        println!("fuzz: {}, {seconds} s", group.join(" "));
        let runs: Vec<_> = group.iter().map(|target| start(root, target, seconds)).collect();
        for (target, run) in group.iter().zip(runs) {
            if !run.and_then(finish).unwrap_or_else(|problem| report(target, &problem)) {
                failed.push(target.as_str());
            }
        }
    }
    if failed.is_empty() {
        println!("fuzz: {} targets, nothing found", targets.len());
        return ExitCode::SUCCESS;
    }
    eprintln!("fuzz: FAILED: {}; inputs are in fuzz/artifacts", failed.join(" "));
    ExitCode::FAILURE
}

/// Prints why a target could not run, which is a failure.
fn report(target: &str, problem: &str) -> bool {
    eprintln!("fuzz: {target}: {problem}");
    false
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

/// What makes a program that libFuzzer can guide: counters on all edges, comparisons traced; and
/// AddressSanitizer. The flags are those of cargo-fuzz.
const FLAGS: &str = "--cfg fuzzing -Zsanitizer=address -Ccodegen-units=1 \
     -Cpasses=sancov-module -Cllvm-args=-sanitizer-coverage-level=4 \
     -Cllvm-args=-sanitizer-coverage-inline-8bit-counters \
     -Cllvm-args=-sanitizer-coverage-pc-table -Cllvm-args=-sanitizer-coverage-trace-compares \
     -Cllvm-args=-sanitizer-coverage-stack-depth \
     -Cllvm-args=-simplifycfg-branch-fold-threshold=0";

/// Named, so that what runs while building is built without the sanitizer.
fn host() -> String {
    format!("{}-unknown-linux-gnu", std::env::consts::ARCH)
}

fn build(root: &Path) -> bool {
    let mut command = Command::new("cargo");
    // The environment of the cargo that started us names the stable toolchain and its target.
    for name in ["CARGO", "RUSTUP_TOOLCHAIN", "RUSTC", "CARGO_TARGET_DIR"] {
        command.env_remove(name);
    }
    command
        .args(["+nightly", "build", "--quiet", "--release", "--locked", "--bins", "--target"])
        .arg(host())
        .env("RUSTFLAGS", FLAGS)
        .current_dir(root.join("fuzz"));
    match command.status() {
        Ok(status) => status.success(),
        Err(e) => report("cargo", &e.to_string()),
    }
}

/// A run of one target, and where its output goes.
struct Run {
    child: Child,
    log: PathBuf,
}

fn start(root: &Path, target: &str, seconds: u32) -> Result<Run, String> {
    let fuzz = root.join("fuzz");
    let (corpus, artifacts) = (format!("corpus/{target}"), format!("artifacts/{target}/"));
    for folder in [&corpus, &artifacts] {
        std::fs::create_dir_all(fuzz.join(folder)).map_err(|e| format!("{folder}: {e}"))?;
    }
    let programs = fuzz.join("target").join(host()).join("release");
    let log = programs.join(format!("{target}.log"));
    let output = File::create(&log).map_err(|e| format!("{}: {e}", log.display()))?;
    let errors = output.try_clone().map_err(|e| format!("{}: {e}", log.display()))?;
    let mut command = Command::new(programs.join(target));
    command.current_dir(&fuzz).arg(&corpus);
    let seeds = format!("seeds/{target}");
    if fuzz.join(&seeds).is_dir() {
        command.arg(&seeds);
    }
    command
        .arg(format!("-artifact_prefix={artifacts}"))
        .arg(format!("-max_total_time={seconds}"))
        .arg(format!("-rss_limit_mb={MEMORY_MAX_MIB}"))
        .arg("-print_final_stats=1")
        .stdin(Stdio::null())
        .stdout(output)
        .stderr(errors);
    let child = command.spawn().map_err(|e| format!("could not be started: {e}"))?;
    Ok(Run { child, log })
}

/// Waits for a run; prints its output if it has found something, else how many inputs it tried.
fn finish(mut run: Run) -> Result<bool, String> {
    let status = run.child.wait().map_err(|e| e.to_string())?;
    let log = std::fs::read_to_string(&run.log).unwrap_or_default();
    if status.success() {
        let tried = log.lines().find(|line| line.contains("number_of_executed_units"));
        let name = run.log.file_stem().unwrap_or_default().to_string_lossy();
        println!("fuzz: {name}: {}", tried.unwrap_or("no statistics"));
    } else {
        println!("{log}");
    }
    Ok(status.success())
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
