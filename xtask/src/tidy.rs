// SPDX-License-Identifier: Apache-2.0 OR MIT
//! The rules of style that a machine can check, over every file that git knows or would add.
//!
//! | files | rule |
//! |---|---|
//! | Rust | SPDX line first, then what the module is; at most 600 lines |
//! | Rust | `unsafe` only in the rooms made for it, each with its SAFETY comment |
//! | Rust below floor 3 | no threads, clock, files, network, environment, printing |
//! | Rust, shell, Python | at most 100 columns |
//! | all text but Makefiles | no tabs |
//! | all text | nobody's home directory, not the place of this checkout |
//! | members' Cargo.toml | the workspace's lints |
//! | names of types, files, tests and folders | `words.rs` |
//! | structs and functions | at most 20 fields and 100 lines: `sizes.rs` |
//! | labels of invariants | `labels.rs` |

use std::path::Path;
use std::process::Command;

use crate::arch;
use crate::labels::Labels;
use crate::source::{code_only, has_word};
use crate::{sizes, words};

const SPDX: &str = "SPDX-License-Identifier: Apache-2.0 OR MIT";
const COLUMNS_MAX: usize = 100;
const LINES_MAX: usize = 600;

/// Files that may be longer than [`LINES_MAX`], each with its reason.
const LONG: &[(&str, &str)] = &[];

/// Where `unsafe` may stand: a folder (ends in /) or a file, with its reason.
const UNSAFE: &[(&str, &str)] = &[
    ("crates/block/src/buf.rs", "aligned buffers that the kernel reads and writes"),
    ("crates/block/src/ram.rs", "memory that several cores read and write"),
    ("crates/block/src/client_memory.rs", "mapped memory of clients as such buffers"),
    ("crates/block/src/shared_copy.rs", "copies of such memory"),
    ("crates/format/src/unit_crc.rs", "a call of code for CPUs with certain instructions"),
    (
        "crates/ublk/src/kernel.rs",
        "commands to the kernel's ublk driver, and memory that it writes",
    ),
    ("crates/uring/", "the kernel's rings and the memory they share"),
];

/// What code below floor 3 asks the reactor for. Test modules are free.
const NOT_BELOW: &[&str] = &[
    "std::env",
    "std::fs",
    "std::net",
    "std::process",
    "std::thread",
    "std::time::Instant",
    "std::time::SystemTime",
    "println!",
    "eprintln!",
    "print!",
    "eprint!",
];

/// Asks whether a panic is under way: no thread is made and no order leaks.
const STILL_FINE_BELOW: &str = "std::thread::panicking";

/// Macros that never reach the main branch, in halves so that this file passes its own check.
const UNFINISHED: &[&str] =
    &[concat!("to", "do!"), concat!("unimple", "mented!"), concat!("db", "g!")];

/// Findings in this checkout.
pub(crate) fn check(root: &Path) -> Result<Vec<String>, String> {
    let homes = homes(root);
    let mut found = Vec::new();
    let mut labels = Labels::default();
    for path in listed_files(root)? {
        let Ok(bytes) = std::fs::read(root.join(&path)) else {
            continue; // deleted in the work tree, or a link to nowhere
        };
        // Binary files (images of devices, compressed fixtures) have no style.
        let Ok(text) = String::from_utf8(bytes) else { continue };
        found.extend(findings(&path, &text, &homes));
        labels.read(&path, &text);
    }
    found.extend(labels.findings());
    Ok(found)
}

pub(crate) fn listed_files(root: &Path) -> Result<Vec<String>, String> {
    let out = Command::new("git")
        .args(["ls-files", "-z", "--cached", "--others", "--exclude-standard"])
        .current_dir(root)
        .output()
        .map_err(|e| format!("git ls-files: {e}"))?;
    if !out.status.success() {
        return Err(format!("git ls-files: {}", String::from_utf8_lossy(&out.stderr).trim()));
    }
    let names = String::from_utf8_lossy(&out.stdout).into_owned();
    let mut names: Vec<String> =
        names.split('\0').filter(|n| !n.is_empty()).map(str::to_owned).collect();
    names.sort();
    names.dedup();
    Ok(names)
}

/// Beginnings of paths that exist on one developer's machine only.
fn homes(root: &Path) -> Vec<String> {
    let mut homes: Vec<String> =
        ["home", "Users", "root"].iter().map(|name| format!("/{name}/")).collect();
    // A checkout right under / has a name too common to look for.
    if root.components().count() > 2 {
        homes.push(root.display().to_string());
    }
    homes
}

