// SPDX-License-Identifier: Apache-2.0 OR MIT
//! RL-B1 on trial: the same commit is built once more in a clone, in a folder whose name has
//! another length, with another time zone, language and umask.

use std::path::Path;
use std::process::Command;

use super::context::{call, folder_of, output, read, target};

/// Builds a clone of HEAD and compares its checksums with those of the release that is there.
pub(super) fn compare(root: &Path, version: &str) -> Result<(), String> {
    let first = read(&folder_of(root, version).join("SHA256SUMS"))?;
    let clone = target(root).join("release-compare/of-the-same-commit");
    let _ = std::fs::remove_dir_all(&clone);
    let mut git = Command::new("git");
    git.args(["clone", "--quiet", "--no-hardlinks"]).arg(root).arg(&clone);
    output(&mut git, root)?;
    let mut build = Command::new("sh");
    let script = "umask 077; exec cargo run --quiet --locked -p xtask -- release build \"$1\"";
    build.args(["-c", script, "sh", version]).current_dir(&clone);
    build.env("TZ", "Asia/Tokyo").env("LANG", "C.UTF-8").env("LANGUAGE", "de");
    for name in ["CARGO_TARGET_DIR", "KEY", "MAKEFLAGS", "MFLAGS", "MAKELEVEL"] {
        build.env_remove(name);
    }
    if let Some(tools) = std::env::var_os("RELEASE_TOOLS") {
        // Where scripts/release-tools.sh would have brought them.
        let theirs = clone.join("target/release-tools");
        std::fs::create_dir(clone.join("target"))
            .map_err(|e| format!("{}: {e}", clone.display()))?;
        call(Command::new("cp").args(["-a", "--link"]).arg(root.join(tools)).arg(&theirs))?;
        build.env("RELEASE_TOOLS", theirs);
    }
    call(&mut build)?;
    // Not where CARGO_TARGET_DIR leads: the first one is there.
    let second = clone.join("target").join(format!("release-{version}/SHA256SUMS"));
    let second = read(&second)?;
    let different = differences(&first, &second);
    if different.is_empty() {
        println!("release: two builds in two folders: {} files, equal", first.lines().count());
        // It is as large as a build; after a difference it stays.
        let _ = std::fs::remove_dir_all(&clone);
        return Ok(());
    }
    Err(format!("two builds differ, see {}: {}", clone.display(), different.join(", ")))
}

/// The names of files that only one has, or whose checksums differ.
fn differences(first: &str, second: &str) -> Vec<String> {
    let lines = |a: &str, b: &str| -> Vec<String> {
        let name = |line: &str| line.rsplit(' ').next().unwrap_or(line).to_owned();
        a.lines().filter(|line| !b.lines().any(|other| other == *line)).map(name).collect()
    };
    let mut found = lines(first, second);
    found.extend(lines(second, first));
    found.sort();
    found.dedup();
    found
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn a_file_differs_by_its_sum_or_is_in_one_build_only() {
        let first = "aa  one\nbb  two\ncc  three\n";
        assert!(differences(first, first).is_empty());
        assert_eq!(differences(first, "aa  one\nbd  two\ndd  four\n"), ["four", "three", "two"]);
    }
}
