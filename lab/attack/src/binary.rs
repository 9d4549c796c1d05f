// SPDX-License-Identifier: Apache-2.0 OR MIT
//! Where the program under attack is: given, or built by cargo beside this executable.

use std::path::PathBuf;
use std::process::Command;
use std::sync::OnceLock;

use crate::Result;

/// Set to a program's path, that one is attacked and nothing is built.
const GIVEN: &str = "MILLPOND_BIN";

/// The program, built if need be; once in a process.
pub fn millpond() -> Result<PathBuf> {
    static FOUND: OnceLock<Result<PathBuf>> = OnceLock::new();
    FOUND.get_or_init(find).clone()
}

fn find() -> Result<PathBuf> {
    if let Some(given) = std::env::var_os(GIVEN) {
        return Ok(given.into());
    }
    let exe = std::env::current_exe().map_err(|e| format!("where this program is: {e}"))?;
    // target/PROFILE/attack, or target/PROFILE/deps/TEST
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
    // The set that `make test` builds: with the same features of dependencies, all is done.
    let mut command = Command::new(cargo);
    command.args(["build", "--locked", "--quiet", "--target-dir"]).arg(target);
    command.current_dir(env!("CARGO_MANIFEST_DIR"));
    if profile.ends_with("release") {
        command.args(["-p", "millpond", "--release"]);
    } else {
        command.args(["--workspace", "--all-features", "--bins"]);
    }
    let status = command.status().map_err(|e| format!("cargo build: {e}"))?;
    if status.success() { Ok(program) } else { Err("millpond could not be built".into()) }
}