/// Findings in one file, as `path:line: what is wrong`.
fn findings(path: &str, text: &str, homes: &[String]) -> Vec<String> {
    let mut file = File { path, found: Vec::new() };
    let extension = path.rsplit_once('.').map_or("", |(_, extension)| extension);
    let script = extension == "sh" || extension == "py" || text.starts_with("#!/");
    file.report(words::path_findings(path));
    if !path.ends_with("Cargo.lock") {
        file.every_text(text, homes);
    }
    if extension == "rs" || script {
        file.columns(text);
    }
    if script && !text.lines().take(2).any(|line| line == format!("# {SPDX}")) {
        file.finding(1, "line 1 or 2 must be the SPDX line");
    }
    if extension == "rs" {
        file.rust(text);
    }
    if path.ends_with("/Cargo.toml") && !path.starts_with("fuzz/") {
        file.manifest(text);
    }
    file.found
}

struct File<'a> {
    path: &'a str,
    found: Vec<String>,
}

impl File<'_> {
    fn finding(&mut self, line: usize, what: &str) {
        self.found.push(format!("{}:{line}: {what}", self.path));
    }

    fn report(&mut self, found: Vec<(usize, String)>) {
        for (line, what) in found {
            self.finding(line, &what);
        }
    }

    fn every_text(&mut self, text: &str, homes: &[String]) {
        let name = self.path.rsplit('/').next().unwrap_or(self.path);
        let tabs_allowed = name == "Makefile" || name == ".gitmodules";
        for (line, n) in text.lines().zip(1..) {
            if line.contains('\t') && !tabs_allowed {
                self.finding(n, "tab");
            }
            // What git leaves of a conflict.
            if ["<<<<<<< ", ">>>>>>> "].iter().any(|mark| line.starts_with(mark)) {
                self.finding(n, "one side of a conflict");
            }
            if let Some(home) = homes.iter().find(|home| line.contains(home.as_str())) {
                self.finding(n, &format!("a path of somebody's machine: {home}"));
            }
        }
    }

    fn columns(&mut self, text: &str) {
        for (line, n) in text.lines().zip(1..) {
            let columns = line.chars().count();
            // An address cannot be broken over two lines.
            if columns > COLUMNS_MAX && !line.contains("://") {
                self.finding(n, &format!("{columns} columns, at most {COLUMNS_MAX} are allowed"));
            }
        }
    }

    fn rust(&mut self, text: &str) {
        let mut lines = text.lines();
        if lines.next() != Some(&format!("// {SPDX}")) {
            self.finding(1, &format!("the first line must be '// {SPDX}'"));
        }
        if !lines.next().is_some_and(|line| line.starts_with("//! ")) {
            self.finding(2, "the second line must say what the module is: '//! ...'");
        }
        let count = text.lines().count();
        if count > LINES_MAX && !LONG.iter().any(|(path, _)| *path == self.path) {
            self.finding(count, &format!("{count} lines, at most {LINES_MAX} are allowed"));
        }
        let code = code_only(text);
        for (line, n) in code.lines().zip(1..) {
            if let Some(name) = UNFINISHED.iter().find(|name| line.contains(**name)) {
                self.finding(n, &format!("{name} is unfinished work"));
            }
        }
        self.report(words::code_findings(&code));
        self.report(sizes::findings(&code));
        self.unsafe_code(text, &code);
        self.floor_rules(&code);
    }

    fn unsafe_code(&mut self, text: &str, code: &str) {
        let place = |(place, _): &&(&str, &str)| {
            *place == self.path || (place.ends_with('/') && self.path.starts_with(place))
        };
        let allowed = UNSAFE.iter().find(place).is_some();
        let lines: Vec<&str> = text.lines().collect();
        for (line, at) in code.lines().zip(0..) {
            if !has_word(line, "unsafe") {
                continue;
            }
            if !allowed {
                self.finding(at + 1, "unsafe outside the rooms made for it (xtask/src/tidy.rs)");
            }
            if !has_safety_comment(&lines, at) {
                self.finding(at + 1, "unsafe without a SAFETY comment right above");
            }
        }
    }

    fn floor_rules(&mut self, code: &str) {
        let Some((room, inside)) =
            self.path.strip_prefix("crates/").and_then(|rest| rest.split_once('/'))
        else {
            return;
        };
        let below = arch::floor(room).is_some_and(|floor| floor < arch::FIRST_FREE_FLOOR);
        let test_file = inside.ends_with("tests.rs") || inside.contains("/tests/");
        if !below || !inside.starts_with("src/") || test_file {
            return;
        }
        for (line, n) in code.lines().zip(1..) {
            // Test modules stand at the end of their file.
            if line.trim_start().starts_with("#[cfg(test)]") {
                return;
            }
            let line = line.replace(STILL_FINE_BELOW, "");
            if let Some(name) = NOT_BELOW.iter().find(|name| line.contains(**name)) {
                self.finding(
                    n,
                    &format!("{name} below floor {}: ask the reactor", arch::FIRST_FREE_FLOOR),
                );
            }
            if line.contains("clippy::disallowed_") {
                self.finding(n, "clippy's bans hold below floor 3 without exception");
            }
        }
    }

    fn manifest(&mut self, text: &str) {
        let mut lines = text.lines().map(str::trim).skip_while(|line| *line != "[lints]");
        if !lines.by_ref().take(3).any(|line| line == "workspace = true") {
            self.finding(1, "needs '[lints]' with 'workspace = true'");
        }
    }
}

