// SPDX-License-Identifier: Apache-2.0 OR MIT
//! A message's text as words.

/// Words as the kernel takes them from a message: a backslash makes the next character part of one.
pub(crate) fn split_words(text: &str) -> Vec<String> {
    let mut words = Vec::new();
    let mut word: Option<String> = None;
    let mut chars = text.chars();
    while let Some(c) = chars.next() {
        if c.is_ascii_whitespace() {
            words.extend(word.take());
        } else {
            let c = if c == '\\' { chars.next().unwrap_or(c) } else { c };
            word.get_or_insert_default().push(c);
        }
    }
    words.extend(word);
    words
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn a_message_splits_as_in_the_kernel() {
        for (text, want) in [
            ("flush", &["flush"][..]),
            ("a  b\tc ", &["a", "b", "c"]),
            ("a\\ b c\\\\", &["a b", "c\\"]),
            ("", &[]),
            (" ", &[]),
            ("a\\", &["a\\"]),
        ] {
            assert_eq!(split_words(text), want, "{text:?}");
        }
    }
}
