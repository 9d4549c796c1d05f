// SPDX-License-Identifier: Apache-2.0 OR MIT
//! Which files of the checkout decide the outcome of a long check, and one hash over all of them.
//!
//! ```text
//!   files that git tracks or would add
//!     minus members of the workspace that the check does not build      cargo metadata
//!     minus files of LEFT_OUT                                           by name, with a reason
//!   = inputs: "MODE BLOB PATH", a line each  ─ git hash-object ─>  hash
//! ```
//!
//! Invariants
//! - XT-I1 A file is an input unless it is left out here: nothing that is new or was forgotten is
//!   missing in the hash.
//! - XT-I2 No source that is an input includes a file that is none (a test of this module).
//! - XT-I3 The work tree is hashed, not the index: what is compiled counts.

use std::collections::{BTreeMap, BTreeSet};
use std::io::Write;
use std::path::Path;
use std::process::{Command, Stdio};

use serde_json::Value;

use crate::passed::RECORD;

/// A long check that a record of its inputs can stand for.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub(crate) enum Check {
    /// `make fuzz`
    Fuzz,
    /// `make guest`
    Guest,
}

/// A folder (ends in /), a file, or names that end so (begin with *), with the reason why no
/// outcome depends on it.
type LeftOut = (&'static str, &'static str);

/// What neither check reads.
const LEFT_OUT: &[LeftOut] = &[
    (RECORD, "the record itself"),
    ("*.md", "text for people"),
    ("docs/", "text for people"),
    ("findings/", "text for people"),
    ("LICENSE-APACHE", "text for people"),
    ("LICENSE-MIT", "text for people"),
    (".github/", "it says when a check runs, not what it does"),
];

const LEFT_OUT_OF_FUZZ: &[LeftOut] = &[
    ("tests/", "programs of tests, and scripts of the guest"),
    ("packaging/", "files of packages"),
    ("contrib/", "files for other programs"),
    ("scripts/deb.sh", "packages"),
    ("scripts/try-deb.sh", "packages"),
    ("scripts/try-deb-inside.sh", "packages"),
    ("scripts/test-s3.sh", "other tests"),
    ("scripts/rublk.sh", "a bench"),
    ("scripts/guest.sh", "the guest"),
    ("scripts/guest-boot.sh", "the guest"),
    ("scripts/guest-kernel.sh", "the guest"),
    ("scripts/guest-qemu.sh", "the guest"),
    ("scripts/guest-run.sh", "the guest"),
];

const LEFT_OUT_OF_GUEST: &[LeftOut] = &[
    ("fuzz/", "a workspace of its own"),
    ("contrib/", "files for other programs"),
    ("scripts/test-s3.sh", "other tests"),
    ("lab/e2e/tests/", "other tests"),
];

impl Check {
    pub(crate) const ALL: [Check; 2] = [Check::Fuzz, Check::Guest];

    pub(crate) fn name(self) -> &'static str {
        match self {
            Check::Fuzz => "fuzz",
            Check::Guest => "guest",
        }
    }

    pub(crate) fn named(name: &str) -> Option<Check> {
        Check::ALL.into_iter().find(|check| check.name() == name)
    }

    /// The manifests of what it builds.
    fn built(self) -> &'static [&'static str] {
        match self {
            Check::Fuzz => &["fuzz/Cargo.toml"],
            Check::Guest => &["crates/millpond/Cargo.toml", "lab/e2e/Cargo.toml"],
        }
    }

    /// Files of a member that count although it is not built.
    fn kept(self, path: &str) -> bool {
        match self {
            // Its flags and limits.
            Check::Fuzz => path == "xtask/src/fuzz.rs",
            // All members are built together, and share the features of dependencies.
            Check::Guest => path.ends_with("/Cargo.toml") && !path.starts_with("fuzz/"),
        }
    }

    fn left_out(self) -> impl Iterator<Item = &'static LeftOut> {
        let more = match self {
            Check::Fuzz => LEFT_OUT_OF_FUZZ,
            Check::Guest => LEFT_OUT_OF_GUEST,
        };
        LEFT_OUT.iter().chain(more)
    }
}

/// Hash over the inputs of `check` as they are in the work tree.
pub(crate) fn hash(root: &Path, check: Check) -> Result<String, String> {
    let unbuilt = unbuilt_members(root, check)?;
    let files = files(root)?;
    let inputs: Vec<&str> =
        files.iter().map(String::as_str).filter(|path| is_input(check, path, &unbuilt)).collect();
    let list = list(root, &inputs)?;
    Ok(git(root, &["hash-object", "--stdin"], &list)?.trim().to_owned())
}

/// XT-I1. `unbuilt` holds folders.
fn is_input(check: Check, path: &str, unbuilt: &BTreeSet<String>) -> bool {
    let matches = |(pattern, _): &&LeftOut| match pattern.strip_prefix('*') {
        Some(end) => path.ends_with(end),
        None => path == *pattern || (pattern.ends_with('/') && path.starts_with(pattern)),
    };
    if check.left_out().any(|left_out| matches(&left_out)) {
        return false;
    }
    check.kept(path) || !unbuilt.iter().any(|folder| path.starts_with(folder))
}

