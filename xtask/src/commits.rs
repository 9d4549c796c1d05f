// SPDX-License-Identifier: Apache-2.0 OR MIT
//! The subject of a commit has at most 72 columns: `git log --oneline` and mails cut what is
//! longer. Merges and reverts are commits, too.
//!
//! Commits are checked from one on, which is recorded here: of those that [`LAST_UNCHECKED`] does
//! not hold, the ones that are later. In a shallow clone, where nobody knows what it holds, the
//! time alone decides: no commit is found there that a whole clone would pass.

use std::path::Path;
use std::process::Command;

const COLUMNS_MAX: usize = 72;

/// The commit before this check, and when it was committed, in seconds since 1970. 189 of the 1,321
/// commits up to it have longer subjects.
const LAST_UNCHECKED: (&str, u64) = ("b5e553156604d95986201f4d6d4781d3ebe3b5de", 1795998142);

/// Findings in the history of what is checked out.
pub(crate) fn check(root: &Path) -> Result<Vec<String>, String> {
    findings(root, LAST_UNCHECKED)
}

fn findings(root: &Path, (last, time): (&str, u64)) -> Result<Vec<String>, String> {
    let is_known = git(root, &["cat-file", "-e", &format!("{last}^{{commit}}")]).is_ok();
    let range = if is_known { format!("{last}..HEAD") } else { "HEAD".to_owned() };
    let log = git(root, &["log", "--format=%h %ct %s", &range])?;
    log.lines().filter_map(|line| finding(line, time).transpose()).collect()
}

/// A finding in a line of `git log`, if its commit is later than `after`.
fn finding(line: &str, after: u64) -> Result<Option<String>, String> {
    let mut parts = line.splitn(3, ' ');
    let (Some(id), Some(time), Some(subject)) = (parts.next(), parts.next(), parts.next()) else {
        return Err(format!("git log: not understood: {line}"));
    };
    let time: u64 = time.parse().map_err(|_| format!("git log: no time: {line}"))?;
    let columns = subject.chars().count();
    let what = format!("a subject of {columns} columns, at most {COLUMNS_MAX} are allowed");
    Ok((time > after && columns > COLUMNS_MAX).then(|| format!("commit {id}: {what}: {subject}")))
}

fn git(root: &Path, args: &[&str]) -> Result<String, String> {
    let out = Command::new("git")
        .args(args)
        .current_dir(root)
        .output()
        .map_err(|e| format!("git {}: {e}", args[0]))?;
    if !out.status.success() {
        return Err(format!("git {}: {}", args[0], String::from_utf8_lossy(&out.stderr).trim()));
    }
    Ok(String::from_utf8_lossy(&out.stdout).into_owned())
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::inputs::tests::Checkout;

    /// A commit in `folder` with this subject, at a number of seconds.
    fn commit(folder: &Path, time: u64, args: &[&str], subject: &str) -> String {
        let date = format!("@{time} +0000");
        let mut command = Command::new("git");
        command.args(["-c", "user.name=x", "-c", "user.email=x@example.org"]);
        command.args(args).args(["-m", subject]).current_dir(folder);
        command.env("GIT_COMMITTER_DATE", &date).env("GIT_AUTHOR_DATE", &date);
        let out = command.output().unwrap();
        assert!(out.status.success(), "{}", String::from_utf8_lossy(&out.stderr));
        git(folder, &["rev-parse", "HEAD"]).unwrap().trim().to_owned()
    }

    const EMPTY: &[&str] = &["commit", "--quiet", "--allow-empty"];

    fn of_columns(columns: usize) -> String {
        "é".repeat(columns)
    }

    #[test]
    fn new_commits_and_merges_are_checked_and_old_ones_are_not() {
        let checkout = Checkout::new();
        let folder = &checkout.0;
        let last = commit(folder, 1000, EMPTY, &of_columns(80));
        assert_eq!(findings(folder, (&last, 1000)), Ok(vec![]));
        commit(folder, 1001, EMPTY, &of_columns(72));
        assert_eq!(findings(folder, (&last, 1000)), Ok(vec![]));
        commit(folder, 1002, EMPTY, &of_columns(73));
        assert_eq!(findings(folder, (&last, 1000)).unwrap().len(), 1);
        git(folder, &["checkout", "--quiet", "-b", "other", &last]).unwrap();
        commit(folder, 1003, EMPTY, "short");
        git(folder, &["checkout", "--quiet", "-"]).unwrap();
        commit(folder, 1004, &["merge", "--quiet", "--no-ff", "other"], &of_columns(90));
        let found = findings(folder, (&last, 1000)).unwrap();
        assert_eq!(found.len(), 2, "{found:?}");
        assert!(found[0].contains("a subject of 90 columns"), "{found:?}");
    }

    #[test]
    fn a_shallow_clone_checks_what_it_has_by_time() {
        let checkout = Checkout::new();
        let last = commit(&checkout.0, 1000, EMPTY, &of_columns(80));
        let shallow = checkout.0.join("target/shallow");
        let clone = |name: &str| {
            let (from, to) = (format!("file://{}", checkout.0.display()), shallow.join(name));
            let to = to.to_str().unwrap();
            git(&checkout.0, &["clone", "--quiet", "--depth=1", &from, to]).unwrap();
        };
        commit(&checkout.0, 999, EMPTY, &of_columns(75));
        clone("old");
        assert_eq!(findings(&shallow.join("old"), (&last, 1000)), Ok(vec![]));
        commit(&checkout.0, 1001, EMPTY, &of_columns(76));
        clone("new");
        assert_eq!(findings(&shallow.join("new"), (&last, 1000)).unwrap().len(), 1);
    }

    #[test]
    fn a_folder_without_git_is_an_error() {
        let checkout = Checkout::new();
        std::fs::rename(checkout.0.join(".git"), checkout.0.join("git")).unwrap();
        assert!(findings(&checkout.0, ("0000", 0)).is_err());
    }
}