/// Whether the comment above (or on) line `at` says why the code is sound: `SAFETY:` for blocks
/// and impls, a `# Safety` section for functions. Clippy checks the same more exactly; this also
/// holds in code that clippy does not compile here.
fn has_safety_comment(lines: &[&str], at: usize) -> bool {
    let explains = |line: &str| line.contains("SAFETY:") || line.contains("# Safety");
    if explains(lines[at]) {
        return true;
    }
    // A statement may begin some lines above its unsafe block.
    let statement = 3;
    let mut code_lines = 0;
    for line in lines[..at].iter().rev() {
        let line = line.trim_start();
        if explains(line) {
            return true;
        }
        if !line.starts_with("//") && !line.starts_with("#[") {
            code_lines += 1;
            if code_lines > statement || line.is_empty() {
                return false;
            }
        }
    }
    false
}

#[cfg(test)]
mod tests {
    use super::*;

    const HEAD: &str =
        "// SPDX-License-Identifier: Apache-2.0 OR MIT\n//! A module with a purpose.\n";

    fn judge(path: &str, text: &str) -> Vec<String> {
        findings(path, text, &["/elsewhere/dev/".to_owned()])
    }

    fn judge_rust(path: &str, body: &str) -> Vec<String> {
        judge(path, &format!("{HEAD}{body}"))
    }

    #[test]
    fn a_good_file_passes() {
        assert_eq!(judge_rust("crates/dm/src/lib.rs", "fn f() {}\n"), [""; 0]);
    }

    #[test]
    fn the_head_of_a_rust_file_is_fixed() {
        let found = judge("crates/dm/src/lib.rs", "//! No licence.\nfn f() {}\n");
        assert_eq!(found.len(), 2, "{found:?}");
        assert!(found[0].starts_with("crates/dm/src/lib.rs:1: the first line"), "{found:?}");
    }

    #[test]
    fn scripts_carry_the_spdx_line_and_end_at_column_100() {
        let good = format!("#!/usr/bin/env bash\n# {SPDX}\n");
        assert_eq!(judge("scripts/x.sh", &good), [""; 0]);
        assert_eq!(judge(".ci/run", "#!/usr/bin/env bash\ntrue\n").len(), 1);
        let long = format!("{good}{}\n", "x".repeat(101));
        assert_eq!(judge("scripts/x.sh", &long).len(), 1);
    }

    #[test]
    fn columns_are_characters_and_addresses_may_be_long() {
        let fits = format!("// {}\n", "é".repeat(97));
        assert_eq!(judge_rust("xtask/src/a.rs", &fits), [""; 0]);
        let wide = format!("// {}\n", "x".repeat(98));
        assert_eq!(judge_rust("xtask/src/a.rs", &wide).len(), 1);
        let address = format!("// see https://{}\n", "x".repeat(98));
        assert_eq!(judge_rust("xtask/src/a.rs", &address), [""; 0]);
    }