/// Files that git tracks or would add by the rules of tracked files: those of one machine
/// (`info/exclude`) hide nothing. Sorted, each once.
fn files(root: &Path) -> Result<Vec<String>, String> {
    let args = ["ls-files", "-z", "--cached", "--others", "--exclude-per-directory=.gitignore"];
    let out = git(root, &args, "")?;
    let names: BTreeSet<&str> = out.split('\0').filter(|name| !name.is_empty()).collect();
    Ok(names.into_iter().map(str::to_owned).collect())
}

/// A line for each file that is there: its mode, the hash of its content, its path.
fn list(root: &Path, paths: &[&str]) -> Result<String, String> {
    use std::os::unix::fs::PermissionsExt;
    let mut modes = BTreeMap::new();
    for path in paths {
        if path.contains('\n') {
            return Err(format!("{path:?}: a file name of two lines"));
        }
        match std::fs::symlink_metadata(root.join(path)) {
            // A file that was deleted is missing in the list, too.
            Err(e) if e.kind() == std::io::ErrorKind::NotFound => {}
            Err(e) => return Err(format!("{path}: {e}")),
            Ok(found) if found.is_file() => {
                let runs = found.permissions().mode() & 0o100 != 0;
                modes.insert(*path, if runs { "755" } else { "644" });
            }
            // Its content would be hashed, and not where it leads.
            Ok(_) => return Err(format!("{path}: neither a file nor absent")),
        }
    }
    let names: String = modes.keys().map(|path| format!("{path}\n")).collect();
    let blobs = git(root, &["hash-object", "--no-filters", "--stdin-paths"], &names)?;
    if blobs.lines().count() != modes.len() {
        return Err("git hash-object: not a line for each file".to_owned());
    }
    let lines = modes.iter().zip(blobs.lines());
    Ok(lines.map(|((path, mode), blob)| format!("{mode} {blob} {path}\n")).collect())
}

/// Runs git in `root` with `input`, and returns what it prints.
fn git(root: &Path, args: &[&str], input: &str) -> Result<String, String> {
    let failed = |e: std::io::Error| format!("git {}: {e}", args[0]);
    let mut command = Command::new("git");
    command.args(args).current_dir(root);
    command.stdin(Stdio::piped()).stdout(Stdio::piped()).stderr(Stdio::piped());
    let mut child = command.spawn().map_err(failed)?;
    let mut stdin = child.stdin.take().expect("piped above");
    let input = input.to_owned();
    #[expect(clippy::disallowed_methods, reason = "neither pipe takes everything at once")]
    let writer = std::thread::spawn(move || stdin.write_all(input.as_bytes()));
    let out = child.wait_with_output().map_err(failed)?;
    let written = writer.join().expect("the writer does not panic");
    if !out.status.success() {
        return Err(format!("git {}: {}", args[0], String::from_utf8_lossy(&out.stderr).trim()));
    }
    written.map_err(failed)?;
    String::from_utf8(out.stdout).map_err(|e| format!("git {}: {e}", args[0]))
}

/// Folders of the workspace's members that `check` does not build, each with / at its end.
fn unbuilt_members(root: &Path, check: Check) -> Result<BTreeSet<String>, String> {
    let mut dependencies = member_dependencies(root, "Cargo.toml")?;
    for manifest in check.built() {
        dependencies.extend(member_dependencies(root, manifest)?);
    }
    let folder_of = |manifest: &&str| manifest.trim_end_matches("Cargo.toml").to_owned();
    let mut built: BTreeSet<String> = check.built().iter().map(folder_of).collect();
    let mut left: Vec<String> = built.iter().cloned().collect();
    while let Some(folder) = left.pop() {
        let needed = dependencies.get(&folder).ok_or(format!("{folder}: cargo knows no such"))?;
        left.extend(needed.iter().filter(|folder| built.insert((*folder).clone())).cloned());
    }
    Ok(dependencies.into_keys().filter(|folder| !built.contains(folder)).collect())
}

/// Folders of the packages of one workspace, and of those in this checkout that each one needs to
/// be built. Nothing is downloaded for it.
fn member_dependencies(
    root: &Path,
    manifest: &str,
) -> Result<BTreeMap<String, Vec<String>>, String> {
    let out = Command::new(env!("CARGO"))
        .args(["metadata", "--no-deps", "--format-version=1", "--manifest-path"])
        .arg(root.join(manifest))
        .current_dir(root)
        .output()
        .map_err(|e| format!("cargo metadata: {e}"))?;
    if !out.status.success() {
        return Err(format!("cargo metadata: {}", String::from_utf8_lossy(&out.stderr).trim()));
    }
    let json: Value =
        serde_json::from_slice(&out.stdout).map_err(|e| format!("cargo metadata: {e}"))?;
    let folder = |path: &str| {
        let inside = Path::new(path).strip_prefix(root).map_err(|e| format!("{path}: {e}"))?;
        Ok(format!("{}/", inside.display()))
    };
    let list = |v: &Value| v.as_array().cloned().unwrap_or_default();
    let mut found = BTreeMap::new();
    for package in list(&json["packages"]) {
        let path = package["manifest_path"].as_str().unwrap_or_default();
        let needed = list(&package["dependencies"])
            .iter()
            .filter(|d| d["kind"] != "dev")
            .filter_map(|d| d["path"].as_str().map(folder))
            .collect::<Result<Vec<String>, String>>()?;
        found.insert(folder(path.trim_end_matches("/Cargo.toml"))?, needed);
    }
    Ok(found)
}

#[cfg(test)]
#[path = "inputs_tests.rs"]
pub(crate) mod tests;
