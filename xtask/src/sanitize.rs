// SPDX-License-Identifier: Apache-2.0 OR MIT
//! Runs tests under tools that see what a test does not: memory used after its end, races, and
//! undefined behaviour; with the nightly toolchain.
//!
//! | tool | sees | tests of |
//! |---|---|---|
//! | AddressSanitizer | use outside of memory or after its end, overlapping copies | [`ROOMS`] |
//! | ThreadSanitizer | accesses of two threads without order | [`ROOMS`] |
//! | Miri | undefined behaviour by Rust's own rules | [`WITHOUT_SYSTEM_CALLS`] |
//!
//! The standard library is built along: one that the sanitizers don't know of gives false reports
//! of its locks.

use std::path::{Path, PathBuf};
use std::process::{Command, ExitCode};

/// Rooms with `unsafe`, and those in which threads meet.
const ROOMS: &[&str] = &["block", "format", "uring", "reactor", "queue", "fuse"];

/// Rooms whose tests Miri, which interprets, can run, and what is left out there.
const WITHOUT_SYSTEM_CALLS: &[(&str, &[&str])] = &[(
    "block",
    &[
        // Mappings are made by the kernel, and it is asked which pages are in memory.
        "ram::tests",
        "memory_is_not_copied_to_or_from_what_is_borrowed",
        "a_large_buffer_takes_memory_only_where_it_is_used",
    ],
)];

/// What is left out under ThreadSanitizer. By name: its suppressions need a symbolizer.
const NOT_UNDER_THREAD: &[&str] = &[
    // Copies that race on purpose (M2 of block::ram): it puts its own memmove in their place.
    "cores_that_race_see_each_byte_as_somebody_wrote_it",
    // Its own memory is among what these count.
    "a_large_buffer_takes_memory_only_where_it_is_used",
    "requests_allocate_nothing_once_the_path_is_warm",
];

/// What the search for leaks leaves out: the stacks of loom's model checker, which it never frees.
const LEAKS_ALLOWED: &str = "leak:generator::rt\n";

const TOOLS: &[&str] = &["address", "thread", "miri"];

/// Simulation seeds of each test: everything takes ten times as long here.
const SEEDS: &str = "5";

/// Runs `names`, or all tools. A toolchain that lacks something is a failure, but in CI only a
/// notice: a machine without it must still be able to run the tests.
pub(crate) fn run(root: &Path, names: &[&str]) -> ExitCode {
    let names = if names.is_empty() { TOOLS } else { names };
    if let Some(other) = names.iter().find(|name| !TOOLS.contains(name)) {
        eprintln!("sanitize: no tool '{other}': address, thread and miri are allowed");
        return ExitCode::from(2);
    }
    let mut failed = Vec::new();
    for name in names {
        if let Err(missing) = find(name) {
            println!("sanitize: {name}: SKIPPED, {missing}");
            if std::env::var_os("CI").is_none_or(|value| value.is_empty()) {
                failed.push(*name);
            }
            continue;
        }
        println!("sanitize: {name}");
        let passed = match *name {
            "miri" => miri(root),
            sanitizer => with_sanitizer(root, sanitizer),
        };
        if !passed {
            failed.push(*name);
        }
    }
    if failed.is_empty() {
        println!("sanitize: {}: nothing found", names.join(" "));
        return ExitCode::SUCCESS;
    }
    eprintln!("sanitize: FAILED or not run: {}", failed.join(" "));
    ExitCode::FAILURE
}

/// What the toolchain lacks for a tool, and what brings it.
fn find(tool: &str) -> Result<(), String> {
    let output = |program: &str, args: &[&str]| {
        let output = Command::new(program).args(args).output().ok()?;
        let text = String::from_utf8(output.stdout).ok()?;
        output.status.success().then(|| text.trim().to_owned())
    };
    let Some(sysroot) = output("rustc", &["+nightly", "--print", "sysroot"]) else {
        return Err("no nightly toolchain ('rustup toolchain install nightly' brings one)".into());
    };
    let lacks = |what: &str| format!("nightly lacks {what} ('rustup component add {what}')");
    if !PathBuf::from(sysroot).join("lib/rustlib/src/rust/library/Cargo.lock").exists() {
        return Err(lacks("--toolchain nightly rust-src"));
    }
    if tool == "miri" && output("cargo", &["+nightly", "miri", "--version"]).is_none() {
        return Err(lacks("--toolchain nightly miri"));
    }
    Ok(())
}

/// Cargo of the nightly toolchain, whose target folder is apart from everybody's.
fn cargo(root: &Path, tool: &str) -> Command {
    let mut command = Command::new("cargo");
    // The environment of the cargo that started us names the stable toolchain and its target.
    for name in ["CARGO", "RUSTUP_TOOLCHAIN", "RUSTC", "RUSTFLAGS"] {
        command.env_remove(name);
    }
    command
        .arg("+nightly")
        .current_dir(root)
        .env("MILLPOND_SEEDS", SEEDS)
        .env("RUST_BACKTRACE", "0");
    command.env("CARGO_TARGET_DIR", root.join("target/sanitize").join(tool));
    command
}

fn succeeds(command: &mut Command) -> bool {
    match command.status() {
        Ok(status) => status.success(),
        Err(e) => {
            eprintln!("sanitize: cargo: {e}");
            false
        }
    }
}

fn with_sanitizer(root: &Path, sanitizer: &str) -> bool {
    let leaks = root.join("target/sanitize/leaks");
    let folder = leaks.parent().expect("a file of a folder");
    let written =
        std::fs::create_dir_all(folder).and_then(|()| std::fs::write(&leaks, LEAKS_ALLOWED));
    if let Err(e) = written {
        eprintln!("sanitize: {}: {e}", leaks.display());
        return false;
    }
    let mut command = cargo(root, sanitizer);
    command
        .env("LSAN_OPTIONS", format!("suppressions={}", leaks.display()))
        .env("RUSTFLAGS", format!("-Zsanitizer={sanitizer}"))
        .args(["test", "--locked", "--no-fail-fast", "-Zbuild-std", "--lib", "--tests"])
        // Named, so that what runs while building is built without the sanitizer.
        .args(["--target", &format!("{}-unknown-linux-gnu", std::env::consts::ARCH)]);
    for room in ROOMS {
        command.args(["-p", room]);
    }
    command.arg("--");
    if sanitizer == "thread" {
        NOT_UNDER_THREAD.iter().for_each(|name| {
            command.args(["--skip", name]);
        });
    }
    succeeds(&mut command)
}

fn miri(root: &Path) -> bool {
    WITHOUT_SYSTEM_CALLS.iter().all(|(package, left_out)| {
        let mut command = cargo(root, "miri");
        command.args(["miri", "test", "--locked", "--no-fail-fast", "--lib", "--tests"]);
        command.args(["-p", package, "--"]);
        for name in *left_out {
            command.args(["--skip", name]);
        }
        succeeds(&mut command)
    })
}