    #[test]
    fn long_files_are_found() {
        assert_eq!(judge_rust("xtask/src/a.rs", &"//\n".repeat(598)), [""; 0]);
        assert_eq!(judge_rust("xtask/src/a.rs", &"//\n".repeat(599)).len(), 1);
    }

    #[test]
    fn tabs_are_found_but_in_makefiles() {
        assert_eq!(judge("docs/x.md", "a\tb\n").len(), 1);
        assert_eq!(judge("Makefile", "all:\n\ttrue\n"), [""; 0]);
    }

    #[test]
    fn both_marks_of_a_conflict_are_found() {
        let text = "a\n<<<<<<< HEAD\nb\n=======\nc\n>>>>>>> 9d457cc (docs)\n";
        assert_eq!(judge("docs/x.md", text).len(), 2);
        assert_eq!(judge("docs/x.md", "a title\n=======\n"), [""; 0]);
    }

    #[test]
    fn unfinished_work_is_found_but_not_in_comments() {
        let body = format!("fn f() {{ {}() }}\n", UNFINISHED[0]);
        assert_eq!(judge_rust("xtask/src/a.rs", &body).len(), 1);
        let body = format!("// no {}() here\n", UNFINISHED[0]);
        assert_eq!(judge_rust("xtask/src/a.rs", &body), [""; 0]);
    }

    #[test]
    fn paths_of_one_machine_are_found() {
        assert_eq!(judge("README.md", "see /elsewhere/dev/millpond\n").len(), 1);
        assert_eq!(judge("README.md", "see /run/millpond\n"), [""; 0]);
    }

    #[test]
    fn unsafe_stays_in_its_rooms() {
        let body = "// SAFETY: p is ours.\nlet x = unsafe { *p };\n";
        assert_eq!(judge_rust("crates/uring/src/ring.rs", body), [""; 0]);
        assert_eq!(judge_rust("crates/block/src/buf.rs", body), [""; 0]);
        let found = judge_rust("crates/block/src/bio.rs", body);
        assert_eq!(found.len(), 1, "{found:?}");
        assert!(found[0].contains("outside the rooms"), "{found:?}");
    }

    #[test]
    fn unsafe_needs_its_comment_right_above() {
        let path = "crates/uring/src/ring.rs";
        assert_eq!(judge_rust(path, "fn f() {\n    let x = unsafe { *p };\n").len(), 1);
        let far = "// SAFETY: p is ours.\n\nlet x = unsafe { *p };\n";
        assert_eq!(judge_rust(path, far).len(), 1);
        let section = "/// # Safety\n/// p is valid.\n#[inline]\nunsafe fn f() {}\n";
        assert_eq!(judge_rust(path, section), [""; 0]);
        let inside_a_statement = "// SAFETY: p is ours.\nlet x = g(\n    unsafe { *p },\n);\n";
        assert_eq!(judge_rust(path, inside_a_statement), [""; 0]);
    }

    #[test]
    fn engines_ask_the_reactor() {
        let clock = "fn f() { std::time::Instant::now(); }\n";
        assert_eq!(judge_rust("crates/writecache/src/flush.rs", clock).len(), 1);
        assert_eq!(judge_rust("crates/uring/src/clock.rs", clock), [""; 0]);
        assert_eq!(judge_rust("crates/writecache/tests/sim.rs", clock), [""; 0]);
        let tests = format!("#[cfg(test)]\nmod tests {{\n{clock}}}\n");
        assert_eq!(judge_rust("crates/writecache/src/flush.rs", &tests), [""; 0]);
        let panicking = "fn f() -> bool { std::thread::panicking() }\n";
        assert_eq!(judge_rust("crates/block/src/a.rs", panicking), [""; 0]);
    }

    #[test]
    fn bans_are_not_lifted_below_floor_3() {
        let body = "#![expect(clippy::disallowed_types, reason = \"x\")]\n";
        assert_eq!(judge_rust("crates/dm/src/table.rs", body).len(), 1);
        assert_eq!(judge_rust("crates/nbd/src/lib.rs", body), [""; 0]);
    }

    #[test]
    fn members_take_the_lints_of_the_workspace() {
        assert_eq!(judge("crates/dm/Cargo.toml", "[package]\nname = \"dm\"\n").len(), 1);
        let good = "[package]\nname = \"dm\"\n\n[lints]\nworkspace = true\n";
        assert_eq!(judge("crates/dm/Cargo.toml", good), [""; 0]);
    }
}
