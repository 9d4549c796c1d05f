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
        if words > 3 {
            push(&mut out, word, &block::quote(&base.to_string_lossy()));
        } else {
            out.push_str(word);
        }
        rest = &rest[word.len()..];
    }
    out
}

/// The same for an attribute's value, where it has paths: `backing_dev` of a compressed RAM disk is
/// one, and `algorithm_params` names dictionaries.
pub fn value_with_absolute_paths(attribute: &str, value: &str, base: &Path) -> String {
    let base = base.to_string_lossy();
    match attribute {
        "backing_dev" => {
            let mut out = String::new();
            push(&mut out, value, &base);
            out
        }
        "algorithm_params" => {
            let mut words = Vec::new();
            for word in value.split_ascii_whitespace() {
                let mut out = String::new();
                push(&mut out, word, &base);
                words.push(out);
            }
            words.join(" ")
        }
        _ => value.to_owned(),
    }
}

/// A device's name as the daemon knows it: made absolute when it is a relative path, of a leaf.
pub fn name_with_absolute_path(name: &str, base: &Path) -> String {
    let mut out = String::new();
    push(&mut out, name, &base.to_string_lossy());
    out
}

/// Appends a word, made absolute when it is a relative path, or the part after `pmem:` or `dict=`
/// is.
fn push(out: &mut String, word: &str, base: &str) {
    let dict = word.match_indices("dict=").find(|(at, _)| *at == 0 || word[..*at].ends_with(','));
    let dict = dict.map(|(at, key)| at + key.len());
    let path = dict.map_or(word, |at| &word[at..]);
    let path = path.strip_prefix("pmem:").unwrap_or(path);
    if !is_relative(path) {
        out.push_str(word);
        return;
    }
    out.push_str(&word[..word.len() - path.len()]);
    out.push_str(base);
    if !base.ends_with('/') {
        out.push('/');
    }
    out.push_str(path.strip_prefix("./").unwrap_or(path));
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
    slash > 0 && !word[..slash].contains([':', '=', ','])
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
        assert_eq!(absolute("0 8 linear pmem:./a.img 0"), "0 8 linear pmem:/my\\ disks/a.img 0");
        for same in [
            "",
            "0 8 linear /abs/a.img 0",
            "0 8 linear origin 0",
            "0 8 linear mem:4K 0",
            "0 8 linear pmem:/abs/a.img 0",
            "0 8 linear nbd://host/name 0",
            "0 8 odd/target x",
            " # see also docs/a.md b/c",
        ] {
            assert_eq!(absolute(same), same);
        }
    }

    #[test]
    fn a_dictionary_is_a_path_within_a_word() {
        let line = "0 8 zram zstd 2 algorithm_params";
        assert_eq!(
            absolute(&format!("{line} priority=0,dict=./d/e,level=3")),
            format!("{line} priority=0,dict=/my\\ disks/d/e,level=3")
        );
        let same = format!("{line} priority=0,dict=/d/e,level=3");
        assert_eq!(absolute(&same), same);
    }

    #[test]
    fn paths_in_values_become_absolute() {
        for (attribute, value, expected) in [
            ("backing_dev", "./a b", "/my disks/a b"),
            ("backing_dev", "none", "none"),
            ("backing_dev", "/dev/sda", "/dev/sda"),
            ("algorithm_params", "algo=zstd  dict=../d", "algo=zstd dict=/my disks/../d"),
            ("comp_algorithm", "a/b", "a/b"),
        ] {
            let got = value_with_absolute_paths(attribute, value, Path::new("/my disks"));
            assert_eq!(got, expected);
        }
    }

    #[test]
    fn a_name_is_a_path_only_with_a_slash() {
        for (name, expected) in [
            ("wc", "wc"),
            ("./a b.img", "/my disks/a b.img"),
            ("sub/a.img", "/my disks/sub/a.img"),
            ("/a.img", "/a.img"),
            ("mem:64M,a/b", "mem:64M,a/b"),
        ] {
            assert_eq!(name_with_absolute_path(name, Path::new("/my disks")), expected);
        }
    }

    #[test]
    fn a_quoted_blank_does_not_end_a_word() {
        assert_eq!(absolute("0 8 linear ./a\\ b 0"), "0 8 linear /my\\ disks/a\\ b 0");
        assert_eq!(absolute("0 8 linear ../a 0"), "0 8 linear /my\\ disks/../a 0");
    }
}
