// SPDX-License-Identifier: Apache-2.0 OR MIT
//! Characters that text from outside may not bring to a terminal, a log or a line of a list.

/// Whether a character steers instead of being seen: the C0 and C1 controls, which move the cursor
/// or begin an escape sequence, and the controls of writing direction, which make a text read as
/// another one than it is.
pub fn is_steering(c: char) -> bool {
    c.is_control()
        || matches!(c, '\u{61c}' | '\u{200e}' | '\u{200f}' | '\u{2028}'..='\u{202e}')
        || ('\u{2066}'..='\u{2069}').contains(&c)
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn controls_of_terminals_and_of_direction_steer() {
        for c in ['\0', '\n', '\x1b', '\x7f', '\u{80}', '\u{9b}', '\u{9f}', '\u{202a}', '\u{202e}']
        {
            assert!(is_steering(c), "{c:?}");
        }
        assert!(is_steering('\u{2066}') && is_steering('\u{2069}') && is_steering('\u{200f}'));
        assert!(!"a ~\u{a0}\u{df}\u{5d0}\u{4e2d}\u{1f600}\\\'".chars().any(is_steering));
    }
}
