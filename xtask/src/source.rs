// SPDX-License-Identifier: Apache-2.0 OR MIT
//! Rust source with comments and literals blanked out, so that words in them are not code.
//!
//! A scanner, not a parser: it knows line and nested block comments, plain, raw and byte strings,
//! characters and lifetimes. Lines stay where they are.

/// `text` with every comment, string and character literal replaced by spaces.
pub(crate) fn code_only(text: &str) -> String {
    blanked(text, |_| true)
}

/// `text` with every comment replaced by spaces.
pub(crate) fn without_comments(text: &str) -> String {
    blanked(text, |first| first == '/')
}

/// `text` with spaces for comments and literals, if `is_blanked` says so of their first character.
fn blanked(text: &str, is_blanked: impl Fn(char) -> bool) -> String {
    let chars: Vec<char> = text.chars().collect();
    let mut out = String::with_capacity(text.len());
    let mut at = 0;
    while at < chars.len() {
        let len = skipped(&chars, at);
        let end = (at + len.max(1)).min(chars.len());
        match len > 0 && is_blanked(chars[at]) {
            true => out.extend(chars[at..end].iter().map(|c| if *c == '\n' { '\n' } else { ' ' })),
            false => out.extend(&chars[at..end]),
        }
        at = end;
    }
    out
}

/// How many characters from `at` on are no code; 0 if `at` is code.
fn skipped(chars: &[char], at: usize) -> usize {
    let rest = &chars[at..];
    let inside_word = at > 0 && is_word(chars[at - 1]);
    match rest {
        ['/', '/', ..] => rest.iter().position(|c| *c == '\n').unwrap_or(rest.len()),
        ['/', '*', ..] => block_comment(rest),
        ['"', ..] => plain_string(rest),
        ['\'', ..] => character(rest),
        ['r', '"' | '#', ..] if !inside_word => raw_string(&rest[1..]).map_or(0, |len| len + 1),
        ['b' | 'c', 'r', '"' | '#', ..] if !inside_word => {
            raw_string(&rest[2..]).map_or(0, |len| len + 2)
        }
        _ => 0,
    }
}

pub(crate) fn is_word(c: char) -> bool {
    c.is_alphanumeric() || c == '_'
}

fn block_comment(rest: &[char]) -> usize {
    let mut depth = 0_usize;
    let mut at = 0;
    while at + 1 < rest.len() {
        match (rest[at], rest[at + 1]) {
            ('/', '*') => (depth, at) = (depth + 1, at + 2),
            ('*', '/') => (depth, at) = (depth - 1, at + 2),
            _ => at += 1,
        }
        if depth == 0 {
            return at;
        }
    }
    rest.len()
}

fn plain_string(rest: &[char]) -> usize {
    let mut at = 1;
    while at < rest.len() {
        match rest[at] {
            '\\' => at += 2,
            '"' => return at + 1,
            _ => at += 1,
        }
    }
    rest.len()
}

/// Length of `#"…"#`, without the `r`; none for a raw identifier such as `r#type`.
fn raw_string(rest: &[char]) -> Option<usize> {
    let hashes = rest.iter().take_while(|c| **c == '#').count();
    if rest.get(hashes) != Some(&'"') {
        return None;
    }
    let body = hashes + 1;
    let closes = |at: &usize| {
        rest[*at] == '"'
            && rest[at + 1..].iter().take(hashes).filter(|c| **c == '#').count() == hashes
    };
    let end = (body..rest.len()).find(closes).map_or(rest.len(), |at| at + 1 + hashes);
    Some(end)
}

/// Length of a character literal; 1, the quote alone, for a lifetime.
fn character(rest: &[char]) -> usize {
    match rest {
        ['\'', '\\', _, tail @ ..] => 3 + tail.iter().position(|c| *c == '\'').map_or(0, |n| n + 1),
        ['\'', _, '\'', ..] => 3,
        _ => 1,
    }
}

/// The identifiers and keywords of a line of code, in order.
pub(crate) fn words(line: &str) -> impl Iterator<Item = &str> {
    line.split(|c| !is_word(c)).filter(|word| !word.is_empty())
}

/// Whether `line` holds `word` as a word of its own.
pub(crate) fn has_word(line: &str, word: &str) -> bool {
    words(line).any(|found| found == word)
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn comments_and_literals_are_blanked_and_lines_stay() {
        let cases = [
            ("a // unsafe\nb", "a          \nb"),
            ("a /* x /* unsafe */ \n */ b", "a                   \n    b"),
            ("f(\"unsafe \\\" x\") y", "f(             ) y"),
            ("r#\"unsafe \" x\"# y", "                y"),
            ("r#type y", "r#type y"),
            ("'\"' 'a' '\\'' x", "             x"),
            ("&'a str", "& a str"),
            ("'\\u{1F600}' x", "            x"),
            ("br\"unsafe\" x", "           x"),
            ("for \"x\"", "for    "),
        ];
        for (text, expected) in cases {
            assert_eq!(code_only(text), expected, "{text}");
        }
    }

    #[test]
    fn words_are_whole() {
        assert!(has_word("let x = unsafe { 1 };", "unsafe"));
        assert!(!has_word("#![deny(unsafe_op_in_unsafe_fn)]", "unsafe"));
        assert!(!has_word("not_unsafe()", "unsafe"));
    }
}
