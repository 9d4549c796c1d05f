// SPDX-License-Identifier: Apache-2.0 OR MIT
//! Relative paths in a table line, made absolute before the table leaves the program that knows
//! what they are relative to.
use std::path::Path;

/// Makes every relative path in `table` absolute, as seen from `base`.
///
/// A word is a relative path when it comes after the target's name, holds a slash, and does not
/// begin with a slash or with a scheme (`mem:`, `nbd://`): a file in the current directory is
/// written `./disk.img`, and a word without a slash is a mapped device's name. Comments stay.
pub fn with_absolute_paths(table: &str, base: &Path) -> String {
    let lines: Vec<String> = table.split('\n').map(|line| line_with_paths(line, base)).collect();
    lines.join("\n")
}

fn line_with_paths(line: &str, base: &Path) -> String {
    if line.trim_start().starts_with('#') {
        return line.into();
    }
    let mut out = String::with_capacity(line.len());
    let mut words = 0;
    let mut rest = line;
    while !rest.is_empty() {
        let blank = rest.len() - rest.trim_ascii_start().len();
        out.push_str(&rest[..blank]);
        rest = &rest[blank..];
        let word = &rest[..word_len(rest)];
        words += usize::from(!word.is_empty());
        if words > 3 && is_relative(word) {
            out.push_str(&quoted(&base.to_string_lossy()));
            if !out.ends_with('/') {
                out.push('/');
            }
            out.push_str(word.strip_prefix("./").unwrap_or(word));
        } else {
            out.push_str(word);
        }
        rest = &rest[word.len()..];
    }
    out
}

/// Bytes up to the next white space that no backslash quotes.
fn word_len(text: &str) -> usize {
    let mut quoted = false;
    for (at, c) in text.char_indices() {
        if !quoted && c.is_ascii_whitespace() {
            return at;
        }
        quoted = !quoted && c == '\\';
    }
    text.len()
}

fn is_relative(word: &str) -> bool {
    let Some(slash) = word.find('/') else { return false };
    slash > 0 && !word[..slash].contains(':')
}

fn quoted(path: &str) -> String {
    let mut out = String::with_capacity(path.len());
    for c in path.chars() {
        if c.is_ascii_whitespace() || c == '\\' {
            out.push('\\');
        }
        out.push(c);
    }
    out
}

#[cfg(test)]
mod tests {
    use super::*;

    fn absolute(table: &str) -> String {
        with_absolute_paths(table, Path::new("/my disks"))
    }

    #[test]
    fn relative_paths_become_absolute_and_all_else_stays() {
        assert_eq!(
            absolute("0 8 linear ./a.img 0\n8 8  linear\tsub/b.img 0 "),
            "0 8 linear /my\\ disks/a.img 0\n8 8  linear\t/my\\ disks/sub/b.img 0 "
        );
        for same in [
            "",
            "0 8 linear /abs/a.img 0",
            "0 8 linear origin 0",
            "0 8 linear mem:4K 0",
            "0 8 linear nbd://host/name 0",
            "0 8 odd/target x",
            " # see also docs/a.md b/c",
        ] {
            assert_eq!(absolute(same), same);
        }
    }

    #[test]
    fn a_quoted_blank_does_not_end_a_word() {
        assert_eq!(absolute("0 8 linear ./a\\ b 0"), "0 8 linear /my\\ disks/a\\ b 0");
        assert_eq!(absolute("0 8 linear ../a 0"), "0 8 linear /my\\ disks/../a 0");
    }
}
