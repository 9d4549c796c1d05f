// SPDX-License-Identifier: Apache-2.0 OR MIT
//! Counts lines of code by crate: no comments, no blanks, no tests. With a revision of the history
//! it shows what has changed since; what only moved from file to file leaves the sum as it is.

use std::collections::BTreeMap;
use std::path::Path;
use std::process::{Command, ExitCode};

use crate::source::without_comments;

/// Crates that measure, try and break the others, and are no part of what is installed.
const INSTRUMENTS: &[&str] =
    &["attack", "bench", "e2e", "fuzz", "loadgen", "reproduce", "sim", "xtask"];

/// Lines of a crate.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq)]
struct Count {
    code: i64,
    /// In files and modules of tests, counted alike.
    tests: i64,
}

/// Prints the table: of the working tree, and its difference to `since` if one is given.
pub(crate) fn run(root: &Path, since: Option<&str>) -> ExitCode {
    match table(root, since) {
        Ok(table) => {
            print!("{table}");
            ExitCode::SUCCESS
        }
        Err(problem) => {
            eprintln!("xtask lines: {problem}");
            ExitCode::FAILURE
        }
    }
}

fn table(root: &Path, since: Option<&str>) -> Result<String, String> {
    let now = count(&working_tree(root)?);
    let before = since.map(|rev| Ok::<_, String>(count(&revision(root, rev)?))).transpose()?;
    let of = |counts: &BTreeMap<String, Count>, name: &str| {
        counts.get(name).copied().unwrap_or_default()
    };
    let mut names: Vec<&String> = now.keys().chain(before.iter().flat_map(|b| b.keys())).collect();
    names.sort_unstable();
    names.dedup();
    let mut out = String::from("crate              code    tests");
    out.push_str(if before.is_some() { "   code since   tests since\n" } else { "\n" });
    let mut line = |name: &str, now: Count, before: Option<Count>| {
        out.push_str(&format!("{name:<14}{:>9}{:>9}", now.code, now.tests));
        if let Some(before) = before {
            let (code, tests) = (now.code - before.code, now.tests - before.tests);
            out.push_str(&format!("{code:>+13}{tests:>+14}"));
        }
        out.push('\n');
    };
    for is_instrument in [false, true] {
        let (mut sum, mut sum_before) = (Count::default(), Count::default());
        for name in &names {
            if INSTRUMENTS.contains(&name.as_str()) != is_instrument {
                continue;
            }
            let (here, there) = (of(&now, name), before.as_ref().map(|before| of(before, name)));
            line(name, here, there);
            add(&mut sum, here);
            add(&mut sum_before, there.unwrap_or_default());
        }
        let name = if is_instrument { "= instruments" } else { "= product" };
        line(name, sum, before.as_ref().map(|_| sum_before));
    }
    Ok(out)
}

fn add(sum: &mut Count, more: Count) {
    sum.code += more.code;
    sum.tests += more.tests;
}

/// Paths and texts of all Rust files that git knows, as they lie there.
fn working_tree(root: &Path) -> Result<Vec<(String, String)>, String> {
    let list = git(root, &["ls-files", "--cached", "--others", "--exclude-standard", "*.rs"])?;
    let mut files = Vec::new();
    for path in list.lines() {
        match std::fs::read_to_string(root.join(path)) {
            Ok(text) => files.push((path.to_owned(), text)),
            Err(e) if e.kind() == std::io::ErrorKind::NotFound => {} // deleted, not yet committed
            Err(e) => return Err(format!("{path}: {e}")),
        }
    }
    Ok(files)
}

/// The same of a revision.
fn revision(root: &Path, rev: &str) -> Result<Vec<(String, String)>, String> {
    let list = git(root, &["ls-tree", "-r", "--name-only", rev])?;
    let paths = list.lines().filter(|path| path.ends_with(".rs"));
    paths
        .map(|path| Ok((path.to_owned(), git(root, &["show", &format!("{rev}:{path}")])?)))
        .collect()
}

