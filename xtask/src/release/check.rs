// SPDX-License-Identifier: Apache-2.0 OR MIT
//! Whether a commit can be released as a version: the version is in the manifest and in the
//! CHANGELOG, nothing is uncommitted, and the tag is not that of another commit.

use std::path::Path;
use std::process::Command;

use super::context::{output, read};
use crate::metadata;

/// What has to be mended before the release.
pub(super) fn findings(root: &Path, version: &str) -> Result<Vec<String>, String> {
    let mut found = Vec::new();
    let packages = metadata::read(root)?;
    for package in packages.iter().filter(|p| !p.outside && p.version != version) {
        found.push(format!(
            "{} has version {} in its Cargo.toml, not {version}",
            package.name, package.version
        ));
    }
    if let Err(problem) = notes(&read(&root.join("CHANGELOG.md"))?, version) {
        found.push(problem);
    }
    let changed = git(root, &["status", "--porcelain"])?;
    if let Some(first) = changed.lines().next() {
        let number = changed.lines().count();
        found.push(format!("the tree is not clean: {number} files, the first is {}", first.trim()));
    }
    let head = git(root, &["rev-parse", "HEAD"])?;
    let tag = format!("refs/tags/v{version}^{{commit}}");
    // Before the first release of this version there is no such tag.
    let tagged = git(root, &["rev-parse", "--quiet", "--verify", &tag]).unwrap_or_default();
    if !tagged.is_empty() && tagged != head {
        found.push(format!("v{version} is the tag of another commit, {}", tagged.trim()));
    }
    Ok(found)
}

fn git(root: &Path, words: &[&str]) -> Result<String, String> {
    output(Command::new("git").args(words), root)
}

/// The part of the CHANGELOG about one version, which must be the first one.
pub(super) fn notes(changelog: &str, version: &str) -> Result<String, String> {
    let mut parts = changelog.split("\n## ").skip(1);
    let first = parts.next().unwrap_or_default();
    let (heading, text) = first.split_once('\n').unwrap_or((first, ""));
    let (named, date) = heading.split_once(' ').unwrap_or((heading, ""));
    if named != version {
        return Err(format!("CHANGELOG.md begins with '{heading}', not with {version}"));
    }
    if !is_date(date) {
        return Err(format!("CHANGELOG.md: '## {heading}' needs a date: {version} YYYY-MM-DD"));
    }
    if text.trim().is_empty() {
        return Err(format!("CHANGELOG.md says nothing about {version}"));
    }
    Ok(format!("# millpond {version}, {date}\n\n{}\n", text.trim()))
}

fn is_date(text: &str) -> bool {
    let shape = text.chars().map(|c| if c.is_ascii_digit() { '9' } else { c });
    shape.eq("9999-99-99".chars())
}

#[cfg(test)]
mod tests {
    use super::*;

    const LOG: &str = "# Changelog\n\n## 0.2.0 2026-11-30\n\n- new\n\n## 0.1.0 2026-01-01\n- old\n";

    #[test]
    fn notes_are_the_part_of_the_first_version() {
        assert_eq!(notes(LOG, "0.2.0").unwrap(), "# millpond 0.2.0, 2026-11-30\n\n- new\n");
    }

    #[test]
    fn notes_of_another_version_or_without_a_date_are_refused() {
        assert!(notes(LOG, "0.3.0").unwrap_err().contains("not with 0.3.0"));
        assert!(notes(LOG, "0.1.0").is_err(), "an old version is not released again");
        assert!(notes("# C\n\n## 0.2.0\n\n- new\n", "0.2.0").unwrap_err().contains("a date"));
        assert!(notes("# C\n\n## 0.2.0 today\n\n- x\n", "0.2.0").unwrap_err().contains("a date"));
        assert!(notes("# C\n\n## 0.2.0 2026-11-30\n", "0.2.0").unwrap_err().contains("nothing"));
        assert!(notes("", "0.2.0").is_err());
    }
}
