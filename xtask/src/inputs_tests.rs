// SPDX-License-Identifier: Apache-2.0 OR MIT
//! Planted changes in a small checkout, and what counts in this one.
use std::os::unix::fs::PermissionsExt;
use std::path::PathBuf;
use std::sync::atomic::{AtomicU32, Ordering};

use super::*;
use crate::source::code_only;

/// A checkout with a program, a crate that the fuzz targets use, and one that nobody builds.
pub(crate) struct Checkout(pub(crate) PathBuf);

impl Checkout {
    pub(crate) fn new() -> Checkout {
        static COUNT: AtomicU32 = AtomicU32::new(0);
        let nth = COUNT.fetch_add(1, Ordering::Relaxed);
        let name = format!("xtask-inputs-{}-{nth}", std::process::id());
        let checkout = Checkout(std::env::temp_dir().canonicalize().unwrap().join(name));
        let package = |name: &str, rest: &str| {
            format!("[package]\nname = \"{name}\"\nversion = \"1.0.0\"\n{rest}")
        };
        let members = "[workspace]\nresolver = \"3\"\nexclude = [\"fuzz\"]\n\
                       members = [\"crates/*\", \"lab/*\", \"xtask\"]\n";
        let needs = |path: &str| format!("[dependencies]\nformat = {{ path = \"{path}\" }}\n");
        let of_tests = "[dev-dependencies]\nbench = { path = \"../../lab/bench\" }\n";
        let fuzz = format!("[workspace]\n{}", needs("../crates/format"));
        checkout.write("Cargo.toml", members);
        checkout.write(".gitignore", "/target\n");
        checkout.write("crates/format/Cargo.toml", &package("format", ""));
        let program = package("millpond", &(needs("../format") + of_tests));
        checkout.write("crates/millpond/Cargo.toml", &program);
        checkout.write("lab/e2e/Cargo.toml", &package("e2e", ""));
        checkout.write("lab/bench/Cargo.toml", &package("bench", ""));
        checkout.write("xtask/Cargo.toml", &package("xtask", ""));
        checkout.write("fuzz/Cargo.toml", &package("fuzz", &fuzz));
        for folder in ["crates/format", "crates/millpond", "lab/e2e", "lab/bench", "xtask", "fuzz"]
        {
            checkout.write(&format!("{folder}/src/lib.rs"), "");
        }
        checkout.write("scripts/guest.sh", "");
        checkout.write("tests/guest/run.sh", "");
        checkout.write("docs/testing.md", "");
        git(&checkout.0, &["init", "--quiet"], "").unwrap();
        git(&checkout.0, &["add", "."], "").unwrap();
        checkout
    }

    pub(crate) fn write(&self, path: &str, text: &str) {
        let path = self.0.join(path);
        std::fs::create_dir_all(path.parent().unwrap()).unwrap();
        std::fs::write(path, text).unwrap();
    }

    fn hashes(&self) -> [String; 2] {
        Check::ALL.map(|check| hash(&self.0, check).unwrap())
    }

    /// Whether the hashes of fuzz and guest change with what `change` does.
    fn changed_by(&self, change: impl FnOnce()) -> [bool; 2] {
        let before = self.hashes();
        change();
        let after = self.hashes();
        [before[0] != after[0], before[1] != after[1]]
    }
}

impl Drop for Checkout {
    fn drop(&mut self) {
        let _ = std::fs::remove_dir_all(&self.0); // nothing better to do about it
    }
}

#[test]
fn a_changed_input_changes_the_hash() {
    let checkout = Checkout::new();
    assert_eq!(checkout.changed_by(|| ()), [false; 2]);
    let cases = [
        ("crates/format/src/lib.rs", [true, true]),
        ("crates/millpond/src/lib.rs", [false, true]),
        ("fuzz/src/lib.rs", [true, false]),
        ("fuzz/seeds/format/new", [true, false]),
        ("lab/e2e/src/lib.rs", [false, true]),
        ("scripts/guest.sh", [false, true]),
        ("Cargo.toml", [true, true]),
        ("Cargo.lock", [true, true]),
        ("xtask/src/fuzz.rs", [true, false]),
        // Where nobody has thought of it yet.
        ("rust-toolchain.toml", [true, true]),
        (".cargo/config.toml", [true, true]),
        ("somewhere/new", [true, true]),
        // Not built, or not read.
        ("lab/bench/src/lib.rs", [false, false]),
        ("xtask/src/lib.rs", [false, false]),
        ("docs/testing.md", [false, false]),
        ("tests/passed.toml", [false, false]),
        ("target/debug/x", [false, false]),
    ];
    for (path, expected) in cases {
        let text = std::fs::read_to_string(checkout.0.join(path)).unwrap_or_default();
        let changed = checkout.changed_by(|| checkout.write(path, &(text + "# one more\n")));
        assert_eq!(changed, expected, "{path}");
    }
}

