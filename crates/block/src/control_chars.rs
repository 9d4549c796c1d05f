// SPDX-License-Identifier: Apache-2.0 OR MIT
//! Control characters, which text from outside must not bring to a terminal, a log or a list.

/// Whether `c` has an effect instead of a shape: the C0 and C1 controls, which move the cursor or
/// begin an escape sequence, and the controls of writing direction, with which a text can be made
/// to look like another one.
pub fn is_control_char(c: char) -> bool {
    c.is_control()
        || matches!(c, '\u{61c}' | '\u{200e}' | '\u{200f}' | '\u{2028}'..='\u{202e}')
        || ('\u{2066}'..='\u{2069}').contains(&c)
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn terminal_and_direction_controls_are_control_characters() {
        for c in ['\0', '\n', '\x1b', '\x7f', '\u{80}', '\u{9b}', '\u{9f}', '\u{202a}', '\u{202e}']
        {
            assert!(is_control_char(c), "{c:?}");
        }
        assert!(
            is_control_char('\u{2066}')
                && is_control_char('\u{2069}')
                && is_control_char('\u{200f}')
        );
        assert!(!"a ~\u{a0}\u{df}\u{5d0}\u{4e2d}\u{1f600}\\\'".chars().any(is_control_char));
    }
}
