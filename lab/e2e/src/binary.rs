// SPDX-License-Identifier: Apache-2.0 OR MIT
//! The path of the program under test. Cargo builds it beside this executable if it is outdated.
use std::path::PathBuf;
use std::process::Command;
use std::sync::OnceLock;

use crate::Result;

/// Set to a program's path, that one is taken and nothing is built.
const GIVEN: &str = "MILLPOND_BIN";

/// What is built together decides which features dependencies have; a build of the same set as in
/// `make` finds everything done.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum Build {
    /// As `make test` does.
    Workspace,
    /// As `make build` does.
    Alone,
}

/// The program, built if need be; once in a process.
pub fn millpond(build: Build) -> Result<PathBuf> {
    static FOUND: OnceLock<Result<PathBuf>> = OnceLock::new();
    FOUND.get_or_init(|| find(build)).clone()
}

fn find(build: Build) -> Result<PathBuf> {
    if let Some(given) = std::env::var_os(GIVEN) {
        return Ok(given.into());
    }
    let exe = std::env::current_exe().map_err(|e| format!("where this program is: {e}"))?;
    // target/PROFILE/demo, or target/PROFILE/deps/TEST
    let mut profile = exe.parent().ok_or("this program is in no folder")?;
    if profile.ends_with("deps") {
        profile = profile.parent().ok_or("this program is in no folder")?;
    }
    let target = profile.parent().ok_or("this program is in no target folder")?;
    let program = profile.join("millpond");
    let Some(cargo) = std::env::var_os("CARGO") else {
        if program.is_file() {
            return Ok(program); // started by hand
        }
        return Err(format!("{}: not there; `make build` builds it", program.display()));
    };
    let mut command = Command::new(cargo);
    command.args(["build", "--locked", "--target-dir"]).arg(target);
    command.current_dir(env!("CARGO_MANIFEST_DIR"));
    match build {
        Build::Workspace => command.args(["--workspace", "--all-features", "--bins", "--quiet"]),
        Build::Alone => command.args(["-p", "millpond"]),
    };
    if profile.ends_with("release") {
        command.arg("--release");
    }
    let status = command.status().map_err(|e| format!("cargo build: {e}"))?;
    if status.success() { Ok(program) } else { Err("millpond could not be built".into()) }
}
