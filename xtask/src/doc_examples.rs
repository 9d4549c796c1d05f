// SPDX-License-Identifier: Apache-2.0 OR MIT
//! Examples in documentation are tests. A crate without any says so (`doctest = false`), so that
//! `cargo test` does not have rustdoc read it in vain; this finds one that nobody would run.
//!
//! An example is what rustdoc takes for one: a fenced block whose language is Rust, which it is
//! without a name, and a block that is indented by four columns.

use std::path::Path;

use crate::tidy::listed_files;

/// Words behind a fence that say that the block is no Rust.
const OTHER_LANGUAGES: &[&str] = &["text", "toml", "sh", "json", "c", "console"];

/// Findings in this checkout.
pub(crate) fn check(root: &Path) -> Result<Vec<String>, String> {
    let files = listed_files(root)?;
    let read = |path: &String| std::fs::read_to_string(root.join(path)).unwrap_or_default();
    let mut found = Vec::new();
    for manifest in files.iter().filter(|path| path.ends_with("/Cargo.toml")) {
        if !has_no_doctest(&read(manifest)) {
            continue;
        }
        let source = format!("{}src/", manifest.trim_end_matches("Cargo.toml"));
        for path in files.iter().filter(|p| p.starts_with(&source) && p.ends_with(".rs")) {
            found.extend(examples(&read(path)).into_iter().map(|line| {
                format!(
                    "{path}:{line}: an example that no test runs: {manifest} has doctest = false"
                )
            }));
        }
    }
    Ok(found)
}

fn has_no_doctest(manifest: &str) -> bool {
    let mut section = "";
    manifest.lines().any(|line| {
        if line.starts_with('[') {
            section = line;
        }
        section == "[lib]" && line.replace(' ', "").starts_with("doctest=false")
    })
}

/// Lines of a Rust file at which an example begins.
fn examples(text: &str) -> Vec<usize> {
    let mut found = Vec::new();
    let (mut is_fenced, mut is_after_blank, mut is_indented) = (false, true, false);
    for (line, n) in text.lines().zip(1..) {
        let comment = line.trim_start();
        let Some(doc) = comment.strip_prefix("//!").or_else(|| comment.strip_prefix("///")) else {
            (is_fenced, is_after_blank, is_indented) = (false, true, false);
            continue;
        };
        let doc = doc.strip_prefix(' ').unwrap_or(doc);
        if let Some(language) = doc.trim_start().strip_prefix("```") {
            is_fenced = !is_fenced;
            if is_fenced && !OTHER_LANGUAGES.contains(&language.trim()) {
                found.push(n);
            }
        } else if !is_fenced && doc.starts_with("    ") && !doc.trim().is_empty() {
            // Behind a line of text it is the rest of a paragraph or of a list's item.
            if is_after_blank && !is_indented {
                found.push(n);
            }
            is_indented = is_after_blank;
        } else {
            is_indented = false;
        }
        is_after_blank = doc.trim().is_empty() || is_indented;
    }
    found
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn examples_are_found_and_drawings_are_not() {
        let cases: [(&str, &[usize]); 8] = [
            ("//! ```text\n//! a ─> b\n//! ```\n", &[]),
            ("//! ```\n//! f();\n//! ```\n//! ```text\n//! x\n//! ```\n", &[1]),
            ("/// ```rust\n/// f();\n/// ```\nfn f() {}\n", &[1]),
            ("/// ```no_run\n/// f();\n/// ```\n", &[1]),
            ("/// A list:\n///\n///     f();\n///     g();\nfn f() {}\n", &[3]),
            ("/// - an item whose\n///     text goes on\nfn f() {}\n", &[]),
            ("    /// ```\n    /// f();\n    /// ```\n", &[1]),
            ("// ```\nlet x = \"```\";\n", &[]),
        ];
        for (text, expected) in cases {
            assert_eq!(examples(text), expected, "{text}");
        }
    }

    #[test]
    fn a_manifest_says_in_its_lib_that_there_are_none() {
        assert!(has_no_doctest("[package]\n[lib]\ntest = false\ndoctest = false # why\n"));
        assert!(!has_no_doctest("[package]\n[lib]\ntest = false\n[[bin]]\ndoctest = false\n"));
    }

    #[test]
    fn every_library_without_examples_says_so() {
        let root = crate::root();
        let folders = std::fs::read_dir(root.join("crates")).unwrap();
        for folder in folders.map(|entry| entry.unwrap().path()) {
            let manifest = std::fs::read_to_string(folder.join("Cargo.toml")).unwrap_or_default();
            if !folder.join("src/lib.rs").exists() || folder.ends_with("block") {
                continue; // block is the one that has some
            }
            assert!(has_no_doctest(&manifest), "{}", folder.display());
        }
    }
}
