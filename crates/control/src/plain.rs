// SPDX-License-Identifier: Apache-2.0 OR MIT
//! Text from outside on its way to a terminal.
use std::borrow::Cow;
use std::fmt::Write;

use block::is_control_char;

/// The text as it may be printed: control characters of terminals are escaped as `\u001b`, except
/// for line ends and tabs. JSON keeps its meaning.
pub fn plain(text: &str) -> Cow<'_, str> {
    let stays = |c: char| matches!(c, '\n' | '\t') || !is_control_char(c);
    if text.chars().all(stays) {
        return Cow::Borrowed(text);
    }
    Cow::Owned(text.chars().fold(String::with_capacity(text.len() + 16), |mut out, c| {
        if stays(c) {
            out.push(c);
        } else {
            let _ = write!(out, "\\u{:04x}", u32::from(c));
        }
        out
    }))
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn what_steers_a_terminal_is_written_out() {
        assert_eq!(plain("a\tb\n\u{df}"), "a\tb\n\u{df}");
        assert!(matches!(plain("usual"), Cow::Borrowed(_)));
        let wild = "\x1b[31m\r\u{9b}x\u{202e}\x7f";
        assert_eq!(plain(wild), "\\u001b[31m\\u000d\\u009bx\\u202e\\u007f");
        let json = serde_json::to_string(wild).unwrap();
        assert_eq!(serde_json::from_str::<String>(&plain(&json)).unwrap(), wild);
    }
}