fn git(root: &Path, args: &[&str]) -> Result<String, String> {
    let out = Command::new("git").args(args).current_dir(root).output();
    let out = out.map_err(|e| format!("git {}: {e}", args[0]))?;
    match out.status.success() {
        true => Ok(String::from_utf8_lossy(&out.stdout).into_owned()),
        false => Err(format!("git {}: {}", args[0], String::from_utf8_lossy(&out.stderr).trim())),
    }
}

fn count(files: &[(String, String)]) -> BTreeMap<String, Count> {
    let mut counts: BTreeMap<String, Count> = BTreeMap::new();
    for (path, text) in files {
        let count = counts.entry(crate_of(path).to_owned()).or_default();
        let (code, tests) = lines(text);
        match is_test(path) {
            true => count.tests += code + tests,
            false => add(count, Count { code, tests }),
        }
    }
    counts
}

/// The folder that the crate has its name of.
fn crate_of(path: &str) -> &str {
    let mut folders = path.split('/');
    match folders.next() {
        Some("crates" | "tests" | "lab") => folders.next().unwrap_or(path),
        Some(first) => first,
        None => path,
    }
}

/// Whether a whole file is a test.
fn is_test(path: &str) -> bool {
    let inside = match path.split_once('/') {
        // The folder `tests` of the checkout has crates of instruments.
        Some(("tests", rest)) => rest,
        Some(_) | None => path,
    };
    let name = path.rsplit('/').next().unwrap_or(path);
    inside.contains("/tests/") || name == "tests.rs" || name.ends_with("_tests.rs")
}

/// Lines of code, and those of items that are compiled for tests only.
fn lines(text: &str) -> (i64, i64) {
    let code = without_comments(text);
    let (mut all, mut tests) = (0, 0);
    let mut rest = code.lines().filter(|line| !line.trim().is_empty());
    while let Some(line) = rest.next() {
        if line.trim() != "#[cfg(test)]" {
            all += 1;
            continue;
        }
        tests += 1;
        let indent = line.len() - line.trim_start().len();
        // The code is formatted: an item ends with `}` where it begins, or with `;`.
        let (mut is_open, close) = (false, format!("{}}}", &line[..indent]));
        for line in rest.by_ref() {
            tests += 1;
            let is_attribute = line.trim_start().starts_with("#[");
            is_open |= !is_attribute && line.ends_with('{');
            if line == close || (!is_open && !is_attribute && line.ends_with([';', ','])) {
                break;
            }
        }
    }
    (all, tests)
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn comments_blanks_and_tests_are_no_code() {
        let text = "\
//! What it is.
use a; // why

/* long
   comment */
fn f() {
    g(\"// no comment
       in a literal\");
    #[cfg(test)]
    h();
}

#[cfg(test)]
#[path = \"f_tests.rs\"]
mod tests;

#[cfg(test)]
mod more {
    fn t() {}
}
fn last() {}
";
        assert_eq!(lines(text), (6, 9));
    }

    #[test]
    fn a_file_belongs_to_its_crate() {
        for (path, name, is_a_test) in [
            ("crates/dm/src/lib.rs", "dm", false),
            ("crates/dm/src/state_tests.rs", "dm", true),
            ("crates/dm/tests/it/main.rs", "dm", true),
            ("tests/attack/src/main.rs", "attack", false),
            ("tests/attack/tests/it/main.rs", "attack", true),
            ("xtask/src/main.rs", "xtask", false),
        ] {
            assert_eq!((crate_of(path), is_test(path)), (name, is_a_test), "{path}");
        }
    }

    #[test]
    fn what_has_moved_leaves_the_sum_as_it_is() {
        let file = |path: &str| (path.to_owned(), "fn f() {}\n".to_owned());
        let sum = |counts: BTreeMap<String, Count>| counts.values().map(|c| c.code).sum::<i64>();
        let before = count(&[file("crates/a/src/lib.rs"), file("crates/b/src/lib.rs")]);
        let after = count(&[file("crates/b/src/a.rs"), file("crates/b/src/lib.rs")]);
        assert_eq!((sum(before), sum(after)), (2, 2));
    }
}