#[test]
fn modes_names_and_deletions_count() {
    let checkout = Checkout::new();
    let script = checkout.0.join("scripts/guest.sh");
    let runs = || std::fs::set_permissions(&script, PermissionsExt::from_mode(0o755)).unwrap();
    assert_eq!(checkout.changed_by(runs), [false, true]);
    let moved = || std::fs::rename(&script, checkout.0.join("scripts/vm.sh")).unwrap();
    assert_eq!(checkout.changed_by(moved), [true, true]);
    let deleted = || std::fs::remove_file(checkout.0.join("scripts/vm.sh")).unwrap();
    assert_eq!(checkout.changed_by(deleted), [true, true]);
}

#[test]
fn a_new_dependency_of_what_is_built_counts() {
    let checkout = Checkout::new();
    let fuzz = std::fs::read_to_string(checkout.0.join("fuzz/Cargo.toml")).unwrap();
    checkout.write("fuzz/Cargo.toml", &(fuzz + "bench = { path = \"../lab/bench\" }\n"));
    let changed = checkout.changed_by(|| checkout.write("lab/bench/src/lib.rs", "// more\n"));
    assert_eq!(changed, [true, false]);
}

#[test]
fn what_one_machine_ignores_counts() {
    let checkout = Checkout::new();
    checkout.write(".git/info/exclude", "*.rs\n");
    let changed = checkout.changed_by(|| checkout.write("crates/format/src/own.rs", ""));
    assert_eq!(changed, [true, true]);
}

#[test]
fn what_cannot_be_hashed_is_an_error() {
    let checkout = Checkout::new();
    std::os::unix::fs::symlink("/dev/null", checkout.0.join("link")).unwrap();
    assert!(hash(&checkout.0, Check::Guest).is_err());
    std::fs::remove_file(checkout.0.join("link")).unwrap();
    checkout.write("fuzz/Cargo.toml", "[package]\n");
    assert!(hash(&checkout.0, Check::Fuzz).is_err());
}

#[test]
fn the_sources_of_this_checkout_count() {
    let root = crate::root();
    for (check, inputs, others) in [
        (
            Check::Fuzz,
            &["crates/writecache/src/lib.rs", "crates/nbd/Cargo.toml", "fuzz/Cargo.lock"][..],
            &["crates/cli/src/lib.rs", "lab/bench/Cargo.toml", "README.md"][..],
        ),
        (
            Check::Guest,
            &[
                "crates/format/src/lib.rs",
                "crates/cli/src/lib.rs",
                "tests/guest/ublk.sh",
                "lab/e2e/src/bin/power_cut.rs",
                "lab/bench/Cargo.toml",
                "Makefile",
                ".ci/run",
            ],
            &["lab/bench/src/main.rs", "fuzz/Cargo.lock", "lab/attack/src/main.rs"],
        ),
    ] {
        let unbuilt = unbuilt_members(&root, check).unwrap();
        for path in inputs {
            assert!(root.join(path).is_file(), "{path}");
            assert!(is_input(check, path, &unbuilt), "{check:?} {path}");
        }
        for path in others {
            assert!(root.join(path).is_file(), "{path}");
            assert!(!is_input(check, path, &unbuilt), "{check:?} {path}");
        }
    }
}

/// What the lines of `text` include or take as a module from another file, but in tests alone.
fn included(text: &str) -> Vec<&str> {
    let code = code_only(text);
    let mut found = Vec::new();
    let mut above = "";
    for (line, code) in text.lines().zip(code.lines()) {
        let includes = ["include_str!(", "include_bytes!(", "include!(", "#[path = "];
        let is_test = above.trim_start().starts_with("#[cfg(test)]");
        if !is_test && includes.iter().any(|word| code.contains(word)) {
            found.extend(line.split('"').nth(1));
        }
        above = line;
    }
    found
}

#[test]
fn inclusions_are_found() {
    let text = "const A: &str = include_str!(\"a.md\");\n// include_str!(\"b.md\")\n\
                #[path = \"../c.rs\"]\nmod c;\n#[cfg(test)]\n#[path = \"d.rs\"]\nmod d;\n";
    assert_eq!(included(text), ["a.md", "../c.rs"]);
}

/// XT-I2. Files of tests may include what they like: neither check builds them.
#[test]
fn no_input_includes_what_is_left_out() {
    let root = crate::root();
    let files = files(&root).unwrap();
    let is_source = |path: &&String| {
        path.ends_with(".rs") && !path.ends_with("tests.rs") && !path.contains("/tests/")
    };
    for check in Check::ALL {
        let unbuilt = unbuilt_members(&root, check).unwrap();
        for path in files.iter().filter(is_source) {
            let Ok(text) = std::fs::read_to_string(root.join(path)) else { continue };
            if !is_input(check, path, &unbuilt) {
                continue;
            }
            for name in included(&text) {
                let file = root.join(path).parent().unwrap().join(name).canonicalize();
                let file = file.unwrap_or_else(|e| panic!("{path}: {name}: {e}"));
                let file = file.strip_prefix(root.canonicalize().unwrap()).unwrap().to_owned();
                let file = file.to_str().unwrap();
                assert!(is_input(check, file, &unbuilt), "{check:?}: {path} includes {file}");
            }
        }
    }
}
